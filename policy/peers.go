package policy

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// peer is a Peer that rules of the node's sets name: one for all that mean the
// same.
type peer struct {
	Peer
	// key says what the peer means, alike in every process; id is shorter and
	// this compiler's own, with no more of them than there were peers at once.
	key string
	id  uint32
	// hash is that of key. What some peers have in common has the sum of theirs.
	hash uint64
	// sets are those that have rules with the peer.
	sets map[*set]struct{}
	// owners counts these by their owner.
	owners map[string]int
	// settled says that settle has said that it came.
	settled bool
}

// peers are all that there are, by their keys.
type peers struct {
	byKey map[string]*peer
	// last is the greatest id that was used, free are those below that are not.
	last uint32
	free []uint32
	byID []*peer
	// wide are the ids of those that many have in common, rewidened says that
	// this changed since classes were last given their wide ones by it.
	wide      bitset
	rewidened bool
	// fresh and released are those that came into use, and those that a set
	// ceased to use, since the last call of settle.
	fresh, released []*peer
}

// use returns the peer that means the same as p, for a set.
func (x *peers) use(p Peer, by *set) *peer {
	key := p.key()
	known := x.byKey[key]
	if known == nil {
		known = &peer{Peer: p, key: key, hash: hashOf([]byte(key)), sets: map[*set]struct{}{}, owners: map[string]int{}}
		if n := len(x.free); n > 0 {
			known.id, x.free = x.free[n-1], x.free[:n-1]
		} else {
			x.last++
			known.id = x.last
		}
		for len(x.byID) <= int(known.id) {
			x.byID = append(x.byID, nil)
		}
		x.byID[known.id] = known
		x.byKey[key] = known
		x.fresh = append(x.fresh, known)
	}
	if _, ok := known.sets[by]; !ok {
		known.sets[by] = struct{}{}
		known.owners[by.owner]++
		x.widen(known)
	}
	return known
}

// manyOwners is how many namespaces' sets must have a peer for it to be wide. Only
// tests set it.
var manyOwners = 4

// widen notes whether a peer is one that many have in common: namespaces, or
// policies of the cluster. What few tell apart should cost the others nothing.
func (x *peers) widen(p *peer) {
	wide := len(p.owners) >= manyOwners || p.owners[""] > 0
	switch {
	case wide && !x.wide.has(p.id):
		x.wide = x.wide.with(p.id)
	case !wide && x.wide.has(p.id):
		x.wide.drop(p.id)
	default:
		return
	}
	x.rewidened = true
}

// release says that a set does not use the peer any more.
func (x *peers) release(p *peer, by *set) {
	delete(p.sets, by)
	p.disown(by.owner)
	x.widen(p)
	x.released = append(x.released, p)
}

func (p *peer) disown(owner string) {
	if p.owners[owner]--; p.owners[owner] == 0 {
		delete(p.owners, owner)
	}
}

// pass gives a set, which may be another's, to an owner.
func (x *peers) pass(set *set, owner string) {
	if set.owner == owner {
		return
	}
	for p := range set.uses {
		p.disown(set.owner)
		p.owners[owner]++
		x.widen(p)
	}
	set.owner = owner
}

// settle forgets the peers that nothing uses, and returns what came and went
// since the last call.
func (x *peers) settle() (came, gone []*peer) {
	for _, p := range x.released {
		if len(p.sets) == 0 && x.byKey[p.key] == p {
			delete(x.byKey, p.key)
			if p.settled {
				gone = append(gone, p)
			} else {
				x.free = append(x.free, p.id)
			}
		}
	}
	for _, p := range x.fresh {
		if len(p.sets) > 0 {
			p.settled = true
			came = append(came, p)
		}
	}
	x.fresh, x.released = nil, nil
	return came, gone
}

// sweep has the ids of peers that are gone used again, once nothing has them in
// a bitset any more.
func (x *peers) sweep(gone []*peer) {
	for _, p := range gone {
		x.free = append(x.free, p.id)
	}
}

// key says what a peer means; peers of one key match the same.
func (p *Peer) key() string {
	switch {
	case p.Pods != nil && p.Pods.Namespace != "":
		return "pods\x00" + p.Pods.Namespace + "\x00" + selectorKey(p.Pods.Pods)
	case p.Pods != nil:
		return "pods\x00\x00" + selectorKey(p.Pods.Namespaces) + "\x00" + selectorKey(p.Pods.Pods)
	case p.Block != nil:
		except := slices.Clone(p.Block.Except)
		slices.SortFunc(except, netip.Prefix.Compare)
		var b strings.Builder
		b.WriteString("block\x00" + p.Block.Prefix.String())
		for _, e := range slices.Compact(except) {
			b.WriteString("\x00" + e.String())
		}
		return b.String()
	case p.Nodes != nil:
		return "nodes\x00" + selectorKey(p.Nodes)
	case p.Domain != "":
		return "domain\x00" + p.Domain
	}
	return ""
}

// selectorKey is the text of a selector. That of one which selects nothing is
// empty, as if it selected all.
func selectorKey(s labels.Selector) string {
	switch {
	case s == nil:
		return ""
	case labels.MatchesNothing(s):
		return "\x01"
	}
	return s.String()
}
