package drops

import (
	"slices"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// Other stands for the rules, or the sources, that a Counter does not tell
// apart.
const Other = "other rules"

// maxRules is how many rules a Counter tells apart, and how many sources: those
// who write policies, or come and go, must not fill an agent.
const maxRules = 4096

// Counter adds up what a data plane counts, rule by rule, and reason by reason.
// Its sums grow though the kernel's numbers begin at 0 now and then; a rule is
// forgotten only where there are too many, and none of its verdicts is in the
// kernel. The zero Counter is empty.
type Counter struct {
	denied  tally[plan.VerdictKey]
	dropped tally[datapath.Dropped]
}

// Add takes note of what each verdict has denied by now. They are from one of the
// plans.
func (c *Counter) Add(now map[plan.VerdictKey]uint64, plans ...*plan.Plan) {
	c.denied.add(now, func(k plan.VerdictKey, last Count) Count {
		// What is no longer in the plan, the kernel may still have.
		count := Count{Rule: last.Rule, Direction: k.Direction}
		for _, p := range plans {
			if v, ok := p.Verdicts.Get(k); ok {
				count.Rule = v.Origin
				break
			}
		}
		return count
	}, func(c Count) Count { return Count{Rule: Other, Direction: c.Direction} })
}

// AddDropped takes note of what was dropped for each reason by now, by one of the
// plans, as Attribute has it.
func (c *Counter) AddDropped(now map[datapath.Dropped]uint64, plans ...*plan.Plan) {
	c.dropped.add(now, func(k datapath.Dropped, last Count) Count {
		count := Count{Reason: k.Reason}
		if count.Direction, count.From = sender(k.Interface, knowing(k.Interface, plans)); count.Direction == plan.Incoming && last.Direction == plan.Outgoing {
			return last // an endpoint that has gone
		}
		return count
	}, func(c Count) Count { return Count{Reason: c.Reason, Direction: c.Direction, From: Other} })
}

// Counts returns the sums, in the order of CompareCounts.
func (c *Counter) Counts() []Count {
	counts := c.dropped.counts(c.denied.counts(make([]Count, 0, len(c.denied.sums)+len(c.dropped.sums))))
	slices.SortFunc(counts, CompareCounts)
	return counts
}

// tally adds up what is counted by key. Its sums have no Packets in their keys.
type tally[K comparable] struct {
	seen map[K]reading
	sums map[Count]uint64
}

// reading is what a key's number was.
type reading struct {
	packets uint64
	of      Count
}

// add takes note of the numbers by now. name says what a key is counted as,
// and what it is counted as where that is too much; it gets what it said last.
func (t *tally[K]) add(now map[K]uint64, name func(k K, last Count) Count, other func(Count) Count) {
	if t.seen == nil {
		t.seen, t.sums = make(map[K]reading), make(map[Count]uint64)
	}
	for k := range t.seen {
		if _, ok := now[k]; !ok {
			delete(t.seen, k)
		}
	}
	grown := make(map[Count]uint64)
	for k, packets := range now {
		last := t.seen[k]
		more := packets - last.packets
		if packets < last.packets { // it began anew
			more = packets
		}
		of := name(k, last.of)
		t.seen[k] = reading{packets, of}
		if more > 0 {
			grown[of] += more
		}
	}
	t.makeRoom(grown, other)
	for k, more := range grown {
		if _, known := t.sums[k]; !known && len(t.sums) >= maxRules {
			k = other(k)
		}
		t.sums[k] += more
	}
}

// makeRoom forgets what the kernel does not count any more where there is no
// room for all that grown names.
func (t *tally[K]) makeRoom(grown map[Count]uint64, other func(Count) Count) {
	fresh := 0
	for k := range grown {
		if _, known := t.sums[k]; !known {
			fresh++
		}
	}
	if len(t.sums)+fresh <= maxRules {
		return
	}
	live := make(map[Count]bool)
	for _, r := range t.seen {
		live[r.of] = true
	}
	for k := range t.sums {
		if !live[k] && k != other(k) {
			delete(t.sums, k)
		}
	}
}

// counts appends the sums.
func (t *tally[K]) counts(all []Count) []Count {
	for k, packets := range t.sums {
		k.Packets = packets
		all = append(all, k)
	}
	return all
}
