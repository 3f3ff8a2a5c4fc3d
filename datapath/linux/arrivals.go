package linux

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
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
	c := r.Chain("arrivals")
	c.Hook = &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookPrerouting, Priority: *nftables.ChainPriorityRaw}
	c.Add("what endpoints send", r.isFromEndpoint(), nft.Decide(nft.GoTo("from-endpoint")))
	fromTunnel := nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(r.stamps.TunnelPrefix))
	if len(p.Local.Tunnels) > 0 {
		c.Add("out of the tunnel, and no ICMP", fromTunnel, noICMP(), nft.Decide(nft.Accept))
	}
	c.Add("what comes from Weft's own devices", fromOwnDevice(), nft.Decide(nft.GoTo("from-device")))
	for _, t := range rtnl.Overlays(r.stamps, p) {
		is4 := t.VTEP.Is4()
		c.Add("tunnel packets are nobody's to translate", nft.IsFamily(is4), nft.IsProtocol(unix.IPPROTO_UDP), nft.IsAddress(t.VTEP, false), nft.IsPort(t.Port),
			[]expr.Any{&expr.Notrack{}}, nft.Decide(nft.Accept))
	}
	r.plainSources(s)
	for _, is4 := range interval.Families {
		c.Add("how addresses may come", nft.IsFamily(is4), nft.Address(is4, true), nft.VerdictOf(plainPrefix+suffix(is4)))
	}
	c.Add("what is no ICMP", noICMP(), nft.Decide(nft.Accept))
	for _, is4 := range interval.Families {
		c.Add("ICMP", nft.IsFamily(is4), nft.IsProtocol(icmpOf(is4)), nft.Decide(nft.GoTo("icmp-from-elsewhere"+suffix(is4))))
		errors := r.Chain("icmp-from-elsewhere" + suffix(is4))
		errors.Add("what is no error", r.noError(is4), nft.Decide(nft.Accept))
		errors.Add("where packets go that the error is about", quotedDestination(is4, 1), nft.VerdictOf(quotedPrefix+suffix(is4)))
		errors.Add("out of the cluster", quotedDestination(is4, 1), nft.Decide(nft.Accept))
		errors.Add("later parts of what is not whole", nft.IsFamily(is4), nft.LaterFragment(is4), nft.Decide(nft.Accept))
		errors.Add("an error that does not say what it is about", r.drop(datapath.ICMPError))
	}

	device := r.Chain("from-device")
	if len(p.Local.Tunnels) > 0 {
		device.Add("ICMP out of the tunnel", fromTunnel, nft.Decide(nft.GoTo("from-tunnel")))
		r.fromTunnel()
	}
	device.Add("what the node sends to groups comes back to it", nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey(r.stamps.Bridge))), nft.Decide(nft.Accept))
	device.Add("an interface that leads to no endpoint", r.drop(datapath.NoEndpoint))
	r.fromEndpoint(p, s)
}

// fromEndpoint judges what endpoints send.
//
// Link-local sources are for neighbour and router discovery only, which has
// nothing to discover; the unspecified one is for duplicate address detection
// and for joining groups (RFC 4861, section 4; RFC 3810, section 5.2.13).
func (r *ruleset) fromEndpoint(p *plan.Plan, sources *sources) {
	c := r.Chain("from-endpoint")
	own := map[bool]bool{} // by whether it is IPv4
	for k, e := range p.Endpoints.All() {
		if !e.AntiSpoof {
			continue
		}
		r.Set("guarded", nft.Set{Key: nftables.TypeIFName}).Elements[nft.Element{Key: nft.InterfaceKey(k.Interface)}] = nft.Value{}
		for _, a := range e.Addresses {
			key := nftables.MustConcatSetType(nftables.TypeIFName, nft.AddressType(a.Is4()))
			s := r.Set("own"+suffix(a.Is4()), nft.Set{Key: key, Concat: true})
			s.Elements[nft.Element{Key: nft.InterfaceKey(k.Interface) + string(a.AsSlice())}] = nft.Value{}
			own[a.Is4()] = true
		}
	}
	isOwn := func(is4 bool) []expr.Any {
		return append(append(nft.InterfaceName(), nft.AddressInto(is4, true, 2)...), &expr.Lookup{SourceRegister: 1, SetName: "own" + suffix(is4)})
	}
	for _, is4 := range interval.Families {
		if own[is4] {
			c.Add("an endpoint's own address", nft.IsFamily(is4), nft.IsNotProtocol(icmpOf(is4)), isOwn(is4), nft.Decide(nft.Accept))
		}
	}
	for _, is4 := range interval.Families {
		if own[is4] {
			c.Add("ICMP from an endpoint's own address", nft.IsFamily(is4), isOwn(is4), nft.Decide(nft.GoTo("icmp-from-endpoint"+suffix(is4))))
			r.icmpFromEndpoint(is4)
		}
	}
	if _, ok := r.Sets["guarded"]; ok {
		c.Add("endpoints that must use their own addresses", nft.InterfaceName(),
			[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "guarded"}}, nft.Decide(nft.GoTo("foreign")))
		r.foreign()
	}
	for _, is4 := range interval.Families {
		// The rule stays where the addresses go: what is under way meets no other then.
		from := r.Set(answersPrefix+suffix(is4), nft.Set{Key: nft.AddressType(is4)})
		for a := range sources.answers {
			if a.Is4() == is4 {
				from.Elements[nft.Element{Key: string(a.AsSlice())}] = nft.Value{}
			}
		}
		c.Add("an address at which the node answers", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(answersPrefix+suffix(is4)), r.drop(datapath.SpoofedSource))
	}
	c.Add("a loopback address as the source", nft.IsFamily(true), nft.Address(true, true), nft.IsLoopback4(), r.drop(datapath.Loopback))
	for _, is4 := range interval.Families {
		c.Add("redirects", nft.IsFamily(is4), nft.IsProtocol(icmpOf(is4)), icmpType(), nft.Equals(redirectOf(is4)), r.drop(datapath.Redirect))
	}
}

// foreign judges what comes from endpoints with another source than theirs.
func (r *ruleset) foreign() {
	c := r.Chain("foreign")
	// Endpoints and the node know each other for good, and never ask. Who asked
	// from one address after the other would fill the node's table of neighbours.
	// What every kernel says of itself when its interface comes up.
	for _, said := range []struct {
		what string
		icmp []expr.Any
	}{
		{"multicast listeners (RFC 2710), neighbour and router discovery (RFC 4861)", []expr.Any{&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{130}, ToData: []byte{136}}}},
		{"multicast listeners (RFC 3810)", nft.Equals(143)},
	} {
		c.Add(said.what+" are not needed", nft.IsFamily(false), nft.Address(false, true), []expr.Any{
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: append([]byte{0xff, 0xc0}, make([]byte, 14)...), Xor: make([]byte, 16)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte{0xfe, 0x80}, make([]byte, 14)...)},
		}, nft.ICMPv6Type(), said.icmp, r.drop(datapath.Discovery))
	}
	for _, kind := range []struct {
		icmp    byte
		comment string
	}{{135, "duplicate address detection"}, {143, "multicast listeners"}} {
		c.Add(kind.comment, nft.IsFamily(false), nft.Address(false, true), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 16)},
		}, nft.ICMPv6Type(), nft.Equals(kind.icmp), nft.Decide(nft.Accept))
	}
	c.Add("a loopback address", nft.IsFamily(true), nft.Address(true, true), nft.IsLoopback4(), r.drop(datapath.Loopback))
	c.Add("somebody else's source", r.drop(datapath.SpoofedSource))
}

// icmpFromEndpoint judges ICMP that an endpoint sends from its own address. It
// is no router: it can tell what became of packets that were for itself, and of
// no others. An error that belongs to a connection of somebody else's would pass
// all policies, and could set what that one believes of the path.
func (r *ruleset) icmpFromEndpoint(is4 bool) {
	c := r.Chain("icmp-from-endpoint" + suffix(is4))
	c.Add("redirects", icmpType(), nft.Equals(redirectOf(is4)), r.drop(datapath.Redirect))
	c.Add("what is no error", r.noError(is4), nft.Decide(nft.Accept))
	c.Add("about packets to itself", nft.InterfaceName(), quotedDestination(is4, 2),
		[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "own" + suffix(is4)}}, nft.Decide(nft.Accept))
	c.Add("later parts of what is not whole", nft.LaterFragment(is4), nft.Decide(nft.Accept))
	c.Add("about packets to others", r.drop(datapath.ICMPError))
}

// fromTunnel judges ICMP that came out of the tunnel. Who it is from, and errors
// of the usual form, were judged before; see guard. There are no others.
func (r *ruleset) fromTunnel() {
	c := r.Chain("from-tunnel")
	c.Add("errors in packets with options", nft.IsFamily(true), nft.IsProtocol(unix.IPPROTO_ICMP), icmpType(), nft.InSet(r.icmpErrors()), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0x45}},
	}, r.drop(datapath.ICMPError))
	for _, test := range [][]expr.Any{{&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{128}}}, nft.Equals(redirectOf(false))} {
		c.Add("errors behind extension headers", nft.IsFamily(false), nft.IsProtocol(unix.IPPROTO_ICMPV6), icmpType(), test, []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		}, r.drop(datapath.ICMPError))
	}
}
