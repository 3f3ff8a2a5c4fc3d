package attack

import (
	"fmt"
	"net/netip"
	"strings"
)

// noPolicies leaves out clusters without network policies.
func noPolicies(s *stage) string {
	if !s.cluster.policies() {
		return "no policies"
	}
	return ""
}

// The ICMP errors of both families: RFC 792 and RFC 4443.

// tooBig says that a packet is too long for a link of this MTU.
func tooBig(from, to netip.Addr, mtu uint32, quoted []byte) []byte {
	if to.Is6() {
		return header{}.icmp(from, to, 2, 0, mtu, quoted)
	}
	return header{}.icmp(from, to, 3, 4, mtu, quoted)
}

// portUnreachable says that nobody listens.
func portUnreachable(from, to netip.Addr, quoted []byte) []byte {
	if to.Is6() {
		return header{}.icmp(from, to, 1, 4, 0, quoted)
	}
	return header{}.icmp(from, to, 3, 3, 0, quoted)
}

// redirect says that there is a better way, by another neighbour.
func redirect(from, to, better netip.Addr, about netip.Addr, quoted []byte) []byte {
	if !to.Is6() {
		return header{}.icmp(from, to, 5, 1, wire.Uint32(better.AsSlice()), quoted)
	}
	body := append(append(better.AsSlice(), about.AsSlice()...), 4, byte((8+len(quoted)+7)/8), 0, 0, 0, 0, 0, 0)
	body = append(body, quoted...)
	for len(body)%8 != 0 {
		body = append(body, 0)
	}
	return discovery.icmp(from, to, 137, 0, 0, body)
}

// known has one pod ping another, so that the nodes know the flow, and returns
// the packet, which whoever guesses it can quote.
func (t *trial) known(from, to *machine) []byte {
	t.Helper()
	packet := ping(t.addr(from), t.addr(to), "a known flow")
	t.arrives(to.arriving, "a ping of "+from.name+"'s", func(word string) {
		t.send(t.owner(from), from, packet)
		t.send(t.owner(from), from, ping(t.addr(from), t.addr(to), word))
	})
	return packet
}

// pathMTU is what a pod believes of the way to an address, "" if it was told
// nothing.
func (t *trial) pathMTU(m *machine, to netip.Addr) string {
	_, after, ok := strings.Cut(t.run(t.owner(m), "ip", "route", "get", to.String()), " mtu ")
	if !ok {
		return ""
	}
	mtu, _, _ := strings.Cut(after, " ")
	return mtu
}

// toPod has a node send a frame to one of its pods, as if it had passed all
// rules.
func (t *trial) toPod(m *machine, packet []byte) {
	t.Helper()
	t.must(t.owner(t.nodes[m.node]), order{Do: "frames", Device: t.device(m), Frames: [][]byte{frame(m.gateway, m.mac, packet)}})
}

// misled sends errors about a flow of the pod near to far, and says that the
// attack succeeded if near believes them. An error from its own gateway, about
// another flow, it does believe.
func (t *trial) misled(mtu uint32, send func(quoted []byte)) {
	t.Helper()
	near, far, third := t.pods["near"], t.pods["far"], t.pods["third"]
	t.run(t.owner(near), "ip", "route", "flush", "cache")
	if t.v6 {
		t.run(t.owner(near), "ip", "-6", "route", "flush", "cache")
	}
	send(t.known(near, far))
	quoted := t.known(near, third)
	eventually(t, func() error {
		t.toPod(near, tooBig(t.gatewayAddress(), t.addr(near), mtu, quoted))
		if got := t.pathMTU(near, t.addr(third)); got != fmt.Sprint(mtu) {
			return fmt.Errorf("control: near does not believe its own gateway's error: the MTU to third is %q", got)
		}
		return nil
	})
	t.controls++
	if got := t.pathMTU(near, t.addr(far)); got != "" {
		t.breach("near believes that the path to far has an MTU of %s", got)
	}
}

// smallMTU is the least that hosts believe.
func (t *trial) smallMTU() uint32 {
	if t.v6 {
		return 1280
	}
	return 600
}

// icmpAttacks are those by errors about others' flows.
var icmpAttacks = []attack{
	{
		name: "path_mtu_by_a_pod_of_the_node", by: podWithRaw, ip: both,
		must: "set the path MTU of a flow that is not its own",
		try: func(t *trial) {
			mallory := t.pods["mallory"]
			t.misled(t.smallMTU(), func(quoted []byte) {
				for _, from := range []netip.Addr{t.addr(mallory), t.gatewayAddress(), t.addr(t.pods["far"]), t.addr(t.nodes["node2"])} {
					t.send(t.hand(mallory), mallory, tooBig(from, t.addr(t.pods["near"]), t.smallMTU(), quoted))
				}
				t.arrives(t.pods["near"].arriving, "a packet of mallory's", func(word string) {
					t.send(t.hand(mallory), mallory, datagram(t.at(mallory, 4711), t.at(t.pods["near"], port), word))
				})
			})
		},
	},
	{
		name: "path_mtu_by_a_pod_of_another_node", by: podWithRaw, ip: both,
		must: "set the path MTU of a flow that is not its own",
		try: func(t *trial) {
			third := t.pods["third"]
			t.misled(t.smallMTU(), func(quoted []byte) {
				t.send(t.hand(third), third, tooBig(t.addr(third), t.addr(t.pods["near"]), t.smallMTU(), quoted))
				t.arrives(t.pods["near"].arriving, "a packet of third's", func(word string) {
					t.send(t.hand(third), third, datagram(t.at(third, 4711), t.at(t.pods["near"], port), word))
				})
			})
		},
	},
	{
		name: "path_mtu_from_the_underlay", by: onUnderlay, ip: both,
		must: "set the path MTU of a flow between pods",
		try: func(t *trial) {
			t.misled(t.smallMTU(), func(quoted []byte) {
				sources := []netip.Addr{t.addr(t.stranger), t.pick("172.30.0.1", "fd30::1"), t.gatewayAddress()}
				if t.cluster.tunnels() {
					// Without, far's own errors come just like this.
					sources = append(sources, t.addr(t.pods["far"]))
				}
				for _, from := range sources {
					t.fromStranger("node1", tooBig(from, t.addr(t.pods["near"]), t.smallMTU(), quoted))
				}
				t.arrives(t.nodes["node1"].arriving, "a packet of the stranger's", func(word string) {
					t.fromStranger("node1", datagram(t.at(t.stranger, 4711), t.at(t.pods["near"], port), word))
				})
			})
		},
	},
	{
		name: "path_mtu_through_the_tunnel", by: onUnderlay, ip: both, left: noTunnel,
		must: "set the path MTU of a flow by an error in a tunnel packet, from a hop that the flow does not pass",
		try: func(t *trial) {
			t.misled(t.smallMTU(), func(quoted []byte) {
				there := t.tunnel("node1")
				inner := func(peer string, packet []byte) {
					t.fromPeer(peer, "node1", encapsulate(t.vni(), frame(t.tunnel(peer).MAC, there.MAC, packet)))
				}
				for peer, from := range map[string][]netip.Addr{
					"node2": {t.addr(t.pods["third"]), t.addr(t.stranger), t.gatewayAddress()},
					"node3": {t.addr(t.pods["third"]), t.addr(t.stranger), t.gatewayAddress(), t.addr(t.pods["far"])},
				} {
					for _, source := range from {
						inner(peer, tooBig(source, t.addr(t.pods["near"]), t.smallMTU(), quoted))
					}
				}
				t.arrives(t.pods["near"].arriving, "a packet through the tunnel", func(word string) {
					inner("node3", udpPacket(t.addr(t.pods["third"]), t.at(t.pods["near"], port), word))
				})
			})
		},
	},
	{
		name: "redirect_by_a_pod", by: podWithRaw, ip: both,
		must: "have a redirect about a known flow reach another pod",
		try: func(t *trial) {
			mallory, near, far := t.pods["mallory"], t.pods["near"], t.pods["far"]
			quoted := t.known(near, far)
			w := t.watch(near.arriving)
			for _, from := range []netip.Addr{t.addr(mallory), t.gatewayAddress(), t.addr(far), t.pick("169.254.1.1", "fe80::1")} {
				w.forbid("from "+from.String(), func(word string) {
					t.send(t.hand(mallory), mallory, redirect(from, t.addr(near), t.addr(mallory), t.addr(far), append(quoted[:len(quoted):len(quoted)], word...)))
				})
			}
			w.control("a datagram", func(word string) {
				t.send(t.hand(mallory), mallory, datagram(t.at(mallory, 4711), t.at(near, port), word))
			})
		},
	},
	{
		name: "icmp_error_past_a_policy", by: podWithRaw, ip: both, left: noPolicies,
		must: "pass a policy with an ICMP error that quotes a known flow",
		try: func(t *trial) {
			mallory, shut, far := t.pods["mallory"], t.pods["shut"], t.pods["far"]
			quoted := t.known(shut, far)
			w := t.watch(shut.arriving)
			for what, packet := range map[string]func(quoted []byte) []byte{
				"a port that is unreachable": func(q []byte) []byte { return portUnreachable(t.addr(mallory), t.addr(shut), q) },
				"a packet that is too big":   func(q []byte) []byte { return tooBig(t.addr(mallory), t.addr(shut), t.smallMTU(), q) },
				"a redirect": func(q []byte) []byte {
					return redirect(t.addr(mallory), t.addr(shut), t.addr(mallory), t.addr(far), q)
				},
			} {
				w.forbid(what, func(word string) {
					t.send(t.hand(mallory), mallory, packet(append(quoted[:len(quoted):len(quoted)], word...)))
				})
			}
			// An error of the one that the flow is with does come back.
			w.control("the error of far about a port of its own", func(word string) {
				t.must(t.owner(shut), order{Do: "udp", To: t.at(far, 9), Data: []byte(word)})
			})
		},
	},
}
