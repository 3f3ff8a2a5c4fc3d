package linux

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const plan6 = `node node1 addresses 172.30.0.2,fd01::2 mtu 1400
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 4789 vtep fd01::2 mac 0a:58:ac:1e:00:02 carries-tags
network default in vxlan vni 7-1000
endpoint weftaaa network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 tag 5 anti-spoof
route default 10.1.1.2/32 endpoint weftaaa
peer node2 ends vxlan@fd01::3@0a:58:ac:1e:00:03 carries-tags
route default 10.1.2.0/24 tunnel node2
peer node3 ends vxlan@fd01::4@0a:58:ac:1e:00:04 carries-tags
route default 10.1.3.0/24 tunnel node3
`

// TestTooBigWithTags has somebody tell the node that tunnel packets to its peers are too
// big (RFC 4443, section 3.2), over IPv6, where nobody takes them apart. The node heeds
// it, whatever tag the packet had; it does not where that is of another network.
func TestTooBigWithTags(t *testing.T) {
	b := newBench(t)
	b.do(func() error {
		return errors.Join(netlink.LinkSetUp(mustLink(t, "lo")), netlink.AddrAdd(mustLink(t, "eth0"),
			&netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("fd01::2/64")), Flags: unix.IFA_F_NODAD}))
	})
	b.mustApply(mustParse(t, plan6))
	own := netip.MustParseAddr("fd01::2")
	tell := func(peer netip.Addr, vni uint32, mtu int) {
		t.Helper()
		m := binary.BigEndian.AppendUint32([]byte{2, 0, 0, 0}, uint32(mtu))
		m = append(m, 0x60, 0, 0, 0, 0x05, 0, unix.IPPROTO_UDP, 64)
		m = append(append(m, own.AsSlice()...), peer.AsSlice()...)
		m = append(m, 0xc0, 0, 4789>>8, 4789&0xff, 0x05, 0, 0, 0) // UDP
		m = binary.BigEndian.AppendUint32(append(m, 8, 0, 0, 0), vni<<8)
		m = append(m, make([]byte, 100)...)
		b.do(func() error {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, m, 0, &unix.SockaddrInet6{Addr: own.As16()})
		})
	}
	heeds := func(peer netip.Addr, mtu int) bool {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			is := 0
			b.do(func() error {
				routes, err := netlink.RouteGet(peer.AsSlice())
				if err == nil && len(routes) == 1 {
					is = routes[0].MTU
				}
				return err
			})
			if is == mtu || time.Now().After(deadline) {
				return is == mtu
			}
		}
	}
	node2, node3 := netip.MustParseAddr("fd01::3"), netip.MustParseAddr("fd01::4")
	tell(node3, 1001, 1290)
	for i, vni := range []uint32{7, 12, 1000} {
		mtu := 1380 - 10*i
		tell(node2, vni, mtu)
		if !heeds(node2, mtu) {
			t.Errorf("the node is told that a packet with identifier %d was too big, and does not heed it", vni)
		}
	}
	b.do(func() error {
		routes, err := netlink.RouteGet(node3.AsSlice())
		if err == nil && routes[0].MTU == 1290 {
			t.Error("the node heeds what it is told of somebody else's network")
		}
		return err
	})
}
