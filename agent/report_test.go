package agent

import (
	"net/netip"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// enforces is a plug-in that reads policies.
type enforces struct{ gives }

func (enforces) Kinds() []*registry.Kind { return []*registry.Kind{api.NetworkPolicy} }

// TestWithdraw has a node start with what an earlier agent said of policies. That stays
// only while there is a plug-in that has some in force and will say it anew.
func TestWithdraw(t *testing.T) {
	plain, policies := gives{"plain", netip.MustParsePrefix("10.1.1.0/24")}, enforces{gives{"policies", netip.MustParsePrefix("10.2.1.0/24")}}
	loading := []string{"policies"}
	for name, test := range map[string]struct {
		plugin.Choice
		all  []plugin.Plugin
		keep bool
	}{
		"none":               {plugin.Choice{Used: "plain"}, []plugin.Plugin{plain}, false},
		"used":               {plugin.Choice{Used: "policies"}, []plugin.Plugin{policies}, true},
		"beside":             {plugin.Choice{Used: "plain"}, []plugin.Plugin{plain, policies}, true},
		"loading":            {plugin.Choice{Used: "plain", Loading: loading}, []plugin.Plugin{plain, policies}, false},
		"used while loading": {plugin.Choice{Used: "policies", Loading: loading}, []plugin.Plugin{policies, plain}, true},
	} {
		for what, said := range map[string]api.NodeReport{
			"enforced": {Enforced: map[string]string{"networkpolicies": "7"}},
			"problems": {Problems: []api.PolicyProblem{{Kind: "NetworkPolicy", Name: "web", Message: "too large"}}},
			"untold":   {Untold: []string{"shop"}},
		} {
			reg := memory.New()
			said.Name = "node1"
			if _, err := reg.Create(t.Context(), api.NodeReportKind, &said); err != nil {
				t.Fatal(err)
			}
			a := &agent{Config: Config{Node: "node1", Registry: reg}}
			a.withdraw(t.Context(), mixedOf(test.Choice, test.all))
			o, err := reg.Get(t.Context(), api.NodeReportKind, registry.Key{Name: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			if r := o.(*api.NodeReport); (len(r.Enforced)+len(r.Problems)+len(r.Untold) > 0) != test.keep {
				t.Errorf("%s: of %s there is %+v, want it kept: %v", name, what, r, test.keep)
			}
		}
	}
}
