package datapath

import (
	"testing"

	"github.com/weftnet/weft/plan"
)

// Reasons are told apart from each other, and from the directions of policies,
// by their names.
func TestReasons(t *testing.T) {
	seen := map[Reason]bool{Reason(plan.Incoming): true, Reason(plan.Outgoing): true}
	for _, r := range Reasons {
		if seen[r] || r == "" {
			t.Errorf("%q is something else, too", r)
		}
		seen[r] = true
		if r.Text() == string(r) {
			t.Errorf("%q has no words", r)
		}
	}
	if len(reasonTexts) != len(Reasons) {
		t.Errorf("there are words for %d reasons, of %d", len(reasonTexts), len(Reasons))
	}
}
