package linux

import (
	"encoding/binary"
	"errors"
	"net"
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

// TestPathToPeers has somebody tell the node that packets to its peers are too long for their
// way (RFC 1191; RFC 4443, section 3.2): tunnel packets, with the tag of any, and replies to pings that nobody sent.
// The node does not heed it. It does where that is of a connection that it has.
func TestPathToPeers(t *testing.T) {
	for name, c := range map[string]struct {
		plan, own, node2, node3 string
		port                    uint16
		vnis                    []uint32
	}{
		"IPv4": {tunnelPlan, "172.30.0.2", "172.30.0.3", "172.30.0.4", 8472, []uint32{1}},
		"IPv6": {plan6, "fd01::2", "fd01::3", "fd01::4", 4789, []uint32{7, 12, 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			own, node2, node3 := netip.MustParseAddr(c.own), netip.MustParseAddr(c.node2), netip.MustParseAddr(c.node3)
			b.do(func() error {
				return errors.Join(netlink.LinkSetUp(mustLink(t, "lo")), netlink.AddrAdd(mustLink(t, "eth0"),
					&netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("fd01::2/64")), Flags: unix.IFA_F_NODAD}))
			})
			b.mustApply(mustParse(t, c.plan))
			tell := func(peer netip.Addr, protocol byte, quoted []byte) {
				t.Helper()
				b.do(func() error { return tellTooLong(own, peer, protocol, quoted, 1300) })
			}
			mtu := func(peer netip.Addr) (is int) {
				t.Helper()
				b.do(func() error {
					routes, err := netlink.RouteGet(peer.AsSlice())
					if err == nil {
						is = routes[0].MTU
					}
					return err
				})
				return is
			}
			udp := func(from, to uint16, data []byte) []byte {
				h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
				return append(append(h, 0x05, 0, 0, 0), data...)
			}
			for _, vni := range c.vnis {
				tunnel := append(binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8), make([]byte, 100)...)
				tell(node2, unix.IPPROTO_UDP, udp(0xc000, c.port, tunnel))
				tell(node2, unix.IPPROTO_UDP, udp(c.port, 0xc000, tunnel))
			}
			reply := []byte{0, 0, 0, 0, 0, 7, 0, 1}
			if own.Is6() {
				reply[0] = 129
			}
			tell(node2, icmpOf(own.Is4()), reply)

			var from int
			b.do(func() error {
				c, err := net.Dial("udp", netip.AddrPortFrom(node3, 7).String())
				if err != nil {
					return err
				}
				t.Cleanup(func() { c.Close() })
				_, err = c.Write([]byte("what is tracked"))
				from = c.LocalAddr().(*net.UDPAddr).Port
				return err
			})
			tell(node3, unix.IPPROTO_UDP, udp(uint16(from), 7, nil))
			for deadline := time.Now().Add(5 * time.Second); mtu(node3) != 1300; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the node is told that a datagram from its port %d was too long, and does not heed it", from)
				}
			}
			if is := mtu(node2); is == 1300 {
				t.Error("the node heeds what it is told of tunnel packets, or of a ping that there was not")
			}
		})
	}
}

// tellTooLong has the node it runs on be told, from its own address, that what it sent to a
// peer is too long for a link on its way.
func tellTooLong(own, peer netip.Addr, protocol byte, quoted []byte, mtu uint16) error {
	family, icmp := unix.AF_INET6, unix.IPPROTO_ICMPV6
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: own.As16()}
	m := append([]byte{2, 0, 0, 0}, 0, 0, byte(mtu>>8), byte(mtu))
	if own.Is4() {
		family, icmp = unix.AF_INET, unix.IPPROTO_ICMP
		to = &unix.SockaddrInet4{Addr: own.As4()}
		m[0], m[1] = 3, 4
		m = append(m, 0x45, 0, 0x05, 0, 0, 0, 0, 0, 64, protocol, 0, 0)
	} else {
		m = append(m, 0x60, 0, 0, 0, 0x05, 0, protocol, 64)
	}
	m = append(append(append(m, own.AsSlice()...), peer.AsSlice()...), quoted...)
	if own.Is4() {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, icmp)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, m, 0, to)
}

// checksum is that of an ICMP message (RFC 1071).
func checksum(m []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
