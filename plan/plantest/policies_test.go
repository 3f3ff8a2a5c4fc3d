package plantest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// What Policed promises: plans are valid, policies decide both ways, and it
// does not matter whether tunnels carry the endpoints' tags.
func TestPoliced(t *testing.T) {
	decided := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		s := Policed(unpoliced()).Draw(t, "shape")
		plans, untagged := s.Plans(), s.Plans()
		if len(plans) == 0 {
			return
		}
		for name, p := range plans {
			if err := p.Validate(); err != nil {
				t.Fatalf("%v, in:\n%s", err, p)
			}
			for k, e := range p.Endpoints.All() {
				e.Tag = 0
				untagged[name].Endpoints = untagged[name].Endpoints.Set(k, e)
			}
		}
		for range 20 {
			f := Flows(plans).Draw(t, "flow")
			got, want := plan.Explain(untagged, f), plan.Explain(plans, f)
			if got.Allowed != want.Allowed {
				t.Fatalf("without tags in tunnels %s is another: %s", f, cmp.Diff(want.String(), got.String()))
			}
			for _, step := range want.Steps {
				if step.Table == "verdicts" {
					words := strings.Fields(step.Decision)
					decided[words[0]+" "+words[2]]++
				}
			}
		}
	})
	for _, decision := range []string{"ingress allows", "ingress denies", "egress allows", "egress denies"} {
		if decided[decision] == 0 {
			t.Errorf("no %q among %v", decision, decided)
		}
	}
}
