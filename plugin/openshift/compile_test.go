package openshift

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// TestCompile holds the plans of some clusters against what people wrote down.
// Each story in testdata/compile has the objects, the nodes as they know
// themselves, and the plan and the problems of each.
func TestCompile(t *testing.T) {
	golden.Archives(t, "testdata/compile/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		objects, nodes := readStory(t, story)
		story = slices.DeleteFunc(story, func(f txtar.File) bool { return !strings.HasSuffix(f.Name, ".yaml") })
		for _, n := range nodes {
			p, problems := compile(objects, n, nil)
			if err := p.Validate(); err != nil {
				t.Errorf("the plan of %s is invalid: %v", n.Name, err)
			}
			story = append(story, txtar.File{Name: n.Name + " plan", Data: []byte(p.String())})
			if len(problems) > 0 {
				story = append(story, txtar.File{Name: n.Name + " problems", Data: []byte(lines(problems))})
			}
		}
		return story
	})
}

// node is a node's own knowledge in a story.
type node struct {
	Name      string         `json:"name"`
	Addresses []netip.Addr   `json:"addresses"`
	MTU       int            `json:"mtu"`
	Prefixes  []netip.Prefix `json:"prefixes"`
	Pods      []struct {
		Name      string       `json:"name"`
		Interface string       `json:"interface"`
		Addresses []netip.Addr `json:"addresses"`
	} `json:"pods"`
}

func readStory(t *testing.T, story []txtar.File) (registry.Snapshot, []plugin.Node) {
	t.Helper()
	objects := map[*registry.Kind][]registry.Object{}
	var nodes []plugin.Node
	for _, f := range story {
		switch f.Name {
		case "objects.yaml":
			decoded, err := api.Decode(f.Data, api.Kinds)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range decoded {
				objects[d.Kind] = append(objects[d.Kind], d.Object)
			}
		case "nodes.yaml":
			for _, doc := range documents(f.Data) {
				var n node
				if err := yaml.UnmarshalStrict(doc, &n); err != nil {
					t.Fatal(err)
				}
				out := plugin.Node{Name: n.Name, Addresses: n.Addresses, MTU: n.MTU, Prefixes: n.Prefixes}
				for _, p := range n.Pods {
					out.Endpoints = append(out.Endpoints, plugin.Endpoint{Interface: p.Interface, Network: plan.DefaultNetwork, Addresses: p.Addresses,
						MAC: plan.MACOf(p.Addresses[0]), Namespace: "default", Pod: p.Name})
				}
				nodes = append(nodes, out)
			}
		}
	}
	return registry.NewSnapshot(objects), nodes
}

func documents(data []byte) [][]byte {
	var out [][]byte
	for doc := range bytes.SplitSeq(data, []byte("---\n")) {
		if len(bytes.TrimSpace(doc)) > 0 {
			out = append(out, doc)
		}
	}
	return out
}

func compile(objects registry.Snapshot, n plugin.Node, previous *plan.Plan) (*plan.Plan, []plugin.Problem) {
	config, _ := objects.Get(api.ClusterConfigKind, networkKey).(*api.ClusterConfig)
	if config == nil {
		config = &api.ClusterConfig{}
	}
	return Subnet{}.Compile(plugin.Input{Previous: previous, Config: config, Objects: objects, Node: n})
}

func lines(problems []plugin.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// TestPodsElsewhere has a node list what is a pod's by another plug-in: it draws nothing of
// that, though its tunnel ends where it says.
func TestPodsElsewhere(t *testing.T) {
	objects, nodes := readStory(t, archive(t, "testdata/compile/dual-stack.txtar"))
	first := nodes[0]
	first.Taken = plugin.Holdings{netip.MustParsePrefix("fd00::/112"): "node3", netip.MustParsePrefix("192.168.7.0/24"): "node3"}
	p, problems := compile(objects, first, nil)
	for prefix, want := range map[string]bool{"192.168.7.2/32": true, "fd00::2/128": false} {
		if _, got := p.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(prefix)}); got != want {
			t.Errorf("there is a route to %s: %t", prefix, got)
		}
	}
	if want := "address fd00::2 is in subnet fd00::/112, where node3 has pods' addresses by another plug-in"; !strings.Contains(lines(problems), want) {
		t.Errorf("nothing says %q:\n%s", want, lines(problems))
	}
}

func archive(t *testing.T, path string) []txtar.File {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return a.Files
}
