package subnet

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Allocator gives out subnets. Of the ranges of a family it uses the first
// that has room, and in it the first free subnet after the one given out last,
// starting over at the end.
type Allocator struct {
	ranges []Range
	taken  Set
	// quarantined are among taken.
	quarantined []netip.Prefix
	// closed are the CIDRs of ranges that Allocate passes over.
	closed []netip.Prefix
	cursor map[netip.Prefix]netip.Prefix
}

// NewAllocator returns an allocator over ranges for which Check is nil. cursor
// is what Cursor returned of the allocator before, or nil.
func NewAllocator(ranges []Range, cursor map[netip.Prefix]netip.Prefix) *Allocator {
	a := &Allocator{ranges: ranges, cursor: map[netip.Prefix]netip.Prefix{}}
	for _, r := range ranges {
		if last, ok := cursor[r.CIDR]; ok {
			a.cursor[r.CIDR] = last
		}
	}
	return a
}

// Take keeps a prefix of any length, in a range or not, from being given out.
func (a *Allocator) Take(p netip.Prefix) { a.taken.Add(p) }

// Quarantine is Take for a subnet that will be free again.
func (a *Allocator) Quarantine(p netip.Prefix) {
	a.taken.Add(p)
	a.quarantined = append(a.quarantined, p)
}

// Close keeps Allocate from giving out what a range has. Free says of it still what could
// be given out.
func (a *Allocator) Close(r Range) { a.closed = append(a.closed, r.CIDR) }

// Free reports whether a prefix is a subnet that could be given out.
func (a *Allocator) Free(p netip.Prefix) bool {
	if _, taken := a.taken.Overlap(p); taken {
		return false
	}
	return slices.ContainsFunc(a.ranges, func(r Range) bool {
		o := r.order()
		return p.Bits() == r.length() && o.base.Contains(p.Addr()) && p == p.Masked()
	})
}

// Allocate gives out a subnet of a family, or returns an *ExhaustedError.
func (a *Allocator) Allocate(f Family) (netip.Prefix, error) {
	for _, r := range a.ranges {
		if r.Family() != f || slices.Contains(a.closed, r.CIDR) {
			continue
		}
		o := r.order()
		start := uint64(0)
		if last, ok := a.cursor[r.CIDR]; ok && o.base.Contains(last.Addr()) {
			if n := o.number(last.Addr()); n < o.last() {
				start = n + 1
			}
		}
		number, ok := o.free(&a.taken, start, o.last())
		if !ok && start > 0 {
			number, ok = o.free(&a.taken, 0, start-1)
		}
		if ok {
			p := o.subnet(number)
			a.taken.Add(p)
			a.cursor[r.CIDR] = p
			return p, nil
		}
	}
	return netip.Prefix{}, a.exhausted(f)
}

// Cursor returns the subnet given out last of each range's CIDR.
func (a *Allocator) Cursor() map[netip.Prefix]netip.Prefix { return maps.Clone(a.cursor) }

// ExhaustedError says that no subnet of a family is free.
type ExhaustedError struct {
	Family Family
	// Ranges are those of the family, without the Closed ones.
	Ranges, Closed []Range
	// Quarantined is how many subnets of Ranges are quarantined.
	Quarantined int
}

func (e *ExhaustedError) Error() string {
	if len(e.Ranges) == 0 {
		other := ""
		if len(e.Closed) > 0 {
			other = "other "
		}
		return fmt.Sprintf("there is no %s%s range", other, e.Family)
	}
	quarantined := "none of them is quarantined"
	if e.Quarantined == 1 {
		quarantined = "1 of them is quarantined"
	} else if e.Quarantined > 1 {
		quarantined = fmt.Sprintf("%d of them are quarantined", e.Quarantined)
	}
	return fmt.Sprintf("all subnets of %s are taken (%s); add a range", joined(e.Ranges), quarantined)
}

func joined(ranges []Range) string {
	list := make([]string, len(ranges))
	for i, r := range ranges {
		list[i] = r.String()
	}
	return strings.Join(list, " and ")
}

func (a *Allocator) exhausted(f Family) error {
	e := &ExhaustedError{Family: f}
	for _, r := range a.ranges {
		if r.Family() != f {
			continue
		}
		if slices.Contains(a.closed, r.CIDR) {
			e.Closed = append(e.Closed, r)
			continue
		}
		e.Ranges = append(e.Ranges, r)
		for _, q := range a.quarantined {
			if q.Overlaps(r.CIDR) {
				e.Quarantined++
			}
		}
	}
	return e
}

// Usage is how much of a range is used, in subnets. The numbers are exact up
// to 2^53.
type Usage struct{ Total, Taken float64 }

// Usage returns how much of the range is taken.
func (a *Allocator) Usage(r Range) Usage {
	o := r.order()
	u := Usage{Total: math.Exp2(float64(o.bits))}
	var counted netip.Prefix // the subnet that was counted last
	for p := range a.taken.Within(o.base) {
		switch {
		case p.Bits() <= o.base.Bits():
			return Usage{u.Total, u.Total}
		case p.Bits() <= o.length:
			u.Taken += math.Exp2(float64(o.length - p.Bits()))
		default:
			s, _ := p.Addr().Prefix(o.length)
			if s != counted {
				u.Taken++
			}
			counted = s
		}
	}
	return u
}
