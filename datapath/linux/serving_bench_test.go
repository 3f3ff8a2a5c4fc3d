package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

// BenchmarkConnections has the node connect to a Service whose backend is a program of its own, and
// ends each connection by a reset.
func BenchmarkConnections(b *testing.B) {
	on := newBench(b)
	on.mustApply(mustParse(b, `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
route default 0.0.0.0/0 gateway
service default 10.3.0.1 tcp 80 to web
backend default web 172.30.0.2:8080
`))
	on.do(func() error {
		for _, name := range []string{"lo", "eth0"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: ipNet(netip.MustParsePrefix("10.3.0.0/16")), Scope: netlink.SCOPE_LINK})
	})
	on.do(func() error {
		listen, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(listen)
		if err := errors.Join(unix.Bind(listen, &unix.SockaddrInet4{Port: 8080}), unix.Listen(listen, 100)); err != nil {
			return err
		}
		reset := &unix.Linger{Onoff: 1}
		for b.Loop() {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			if err := errors.Join(unix.SetsockoptLinger(s, unix.SOL_SOCKET, unix.SO_LINGER, reset), unix.Connect(s, &unix.SockaddrInet4{Addr: [4]byte{10, 3, 0, 1}, Port: 80})); err != nil {
				return err
			}
			accepted, _, err := unix.Accept(listen)
			if err := errors.Join(err, unix.Close(s), unix.Close(accepted)); err != nil {
				return err
			}
		}
		return nil
	})
}
