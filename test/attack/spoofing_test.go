package attack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// send has a pod send a packet to its node, as its kernel would.
func (t *trial) send(h *hand, m *machine, packet []byte) {
	t.Helper()
	t.frames(h, frame(m.mac, m.gateway, packet))
}

// port is where datagrams go to and come from.
const port = 8080

// foreign are sources that are not mallory's: who they would be of.
func (t *trial) foreign() map[string]netip.Addr {
	sources := map[string]netip.Addr{
		"a pod of the same node":    t.addr(t.pods["near"]),
		"a pod of another node":     t.addr(t.pods["third"]),
		"his node":                  t.addr(t.nodes["node1"]),
		"another node":              t.addr(t.nodes["node3"]),
		"the world outside":         t.pick("172.30.0.1", "fd30::1"),
		"nobody in the cluster":     nextTo(t.addr(t.pods["mallory"]), 77),
		"nobody at all":             t.pick("192.0.2.1", "2001:db8::1"),
		"the gateway of his subnet": t.gatewayAddress(),
	}
	return sources
}

// gatewayAddress is that of node1's pool.
func (t *trial) gatewayAddress() netip.Addr { return t.gatewayOfNode("node1") }

// nextTo returns the address n after another one.
func nextTo(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// martians are sources that nobody has.
func (t *trial) martians() map[string]netip.Addr {
	if t.v6 {
		return map[string]netip.Addr{
			"loopback":               netip.IPv6Loopback(),
			"unspecified":            netip.IPv6Unspecified(),
			"multicast":              netip.MustParseAddr("ff02::1"),
			"IPv4-mapped":            netip.AddrFrom16(t.pods["near"].v4.As16()),
			"IPv4-mapped loopback":   netip.MustParseAddr("::ffff:127.0.0.1"),
			"IPv4-compatible":        netip.MustParseAddr("::10.1.0.2"),
			"6to4":                   netip.MustParseAddr("2002:ac1e:000b::1"),
			"Teredo":                 netip.MustParseAddr("2001:0:ac1e:b::1"),
			"site-local":             netip.MustParseAddr("fec0::1"),
			"another's link-local":   netip.MustParseAddr("fe80::2"),
			"his gateway link-local": netip.MustParseAddr("fe80::1"),
		}
	}
	return map[string]netip.Addr{
		"loopback":    netip.MustParseAddr("127.0.0.1"),
		"unspecified": netip.IPv4Unspecified(),
		"broadcast":   netip.MustParseAddr("255.255.255.255"),
		"multicast":   netip.MustParseAddr("224.0.0.1"),
		"reserved":    netip.MustParseAddr("240.0.0.1"),
		"link-local":  netip.MustParseAddr("169.254.169.254"),
		"subnet zero": netip.MustParseAddr("0.1.2.3"),
	}
}

// victims see what arrives at pods, and what a node's own sockets get.
func (t *trial) victims() []*observer {
	return []*observer{t.pods["near"].arriving, t.pods["far"].arriving, t.nodes["node1"].delivering, t.nodes["node2"].delivering}
}

func (t *trial) victim(o *observer) netip.AddrPort {
	for _, m := range []*machine{t.pods["near"], t.pods["far"], t.nodes["node1"], t.nodes["node2"]} {
		if m.arriving == o || m.delivering == o {
			return t.at(m, port)
		}
	}
	t.Fatal("an observer of nobody")
	return netip.AddrPort{}
}

// spoof has a pod send packets with sources that are not its own to everybody.
func (t *trial) spoof(m *machine, sources map[string]netip.Addr, packet func(from netip.Addr, to netip.AddrPort, word string) []byte) {
	h := t.hand(m)
	for _, o := range t.victims() {
		w, to := t.watch(o), t.victim(o)
		for what, source := range sources {
			w.forbid("as "+what+", "+source.String(), func(word string) { t.send(h, m, packet(source, to, word)) })
		}
		w.control("the same from his own address", func(word string) { t.send(h, m, packet(t.addr(m), to, word)) })
	}
}

func udpPacket(from netip.Addr, to netip.AddrPort, word string) []byte {
	return datagram(netip.AddrPortFrom(from, 4711), to, word)
}

// spoofingAttacks are those of a pod with NET_RAW that uses addresses which are
// not its own.
var spoofingAttacks = []attack{
	{
		name: "another_source", by: podWithRaw, ip: both,
		must: "be taken for somebody else",
		try:  func(t *trial) { t.spoof(t.pods["mallory"], t.foreign(), udpPacket) },
	},
	{
		name: "another_source_by_tcp_syn", by: podWithRaw, ip: both,
		must: "begin a connection as somebody else",
		try: func(t *trial) {
			t.spoof(t.pods["mallory"], t.foreign(), func(from netip.Addr, to netip.AddrPort, word string) []byte {
				return segment(netip.AddrPortFrom(from, 4711), to, flagSYN, 1, 0, word)
			})
		},
	},
	{
		name: "another_source_by_ping", by: podWithRaw, ip: both,
		must: "have somebody else answered to",
		try: func(t *trial) {
			t.spoof(t.pods["mallory"], t.foreign(), func(from netip.Addr, to netip.AddrPort, word string) []byte {
				return ping(from, to.Addr(), word)
			})
		},
	},
	{
		name: "martian_source", by: podWithRaw, ip: both,
		must: "bring a source that nobody can have to anyone",
		try:  func(t *trial) { t.spoof(t.pods["mallory"], t.martians(), udpPacket) },
	},
	{
		name: "another_source_in_fragments", by: podWithRaw, ip: both,
		must: "be taken for somebody else by way of fragments",
		try: func(t *trial) {
			mallory, h := t.pods["mallory"], t.hand(t.pods["mallory"])
			for _, o := range t.victims() {
				w, to := t.watch(o), t.victim(o)
				for what, source := range t.foreign() {
					w.forbid("all fragments as "+what, func(word string) {
						for _, f := range fragments(netip.AddrPortFrom(source, 4711), to, word) {
							t.send(h, mallory, f)
						}
					})
					w.forbid("the second fragment as "+what, func(word string) {
						id := newID()
						t.send(h, mallory, fragmentOf(t.addr(mallory), to.Addr(), id, 0, true, make([]byte, 64)))
						t.send(h, mallory, fragmentOf(source, to.Addr(), id, 64, false, []byte(word)))
					})
					w.forbid("no first fragment as "+what, func(word string) {
						t.send(h, mallory, fragmentOf(source, to.Addr(), newID(), 64, false, []byte(word)))
					})
				}
				w.control("fragments from his own address", func(word string) {
					for _, f := range fragments(t.at(mallory, 4711), to, word) {
						t.send(h, mallory, f)
					}
				})
			}
		},
	},
	{
		name: "another_source_by_address", by: podWithAdmin, ip: both,
		must: "be taken for a pod whose address it gives itself",
		try: func(t *trial) {
			guest := t.guest("node1")
			h := t.hand(guest)
			w := t.watch(t.pods["far"].arriving)
			for what, source := range t.foreign() {
				bits := map[bool]string{false: "/32", true: "/128"}[t.v6]
				args := []string{"ip", "addr", "add", source.String() + bits, "dev", "eth0"}
				if t.v6 {
					args = append(args, "nodad")
				}
				t.run(h, args...)
				w.forbid("a socket bound to "+what, func(word string) {
					t.must(h, order{Do: "udp", From: netip.AddrPortFrom(source, 0), To: t.at(t.pods["far"], port), Data: []byte(word)})
				})
			}
			w.control("a socket bound to his own", func(word string) {
				t.must(h, order{Do: "udp", From: t.at(guest, 0), To: t.at(t.pods["far"], port), Data: []byte(word)})
			})
		},
	},
	{
		name: "another_mac_as_source", by: podWithRaw, ip: both,
		must: "get what is for the pod whose MAC address it sends from",
		try: func(t *trial) {
			mallory, near := t.pods["mallory"], t.pods["near"]
			h := t.hand(mallory)
			for range 5 {
				t.frames(h, frame(near.mac, mallory.gateway, ping(t.addr(mallory), t.gatewayAddress(), "x")),
					frame(near.mac, broadcast, ping(t.addr(mallory), t.addr(near), "x")))
			}
			t.diverted(near)
		},
	},
	{
		name: "another_pods_mac_as_destination", by: podWithRaw, ip: both,
		must: "be bridged to another pod or to the nodes' network",
		try: func(t *trial) {
			mallory, near := t.pods["mallory"], t.pods["near"]
			h := t.hand(mallory)
			packet := func(word string) []byte { return datagram(t.at(mallory, 4711), t.at(near, port), word) }
			w, outside := t.watch(near.arriving), t.watch(t.stranger.arriving)
			for what, mac := range map[string]plan.MAC{"near's": near.mac, "everybody's": broadcast, "the stranger's": t.stranger.mac,
				"all nodes'": {0x33, 0x33, 0, 0, 0, 1}, "a bridge's": {0x01, 0x80, 0xc2, 0, 0, 0}} {
				w.forbid("to "+what+" MAC address", func(word string) { t.frames(h, frame(mallory.mac, mac, packet(word))) })
				outside.forbid("to "+what+" MAC address", func(word string) {
					t.frames(h, frame(mallory.mac, mac, datagram(t.at(mallory, 4711), netip.AddrPortFrom(t.addr(t.stranger), port), word)))
				})
			}
			w.control("to the gateway's MAC address", func(word string) { t.frames(h, frame(mallory.mac, mallory.gateway, packet(word))) })
			outside.control("to the gateway's MAC address", func(word string) {
				t.frames(h, frame(mallory.mac, mallory.gateway, datagram(t.at(mallory, 4711), netip.AddrPortFrom(t.addr(t.stranger), port), word)))
			})
		},
	},
	{
		name: "hop_limit_1_as_another", by: podWithRaw, ip: both,
		must: "have a node tell somebody else that his packet's time is over",
		try: func(t *trial) {
			mallory, near := t.pods["mallory"], t.pods["near"]
			h, once := t.hand(mallory), header{ttl: 1}
			w := t.watch(near.arriving)
			w.forbid("a packet of hop limit 1 as near", func(word string) {
				t.send(h, mallory, once.datagram(t.at(near, 4711), t.at(t.pods["far"], port), word))
			})
			// The error that the node sends is seen where it should arrive.
			t.arrives(mallory.arriving, "the answer to a packet of hop limit 1 from his own address", func(word string) {
				t.send(h, mallory, once.datagram(t.at(mallory, 4711), t.at(t.pods["far"], port), word))
			})
			w.control("what near is sent", func(word string) { t.send(h, mallory, datagram(t.at(mallory, 4711), t.at(near, port), word)) })
		},
	},
}

// diverted says that the attack succeeded if what is for a pod comes to mallory.
func (t *trial) diverted(victim *machine) {
	t.Helper()
	t.divertedTo(victim, t.pods["mallory"])
}

// divertedTo says that the attack succeeded if what is for a pod comes to
// another: from a pod of its node, from the node, and from other nodes.
func (t *trial) divertedTo(victim, attacker *machine) {
	t.Helper()
	var sent []string
	for _, from := range []*machine{t.nodes["node1"], t.pods["far"], t.pods["third"]} {
		h := t.owner(from)
		t.arrives(victim.arriving, "what "+from.name+" sends to "+victim.name, func(word string) {
			sent = append(sent, word)
			t.must(h, order{Do: "udp", To: t.at(victim, port), Data: []byte(word)})
		})
	}
	for _, word := range sent {
		if attacker.arriving.saw(word) != nil {
			t.breach("what is for %s came to him", victim.name)
		}
	}
	t.arrives(attacker.arriving, "what is for him", func(word string) {
		t.must(t.owner(t.pods["far"]), order{Do: "udp", To: t.at(attacker, port), Data: []byte(word)})
	})
}

// newID returns an identification of a fragmented packet.
func newID() uint32 { return 0x4000 + words.Add(1) }

// fragmentOf returns a fragment of a UDP packet; offset is in octets.
func fragmentOf(from, to netip.Addr, id uint32, offset int, more bool, data []byte) []byte {
	return header{id: id, offset: offset, more: more, fragment: true}.internet(from, to, unix.IPPROTO_UDP, data)
}

// fragments returns a datagram with a word in it, in two fragments.
func fragments(from, to netip.AddrPort, word string) [][]byte {
	const first = 64
	whole := udp(from, to, string(make([]byte, first-8))+word)
	id := newID()
	return [][]byte{
		fragmentOf(from.Addr(), to.Addr(), id, 0, true, whole[:first]),
		fragmentOf(from.Addr(), to.Addr(), id, first, false, whole[first:]),
	}
}
