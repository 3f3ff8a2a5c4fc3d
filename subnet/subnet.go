// Package subnet gives each node a subnet of the cluster's CIDRs, so that no
// two overlap, in the order that OpenShift SDN uses.
//
// It is pure: an Allocator is made from the ranges and from all that is taken,
// is asked for subnets, and is thrown away. Whoever asks remembers what was
// given and how far each range's cursor got. Start at Allocator; Range says
// how a CIDR is cut and in which order its pieces are given out; Set is the
// set of addresses underneath.
package subnet

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// Family is a family of addresses.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// FamilyOf returns the family that an address belongs to.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// MinHostBits is the least host bits of a range: the subnet's own address, the
// gateway's, one for a pod, and the broadcast address of IPv4.
const MinHostBits = 2

// Range is a CIDR that is cut into subnets of one size.
type Range struct {
	// CIDR is masked.
	CIDR netip.Prefix
	// HostBits is how many bits of an address tell the hosts of a subnet
	// apart: 8 makes subnets of /24 in IPv4. It is MinHostBits to what CIDR
	// leaves over.
	HostBits int
}

func (r Range) String() string { return fmt.Sprintf("%s in subnets of /%d", r.CIDR, r.length()) }

// Family is that of the range's addresses.
func (r Range) Family() Family { return FamilyOf(r.CIDR.Addr()) }

// Check says what is wrong with the range, or returns nil.
func (r Range) Check() error {
	switch {
	case !r.CIDR.IsValid():
		return fmt.Errorf("the CIDR is missing or invalid")
	case r.CIDR.Addr().Is4In6():
		return fmt.Errorf("CIDR %s is an IPv4-mapped IPv6 prefix: use an IPv4 CIDR", r.CIDR)
	case r.CIDR != r.CIDR.Masked():
		return fmt.Errorf("CIDR %s has bits set after its length: use %s", r.CIDR, r.CIDR.Masked())
	}
	most := r.CIDR.Addr().BitLen() - r.CIDR.Bits()
	switch {
	case most < MinHostBits:
		return fmt.Errorf("CIDR %s is too small: a subnet takes at least %d host bits", r.CIDR, MinHostBits)
	case r.HostBits < MinHostBits || r.HostBits > most:
		return fmt.Errorf("host subnet length %d does not suit CIDR %s: use %d to %d", r.HostBits, r.CIDR, MinHostBits, most)
	}
	return nil
}

// length is the prefix length of the range's subnets.
func (r Range) length() int { return r.CIDR.Addr().BitLen() - r.HostBits }

// maxBits bounds how many subnets of a range are used: those numbered from 0
// to 2^64-1. What an IPv6 CIDR has beyond them is left alone.
const maxBits = 64

// order numbers a range's subnets in the order in which they are given out.
//
// A subnet's id is the part of its address between CIDR and host bits. Where
// that part begins inside an octet and reaches into the one above, numbers are
// ids with the bits rotated, so that the ids that are zero in the shared octet
// come first: of 10.1.0.0/16 with 6 host bits, 10.1.0.0/26, 10.1.1.0/26 and so
// on to 10.1.255.0/26, and then 10.1.0.64/26. People can tell those apart.
type order struct {
	base     netip.Prefix // the part of the CIDR that has numbers
	length   int          // of subnets
	hostBits int
	bits     int // of a number, at most maxBits
	rotate   int // how many of them lie in the shared octet
}

func (r Range) order() order {
	o := order{base: r.CIDR, length: r.length(), hostBits: r.HostBits}
	o.bits = min(o.length-r.CIDR.Bits(), maxBits)
	o.base, _ = r.CIDR.Addr().Prefix(o.length - o.bits)
	if shared := (8 - r.HostBits%8) % 8; shared < o.bits {
		o.rotate = shared
	}
	return o
}

// last is the highest number.
func (o order) last() uint64 { return ^uint64(0) >> (maxBits - o.bits) }

// subnet returns the subnet of a number.
func (o order) subnet(number uint64) netip.Prefix {
	id := (number<<o.rotate | number>>(o.bits-o.rotate)) & o.last()
	hi, lo := split(o.base.Addr())
	if o.hostBits >= 64 {
		hi |= id << (o.hostBits - 64)
	} else {
		hi |= id >> (64 - o.hostBits)
		lo |= id << o.hostBits
	}
	return netip.PrefixFrom(join(hi, lo, o.base.Addr().Is4()), o.length)
}

// number returns the number of the subnet that has an address of base.
func (o order) number(a netip.Addr) uint64 {
	hi, lo := split(a)
	var id uint64
	if o.hostBits >= 64 {
		id = hi >> (o.hostBits - 64)
	} else {
		id = hi<<(64-o.hostBits) | lo>>o.hostBits
	}
	id &= o.last()
	return (id>>o.rotate | id<<(o.bits-o.rotate)) & o.last()
}

// free returns the first number from first to last whose subnet shares no
// address with taken.
func (o order) free(taken *Set, first, last uint64) (uint64, bool) {
	for i := first; i <= last; {
		t, overlaps := taken.Overlap(o.subnet(i))
		if !overlaps {
			return i, true
		}
		if t.Bits() <= o.base.Bits() {
			return 0, false
		}
		// Numbers that differ in the lower bits only are neighbours in the
		// octets above the shared one: skip what t has of them.
		step := uint64(1)
		if m := o.length - t.Bits() - o.rotate; m > 0 {
			block := uint64(1) << m
			step = block - i&(block-1)
		}
		next, carry := bits.Add64(i, step, 0)
		if carry != 0 {
			return 0, false
		}
		i = next
	}
	return 0, false
}

// split returns an address as a number of 128 bits; an IPv4 address in the
// lowest 32 of them.
func split(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func join(hi, lo uint64, is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(lo))))
	}
	b := binary.BigEndian.AppendUint64(nil, hi)
	return netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64(b, lo)))
}
