package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// The underlay: one link that all of the lab's machines are on.
var (
	underlay4 = netip.MustParsePrefix("172.30.0.0/16")
	underlay6 = netip.MustParsePrefix("fd30::/64")
)

// Outside is the address at which the world outside the cluster answers, in
// the lab's switch; it is the nodes' default gateway.
var Outside = netip.MustParseAddr("172.30.0.1")

// Outside6 is Outside for IPv6.
var Outside6 = netip.MustParseAddr("fd30::1")

// switchName names the switch's namespace, and bridgeName its bridge.
const (
	switchName = "switch"
	bridgeName = "br0"
)

// switchMachine is the world outside: Outside and Outside6 are its addresses.
var switchMachine = machine{switchName, 1}

// machine is a namespace on the underlay.
type machine struct {
	name string
	// number is the last part of its addresses.
	number int
}

func controllerMachine(i int) machine { return machine{fmt.Sprintf("controller%d", i), 1 + i} }
func nodeMachine(i int) machine       { return machine{fmt.Sprintf("node%d", i), 10 + i} }

// addresses returns the machine's addresses: 172.30.0.11 and fd30::11 for
// number 11. Beyond 255 the IPv4 address goes on in 172.30.1.
func (m machine) addresses(ipv6 bool) []netip.Addr {
	b := underlay4.Addr().As4()
	b[2], b[3] = byte(m.number>>8), byte(m.number)
	out := []netip.Addr{netip.AddrFrom4(b)}
	if ipv6 {
		out = append(out, netip.MustParseAddr(fmt.Sprintf("fd30::%d", m.number)))
	}
	return out
}

// mac is the machine's address on the link. It stays the same when the machine
// boots again, as that of a network card does: others remember it.
func (m machine) mac() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x77, 0x65, 0x66, byte(m.number >> 8), byte(m.number)}
}

// makeSwitch sets up the namespace of the switch: the bridge, with the
// addresses of the outside world.
func (l *Lab) makeSwitch() error {
	if err := newNetwork(l.dir.network(switchName)); err != nil {
		return err
	}
	return netns.Netlink(l.dir.network(switchName), func(h *netlink.Handle, _ vnetns.NsHandle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = bridgeName, l.options.MTU
		// A bridge that was given no address takes the lowest one of its ports, and another when these come and go.
		// Nodes would go on sending to the old one, for up to a minute.
		attrs.HardwareAddr = switchMachine.mac()
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("make the switch's bridge: %w", err)
		}
		return l.configure(h, bridgeName, []netip.Addr{Outside, Outside6}, false)
	})
}

// plugIn makes the machine's namespace and a link from it to the switch.
func (l *Lab) plugIn(m machine) error {
	if err := newNetwork(l.dir.network(m.name)); err != nil {
		return err
	}
	return netns.Netlink(l.dir.network(m.name), func(h *netlink.Handle, ns vnetns.NsHandle) error {
		err := netns.Netlink(l.dir.network(switchName), func(sw *netlink.Handle, _ vnetns.NsHandle) error {
			bridge, err := sw.LinkByName(bridgeName)
			if err != nil {
				return fmt.Errorf("the switch's bridge: %w", err)
			}
			// The port of a machine that had this name before goes away with
			// its namespace, but not at once.
			if old, err := sw.LinkByName(m.name); err == nil {
				if err := sw.LinkDel(old); err != nil && err != unix.ENODEV {
					return fmt.Errorf("remove the old port %s of the switch: %w", m.name, err)
				}
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.MasterIndex = m.name, l.options.MTU, bridge.Attrs().Index
			port := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerMTU: uint32(l.options.MTU),
				PeerHardwareAddr: m.mac(), PeerNamespace: netlink.NsFd(ns)}
			if err := sw.LinkAdd(port); err != nil {
				return fmt.Errorf("make the port %s of the switch: %w", m.name, err)
			}
			return sw.LinkSetUp(port)
		})
		if err != nil {
			return err
		}
		if l.options.IPv6 {
			// Looking for duplicates of the link-local address would keep
			// neighbours from being found for two seconds.
			err := l.inNetwork(m.name)(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0o644) })
			if err != nil {
				return fmt.Errorf("turn off duplicate address detection of %s: %w", m.name, err)
			}
		}
		return l.configure(h, "eth0", m.addresses(l.options.IPv6), true)
	})
}

// configure gives addresses to an interface and sets it and lo up.
func (l *Lab) configure(h *netlink.Handle, name string, addresses []netip.Addr, gateway bool) error {
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, a := range addresses {
		if a.Is6() && !l.options.IPv6 {
			continue
		}
		bits, flags := underlay4.Bits(), 0
		if a.Is6() {
			bits, flags = underlay6.Bits(), unix.IFA_F_NODAD
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}, Flags: flags}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("give %s to %s: %w", a, name, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	for _, a := range addresses {
		if !gateway {
			break
		}
		via := Outside
		if a.Is6() {
			via = Outside6
		}
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}); err != nil {
			return fmt.Errorf("set the default route via %s: %w", via, err)
		}
	}
	return nil
}
