package networkpolicy

import (
	"net/netip"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// tagging is a plug-in with tags of its own: those of its plan are told.
type tagging struct{ plan *plan.Plan }

func (tagging) Name() string                                          { return "tagging" }
func (tagging) Kinds() []*registry.Kind                               { return nil }
func (b tagging) Compile(plugin.Input) (*plan.Plan, []plugin.Problem) { return b.plan, nil }

// TestAddsToTags puts policies onto a plug-in that has tags, twice: all that it says is
// there as it was, and only policies come to it.
func TestAddsToTags(t *testing.T) {
	base, err := plan.Parse(`
node node1 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weft1 network default addresses 10.1.1.2 tag 77
route default 10.1.1.2/32 endpoint weft1
tag default 10.1.2.0/24 88
tag default 10.1.2.9/32 99
`)
	if err != nil {
		t.Fatal(err)
	}
	p := plugin.Stack("both", tagging{base}, On, On)
	if layer, ok := p.(plugin.Layer); !ok || p.Name() != "both" || plugin.BaseOf(p).Name() != "tagging" || plugin.BaseOf(layer.Base()).Name() != "tagging" {
		t.Errorf("%s stands on %s", p.Name(), plugin.BaseOf(p).Name())
	}
	in := plugin.Input{Config: api.Effective(nil), Objects: registry.NewSnapshot(nil), Node: plugin.Node{Name: "node1",
		Endpoints: []plugin.Endpoint{{Interface: "weft1", Network: plan.DefaultNetwork, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.2")}}}}}
	got, problems := p.Compile(in)
	if len(problems) > 0 {
		t.Error(problems)
	}
	if d := base.Diff(got); len(d.Tags)+len(d.Routes)+len(d.Peers)+len(d.Networks) > 0 || d.Local {
		t.Errorf("the layer changed %+v", d)
	}
	if e, _ := got.Endpoints.Get(plan.EndpointKey{Interface: "weft1"}); e.Tag != 77 {
		t.Errorf("the endpoint wears %v, not 77", e.Tag)
	}
}
