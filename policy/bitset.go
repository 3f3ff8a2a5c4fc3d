package policy

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// bitset is a set of small numbers. The nil bitset is empty.
type bitset []uint64

// with returns the set with n in it; it may be s itself.
func (s bitset) with(n uint32) bitset {
	for int(n/64) >= len(s) {
		s = append(s, 0)
	}
	s[n/64] |= 1 << (n % 64)
	return s
}

// withSpan returns the set with the numbers of a span in it; it may be s itself.
func (s bitset) withSpan(of span) bitset {
	if of.from >= of.to {
		return s
	}
	s = s.with(uint32(of.to - 1))
	for i := of.from / 64; i <= (of.to-1)/64; i++ {
		w := ^uint64(0)
		if i == of.from/64 {
			w <<= of.from % 64
		}
		if i == (of.to-1)/64 {
			w &= ^uint64(0) >> (63 - (of.to-1)%64)
		}
		s[i] |= w
	}
	return s
}

// drop takes n out of the set.
func (s bitset) drop(n uint32) {
	if s.has(n) {
		s[n/64] &^= 1 << (n % 64)
	}
}

func (s bitset) has(n uint32) bool { return int(n/64) < len(s) && s[n/64]&(1<<(n%64)) != 0 }

// trimmed returns the set without room for greater numbers than it has.
func (s bitset) trimmed() bitset {
	for len(s) > 0 && s[len(s)-1] == 0 {
		s = s[:len(s)-1]
	}
	return s
}

func (s bitset) meets(o bitset) bool {
	for i := range min(len(s), len(o)) {
		if s[i]&o[i] != 0 {
			return true
		}
	}
	return false
}

// meetsBut reports whether both sets have a number that a third has not.
func (s bitset) meetsBut(o, but bitset) bool {
	for i := range min(len(s), len(o)) {
		if s[i]&o[i]&^but.word(i) != 0 {
			return true
		}
	}
	return false
}

// agrees reports whether both have the same of the numbers of a third.
func (s bitset) agrees(o, about bitset) bool {
	for i, w := range about {
		if (s.word(i)^o.word(i))&w != 0 {
			return false
		}
	}
	return true
}

func (s bitset) word(i int) uint64 {
	if i < len(s) {
		return s[i]
	}
	return 0
}

// firstOfBoth returns the first number from n on that is in both sets, -1 if
// there is none.
func (s bitset) firstOfBoth(o bitset, n int) int {
	mask := ^uint64(0) << (n % 64)
	for i := n / 64; i < min(len(s), len(o)); i++ {
		if w := s[i] & o[i] & mask; w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
		mask = ^uint64(0)
	}
	return -1
}

// union returns a set of its own with what is in either.
func (s bitset) union(o bitset) bitset {
	if len(s) < len(o) {
		s, o = o, s
	}
	all := append(make(bitset, 0, len(s)), s...)
	for i, w := range o {
		all[i] |= w
	}
	return all
}

// differing yields the numbers that are in one of both sets, in order.
func (s bitset) differing(o bitset) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range max(len(s), len(o)) {
			for w := s.word(i) ^ o.word(i); w != 0; w &= w - 1 {
				if !yield(uint32(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// distance is how many numbers are in one of both sets.
func (s bitset) distance(o bitset) (n int) {
	if len(s) < len(o) {
		s, o = o, s
	}
	for i, w := range s {
		n += bits.OnesCount64(w ^ o.word(i))
	}
	return n
}

// common yields the numbers that are in both sets, in order.
func (s bitset) common(o bitset) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range min(len(s), len(o)) {
			for w := s[i] & o[i]; w != 0; w &= w - 1 {
				if !yield(uint32(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// append appends what tells trimmed sets apart.
func (s bitset) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	for _, w := range s {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}
