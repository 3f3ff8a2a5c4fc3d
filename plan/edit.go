package plan

import (
	"hash/maphash"
	"slices"
)

// Edit sets the entry of a key, or deletes it where Gone.
type Edit[K, V any] struct {
	Key   K
	Value V
	Gone  bool
}

// With returns the table after some edits, of which the last of a key counts. It is what Set
// and Delete make of them one after the other, but what they have on their paths in common is
// made once: of n edits that make a table out of nothing, each costs one node. What is set to
// what it is already costs nothing. The edits are put into the order of their keys.
func (t Table[K, V]) With(edits []Edit[K, V]) Table[K, V] {
	ordered := func(a, b Edit[K, V]) int { return a.Key.Compare(b.Key) }
	if !slices.IsSortedFunc(edits, ordered) {
		slices.SortStableFunc(edits, ordered)
	}
	var gone []K
	var b builder[K, V]
	for i, e := range edits {
		if i+1 < len(edits) && edits[i+1].Key == e.Key {
			continue
		}
		old, there := t.Get(e.Key)
		switch {
		case e.Gone && there:
			gone = append(gone, e.Key)
		case !e.Gone && !(there && old.Equal(e.Value)):
			b.add(e.Key, e.Value)
		}
	}
	return Table[K, V]{union(t.root.without(gone), b.root())}
}

// builder makes a treap of entries that come in key order. The right edge of what it has so far
// is a stack, from the root down, as a new entry goes to the far right: below the last that is
// above it, and above all that are not.
type builder[K TableKey[K], V TableValue[V]] struct {
	edge []*treap[K, V]
}

func (b *builder[K, V]) add(k K, v V) {
	n := &treap[K, V]{key: k, value: v, priority: maphash.Comparable(seed, k), size: 1}
	for len(b.edge) > 0 && n.above(b.last()) {
		n.left = b.finish()
	}
	if len(b.edge) > 0 {
		b.last().right = n
	}
	b.edge = append(b.edge, n)
}

func (b *builder[K, V]) last() *treap[K, V] { return b.edge[len(b.edge)-1] }

// finish takes the lowest of the edge off, below which nothing changes any more.
func (b *builder[K, V]) finish() *treap[K, V] {
	n := b.last()
	n.size = 1 + n.left.len() + n.right.len()
	b.edge = b.edge[:len(b.edge)-1]
	return n
}

// root finishes all.
func (b *builder[K, V]) root() (n *treap[K, V]) {
	for len(b.edge) > 0 {
		n = b.finish()
	}
	return n
}

// union returns what has the entries of n and those of other, which replace those of n. No table
// has a node of other yet, so that these are changed and not copied.
func union[K TableKey[K], V TableValue[V]](n, other *treap[K, V]) *treap[K, V] {
	switch {
	case other == nil:
		return n
	case n == nil:
		return other
	case n.key != other.key && n.above(other):
		below, above := other.part(n.key)
		return n.with(union(n.left, below), union(n.right, above))
	}
	below, above := n.split(other.key)
	other.left, other.right = union(below, other.left), union(above, other.right)
	other.size = 1 + other.left.len() + other.right.len()
	return other
}

// part is split where k itself is not in n, and changes the nodes in the place of copying them, as
// no table has them yet.
func (n *treap[K, V]) part(k K) (below, above *treap[K, V]) {
	if n == nil {
		return nil, nil
	}
	if k.Compare(n.key) < 0 {
		below, n.left = n.left.part(k)
		above = n
	} else {
		n.right, above = n.right.part(k)
		below = n
	}
	n.size = 1 + n.left.len() + n.right.len()
	return below, above
}

// without returns n without some keys, which are in order and all in n.
func (n *treap[K, V]) without(keys []K) *treap[K, V] {
	if len(keys) == 0 {
		return n
	}
	i, here := slices.BinarySearchFunc(keys, n.key, K.Compare)
	rest := i
	if here {
		rest++
	}
	left, right := n.left.without(keys[:i]), n.right.without(keys[rest:])
	if here {
		return merge(left, right)
	}
	return n.with(left, right)
}
