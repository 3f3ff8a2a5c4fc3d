package drops

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

func verdict(rule string) (plan.VerdictKey, plan.Verdict) {
	return plan.Otherwise(rule, plan.Incoming), plan.Verdict{Origin: rule}
}

// planOf returns a plan with a verdict for each rule, whose policy has the
// rule's name.
func planOf(rules ...string) *plan.Plan {
	b := plan.NewBuilder(nil)
	for _, r := range rules {
		b.PutVerdict(verdict(r))
	}
	return b.Build()
}

func TestCountsSurviveTheKernels(t *testing.T) {
	a, _ := verdict("a")
	b, _ := verdict("b")
	both := planOf("a", "b")
	var c Counter
	for i, step := range []struct {
		now  map[plan.VerdictKey]uint64
		plan *plan.Plan
		want []Count
	}{
		{nil, nil, []Count{}},
		{map[plan.VerdictKey]uint64{a: 3, b: 0}, both, []Count{{"a", plan.Incoming, 3}}},
		{map[plan.VerdictKey]uint64{a: 5, b: 7}, both, []Count{{"b", plan.Incoming, 7}, {"a", plan.Incoming, 5}}},
		// The kernel begins anew.
		{map[plan.VerdictKey]uint64{a: 1, b: 7}, both, []Count{{"b", plan.Incoming, 7}, {"a", plan.Incoming, 6}}},
		// The plan is ahead of the kernel: what still counts is known by its old name.
		{map[plan.VerdictKey]uint64{a: 2, b: 7}, planOf("b"), []Count{{"a", plan.Incoming, 7}, {"b", plan.Incoming, 7}}},
		// A verdict leaves, and comes back.
		{map[plan.VerdictKey]uint64{b: 7}, planOf("b"), []Count{{"a", plan.Incoming, 7}, {"b", plan.Incoming, 7}}},
		{map[plan.VerdictKey]uint64{a: 9, b: 7}, both, []Count{{"a", plan.Incoming, 16}, {"b", plan.Incoming, 7}}},
	} {
		c.Add(step.now, step.plan)
		if diff := cmp.Diff(step.want, c.Counts()); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

// Whatever the kernel does, sums only grow, and by what it counted.
func TestCountsOnlyGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Counter
		rules := []string{"a", "b", "c"}
		p := planOf(rules...)
		kernel, want := map[plan.VerdictKey]uint64{}, map[string]uint64{}
		for range rapid.IntRange(1, 20).Draw(t, "polls") {
			for _, r := range rules {
				k, _ := verdict(r)
				n := rapid.Uint64Range(0, 5).Draw(t, "packets")
				if rapid.IntRange(0, 3).Draw(t, "anew") == 0 {
					// What it counts before the next poll is less than before,
					// or nobody could tell.
					n = min(n, max(kernel[k], 1)-1)
					delete(kernel, k)
				}
				kernel[k] += n
				want[r] += n
			}
			c.Add(maps.Clone(kernel), p)
			for _, count := range c.Counts() {
				if count.Packets != want[count.Rule] {
					t.Fatalf("%s has %d packets, not %d", count.Rule, count.Packets, want[count.Rule])
				}
			}
		}
	})
}

// Rules that come and go, and more of them than are told apart, do not fill
// an agent, and no packet is lost in the sums.
func TestCountsAreBounded(t *testing.T) {
	var c Counter
	total := uint64(0)
	for round := range 3 {
		var rules []string
		for i := range maxRules - 1 {
			rules = append(rules, fmt.Sprint(round, " ", i))
		}
		if round == 2 {
			rules = append(rules, "one", "two", "three")
		}
		now := map[plan.VerdictKey]uint64{}
		for _, r := range rules {
			k, _ := verdict(r)
			now[k] = 2
		}
		c.Add(now, planOf(rules...))
		total = 0
		for _, count := range c.Counts() {
			total += count.Packets
		}
		if n := len(c.Counts()); n > maxRules+1 {
			t.Errorf("round %d: %d rules", round, n)
		}
		if total != uint64(2*len(rules)) {
			t.Errorf("round %d: %d packets of %d", round, total, 2*len(rules))
		}
	}
	if c.sums[Count{Rule: Other, Direction: plan.Incoming}] != 2*2 {
		t.Errorf("the others have %d packets", c.sums[Count{Rule: Other, Direction: plan.Incoming}])
	}
}
