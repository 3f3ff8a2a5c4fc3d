package linux

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// interval is an inclusive range of addresses of one family with a value.
type interval[V any] struct {
	first, last netip.Addr
	value       V
}

// flatten turns prefixes, of which the longest that contains an address
// decides, into disjoint intervals in order. Neighbours with equal values are
// one interval. All prefixes are of one family; no two are the same.
func flatten[V comparable](entries iter.Seq2[netip.Prefix, V]) []interval[V] {
	type open struct {
		last  netip.Addr
		value V
	}
	type entry struct {
		prefix netip.Prefix
		value  V
	}
	var all []entry
	for p, v := range entries {
		all = append(all, entry{p.Masked(), v})
	}
	slices.SortFunc(all, func(a, b entry) int { return comparePrefix(a.prefix, b.prefix) })

	var out []interval[V]
	var stack []open // each within the one before
	var next netip.Addr
	emit := func(last netip.Addr) {
		v := stack[len(stack)-1].value
		if !next.IsValid() || last.Less(next) {
			return
		}
		if n := len(out); n > 0 && out[n-1].value == v && out[n-1].last.Next() == next {
			out[n-1].last = last
		} else {
			out = append(out, interval[V]{next, last, v})
		}
	}
	closeUntil := func(before netip.Addr) {
		for len(stack) > 0 {
			top := stack[len(stack)-1]
			if before.IsValid() && !top.last.Less(before) {
				return
			}
			emit(top.last)
			next = top.last.Next() // invalid after the very last address
			stack = stack[:len(stack)-1]
		}
	}
	for _, e := range all {
		first := e.prefix.Addr()
		closeUntil(first)
		if len(stack) > 0 && next.Less(first) {
			emit(first.Prev())
		}
		next = first
		stack = append(stack, open{lastOf(e.prefix), e.value})
	}
	closeUntil(netip.Addr{})
	return out
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// scope is whom an egress rule holds for. The zero scope is the network's.
type scope struct {
	endpoint string
	tagged   bool
	tag      plan.Tag
}

func scopeOf(k plan.EgressKey) scope { return scope{k.Interface, k.Tagged, k.Tag} }

// egressScopes groups the rules by scope and leaves out families.
func egressScopes(p *plan.Plan) map[scope]map[netip.Prefix]plan.Egress {
	scopes := map[scope]map[netip.Prefix]plan.Egress{}
	for k, e := range p.Egress.All() {
		s := scopeOf(k)
		if scopes[s] == nil {
			scopes[s] = map[netip.Prefix]plan.Egress{}
		}
		scopes[s][k.Destination] = e
	}
	return scopes
}

// decisions returns a scope's intervals of one family.
func decisions[V comparable](rules map[netip.Prefix]plan.Egress, is4 bool, value func(plan.Egress) V) []interval[V] {
	return flatten(func(yield func(netip.Prefix, V) bool) {
		for p, e := range rules {
			if p.Addr().Is4() == is4 && !yield(p, value(e)) {
				return
			}
		}
	})
}
