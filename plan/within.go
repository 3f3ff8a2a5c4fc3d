package plan

import "cmp"

// WithinKey is a class that is within a wider one.
type WithinKey struct{ Class Class }

// Compare orders keys.
func (k WithinKey) Compare(o WithinKey) int { return cmp.Compare(k.Class, o.Class) }

// Within says which wider class a class is within: what a policy without any entry
// for the first, in a direction, looks up instead. So what few policies tell
// apart costs the others nothing, and what wears a tag can be of a node's own class.
// A wider class is within none, and needs no address that is of it.
type Within struct {
	Class Class
}

// Equal reports whether both are the same.
func (w Within) Equal(o Within) bool { return w == o }

// speaksOf reports whether a policy has any entry for a peer.
func (p *Plan) speaksOf(policy string, d Direction, peer Class) bool {
	for k := range p.Verdicts.From(VerdictKey{Policy: policy, Direction: d, Peer: peer}) {
		return k.Policy == policy && k.Direction == d && k.Peer == peer
	}
	return false
}
