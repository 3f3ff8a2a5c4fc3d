package linux

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// sources is where packets may come from: each address only by the way on
// which it would be answered (see plan.Plan.TakesFromPeer and TakesPlainly). Both are
// values of the plan's Routes and of the node's links, and do not depend on single
// endpoints.
type sources struct {
	// tunnels are who may send through each tunnel, by its name.
	tunnels map[string]tunnelSources
	// plain says of addresses how they may come without a tunnel. Others may
	// come from anywhere.
	plain []origin
	// routed are the addresses that routes cover, each with whether it leads to a
	// peer, by whether they are IPv4. A family of which all are covered is not in it.
	routed map[bool][]interval.Range[bool]
	// leads are all addresses that routes cover, each with whether it leads to a peer, by
	// whether they are IPv4.
	leads map[bool][]interval.Range[bool]
	// shared are the addresses, each with whether the route there is everybody's, and
	// not that of endpoints only, by whether they are IPv4.
	shared map[bool][]interval.Range[bool]
	// answers are the addresses at which the node itself answers, and from which nobody else
	// sends.
	answers map[netip.Addr]bool
}

// throughTunnel reports whether addresses of a family may come through a tunnel.
func (s *sources) throughTunnel(is4 bool) bool {
	for _, t := range s.tunnels {
		if slices.ContainsFunc(t.members, func(m member) bool { return m.first.Is4() == is4 }) {
			return true
		}
	}
	return false
}

// tunnelSources is who may send through a tunnel.
type tunnelSources struct {
	// peers are the VTEPs of the other nodes.
	peers map[netip.Addr]bool
	// members are the addresses behind each peer.
	members []member
}

// member is a range of addresses that a peer answers for.
type member struct {
	first, last netip.Addr
	vtep        netip.Addr
}

// origin is a range of addresses and how they may come without a tunnel.
type origin struct {
	first, last netip.Addr
	manner
}

// manner is how an address may come without a tunnel: not at all, or from some
// links.
type manner struct {
	links rtnl.LinkSet
	// endpointsOnly: the address itself may come, but endpoints get to it by the
	// tunnel.
	endpointsOnly bool
	// anywhere: as the node's own routing table says.
	anywhere bool
}

var mappedPrefix = netip.PrefixFrom(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff}), 96)

// matters reports whether a route says where packets may come from, beyond
// what the pools say already: those to single endpoints do not.
func matters(p *plan.Plan, k plan.RouteKey, r plan.Route) bool {
	inPool := func(pool plan.Pool) bool {
		return pool.Prefix.Bits() <= k.Prefix.Bits() && pool.Prefix.Contains(k.Prefix.Addr())
	}
	return r.Way != plan.ToEndpoint || !slices.ContainsFunc(p.Local.Pools, inPool)
}

// sources returns those of the compiler's plan.
func (c *compiler) sourcesOf() *sources {
	if c.sources == nil {
		c.sources = compileSources(c.plan, func(via netip.Addr) rtnl.LinkSet { return c.node.LinksTo(via, c.plan.Local.Addresses) })
	}
	return c.sources
}

func compileSources(p *plan.Plan, linksTo func(netip.Addr) rtnl.LinkSet) *sources {
	s := &sources{tunnels: make(map[string]tunnelSources, len(p.Local.Tunnels)), routed: map[bool][]interval.Range[bool]{}, leads: map[bool][]interval.Range[bool]{}, shared: map[bool][]interval.Range[bool]{}}
	behind, plain := behindPeers(p), map[netip.Prefix]manner{}
	s.answers = map[netip.Addr]bool{}
	for k := range answeredBy(p) {
		s.answers[k.Address] = true
	}
	routed, shared := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, pool := range p.Local.Pools {
		plain[pool.Prefix.Masked()] = manner{}
		routed[pool.Prefix.Masked()], shared[pool.Prefix.Masked()] = false, true
	}
	for k, r := range p.Routes.All() {
		if !matters(p, k, r) {
			continue
		}
		if shared[k.Prefix] = !r.EndpointsOnly; !r.EndpointsOnly {
			routed[k.Prefix] = len(r.Peers) > 0
		}
		switch {
		case k.Prefix.Bits() == 0:
			// Where all else goes, anything may come from.
		case r.EndpointsOnly:
			_, main, _ := p.Route(k.Network, k.Prefix.Addr(), false)
			m := mannerOf(p, k.Prefix, main, linksTo)
			m.endpointsOnly = r.Way == plan.ToTunnel
			plain[k.Prefix] = m
		default:
			plain[k.Prefix] = mannerOf(p, k.Prefix, r, linksTo)
		}
	}
	for _, a := range p.Local.Addresses {
		plain[interval.Single(a)] = manner{}
	}
	for a := range s.answers {
		behind[interval.Single(a)], plain[interval.Single(a)] = "", manner{}
	}
	for _, t := range p.Local.Tunnels {
		s.tunnels[t.Name] = sourcesIn(p, t, behind)
	}
	if len(plain) > 0 {
		// No packet is from an IPv4 address in IPv6's clothes (RFC 4291, section
		// 2.5.5.2), which some would take for the address itself.
		plain[mappedPrefix] = manner{}
	}
	for _, is4 := range interval.Families {
		for _, i := range interval.FlattenFamily(plain, is4) {
			if i.Value != (manner{anywhere: true}) {
				s.plain = append(s.plain, origin{i.First, i.Last, i.Value})
			}
		}
		s.leads[is4] = interval.FlattenFamily(routed, is4)
		if _, all := routed[interval.Everything(is4)]; !all {
			s.routed[is4] = s.leads[is4]
		}
		s.shared[is4] = interval.FlattenFamily(shared, is4)
	}
	return s
}

// behindPeers returns the peers behind which prefixes are; those of no peer are local,
// or not behind a tunnel.
func behindPeers(p *plan.Plan) map[netip.Prefix]string {
	behind := map[netip.Prefix]string{}
	for _, pool := range p.Local.Pools {
		behind[pool.Prefix.Masked()] = ""
	}
	for k, r := range p.Routes.All() {
		if matters(p, k, r) {
			behind[k.Prefix] = r.Peer()
		}
	}
	for _, a := range p.Local.Addresses {
		behind[interval.Single(a)] = ""
	}
	return behind
}

// sourcesIn returns who may send through a tunnel, where behind says which peers
// prefixes are behind.
func sourcesIn(p *plan.Plan, t plan.Tunnel, behind map[netip.Prefix]string) tunnelSources {
	s := tunnelSources{peers: make(map[netip.Addr]bool, p.Peers.Len())}
	vteps := make(map[string]netip.Addr, p.Peers.Len())
	for k, peer := range p.Peers.All() {
		if end, ok := peer.End(t.Name); ok {
			vteps[k.Name], s.peers[end.VTEP] = end.VTEP, true
		}
	}
	ends := make(map[netip.Prefix]netip.Addr, len(behind)+len(s.peers))
	for prefix, peer := range behind {
		ends[prefix] = vteps[peer]
	}
	for vtep := range s.peers {
		if !slices.Contains(p.Local.Addresses, vtep) {
			ends[interval.Single(vtep)] = vtep
		}
	}
	for _, is4 := range interval.Families {
		if !t.Carries(interval.Everything(is4).Addr()) {
			continue
		}
		for _, i := range interval.FlattenFamily(ends, is4) {
			if i.Value.IsValid() {
				s.members = append(s.members, member{i.First, i.Last, i.Value})
			}
		}
	}
	return s
}

// mannerOf says how the addresses of a route may come; those of no route from
// anywhere.
func mannerOf(p *plan.Plan, prefix netip.Prefix, r plan.Route, linksTo func(netip.Addr) rtnl.LinkSet) manner {
	switch r.Way {
	case plan.ToGateway, "":
		return manner{anywhere: true}
	case plan.ToNextHop, plan.ToTunnel:
		if peer := p.Peer(r.Peer()); r.Way == plan.ToNextHop || peer.MaySendPlainly(prefix.Addr()) {
			return manner{links: linksTo(peer.NextHop(prefix.Addr()))}
		}
	}
	return manner{}
}

// plainSources fills the maps of what may come without a tunnel, and about
// what ICMP errors may, and adds the chains that they lead to.
func (r *ruleset) plainSources(s *sources) {
	forged := r.Chain("forged")
	forged.Add("the node to itself", nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(nft.InterfaceKey("lo"))), nft.Decide(nft.Accept))
	for _, to := range []uint32{unix.RTN_MULTICAST, unix.RTN_BROADCAST} {
		forged.Add("what the node sends to groups comes back to it", nft.FibType(true, unix.RTN_LOCAL), nft.FibType(false, to), nft.Decide(nft.Accept))
	}
	forged.Add("not the way it would be answered", r.drop(datapath.ForgedSource))
	beyond := r.Chain("beyond")
	beyond.Add("what the node itself sends", nft.FibType(false, unix.RTN_LOCAL), nft.Decide(nft.Accept))
	beyond.Add("about what takes the tunnel", r.drop(datapath.ICMPError))
	r.Chain("lying").Add("who is not on the way", r.drop(datapath.ICMPError))
	for _, is4 := range interval.Families {
		like := nft.Set{Key: nft.AddressType(is4), Interval: true, Verdicts: true}
		plain, quoted := r.Set(plainPrefix+suffix(is4), like), r.Set(quotedPrefix+suffix(is4), like)
		var sources, destinations []interval.Range[nft.Value]
		for _, o := range s.plain {
			if o.first.Is4() != is4 {
				continue
			}
			from, about := nft.GoTo("forged"), nft.GoTo("lying")
			switch {
			case o.anywhere:
				from, about = nft.Verdict{}, nft.GoTo("beyond")
			case o.links != rtnl.LinkSet{}:
				from, about = nft.Verdict{Kind: expr.VerdictJump, Chain: r.onLinks("forged", o.links)}, nft.GoTo(r.onLinks("lying", o.links))
			}
			if from != (nft.Verdict{}) {
				sources = append(sources, interval.Range[nft.Value]{First: o.first, Last: o.last, Value: nft.Value{Verdict: from}})
			}
			destinations = append(destinations, interval.Range[nft.Value]{First: o.first, Last: o.last, Value: nft.Value{Verdict: about}})
		}
		plain.Elements.AddIntervals(sources)
		quoted.Elements.AddIntervals(destinations)
	}
}

// onLinks adds the chain that returns what comes from some links, for what else
// there is to judge, and goes to the other otherwise.
func (r *ruleset) onLinks(otherwise string, from rtnl.LinkSet) string {
	name := otherwise + "-unless-from"
	for _, link := range from {
		if link != 0 {
			name += fmt.Sprintf("-%d", link)
		}
	}
	if _, ok := r.Chains[name]; ok {
		return name
	}
	c := r.Chain(name)
	for _, link := range from {
		if link != 0 {
			c.Add("a link to the next hop", nft.MetaEqual(expr.MetaKeyIIF, nft.HostEndian(uint32(link))), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
		}
	}
	c.Add("another link", nft.Decide(nft.GoTo(otherwise)))
	return name
}
