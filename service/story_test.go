package service_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// node is the one that stories are about.
var node = plan.Local{
	Node:      "node1",
	Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2"), netip.MustParseAddr("fd01::2")},
	Pools: []plan.Pool{
		{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.1.0/24"), Gateway: netip.MustParseAddr("10.1.1.1"), Tunnel: "vxlan"},
		{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1")},
	},
	Tunnels: []plan.Tunnel{{Name: "vxlan", VTEP: netip.MustParseAddr("172.30.0.2"), MAC: plan.MACOf(netip.MustParseAddr("172.30.0.2")), Port: 4789}},
}

// TestStories applies what each part of a story says to what there is, after taking away
// what its lines that begin with "delete" name, and tells how the plan of node1 changes by it
// and what cannot be done.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var w world
		var c service.Compiler
		before := planOf(node, service.Tables{})
		return golden.Answer(files, func(name, in string) string {
			w.apply(t, name, in)
			tables := c.Compile(w.snapshot(), node)
			problems := c.Problems()
			other := new(service.Compiler)
			fresh := other.Compile(w.snapshot(), node)
			same := other.Problems()
			now, anew := planOf(node, tables), planOf(node, fresh)
			if !now.Equal(anew) || fmt.Sprint(problems) != fmt.Sprint(same) {
				t.Errorf("%s: step by step it is\n%s%v\nand at once\n%s%v", name, now, problems, anew, same)
			}
			if err := now.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			out := before.Diff(now).String()
			before = now
			for _, p := range problems {
				out += fmt.Sprintf("%s %s: %s\n", p.Kind.Kind, p.Key, p.Message)
			}
			if out == "" {
				out = "nothing changes\n"
			}
			return out
		})
	})
}

// planOf returns a node's plan that has tables and nothing else.
func planOf(node plan.Local, t service.Tables) *plan.Plan {
	return &plan.Plan{Local: node, Services: t.Services, Backends: t.Backends, Sources: t.Sources}
}

// world is all objects there are.
type world map[*registry.Kind]map[registry.Key]registry.Object

func (w *world) apply(t *testing.T, name, in string) {
	if *w == nil {
		*w = make(world)
	}
	var yaml strings.Builder
	for l := range strings.Lines(in) {
		what, deletes := strings.CutPrefix(strings.TrimSpace(l), "delete ")
		if !deletes {
			yaml.WriteString(l)
			continue
		}
		singular, key, _ := strings.Cut(what, " ")
		namespace, object, _ := strings.Cut(key, "/")
		for k := range *w {
			if k.Singular == singular {
				delete((*w)[k], registry.Key{Namespace: namespace, Name: object})
			}
		}
	}
	all, err := api.Decode([]byte(yaml.String()), append([]*registry.Kind{service.GrantKind}, service.Kinds...))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, d := range all {
		if (*w)[d.Kind] == nil {
			(*w)[d.Kind] = make(map[registry.Key]registry.Object)
		}
		(*w)[d.Kind][registry.KeyOf(d.Object)] = d.Object
	}
}

func (w world) snapshot() registry.Snapshot {
	objects := make(map[*registry.Kind][]registry.Object)
	for k, all := range w {
		for _, o := range all {
			objects[k] = append(objects[k], o)
		}
	}
	return registry.NewSnapshot(objects)
}
