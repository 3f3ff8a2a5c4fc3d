package linux

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// The sets by which sources are judged. Each is one for each family, and the first
// four for each tunnel; see setOf.
const (
	peersPrefix   = "peers"   // VTEPs
	subnetsPrefix = "subnets" // VTEP, first address of a subnet like the node's own
	hostsPrefix   = "hosts"   // VTEP, single address behind it
	membersPrefix = "members" // VTEP, ranges of other addresses behind it
	plainPrefix   = "plain"   // ranges of addresses -> how they may come without a tunnel
	quotedPrefix  = "quoted"  // ranges of addresses -> who may tell of packets to them
	routedPrefix  = "routed"  // ranges of addresses that routes cover
	toPeersPrefix = "to-peer" // ranges of addresses that routes to peers cover
	ruledPrefix   = "ruled"   // ranges of addresses of which the endpoints' routing rules are
	sharedPrefix  = "shared"  // ranges of addresses to which everybody's routes lead
	answersPrefix = "answers" // addresses at which the node itself answers
)

// Offsets in a tunnel packet, in bytes from the UDP header: 8 bytes of UDP, 8
// of VXLAN (RFC 7348, section 5), 14 of Ethernet, and the inner packet.
const (
	offsetVNI       = 12
	offsetEtherType = 28
	offsetInner     = 30
	header4         = 20 // without options
	header6         = 40
	headerICMP      = 8
)

// guard lets nothing into the tunnel and out of it but what is for it. A tunnel
// packet that comes must be for the VTEP, and have been so when it came from
// outside of the node (it is untracked then, see arrivals), not out of the tunnel,
// from a peer, and what is in it from an address that this peer answers for. Nothing
// that an endpoint sends gets to the tunnel's port anywhere, and nothing that
// anybody sends through the node gets to a peer's: behind the node's address it
// would look like the node's own. Other networks that use the same UDP port are
// left alone.
func (r *ruleset) guard(p *plan.Plan, s *sources) {
	tunnels := rtnl.Overlays(r.stamps, p)
	if p.Endpoints.Len() == 0 && len(tunnels) == 0 {
		return
	}
	c := r.Chain("inward")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookInput, Priority: *nftables.ChainPriorityRaw}
	c.Add("what endpoints send to the node", r.isFromEndpoint(), nft.Decide(nft.GoTo("endpoint-inward")))
	r.endpointInward(p)
	r.departures(tunnels)
	for _, t := range tunnels {
		c.Add("the tunnel's packets", packetsOf(t), nft.IsFamily(t.VTEP.Is4()), nft.IsAddress(t.VTEP, false), nft.Untracked(), nft.Decide(nft.GoTo("tunnel-"+t.Name)))
	}
	for _, t := range tunnels {
		c.Add("not where tunnel packets come from, or go to", packetsOf(t), r.drop(datapath.UnknownPeer))
	}
	for _, t := range tunnels {
		r.pathToPeers(c, t)
	}
	r.begins(c)
	for _, t := range tunnels {
		r.tunnelPort(t)
		r.tunnel(t, r.peers(p, t.Tunnel, s))
	}
}

// packetsOf matches those of a tunnel, whoever sent them.
func packetsOf(t rtnl.Overlay) []expr.Any {
	// The kernel reads four bytes with less work than three. The last is reserved.
	return slices.Concat(nft.IsProtocol(unix.IPPROTO_UDP), nft.IsPort(t.Port), nft.FromTransport(offsetVNI, 4), []expr.Any{isVNIOf(t)})
}

// isVNIOf matches where what was loaded, with the reserved byte behind it, is an
// identifier of a tunnel.
func isVNIOf(t rtnl.Overlay) expr.Any {
	return &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: onWire(t.VNI), ToData: binary.BigEndian.AppendUint32(nil, t.LastVNI<<8|0xff)}
}

// tunnel judges what a tunnel's device is about to get.
func (r *ruleset) tunnel(t rtnl.Overlay, peers *peers) {
	c := r.Chain("tunnel-" + t.Name)
	// What came out of it is tracked, unless somebody's rules say otherwise.
	c.Add("out of the tunnel into it", fromOwnDevice(), r.drop(datapath.UnknownPeer))
	carried := slices.DeleteFunc(slices.Clone(interval.Families), func(is4 bool) bool { return !t.Carries(interval.Everything(is4).Addr()) })
	for _, inner4 := range carried {
		peers.behind(c, "from an address behind the peer", slices.Concat(isInner(inner4), innerProtocolNot(inner4)), inner4, innerSource(inner4), nft.Accept)
	}
	for _, inner4 := range carried {
		peers.behind(c, "ICMP from an address behind the peer", isInner(inner4), inner4, innerSource(inner4), nft.GoTo("tunnel-"+t.Name+"-icmp"+suffix(inner4)))
	}
	c.Add("from an unknown peer", nft.Address(t.VTEP.Is4(), true), nft.NotInSet(peers.set(peersPrefix, t.VTEP.Is4())), r.drop(datapath.UnknownPeer))
	c.Add("from an address that is not behind the peer", r.drop(datapath.NotThePeers))
	for _, inner4 := range carried {
		if inner4 {
			r.tunnelICMP4(t, peers)
		} else {
			r.tunnelICMP6(t, peers)
		}
	}
}

// pathToPeers adds, to a chain for what is for the node, that nobody lowers the path MTU to a
// tunnel's peers who has met nothing that the node sent there. Of an error about UDP, or about the
// reply to a ping, the kernel asks nothing that its sender could not guess, and goes by it in all that
// it sends to the same address, tunnel packets among it. So an error must be about a connection that
// the node tracks. Tunnel packets are of none, and nothing in them is hard to guess: errors about them
// are not believed at all. Over IPv4 no router has a reason for one, as they may be taken apart on
// their way (their DF bit is not set). Over IPv6 the MTU of endpoints must be what fits.
func (r *ruleset) pathToPeers(c *nft.Chain, t rtnl.Overlay) {
	is4 := t.VTEP.Is4()
	c.Add("too long for the way to a peer, and of no connection", nft.IsFamily(is4), nft.IsProtocol(icmpOf(is4)), saysTooLong(is4),
		quotedDestination(is4, 1), nft.InSet(setOf(peersPrefix, t.Name, is4)), nft.NotInState(expr.CtStateBitRELATED), r.drop(datapath.ICMPError))
}

func innerSource(inner4 bool) uint32 {
	if inner4 {
		return offsetInner + 12
	}
	return offsetInner + 8
}

// isInner matches tunnel packets that carry one family, and no VLAN tag.
func isInner(is4 bool) []expr.Any {
	etherType := []byte{0x86, 0xdd}
	if is4 {
		etherType = []byte{0x08, 0x00}
	}
	return append(nft.FromTransport(offsetEtherType, 2), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: etherType})
}

// innerProtocolNot matches inner packets whose header is not followed by ICMP,
// nor, over IPv6, by what may be a part of ICMP.
func innerProtocolNot(is4 bool) []expr.Any {
	if is4 {
		return append(nft.FromTransport(offsetInner+9, 1), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMP}})
	}
	return append(nft.FromTransport(offsetInner+6, 1), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_FRAGMENT}})
}

// tunnelICMP4 judges ICMP that comes through the tunnel: an error must be about
// a packet to an address behind the peer that sent it. Where options precede
// the error it is judged when it is out of the tunnel; see fromTunnel.
func (r *ruleset) tunnelICMP4(t rtnl.Overlay, p *peers) {
	c := r.Chain("tunnel-" + t.Name + "-icmp" + suffix(true))
	c.Add("with options", nft.FromTransport(offsetInner, 1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0x45}}}, nft.Decide(nft.Accept))
	c.Add("later parts of what is not whole", nft.FromTransport(offsetInner+6, 2), nft.Masked([]byte{0x1f, 0xff}), nft.Decide(nft.Accept))
	const icmp = offsetInner + header4
	c.Add("redirects", nft.FromTransport(icmp, 1), nft.Equals(redirectOf(true)), r.drop(datapath.Redirect))
	c.Add("what is no error", nft.FromTransport(icmp, 1), nft.NotInSet(r.icmpErrors()), nft.Decide(nft.Accept))
	p.behind(c, "about packets to behind the peer", nil, true, icmp+headerICMP+16, nft.Accept)
	c.Add("about packets to elsewhere", r.drop(datapath.ICMPError))
}

// tunnelICMP6 does so for ICMPv6. Where extension headers precede the error
// it is judged when it is out of the tunnel, but for that of fragments, which
// may be gone by then.
func (r *ruleset) tunnelICMP6(t rtnl.Overlay, p *peers) {
	c := r.Chain("tunnel-" + t.Name + "-icmp" + suffix(false))
	const next = offsetInner + header6
	c.Add("parts of what is not whole", nft.FromTransport(offsetInner+6, 1), nft.Equals(unix.IPPROTO_FRAGMENT), nft.Decide(nft.GoTo("tunnel-fragment")))
	c.Add("redirects", nft.FromTransport(next, 1), nft.Equals(redirectOf(false)), r.drop(datapath.Redirect))
	c.Add("what is no error", nft.FromTransport(next, 1), nft.AtLeast(128), nft.Decide(nft.Accept))
	p.behind(c, "about packets to behind the peer", nil, false, next+headerICMP+24, nft.Accept)
	c.Add("about packets to elsewhere", r.drop(datapath.ICMPError))

	if _, ok := r.Chains["tunnel-fragment"]; ok {
		return // another tunnel's, too
	}
	f := r.Chain("tunnel-fragment") // RFC 8200, section 4.5
	f.Add("not of ICMP", nft.FromTransport(next, 1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}}}, nft.Decide(nft.Accept))
	f.Add("later parts", nft.FromTransport(next+2, 2), nft.Masked([]byte{0xff, 0xf8}), nft.Decide(nft.Accept))
	f.Add("redirects", nft.FromTransport(next+8, 1), nft.Equals(redirectOf(false)), r.drop(datapath.Redirect))
	f.Add("what is no error", nft.FromTransport(next+8, 1), nft.AtLeast(128), nft.Decide(nft.Accept))
	f.Add("an error in parts", r.drop(datapath.ICMPError))
}

// endpointInward judges what endpoints send to the node itself, with the
// destination that it has after translation.
func (r *ruleset) endpointInward(p *plan.Plan) {
	c := r.Chain("endpoint-inward")
	c.Add("loopback addresses", nft.IsFamily(true), nft.Address(true, false), nft.IsLoopback4(), nft.Decide(nft.GoTo("endpoint-loopback")))
	c.Add("the loopback address", nft.IsFamily(false), nft.Address(false, false), []expr.Any{
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append(make([]byte, 15), 1)}}, nft.Decide(nft.GoTo("endpoint-loopback")))
	r.toTunnelPorts(c, p)
	r.begins(c)
	// A port of the node's loopback address may lead to an endpoint, which then
	// answers there.
	l := r.Chain("endpoint-loopback")
	l.Add("replies", []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}}, // IP_CT_DIR_REPLY
	}, nft.Decide(nft.Accept))
	l.Add("the node's own affairs", r.drop(datapath.Loopback))
}

// toTunnelPorts adds, to a chain for what does not come from the node itself, the
// ways to the chains that judge what is for tunnels' ports.
func (r *ruleset) toTunnelPorts(c *nft.Chain, p *plan.Plan) {
	for _, t := range rtnl.Overlays(r.stamps, p) {
		c.Add("UDP to the tunnel's port", nft.IsProtocol(unix.IPPROTO_UDP), nft.IsPort(t.Port), nft.Jump(tunnelPortChain+t.Name))
	}
}

// tunnelPortChain comes before a tunnel's name in that of the chain of tunnelPort.
const tunnelPortChain = "tunnel-port-"

// tunnelPort judges what does not come from the node itself, and is for a
// tunnel's port.
func (r *ruleset) tunnelPort(t rtnl.Overlay) {
	c := r.Chain(tunnelPortChain + t.Name)
	c.Add("from endpoints to the tunnel's port", r.isFromEndpoint(), r.drop(datapath.TunnelPort))
	c.Add("out of the tunnel to its port", fromOwnDevice(), r.drop(datapath.TunnelPort))
	is4 := t.VTEP.Is4()
	peers := setOf(peersPrefix, t.Name, is4)
	c.Add("from a peer, of which the node is a router", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(peers), nft.Decide(nft.Accept))
	c.Add("through the node to a peer", nft.IsFamily(is4), nft.Address(is4, false), nft.InSet(peers), r.drop(datapath.TunnelPort))
}

// departures keeps tunnel packets from connection tracking, and so from all
// translation, and writes tags into them. Routes to a peer that leaves go after the peer,
// and what they lead there meanwhile is dropped where tags are sent, as it would leave
// with the tag of nobody. And it counts what the node tells endpoints that it has no way to:
// no route to the network or the host, and nobody there (RFC 792; RFC 4443,
// section 3.1).
func (r *ruleset) departures(tunnels []rtnl.Overlay) {
	c := r.Chain("departures")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookOutput, Priority: *nftables.ChainPriorityRaw}
	for _, t := range tunnels {
		if sendsTags(t) {
			writesVNI(c, t)
		}
	}
	for _, t := range tunnels {
		is4 := t.VTEP.Is4()
		c.Add("tunnel packets are nobody's to translate", nft.IsFamily(is4), nft.IsProtocol(unix.IPPROTO_UDP), nft.IsPort(t.Port),
			nft.Address(is4, false), nft.InSet(setOf(peersPrefix, t.Name, is4)), []expr.Any{&expr.Notrack{}}, nft.Decide(nft.Accept))
	}
	for _, t := range tunnels {
		if sendsTags(t) {
			c.Add("to who is no peer any more", packetsOf(t), nft.IsFamily(t.VTEP.Is4()), nft.IsAddress(t.VTEP, true), nft.Count(), nft.Decide(nft.Verdict{Kind: expr.VerdictDrop}))
		}
	}
	for _, of := range []struct {
		is4        bool
		kind, code byte
	}{{true, 3, 0}, {true, 3, 1}, {false, 1, 0}, {false, 1, 3}} {
		c.Add("the endpoint is told that there is no way", nft.IsFamily(of.is4), nft.IsProtocol(icmpOf(of.is4)),
			r.isToEndpoint(), nft.FromTransport(0, 2),
			[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{of.kind, of.code}}}, r.count(datapath.NoRoute, expr.MetaKeyOIFNAME, nft.Accept))
	}
}
