package plantest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// What Policed promises: plans are valid, policies decide both ways, and where
// tunnels have no room for tags it does not matter what endpoints wear.
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
			if got.Allowed != want.Allowed && s.Room == 0 {
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

// Tags in tunnels tell the same as the Tags table, where all that nodes send each other
// goes through tunnels, with tags, and all are believed.
func TestTagsInTunnels(t *testing.T) {
	told := 0
	rapid.Check(t, func(t *rapid.T) {
		s := Policed(unpoliced()).Filter(func(s Shape) bool { return s.Room > 0 }).Draw(t, "shape")
		s.Room = rooms[len(rooms)-1]
		// Plainly, no packet says a tag.
		s.Plainly = nil
		s.Believing = nil
		for a := range s.Endpoints {
			s.Carrying[a] = true
			for b := range s.Endpoints {
				s.Believing = append(s.Believing, [2]int{a + 1, b + 1})
			}
		}
		// Of who gets a packet its sender's node knows what the table says, and no more.
		for k, p := range s.Policed {
			p.Egress = ""
			s.Policed[k] = p
		}
		plans, tabled := s.Plans(), s.Plans()
		if len(plans) == 0 {
			return
		}
		for _, of := range plans {
			for _, e := range of.Endpoints.All() {
				for _, a := range e.Addresses {
					for name, p := range plans {
						if _, ok := p.ClassAt(e.Network, a); !ok && e.Tag != 0 {
							k := plan.TagKey{Network: e.Network, Prefix: hostPrefix(a)}
							tabled[name].Tags = tabled[name].Tags.Set(k, plan.Tagging{Tag: e.Tag})
							told++
						}
					}
				}
			}
		}
		for range 20 {
			f := Flows(plans).Draw(t, "flow")
			if got, want := plan.Explain(plans, f), plan.Explain(tabled, f); got.Allowed != want.Allowed {
				t.Fatalf("with tags in tunnels instead of the table %s is another: %s", f, cmp.Diff(want.String(), got.String()))
			}
		}
	})
	if told == 0 {
		t.Error("the table says all there is to say")
	}
}
