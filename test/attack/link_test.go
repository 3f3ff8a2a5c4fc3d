package attack

import (
	"net/netip"

	"github.com/weftnet/weft/plan"
)

// linkAttacks are those of a pod with NET_RAW on its link to the node.
var linkAttacks = []attack{
	{
		name: "sniffing", by: podWithRaw, ip: both,
		must: "see what others send each other",
		try: func(t *trial) {
			mallory := t.pods["mallory"]
			at := sniffer(t.T, "mallory in promiscuous mode", mallory.ns)
			w := t.watch(at)
			talk := func(from, to *machine) {
				w.forbid(from.name+" to "+to.name, func(word string) {
					t.must(t.owner(from), order{Do: "udp", To: t.at(to, port), Data: []byte(word)})
					t.arrives(to.arriving, from.name+" to "+to.name, func(w string) {
						t.must(t.owner(from), order{Do: "udp", To: t.at(to, port), Data: []byte(w + " " + word)})
					})
				})
			}
			talk(t.pods["near"], t.pods["far"])
			talk(t.pods["far"], t.pods["near"])
			talk(t.nodes["node1"], t.pods["near"])
			talk(t.pods["near"], t.nodes["node1"])
			talk(t.nodes["node1"], t.nodes["node2"])
			w.control("what is for mallory", func(word string) {
				t.must(t.owner(t.pods["far"]), order{Do: "udp", To: t.at(mallory, port), Data: []byte(word)})
			})
		},
	},
	{
		name: "broadcast_and_multicast", by: podWithRaw, ip: both,
		must: "reach several at once: pods, or what is on the nodes' network, by DHCP for one",
		try: func(t *trial) {
			mallory := t.pods["mallory"]
			h := t.hand(mallory)
			near, outside := t.watch(t.pods["near"].arriving), t.watch(t.stranger.arriving)
			groups := map[netip.Addr]plan.MAC{}
			if t.v6 {
				for _, group := range []string{"ff02::1", "ff02::2", "ff05::1:3", "ff0e::1", "ff01::1"} {
					groups[netip.MustParseAddr(group)] = plan.MAC{0x33, 0x33, 0, 0, 0, 1}
				}
			} else {
				for _, group := range []string{"224.0.0.1", "239.1.1.1", "255.255.255.255", "172.30.255.255"} {
					groups[netip.MustParseAddr(group)] = broadcast
				}
				// The last address of his node's subnet.
				b := mallory.v4.As4()
				b[3] = 255
				groups[netip.AddrFrom4(b)] = broadcast
			}
			for group, mac := range groups {
				for _, to := range []plan.MAC{mac, mallory.gateway} {
					for _, ports := range [][2]uint16{{4711, port}, {67, 68}, {68, 67}} {
						for _, w := range []*watch{near, outside} {
							w.forbid("to "+group.String(), func(word string) {
								t.frames(h, frame(mallory.mac, to, datagram(t.at(mallory, ports[0]), netip.AddrPortFrom(group, ports[1]), word)))
							})
						}
					}
				}
			}
			near.control("to near alone", func(word string) { t.send(h, mallory, datagram(t.at(mallory, 4711), t.at(t.pods["near"], port), word)) })
			outside.control("to the stranger alone", func(word string) {
				t.send(h, mallory, datagram(t.at(mallory, 4711), t.at(t.stranger, port), word))
			})
		},
	},
}
