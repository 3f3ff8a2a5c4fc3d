package plan

import (
	"hash/maphash"
	"iter"
)

// TableKey is what a table's key must offer: a total order that agrees with
// ==, which is also the order of the text form.
type TableKey[K any] interface {
	comparable
	Compare(K) int
}

// TableValue is what a table's value must offer.
type TableValue[V any] interface {
	Equal(V) bool
}

// Table is an immutable ordered map. The zero value is empty. Changing it
// returns another table that shares all it can with the first.
//
// It is a treap whose priorities are a hash of the key, so its shape depends
// on its content alone and not on the order of the changes that led there.
// That is what lets Diff skip every subtree that two tables share.
type Table[K TableKey[K], V TableValue[V]] struct {
	root *treap[K, V]
}

type treap[K TableKey[K], V TableValue[V]] struct {
	key         K
	value       V
	priority    uint64
	size        int
	left, right *treap[K, V]
}

// Change is one entry's difference between two tables. Old is nil when the
// entry was added, New is nil when it was removed.
type Change[K, V any] struct {
	Key      K
	Old, New *V
}

var seed = maphash.MakeSeed()

// Len is the number of entries.
func (t Table[K, V]) Len() int { return t.root.len() }

// Get returns the value of key k.
func (t Table[K, V]) Get(k K) (V, bool) {
	for n := t.root; n != nil; {
		switch c := k.Compare(n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var zero V
	return zero, false
}

// All yields the entries in key order.
func (t Table[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.walk(yield) }
}

// From yields the entries whose key is not less than k, in key order.
func (t Table[K, V]) From(k K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { t.root.walkFrom(k, yield) }
}

// Floor returns the last entry whose key is not greater than k.
func (t Table[K, V]) Floor(k K) (K, V, bool) {
	var best *treap[K, V]
	for n := t.root; n != nil; {
		if n.key.Compare(k) <= 0 {
			best, n = n, n.right
		} else {
			n = n.left
		}
	}
	if best == nil {
		var key K
		var value V
		return key, value, false
	}
	return best.key, best.value, true
}

// Set returns the table with k set to v. Setting what is already there
// returns the same table and allocates nothing.
func (t Table[K, V]) Set(k K, v V) Table[K, V] {
	if old, ok := t.Get(k); ok && old.Equal(v) {
		return t
	}
	return Table[K, V]{t.root.set(&treap[K, V]{key: k, value: v, priority: maphash.Comparable(seed, k), size: 1})}
}

// Delete returns the table without k.
func (t Table[K, V]) Delete(k K) Table[K, V] {
	if _, ok := t.Get(k); !ok {
		return t
	}
	return Table[K, V]{t.root.delete(k)}
}

// Diff returns what leads from t to next, in key order.
func (t Table[K, V]) Diff(next Table[K, V]) []Change[K, V] {
	var changes []Change[K, V]
	diff(t.root, next.root, &changes)
	return changes
}

func (n *treap[K, V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

func (n *treap[K, V]) with(left, right *treap[K, V]) *treap[K, V] {
	return &treap[K, V]{key: n.key, value: n.value, priority: n.priority,
		size: 1 + left.len() + right.len(), left: left, right: right}
}

// above reports whether n belongs above o. Keys break ties, so that the shape
// stays a function of the content even when two hashes collide.
func (n *treap[K, V]) above(o *treap[K, V]) bool {
	if n.priority != o.priority {
		return n.priority > o.priority
	}
	return n.key.Compare(o.key) < 0
}

// set puts e, which no table has yet, into n.
func (n *treap[K, V]) set(e *treap[K, V]) *treap[K, V] {
	if n == nil {
		return e
	}
	c := e.key.Compare(n.key)
	if c == 0 || e.above(n) {
		e.left, e.right = n.split(e.key)
		e.size = 1 + e.left.len() + e.right.len()
		return e
	}
	if c < 0 {
		return n.with(n.left.set(e), n.right)
	}
	return n.with(n.left, n.right.set(e))
}

// split returns what is below k and what is above it; k itself is in neither.
func (n *treap[K, V]) split(k K) (below, above *treap[K, V]) {
	if n == nil {
		return nil, nil
	}
	switch c := k.Compare(n.key); {
	case c < 0:
		l, r := n.left.split(k)
		return l, n.with(r, n.right)
	case c > 0:
		l, r := n.right.split(k)
		return n.with(n.left, l), r
	default:
		return n.left, n.right
	}
}

func (n *treap[K, V]) delete(k K) *treap[K, V] {
	switch c := k.Compare(n.key); {
	case c < 0:
		return n.with(n.left.delete(k), n.right)
	case c > 0:
		return n.with(n.left, n.right.delete(k))
	default:
		return merge(n.left, n.right)
	}
}

func merge[K TableKey[K], V TableValue[V]](l, r *treap[K, V]) *treap[K, V] {
	switch {
	case l == nil:
		return r
	case r == nil:
		return l
	case l.above(r):
		return l.with(l.left, merge(l.right, r))
	default:
		return r.with(merge(l, r.left), r.right)
	}
}

func (n *treap[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

func (n *treap[K, V]) walkFrom(k K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if n.key.Compare(k) < 0 {
		return n.right.walkFrom(k, yield)
	}
	return n.left.walkFrom(k, yield) && yield(n.key, n.value) && n.right.walk(yield)
}

// diff appends what leads from a to b. Subtrees that are the same pointer are
// equal; everything else is aligned by splitting one side at the root of the
// other, which finds shared subtrees again because both have canonical shape.
func diff[K TableKey[K], V TableValue[V]](a, b *treap[K, V], out *[]Change[K, V]) {
	switch {
	case a == b:
	case a == nil:
		b.walk(func(k K, v V) bool {
			*out = append(*out, Change[K, V]{Key: k, New: &v})
			return true
		})
	case b == nil:
		a.walk(func(k K, v V) bool {
			*out = append(*out, Change[K, V]{Key: k, Old: &v})
			return true
		})
	case a.key == b.key:
		diff(a.left, b.left, out)
		if !a.value.Equal(b.value) {
			*out = append(*out, Change[K, V]{Key: a.key, Old: &a.value, New: &b.value})
		}
		diff(a.right, b.right, out)
	case a.above(b):
		below, above := b.split(a.key)
		diff(a.left, below, out)
		*out = append(*out, Change[K, V]{Key: a.key, Old: &a.value})
		diff(a.right, above, out)
	default:
		below, above := a.split(b.key)
		diff(below, b.left, out)
		*out = append(*out, Change[K, V]{Key: b.key, New: &b.value})
		diff(above, b.right, out)
	}
}
