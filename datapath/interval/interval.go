// Package interval turns prefixes, of which the longest that contains an address
// decides, into what tables of kernels and switches hold: disjoint ranges, and the
// prefixes that remain of one without others.
//
// It is pure. Start at Flatten.
package interval

import (
	"iter"
	"net/netip"
	"slices"
)

// Families are the families of addresses, as whether one is IPv4's.
var Families = []bool{true, false}

// Range is an inclusive range of addresses of one family with a value.
type Range[V any] struct {
	First, Last netip.Addr
	Value       V
}

// Flatten turns prefixes, of which the longest that contains an address
// decides, into disjoint intervals in order. Neighbours with equal values are
// one interval. All prefixes are of one family; no two are the same.
func Flatten[V comparable](entries iter.Seq2[netip.Prefix, V]) []Range[V] {
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
	slices.SortFunc(all, func(a, b entry) int { return a.prefix.Compare(b.prefix) })

	var out []Range[V]
	var stack []open // each within the one before
	var next netip.Addr
	emit := func(last netip.Addr) {
		v := stack[len(stack)-1].value
		if !next.IsValid() || last.Less(next) {
			return
		}
		if n := len(out); n > 0 && out[n-1].Value == v && out[n-1].Last.Next() == next {
			out[n-1].Last = last
		} else {
			out = append(out, Range[V]{next, last, v})
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
		stack = append(stack, open{Last(e.prefix), e.value})
	}
	closeUntil(netip.Addr{})
	return out
}

// Last is the last address of a prefix.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// FlattenFamily is flatten for those of the prefixes that are of one family.
func FlattenFamily[V comparable](prefixes map[netip.Prefix]V, is4 bool) []Range[V] {
	return Flatten(func(yield func(netip.Prefix, V) bool) {
		for p, v := range prefixes {
			if p.Addr().Is4() == is4 && !yield(p, v) {
				return
			}
		}
	})
}

// Everything is the prefix that holds all addresses of a family.
func Everything(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Covers reports whether outer contains inner and is not the same.
func Covers(outer, inner netip.Prefix) bool {
	return outer.Bits() < inner.Bits() && outer.Contains(inner.Addr())
}

// Common returns the longest prefix that holds all those of one family,
// and false when there are none.
func Common(prefixes []netip.Prefix, is4 bool) (common netip.Prefix, ok bool) {
	for _, p := range prefixes {
		switch {
		case p.Addr().Is4() != is4:
		case !ok:
			common, ok = p.Masked(), true
		default:
			for bits := min(common.Bits(), p.Bits()); ; bits-- {
				common = netip.PrefixFrom(common.Addr(), bits).Masked()
				if common.Contains(p.Addr()) {
					break
				}
			}
		}
	}
	return common, ok
}

// Subtract returns the prefixes that make up p without q.
func Subtract(p, q netip.Prefix) []netip.Prefix {
	if !p.Overlaps(q) {
		return []netip.Prefix{p}
	}
	if q.Bits() <= p.Bits() {
		return nil
	}
	var rest []netip.Prefix
	for bits := p.Bits() + 1; bits <= q.Bits(); bits++ {
		rest = append(rest, sibling(netip.PrefixFrom(q.Addr(), bits).Masked()))
	}
	return rest
}

// sibling returns the other half of the prefix one bit shorter.
func sibling(p netip.Prefix) netip.Prefix {
	b := p.Addr().AsSlice()
	b[(p.Bits()-1)/8] ^= 0x80 >> ((p.Bits() - 1) % 8)
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, p.Bits())
}

// Single is the prefix that holds an address alone.
func Single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
