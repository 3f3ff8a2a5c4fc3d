package linux

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// The sets by which sources are judged; each is one for each family.
const (
	peersPrefix   = "peers"   // VTEPs
	membersPrefix = "members" // VTEP, ranges of addresses behind it
	plainPrefix   = "plain"   // ranges of addresses -> how they may come without a tunnel
	quotedPrefix  = "quoted"  // ranges of addresses -> who may tell of packets to them
)

func membersSet(vtep4, is4 bool) set {
	return set{key: nftables.MustConcatSetType(addressType(vtep4), addressType(is4)), concat: true, interval: true}
}

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
// packet that comes must be for the VTEP, and have been so when it came (it is
// untracked then, see arrivals), from outside of the node and of the tunnel, from
// a peer, and what is in it from an address that this peer answers for. Nothing
// that an endpoint sends gets to the tunnel's port anywhere, and nothing that
// anybody sends through the node gets to a peer's: behind the node's address it
// would look like the node's own. Other networks that use the same UDP port are
// left alone.
func (r *ruleset) guard(p *plan.Plan, s *sources) {
	t := p.Local.Tunnel
	if p.Endpoints.Len() == 0 && t.IsZero() {
		return
	}
	c := r.chain("inward")
	c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookInput, *nftables.ChainPriorityRaw}
	c.add("what endpoints send to the node", metaEqual(expr.MetaKeyIIFGROUP, hostEndian(endpointGroup)), decide(goTo("endpoint-inward")))
	r.endpointInward(t)
	if t.IsZero() {
		r.unreachable()
		return
	}
	r.tunnelPort(t)
	r.departures(t)
	r.unreachable()
	r.membersOf(t, s)

	is4 := t.VTEP.Is4()
	c.add("what is no UDP", isNotProtocol(unix.IPPROTO_UDP), decide(accept))
	c.add("to another port", portInto(1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: port(t.Port)}}, decide(accept))
	if !is4 {
		c.add("later parts of what is not whole", isFamily(false), laterFragment(false), decide(accept))
	}
	vni := []byte{byte(t.VNI >> 16), byte(t.VNI >> 8), byte(t.VNI)}
	c.add("other networks", fromTransport(offsetVNI, 3), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: vni}}, decide(accept))
	c.add("the tunnel's packets", isFamily(is4), isAddress(t.VTEP, false), fromOwnDevice(false), untracked(), decide(goTo("tunnel")))
	c.add("not where tunnel packets come from, or go to", r.drop(datapath.UnknownPeer))

	tunnel := r.chain("tunnel")
	for _, inner4 := range families {
		tunnel.add("from an address behind the peer", isInner(inner4), innerProtocolNot(inner4), r.behindPeer(is4, inner4, innerSource(inner4)), decide(accept))
	}
	for _, inner4 := range families {
		tunnel.add("ICMP from an address behind the peer", isInner(inner4), r.behindPeer(is4, inner4, innerSource(inner4)), decide(goTo("tunnel-icmp"+suffix(inner4))))
	}
	tunnel.add("from an unknown peer", address(is4, true), notInSet(peersPrefix+suffix(is4)), r.drop(datapath.UnknownPeer))
	tunnel.add("from an address that is not behind the peer", r.drop(datapath.NotThePeers))
	r.tunnelICMP4(is4)
	r.tunnelICMP6(is4)
}

// behindPeer matches packets from a peer with an inner address that the peer
// answers for, of which offset says where it is.
func (r *ruleset) behindPeer(outer4, inner4 bool, offset uint32) []expr.Any {
	length, next := uint32(16), uint32(unix.NFT_REG32_04)
	if inner4 {
		length = 4
	}
	if outer4 {
		next = unix.NFT_REG32_01
	}
	return append(addressInto(outer4, true, unix.NFT_REG32_00),
		&expr.Payload{DestRegister: next, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: membersPrefix + suffix(inner4)})
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
	return append(fromTransport(offsetEtherType, 2), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: etherType})
}

// innerProtocolNot matches inner packets whose header is not followed by ICMP,
// nor, over IPv6, by what may be a part of ICMP.
func innerProtocolNot(is4 bool) []expr.Any {
	if is4 {
		return append(fromTransport(offsetInner+9, 1), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMP}})
	}
	return append(fromTransport(offsetInner+6, 1), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_FRAGMENT}})
}

// tunnelICMP4 judges ICMP that comes through the tunnel: an error must be about
// a packet to an address behind the peer that sent it. Where options precede
// the error it is judged when it is out of the tunnel; see fromTunnel.
func (r *ruleset) tunnelICMP4(outer4 bool) {
	c := r.chain("tunnel-icmp" + suffix(true))
	c.add("with options", fromTransport(offsetInner, 1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0x45}}}, decide(accept))
	c.add("later parts of what is not whole", fromTransport(offsetInner+6, 2), masked([]byte{0x1f, 0xff}), decide(accept))
	const icmp = offsetInner + header4
	c.add("redirects", fromTransport(icmp, 1), equals(redirectOf(true)), r.drop(datapath.Redirect))
	c.add("what is no error", fromTransport(icmp, 1), notInSet(r.icmpErrors()), decide(accept))
	c.add("about packets to behind the peer", r.behindPeer(outer4, true, icmp+headerICMP+16), decide(accept))
	c.add("about packets to elsewhere", r.drop(datapath.ICMPError))
}

// tunnelICMP6 does so for ICMPv6. Where extension headers precede the error
// it is judged when it is out of the tunnel, but for that of fragments, which
// may be gone by then.
func (r *ruleset) tunnelICMP6(outer4 bool) {
	c := r.chain("tunnel-icmp" + suffix(false))
	const next = offsetInner + header6
	c.add("parts of what is not whole", fromTransport(offsetInner+6, 1), equals(unix.IPPROTO_FRAGMENT), decide(goTo("tunnel-fragment")))
	c.add("redirects", fromTransport(next, 1), equals(redirectOf(false)), r.drop(datapath.Redirect))
	c.add("what is no error", fromTransport(next, 1), atLeast(128), decide(accept))
	c.add("about packets to behind the peer", r.behindPeer(outer4, false, next+headerICMP+24), decide(accept))
	c.add("about packets to elsewhere", r.drop(datapath.ICMPError))

	f := r.chain("tunnel-fragment") // RFC 8200, section 4.5
	f.add("not of ICMP", fromTransport(next, 1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}}}, decide(accept))
	f.add("later parts", fromTransport(next+2, 2), masked([]byte{0xff, 0xf8}), decide(accept))
	f.add("redirects", fromTransport(next+8, 1), equals(redirectOf(false)), r.drop(datapath.Redirect))
	f.add("what is no error", fromTransport(next+8, 1), atLeast(128), decide(accept))
	f.add("an error in parts", r.drop(datapath.ICMPError))
}

// endpointInward judges what endpoints send to the node itself, with the
// destination that it has after translation.
func (r *ruleset) endpointInward(t plan.Tunnel) {
	c := r.chain("endpoint-inward")
	c.add("loopback addresses", isFamily(true), address(true, false), isLoopback4(), decide(goTo("endpoint-loopback")))
	c.add("the loopback address", isFamily(false), address(false, false), []expr.Any{
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append(make([]byte, 15), 1)}}, decide(goTo("endpoint-loopback")))
	if !t.IsZero() {
		c.add("UDP", isProtocol(unix.IPPROTO_UDP), decide(goTo("tunnel-port")))
	}
	// A port of the node's loopback address may lead to an endpoint, which then
	// answers there.
	l := r.chain("endpoint-loopback")
	l.add("replies", []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{1}}, // IP_CT_DIR_REPLY
	}, decide(accept))
	l.add("the node's own affairs", r.drop(datapath.Loopback))
}

// tunnelPort judges UDP that does not come from the node itself.
func (r *ruleset) tunnelPort(t plan.Tunnel) {
	c := r.chain("tunnel-port")
	c.add("to another port", portInto(1), []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: port(t.Port)}}, decide(accept))
	for _, is4 := range families {
		c.add("later parts of what is not whole", isFamily(is4), laterFragment(is4), decide(accept))
	}
	c.add("from endpoints to the tunnel's port", metaEqual(expr.MetaKeyIIFGROUP, hostEndian(endpointGroup)), r.drop(datapath.TunnelPort))
	c.add("out of the tunnel to its port", fromOwnDevice(true), r.drop(datapath.TunnelPort))
	is4 := t.VTEP.Is4()
	c.add("from a peer, of which the node is a router", isFamily(is4), address(is4, true), inSet(peersPrefix+suffix(is4)), decide(accept))
	c.add("through the node to a peer", isFamily(is4), address(is4, false), inSet(peersPrefix+suffix(is4)), r.drop(datapath.TunnelPort))
}

// departures keeps tunnel packets from connection tracking, and so from all
// translation.
func (r *ruleset) departures(t plan.Tunnel) {
	is4 := t.VTEP.Is4()
	c := r.chain("departures")
	c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookOutput, *nftables.ChainPriorityRaw}
	c.add("tunnel packets are nobody's to translate", isFamily(is4), isProtocol(unix.IPPROTO_UDP), isPort(t.Port),
		address(is4, false), inSet(peersPrefix+suffix(is4)), []expr.Any{&expr.Notrack{}}, decide(accept))
}

// unreachable counts what the node tells endpoints that it has no way to: no
// route to the network or the host, and nobody there (RFC 792; RFC 4443, section
// 3.1).
func (r *ruleset) unreachable() {
	c := r.chain("departures")
	c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookOutput, *nftables.ChainPriorityRaw}
	for _, of := range []struct {
		is4        bool
		kind, code byte
	}{{true, 3, 0}, {true, 3, 1}, {false, 1, 0}, {false, 1, 3}} {
		c.add("the endpoint is told that there is no way", isFamily(of.is4), isProtocol(icmpOf(of.is4)),
			metaEqual(expr.MetaKeyOIFGROUP, hostEndian(endpointGroup)), fromTransport(0, 2),
			[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{of.kind, of.code}}}, r.count(datapath.NoRoute, expr.MetaKeyOIFNAME, accept))
	}
}
