package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/registry"
)

// maxFile bounds what a file may hold, in bytes.
const maxFile = 16 << 20

// parseTargets reads the YAML or JSON documents of a file. It is strict:
// unknown kinds and fields, fields given twice and values of the wrong type
// are errors that name the document.
func parseTargets(in io.Reader, namespace string) ([]target, error) {
	limited := &io.LimitedReader{R: in, N: maxFile + 1}
	docs := yamlreader.NewYAMLReader(bufio.NewReader(limited))
	var targets []target
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if limited.N == 0 {
			return nil, fmt.Errorf("more than %d MiB: split it", maxFile>>20)
		}
		if errors.Is(err, io.EOF) {
			return targets, nil
		}
		if err != nil {
			return nil, err
		}
		some, err := parseDocument(doc, namespace)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		targets = append(targets, some...)
	}
}

func parseDocument(doc []byte, namespace string) ([]target, error) {
	text, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(text, []byte("null")) {
		return nil, nil // comments only
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, errors.New("an object has apiVersion, kind and metadata; this is something else")
	}
	if fields["kind"] == "List" && fields["apiVersion"] == "v1" {
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		var targets []target
		for i, item := range list.Items {
			some, err := parseDocument(item, namespace)
			if err != nil {
				return nil, fmt.Errorf("item %d: %w", i+1, err)
			}
			targets = append(targets, some...)
		}
		return targets, nil
	}
	k, err := kindOf(fields)
	if err != nil {
		return nil, err
	}
	o := k.New()
	unknown, err := kjson.UnmarshalStrict(text, o)
	if err := errors.Join(append(unknown, err)...); err != nil {
		metadata, _ := fields["metadata"].(map[string]any)
		return nil, fmt.Errorf("%s %v: %w", k.Singular, metadata["name"], err)
	}
	t, err := newTarget(k, o, fields, namespace)
	if err != nil {
		return nil, err
	}
	return []target{t}, nil
}

// kindOf finds the kind that a document says it is.
func kindOf(fields map[string]any) (*registry.Kind, error) {
	apiVersion, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	if apiVersion == "" || kind == "" {
		return nil, errors.New("apiVersion and kind must be there, as apiVersion: v1 and kind: Node")
	}
	var known []string
	for _, k := range kinds() {
		version, name := k.GroupVersionKind.ToAPIVersionAndKind()
		if version == apiVersion && name == kind {
			return k, nil
		}
		known = append(known, version+" "+name)
	}
	return nil, fmt.Errorf("there is no kind %s %s: there are %s", apiVersion, kind, strings.Join(known, ", "))
}
