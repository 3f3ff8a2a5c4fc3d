package linux

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// A connection gets the backend of one of its set's slots, drawn at random. A backend has
// slots as its weight says.

// exactSlots is how many slots a set has at most that has as many as its weights add up
// to, and exactBackends how many where all weights are the same, so that each backend has one. Of more
// a backend has its share, rounded up or down, of four slots a backend at least. There are chains for each number of slots, so that
// these are to be few: a power of two up to manySlots, and beyond that a multiple of slotsStep, so that a change of some backends
// changes about four times as many slots, and never all. A set of which backends have gone keeps up to twice as many as it would be made with and two
// steps, so that one backend that comes and goes does not change the number each time.
const (
	exactSlots    = 32
	exactBackends = 256
	manySlots     = 1024
	slotsStep     = 256
)

// weighted is a backend that gets connections, and how many beside others.
type weighted struct {
	at     netip.AddrPort
	weight uint16
}

// slotCounts returns how many slots there are for backends of some weights, where there were some
// before, and how many of them each has at least; what remains goes, one each, to those whose share
// is more.
func slotCounts(before int, backends []weighted) (all int, least []int, more []bool) {
	divisor, total := 0, 0
	for _, b := range backends {
		divisor, total = divisorOf(divisor, int(b.weight)), total+int(b.weight)
	}
	if total == 0 {
		return 0, nil, nil
	}
	total /= divisor
	exact := total <= exactSlots || total <= exactBackends && total == len(backends)
	needs := max(4*len(backends), 2*total)
	most := 1 << bits.Len(uint(needs-1))
	if needs > manySlots {
		most = (needs + slotsStep - 1) / slotsStep * slotsStep
	}
	kept := 2 * most
	isOfThese := before&(before-1) == 0
	if before > manySlots {
		kept, isOfThese = kept+2*slotsStep, before%slotsStep == 0
	}
	switch stays := isOfThese && before >= needs && before <= kept; {
	case stays && (!exact || before > exactBackends):
		all = before
	case exact:
		all = total
	default:
		all = most
	}
	for _, b := range backends {
		share := all * (int(b.weight) / divisor)
		least, more = append(least, share/total), append(more, share%total > 0)
	}
	return all, least, more
}

// divisorOf is the greatest common one.
func divisorOf(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// assignSlots gives backends, of whom none is there twice, their slots. Who has a slot
// keeps it where he may, so that a change of one backend changes few slots.
func assignSlots(before []netip.AddrPort, backends []weighted) []netip.AddrPort {
	all, least, more := slotCounts(len(before), backends)
	slots := make([]netip.AddrPort, all)
	lacks, rest := make(map[netip.AddrPort]int, len(backends)), all
	mayHaveMore := make(map[netip.AddrPort]bool, len(backends))
	for i, b := range backends {
		lacks[b.at], mayHaveMore[b.at], rest = least[i], more[i], rest-least[i]
	}
	for i, b := range before[:min(len(before), all)] {
		switch {
		case lacks[b] > 0:
			lacks[b]--
		case mayHaveMore[b] && rest > 0:
			mayHaveMore[b], rest = false, rest-1
		default:
			continue
		}
		slots[i] = b
	}
	var owed []netip.AddrPort
	for _, b := range backends {
		owed = append(owed, slices.Repeat([]netip.AddrPort{b.at}, lacks[b.at])...)
		if mayHaveMore[b.at] && rest > 0 {
			owed, rest = append(owed, b.at), rest-1
		}
	}
	for i := range slots {
		if !slots[i].IsValid() {
			slots[i], owed = owed[0], owed[1:]
		}
	}
	return slots
}

// backendsOf returns those of a set's family that get connections.
func backendsOf(p *plan.Plan, set setKey) (all []weighted) {
	for k, b := range p.BackendsOf(plan.DefaultNetwork, set.name) {
		if k.Address.Is4() == set.is4 && b.Weight > 0 {
			all = append(all, weighted{addressOf(k), b.Weight})
		}
	}
	return all
}
