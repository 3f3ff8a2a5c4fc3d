package subnet

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func allocate(t *testing.T, a *Allocator, f Family, want string) {
	t.Helper()
	got, err := a.Allocate(f)
	if err != nil || got.String() != want {
		t.Errorf("Allocate(%s) = %v, %v, want %s", f, got, err, want)
	}
}

func TestNextFit(t *testing.T) {
	r := []Range{{prefix("10.1.0.0/22"), 8}}
	a := NewAllocator(r, nil)
	allocate(t, a, IPv4, "10.1.0.0/24")
	allocate(t, a, IPv4, "10.1.1.0/24")
	// The second goes back at once; it is not the next one given out.
	a = NewAllocator(r, a.Cursor())
	a.Take(prefix("10.1.0.0/24"))
	allocate(t, a, IPv4, "10.1.2.0/24")
	allocate(t, a, IPv4, "10.1.3.0/24")
	allocate(t, a, IPv4, "10.1.1.0/24")
	if p, err := a.Allocate(IPv4); err == nil {
		t.Errorf("a fifth subnet of four: %s", p)
	}
}

func TestFirstRangeWithRoom(t *testing.T) {
	a := NewAllocator([]Range{{prefix("10.1.0.0/24"), 8}, {prefix("fd01::/48"), 64}, {prefix("10.2.0.0/16"), 9}}, nil)
	allocate(t, a, IPv4, "10.1.0.0/24")
	allocate(t, a, IPv4, "10.2.0.0/23")
	allocate(t, a, IPv6, "fd01::/64")
	allocate(t, a, IPv4, "10.2.2.0/23")
	allocate(t, a, IPv6, "fd01:0:0:1::/64")
}

func TestExhausted(t *testing.T) {
	a := NewAllocator([]Range{{prefix("10.1.0.0/24"), 8}, {prefix("10.2.0.0/23"), 8}}, nil)
	a.Take(prefix("10.1.0.128/25")) // a piece of a subnet takes the subnet
	a.Take(prefix("10.2.0.0/24"))
	a.Quarantine(prefix("10.2.1.0/24"))
	_, err := a.Allocate(IPv4)
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) || exhausted.Quarantined != 1 || len(exhausted.Ranges) != 2 {
		t.Fatalf("got %#v", err)
	}
	const want = "all subnets of 10.1.0.0/24 in subnets of /24 and 10.2.0.0/23 in subnets of /24 are taken (1 of them is quarantined); add a range"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if _, err := a.Allocate(IPv6); err == nil || err.Error() != "there is no IPv6 range" {
		t.Errorf("IPv6: %v", err)
	}
}

// TestLarge holds that neither the size of a range nor that of what is taken
// of it is ever walked through.
func TestLarge(t *testing.T) {
	a := NewAllocator([]Range{{prefix("fd00::/8"), 56}, {prefix("fc00::/16"), 8}}, nil)
	a.Take(prefix("fd00::/9"))
	allocate(t, a, IPv6, "fd80::/72")
	a.Take(prefix("fd80::/10"))
	allocate(t, a, IPv6, "fdc0::/72")
	a.Take(prefix("fdc0::/10"))
	allocate(t, a, IPv6, "fc00::/120")
	a.Take(prefix("fc00::/57")) // the 2^63 lower ones of what has numbers
	allocate(t, a, IPv6, "fc00:0:0:80::/120")
	if u := a.Usage(Range{prefix("fd00::/8"), 56}); u.Taken != u.Total {
		t.Errorf("fd00::/8 is used up, but %v of %v are taken", u.Taken, u.Total)
	}
}

func ranges() *rapid.Generator[Range] {
	return rapid.Custom(func(t *rapid.T) Range {
		base := rapid.SampledFrom([]string{"10.1.0.0", "10.1.4.0", "172.16.0.0", "fd01::", "fd01:0:0:40::"}).Draw(t, "base")
		a := netip.MustParseAddr(base)
		bits := rapid.IntRange(0, 9).Draw(t, "subnet bits")
		hostBits := rapid.IntRange(2, 20).Draw(t, "host bits")
		if a.Is6() {
			hostBits += rapid.SampledFrom([]int{0, 40, 50}).Draw(t, "more host bits")
		}
		p, _ := a.Prefix(a.BitLen() - bits - hostBits)
		return Range{p, hostBits}
	})
}

// TestAgainstNaive compares the allocator with one that tries number after
// number and compares prefix with prefix.
func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ranges().Draw(t, "range")
		o := r.order()
		var taken []netip.Prefix
		cursor := map[netip.Prefix]netip.Prefix{}
		last := uint64(0)
		first := true
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			a := NewAllocator([]Range{r}, cursor)
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // something of any length is taken
				s := o.subnet(rapid.Uint64Range(0, o.last()).Draw(t, "number"))
				bits := rapid.IntRange(r.CIDR.Bits(), s.Addr().BitLen()).Draw(t, "length")
				p, _ := s.Addr().Prefix(bits)
				taken = append(taken, p)
				continue
			case 1: // something goes back
				if len(taken) > 0 {
					i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
					taken = append(taken[:i], taken[i+1:]...)
				}
				continue
			}
			for _, p := range taken {
				a.Take(p)
			}
			var want netip.Prefix
			start := uint64(0)
			if !first && last < o.last() {
				start = last + 1
			}
			for i := uint64(0); i <= o.last(); i++ {
				n := (start + i) & o.last()
				if s := o.subnet(n); !overlapsAny(s, taken) {
					want, last, first = s, n, false
					break
				}
			}
			total := 0
			for n := uint64(0); n <= o.last(); n++ {
				if overlapsAny(o.subnet(n), taken) {
					total++
				}
			}
			if u := a.Usage(r); u.Taken != float64(total) || u.Total != float64(o.last())+1 {
				t.Fatalf("usage %v, want %d of %d", u, total, o.last()+1)
			}
			got, err := a.Allocate(r.Family())
			if got != want || (err == nil) != want.IsValid() {
				t.Fatalf("Allocate = %v, %v, want %v", got, err, want)
			}
			if err == nil {
				taken = append(taken, got)
			}
			cursor = a.Cursor()
		}
	})
}

// TestOrderIsPermutation holds that each subnet of a range has one number.
func TestOrderIsPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ranges().Draw(t, "range")
		o := r.order()
		seen := map[netip.Prefix]bool{}
		for n := uint64(0); n <= o.last(); n++ {
			s := o.subnet(n)
			if seen[s] || s != s.Masked() || !r.CIDR.Contains(s.Addr()) || s.Bits() != r.length() || o.number(s.Addr()) != n {
				t.Fatalf("number %d of %s: %s", n, r, s)
			}
			seen[s] = true
		}
	})
}

// TestSet compares a Set with a list.
func TestSet(t *testing.T) {
	anyPrefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := rapid.SampledFrom([]netip.Addr{
			netip.AddrFrom4([4]byte{10, rapid.Byte().Draw(t, "b"), rapid.Byte().Draw(t, "c"), 0}),
			netip.AddrFrom16([16]byte{0xfd, rapid.Byte().Draw(t, "b"), rapid.Byte().Draw(t, "c")}),
		}).Draw(t, "address")
		return netip.PrefixFrom(a, rapid.IntRange(4, 26).Draw(t, "length")) // not masked
	})
	rapid.Check(t, func(t *rapid.T) {
		var s Set
		added := rapid.SliceOfN(anyPrefix, 0, 12).Draw(t, "added")
		for _, p := range added {
			s.Add(p)
		}
		p := anyPrefix.Draw(t, "asked")
		got, ok := s.Overlap(p)
		if want := overlapsAny(p, added); ok != want || ok && !got.Overlaps(p) {
			t.Errorf("Overlap(%s) = %v, %v in %v", p, got, ok, added)
		}
		if want := overlapsAny(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), added); s.Contains(p.Addr()) != want {
			t.Errorf("Contains(%s) = %v in %v", p.Addr(), !want, added)
		}
		for q := range s.Within(p) {
			if !q.Overlaps(p) {
				t.Errorf("Within(%s) yields %s", p, q)
			}
			for other := range s.Within(p) {
				if other != q && other.Overlaps(q) {
					t.Errorf("%s and %s are both in the set %v", q, other, s.prefixes)
				}
			}
		}
	})
}

func overlapsAny(p netip.Prefix, list []netip.Prefix) bool {
	for _, q := range list {
		if p.Overlaps(q) {
			return true
		}
	}
	return false
}

// What is given out was free, and nothing else of its range is that overlaps it.
func TestFreeIsWhatIsGivenOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewAllocator([]Range{{prefix("10.1.0.0/22"), 8}, {prefix("10.2.0.0/16"), 14}}, nil)
		for range rapid.IntRange(0, 6).Draw(t, "taken") {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, rapid.SampledFrom([]byte{1, 2}).Draw(t, "range"), rapid.Byte().Draw(t, "third"), 0}), rapid.IntRange(15, 32).Draw(t, "bits"))
			a.Take(p.Masked())
		}
		before := *a
		before.taken = Set{}
		for _, p := range []string{"10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24", "10.2.0.0/18", "10.2.64.0/18", "10.2.128.0/18", "10.2.192.0/18"} {
			if !before.Free(prefix(p)) {
				t.Fatalf("%s is not free where nothing is taken", p)
			}
		}
		for {
			free := 0
			for _, p := range []string{"10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24", "10.2.0.0/18", "10.2.64.0/18", "10.2.128.0/18", "10.2.192.0/18"} {
				if a.Free(prefix(p)) {
					free++
				}
			}
			p, err := a.Allocate(IPv4)
			if (err == nil) != (free > 0) {
				t.Fatalf("%d subnets are free, and one given out is %s, %v", free, p, err)
			}
			if err != nil {
				return
			}
			if a.Free(p) {
				t.Fatalf("%s is free still", p)
			}
		}
	})
	a := NewAllocator([]Range{{prefix("10.1.0.0/22"), 8}}, nil)
	for _, p := range []string{"10.1.0.0/25", "10.1.0.0/23", "10.1.4.0/24", "fd00::/64"} {
		if a.Free(prefix(p)) {
			t.Errorf("%s is none of the subnets, and free", p)
		}
	}
}

func TestClosedRange(t *testing.T) {
	closed := Range{prefix("10.1.0.0/16"), 8}
	a := NewAllocator([]Range{closed, {prefix("10.2.0.0/24"), 8}}, nil)
	a.Close(closed)
	if !a.Free(prefix("10.1.3.0/24")) {
		t.Error("nothing of it could be given out")
	}
	allocate(t, a, IPv4, "10.2.0.0/24")
	_, err := a.Allocate(IPv4)
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) || len(exhausted.Ranges) != 1 || len(exhausted.Closed) != 1 {
		t.Fatalf("got %#v", err)
	}
	if u := a.Usage(closed); u.Taken != 0 || u.Total != 256 {
		t.Errorf("%v of %v are taken", u.Taken, u.Total)
	}
	a = NewAllocator([]Range{closed}, nil)
	a.Close(closed)
	if _, err = a.Allocate(IPv4); err == nil || err.Error() != "there is no other IPv4 range" {
		t.Errorf("got %v", err)
	}
}
