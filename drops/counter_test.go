package drops

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath"
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

func in(rule string, packets uint64) Count {
	return Count{Rule: rule, Direction: plan.Incoming, Packets: packets}
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
		{map[plan.VerdictKey]uint64{a: 3, b: 0}, both, []Count{in("a", 3)}},
		{map[plan.VerdictKey]uint64{a: 5, b: 7}, both, []Count{in("b", 7), in("a", 5)}},
		// The kernel begins anew.
		{map[plan.VerdictKey]uint64{a: 1, b: 7}, both, []Count{in("b", 7), in("a", 6)}},
		// The plan is ahead of the kernel: what still counts is known by its old name.
		{map[plan.VerdictKey]uint64{a: 2, b: 7}, planOf("b"), []Count{in("a", 7), in("b", 7)}},
		// A verdict leaves, and comes back.
		{map[plan.VerdictKey]uint64{b: 7}, planOf("b"), []Count{in("a", 7), in("b", 7)}},
		{map[plan.VerdictKey]uint64{a: 9, b: 7}, both, []Count{in("a", 16), in("b", 7)}},
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
	if c.denied.sums[Count{Rule: Other, Direction: plan.Incoming}] != 2*2 {
		t.Errorf("the others have %d packets", c.denied.sums[Count{Rule: Other, Direction: plan.Incoming}])
	}
}

// What is dropped for a reason is counted by who sent it, as long as the kernel
// counts it, and keeps its sender's name when that one has gone.
func TestDroppedIsCounted(t *testing.T) {
	p, err := plan.Parse("node node1\nendpoint weft1 network default addresses 10.1.1.2 name default/web")
	if err != nil {
		t.Fatal(err)
	}
	web := datapath.Dropped{Reason: datapath.SpoofedSource, Interface: "weft1"}
	wire := datapath.Dropped{Reason: datapath.ForgedSource, Interface: "eth0"}
	node := datapath.Dropped{Reason: datapath.NoBackend}
	var c Counter
	for i, step := range []struct {
		now       map[datapath.Dropped]uint64
		plan      *plan.Plan
		web, wire uint64
	}{
		{map[datapath.Dropped]uint64{web: 2, wire: 1}, p, 2, 1},
		{map[datapath.Dropped]uint64{web: 5, wire: 1}, p, 5, 1},
		{map[datapath.Dropped]uint64{web: 6}, planOf(), 6, 1}, // the pod has gone, and the other was forgotten
		{map[datapath.Dropped]uint64{wire: 3}, p, 6, 4},
		{map[datapath.Dropped]uint64{web: 1, wire: 3}, p, 7, 4},
	} {
		c.AddDropped(step.now, step.plan)
		want := []Count{{Reason: datapath.SpoofedSource, Direction: plan.Outgoing, From: "default/web", Packets: step.web},
			{Reason: datapath.ForgedSource, Direction: plan.Incoming, From: "eth0 of node1", Packets: step.wire}}
		if diff := cmp.Diff(want, c.Counts()); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
	c = Counter{}
	c.AddDropped(map[datapath.Dropped]uint64{node: 1}, p)
	if diff := cmp.Diff([]Count{{Reason: datapath.NoBackend, Direction: plan.Outgoing, From: "node1 itself", Packets: 1}}, c.Counts()); diff != "" {
		t.Errorf("of what the node itself sent: %s", diff)
	}
}

// Pods that come and go, and more of them than are told apart, do not fill an
// agent, and no packet is lost in the sums.
func TestDroppedIsBounded(t *testing.T) {
	now := map[datapath.Dropped]uint64{}
	for i := range maxRules + 10 {
		now[datapath.Dropped{Reason: datapath.SpoofedSource, Interface: fmt.Sprint("weft", i)}] = 1
	}
	var c Counter
	c.AddDropped(now)
	total := uint64(0)
	for _, count := range c.Counts() {
		total += count.Packets
	}
	if n := len(c.Counts()); n != maxRules+1 || total != uint64(len(now)) {
		t.Errorf("%d sources, %d packets", n, total)
	}
}
