package cluster

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// The switch is a namespace with a bridge that the nodes' eth0 are ports of. Outside is one of a
// machine on another network, which the switch routes to.
const (
	switchName  = "switch"
	outsideName = "outside"
	bridgeName  = "br0"
	uplink      = "eth0"
)

// newNamespace makes a network namespace that lasts as long as the file at
// path stays mounted.
func newNamespace(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	return netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keep the network namespace as %s: %w", path, err)
		}
		return nil
	})
}

// dropNamespace lets go of what newNamespace made.
func dropNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// makeSwitch makes the switch, which is the nodes' default gateway as well:
// kubelet and API server take their address from the default route, and want
// Services to be routed somewhere.
func (c Config) makeSwitch() error {
	path := c.netns(switchName)
	if err := newNamespace(path); err != nil {
		return err
	}
	if err := netns.Do(path, forward); err != nil {
		return fmt.Errorf("have the switch route: %w", err)
	}
	return netns.Netlink(path, func(h *netlink.Handle, _ vnetns.NsHandle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = bridgeName, c.MTU
		// A bridge that was given no address takes the lowest one of its ports, and another when these come and go.
		attrs.HardwareAddr = mac(switchNumber)
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("make the switch's bridge: %w", err)
		}
		return errors.Join(configure(h, bridgeName, c.addresses(switchNumber), nil), c.makeOutside(h))
	})
}

// mac is the address on the link of the machine with a number. It stays when the machine boots again, as that of a
// network card does: others remember it.
func mac(number int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x77, 0x65, 0x66, 0x6b, byte(number)}
}

// forward has the kernel hand on packets, in the thread's network namespace.
func forward() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
}

// makeOutside makes the machine outside, with a link to the switch, whose netlink handle is given.
func (c Config) makeOutside(sw *netlink.Handle) error {
	path := c.netns(outsideName)
	if err := newNamespace(path); err != nil {
		return err
	}
	return netns.Netlink(path, func(h *netlink.Handle, ns vnetns.NsHandle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = outsideName, c.MTU
		port := &netlink.Veth{LinkAttrs: attrs, PeerName: uplink, PeerMTU: uint32(c.MTU), PeerNamespace: netlink.NsFd(ns)}
		if err := sw.LinkAdd(port); err != nil {
			return fmt.Errorf("make the link to the machine outside: %w", err)
		}
		gateways := c.inFamilies(outside4, outside6, switchNumber)
		if err := errors.Join(configure(sw, outsideName, gateways, nil),
			configure(h, uplink, c.inFamilies(outside4, outside6, outsideNumber), nil)); err != nil {
			return err
		}
		return route(h, uplink, defaults(gateways))
	})
}

// plugIn makes a node's namespace with a link to the switch. The first node
// has the addresses of the control plane, too.
func (c Config) plugIn(n Node) error {
	path := c.netns(n.Name)
	if err := newNamespace(path); err != nil {
		return err
	}
	var others []netip.Addr
	if n.number == firstNodeNumber {
		others = c.addresses(controlPlaneNumber)
	}
	return netns.Netlink(path, func(h *netlink.Handle, ns vnetns.NsHandle) error {
		if err := netns.Netlink(c.netns(switchName), func(sw *netlink.Handle, _ vnetns.NsHandle) error {
			bridge, err := sw.LinkByName(bridgeName)
			if err != nil {
				return fmt.Errorf("the switch's bridge: %w", err)
			}
			// The port that the node had before goes away with its namespace,
			// but not at once.
			if old, err := sw.LinkByName(n.Name); err == nil {
				if err := sw.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
					return fmt.Errorf("remove the old port of %s: %w", n.Name, err)
				}
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.MasterIndex = n.Name, c.MTU, bridge.Attrs().Index
			port := &netlink.Veth{LinkAttrs: attrs, PeerName: uplink, PeerMTU: uint32(c.MTU),
				PeerHardwareAddr: mac(n.number), PeerNamespace: netlink.NsFd(ns)}
			if err := sw.LinkAdd(port); err != nil {
				return fmt.Errorf("make the port of %s: %w", n.Name, err)
			}
			return sw.LinkSetUp(port)
		}); err != nil {
			return err
		}
		// Looking for duplicates of the link-local address would keep
		// neighbours from being found for two seconds.
		if err := netns.Do(path, func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/"+uplink+"/accept_dad", []byte("0"), 0o644)
		}); err != nil {
			return err
		}
		if err := configure(h, uplink, n.Addresses, others); err != nil {
			return err
		}
		return c.routes(h, n)
	})
}

// configure gives addresses to an interface and sets it and lo up. Nothing
// that the machine sends by itself comes from the other addresses.
func configure(h *netlink.Handle, name string, addresses, others []netip.Addr) error {
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
	for i, a := range slices.Concat(addresses, others) {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, underlay4.Bits()))}
		if a.Is6() {
			addr.IPNet, addr.Flags = ipNet(netip.PrefixFrom(a, underlay6.Bits())), unix.IFA_F_NODAD
			if i >= len(addresses) {
				addr.PreferedLft, addr.ValidLft = 0, math.MaxUint32
			}
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("give %s to %s: %w", a, name, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up %s: %w", name, err)
	}
	return nil
}

// routes sets a node's default routes, and with the bridge network those to
// the pods of other nodes.
func (c Config) routes(h *netlink.Handle, n Node) error {
	routes := defaults(c.addresses(switchNumber))
	for _, other := range c.nodes() {
		if c.Network != Bridge || other.Name == n.Name {
			continue
		}
		for i, p := range other.PodCIDRs {
			routes = append(routes, &netlink.Route{Dst: ipNet(p), Gw: other.Addresses[i].AsSlice()})
		}
	}
	return route(h, uplink, routes)
}

// defaults returns default routes by gateways.
func defaults(gateways []netip.Addr) []*netlink.Route {
	var routes []*netlink.Route
	for _, a := range gateways {
		routes = append(routes, &netlink.Route{Gw: a.AsSlice()})
	}
	return routes
}

// route sets routes that leave by an interface.
func route(h *netlink.Handle, name string, routes []*netlink.Route) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, r := range routes {
		r.LinkIndex = link.Attrs().Index
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("set the route %s: %w", r, err)
		}
	}
	return nil
}

// wipe removes what a node's boot would have removed from its namespace, where
// that cannot be made anew because the control plane is in it.
func (c Config) wipe(n Node) error {
	path := c.netns(n.Name)
	return errors.Join(
		netns.Netlink(path, func(h *netlink.Handle, _ vnetns.NsHandle) error {
			links, err := h.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				if name := l.Attrs().Name; name != "lo" && name != uplink {
					// The other end of a pair goes with it.
					if err := h.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
						return fmt.Errorf("remove %s of %s: %w", name, n.Name, err)
					}
				}
			}
			for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
				rules, err := h.RuleList(family)
				if err != nil {
					return err
				}
				for _, r := range rules {
					// Those for the tables local, main and default are the kernel's.
					if r.Priority == 0 || r.Priority == 32766 || r.Priority == 32767 {
						continue
					}
					r.Family = family
					if err := h.RuleDel(&r); err != nil {
						return fmt.Errorf("remove the rule %s of %s: %w", r, n.Name, err)
					}
				}
				all, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
				if err != nil {
					return err
				}
				for _, r := range all {
					if r.Protocol == unix.RTPROT_KERNEL {
						continue
					}
					if err := h.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
						return fmt.Errorf("remove the route %s of %s: %w", r, n.Name, err)
					}
				}
			}
			return c.routes(h, n)
		}),
		netns.Do(path, func() error {
			out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
			if err != nil {
				return fmt.Errorf("remove the nftables rules of %s: %w: %s", n.Name, err, out)
			}
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				return fmt.Errorf("forget the connections of %s: %w", n.Name, err)
			}
			return nil
		}),
	)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
