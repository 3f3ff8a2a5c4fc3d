package explain

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestServing asks how the Services in each file are served: those that its parts are called by.
func TestServing(t *testing.T) {
	golden.Archives(t, "testdata/serving/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
				continue
			}
			namespace, name, _ := strings.Cut(f.Name, "/")
			said, err := cluster.Serving(registry.Key{Namespace: namespace, Name: name})
			if story[i].Data = []byte("\n" + said.String()); err != nil {
				story[i].Data = []byte("\nerror: " + err.Error() + "\n")
			}
		}
		return story
	})
}

// TestAnnounceProblems has several nodes answer for addresses, and none for some.
func TestAnnounceProblems(t *testing.T) {
	node := func(name, announces string) registry.Object {
		n := &corev1.Node{}
		n.Name = name
		api.SetAnnounces(n, announces)
		return n
	}
	virtual := func(name, address string) registry.Object {
		v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: address}}
		v.Name = name
		return v
	}
	objects := map[*registry.Kind][]registry.Object{
		api.Node:               {node("node1", "192.0.2.1,192.0.2.2,192.0.2.3"), node("node2", "192.0.2.1,192.0.2.2"), node("node3", "192.0.2.3")},
		api.VirtualAddressKind: {virtual("router", "192.0.2.1"), virtual("silent", "192.0.2.9"), virtual("wrong", "nowhere")},
	}
	c := Cluster{Objects: registry.NewSnapshot(objects), Lost: map[string]bool{"node3": true}}
	said := func(want ...string) {
		t.Helper()
		var got []string
		for _, p := range c.AnnounceProblems() {
			text, _, _ := strings.Cut(p.String(), ": see ")
			text, _, _ = strings.Cut(text, ": one stops")
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it is said %q, want %q", got, want)
		}
	}
	both := []string{"virtualaddress router: 192.0.2.1 is answered for on the link by node1, node2", "addressgrant 192.0.2.2: 192.0.2.2 is answered for on the link by node1, node2"}
	said(append([]string{"virtualaddress silent: no node says that it answers for 192.0.2.9 on the link"}, both...)...)
	// One that does not name all that it answers for may answer for that, too.
	objects[api.Node] = append(objects[api.Node], node("node4", "192.0.2.4,+1"))
	c.Objects = registry.NewSnapshot(objects)
	said(both...)
}
