package answer

import (
	"fmt"
	"maps"
	"net/netip"
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
		namespaces, addresses := make(map[string]int), make(map[netip.Addr][]records.Key)
		for _, k := range slices.SortedFunc(maps.Keys(services), records.Key.Compare) {
			namespaces[k.Namespace]++
			of := make(map[netip.Addr]bool)
			for _, a := range services[k].Addresses {
				of[a] = true
			}
			for _, e := range services[k].Endpoints {
				of[e.Address] = true
			}
			for a := range of {
				addresses[a] = append(addresses[a], k)
			}
		}
		indexed := make(map[netip.Addr][]records.Key)
		for a, all := range z.addresses {
			for _, e := range all {
				indexed[a] = append(indexed[a], e.key)
			}
		}
		if len(z.services) != len(services) || !maps.Equal(z.namespaces, namespaces) || fmt.Sprint(indexed) != fmt.Sprint(addresses) {
			t.Fatalf("of %v it keeps %v, %v and %v", slices.Collect(maps.Keys(services)), slices.Collect(maps.Keys(z.services)), z.namespaces, indexed)
		}
	})
}
