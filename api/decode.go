package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/registry"
)

// maxText is how much Decode takes, in bytes.
const maxText = 16 << 20

// Decoded is an object as a user wrote it.
type Decoded struct {
	Kind   *registry.Kind
	Object registry.Object
	// Fields are those that were written, as encoding/json decodes them, and a
	// Namespace's label with its name.
	Fields map[string]any
	// Line is where the object's document begins, counted from 1.
	Line int
}

// Decode reads the YAML or JSON documents of a file; a v1 List counts as its
// items. It is strict: kinds other than the given ones, unknown fields, fields
// given twice and values of the wrong type are errors, which name the line as
// well as can be, and then nothing is returned. Whether an object is valid is
// for Kind.Validate to say.
func Decode(text []byte, kinds []*registry.Kind) ([]Decoded, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("more than %d MiB: split it", maxText>>20)
	}
	var all []Decoded
	for line, document := range documents(text) {
		some, err := decodeDocument(document, kinds)
		if err != nil {
			return nil, locate(err, document, line)
		}
		for _, d := range some {
			d.Line = line
			all = append(all, d)
		}
	}
	return all, nil
}

// documents yields the YAML documents of a text, each with the line that it
// begins at. Only a document's marker can be at the start of a line, so there
// is no need to parse.
func documents(text []byte) func(yield func(int, []byte) bool) {
	return func(yield func(int, []byte) bool) {
		var document []byte
		start, line := 1, 0
		for l := range bytes.Lines(text) {
			line++
			marker, rest, _ := bytes.Cut(bytes.TrimRight(l, "\r\n"), []byte(" "))
			if string(marker) != "---" && string(marker) != "..." {
				document = append(document, l...)
				continue
			}
			if !yield(start, document) {
				return
			}
			// What follows the marker on its line belongs to the document.
			document = append(bytes.Clone(rest), '\n')
			start = line
		}
		yield(start, document)
	}
}

func decodeDocument(document []byte, kinds []*registry.Kind) ([]Decoded, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if string(bytes.TrimSpace(text)) == "null" {
		return nil, nil // nothing but comments
	}
	return decodeJSON(text, kinds)
}

func decodeJSON(text []byte, kinds []*registry.Kind) ([]Decoded, error) {
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, errors.New("an object has apiVersion, kind and metadata; this is something else")
	}
	version, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	if version == "v1" && kind == "List" {
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, errors.New("items of a List must be a list")
		}
		var all []Decoded
		for i, item := range list.Items {
			some, err := decodeJSON(item, kinds)
			if err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
			all = append(all, some...)
		}
		return all, nil
	}
	k, err := kindCalled(version, kind, kinds)
	if err != nil {
		return nil, err
	}
	o := k.New()
	strict, err := kjson.UnmarshalStrict(text, o)
	for i, e := range strict {
		strict[i] = suggest(e, reflect.TypeOf(o))
	}
	if err := errors.Join(append(strict, err)...); err != nil {
		metadata, _ := fields["metadata"].(map[string]any)
		return nil, fmt.Errorf("%s %v: %w", k.Singular, metadata["name"], err)
	}
	if n, ok := o.(*corev1.Namespace); ok && n.Name != "" { // so it has metadata
		// As an API server does: policies select namespaces by name with it.
		metav1.SetMetaDataLabel(&n.ObjectMeta, corev1.LabelMetadataName, n.Name)
		metadata, _ := fields["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
			metadata["labels"] = labels
		}
		labels[corev1.LabelMetadataName] = n.Name
	}
	return []Decoded{{Kind: k, Object: o, Fields: fields}}, nil
}

func kindCalled(version, kind string, kinds []*registry.Kind) (*registry.Kind, error) {
	if version == "" || kind == "" {
		return nil, errors.New("apiVersion and kind are missing, such as apiVersion: v1 and kind: Node")
	}
	var known []string
	meant := ""
	for _, k := range kinds {
		v, name := k.ToAPIVersionAndKind()
		if v == version && name == kind {
			return k, nil
		}
		known = append(known, v+" "+name)
		// So are kinds called that other programs have for the same, or one of another version.
		if meant == "" && strings.HasSuffix(strings.ToLower(kind), strings.ToLower(name)) {
			meant = " (is " + known[len(known)-1] + " meant?)"
		}
	}
	return nil, fmt.Errorf("unknown kind %s %s%s; there are %s", version, kind, meant, strings.Join(known, ", "))
}

// Where errors of the decoders say what they are about.
var (
	lineNumber = regexp.MustCompile(`^line (\d+): `)
	fieldPath  = regexp.MustCompile(`(?:unknown field "|field |of type )([^" ]*[.])?([A-Za-z0-9_-]+)"?`)
)

// locate puts the line in the file before an error of a document that begins
// at a line: the one that the error names, or the only one that has the field
// that it names, or the document's first.
func locate(err error, document []byte, start int) error {
	message := err.Error()
	message = strings.TrimPrefix(message, "unmarshal errors:\n  ")
	if m := lineNumber.FindStringSubmatch(message); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return fmt.Errorf("line %d: %s", start+n-1, message[len(m[0]):])
		}
	}
	if m := fieldPath.FindStringSubmatch(message); m != nil {
		mention := regexp.MustCompile(`^[\s{,-]*"?` + regexp.QuoteMeta(m[2]) + `"?\s*:`)
		found, n := 0, 0
		for l := range bytes.Lines(document) {
			if n++; mention.Match(l) {
				if found != 0 {
					return fmt.Errorf("document at line %d: %s", start, message)
				}
				found = n
			}
		}
		if found != 0 {
			return fmt.Errorf("line %d: %s", start+found-1, message)
		}
	}
	return fmt.Errorf("document at line %d: %s", start, message)
}
