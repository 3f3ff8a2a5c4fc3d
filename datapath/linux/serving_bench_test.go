package linux

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// BenchmarkFirstServices compiles ten thousand Services of two backends each for a kernel that has
// none, and makes the messages that write them.
func BenchmarkFirstServices(b *testing.B) {
	builder := plan.NewBuilder(nil)
	for i := range 10_000 {
		set := fmt.Sprintf("default/service%d:http", i)
		address := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		builder.PutService(plan.ServiceKey{Network: plan.DefaultNetwork, Address: address}, plan.Service{})
		builder.PutService(plan.ServiceKey{Network: plan.DefaultNetwork, Address: address, Protocol: plan.TCP, Port: 80}, plan.Service{Set: set, Masquerade: plan.FromStrangers})
		for j := range 2 {
			builder.PutBackend(plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: netip.AddrFrom4([4]byte{10, byte(1 + j), byte(i >> 8), byte(i)}), Port: 8080}, plan.Backend{Weight: 1})
		}
	}
	p := builder.Build()
	b.ReportAllocs()
	for b.Loop() {
		_, r := compileServices(stamps.Default, p, &sources{}, nft.Content{})
		conn := &nftables.Conn{}
		for name, s := range r.Sets {
			if err := nft.AddElements(conn, s.In(r.Name, name), s.Elements, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
}
