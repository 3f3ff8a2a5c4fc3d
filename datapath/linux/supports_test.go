package linux

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestSupportsWhatIsPossible has kernels that lack anything: what is made of a plan for them
// is refused by none, neither as the first plan nor after another.
func TestSupportsWhatIsPossible(t *testing.T) {
	b := newBench(t)
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		can := rapid.Bool()
		d := DataPlane{ipv6: can.Draw(t, "IPv6"), sctp: can.Draw(t, "SCTP")}
		d.policies.tags = can.Draw(t, "labels")
		able := b.Capabilities()
		able.IPv6, able.SCTP, able.Tags, able.Services = d.ipv6, d.sctp, d.policies.tags, d.policies.tags
		var enforced *plan.Plan
		for range 2 {
			p := plantest.Demanding().Draw(t, "plans")["node1"]
			possible, _ := datapath.Possible(p, able)
			enforced, _ = datapath.Enforceable(possible, able, enforced)
			if err := d.supports(p); err != nil {
				refused++
				if !errors.Is(err, datapath.ErrNotSupported) || len(datapath.Lacks(p, able)) == 0 {
					t.Fatalf("of what can be done it is said: %v", err)
				}
			}
			if err := d.supports(enforced); err != nil {
				t.Fatalf("as it is made for %+v it is refused: %v\n%s", able, err, enforced)
			}
			if d.current != nil {
				if err := d.supportsChanges(enforced, d.current.Diff(enforced)); err != nil {
					t.Fatalf("as it is made for %+v it is refused after\n%s: %v\n%s", able, d.current, err, enforced)
				}
			}
			d.current = enforced
		}
	})
	if refused == 0 {
		t.Error("nothing is refused that nobody has made possible")
	}
}
