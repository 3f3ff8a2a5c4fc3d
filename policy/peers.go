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
	// this compiler's own.
	key string
	id  uint32
	// sets are those that have rules with the peer, classes those that it
	// contains.
	sets    map[*set]struct{}
	classes map[*class]struct{}
}

// peers are all that there are, by their keys.
type peers struct {
	byKey map[string]*peer
	last  uint32
	// fresh and released are those that came into use, and those that a set
	// ceased to use, since the last call of settle.
	fresh, released []*peer
}

// use returns the peer that means the same as p, for a set.
func (x *peers) use(p Peer, by *set) *peer {
	key := p.key()
	known := x.byKey[key]
	if known == nil {
		x.last++
		known = &peer{Peer: p, key: key, id: x.last, sets: map[*set]struct{}{}, classes: map[*class]struct{}{}}
		x.byKey[key] = known
		x.fresh = append(x.fresh, known)
	}
	known.sets[by] = struct{}{}
	return known
}

// release says that a set does not use the peer any more.
func (x *peers) release(p *peer, by *set) {
	delete(p.sets, by)
	x.released = append(x.released, p)
}

// settle forgets the peers that nothing uses, and returns what came and went
// since the last call.
func (x *peers) settle() (came, gone []*peer) {
	for _, p := range x.released {
		if len(p.sets) == 0 && x.byKey[p.key] == p {
			delete(x.byKey, p.key)
			if !slices.Contains(x.fresh, p) {
				gone = append(gone, p)
			}
		}
	}
	for _, p := range x.fresh {
		if len(p.sets) > 0 {
			came = append(came, p)
		}
	}
	x.fresh, x.released = nil, nil
	return came, gone
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
