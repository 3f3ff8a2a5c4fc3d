package linux

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestSlots has sets change, and each backend its share of the slots, of which those stay
// that may.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.SampledFrom([]int{4, 40, 200}).Draw(t, "most")
		weights := rapid.SampledFrom([][]uint16{{1}, {2, 4, 6}, {1, 2, 3, 256}}).Draw(t, "weights")
		backends := rapid.Custom(func(t *rapid.T) []weighted {
			var all []weighted
			for i := range rapid.IntRange(0, most).Draw(t, "size") {
				if rapid.IntRange(0, 5).Draw(t, "is there") > 0 {
					at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
					all = append(all, weighted{at, rapid.SampledFrom(weights).Draw(t, "weight")})
				}
			}
			return all
		})
		var slots []netip.AddrPort
		for range 5 {
			now := backends.Draw(t, "backends")
			next := assignSlots(slots, now)
			counts, total := map[netip.AddrPort]int{}, 0
			for _, at := range next {
				counts[at]++
			}
			for _, b := range now {
				total += int(b.weight)
			}
			for _, b := range now {
				share := float64(len(next)) * float64(b.weight) / float64(total)
				if has := float64(counts[b.at]); has <= share-1 || has >= share+1 {
					t.Fatalf("%s has %v of %d slots, and its share is %v", b.at, has, len(next), share)
				}
				delete(counts, b.at)
			}
			if len(counts) > 0 {
				t.Fatalf("slots of who is none of them: %v", counts)
			}
			again := assignSlots(next, now)
			for i := range next {
				if next[i] != again[i] {
					t.Fatalf("slot %d changes where nothing does", i)
				}
			}
			slots = next
		}
	})
}

// TestOneBackendFewSlots has one backend of many come and go: about as many slots change
// as it has, also where a set with one less would be made with half as many.
func TestOneBackendFewSlots(t *testing.T) {
	var all []weighted
	for i := range 1025 {
		all = append(all, weighted{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), 1})
	}
	for _, n := range []int{3, 20, 100, 257, 513, 1025} {
		with, without := all[:n], append(append([]weighted{}, all[:n/2]...), all[n/2+1:n]...)
		before := assignSlots(nil, with)
		for _, now := range [][]weighted{without, with} {
			after := assignSlots(before, now)
			changed := max(len(after)-len(before), len(before)-len(after))
			for i := range min(len(before), len(after)) {
				if before[i] != after[i] {
					changed++
				}
			}
			if most := 2 * (len(before)/n + 1); changed > most {
				t.Errorf("of %d slots of %d backends %d change, more than %d", len(before), n, changed, most)
			}
			before = after
		}
	}
}

// TestAFewMoreBackendsFewSlots has large sets grow and shrink: what changes is some slots for each backend that
// comes or goes, however large the set is.
func TestAFewMoreBackendsFewSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backends := func(label string) (all []weighted) {
			for i := range rapid.IntRange(exactBackends+1, 6000).Draw(t, label) {
				all = append(all, weighted{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), 1})
			}
			return all
		}
		were, are := backends("were"), backends("are")
		before := assignSlots(nil, were)
		after := assignSlots(before, are)
		changed := max(len(after)-len(before), len(before)-len(after))
		for i := range min(len(before), len(after)) {
			if before[i] != after[i] {
				changed++
			}
		}
		if most := 12*max(len(are)-len(were), len(were)-len(are)) + 4*slotsStep; changed > most {
			t.Errorf("from %d to %d backends, %d to %d slots, %d change", len(were), len(are), len(before), len(after), changed)
		}
	})
}

// A set that was large has no more slots than a small one for long.
func TestSlotsOfWhoAreFewer(t *testing.T) {
	var slots []netip.AddrPort
	for _, c := range []struct{ backends, slots int }{{1025, 4352}, {1024, 4352}, {1089, 4608}, {512, 4608}, {400, 1792}, {513, 2304}, {257, 2304},
		{256, 2304}, {129, 2304}, {128, 128}, {257, 1280}, {65, 1280}, {64, 64}, {256, 256}, {3, 3}} {
		var backends []weighted
		for i := range c.backends {
			backends = append(backends, weighted{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), 1})
		}
		if slots = assignSlots(slots, backends); len(slots) != c.slots {
			t.Fatalf("%d backends have %d slots; expected %d", c.backends, len(slots), c.slots)
		}
	}
}
