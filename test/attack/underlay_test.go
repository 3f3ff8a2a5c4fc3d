package attack

import (
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// fromStranger sends a packet to a node's MAC address from a machine on the
// nodes' network.
func (t *trial) fromStranger(node string, packet []byte) {
	t.Helper()
	t.frames(t.owner(t.stranger), frame(t.stranger.mac, t.nodes[node].mac, packet))
}

// fromUnderlay has the stranger send packets with sources of the cluster's own,
// by plain IP, to a node and its pod.
func (t *trial) fromUnderlay(sources map[string]netip.Addr) {
	node, pod := t.nodes["node2"], t.pods["far"]
	for _, at := range []struct {
		o  *observer
		to *machine
	}{{pod.arriving, pod}, {node.delivering, node}} {
		w := t.watch(at.o)
		for what, source := range sources {
			w.forbid("plain IP as "+what+", "+source.String(), func(word string) { t.fromStranger("node2", udpPacket(source, t.at(at.to, port), word)) })
			w.forbid("a TCP segment as "+what+", "+source.String(), func(word string) {
				t.fromStranger("node2", segment(netip.AddrPortFrom(source, 4711), t.at(at.to, port), flagACK, 1, 1, word))
			})
		}
		if at.to == node {
			w.control("the same from the stranger's address", func(word string) { t.fromStranger("node2", udpPacket(t.addr(t.stranger), t.at(node, port), word)) })
			continue
		}
		t.pastNode(w, "node2", pod)
	}
}

// pastNode is the control of what a stranger sends to a pod. What comes from
// outside of the cluster may or may not reach pods: that it reaches the node is
// seen there, and that what passes the node reaches the pod, by what the node
// itself sends.
func (t *trial) pastNode(w *watch, node string, pod *machine) {
	t.Helper()
	t.arrives(t.nodes[node].arriving, "a frame of the stranger's for "+pod.name, func(word string) {
		t.fromStranger(node, udpPacket(t.addr(t.stranger), t.at(pod, port), word))
	})
	w.control("what the pod's own node sends it", func(word string) {
		t.must(t.owner(t.nodes[node]), order{Do: "udp", To: t.at(pod, port), Data: []byte(word)})
	})
}

// tunnelled has the stranger send, under a peer's address, tunnel packets for
// the pod far of node2, and holds that against one that is as it should be.
func (t *trial) tunnelled(forbid func(w *watch)) {
	w := t.watch(t.pods["far"].arriving)
	forbid(w)
	t.tunnelControl(w)
}

// underlayAttacks are those of a machine on the nodes' network that is no node.
// It can use the address of a node, which nothing but encryption keeps it from;
// what it can do with that is what any node can do.
var underlayAttacks = []attack{
	{
		name: "pod_source_on_the_underlay", by: onUnderlay, ip: both,
		must: "be taken for a pod of the node that it sends to",
		try: func(t *trial) {
			t.fromUnderlay(map[string]netip.Addr{"far's own address": t.addr(t.pods["far"]), "a pod of the node that there is not": nextTo(t.addr(t.pods["far"]), 99),
				"the node's gateway": t.gatewayOfNode("node2")})
		},
	},
	{
		name: "other_pods_source_on_the_underlay", by: onUnderlay, ip: both,
		must: "be taken for a pod of another node, whose packets come through the tunnel",
		left: noTunnel,
		try: func(t *trial) {
			t.fromUnderlay(map[string]netip.Addr{"near": t.addr(t.pods["near"]), "third": t.addr(t.pods["third"]), "a subnet without a node": t.freeSubnet()})
		},
	},
	{
		name: "node_source_on_the_underlay_to_a_pod", by: onUnderlay, ip: both,
		must: "reach a pod as its own node",
		try: func(t *trial) {
			t.fromUnderlay(map[string]netip.Addr{"the node itself": t.addr(t.nodes["node2"])})
		},
	},
	{
		name: "loopback_source_on_the_underlay", by: onUnderlay, ip: both,
		must: "reach a node or a pod as the node's own loopback",
		try: func(t *trial) {
			t.fromUnderlay(map[string]netip.Addr{"loopback": t.pick("127.0.0.1", "::1")})
		},
	},
	{
		name: "mapped_source_on_the_underlay", by: onUnderlay, ip: onlyIPv6,
		must: "be taken by a pod for an IPv4 host, by a source in ::ffff:0:0/96",
		try: func(t *trial) {
			w := t.watch(t.pods["far"].arriving)
			for _, source := range []string{"::ffff:127.0.0.1", "::ffff:172.30.0.12", "::ffff:" + t.pods["near"].v4.String()} {
				w.forbid("as "+source, func(word string) {
					t.fromStranger("node2", udpPacket(netip.MustParseAddr(source), t.at(t.pods["far"], port), word))
				})
			}
			t.pastNode(w, "node2", t.pods["far"])
		},
	},
	{
		name: "loopback_destination_on_the_underlay", by: onUnderlay, ip: both,
		must: "reach what a node serves on its loopback address only",
		try: func(t *trial) {
			w := t.watch(t.nodes["node2"].delivering)
			w.forbid("to its loopback address", func(word string) {
				t.fromStranger("node2", udpPacket(t.addr(t.stranger), netip.AddrPortFrom(t.pick("127.0.0.1", "::1"), port), word))
			})
			w.control("to its address on the link", func(word string) {
				t.fromStranger("node2", udpPacket(t.addr(t.stranger), t.at(t.nodes["node2"], port), word))
			})
		},
	},
	{
		name: "vxlan_from_an_unknown_peer", by: onUnderlay, ip: both, left: noTunnel,
		must: "bring a packet to a pod through the tunnel",
		try: func(t *trial) {
			t.tunnelled(func(w *watch) {
				end := tunnelEnd(t.tunnel("node2"))
				for what, source := range map[string]netip.Addr{"his own address": t.outer(t.stranger), "the world outside": t.pickOuter("172.30.0.1", "fd30::ffff"),
					"the receiver's own address": end.Addr(), "a pod's address": t.outer(t.pods["near"]), "loopback": t.pickOuter("127.0.0.1", "::1")} {
					w.forbid("from "+what, func(word string) {
						t.fromStranger("node2", datagram(netip.AddrPortFrom(source, 4789), end, string(t.innerTo("node2", "far", word))))
					})
				}
			})
		},
	},
	{
		name: "vxlan_of_another_network", by: onUnderlay, ip: both, left: noTunnel,
		must: "bring a packet to a pod with a network identifier that is not the cluster's, or with none",
		try: func(t *trial) {
			t.tunnelled(func(w *watch) {
				for _, vni := range []uint32{2, 3, 0xffffff} {
					w.forbid("another VNI", func(word string) {
						t.fromPeer("node1", "node2", encapsulate(vni, t.innerTo("node2", "far", word)[8:]))
					})
				}
				w.forbid("no VNI", func(word string) {
					t.fromPeer("node1", "node2", string(append(make([]byte, 8), t.innerTo("node2", "far", word)[8:]...)))
				})
			})
		},
	},
	{
		name: "vxlan_to_an_unlisted_address_from_the_underlay", by: onUnderlay, ip: both, left: noTunnel,
		must: "bring a packet through the tunnel that was sent to another address than the VTEP",
		try: func(t *trial) {
			t.tunnelled(func(w *watch) {
				vip := t.addUnlisted("node2")
				w.forbid("to "+vip.String(), func(word string) {
					source := tunnelEnd(t.tunnel("node1"))
					t.fromStranger("node2", datagram(source, netip.AddrPortFrom(vip, source.Port()), string(t.innerTo("node2", "far", word))))
				})
			})
		},
	},
	{
		name: "inner_source_of_the_receiver", by: onUnderlay, ip: both, left: noTunnel,
		must: "be taken, through the tunnel, for a pod of the node that it sends to, or for that node",
		try: func(t *trial) {
			t.tunnelled(func(w *watch) {
				for what, source := range map[string]netip.Addr{"far's own address": t.addr(t.pods["far"]), "a pod of the node that there is not": nextTo(t.addr(t.pods["far"]), 99),
					"the node's gateway": t.gatewayOfNode("node2"), "the node": t.addr(t.nodes["node2"])} {
					w.forbid("as "+what, func(word string) { t.fromPeer("node1", "node2", t.innerFrom(source, "node2", "far", word)) })
				}
			})
		},
	},
	{
		name: "inner_source_of_another_peer", by: onUnderlay, ip: both, left: noTunnel,
		must: "be taken, through the tunnel from one node, for what is on another node or nowhere",
		try: func(t *trial) {
			t.tunnelled(func(w *watch) {
				for what, source := range map[string]netip.Addr{"a pod of another peer": t.addr(t.pods["third"]), "another peer": t.addr(t.nodes["node3"]),
					"a subnet without a node": t.freeSubnet(), "the world outside": t.pick("172.30.0.1", "fd30::1"), "nobody": t.pick("192.0.2.1", "2001:db8::1"),
					"loopback": t.pick("127.0.0.1", "::1")} {
					w.forbid("as "+what, func(word string) { t.fromPeer("node1", "node2", t.innerFrom(source, "node2", "far", word)) })
				}
			})
		},
	},
	{
		name: "inner_vlan", by: onUnderlay, ip: both, left: noTunnel,
		must: "bring a packet through the tunnel, in a frame with a VLAN tag, past what judges those without",
		try: func(t *trial) {
			there, here := t.tunnel("node2"), t.tunnel("node1")
			t.tunnelled(func(w *watch) {
				for what, source := range map[string]netip.Addr{"far's own address": t.addr(t.pods["far"]), "the node": t.addr(t.nodes["node2"])} {
					for _, vlan := range []uint16{0, 1, 5, 4095} {
						w.forbid("as "+what, func(word string) {
							inner := udpPacket(source, t.at(t.pods["far"], port), word)
							t.fromPeer("node1", "node2", encapsulate(t.vni(), tagged(here.MAC, there.MAC, vlan, inner)))
						})
					}
				}
				for _, vlan := range []uint16{1, 5, 4095} {
					w.forbid("as who it should be", func(word string) {
						inner := udpPacket(t.addr(t.pods["near"]), t.at(t.pods["far"], port), word)
						t.fromPeer("node1", "node2", encapsulate(t.vni(), tagged(here.MAC, there.MAC, vlan, inner)))
					})
				}
			})
		},
	},
	{
		name: "inner_destination_mac_of_others", by: onUnderlay, ip: both, left: noTunnel,
		must: "bring a frame through the tunnel that is for others than the receiver",
		try: func(t *trial) {
			here := t.tunnel("node1")
			t.tunnelled(func(w *watch) {
				for _, mac := range []plan.MAC{t.pods["far"].mac, here.MAC, t.nodes["node2"].mac} {
					w.forbid("to "+mac.String(), func(word string) {
						inner := udpPacket(t.addr(t.pods["near"]), t.at(t.pods["far"], port), word)
						t.fromPeer("node1", "node2", encapsulate(t.vni(), frame(here.MAC, mac, inner)))
					})
				}
			})
		},
	},
	{
		name: "vxlan_within_vxlan", by: onUnderlay, ip: both, left: noTunnel,
		must: "hide a tunnel packet in a tunnel packet, so that its outer source is a peer's that did not send it",
		try: func(t *trial) {
			there, here := t.tunnel("node2"), t.tunnel("node1")
			t.tunnelled(func(w *watch) {
				for _, source := range []plan.Tunnel{here, t.tunnel("node3"), there} {
					w.forbid("as "+source.VTEP.String(), func(word string) {
						inner := datagram(tunnelEnd(source), tunnelEnd(there), string(t.innerTo("node2", "far", word)))
						t.fromPeer("node1", "node2", encapsulate(t.vni(), frame(here.MAC, there.MAC, inner)))
					})
				}
			})
		},
	},
	{
		name: "tunnel_to_the_world_outside", by: onUnderlay, ip: both, left: noTunnel,
		must: "use a node as his way out, by a tunnel packet for somebody outside of the cluster",
		try: func(t *trial) {
			there, here := t.tunnel("node2"), t.tunnel("node1")
			send := func(from netip.Addr, to *machine, word string) {
				t.fromPeer("node1", "node2", encapsulate(t.vni(), frame(here.MAC, there.MAC, udpPacket(from, t.at(to, port), word))))
			}
			w := t.watch(t.stranger.arriving)
			for what, source := range map[string]netip.Addr{"another peer's pod": t.addr(t.pods["third"]), "nobody": t.pick("192.0.2.1", "2001:db8::1")} {
				w.forbid("as "+what, func(word string) { send(source, t.stranger, word) })
			}
			t.arrives(t.pods["far"].arriving, "the same to a pod", func(word string) { send(t.addr(t.pods["near"]), t.pods["far"], word) })
			w.control("what a pod of the node sends there", func(word string) {
				t.must(t.owner(t.pods["far"]), order{Do: "udp", To: t.at(t.stranger, port), Data: []byte(word)})
			})
		},
	},
}

// gatewayOfNode is the address of a node's gateway, of the family.
func (t *trial) gatewayOfNode(node string) netip.Addr {
	for _, p := range t.nodes[node].plan.Local.Pools {
		if p.Gateway.Is6() == t.v6 {
			return p.Gateway
		}
	}
	t.Fatalf("%s has no pool of the family", node)
	return netip.Addr{}
}

// freeSubnet is an address in the cluster's range that no node has.
func (t *trial) freeSubnet() netip.Addr {
	b := t.addr(t.pods["near"]).AsSlice()
	if t.v6 {
		b[6], b[7] = 0xfe, 0xfe
	} else {
		b[2] = 254
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
