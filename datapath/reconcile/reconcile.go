// Package reconcile says what must happen to objects, each a key by which a kernel or
// a switch tells objects apart and a value that says the rest, so that those are there
// that are wanted.
//
// Diff compares all that there is with all that is wanted. Where a change is known,
// that costs too much: an Edit collects what comes and goes, and a Ledger does so for
// objects that several ask for at once. All give Changes, in an order that depends on
// their content alone.
package reconcile

import "slices"

// Change is what must happen to one object. Old is nil when it is not there,
// New is nil when it is not wanted.
type Change[K, V any] struct {
	Key      K
	Old, New *V
}

// Diff returns what leads from what there is to what is wanted.
func Diff[K, V comparable](have, want map[K]V, compare func(a, b K) int) []Change[K, V] {
	var changes []Change[K, V]
	for k, v := range want {
		if old, ok := have[k]; !ok {
			changes = append(changes, Change[K, V]{Key: k, New: &v})
		} else if old != v {
			changes = append(changes, Change[K, V]{Key: k, Old: &old, New: &v})
		}
	}
	for k, v := range have {
		if _, ok := want[k]; !ok {
			changes = append(changes, Change[K, V]{Key: k, Old: &v})
		}
	}
	return sorted(changes, compare)
}

// Edit collects what becomes of objects of which those are not kept that stay as they
// are. The zero Edit changes nothing.
type Edit[K, V comparable] struct {
	touched map[K]fate[V]
}

// fate is what an object was, and what it is to be.
type fate[V any] struct{ old, new *V }

// Remove takes an object away that is there, with the value that it has.
func (e *Edit[K, V]) Remove(k K, v V) {
	f, ok := e.touched[k]
	if !ok {
		f.old = &v
	}
	e.touch(k, fate[V]{old: f.old})
}

// Add adds an object that is not there, or not any more.
func (e *Edit[K, V]) Add(k K, v V) { e.touch(k, fate[V]{e.touched[k].old, &v}) }

func (e *Edit[K, V]) touch(k K, f fate[V]) {
	if e.touched == nil {
		e.touched = map[K]fate[V]{}
	}
	e.touched[k] = f
}

// Changes returns what has become of the objects in the end, and begins anew. What
// has come back with the value that it had is not among it.
func (e *Edit[K, V]) Changes(compare func(a, b K) int) []Change[K, V] {
	var changes []Change[K, V]
	for k, f := range e.touched {
		if same := f.old == f.new || f.old != nil && f.new != nil && *f.old == *f.new; !same {
			changes = append(changes, Change[K, V]{k, f.old, f.new})
		}
	}
	e.touched = nil
	return sorted(changes, compare)
}

func sorted[K, V any](changes []Change[K, V], compare func(a, b K) int) []Change[K, V] {
	slices.SortFunc(changes, func(a, b Change[K, V]) int { return compare(a.Key, b.Key) })
	return changes
}

// Ledger holds objects that several may ask for at once, as all routes to one node ask
// for its forwarding entry. An object is there as long as one of them asks.
type Ledger[K, V comparable] struct {
	// Now are the objects. Only Add and Remove change it.
	Now map[K]V
	// more is how many ask for an object beside the first, who is alone as a rule.
	more map[K]int
	edit Edit[K, V]
}

// Add asks for an object. It returns false, and adds nothing, when someone
// asks for another value of the same key.
func (l *Ledger[K, V]) Add(k K, v V) bool {
	old, ok := l.Now[k]
	if ok && old != v {
		return false
	}
	if l.Now == nil {
		l.Now, l.more = map[K]V{}, map[K]int{}
	}
	if ok {
		l.more[k]++
		return true
	}
	l.Now[k] = v
	l.edit.Add(k, v)
	return true
}

// Remove takes back one Add of that value.
func (l *Ledger[K, V]) Remove(k K, v V) bool {
	if old, ok := l.Now[k]; !ok || old != v {
		return false
	}
	switch n := l.more[k]; n {
	case 0:
		l.edit.Remove(k, v)
		delete(l.Now, k)
	case 1:
		delete(l.more, k)
	default:
		l.more[k] = n - 1
	}
	return true
}

// Changes returns what became of the objects since the last call.
func (l *Ledger[K, V]) Changes(compare func(a, b K) int) []Change[K, V] {
	return l.edit.Changes(compare)
}

// Begin starts the next round: the next Changes tell nothing of what became of the objects until
// now.
func (l *Ledger[K, V]) Begin() { l.edit = Edit[K, V]{} }
