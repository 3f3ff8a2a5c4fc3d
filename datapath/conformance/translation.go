package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// translate is what others do on nodes for Services and ports of hosts: UDP to
// a port, from others or from the node itself, goes elsewhere, and what comes
// from loopback addresses gets one of the node's own.
func (n *node) translate(from uint16, to netip.AddrPort) error {
	return n.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		family := nftables.TableFamilyIPv4
		if to.Addr().Is6() {
			family = nftables.TableFamilyIPv6
		}
		t := conn.AddTable(&nftables.Table{Name: fmt.Sprintf("somebody-%d", from), Family: family})
		for _, hook := range []*nftables.ChainHook{nftables.ChainHookPrerouting, nftables.ChainHookOutput} {
			c := conn.AddChain(&nftables.Chain{Table: t, Name: fmt.Sprintf("hook-%d", *hook), Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
			conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, from)},
				&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
				&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2},
			}})
		}
		if to.Addr().Is4() {
			c := conn.AddChain(&nftables.Chain{Table: t, Name: "source", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
			conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127}},
				&expr.Masq{},
			}})
		}
		return conn.Flush()
	})
}

// intoTunnel checks that no pod gets a datagram to the tunnel's port of any
// address: behind its node's address it would be a peer.
func (s *suite) intoTunnel(t *testing.T, ipv4 bool) {
	b := s.newSourceBench(t, true, ipv4)
	mine, theirs := b.node1.plan.Local.Tunnels[0], b.node2.plan.Local.Tunnels[0]
	const nodePort = 30000
	var trials []trial
	for i := range b.mate.addresses {
		from, to := b.mate.addresses[i], b.peer.addresses[i]
		second := unlisted[0]
		if from.Is6() {
			second = unlisted[1]
		}
		must(t, b.node2.Do(func() error { return addAddress("eth0", second) }))
		must(t, b.node1.translate(nodePort+uint16(i), netip.AddrPortFrom(second.Addr(), mine.Port)))
		add := func(what string, reason datapath.Reason, destination netip.AddrPort, packet func(word string) string) {
			trials = append(trials, trial{fmt.Sprintf("to %s, %s", what, destination), reason, b.node1, func(word string) error {
				return b.fromPod(b.node1, b.mate, udp(netip.AddrPortFrom(from, 4711), destination, packet(word)))
			}})
		}
		inTunnel := func(word string) string {
			return string(vxlan(vniOf(b.node2.plan), frame(mine.MAC, theirs.MAC, udp(at(b.victim.addresses[i]), at(to), word))))
		}
		plainly := func(word string) string { return word }
		tunnelPort := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, mine.Port) }
		add("the other node", datapath.TunnelPort, tunnelPort(of(from, b.node2.plan.Local.Addresses...)), inTunnel)
		add("an address of the other node that it does not list", datapath.TunnelPort, tunnelPort(second.Addr()), inTunnel)
		add("its own node", datapath.TunnelPort, tunnelPort(of(from, b.node1.plan.Local.Addresses...)), inTunnel)
		add("the outside", datapath.TunnelPort, tunnelPort(of(from, plantest.Outside...)), inTunnel)
		add("a pod", datapath.TunnelPort, tunnelPort(to), plainly)
		add("a port that leads there", datapath.TunnelPort, netip.AddrPortFrom(of(from, b.node1.plan.Local.Addresses...), nodePort+uint16(i)), inTunnel)
		add("the other node, at another port", "", at(of(from, b.node2.plan.Local.Addresses...)), plainly)
		if ipv4 { // behind the node's address, as there is masquerade
			add("an address that is not listed, at another port", "", at(second.Addr()), plainly)
		}
	}
	// Ports of nodes that lead to VTEPs, for who is behind another node's
	// address: a pod is, where its node masquerades, and its node itself.
	const here, onward = 30010, 30011
	vtep := theirs.VTEP
	must(t, b.node2.translate(here, netip.AddrPortFrom(vtep, mine.Port)))
	must(t, b.node3.translate(onward, netip.AddrPortFrom(vtep, mine.Port)))
	second := of(vtep, unlisted[0].Addr(), unlisted[1].Addr())
	for _, k := range []struct {
		what string
		at   *node
		from *host
		by   netip.Addr
		to   netip.AddrPort
		why  datapath.Reason
	}{
		{"a port of a node that leads to its VTEP", b.node2, b.node1.host, mine.VTEP, netip.AddrPortFrom(second, here), datapath.UnknownPeer},
		{"a port of a node that leads to another's VTEP", b.node3, b.out, of(vtep, routers[0].Addr(), routers[1].Addr()), netip.AddrPortFrom(b.node3.plan.Local.Tunnels[0].VTEP, onward), datapath.TunnelPort},
	} {
		trials = append(trials, trial{k.what, k.why, k.at, func(word string) error {
			c, err := k.from.dial("udp", k.by, k.to, patience)
			if err != nil {
				return err
			}
			defer c.Close()
			to := of(vtep, b.peer.addresses...)
			// Over IPv6 a node tells the sender of the shorter way before it drops the packet, which it quotes. So only
			// who gets the datagram is to find the word: in what is quoted, in steps of 8 bytes, blanks behind it are a part of it.
			_, err = c.Write(vxlan(vniOf(b.node2.plan), frame(mine.MAC, theirs.MAC, udp(at(of(to, b.victim.addresses...)), at(to), word+strings.Repeat(" ", 8)))))
			return err
		}})
	}
	b.run(t, trials)
}

// translatedTunnel checks that nobody's rules lead tunnel packets elsewhere.
func (s *suite) translatedTunnel(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	for _, n := range []*node{b.node1, b.node2} {
		for _, a := range n.pods[map[*node]string{b.node1: "weft0102", b.node2: "weft0202"}[n]].addresses {
			must(t, n.translate(n.plan.Local.Tunnels[0].Port, at(a)))
		}
	}
	var flows []plan.Flow
	for i, from := range b.victim.addresses {
		for _, pair := range [][2]netip.Addr{{from, b.peer.addresses[i]}, {b.peer.addresses[i], from}} {
			flows = append(flows, plan.Flow{Source: pair[0], Destination: pair[1], Protocol: plan.TCP, Port: sourcePort},
				plan.Flow{Source: pair[0], Destination: pair[1], Protocol: plan.UDP, Port: sourcePort})
		}
	}
	b.try(t, b.plans, flows)
}

// nestedTunnel checks that a peer brings nothing in with a tunnel packet in a
// tunnel packet, where somebody keeps all of them from connection tracking, too.
func (s *suite) nestedTunnel(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	mine, theirs := b.node1.plan.Local.Tunnels[0], b.node2.plan.Local.Tunnels[0]
	must(t, b.node1.untrack(mine.Port))
	var trials []trial
	for i, to := range b.victim.addresses {
		inner := func(word string) []byte {
			return frame(theirs.MAC, mine.MAC, udp(at(b.peer.addresses[i]), at(to), word))
		}
		trials = append(trials, trial{fmt.Sprintf("a tunnel packet in another, to %s", to), datapath.UnknownPeer, b.node1, func(word string) error {
			outer := udp(at(theirs.VTEP), netip.AddrPortFrom(mine.VTEP, mine.Port), string(vxlan(vniOf(b.node1.plan), inner(word))))
			return b.fromPeer(b.node2, mine.VTEP, frame(theirs.MAC, mine.MAC, outer))
		}}, trial{fmt.Sprintf("a tunnel packet, to %s", to), "", b.node1, func(word string) error {
			return b.fromPeer(b.node2, mine.VTEP, inner(word))
		}})
	}
	b.run(t, trials)
}

// untrack keeps what is for a UDP port from connection tracking, as some do for
// all tunnel packets.
func (n *node) untrack(port uint16) error {
	return n.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		t := conn.AddTable(&nftables.Table{Name: "somebody-untracks", Family: nftables.TableFamilyINet})
		c := conn.AddChain(&nftables.Chain{Table: t, Name: "arriving", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
			&expr.Notrack{},
		}})
		return conn.Flush()
	})
}

// masquerade is what others do on nodes for ports that lead to pods elsewhere:
// what was translated gets one of the node's own addresses, which the kernel
// chooses.
func (n *node) masquerade() error {
	return n.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		t := conn.AddTable(&nftables.Table{Name: "somebody-masquerades", Family: nftables.TableFamilyINet})
		c := conn.AddChain(&nftables.Chain{Table: t, Name: "source", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		const translated = 1 << 5 // IPS_DST_NAT
		conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, translated), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			&expr.Masq{},
		}})
		return conn.Flush()
	})
}

// addressesOnce checks that no address of the node is on two interfaces:
// programs that listen at each address of each interface would fail.
func (n *node) addressesOnce(t *testing.T) {
	must(t, n.Do(func() error {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		on := map[string]int{}
		for _, a := range all {
			if at, twice := on[a.IP.String()]; twice {
				t.Errorf("address %s is on interface %d and on %d", a.IP, at, a.LinkIndex)
			}
			if !a.IP.IsLinkLocalUnicast() {
				on[a.IP.String()] = a.LinkIndex
			}
		}
		return err
	}))
}

// masqueradedTunnel checks that a port of a node leads to a pod behind the tunnel,
// though the node has addresses besides those of its plan, which the other node does
// not know, and the kernel may choose any.
func (s *suite) masqueradedTunnel(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newSourceBench(t, true, ipv4)
		// On the first interface; and, over IPv6, more like the pod's address than
		// any other of the node.
		for _, p := range []string{"192.0.2.7/32", "fd00:3:0:1::7/128"} {
			must(t, b.node1.Do(func() error { return addAddress("lo", netip.MustParsePrefix(p)) }))
		}
		must(t, b.node1.masquerade())
		b.node1.addressesOnce(t)
		var ends []netip.Addr
		for _, pool := range b.node1.plan.Local.Pools {
			ends = append(ends, pool.TunnelAddress())
		}
		const nodePort = 30020
		for i, pod := range b.peer.addresses {
			port := nodePort + uint16(i)
			must(t, b.node1.translate(port, at(pod)))
			from, to := of(pod, plantest.Outside...), of(pod, b.node1.plan.Local.Addresses...)
			word, arrived := b.expect()
			c, err := b.out.dial("udp", from, netip.AddrPortFrom(to, port), patience)
			must(t, err)
			_, err = c.Write([]byte(word))
			must(t, errors.Join(err, c.SetReadDeadline(time.Now().Add(patience))))
			if _, err := c.Read(make([]byte, 100)); err != nil {
				t.Errorf("a port of node1 that leads to %s does not answer: %v", pod, err)
			}
			c.Close()
			select {
			case got := <-arrived:
				if !slices.Contains(ends, got.source) {
					t.Errorf("%s sees %s as the source; expected node1's own on the tunnel, of %s", pod, got.source, ends)
				}
			default:
			}
		}
	}
}

// loopback checks that a node's loopback addresses are out of reach for its
// pods, though a port of the node leads there, and that a port of a loopback
// address can lead to a pod.
func (s *suite) loopback(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	const inward, outward = 30001, 30002
	local := netip.MustParseAddr("127.0.0.1")
	must(t, b.node1.Do(func() error {
		// As the standard portmap does, and kube-proxy.
		for _, name := range []string{"all", "weft0101", "weft0102"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/route_localnet", []byte("1"), 0); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, b.node1.translate(inward, at(local)))
	must(t, b.node1.translate(outward, at(b.victim.addresses[0])))
	from, gateway := b.mate.addresses[0], b.node1.plan.Local.Pools[0].Gateway
	pod := func(what string, reason datapath.Reason, from, to netip.AddrPort) trial {
		return trial{what, reason, b.node1, func(word string) error { return b.fromPod(b.node1, b.mate, udp(from, to, word)) }}
	}
	b.run(t, []trial{
		pod("to a loopback address", datapath.Loopback, at(from), at(local)),
		pod("to another", datapath.Loopback, at(from), at(netip.MustParseAddr("127.9.9.9"))),
		pod("from a loopback address", datapath.Loopback, at(local), at(gateway)),
		pod("to a port that leads there", datapath.Loopback, at(from), netip.AddrPortFrom(gateway, inward)),
		pod("to the node", "", at(from), at(gateway)),
	})
	word, _ := b.expect()
	c, err := b.node1.dial("udp", netip.Addr{}, netip.AddrPortFrom(local, outward), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(word))
	must(t, errors.Join(err, c.SetReadDeadline(time.Now().Add(patience))))
	if _, err := c.Read(make([]byte, 100)); err != nil {
		t.Errorf("a port of the node's loopback address, which leads to a pod, does not answer: %v", err)
	}
}

// pathsToPeers checks that nobody lowers the path MTU to a peer who has met nothing that the
// node sent there: an error about a tunnel packet, or about what nobody sent, is dropped, and one about a
// connection is taken.
func (s *suite) pathsToPeers(t *testing.T, ipv4 bool) {
	b := s.newSourceBench(t, true, ipv4)
	mine := b.node1.plan.Local.Tunnels[0]
	peer := b.node2.plan.Local.Tunnels[0].VTEP
	i := map[bool]int{true: 0, false: 1}[ipv4]
	router := routers[i].Addr()
	sent, err := b.node1.dial("udp", mine.VTEP, at(peer), patience)
	must(t, err)
	defer sent.Close()
	_, err = sent.Write([]byte("what is tracked"))
	must(t, err)
	from := netip.MustParseAddrPort(sent.LocalAddr().String())

	var trials []trial
	add := func(what string, reason datapath.Reason, by netip.Addr, quoted func(word string) []byte) {
		trials = append(trials, trial{fmt.Sprintf("%s tells %s of %s", by, mine.VTEP, what), reason, b.node1, func(word string) error {
			return b.fromWire(t, b.node1, icmpError(by, mine.VTEP, tooBig(peer), quoted(word)))
		}})
	}
	inner := func(word string) string {
		return string(vxlan(1, frame(mine.MAC, b.node2.plan.Local.Tunnels[0].MAC, udp(at(of(peer, b.victim.addresses...)), at(of(peer, b.peer.addresses...)), word))))
	}
	for _, by := range []netip.Addr{router, of(peer, plantest.Outside...), unlisted[i].Addr(), peer} {
		add("a tunnel packet", datapath.ICMPError, by, func(word string) []byte {
			return udp(netip.AddrPortFrom(mine.VTEP, 43210), netip.AddrPortFrom(peer, mine.Port), inner(word))
		})
		add("a tunnel packet with options", datapath.ICMPError, by, func(word string) []byte {
			return withOptions(udp(netip.AddrPortFrom(mine.VTEP, 43210), netip.AddrPortFrom(peer, mine.Port), inner(word)))
		})
		add("a datagram from the tunnel's port", datapath.ICMPError, by, func(word string) []byte {
			return udp(netip.AddrPortFrom(mine.VTEP, mine.Port), at(peer), inner(word))
		})
		add("the reply to a ping that nobody sent", datapath.ICMPError, by, func(word string) []byte { return echoReply(mine.VTEP, peer, word) })
		add("a datagram from its gateway address", datapath.ICMPError, by, func(word string) []byte {
			return udp(at(of(peer, gatewaysOf(b.node1.plan)...)), at(peer), word)
		})
	}
	add("a connection", "", router, func(word string) []byte { return udp(from, at(peer), word) })
	add("a datagram to elsewhere", "", router, func(word string) []byte { return udp(at(mine.VTEP), at(outside[i].Addr()), word) })
	b.run(t, trials)
}

// gatewaysOf are the node's own addresses in its pools.
func gatewaysOf(p *plan.Plan) (all []netip.Addr) {
	for _, pool := range p.Local.Pools {
		all = append(all, pool.Gateway)
	}
	return all
}

// icmpErrors checks that nobody is told of a packet's fate but by who may have
// met it: its receiver, and the routers on its way.
func (s *suite) icmpErrors(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	mine := b.node1.plan.Local.Tunnels[0]
	var trials []trial
	for i, victim := range b.victim.addresses {
		mate, peer, other, third := b.mate.addresses[i], b.peer.addresses[i], b.other.addresses[i], b.third.addresses[i]
		node1, node2 := of(victim, b.node1.plan.Local.Addresses...), of(victim, b.node2.plan.Local.Addresses...)
		away, router := outside[i].Addr(), routers[i].Addr()
		as := func(b []byte) []byte { return b }
		add := func(where string, n *node, reason datapath.Reason, kind byte, from, to, quotedFrom, quotedTo netip.Addr, send func([]byte) error, change func([]byte) []byte) {
			what := fmt.Sprintf("%s: %s tells %s (type %d) of what %s sent to %s", where, from, to, kind, quotedFrom, quotedTo)
			trials = append(trials, trial{what, reason, n, func(word string) error {
				return send(change(icmpError(from, to, kind, udp(at(quotedFrom), at(quotedTo), word))))
			}})
		}
		long, better := tooBig(victim), redirect(victim)
		byMate := func(p []byte) error { return b.fromPod(b.node1, b.mate, p) }
		add("a pod", b.node1, datapath.ICMPError, long, mate, victim, victim, peer, byMate, as)
		add("a pod", b.node1, datapath.ICMPError, long, mate, victim, victim, away, byMate, as)
		add("a pod, with options", b.node1, datapath.ICMPError, long, mate, victim, victim, peer, byMate, withOptions)
		add("a pod", b.node1, datapath.ICMPError, long, mate, node1, node1, node2, byMate, as)
		add("a pod", b.node1, datapath.Redirect, better, mate, victim, victim, mate, byMate, as)
		add("the receiver", nil, "", long, mate, victim, victim, mate, byMate, as)
		add("the receiver", nil, "", long, mate, node1, node1, mate, byMate, as)
		add("a pod of another node", b.node2, datapath.ICMPError, long, other, victim, victim, peer, func(p []byte) error { return b.fromPod(b.node2, b.other, p) }, as)
		add("the receiver on another node", nil, "", long, peer, victim, victim, peer, func(p []byte) error { return b.fromPod(b.node2, b.peer, p) }, as)

		byPeer := func(n *node) func([]byte) error {
			return func(p []byte) error { return b.fromPeer(n, mine.VTEP, frame(n.plan.Local.Tunnels[0].MAC, mine.MAC, p)) }
		}
		add("another peer", b.node1, datapath.ICMPError, long, third, victim, victim, peer, byPeer(b.node3), as)
		add("another peer, with options", b.node1, datapath.ICMPError, long, third, victim, victim, peer, byPeer(b.node3), withOptions)
		add("another peer", b.node1, datapath.Redirect, better, third, victim, victim, third, byPeer(b.node3), as)
		add("another peer", b.node1, datapath.ICMPError, long, third, node1, node1, node2, byPeer(b.node3), as)
		add("the peer on the way", nil, "", long, node2, victim, victim, peer, byPeer(b.node2), as)
		add("the peer on the way", nil, "", long, node2, victim, victim, node2, byPeer(b.node2), as)

		wire := func(p []byte) error { return b.fromWire(t, b.node1, p) }
		add("the underlay", b.node1, datapath.ICMPError, long, router, victim, victim, peer, wire, as)
		add("the underlay", b.node1, datapath.ICMPError, long, router, victim, victim, mate, wire, as)
		add("the underlay", b.node1, datapath.ICMPError, long, router, victim, victim, node2, wire, as)
		add("the underlay, as another node", b.node1, datapath.ICMPError, long, node2, victim, victim, peer, wire, as)
		add("the underlay, with options", b.node1, datapath.ICMPError, long, router, victim, victim, peer, wire, withOptions)
		add("a router on the way out", nil, "", long, router, victim, victim, away, wire, as)
		add("a router on the way out", nil, "", long, router, node1, node1, away, wire, as)
		if victim.Is4() {
			add("the underlay", b.node1, datapath.Redirect, better, router, victim, victim, away, wire, as)
		}
	}
	b.run(t, trials)

	// Where a link behind the tunnel takes less, its node says so.
	must(t, b.node2.Do(func() error {
		l, err := netlink.LinkByName("weft0201")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, 1300)
	}))
	for i, from := range b.victim.addresses {
		err := b.sendLength(b.victim.host, b.peer.host, from, b.peer.addresses[i], 1301)
		for range 3 { // the first may get lost, and its sender be told after it was written
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			err = b.sendLength(b.victim.host, b.peer.host, from, b.peer.addresses[i], 1301)
		}
		if !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("%s sends more than the last link takes: %v; expected that it is told", from, err)
		}
	}
}
