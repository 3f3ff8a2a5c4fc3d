package answer

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/dns/records"
)

// TestIndexes puts and deletes Services at random: what a Zone keeps is what it takes to find
// those that are there, and nothing of those that were.
func TestIndexes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z, services := new(Zone), make(map[records.Key]*records.Service)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			s := &records.Service{Key: records.Key{Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"), Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")}}
			if rapid.IntRange(0, 2).Draw(t, "gone") == 0 {
				z.Delete(s.Key)
				delete(services, s.Key)
				continue
			}
			address := rapid.Map(rapid.Byte(), func(b byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, b % 4}) })
			s.Addresses = rapid.SliceOfN(address, 0, 1).Draw(t, "addresses")
			for _, a := range rapid.SliceOfN(address, 0, 4).Draw(t, "endpoints") {
				s.Endpoints = append(s.Endpoints, records.Endpoint{Address: a})
			}
			z.Put(s)
			services[s.Key] = s
		}
		namespaces, addresses := make(map[string]int), make(map[held][]records.Key)
		for _, k := range slices.SortedFunc(maps.Keys(services), records.Key.Compare) {
			namespaces[k.Namespace]++
			of := make(map[held]bool)
			for _, a := range services[k].Addresses {
				of[held{a, false}] = true
			}
			for _, e := range services[k].Endpoints {
				of[held{e.Address, true}] = true
			}
			for a := range of {
				addresses[a] = append(addresses[a], k)
			}
		}
		indexed := make(map[held][]records.Key)
		for b := range byte(4) {
			z.holders.of(netip.AddrFrom4([4]byte{10, 0, 0, b}), func(h holder) bool {
				indexed[h.held] = append(indexed[h.held], h.entry.key)
				return true
			})
		}
		if len(z.services) != len(services) || !maps.Equal(z.namespaces, namespaces) || !maps.EqualFunc(indexed, addresses, slices.Equal) || depth(z.holders) > 40 {
			t.Fatalf("of %v it keeps %v, %v and %v", slices.Collect(maps.Keys(services)), slices.Collect(maps.Keys(z.services)), z.namespaces, indexed)
		}
	})
}

// depth is how many holders are below each other.
func depth(t *holders) int {
	if t == nil {
		return 0
	}
	return 1 + max(depth(t.left), depth(t.right))
}

// TestOneAddressOfMany has very many Services whose endpoints have one address: that costs so much for
// each of them as it does for one of few, and what is answered for the address has no more of them
// than fit.
func TestOneAddressOfMany(t *testing.T) {
	const many = 20000
	a := netip.MustParseAddr("192.0.2.1")
	z := new(Zone)
	var before, after runtime.MemStats
	put := func(from, to int) (bytes uint64) {
		runtime.ReadMemStats(&before)
		for i := from; i < to; i++ {
			z.Put(&records.Service{Key: records.Key{Namespace: "shop", Name: fmt.Sprintf("s%05d", i)}, Endpoints: []records.Endpoint{{Address: a}}})
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	put(0, 1000)
	few, rest := put(1000, 2000)/1000, put(2000, many)/(many-2000)
	if rest > 2*few {
		t.Errorf("each of %d Services takes %d bytes, and each of few %d", many, rest, few)
	}
	// They came in order, which makes a tree deep whose shape follows it.
	if d := depth(z.holders); d > 100 {
		t.Errorf("the index is %d deep", d)
	}
	if all := z.has(a, 10); len(all) != 10 || all[0].key.Name != "s00000" || all[9].key.Name != "s00009" {
		t.Errorf("%d Services are found, not the first 10", len(all))
	}
	own := &records.Service{Key: records.Key{Namespace: "shop", Name: "own"}, Addresses: []netip.Addr{a}}
	z.Put(own)
	if all := z.has(a, 10); len(all) != 1 || all[0].key != own.Key {
		t.Errorf("it is a Service's own address, and %d are found", len(all))
	}
	for i := range many {
		z.Delete(records.Key{Namespace: "shop", Name: fmt.Sprintf("s%05d", i)})
	}
	z.Delete(own.Key)
	if z.holders != nil {
		t.Errorf("all are gone, and %d levels are left", depth(z.holders))
	}
}
