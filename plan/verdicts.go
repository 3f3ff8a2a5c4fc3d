package plan

import (
	"cmp"
	"strings"
)

// Direction is seen from the endpoint that a policy holds for.
type Direction string

// The directions.
const (
	Incoming Direction = "ingress"
	Outgoing Direction = "egress"
)

// AnyPeer as a verdict's peer stands for every tag.
const AnyPeer = MaxTag + 1

// VerdictKey is what a packet that starts a connection is looked up by. Of the
// entries of one policy and direction that match, the most specific decides:
// one for the packet's peer before one for AnyPeer, and for the same peer one
// for the packet's protocol before one for AnyProtocol. Among those for one
// peer and protocol the ranges of ports are disjoint, so that no more than one
// matches. What matches nothing is denied.
type VerdictKey struct {
	Policy    string
	Direction Direction
	// Peer is the tag of the other side.
	Peer     Tag
	Protocol Protocol
	// Ports is the range of destination ports; AllPorts where the protocol
	// has none.
	Ports PortRange
}

// Otherwise is the key of the least specific entry, which decides when no
// other matches.
func Otherwise(policy string, d Direction) VerdictKey {
	return VerdictKey{Policy: policy, Direction: d, Peer: AnyPeer, Protocol: AnyProtocol, Ports: AllPorts}
}

// Compare orders keys.
func (k VerdictKey) Compare(o VerdictKey) int {
	return cmp.Or(strings.Compare(k.Policy, o.Policy), strings.Compare(string(k.Direction), string(o.Direction)),
		cmp.Compare(k.Peer, o.Peer), cmp.Compare(k.Protocol, o.Protocol),
		cmp.Compare(k.Ports.First, o.Ports.First), cmp.Compare(k.Ports.Last, o.Ports.Last))
}

// Verdict is what becomes of a connection.
type Verdict struct {
	Allow bool
	// Origin is the rule that decided, as "NetworkPolicy default/web ingress[0]".
	Origin string
}

// Equal reports whether both are the same in every field.
func (v Verdict) Equal(o Verdict) bool { return v == o }
