package drops

import (
	"slices"

	"github.com/weftnet/weft/plan"
)

// Other stands for the rules that a Counter does not tell apart.
const Other = "other rules"

// maxRules is how many rules a Counter tells apart: those who write policies
// must not fill an agent.
const maxRules = 4096

// Counter adds up what a data plane counts, rule by rule. Its sums grow though
// the kernel's numbers begin at 0 now and then; a rule is forgotten only where
// there are too many, and none of its verdicts is in the kernel. The zero
// Counter is empty.
type Counter struct {
	seen map[plan.VerdictKey]reading
	sums map[Count]uint64 // by the key's Rule and Direction
}

// reading is what a verdict's number was.
type reading struct {
	packets uint64
	rule    string
}

// Add takes note of what each verdict has denied by now. p is the plan that
// they are from.
func (c *Counter) Add(now map[plan.VerdictKey]uint64, p *plan.Plan) {
	if c.seen == nil {
		c.seen, c.sums = make(map[plan.VerdictKey]reading), make(map[Count]uint64)
	}
	for k := range c.seen {
		if _, ok := now[k]; !ok {
			delete(c.seen, k)
		}
	}
	grown := make(map[Count]uint64)
	for k, packets := range now {
		last := c.seen[k]
		more := packets - last.packets
		if packets < last.packets { // it began anew
			more = packets
		}
		rule := last.rule // what is no longer in the plan, the kernel may still have
		if p != nil {
			if v, ok := p.Verdicts.Get(k); ok {
				rule = v.Origin
			}
		}
		c.seen[k] = reading{packets, rule}
		if more > 0 {
			grown[Count{Rule: rule, Direction: k.Direction}] += more
		}
	}
	c.makeRoom(grown)
	for k, more := range grown {
		if _, known := c.sums[k]; !known && len(c.sums) >= maxRules {
			k.Rule = Other
		}
		c.sums[k] += more
	}
}

// makeRoom forgets rules of which the kernel has no verdict where there is no
// room for all that grown names.
func (c *Counter) makeRoom(grown map[Count]uint64) {
	fresh := 0
	for k := range grown {
		if _, known := c.sums[k]; !known {
			fresh++
		}
	}
	if len(c.sums)+fresh <= maxRules {
		return
	}
	live := make(map[Count]bool)
	for k, r := range c.seen {
		live[Count{Rule: r.rule, Direction: k.Direction}] = true
	}
	for k := range c.sums {
		if !live[k] && k.Rule != Other {
			delete(c.sums, k)
		}
	}
}

// Counts returns the sums, in the order of CompareCounts.
func (c *Counter) Counts() []Count {
	counts := make([]Count, 0, len(c.sums))
	for k, packets := range c.sums {
		k.Packets = packets
		counts = append(counts, k)
	}
	slices.SortFunc(counts, CompareCounts)
	return counts
}
