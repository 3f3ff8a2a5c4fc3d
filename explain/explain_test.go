package explain

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// TestStories asks the questions in each file of testdata about the objects in
// it. A question is a line "SRC DST PROTOCOL PORT [namespace NAME]".
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
			} else {
				story[i].Data = []byte("\n" + ask(t, cluster, f.Name))
			}
		}
		return story
	})
}

// read makes a cluster of YAML documents. A line "lost: NODE" says that the
// node's agent is gone.
func read(t *testing.T, text []byte) Cluster {
	t.Helper()
	c := Cluster{Plugin: plugins.Get, Lost: make(map[string]bool)}
	kinds := append(plugins.Kinds(), api.Kinds...)
	snapshot := make(Snapshot)
	for _, doc := range bytes.Split(text, []byte("---\n")) {
		if node, ok := bytes.CutPrefix(bytes.TrimSpace(doc), []byte("lost: ")); ok {
			c.Lost[string(node)] = true
			continue
		}
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, k := range kinds {
			if version, kind := k.GroupVersionKind.ToAPIVersionAndKind(); found || version != head.APIVersion || kind != head.Kind {
				continue
			}
			o := k.New()
			if err := yaml.UnmarshalStrict(doc, o); err != nil {
				t.Fatal(err)
			}
			snapshot.Put(k, o)
			found = true
		}
		if !found {
			t.Fatalf("no kind %s %s", head.APIVersion, head.Kind)
		}
	}
	c.Objects = snapshot
	return c
}

func ask(t *testing.T, c Cluster, question string) string {
	t.Helper()
	words := strings.Fields(question)
	q := Question{Namespace: "default", Source: words[0], Destination: words[1]}
	var err error
	if q.Protocol, err = plan.ParseProtocol(words[2]); err != nil {
		t.Fatal(err)
	}
	if len(words) > 3 {
		if _, err := fmt.Sscan(words[3], &q.Port); err != nil {
			t.Fatal(err)
		}
	}
	if len(words) > 5 && words[4] == "namespace" {
		q.Namespace = words[5]
	}
	a, err := c.Why(q)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return a.String()
}

// Every order of putting objects into a snapshot gives the same one.
func TestSnapshotIsOrdered(t *testing.T) {
	names := []string{"b", "a", "c", "a"}
	s := make(Snapshot)
	for _, n := range names {
		node := api.Node.New()
		node.SetName(n)
		s.Put(api.Node, node)
	}
	var got []string
	for o := range s.All(api.Node) {
		got = append(got, o.GetName())
	}
	if strings.Join(got, "") != "abc" {
		t.Errorf("order is %v", got)
	}
	if s.Get(api.Node, registry.Key{Name: "d"}) != nil || s.Get(api.Node, registry.Key{Name: "b"}) == nil {
		t.Error("Get does not find what is there, or finds what is not")
	}
}
