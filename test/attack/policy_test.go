package attack

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// policyAttacks are those of a pod that a policy lets through to nothing, or to
// one port, and wants more.
var policyAttacks = []attack{
	{
		name: "plain_packets_past_a_policy", by: podWithNothing, ip: both, left: noPolicies,
		must: "reach a pod that lets nobody in but its friends, or another port of it as a friend",
		try: func(t *trial) {
			for _, victim := range []*machine{t.pods["shut"], t.pods["shutfar"]} {
				w := t.watch(victim.arriving)
				for _, p := range []uint16{port, 22, 53, 4789, 65535} {
					w.forbid("a datagram", func(word string) {
						t.must(t.hand(t.pods["mallory"]), order{Do: "udp", To: t.at(victim, p), Data: []byte(word)})
					})
				}
				w.forbid("a friend's datagram to another port", func(word string) {
					t.must(t.handWith(t.pods["friend"], podWithNothing.privileges()), order{Do: "udp", To: t.at(victim, 53), Data: []byte(word)})
				})
				w.control("a friend's datagram", func(word string) {
					t.must(t.handWith(t.pods["friend"], podWithNothing.privileges()), order{Do: "udp", To: t.at(victim, port), Data: []byte(word)})
				})
			}
		},
	},
	{
		name: "from_the_port_of_an_answer", by: podWithRaw, ip: both, left: noPolicies,
		must: "pass a policy by sending from a port that answers come from, or from the one that is open",
		try: func(t *trial) {
			t.pastPolicy(func(from *machine, to *machine, word string) [][]byte {
				var all [][]byte
				for _, source := range []uint16{53, 80, 443, port, 67, 123} {
					for _, dest := range []uint16{source, 40000} {
						all = append(all, datagram(t.at(from, source), t.at(to, dest), word), segment(t.at(from, source), t.at(to, dest), flagSYN|flagACK, 7, 8, word))
					}
				}
				return all
			}, func(from, to *machine, word string) [][]byte {
				return [][]byte{datagram(t.at(from, 53), t.at(to, port), word)}
			})
		},
	},
	{
		name: "tcp_flags", by: podWithRaw, ip: both, left: noPolicies,
		must: "pass a policy, as in ACK, FIN, NULL, XMAS and other scans, by segments that do not begin a connection",
		try: func(t *trial) {
			t.pastPolicy(func(from, to *machine, word string) [][]byte {
				var all [][]byte
				for flags := range uint8(64) {
					all = append(all, segment(t.at(from, 4711), t.at(to, port), flags, 7, 8, word))
				}
				return all
			}, func(from, to *machine, word string) [][]byte {
				return [][]byte{segment(t.at(from, uint16(20000+words.Load()%30000)), t.at(to, port), flagSYN, 7, 0, word)}
			})
		},
	},
	{
		name: "other_protocols", by: podWithRaw, ip: both, left: noPolicies,
		must: "pass a policy by a protocol without ports, or one that nobody knows",
		try: func(t *trial) {
			t.pastPolicy(func(from, to *machine, word string) [][]byte {
				var all [][]byte
				for _, protocol := range []uint8{0x02, 0x04, 0x29, 0x2f, 0x32, 0x33, 0x59, 0x67, 0x70, 0x84, 0x88, 0xfd, 0xff} {
					all = append(all, header{}.internet(t.addr(from), t.addr(to), protocol, append(wire.AppendUint32(nil, 4711<<16|port), word...)))
				}
				all = append(all, ping(t.addr(from), t.addr(to), word))
				for kind := range uint8(255) {
					all = append(all, header{}.icmp(t.addr(from), t.addr(to), kind, 0, 7<<16|1, []byte(word)))
				}
				return all
			}, func(from, to *machine, word string) [][]byte {
				return [][]byte{datagram(t.at(from, 4711), t.at(to, port), word)}
			})
		},
	},
	{
		name: "fragments_past_a_policy", by: podWithRaw, ip: both, left: noPolicies,
		must: "pass a policy by fragments: tiny, overlapping, without the first, or with a first of another port",
		try:  func(t *trial) { t.fragmentsPastPolicy() },
	},
	{
		name: "extension_headers", by: podWithRaw, ip: onlyIPv6, left: noPolicies,
		must: "pass a policy by hiding the port behind extension headers",
		try: func(t *trial) {
			t.pastPolicy(func(from, to *machine, word string) [][]byte {
				var all [][]byte
				for _, h := range extensions(t.addr(to)) {
					all = append(all, h.datagram(t.at(from, 4711), t.at(to, port), word))
				}
				return all
			}, func(from, to *machine, word string) [][]byte {
				return [][]byte{header{next: unix.IPPROTO_DSTOPTS, extensions: padding(unix.IPPROTO_UDP, 1)}.datagram(t.at(from, 4711), t.at(to, port), word)}
			})
			// A friend hides a port that it may not reach.
			shut, friend := t.pods["shut"], t.pods["friend"]
			h, w := t.handWith(friend, podWithRaw.privileges()), t.watch(shut.arriving)
			for _, e := range extensions(t.addr(shut)) {
				w.forbid("a friend's datagram to another port behind extension headers", func(word string) {
					t.send(h, friend, e.datagram(t.at(friend, 4711), t.at(shut, 53), word))
				})
			}
			w.control("a friend's datagram behind an extension header", func(word string) {
				t.send(h, friend, header{next: unix.IPPROTO_DSTOPTS, extensions: padding(unix.IPPROTO_UDP, 1)}.datagram(t.at(friend, 4711), t.at(shut, port), word))
			})
		},
	},
	{
		name: "source_routing", by: podWithRaw, ip: both,
		must: "be sent on by a node to where its packet did not go by itself",
		try: func(t *trial) {
			mallory, near := t.pods["mallory"], t.pods["near"]
			h := t.hand(mallory)
			w := t.watch(near.arriving)
			for _, via := range []netip.Addr{t.gatewayAddress(), t.addr(t.nodes["node1"]), t.addr(t.pods["far"])} {
				for _, kind := range []byte{0x83, 0x89} {
					w.forbid("by way of "+via.String(), func(word string) {
						t.send(h, mallory, sourceRouted(kind, via, t.addr(near)).datagram(t.at(mallory, 4711), netip.AddrPortFrom(via, port), word))
					})
				}
			}
			// What has options does arrive, where they are harmless.
			w.control("with an option that does nothing", func(word string) {
				harmless := header{options: []byte{1, 1, 1, 0}}
				if t.v6 {
					harmless = header{next: unix.IPPROTO_DSTOPTS, extensions: padding(unix.IPPROTO_UDP, 1)}
				}
				t.send(h, mallory, harmless.datagram(t.at(mallory, 4711), t.at(near, port), word))
			})
		},
	},
	{
		name: "reset_of_others_connections", by: podWithRaw, ip: both,
		must: "end a connection of others by RST, FIN or SYN under their addresses",
		try: func(t *trial) {
			mallory, near, far := t.pods["mallory"], t.pods["near"], t.pods["far"]
			for _, victim := range []struct{ at, from *machine }{{near, far}, {far, near}} {
				w := t.watch(victim.at.arriving)
				for what, flags := range map[string]uint8{"RST": flagRST, "RST and ACK": flagRST | flagACK, "FIN": flagFIN | flagACK, "SYN": flagSYN} {
					w.forbid(what, func(word string) {
						t.send(t.hand(mallory), mallory, segment(t.at(victim.from, 4711), t.at(victim.at, port), flags, 1, 1, word))
					})
				}
				w.control("RST of the pod's itself", func(word string) {
					t.send(t.owner(victim.from), victim.from, segment(t.at(victim.from, uint16(20000+words.Load()%30000)), t.at(victim.at, port), flagSYN, 1, 0, word))
				})
			}
		},
	},
	{
		name: "a_node_that_is_denied", by: podWithRaw, ip: both, left: noPolicies,
		must: "reach a node, which a policy denies, by another of its addresses than those that its Node lists",
		try: func(t *trial) {
			node, mallory := t.nodes["node1"], t.pods["mallory"]
			more := map[string]string{"2001:db8:7::7": "lo"}
			if !t.v6 {
				// The second as a cache of DNS has it, the third on a device that is down.
				more = map[string]string{"198.51.100.7": "lo", "169.254.20.10": "lo", "192.0.2.77": "down0"}
				t.sh(t.owner(node), "ip link add down0 type bridge")
				t.Cleanup(func() { t.run(t.owner(node), "ip", "link", "del", "down0") })
			}
			to := []netip.Addr{t.addr(node)}
			for a, device := range more {
				t.run(t.owner(node), "ip", "addr", "add", a, "dev", device)
				t.Cleanup(func() { t.run(t.owner(node), "ip", "addr", "del", a, "dev", device) })
				to = append(to, netip.MustParseAddr(a))
			}
			guest := t.guestIn("nodeless", nil)
			t.apply(t.T, nodelessPolicy)
			t.Cleanup(func() {
				if out, err := t.weft(t.T, "", "delete", "clusternetworkpolicy", "nodeless"); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			t.planHas(t.T, "node1", "ClusterNetworkPolicy nodeless")
			for a := range more {
				t.planHas(t.T, "node1", "class default "+a)
			}
			for _, a := range node.plan.Local.PoolAddresses() {
				if a.Is6() == t.v6 {
					to = append(to, a)
				}
			}
			groups := []string{"224.0.0.1", "255.255.255.255", "172.30.255.255"}
			if t.v6 {
				groups = []string{"ff02::1", "ff02::2", "fe80::1"}
			}
			for _, g := range groups {
				to = append(to, netip.MustParseAddr(g))
			}
			w := t.watch(node.delivering)
			for _, a := range to {
				w.forbid("a datagram to "+a.String(), func(word string) {
					t.send(t.hand(guest), guest, udpPacket(t.addr(guest), netip.AddrPortFrom(a, port), word))
				})
			}
			for _, a := range to {
				w.control("a datagram to "+a.String()+" of who may", func(word string) {
					t.send(t.hand(mallory), mallory, udpPacket(t.addr(mallory), netip.AddrPortFrom(a, port), word))
				})
			}
		},
	},
	{
		name: "link_local_to_the_node", by: podWithRaw, ip: onlyIPv6,
		must: "reach what its node serves from a link-local address, which is of no pod",
		try: func(t *trial) {
			mallory, node := t.pods["mallory"], t.nodes["node1"]
			h := t.hand(mallory)
			w := t.watch(node.delivering)
			gateway := netip.AddrPortFrom(netip.MustParseAddr("fe80::1"), port)
			for _, from := range []netip.Addr{linkLocal(mallory.mac), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::bad")} {
				w.forbid("as "+from.String(), func(word string) {
					t.send(h, mallory, udpPacket(from, gateway, word))
					t.send(h, mallory, segment(netip.AddrPortFrom(from, 4711), gateway, flagSYN, 1, 0, word))
					t.send(h, mallory, ping(from, gateway.Addr(), word))
				})
			}
			w.control("as himself", func(word string) { t.send(h, mallory, udpPacket(mallory.v6, t.at(node, port), word)) })
		},
	},
	{
		name: "a_policy_of_another_namespace", by: tenant, ip: noFamily, left: noPolicies,
		must: "shut or open pods of another namespace with a policy or labels in his own",
		try: func(t *trial) {
			near, shut := t.pods["near"], t.pods["shut"]
			guest := t.guestIn("tenant", map[string]string{"app": "friend"})
			t.apply(t.T, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: all, namespace: tenant}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: shut, namespace: tenant}
spec:
  podSelector: {matchLabels: {app: shut}}
  ingress: [{}]
`)
			t.Cleanup(func() {
				for _, name := range []string{"all", "shut"} {
					if out, err := t.weft(t.T, "", "delete", "networkpolicy", name, "-n", "tenant"); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				}
			})
			// His own pod is shut by it.
			mallory := t.hand(t.pods["mallory"])
			eventually(t, func() error {
				for range 3 {
					word := newWord()
					t.must(mallory, order{Do: "udp", To: netip.AddrPortFrom(guest.v4, port), Data: []byte(word)})
					time.Sleep(10 * time.Millisecond)
					if guest.arriving.saw(word) == nil {
						return nil
					}
				}
				return errShut
			})
			t.arrives(near.arriving, "what mallory sends to a pod of another namespace", func(word string) {
				t.must(mallory, order{Do: "udp", To: netip.AddrPortFrom(near.v4, port), Data: []byte(word)})
			})
			w := t.watch(shut.arriving)
			w.forbid("a pod of his with the friend's labels", func(word string) {
				t.must(t.owner(guest), order{Do: "udp", To: netip.AddrPortFrom(shut.v4, port), Data: []byte(word)})
			})
			w.forbid("mallory", func(word string) {
				t.must(mallory, order{Do: "udp", To: netip.AddrPortFrom(shut.v4, port), Data: []byte(word)})
			})
			w.control("the friend", func(word string) {
				t.must(t.owner(t.pods["friend"]), order{Do: "udp", To: netip.AddrPortFrom(shut.v4, port), Data: []byte(word)})
			})
		},
	},
}

const nodelessPolicy = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: nodeless}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: nodeless}}}
  egress: [{name: no-nodes, action: Deny, to: [{nodes: {}}]}]
`

var errShut = errors.New("the tenant's own pod is not shut by the tenant's policy")

// pastPolicy sends packets that a policy denies to a pod on mallory's node and
// one on another, and has its friend send one that is allowed.
func (t *trial) pastPolicy(packets, allowed func(from, to *machine, word string) [][]byte) {
	t.Helper()
	mallory, friend := t.pods["mallory"], t.pods["friend"]
	h, theirs := t.hand(mallory), t.handWith(friend, t.attack.by.privileges())
	for _, victim := range []*machine{t.pods["shut"], t.pods["shutfar"]} {
		w := t.watch(victim.arriving)
		for range packets(mallory, victim, "") {
			// Each with a word of its own, as one may pass and another not.
			i := len(w.forbidden)
			w.forbid(fmt.Sprintf("packet %d, %x", i, packets(mallory, victim, "")[i]), func(word string) { t.send(h, mallory, packets(mallory, victim, word)[i]) })
		}
		w.control("a friend's", func(word string) {
			for _, p := range allowed(friend, victim, word) {
				t.send(theirs, friend, p)
			}
		})
	}
}

// fragmentsPastPolicy tries fragments against a pod that is shut: mallory for
// any port, and a friend for another port than the one that is open to it.
func (t *trial) fragmentsPastPolicy() {
	mallory, friend := t.pods["mallory"], t.pods["friend"]
	for _, victim := range []*machine{t.pods["shut"], t.pods["shutfar"]} {
		for _, who := range []struct {
			m    *machine
			port uint16
		}{{mallory, port}, {friend, 53}} {
			at, counts := victim.arriving, func([]byte) bool { return true }
			if who.m == friend {
				// Of fragments for two ports, what is put together counts.
				at, counts = victim.delivering, func(in []byte) bool { return t.portOf(in) == 53 }
			}
			w := t.watch(at)
			w.counts = counts
			h, from, to := t.handWith(who.m, podWithRaw.privileges()), t.at(who.m, 4711), t.at(victim, who.port)
			send := func(f func(id uint32, word string) [][]byte) func(word string) {
				return func(word string) {
					for _, p := range f(newID(), word) {
						t.send(h, who.m, p)
					}
				}
			}
			whole := func(port uint16, word string) []byte {
				return udp(from, netip.AddrPortFrom(to.Addr(), port), string(make([]byte, 56))+word)
			}
			piece := func(id uint32, offset int, more bool, data []byte) []byte {
				return fragmentOf(from.Addr(), to.Addr(), id, offset, more, data)
			}
			w.forbid("two fragments", send(func(id uint32, word string) [][]byte {
				b := whole(who.port, word)
				return [][]byte{piece(id, 0, true, b[:64]), piece(id, 64, false, b[64:])}
			}))
			w.forbid("the other order", send(func(id uint32, word string) [][]byte {
				b := whole(who.port, word)
				return [][]byte{piece(id, 64, false, b[64:]), piece(id, 0, true, b[:64])}
			}))
			w.forbid("a tiny first fragment", send(func(id uint32, word string) [][]byte {
				b := whole(who.port, word)
				return [][]byte{piece(id, 0, true, b[:8]), piece(id, 8, false, b[8:])}
			}))
			w.forbid("a first fragment of the open port, and one over it of another", send(func(id uint32, word string) [][]byte {
				open, other := whole(port, word), whole(who.port, word)
				return [][]byte{piece(id, 0, true, open[:64]), piece(id, 0, true, other[:8]), piece(id, 64, false, other[64:])}
			}))
			w.forbid("a first fragment of another port, and one over it of the open one", send(func(id uint32, word string) [][]byte {
				open, other := whole(port, word), whole(who.port, word)
				return [][]byte{piece(id, 0, true, other[:64]), piece(id, 0, true, open[:8]), piece(id, 64, false, other[64:])}
			}))
			w.forbid("a second fragment that overlaps the first", send(func(id uint32, word string) [][]byte {
				open, other := whole(port, word), whole(who.port, word)
				return [][]byte{piece(id, 0, true, open[:64]), piece(id, 8, false, other[8:])}
			}))
			w.forbid("no first fragment", send(func(id uint32, word string) [][]byte { return [][]byte{piece(id, 64, false, []byte(word))} }))
			w.forbid("a fragment that is all", send(func(id uint32, word string) [][]byte { return [][]byte{piece(id, 0, false, whole(who.port, word))} }))
			w.forbid("a fragment that ends beyond the longest packet", send(func(id uint32, word string) [][]byte {
				return [][]byte{piece(id, 65512, false, []byte(word+word+word))}
			}))
			w.control("a friend's fragments to the open port", func(word string) {
				for _, f := range fragments(t.at(friend, 4711), t.at(victim, port), word) {
					t.send(t.handWith(friend, podWithRaw.privileges()), friend, f)
				}
			})
		}
	}
}

// portOf is the port that a datagram came to, as a raw socket of the family
// gets it: of IPv4 with its header.
func (t *trial) portOf(in []byte) uint16 {
	if !t.v6 {
		in = in[int(in[0]&15)*4:]
	}
	return wire.Uint16(in[2:])
}

// padding is a header of options that do nothing, of eight octets times n.
func padding(next uint8, n int) []byte {
	b := []byte{next, byte(n - 1), 1, byte(n*8 - 4)}
	return append(b, make([]byte, n*8-4)...)
}

// extensions are headers that end in UDP's, one of each kind and some in a row.
func extensions(to netip.Addr) []header {
	route := func(next, kind byte) []byte {
		b := []byte{next, 2, kind, 1, 0, 0, 0, 0}
		return append(b, to.AsSlice()...)
	}
	var long []byte
	for range 8 {
		long = append(long, padding(unix.IPPROTO_DSTOPTS, 8)...)
	}
	return []header{
		{next: unix.IPPROTO_HOPOPTS, extensions: padding(unix.IPPROTO_UDP, 1)},
		{next: unix.IPPROTO_DSTOPTS, extensions: padding(unix.IPPROTO_UDP, 1)},
		{next: unix.IPPROTO_DSTOPTS, extensions: append(long, padding(unix.IPPROTO_UDP, 1)...)},
		{next: unix.IPPROTO_ROUTING, extensions: route(unix.IPPROTO_UDP, 0)},
		{next: unix.IPPROTO_ROUTING, extensions: route(unix.IPPROTO_UDP, 2)},
		{next: unix.IPPROTO_ROUTING, extensions: route(unix.IPPROTO_UDP, 4)},
		{next: unix.IPPROTO_FRAGMENT, extensions: []byte{unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0x12, 0x34}},
		{next: unix.IPPROTO_HOPOPTS, extensions: append(padding(unix.IPPROTO_FRAGMENT, 1), unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0x12, 0x35)},
		{next: 135, extensions: padding(unix.IPPROTO_UDP, 1)}, // mobility
		{next: 139, extensions: padding(unix.IPPROTO_UDP, 1)}, // HIP
		{next: 140, extensions: padding(unix.IPPROTO_UDP, 1)}, // shim6
		{next: 253, extensions: padding(unix.IPPROTO_UDP, 1)}, // for experiments
	}
}

// sourceRouted asks that a packet go on to an address once it is where it is
// sent: kind is IPv4's option, strict or loose; IPv6 has the routing header.
func sourceRouted(kind byte, via, to netip.Addr) header {
	if to.Is6() {
		b := []byte{unix.IPPROTO_UDP, 2, 0, 1, 0, 0, 0, 0}
		if kind == 0x89 {
			b[2] = 4 // segment routing
			b[4] = 0
		}
		return header{next: unix.IPPROTO_ROUTING, extensions: append(b, to.AsSlice()...)}
	}
	return header{options: append([]byte{kind, 7, 4}, append(to.AsSlice(), 0)...)}
}
