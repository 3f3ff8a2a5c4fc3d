package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

// TestMerge shows what becomes of the plans that several plug-ins make for a node: each
// file of testdata has the one of the plug-in that is used, then those of others, and the
// plan of all with what is wrong.
func TestMerge(t *testing.T) {
	golden.Archives(t, "testdata/merge-*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var plans []*plan.Plan
		var out []txtar.File
		for _, f := range files {
			if !strings.HasPrefix(f.Name, "plan") {
				continue
			}
			p, err := plan.Parse(string(f.Data))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Validate(); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			plans, out = append(plans, p), append(out, f)
		}
		merged, problems := merge(nil, plans)
		if err := merged.Validate(); err != nil {
			t.Errorf("the plan of all is invalid: %v", err)
		}
		if again, _ := merge(merged, plans); !again.Equal(merged) {
			t.Error("another plan comes of the same, made from the one before")
		}
		var said strings.Builder
		for _, p := range problems {
			said.WriteString(p.String() + "\n")
		}
		return append(out, txtar.File{Name: "all", Data: []byte(merged.String())}, txtar.File{Name: "problems", Data: []byte(said.String())})
	})
}

// TestMixGoesOn has two plug-ins whose plans do not go together: the node goes on with the
// one that it uses, and says so.
func TestMixGoesOn(t *testing.T) {
	made := func(text string) Plugin {
		p, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return fixed{name: p.Local.Pools[0].Prefix.String(), plan: p}
	}
	const node = "node node1 addresses 172.30.0.2\npool default 10.%d.1.0/24 gateway 10.%[1]d.1.1\nendpoint weft%[1]d network default addresses 10.1.1.%d name default/a\n"
	used, rival, other := made(fmt.Sprintf(node, 1, 2)), made(fmt.Sprintf(node, 2, 2)), made(fmt.Sprintf(node, 3, 3))
	p, problems := Mix(used, rival, other).Compile(Input{Node: Node{Name: "node1"}})
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if p.Endpoints.Len() != 2 || len(p.Local.Pools) != 2 {
		t.Errorf("the plan has not what goes together:\n%s", p)
	}
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "10.2.1.0/24 is left out on this node") {
		t.Errorf("what is said is %v", problems)
	}
}

// fixed is a plug-in that states the same of every node.
type fixed struct {
	Plugin
	name string
	plan *plan.Plan
}

func (f fixed) Name() string                          { return f.name }
func (f fixed) Compile(Input) (*plan.Plan, []Problem) { return f.plan, nil }

// TestAmongOtherNetworks has a node whose other plug-in gives pods addresses of a second
// network, too. What that network's subnets are takes no address of Nodes' own network.
func TestAmongOtherNetworks(t *testing.T) {
	subnet, other := netip.MustParsePrefix("10.1.1.0/24"), netip.MustParsePrefix("10.2.1.0/24")
	with := &plan.Plan{Local: plan.Local{Pools: []plan.Pool{{Network: plan.DefaultNetwork, Prefix: subnet}, {Network: "red", Prefix: other}}}}
	if kept := among(Input{}, []*plan.Plan{{}, with}, 0).Node.Kept; !slices.Equal(kept, []netip.Prefix{subnet}) {
		t.Errorf("the node keeps %v, want %s", kept, subnet)
	}
}
