package answer

import (
	"math/rand/v2"
	"net/netip"
)

// held is an address of a Service: its own, or one behind it, an endpoint's.
type held struct {
	address netip.Addr
	behind  bool
}

// compare orders them by address, one's own first.
func (h held) compare(o held) int {
	if c := h.address.Compare(o.address); c != 0 || h.behind == o.behind {
		return c
	}
	if o.behind {
		return -1
	}
	return 1
}

// holder is an entry that has an address.
type holder struct {
	held
	entry *entry
}

// compare orders holders by what they hold, then by key.
func (h holder) compare(o holder) int {
	if c := h.held.compare(o.held); c != 0 {
		return c
	}
	return h.entry.key.Compare(o.entry.key)
}

// holders is a set of them, in order. It is a treap: a search tree of random shape. So one that
// comes or goes costs the logarithm of how many there are, also where all have one address, as the
// Services of somebody may who means ill. The nil *holders is the empty set.
type holders struct {
	holder
	weight      uint32
	left, right *holders
}

// put returns the set with a holder.
func (t *holders) put(h holder) *holders {
	if t == nil {
		return &holders{holder: h, weight: rand.Uint32()}
	}
	switch c := h.compare(t.holder); {
	case c < 0:
		if t.left = t.left.put(h); t.left.weight > t.weight {
			top := t.left
			t.left, top.right = top.right, t
			return top
		}
	case c > 0:
		if t.right = t.right.put(h); t.right.weight > t.weight {
			top := t.right
			t.right, top.left = top.left, t
			return top
		}
	}
	return t
}

// drop returns the set without a holder.
func (t *holders) drop(h holder) *holders {
	if t == nil {
		return nil
	}
	switch c := h.compare(t.holder); {
	case c < 0:
		t.left = t.left.drop(h)
	case c > 0:
		t.right = t.right.drop(h)
	default:
		return join(t.left, t.right)
	}
	return t
}

// join returns what two sets have, of which all of the first is before all of the second.
func join(a, b *holders) *holders {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight > b.weight:
		a.right = join(a.right, b)
		return a
	}
	b.left = join(a, b.left)
	return b
}

// of calls f with those that have an address, in order, until it returns false. It reports whether
// that never did.
func (t *holders) of(a netip.Addr, f func(holder) bool) bool {
	if t == nil {
		return true
	}
	c := t.address.Compare(a)
	return (c < 0 || t.left.of(a, f)) && (c != 0 || f(t.holder)) && (c > 0 || t.right.of(a, f))
}
