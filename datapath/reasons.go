package datapath

// Reason says why a data plane drops a packet, other than that a policy denies
// it.
type Reason string

// The reasons. A data plane that has more than these adds them here.
const (
	// SpoofedSource: an endpoint sends from an address that is not its own.
	SpoofedSource Reason = "spoofed-source"
	// NoEndpoint: an interface of Weft's sends that leads to no endpoint of the
	// plan, not yet or not any more.
	NoEndpoint Reason = "no-endpoint"
	// ForgedSource: a packet comes from outside of the node and of the tunnel,
	// and its source is one that is not answered there.
	ForgedSource Reason = "forged-source"
	// TunnelPort: an endpoint sends to the UDP port of the tunnel, or somebody
	// through the node to that of a peer.
	TunnelPort Reason = "tunnel-port"
	// UnknownPeer: a tunnel packet is from no peer that the plan knows, or is
	// not to the VTEP, or comes from where no peer is.
	UnknownPeer Reason = "unknown-peer"
	// NotThePeers: a tunnel packet is from a peer, and what is in it is not from
	// an address of that peer's.
	NotThePeers Reason = "not-the-peers"
	// Discovery: an endpoint asks from a link-local address who is on its link, or
	// tells that, or which multicasts it listens to. Weft's endpoints and nodes
	// know each other for good, and nothing forwards multicasts.
	Discovery Reason = "discovery"
	// Loopback: an endpoint sends to, or from, a loopback address.
	Loopback Reason = "loopback"
	// ICMPError: an ICMP error is about a packet to somewhere that its sender
	// is not on the way to, or to a peer and of no connection that there is.
	ICMPError Reason = "icmp-error"
	// Redirect: an ICMP redirect is from an endpoint or for one.
	Redirect Reason = "redirect"
	// NoEgress: the Egress table says "drop".
	NoEgress Reason = "no-egress"
	// NoRoute: the node has no way to where an endpoint sends, or finds nobody
	// there, and has told the endpoint so. The kernel tells, and what it does
	// not tell is not counted, no more than some a second for each endpoint.
	NoRoute Reason = "no-route"
	// Unrouted: a packet of another node's endpoint, or of one that uses an address
	// of others, is to where no route leads.
	// Unlike an endpoint of its own the node tells nobody.
	Unrouted Reason = "unrouted"
	// TooMany: an endpoint begins more connections, looks for more machines next to the
	// node, or asks the node itself more, than is its share of what all endpoints of the node use.
	TooMany Reason = "too-many"
	// NoQuestion: an endpoint sends the node's name server a datagram that is shorter than any
	// question.
	NoQuestion Reason = "no-question"
	// NoBackend: a frontend of a Service has no backend on hand, or a Service's address no
	// such port. Who sends is told, unless the Services table says "drop".
	NoBackend Reason = "no-backend"
	// NotForClient: a frontend of a Service is for others; the Sources table says for whom.
	NotForClient Reason = "not-for-client"
	// Unfitting: a backend of a Service sends what fits no connection that the node knows,
	// as a segment outside of the window.
	Unfitting Reason = "unfitting"
	// Ended: what is left of a connection that a change of policies ended.
	Ended Reason = "ended-connection"
)

// Reasons are all reasons, in the order in which they are shown.
var Reasons = []Reason{SpoofedSource, NoEndpoint, ForgedSource, TunnelPort, UnknownPeer, NotThePeers, Discovery, Loopback, ICMPError, Redirect, NoEgress, NoRoute, Unrouted, TooMany, NoQuestion, NoBackend, NotForClient, Unfitting, Ended}

var reasonTexts = map[Reason]string{
	SpoofedSource: "a source that is not the endpoint's own",
	NoEndpoint:    "an interface that leads to no endpoint",
	ForgedSource:  "a source that is not answered that way",
	TunnelPort:    "to the tunnel's port, behind the node",
	UnknownPeer:   "a tunnel packet of no known peer",
	NotThePeers:   "through the tunnel, from a source that is not the peer's",
	Discovery:     "discovery of neighbours, routers or listeners, which nothing answers",
	Loopback:      "from an endpoint to a loopback address",
	ICMPError:     "an ICMP error from who cannot have met the packet",
	Redirect:      "an ICMP redirect",
	NoEgress:      "no way out of the cluster is allowed",
	NoRoute:       "the node knows no way there",
	Unrouted:      "from another node, or under an address of others, to where this node knows no way",
	TooMany:       "more than the endpoint's share of what the node can track, or be asked",
	NoQuestion:    "to the node's name server, and too short for a question",
	NoBackend:     "to a service that has no backend on hand, or no such port",
	NotForClient:  "to a service that is for others",
	Unfitting:     "from a service's backend, and of no connection",
	Ended:         "of a connection that policies ended",
}

// Text says the reason in words, for people.
func (r Reason) Text() string {
	if t, ok := reasonTexts[r]; ok {
		return t
	}
	return string(r)
}
