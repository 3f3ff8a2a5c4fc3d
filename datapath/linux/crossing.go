package linux

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
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
func forwarding(place nftables.ChainPriority) *hook {
	return &hook{nftables.ChainTypeFilter, *nftables.ChainHookForward, *nftables.ChainPriorityFilter + place}
}

// crossing judges what passes through the node, with the destination that it
// has after translation, and limits what endpoints begin that way. Each hook
// that a packet passes costs it more than a rule does, so all of this is in one;
// it is behind policies, so that what they forbid counts for nothing.
func (r *ruleset) crossing(p *plan.Plan) {
	c := r.chain("crossing")
	c.hook = forwarding(asWhole)
	if r.connections > 0 {
		c.add("TCP with an answer", isProtocol(unix.IPPROTO_TCP), inState(expr.CtStateBitESTABLISHED), decide(accept))
	}
	r.toTunnelPorts(c, p)
	for _, is4 := range families {
		c.add("redirects", isFamily(is4), isProtocol(icmpOf(is4)), icmpType(), equals(redirectOf(is4)), r.drop(datapath.Redirect))
	}
	if p.Endpoints.Len() > 0 {
		r.limits(p)
		r.begins(c)
		c.add("what may look for a neighbour", decide(goTo("next-hops")))
	}
}
