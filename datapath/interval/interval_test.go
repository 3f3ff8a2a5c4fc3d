package interval

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan/plantest"
)

// TestFlatten checks each interval's ends against a search of all prefixes.
func TestFlatten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefixes := rapid.MapOf(plantest.Prefix().Filter(func(p netip.Prefix) bool { return p.Addr().Is4() }), rapid.IntRange(0, 2)).Draw(t, "prefixes")
		intervals := Flatten(maps.All(prefixes))
		longest := func(a netip.Addr) (value int, found bool) {
			bits := -1
			for p, v := range prefixes {
				if p.Contains(a) && p.Bits() > bits {
					bits, value, found = p.Bits(), v, true
				}
			}
			return value, found
		}
		lookup := func(a netip.Addr) (int, bool) {
			for _, i := range intervals {
				if !a.Less(i.First) && !i.Last.Less(a) {
					return i.Value, true
				}
			}
			return 0, false
		}
		for n, i := range intervals {
			if i.Last.Less(i.First) || n > 0 && !intervals[n-1].Last.Less(i.First) {
				t.Fatalf("%v are not in order or not disjoint", intervals)
			}
			if n > 0 && intervals[n-1].Last.Next() == i.First && intervals[n-1].Value == i.Value {
				t.Fatalf("%v could be one interval less", intervals)
			}
		}
		var ask []netip.Addr
		for p := range prefixes {
			ask = append(ask, p.Addr(), p.Addr().Prev(), Last(p), Last(p).Next())
		}
		for _, i := range intervals {
			ask = append(ask, i.First, i.First.Prev(), i.Last, i.Last.Next())
		}
		for _, a := range ask {
			if !a.IsValid() {
				continue
			}
			want, found := longest(a)
			if got, ok := lookup(a); got != want || ok != found {
				t.Fatalf("%s: %d, %t; want %d, %t; in %v", a, got, ok, want, found, intervals)
			}
		}
	})
}

// TestCommonPrefix checks that all are in it, and not all in a half of it.
func TestCommonPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefixes := rapid.SliceOf(plantest.Prefix()).Draw(t, "prefixes")
		for _, is4 := range []bool{true, false} {
			common, ok := Common(prefixes, is4)
			mine := slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return p.Addr().Is4() != is4 })
			if ok != (len(mine) > 0) {
				t.Fatalf("%v: %t", mine, ok)
			}
			halves := map[netip.Prefix]bool{}
			for _, p := range mine {
				if p != common && !Covers(common, p) {
					t.Fatalf("%s is not in %s", p, common)
				}
				// One as long as the whole is in neither half.
				halves[netip.PrefixFrom(p.Addr(), min(common.Bits()+1, p.Bits())).Masked()] = true
			}
			if ok && len(halves) == 1 && !halves[common] {
				t.Fatalf("all of %v are in a half of %s", mine, common)
			}
		}
	})
}

// TestSubtract checks that what remains of a prefix is it without the other,
// each address once.
func TestSubtract(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, q := plantest.Prefix().Draw(t, "p"), plantest.Prefix().Draw(t, "q")
		rest := Subtract(p, q)
		for _, a := range []netip.Addr{p.Addr(), Last(p), q.Addr(), Last(q), q.Addr().Prev(), Last(q).Next(), plantest.Addr().Draw(t, "a")} {
			if !a.IsValid() {
				continue
			}
			count := 0
			for _, r := range rest {
				if r != r.Masked() {
					t.Fatalf("%s is not masked", r)
				}
				if r.Contains(a) {
					count++
				}
			}
			want := 0
			if p.Contains(a) && !q.Contains(a) {
				want = 1
			}
			if count != want {
				t.Fatalf("%s without %s is %v, in which %s is %d times instead of %d", p, q, rest, a, count, want)
			}
		}
	})
}
