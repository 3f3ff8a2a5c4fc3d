package attack

import (
	"fmt"
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// noTunnel leaves out clusters whose nodes have none.
func noTunnel(s *stage) string {
	if !s.cluster.tunnels() {
		return "no tunnel"
	}
	return ""
}

// podAttacks are those of a pod without any capability.
var podAttacks = []attack{
	{
		name: "vxlan_from_a_pod", by: podWithNothing, ip: both, left: noTunnel,
		must: "bring a packet of his own making to another pod through a node's VTEP",
		try: func(t *trial) {
			w := t.watch(t.pods["far"].arriving)
			for _, node := range []string{"node2", "node1"} {
				tunnel := t.tunnel(node)
				w.forbid("to "+node, func(word string) {
					t.must(t.hand(t.pods["mallory"]), order{Do: "udp", To: tunnelEnd(tunnel), Data: t.innerTo("node2", "far", word)})
				})
			}
			t.tunnelControl(w)
		},
	},
	{
		name: "vxlan_to_an_unlisted_address", by: podWithNothing, ip: both, left: noTunnel,
		must: "be masqueraded to his node's address on the way to an address of a node that Weft does not list, and pass for a peer there",
		try: func(t *trial) {
			vip := t.addUnlisted("node2")
			w := t.watch(t.pods["far"].arriving)
			w.forbid("to "+vip.String(), func(word string) {
				to := netip.AddrPortFrom(vip, t.tunnel("node2").Port)
				t.must(t.hand(t.pods["mallory"]), order{Do: "udp", To: to, Data: t.innerTo("node2", "far", word)})
			})
			t.tunnelControl(w)
		},
	},
	{
		name: "vxlan_through_a_node_port", by: podWithNothing, ip: both, left: noTunnel,
		must: "reach a VTEP through a port that a node translates to it",
		try: func(t *trial) {
			const toPeer, toUnlisted, here = 30089, 30090, 30091
			vip, peer := t.addUnlisted("node2"), tunnelEnd(t.tunnel("node2"))
			t.translate("node1", toPeer, peer)
			t.translate("node1", toUnlisted, netip.AddrPortFrom(vip, peer.Port()))
			t.translate("node2", here, peer)
			w := t.watch(t.pods["far"].arriving)
			for what, to := range map[string]netip.AddrPort{
				"his node's port that leads to the VTEP":                 netip.AddrPortFrom(t.outer(t.nodes["node1"]), toPeer),
				"his node's port that leads to an unlisted address":      netip.AddrPortFrom(t.outer(t.nodes["node1"]), toUnlisted),
				"the other node's port":                                  netip.AddrPortFrom(t.outer(t.nodes["node2"]), here),
				"the other node's port at an address that is not listed": netip.AddrPortFrom(vip, here),
			} {
				w.forbid(what, func(word string) {
					t.must(t.hand(t.pods["mallory"]), order{Do: "udp", To: to, Data: t.innerTo("node2", "far", word)})
				})
			}
			t.tunnelControl(w)
			// The ports do lead somewhere.
			const echo = 30092
			t.translate("node1", echo, netip.AddrPortFrom(vip, 4711))
			t.arrives(t.nodes["node2"].delivering, "a datagram through a node's port", func(word string) {
				t.must(t.hand(t.pods["mallory"]), order{Do: "udp", To: netip.AddrPortFrom(t.outer(t.nodes["node1"]), echo), Data: []byte(word)})
			})
		},
	},
}

// translate has a node translate a UDP port of its own, as kube-proxy does for
// a Service of type NodePort, until the trial ends.
func (t *trial) translate(node string, port uint16, to netip.AddrPort) {
	t.Helper()
	h, table, family := t.owner(t.nodes[node]), fmt.Sprintf("services-%d", port), "ip"
	if to.Addr().Is6() {
		family = "ip6"
	}
	t.run(h, "nft", fmt.Sprintf("table %s %s { chain pre { type nat hook prerouting priority dstnat; fib daddr type local udp dport %d dnat to %s; }; }", family, table, port, to))
	t.Cleanup(func() { t.run(h, "nft", "delete", "table", family, table) })
}

// tunnel is a node's end of the tunnel that carries the trial's family.
func (t *trial) tunnel(node string) plan.Tunnel {
	t.Helper()
	for _, tunnel := range t.nodes[node].plan.Local.Tunnels {
		if tunnel.Carries(t.addr(t.nodes[node])) {
			return tunnel
		}
	}
	t.Fatalf("%s has no tunnel for the family", node)
	return plan.Tunnel{}
}

// over6 says that the tunnel of the trial's family is over IPv6.
func (t *trial) over6() bool { return t.tunnel("node1").VTEP.Is6() }

// outer is a machine's address of the family of tunnel packets.
func (t *trial) outer(m *machine) netip.Addr { return m.address(t.over6()) }

// pickOuter is pick by that family.
func (t *trial) pickOuter(v4, v6 string) netip.Addr {
	if t.over6() {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// tunnelEnd is where a node takes tunnel packets.
func tunnelEnd(t plan.Tunnel) netip.AddrPort { return netip.AddrPortFrom(t.VTEP, t.Port) }

// addUnlisted gives a node one more address until the trial ends.
func (t *trial) addUnlisted(node string) netip.Addr {
	vip, prefix := t.pickOuter("172.30.200.2", "fd30::c8:2"), "/16"
	add := []string{"ip", "addr", "add"}
	if vip.Is6() {
		prefix = "/64"
		add = append(add, "nodad") // it can be used at once
	}
	h := t.owner(t.nodes[node])
	t.run(h, append(add, vip.String()+prefix, "dev", "eth0")...)
	t.Cleanup(func() { t.run(h, "ip", "addr", "del", vip.String()+prefix, "dev", "eth0") })
	return vip
}

// innerTo is what a tunnel packet to a node carries: a frame for one of its
// pods, from the pod near of node1, with a word in it.
func (t *trial) innerTo(node, pod, word string) []byte {
	return []byte(t.innerFrom(t.addr(t.pods["near"]), node, pod, word))
}

// vni is the network identifier of what pods send through the tunnel.
func (t *trial) vni() uint32 {
	vni, _ := t.nodes["node1"].plan.Encode(t.tunnel("node1").Name, plan.DefaultNetwork, 0)
	return vni
}

// innerFrom is innerTo with another source.
func (t *trial) innerFrom(source netip.Addr, node, pod, word string) string {
	there, here := t.tunnel(node), t.tunnel("node1")
	inner := datagram(netip.AddrPortFrom(source, 4711), t.at(t.pods[pod], 8080), word)
	return encapsulate(t.vni(), frame(here.MAC, there.MAC, inner))
}

// tunnelControl shows that the tunnel packet does arrive where it comes from a
// peer's address, as far as one can see who is on the link.
func (t *trial) tunnelControl(w *watch) {
	t.Helper()
	w.control("the same from a peer's address", func(word string) {
		t.fromPeer("node1", "node2", string(t.innerTo("node2", "far", word)))
	})
}

// fromPeer has the machine on the underlay send what a node takes for a tunnel
// packet of another.
func (t *trial) fromPeer(from, to, data string) {
	source, end := tunnelEnd(t.tunnel(from)), tunnelEnd(t.tunnel(to))
	t.frames(t.owner(t.stranger), frame(t.stranger.mac, t.nodes[to].mac, datagram(source, end, data)))
}
