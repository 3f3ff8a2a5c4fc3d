package subnet

import (
	"iter"
	"net/netip"
	"slices"
)

// Set is a set of addresses of both families, held as prefixes. The zero Set
// is empty. Adding costs O(n) at worst and O(1) in ascending order; asking
// costs O(log n).
type Set struct {
	// prefixes are masked, disjoint and in ascending order.
	prefixes []netip.Prefix
}

// Add adds a prefix's addresses. An invalid prefix has none.
func (s *Set) Add(p netip.Prefix) {
	if !p.IsValid() {
		return
	}
	p = p.Masked()
	i := s.after(p)
	if i > 0 && s.prefixes[i-1].Overlaps(p) {
		if s.prefixes[i-1].Bits() <= p.Bits() {
			return
		}
		i-- // the same address, and shorter
	}
	end := i
	for end < len(s.prefixes) && p.Overlaps(s.prefixes[end]) {
		end++
	}
	s.prefixes = slices.Replace(s.prefixes, i, end, p)
}

// Overlap returns the first prefix of the set that shares addresses with p.
func (s *Set) Overlap(p netip.Prefix) (netip.Prefix, bool) {
	if !p.IsValid() {
		return netip.Prefix{}, false
	}
	p = p.Masked()
	i := s.after(p)
	if i > 0 && s.prefixes[i-1].Overlaps(p) {
		return s.prefixes[i-1], true
	}
	if i < len(s.prefixes) && s.prefixes[i].Overlaps(p) {
		return s.prefixes[i], true
	}
	return netip.Prefix{}, false
}

// Contains reports whether an address is in the set.
func (s *Set) Contains(a netip.Addr) bool {
	_, ok := s.Overlap(netip.PrefixFrom(a, a.BitLen()))
	return ok
}

// Within yields the prefixes that share addresses with p, in ascending order.
func (s *Set) Within(p netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		p := p.Masked()
		i := s.after(p)
		if i > 0 && s.prefixes[i-1].Overlaps(p) {
			i--
		}
		for ; i < len(s.prefixes) && s.prefixes[i].Overlaps(p); i++ {
			if !yield(s.prefixes[i]) {
				return
			}
		}
	}
}

// after is the index of the first prefix that begins after p does.
func (s *Set) after(p netip.Prefix) int {
	i, _ := slices.BinarySearchFunc(s.prefixes, p.Addr(), func(e netip.Prefix, a netip.Addr) int {
		if e.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	return i
}
