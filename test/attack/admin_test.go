package attack

import (
	"fmt"
	"net/netip"
)

// adminAttacks are those of a pod with NET_ADMIN, which makes of its own
// network namespace what it likes.
var adminAttacks = []attack{
	{
		name: "taking_another_pods_mac", by: podWithAdmin, ip: both,
		must: "get what is for another pod by taking its MAC address",
		try: func(t *trial) {
			guest, near := t.guest("node1"), t.pods["near"]
			h := t.hand(guest)
			t.run(h, "ip", "link", "set", "eth0", "address", near.mac.String())
			for range 3 {
				t.frames(h, frame(near.mac, guest.gateway, ping(t.addr(guest), t.gatewayAddress(), "here")))
			}
			t.divertedTo(near, guest)
		},
	},
	{
		name: "taking_another_pods_address", by: podWithAdmin, ip: both,
		must: "get what is for another pod by taking its address and telling everybody",
		try: func(t *trial) {
			guest, near := t.guest("node1"), t.pods["near"]
			h := t.hand(guest)
			t.run(h, "ip", "addr", "add", t.addr(near).String(), "dev", "eth0")
			if t.v6 {
				t.frames(h, frame(guest.mac, broadcast, advertisement(t.addr(near), netip.MustParseAddr("ff02::1"), t.addr(near), guest.mac)))
			} else {
				t.frames(h, arp(2, guest.mac, broadcast, guest.mac, near.v4, broadcast, near.v4))
			}
			t.divertedTo(near, guest)
		},
	},
	{
		name: "macvlan_and_bridge", by: podWithAdmin, ip: both,
		must: "be two hosts on its link: with another MAC address and another's address",
		try: func(t *trial) {
			far := t.pods["far"]
			w := t.watch(far.arriving)
			var guest *machine
			for _, script := range []string{
				"ip link add mv0 link eth0 type macvlan mode bridge; ip link set mv0 up",
				"ip link add mv0 type bridge; ip link set mv0 up; ip link set eth0 master mv0",
			} {
				guest = t.guest("node1")
				h := t.hand(guest)
				t.sh(h, script)
				mac := macOf(t.T, guest.ns, "mv0")
				for what, source := range t.foreign() {
					w.forbid(what, func(word string) {
						t.must(h, order{Do: "frames", Device: "mv0", Frames: [][]byte{frame(mac, guest.gateway, udpPacket(source, t.at(far, port), word))}})
					})
				}
				w.control("by the same device, as himself", func(word string) {
					t.must(h, order{Do: "frames", Device: "mv0", Frames: [][]byte{frame(mac, guest.gateway, udpPacket(t.addr(guest), t.at(far, port), word))}})
				})
			}
		},
	},
	{
		name: "a_device_on_its_nodes_network", by: podWithAdmin, ip: noFamily,
		must: "join its node's network by the kernel's handle to the other end of its interface",
		try: func(t *trial) {
			guest, node := t.guest("node1"), t.nodes["node1"]
			h, w := t.hand(guest), t.watch(t.stranger.arriving)
			device := fmt.Sprint("if", indexOf(t.T, node.ns, "eth0"))
			if r, err := h.order(order{Do: "run", Args: []string{"ip", "link", "add", "mv0", "link-netnsid", "0", "link", device, "type", "macvlan"}}); err == nil {
				t.run(h, "ip", "link", "set", "mv0", "up")
				mac := macOf(t.T, guest.ns, "mv0")
				w.forbid("a frame of a device in the pod", func(word string) {
					t.must(h, order{Do: "frames", Device: "mv0", Frames: [][]byte{frame(mac, t.stranger.mac, udpPacket(guest.v4, netip.AddrPortFrom(t.stranger.v4, port), word))}})
				})
			} else {
				t.Logf("no device: %v %s", err, r.Output)
			}
			w.control("a frame of the node's", func(word string) {
				t.must(t.owner(node), order{Do: "frames", Device: "eth0", Frames: [][]byte{frame(node.mac, t.stranger.mac, udpPacket(node.v4, netip.AddrPortFrom(t.stranger.v4, port), word))}})
			})
		},
	},
	{
		name: "a_tunnel_device_of_its_own", by: podWithAdmin, ip: both, left: noTunnel,
		must: "join the overlay with a VXLAN device",
		try: func(t *trial) {
			guest, far := t.guest("node1"), t.pods["far"]
			h, there := t.hand(guest), t.tunnel("node2")
			w := t.watch(far.arriving)
			for i, to := range []netip.Addr{there.VTEP, t.addUnlisted("node2")} {
				name := fmt.Sprintf("vx%d", i)
				t.sh(h, fmt.Sprintf("ip link add %s type vxlan id %d dstport %d remote %s dev eth0 nolearning; ip link set %s up", name, t.vni(), there.Port, to, name))
				mac := macOf(t.T, guest.ns, name)
				w.forbid("to "+to.String(), func(word string) {
					t.must(h, order{Do: "frames", Device: name, Frames: [][]byte{frame(mac, there.MAC, udpPacket(t.addr(t.pods["near"]), t.at(far, port), word))}})
				})
				t.run(h, "ip", "link", "del", name)
			}
			t.tunnelControl(w)
		},
	},
	{
		name: "deleting_its_interface", by: podWithAdmin, ip: noFamily,
		must: "harm others, or keep its own end from being cleaned up, by deleting or renaming its interface",
		try: func(t *trial) {
			for _, script := range []string{"ip link del eth0", "ip link set eth0 down; ip link set eth0 name other", "for i in 1 2 3 4 5 6 7 8 9; do ip link set eth0 down; ip link set eth0 up; done", "ip link set eth0 mtu 65535; ip addr flush dev eth0"} {
				guest := t.guest("node1")
				t.sh(t.hand(guest), script)
				t.alive("node1")
				t.arrives(t.pods["near"].arriving, "what far sends to near", func(word string) {
					t.must(t.owner(t.pods["far"]), order{Do: "udp", To: netip.AddrPortFrom(t.pods["near"].v4, port), Data: []byte(word)})
				})
			}
			pod := t.guest("node1")
			t.arrives(pod.arriving, "what a pod that starts afterwards is sent", func(word string) {
				t.must(t.owner(t.pods["far"]), order{Do: "udp", To: netip.AddrPortFrom(pod.v4, port), Data: []byte(word)})
			})
		},
	},
	{
		name: "ipv6_where_there_is_none", by: podWithRaw, ip: noFamily,
		left: func(s *stage) string {
			if s.cluster.ipv6() {
				return "the cluster has IPv6"
			}
			return ""
		},
		must: "reach its node over IPv6, of which the cluster has none",
		try: func(t *trial) {
			mallory, node := t.pods["mallory"], t.nodes["node1"]
			w := t.watch(node.delivering)
			host := linkLocal(macOf(t.T, node.ns, t.device(mallory)))
			for _, from := range []netip.Addr{linkLocal(mallory.mac), netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("2001:db8::1"), netip.IPv6Unspecified()} {
				for _, to := range []netip.Addr{host, netip.MustParseAddr("ff02::1"), netip.MustParseAddr("fe80::1"), netip.IPv6Loopback()} {
					w.forbid(fmt.Sprintf("from %s to %s", from, to), func(word string) {
						t.send(t.hand(mallory), mallory, udpPacket(from, netip.AddrPortFrom(to, port), word))
						t.frames(t.hand(mallory), frame(mallory.mac, [6]byte{0x33, 0x33, 0, 0, 0, 1}, udpPacket(from, netip.AddrPortFrom(to, port), word)))
					})
				}
			}
			t.arrives(node.delivering, "what mallory sends over IPv4", func(word string) {
				t.send(t.hand(mallory), mallory, udpPacket(mallory.v4, netip.AddrPortFrom(node.v4, port), word))
			})
			w.control("what the node sends itself over IPv6", func(word string) {
				t.must(t.owner(node), order{Do: "udp", To: netip.AddrPortFrom(netip.IPv6Loopback(), port), Data: []byte(word)})
			})
		},
	},
}
