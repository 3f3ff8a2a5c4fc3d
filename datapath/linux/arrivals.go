package linux

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// arrivals judges every packet that comes to the node by its source: what comes
// from endpoints, out of the tunnel, and from elsewhere. Each address may come
// only by the way on which it would be answered.
//
// Every packet on the node passes the chain, so what is usual comes first. An
// endpoint's packet costs one lookup in a hash; what comes out of the tunnel was
// judged before and costs none; tunnel packets themselves are spared connection
// tracking, and no rule of anybody's can translate them. All else costs one
// lookup among a few ranges.
func (r *ruleset) arrivals(p *plan.Plan, s *sources) {
	c := r.chain("arrivals")
	c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw}
	c.add("what endpoints send", r.isFromEndpoint(), decide(goTo("from-endpoint")))
	fromTunnel := metaEqual(expr.MetaKeyIIFNAME, []byte(r.stamps.TunnelPrefix))
	if len(p.Local.Tunnels) > 0 {
		c.add("out of the tunnel, and no ICMP", fromTunnel, noICMP(), decide(accept))
	}
	c.add("what comes from Weft's own devices", fromOwnDevice(), decide(goTo("from-device")))
	for _, t := range r.stamps.overlays(p) {
		is4 := t.VTEP.Is4()
		c.add("tunnel packets are nobody's to translate", isFamily(is4), isProtocol(unix.IPPROTO_UDP), isAddress(t.VTEP, false), isPort(t.Port),
			[]expr.Any{&expr.Notrack{}}, decide(accept))
	}
	r.plainSources(s)
	for _, is4 := range families {
		c.add("how addresses may come", isFamily(is4), address(is4, true), verdictOf(plainPrefix+suffix(is4)))
	}
	c.add("what is no ICMP", noICMP(), decide(accept))
	for _, is4 := range families {
		c.add("ICMP", isFamily(is4), isProtocol(icmpOf(is4)), decide(goTo("icmp-from-elsewhere"+suffix(is4))))
		errors := r.chain("icmp-from-elsewhere" + suffix(is4))
		errors.add("what is no error", r.noError(is4), decide(accept))
		errors.add("where packets go that the error is about", quotedDestination(is4, 1), verdictOf(quotedPrefix+suffix(is4)))
		errors.add("out of the cluster", quotedDestination(is4, 1), decide(accept))
		errors.add("later parts of what is not whole", isFamily(is4), laterFragment(is4), decide(accept))
		errors.add("an error that does not say what it is about", r.drop(datapath.ICMPError))
	}

	device := r.chain("from-device")
	if len(p.Local.Tunnels) > 0 {
		device.add("ICMP out of the tunnel", fromTunnel, decide(goTo("from-tunnel")))
		r.fromTunnel()
	}
	device.add("what the node sends to groups comes back to it", metaEqual(expr.MetaKeyIIFNAME, []byte(interfaceKey(r.stamps.Bridge))), decide(accept))
	device.add("an interface that leads to no endpoint", r.drop(datapath.NoEndpoint))
	r.fromEndpoint(p)
}

// fromEndpoint judges what endpoints send.
//
// Link-local sources are for neighbour and router discovery only, which has
// nothing to discover; the unspecified one is for duplicate address detection
// and for joining groups (RFC 4861, section 4; RFC 3810, section 5.2.13).
func (r *ruleset) fromEndpoint(p *plan.Plan) {
	c := r.chain("from-endpoint")
	own := map[bool]bool{} // by whether it is IPv4
	for k, e := range p.Endpoints.All() {
		if !e.AntiSpoof {
			continue
		}
		r.set("guarded", set{key: nftables.TypeIFName}).elements[element{key: interfaceKey(k.Interface)}] = value{}
		for _, a := range e.Addresses {
			key := nftables.MustConcatSetType(nftables.TypeIFName, addressType(a.Is4()))
			s := r.set("own"+suffix(a.Is4()), set{key: key, concat: true})
			s.elements[element{key: interfaceKey(k.Interface) + string(a.AsSlice())}] = value{}
			own[a.Is4()] = true
		}
	}
	isOwn := func(is4 bool) []expr.Any {
		return append(append(interfaceName(), addressInto(is4, true, 2)...), &expr.Lookup{SourceRegister: 1, SetName: "own" + suffix(is4)})
	}
	for _, is4 := range families {
		if own[is4] {
			c.add("an endpoint's own address", isFamily(is4), isNotProtocol(icmpOf(is4)), isOwn(is4), decide(accept))
		}
	}
	for _, is4 := range families {
		if own[is4] {
			c.add("ICMP from an endpoint's own address", isFamily(is4), isOwn(is4), decide(goTo("icmp-from-endpoint"+suffix(is4))))
			r.icmpFromEndpoint(is4)
		}
	}
	if _, ok := r.sets["guarded"]; ok {
		c.add("endpoints that must use their own addresses", interfaceName(),
			[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "guarded"}}, decide(goTo("foreign")))
		r.foreign()
	}
	c.add("a loopback address as the source", isFamily(true), address(true, true), isLoopback4(), r.drop(datapath.Loopback))
	for _, is4 := range families {
		c.add("redirects", isFamily(is4), isProtocol(icmpOf(is4)), icmpType(), equals(redirectOf(is4)), r.drop(datapath.Redirect))
	}
}

// foreign judges what comes from endpoints with another source than theirs.
func (r *ruleset) foreign() {
	c := r.chain("foreign")
	// Endpoints and the node know each other for good, and never ask. Who asked
	// from one address after the other would fill the node's table of neighbours.
	// What every kernel says of itself when its interface comes up.
	for _, said := range []struct {
		what string
		icmp []expr.Any
	}{
		{"multicast listeners (RFC 2710), neighbour and router discovery (RFC 4861)", []expr.Any{&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{130}, ToData: []byte{136}}}},
		{"multicast listeners (RFC 3810)", equals(143)},
	} {
		c.add(said.what+" are not needed", isFamily(false), address(false, true), []expr.Any{
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: append([]byte{0xff, 0xc0}, make([]byte, 14)...), Xor: make([]byte, 16)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte{0xfe, 0x80}, make([]byte, 14)...)},
		}, icmpv6Type(), said.icmp, r.drop(datapath.Discovery))
	}
	for _, kind := range []struct {
		icmp    byte
		comment string
	}{{135, "duplicate address detection"}, {143, "multicast listeners"}} {
		c.add(kind.comment, isFamily(false), address(false, true), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 16)},
		}, icmpv6Type(), equals(kind.icmp), decide(accept))
	}
	c.add("a loopback address", isFamily(true), address(true, true), isLoopback4(), r.drop(datapath.Loopback))
	c.add("somebody else's source", r.drop(datapath.SpoofedSource))
}

// icmpFromEndpoint judges ICMP that an endpoint sends from its own address. It
// is no router: it can tell what became of packets that were for itself, and of
// no others. An error that belongs to a connection of somebody else's would pass
// all policies, and could set what that one believes of the path.
func (r *ruleset) icmpFromEndpoint(is4 bool) {
	c := r.chain("icmp-from-endpoint" + suffix(is4))
	c.add("redirects", icmpType(), equals(redirectOf(is4)), r.drop(datapath.Redirect))
	c.add("what is no error", r.noError(is4), decide(accept))
	c.add("about packets to itself", interfaceName(), quotedDestination(is4, 2),
		[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "own" + suffix(is4)}}, decide(accept))
	c.add("later parts of what is not whole", laterFragment(is4), decide(accept))
	c.add("about packets to others", r.drop(datapath.ICMPError))
}

// fromTunnel judges ICMP that came out of the tunnel. Who it is from, and errors
// of the usual form, were judged before; see guard. There are no others.
func (r *ruleset) fromTunnel() {
	c := r.chain("from-tunnel")
	c.add("errors in packets with options", isFamily(true), isProtocol(unix.IPPROTO_ICMP), icmpType(), inSet(r.icmpErrors()), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0x45}},
	}, r.drop(datapath.ICMPError))
	for _, test := range [][]expr.Any{{&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{128}}}, equals(redirectOf(false))} {
		c.add("errors behind extension headers", isFamily(false), isProtocol(unix.IPPROTO_ICMPV6), icmpType(), test, []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		}, r.drop(datapath.ICMPError))
	}
}
