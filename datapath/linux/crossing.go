package linux

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// The order in which Weft's chains judge what passes through the node.
const (
	byEgress nftables.ChainPriority = iota // what egress rules drop
	byPolicy                               // what policies deny, of who sends it or who gets it
	asWhole                                // what neither forbids
)

// forwarding is the hook of what passes through the node. Chains in one place
// would be asked in whatever order the kernel came to know them.
func forwarding(place nftables.ChainPriority) *nft.Hook {
	return &nft.Hook{Kind: nftables.ChainTypeFilter, Number: *nftables.ChainHookForward, Priority: *nftables.ChainPriorityFilter + place}
}

// crossing judges what passes through the node, with the destination that it
// has after translation, and limits what endpoints begin that way. Each hook
// that a packet passes costs it more than a rule does, so all of this is in one;
// it is behind policies, so that what they forbid counts for nothing.
func (r *ruleset) crossing(p *plan.Plan, s *sources) {
	c := r.Chain("crossing")
	c.Hook = forwarding(asWhole)
	if r.connections > 0 {
		c.Add("TCP with an answer", nft.IsProtocol(unix.IPPROTO_TCP), nft.InState(expr.CtStateBitESTABLISHED), nft.Decide(nft.Accept))
	}
	for _, is4 := range interval.Families {
		if routed, ok := s.routed[is4]; ok {
			r.unrouted(c, is4, routed, s.throughTunnel(is4))
		}
	}
	for _, e := range p.Endpoints.All() {
		if !e.AntiSpoof {
			r.foreignUnrouted(c, p, s)
			break
		}
	}
	r.toTunnelPorts(c, p)
	for _, is4 := range interval.Families {
		c.Add("redirects", nft.IsFamily(is4), nft.IsProtocol(icmpOf(is4)), icmpType(), nft.Equals(redirectOf(is4)), r.drop(datapath.Redirect))
	}
	if p.Endpoints.Len() > 0 {
		r.limits(p)
		r.begins(c)
		c.Add("what may look for a neighbour", nft.Decide(nft.GoTo("next-hops")))
	}
}

// unrouted drops what other nodes' endpoints send to where no route leads: what
// comes out of a tunnel, and from where a route leads to a peer (see
// plan.Plan.LeadsToPeer). The kernel would send it out by its own default route. All
// else it may, as the node may be somebody's router.
func (r *ruleset) unrouted(c *nft.Chain, is4 bool, routed []interval.Range[bool], tunnel bool) {
	chain, all, toPeers := "unrouted"+suffix(is4), routedPrefix+suffix(is4), toPeersPrefix+suffix(is4)
	var covered, senders []interval.Range[nft.Value]
	for _, i := range routed {
		one := interval.Range[nft.Value]{First: i.First, Last: i.Last}
		covered = append(covered, one)
		if i.Value {
			senders = append(senders, one)
		}
	}
	if tunnel {
		c.Add("out of the tunnel", nft.IsFamily(is4), nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Jump(chain))
	}
	like := nft.Set{Key: nft.AddressType(is4), Interval: true}
	if len(senders) > 0 {
		r.Set(toPeers, like).Elements.AddIntervals(senders)
		c.Add("from where a route leads to a peer", nft.IsFamily(is4), nft.Address(is4, true), nft.InSet(toPeers), nft.Jump(chain))
	}
	if !tunnel && len(senders) == 0 {
		return
	}
	r.Set(all, like).Elements.AddIntervals(covered)
	n := r.Chain(chain)
	n.Add("what endpoints of the node send has routes of its own", r.isFromEndpoint(), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
	n.Add("replies", nft.Established(), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
	n.Add("to where no route leads", nft.Address(is4, false), nft.NotInSet(all), r.drop(datapath.Unrouted))
}

// foreignUnrouted drops what endpoints send under others' addresses to where no route
// leads. Routing rules go by the source, so these find neither the endpoints' routes nor
// the end of these, and the kernel would send them out by its own default route. Where
// only endpoints have a route they are not taken another way.
func (r *ruleset) foreignUnrouted(c *nft.Chain, p *plan.Plan, s *sources) {
	for _, is4 := range interval.Families {
		like := nft.Set{Key: nft.AddressType(is4), Interval: true}
		own, shared := ruledPrefix+suffix(is4), sharedPrefix+suffix(is4)
		var ruled, leads []interval.Range[nft.Value]
		sources := map[netip.Prefix]bool{}
		for _, from := range endpointSources(p, is4) {
			sources[from] = true
		}
		for _, i := range interval.FlattenFamily(sources, is4) {
			ruled = append(ruled, interval.Range[nft.Value]{First: i.First, Last: i.Last})
		}
		for _, i := range s.shared[is4] {
			if i.Value {
				leads = append(leads, interval.Range[nft.Value]{First: i.First, Last: i.Last})
			}
		}
		r.Set(own, like).Elements.AddIntervals(ruled)
		r.Set(shared, like).Elements.AddIntervals(leads)
		chain := "foreign-unrouted" + suffix(is4)
		c.Add("endpoints under others' addresses", nft.IsFamily(is4), r.isFromEndpoint(), nft.Address(is4, true), nft.NotInSet(own), nft.Jump(chain))
		n := r.Chain(chain)
		n.Add("replies", nft.Established(), nft.Decide(nft.Verdict{Kind: expr.VerdictReturn}))
		n.Add("to where no route leads that they could take", nft.Address(is4, false), nft.NotInSet(shared), r.drop(datapath.Unrouted))
	}
}
