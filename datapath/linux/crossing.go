package linux

import (
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
	bySender   nftables.ChainPriority = iota // what endpoints send
	byReceiver                               // what they get
	asWhole                                  // what neither forbids
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
func (r *ruleset) crossing(p *plan.Plan) {
	c := r.Chain("crossing")
	c.Hook = forwarding(asWhole)
	if r.connections > 0 {
		c.Add("TCP with an answer", nft.IsProtocol(unix.IPPROTO_TCP), nft.InState(expr.CtStateBitESTABLISHED), nft.Decide(nft.Accept))
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
