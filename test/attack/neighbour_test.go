package attack

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weftnet/weft/plan"
)

// neighbourAttacks are those of a pod with NET_RAW by what hosts believe of
// who is on their link.
var neighbourAttacks = []attack{
	{
		name: "arp_poisoning", by: podWithRaw, ip: onlyIPv4,
		must: "get what is for another pod, a gateway or a node by saying in ARP that their addresses are his",
		try: func(t *trial) {
			mallory := t.pods["mallory"]
			h := t.hand(mallory)
			for _, claimed := range []netip.Addr{t.pods["near"].v4, t.pods["far"].v4, t.gatewayAddress(), t.nodes["node2"].v4, netip.MustParseAddr("172.30.0.1")} {
				for _, to := range []plan.MAC{broadcast, mallory.gateway} {
					t.frames(h,
						arp(2, mallory.mac, to, mallory.mac, claimed, to, claimed),                              // gratuitous answer
						arp(1, mallory.mac, to, mallory.mac, claimed, plan.MAC{}, claimed),                      // announcement
						arp(2, mallory.mac, to, mallory.mac, claimed, mallory.gateway, t.gatewayAddress()),      // answer that nobody asked for
						arp(1, mallory.mac, to, mallory.mac, claimed, plan.MAC{}, t.gatewayAddress()),           // question with a false sender
						arp(1, mallory.mac, to, t.pods["near"].mac, mallory.v4, plan.MAC{}, t.gatewayAddress())) // his address at another's
				}
			}
			t.diverted(t.pods["near"])
			t.diverted(t.pods["far"])
			t.divertedOut()
		},
	},
	{
		name: "neighbour_poisoning", by: podWithRaw, ip: onlyIPv6,
		must: "get what is for another pod, a gateway or a node by saying in neighbour discovery that their addresses are his",
		try: func(t *trial) {
			mallory := t.pods["mallory"]
			h := t.hand(mallory)
			link := netip.MustParseAddr("fe80::1")
			for _, claimed := range []netip.Addr{t.pods["near"].v6, t.pods["far"].v6, t.gatewayAddress(), link, t.nodes["node2"].v6, netip.MustParseAddr("fd30::1")} {
				for _, from := range []netip.Addr{mallory.v6, linkLocal(mallory.mac), claimed} {
					for _, to := range []netip.Addr{netip.MustParseAddr("ff02::1"), link, t.gatewayAddress()} {
						mac := mallory.gateway
						if to.IsMulticast() {
							mac = plan.MAC{0x33, 0x33, 0, 0, 0, 1}
						}
						t.frames(h, frame(mallory.mac, mac, advertisement(from, to, claimed, mallory.mac)),
							frame(mallory.mac, mac, solicitation(claimed, to, link, mallory.mac)))
					}
				}
			}
			t.diverted(t.pods["near"])
			t.diverted(t.pods["far"])
			t.divertedOut()
		},
	},
	{
		name: "router_advertisement", by: podWithRaw, ip: onlyIPv6,
		must: "make itself its node's router, name server or source of prefixes",
		try:  func(t *trial) { t.advertise(t.pods["mallory"]) },
	},
}

// divertedOut says that the attack succeeded if what node1 sends to the next
// machine on its own network comes to mallory.
func (t *trial) divertedOut() {
	t.Helper()
	word := ""
	t.arrives(t.stranger.arriving, "what node1 sends to the stranger", func(w string) {
		word = w
		t.must(t.owner(t.nodes["node1"]), order{Do: "udp", To: t.at(t.stranger, port), Data: []byte(w)})
	})
	if t.pods["mallory"].arriving.saw(word) != nil {
		t.breach("what his node sends to others on its network came to him")
	}
}

// linkLocal is the address that a host makes itself of its MAC address.
func linkLocal(m plan.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// discovery has the hop limit that neighbour discovery asks for.
var discovery = header{ttl: 255}

// advertisement says that an address is at a MAC address (RFC 4861, 4.4).
func advertisement(from, to, target netip.Addr, mac plan.MAC) []byte {
	const override, router = 1 << 29, 1 << 31
	return discovery.icmp(from, to, 136, 0, override|router, append(append(target.AsSlice(), 2, 1), mac[:]...))
}

// solicitation asks for a target, and says where the one who asks is (RFC 4861,
// 4.3).
func solicitation(from, to, target netip.Addr, mac plan.MAC) []byte {
	return discovery.icmp(from, to, 135, 0, 0, append(append(target.AsSlice(), 1, 1), mac[:]...))
}

// routerAdvertisement offers a default route, a prefix and a route (RFC 4861,
// 4.2; RFC 4191).
func routerAdvertisement(from, to netip.Addr, mac plan.MAC, prefix netip.Addr) []byte {
	b := wire.AppendUint32(nil, 0)
	b = wire.AppendUint32(b, 0)
	b = append(append(b, 1, 1), mac[:]...) // his own link-layer address
	b = append(b, 3, 4, 64, 0xc0)          // prefix information: on-link, autonomous
	b = wire.AppendUint32(wire.AppendUint32(b, 86400), 86400)
	b = append(append(b, 0, 0, 0, 0), prefix.AsSlice()...)
	b = append(b, 24, 3, 48, 8) // route information
	b = wire.AppendUint32(b, 86400)
	b = append(b, prefix.AsSlice()...)
	return discovery.icmp(from, to, 134, 0, 64<<24|1800, b)
}

// advertise sends router advertisements from a pod and holds the node's routes
// and addresses against what they were.
func (t *trial) advertise(m *machine) {
	t.Helper()
	prefix := netip.MustParseAddr("2001:db8:bad::")
	node, link := t.owner(t.nodes[m.node]), linkLocal(m.mac)
	everybody := netip.MustParseAddr("ff02::1")
	for range 3 {
		t.frames(t.hand(m), frame(m.mac, plan.MAC{0x33, 0x33, 0, 0, 0, 1}, routerAdvertisement(link, everybody, m.mac, prefix)),
			frame(m.mac, m.gateway, routerAdvertisement(link, netip.MustParseAddr("fe80::1"), m.mac, prefix)))
	}
	// What the node takes from routers, it does take.
	t.sh(node, "ip link add ra0 type veth peer name ra1; sysctl -qw net.ipv6.conf.ra0.accept_dad=0 net.ipv6.conf.ra1.accept_dad=0 net.ipv6.conf.ra0.accept_ra=2; ip link set ra0 up; ip link set ra1 up")
	defer t.run(node, "ip", "link", "del", "ra0")
	control := netip.MustParseAddr("2001:db8:600d::")
	mac := macOf(t, t.nodes[m.node].ns, "ra1")
	eventually(t, func() error {
		t.must(node, order{Do: "frames", Device: "ra1", Frames: [][]byte{
			frame(mac, plan.MAC{0x33, 0x33, 0, 0, 0, 1}, routerAdvertisement(linkLocal(mac), everybody, mac, control))}})
		if routes := t.run(node, "ip", "-6", "route", "show", "table", "all"); !strings.Contains(routes, "2001:db8:600d::") {
			return fmt.Errorf("control: a router advertisement by a router was not taken: %s", routes)
		}
		return nil
	})
	t.controls++
	if routes := t.run(node, "ip", "-6", "route", "show", "table", "all"); strings.Contains(routes, "2001:db8:bad::") || strings.Contains(routes, link.String()) {
		t.breach("the node has routes from him:\n%s", routes)
	}
	if addresses := t.run(node, "ip", "-6", "addr"); strings.Contains(addresses, "2001:db8:bad:") {
		t.breach("the node has an address from him:\n%s", addresses)
	}
}
