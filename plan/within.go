package plan

import "cmp"

// WithinKey is a tag that is within a wider one.
type WithinKey struct{ Tag Tag }

// Compare orders keys.
func (k WithinKey) Compare(o WithinKey) int { return cmp.Compare(k.Tag, o.Tag) }

// Within says which wider tag a tag is within: what a policy without any entry
// for the first, in a direction, looks up instead. So what few policies tell
// apart costs the others nothing. A wider tag is within none, and needs no
// address that wears it.
type Within struct {
	Tag Tag
}

// Equal reports whether both are the same.
func (w Within) Equal(o Within) bool { return w == o }

// speaksOf reports whether a policy has any entry for a peer.
func (p *Plan) speaksOf(policy string, d Direction, peer Tag) bool {
	for k := range p.Verdicts.From(VerdictKey{Policy: policy, Direction: d, Peer: peer}) {
		return k.Policy == policy && k.Direction == d && k.Peer == peer
	}
	return false
}
