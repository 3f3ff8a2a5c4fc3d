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

// VerdictKey is what a packet that starts a connection is looked up by. Of the
// entries of one policy and direction that match, the most specific decides:
// one for the packet's peer before one for AnyPeer, and for the same peer one
// for the packet's protocol before one for AnyProtocol. Among those for one
// peer and protocol the ranges of ports are disjoint, so that no more than one
// matches. What matches nothing is denied.
//
// An entry for a peer and AnyProtocol may name another peer instead of
// deciding (Verdict.Like): what no other entry of the first peer matches is
// looked up for the second, in the place of AnyPeer. So peers of whom nearly the
// same is said share it, and a policy that tells many peers and many ports
// apart need not be multiplied out. A peer that others are like needs no
// address that is of it. A lookup takes at most MaxLikes such steps, and
// whoever takes two has nothing else said of it: a data plane needs what is said
// of two peers, one after the other, for each packet, as it does with AnyPeer.
//
// A policy that has no entry at all for a class takes it for the wider one that it
// is within, if there is one (Within).
type VerdictKey struct {
	Policy    string
	Direction Direction
	// Peer is the class of the other side.
	Peer     Class
	Protocol Protocol
	// Ports is the range of destination ports; AllPorts where the protocol
	// has none.
	Ports PortRange
}

// MaxLikes is how often a lookup goes on with another peer, AnyPeer aside.
const MaxLikes = 2

// Rest is the key of the entry that decides about a peer what its others do not.
func Rest(policy string, d Direction, peer Class) VerdictKey {
	return VerdictKey{Policy: policy, Direction: d, Peer: peer, Protocol: AnyProtocol, Ports: AllPorts}
}

// Otherwise is the key of the least specific entry, which decides when no
// other matches.
func Otherwise(policy string, d Direction) VerdictKey {
	return Rest(policy, d, AnyPeer)
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
	// Like is the peer whose entries decide instead, of the same policy and
	// direction, which may be AnyPeer; 0 where this entry decides.
	Like Class
	// Origin is the rule that decided, as "NetworkPolicy default/web ingress[0]".
	Origin string
}

// Equal reports whether both are the same in every field.
func (v Verdict) Equal(o Verdict) bool { return v == o }
