package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// hostEnd6 is the IPv6 address of every pod's host end, which is a pod's next
// hop.
var hostEnd6 = netip.MustParsePrefix("fe80::1/64")

type pod struct {
	*host
	addresses []netip.Addr
}

// plug makes the pods of a plan, and removes others that are there.
func (l *topology) plug(n *node, p *plan.Plan) {
	l.t.Helper()
	for name, pod := range n.pods {
		if e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: name}); ok && slices.Equal(e.Addresses, pod.addresses) {
			continue
		}
		must(l.t, n.Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}))
		delete(n.pods, name)
	}
	for k, e := range p.Endpoints.All() {
		if _, ok := n.pods[k.Interface]; !ok {
			n.pods[k.Interface] = l.newPod(n, p, k.Interface, e)
		}
	}
}

// newPod gives an endpoint an interface as the node's CNI server would: a veth
// pair, full-length addresses, and next hops whose MAC address, that of the
// host end, is known in advance.
func (l *topology) newPod(n *node, p *plan.Plan, name string, e plan.Endpoint) *pod {
	l.t.Helper()
	made := &pod{host: l.newHost(name), addresses: e.Addresses}
	hostMAC := plan.MACOf(p.Local.Pools[0].Gateway)
	must(l.t, n.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerHardwareAddr: e.MAC[:], PeerNamespace: netlink.NsFd(made.file.Fd())}
		veth.Name, veth.HardwareAddr, veth.MTU = name, hostMAC[:], p.Local.MTU
		if l.podMTU != 0 {
			veth.MTU = l.podMTU
		}
		veth.PeerMTU = uint32(veth.MTU)
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add the interface of %s: %w", name, err)
		}
		return errors.Join(netlink.LinkSetIP6AddrGenMode(veth, 1), setUp(name), addAddress(name, hostEnd6))
	}))
	must(l.t, made.Do(func() error {
		if err := errors.Join(setUp("eth0"), waitUp("eth0")); err != nil {
			return err
		}
		for _, a := range e.Addresses {
			if err := addAddress("eth0", netip.PrefixFrom(a, a.BitLen())); err != nil {
				return err
			}
			if err := defaultRoute(gatewayOf(p, e.Network, a), hostMAC); err != nil {
				return fmt.Errorf("route of %s: %w", name, err)
			}
		}
		return nil
	}))
	must(l.t, n.Do(func() error { return waitUp(name) }))
	return made
}

// gatewayOf is the next hop of a pod's address in a network.
func gatewayOf(p *plan.Plan, network string, a netip.Addr) netip.Addr {
	if a.Is6() {
		return hostEnd6.Addr()
	}
	for _, pool := range p.Local.Pools {
		if pool.Network == network && pool.Gateway.Is4() {
			return pool.Gateway
		}
	}
	return netip.Addr{}
}

func defaultRoute(via netip.Addr, mac plan.MAC) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	return errors.Join(
		netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: via.AsSlice(), HardwareAddr: mac[:], State: netlink.NUD_PERMANENT}),
		netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: ipNet(everything(via)), Gw: via.AsSlice(), Flags: unix.RTNH_F_ONLINK}),
	)
}
