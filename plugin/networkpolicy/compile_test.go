package networkpolicy

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
// themselves, and the plan and the problems of each. objects.yaml may be followed
// by then.yaml, objects that come later; what is compiled incrementally is held
// against what is compiled at once.
func TestCompile(t *testing.T) {
	golden.Archives(t, "testdata/compile/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var objects, then registry.Snapshot
		var nodes []plugin.Node
		var out []txtar.File
		for _, f := range story {
			switch f.Name {
			case "objects.yaml":
				objects = decode(t, f.Data)
				then = objects
			case "then.yaml":
				then = with(objects, decode(t, f.Data))
			case "nodes.yaml":
				nodes = readNodes(t, f.Data)
			default:
				continue
			}
			out = append(out, f)
		}
		config := &api.ClusterConfig{}
		if o := objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}); o != nil {
			config = api.Effective(o)
		}
		p := On(flat{}, "flat-with-policies")
		for _, n := range nodes {
			c := plugin.CompilerOf(p)
			in := plugin.Input{Config: config, Objects: objects, Node: n}
			first, _ := c.Compile(in)
			again, _ := c.Compile(plugin.Input{Config: in.Config, Objects: objects, Node: n, Previous: first})
			if d := first.Diff(again); !d.Empty() {
				t.Errorf("compiled twice, the plan of %s differs:\n%s", n.Name, d)
			}
			in.Objects = then
			now, problems := p.Compile(in)
			in.Previous = first
			later, theirs := c.Compile(in)
			if err := now.Validate(); err != nil {
				t.Errorf("the plan of %s is invalid: %v", n.Name, err)
			}
			if lines(problems) != lines(theirs) {
				t.Errorf("at once the problems are\n%s, step by step\n%s", lines(problems), lines(theirs))
			}
			if d := cmp.Diff(readable(now), readable(later)); d != "" {
				t.Errorf("the plan of %s, -compiled at once +step by step:\n%s", n.Name, d)
			}
			out = append(out, txtar.File{Name: n.Name + " plan", Data: []byte(readable(now))})
			if len(problems) > 0 {
				out = append(out, txtar.File{Name: n.Name + " problems", Data: []byte(lines(problems))})
			}
		}
		return out
	})
}

// readable returns a plan's text with numbers for the node's own classes that follow
// from where they are used alone.
func readable(p *plan.Plan) string {
	var pairs []string
	seen := map[plan.Class]bool{}
	for _, m := range p.Classes.All() {
		if m.Class >= plan.FirstOwnClass && !seen[m.Class] {
			seen[m.Class] = true
			pairs = append(pairs, fmt.Sprintf(" %s ", m.Class), fmt.Sprintf(" own%d ", len(seen)))
		}
	}
	lines := strings.Split(strings.NewReplacer(pairs...).Replace(p.String()), "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		if strings.HasPrefix(a, "verdict ") && strings.HasPrefix(b, "verdict ") {
			return strings.Compare(a, b)
		}
		return 0
	})
	return strings.Join(lines, "\n")
}

// flat is a plug-in that knows no policies: a network with nothing but pods.
type flat struct{}

func (flat) Name() string            { return "flat" }
func (flat) Kinds() []*registry.Kind { return nil }

func (flat) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	b := plan.NewBuilder(in.Previous)
	plugin.PutNode(b, in.Node)
	problems := plugin.PutEndpoints(b, in.Node)
	return b.Build(), problems
}

// decode reads objects as a user writes them.
func decode(t testing.TB, text []byte) registry.Snapshot {
	t.Helper()
	decoded, err := api.Decode(text, api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[*registry.Kind][]registry.Object{}
	for i, d := range decoded {
		d.Object.SetResourceVersion(fmt.Sprint(100 + i))
		objects[d.Kind] = append(objects[d.Kind], d.Object)
	}
	return registry.NewSnapshot(objects)
}

// with returns objects with others in the place of those of their names; one
// that is annotated as deleted is left out.
func with(objects, others registry.Snapshot) registry.Snapshot {
	out := map[*registry.Kind][]registry.Object{}
	for k, list := range objects {
		out[k] = slices.Clone(list)
	}
	for k, list := range others {
		for _, o := range list {
			out[k] = slices.DeleteFunc(out[k], func(other registry.Object) bool { return registry.KeyOf(o) == registry.KeyOf(other) })
			if o.GetAnnotations()["deleted"] == "" {
				out[k] = append(out[k], o)
			}
		}
	}
	return registry.NewSnapshot(out)
}

func readNodes(t testing.TB, text []byte) []plugin.Node {
	t.Helper()
	var nodes []plugin.Node
	for document := range bytes.SplitSeq(text, []byte("---\n")) {
		var n struct {
			Name      string       `json:"name"`
			Addresses []netip.Addr `json:"addresses"`
			Pods      []struct {
				Interface string       `json:"interface"`
				Network   string       `json:"network"`
				Pod       string       `json:"pod"`
				UID       string       `json:"uid"`
				Addresses []netip.Addr `json:"addresses"`
			} `json:"pods"`
		}
		if err := yaml.UnmarshalStrict(document, &n); err != nil {
			t.Fatal(err)
		}
		node := plugin.Node{Name: n.Name, Addresses: n.Addresses}
		for _, p := range n.Pods {
			namespace, name, _ := strings.Cut(p.Pod, "/")
			if p.Network == "" {
				p.Network = plan.DefaultNetwork
			}
			node.Endpoints = append(node.Endpoints, plugin.Endpoint{Interface: p.Interface, Network: p.Network, Addresses: p.Addresses,
				MAC: plan.MACOf(p.Addresses[0]), Namespace: namespace, Pod: name, UID: p.UID})
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func lines(problems []plugin.Problem) string {
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}
