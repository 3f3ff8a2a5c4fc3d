package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// foreignEnd checks that another end of the tunnel, which is the kernel's own VXLAN
// device and has nothing of Weft's, and whose network identifiers are tags as OpenShift
// SDN's are, gets what endpoints send, and that its tags are believed. The nodes'
// links compute no checksums: that of each tunnel packet is in it, and is looked at.
func (s *suite) foreignEnd(t *testing.T, ipv4 bool) {
	b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
	other := b.addNode("foreign", underlayAddresses(8))
	vtep, mine := underlayAddresses(8)[0], underlayAddresses(1)[0]
	if !ipv4 {
		vtep, mine = underlayAddresses(8)[1], underlayAddresses(1)[1]
	}
	mac := plan.MACOf(underlayAddresses(8)[0])
	p, err := plan.Parse(b.plans["node1"].String() + fmt.Sprintf(`peer foreign ends vxlan@%s@%s carries-tags
route default 10.1.9.0/24 tunnel foreign
route default fd00:9::/64 tunnel foreign
`, vtep, mac))
	must(t, err)
	b.apply(b.node, p)
	for _, n := range []*node{b.node, other} {
		must(t, n.Do(func() error { return noTransmitChecksums("eth0") }))
	}
	// One device for each identifier; the server's comes with its own.
	pool := func(tag byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 9, tag}), netip.AddrFrom16([16]byte{0: 0xfd, 3: 9, 15: tag})}
	}
	for _, tag := range []byte{5, 6, 7} {
		must(t, other.Do(func() error {
			return foreignDevice(tag, vtep, mine, mac, pool(tag), b.plans["node1"], b.server.addresses)
		}))
	}
	b.listen(b.server.host, service{plan.TCP, sourcePort})
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	b.listen(other.host, service{plan.TCP, sourcePort})
	says := func(network string, from *host, source, to netip.Addr, within time.Duration) error {
		c, err := from.dial(network, source, netip.AddrPortFrom(to, sourcePort), within)
		if err != nil {
			return err
		}
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(within)))
		word, _ := b.expect()
		// What is longer than one segment, too: the kernel takes such apart late.
		long := word + strings.Repeat(" ", 20000) + "\n"
		if network == "udp" {
			long = word
		}
		if _, err := c.Write([]byte(long)); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 100))
		return err
	}
	for i, server := range b.server.addresses {
		for _, network := range []string{"tcp", "udp"} {
			if err := says(network, other.host, pool(5)[i], server, patience); err != nil {
				t.Errorf("%s from the foreign end to %s, with tag 5, which is allowed: %v", network, server, err)
			}
			if err := says(network, other.host, pool(6)[i], server, disappointment); err == nil {
				t.Errorf("%s from the foreign end to %s, with tag 6, is answered", network, server)
			}
		}
		// It gets what has the server's tag by the device of that one.
		if err := says("tcp", b.server.host, server, pool(7)[i], patience); err != nil {
			t.Errorf("TCP to the foreign end from %s, with tag 7: %v", server, err)
		}
	}
	must(t, other.Do(func() error {
		for _, name := range []string{"vx5", "vx6"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if n := l.Attrs().Statistics.RxPackets; n > 0 {
				t.Errorf("%d packets come with the identifier of %s, and none has its tag", n, name)
			}
		}
		return nil
	}))
}

// foreignDevice makes a VXLAN device for one identifier, with addresses that it sends
// from to a server.
func foreignDevice(tag byte, vtep, to netip.Addr, mac plan.MAC, addresses []netip.Addr, p *plan.Plan, server []netip.Addr) error {
	name := fmt.Sprintf("vx%d", tag)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac[:], p.Local.MTU
	device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: int(tag), Port: int(p.Local.Tunnels[0].Port), SrcAddr: vtep.AsSlice(), UDPCSum: true}
	if err := errors.Join(netlink.LinkAdd(device), setUp(name)); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	index, far := link.Attrs().Index, p.Local.Tunnels[0].MAC
	errs := []error{netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		State: netlink.NUD_PERMANENT, HardwareAddr: far[:], IP: to.AsSlice()})}
	for i, a := range addresses {
		errs = append(errs, addAddress(name, netip.PrefixFrom(a, a.BitLen())),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, HardwareAddr: far[:], IP: server[i].AsSlice()}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(server[i], server[i].BitLen())), Table: int(tag)}))
		rule := netlink.NewRule()
		rule.Src, rule.Table, rule.Priority, rule.Family = ipNet(netip.PrefixFrom(a, a.BitLen())), int(tag), int(tag), netlink.FAMILY_V4
		if a.Is6() {
			rule.Family = netlink.FAMILY_V6
		}
		errs = append(errs, netlink.RuleAdd(rule))
	}
	return errors.Join(errs...)
}

// noTransmitChecksums has the kernel compute checksums before an interface sends.
func noTransmitChecksums(name string) error {
	const setTransmitChecksums = 0x17 // ETHTOOL_STXCSUM
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	command := struct{ command, data uint32 }{command: setTransmitChecksums}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&command)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn off checksums of %s: %w", name, errno)
	}
	return nil
}
