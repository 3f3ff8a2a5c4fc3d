package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

const secondEndpoint = "endpoint weftbbb network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 anti-spoof\nroute default 10.1.1.3/32 endpoint weftbbb\n"

// down makes a pair whose end on the node is down and whose other end, pod,
// stays in the same namespace.
func (b *bench) down(name, pod string) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: pod}); err != nil {
		return err
	}
	l, err := netlink.LinkByName(pod)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// datagram is an Ethernet frame with a UDP datagram to port 9999 of
// 172.30.0.2, the node's own address.
func datagram(from netip.Addr, to net.HardwareAddr) []byte {
	b := append(append(append([]byte{}, to...), 2, 0, 0, 0, 0, 9), 8, 0)
	ip := []byte{0x45, 0, 0, 29, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, from.AsSlice()...), 172, 30, 0, 2)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(ip[i])<<8 | uint32(ip[i+1])
	}
	sum = sum&0xffff + sum>>16
	sum = ^(sum&0xffff + sum>>16)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return append(append(b, ip...), 0x12, 0x34, 9999>>8, 9999&0xff, 0, 9, 0, 0, 'x')
}

// TestBirth has what runs in a pod's namespace send, under its own address and
// under another's, from before the data plane knows of the pod. Its interface
// comes up by itself, and nothing forged gets out.
func TestBirth(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, tunnelPlan))
	own, forged := netip.MustParseAddr("10.1.1.3"), netip.MustParseAddr("10.1.1.99")
	var socket net.PacketConn
	var fd, index int
	var mac net.HardwareAddr
	b.do(func() (err error) {
		if err := b.down("weftbbb", "pod2"); err != nil {
			return err
		}
		for _, name := range []string{"all", "weftbbb"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0); err != nil {
				return err
			}
		}
		node, err := netlink.LinkByName("weftbbb")
		if err != nil {
			return err
		}
		pod, err := netlink.LinkByName("pod2")
		if err != nil {
			return err
		}
		mac, index = node.Attrs().HardwareAddr, pod.Attrs().Index
		if socket, err = net.ListenPacket("udp4", "172.30.0.2:9999"); err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	defer socket.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer unix.Close(fd)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, from := range []netip.Addr{forged, own} {
				unix.Sendto(fd, datagram(from, mac), 0, &unix.SockaddrLinklayer{Ifindex: index})
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	b.mustApply(mustParse(t, tunnelPlan+secondEndpoint))
	socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	for range 1000 {
		_, from, err := socket.ReadFrom(make([]byte, 16))
		if err != nil {
			t.Fatalf("nothing comes from the pod: %v", err)
		}
		if a := from.(*net.UDPAddr).AddrPort().Addr().Unmap(); a != own {
			t.Fatalf("a packet from %s came through", a)
		}
	}
	b.nothingToRepair()
}

// TestAnEndpointThatLeavesGoesDown checks that an interface that no rule tells
// of any more is closed, and opened again when it is an endpoint's again.
func TestAnEndpointThatLeavesGoesDown(t *testing.T) {
	b := newBench(t)
	p, q := mustParse(t, tunnelPlan), mustParse(t, tunnelPlan+secondEndpoint)
	b.do(func() error { return b.down("weftbbb", "pod2") })
	isUp := func() (up bool) {
		b.do(func() error {
			l, err := netlink.LinkByName("weftbbb")
			if err == nil {
				up = l.Attrs().Flags&net.FlagUp != 0
			}
			return err
		})
		return up
	}
	for _, c := range []struct {
		plan *plan.Plan
		up   bool
	}{{p, false}, {q, true}, {p, false}, {q, true}} {
		b.mustApply(c.plan)
		b.nothingToRepair()
		if isUp() != c.up {
			t.Errorf("it is up: %t; expected %t", isUp(), c.up)
		}
	}
}

// TestOneEndpointsTroubleIsItsOwn has the kernel refuse what one endpoint needs.
// Others are loaded, and are not told of it.
func TestOneEndpointsTroubleIsItsOwn(t *testing.T) {
	b := newBench(t)
	b.do(func() error {
		// IPv6 is off where the MTU is less than 1280 (RFC 8200, section 5).
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftbad", MTU: 1000}, PeerName: "pod3", PeerMTU: 1000}); err != nil {
			return err
		}
		return b.down("weftbbb", "pod2")
	})
	p := mustParse(t, tunnelPlan+secondEndpoint+`endpoint weftbad network default addresses fd00::7 mac 0a:58:0a:01:01:07 anti-spoof
route default fd00::7/128 endpoint weftbad
`)
	for range 2 {
		err := b.Apply(t.Context(), p)
		if err == nil || datapath.Concerning(err, "weftbad") == nil {
			t.Fatalf("the error is %v; expected one about weftbad", err)
		}
		if err := datapath.Concerning(err, "weftaaa", "weftbbb"); err != nil {
			t.Errorf("others are told of it: %v", err)
		}
	}
	b.do(func() error {
		l, err := netlink.LinkByName("weftbbb")
		if err == nil && l.Attrs().Flags&net.FlagUp == 0 {
			err = errors.New("another endpoint's interface is down")
		}
		return err
	})
}

// TestEndpointsAreNotBelieved has a node whose defaults believe all that is
// said. Weft's interfaces do not, from before they are up.
func TestEndpointsAreNotBelieved(t *testing.T) {
	b := newBench(t)
	const conf = "/proc/sys/net/"
	hostile := map[string]string{"ipv4/conf/%s/accept_redirects": "1", "ipv4/conf/%s/secure_redirects": "1", "ipv4/conf/%s/accept_source_route": "1",
		"ipv4/conf/%s/proxy_arp": "1", "ipv4/conf/%s/send_redirects": "1", "ipv6/conf/%s/accept_ra": "2", "ipv6/conf/%s/autoconf": "1",
		"ipv6/conf/%s/accept_redirects": "1", "ipv6/conf/%s/proxy_ndp": "1"}
	b.do(func() error {
		for name, v := range hostile {
			if err := os.WriteFile(conf+fmt.Sprintf(name, "default"), []byte(v), 0); err != nil {
				return err
			}
		}
		return b.down("weftbbb", "pod2")
	})
	check := func(disabled string) {
		t.Helper()
		b.do(func() error {
			for _, device := range []string{"weftbbb", stamps.Default.Bridge, vxlanDevice} {
				for name := range hostile {
					if v, err := os.ReadFile(conf + fmt.Sprintf(name, device)); err != nil || strings.TrimSpace(string(v)) != "0" {
						t.Errorf("%s is %q, %v", fmt.Sprintf(name, device), v, err)
					}
				}
				if v, err := os.ReadFile(conf + "ipv6/conf/" + device + "/disable_ipv6"); err != nil || strings.TrimSpace(string(v)) != disabled {
					t.Errorf("disable_ipv6 of %s is %q, %v; expected %s", device, v, err, disabled)
				}
			}
			return nil
		})
	}
	b.mustApply(mustParse(t, tunnelPlan+secondEndpoint))
	check("1")
	b.nothingToRepair()
	b.do(func() error { return os.WriteFile(conf+"ipv6/conf/weftbbb/accept_ra", []byte("2"), 0) })
	if lines, err := b.Repair(t.Context()); err != nil || len(lines) != 1 {
		t.Errorf("repair: %q, %v", lines, err)
	}
	check("1")
	// What has to do with IPv6 comes in later, without anything else.
	dual := strings.Replace(tunnelPlan+secondEndpoint, "addresses 10.1.1.3 ", "addresses 10.1.1.3,fd00:1::3 ", 1) +
		"route default fd00:1::3/128 endpoint weftbbb\nroute default fd00:2::/64 tunnel node2\n"
	b.mustApply(mustParse(t, dual))
	check("0")
	b.nothingToRepair()
}

// TestUplinksKeepTheirRouters checks that a node that becomes a router keeps
// taking the advertisements by which it has its own default route, and that
// without IPv6 in the plan it does not become one.
func TestUplinksKeepTheirRouters(t *testing.T) {
	b := newBench(t)
	read := func(name string) (value string) {
		b.do(func() error {
			v, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name)
			value = strings.TrimSpace(string(v))
			return err
		})
		return value
	}
	routers := func() (n int) {
		b.do(func() error {
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
			n = len(routes)
			return err
		})
		return n
	}
	// A router behind eth0 advertises itself.
	b.do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port"}, PeerName: "router"}); err != nil {
			return err
		}
		for _, name := range []string{"port", "router"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		port, err := netlink.LinkByName("port")
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, br)
	})
	for end := time.Now().Add(10 * time.Second); routers() == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the node takes no router advertisement")
		}
		b.do(func() error { return advertise("router") })
	}
	b.mustApply(mustParse(t, tunnelPlan+"route default ::/0 gateway\n"))
	if got := read("all/forwarding"); got != "0" {
		t.Errorf("a plan without IPv6 made the node an IPv6 router: forwarding is %s", got)
	}
	b.mustApply(mustParse(t, tunnelPlan+"route default ::/0 gateway\nroute default fd00:2::/64 tunnel node2\n"))
	if got := read("all/forwarding"); got != "1" {
		t.Errorf("forwarding is %s", got)
	}
	if got := read("eth0/accept_ra"); got != "2" {
		t.Errorf("accept_ra of the uplink is %s", got)
	}
	if routers() == 0 {
		t.Error("the uplink's default route is gone")
	}
	if got := read("router/accept_ra"); got != "1" {
		t.Errorf("accept_ra of an interface that lives by no router is %s", got)
	}
	b.nothingToRepair()
}

// advertise sends a router advertisement (RFC 4861, section 4.2) from an
// interface's link-local address.
func advertise(name string) error {
	l, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, l.Index)); err != nil {
		return err
	}
	advertisement := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	err = unix.Sendto(fd, advertisement, 0, &unix.SockaddrInet6{Addr: [16]byte{0: 0xff, 1: 2, 15: 1}, ZoneId: uint32(l.Index)})
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENETUNREACH) {
		return nil // its address is still tentative
	}
	return err
}
