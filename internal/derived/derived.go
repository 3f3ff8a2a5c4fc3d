// Package derived holds what is made of each object of a kind, and makes it anew only of
// those that changed. What did not change is the same pointer in the next snapshot of a
// registry: this is how compilers tell what did.
package derived

import (
	"iter"
	"slices"

	"github.com/weftnet/weft/registry"
)

// Seen are the objects of a kind as they were, in key order.
type Seen []registry.Object

// Same reports whether the objects, in key order, are the same.
func (s Seen) Same(objects iter.Seq[registry.Object]) bool {
	i := 0
	for o := range objects {
		if i == len(s) || s[i] != o {
			return false
		}
		i++
	}
	return i == len(s)
}

// List holds what was made of each object of a kind. It is made once for each
// state of an object, and what is left out is the zero value, nil.
type List[V comparable] struct {
	// sources are in key order, values are what was made of each.
	sources Seen
	values  []V
	// list are the values in the order asked for. It is never changed, but
	// replaced.
	list []V
}

// All returns the values in the order asked for. They must not be changed, and are not: the
// next Update makes another slice.
func (d *List[V]) All() []V { return d.list }

// Update brings the values to what the objects are now, which must be in key
// order. make gets the value of the object's former state, if there was any; it
// should return that where it means the same. gone and came are what list lost
// and got.
func (d *List[V]) Update(objects iter.Seq[registry.Object], read func(o registry.Object, before V) V, compare func(a, b V) int) (gone, came []V) {
	if d.sources.Same(objects) {
		return nil, nil
	}
	var none V
	sources, values := make(Seen, 0, len(d.sources)+1), make([]V, 0, len(d.sources)+1) // one object comes or goes as a rule
	drop := func(v V) {
		if v != none {
			gone = append(gone, v)
		}
	}
	i := 0
	for o := range objects {
		key := registry.KeyOf(o)
		for ; i < len(d.sources) && registry.KeyOf(d.sources[i]).Compare(key) < 0; i++ {
			drop(d.values[i])
		}
		var before, v V
		known := i < len(d.sources) && registry.KeyOf(d.sources[i]) == key
		if known {
			before = d.values[i]
		}
		if known && d.sources[i] == o {
			v = before
		} else if v = read(o, before); v != before {
			drop(before)
			if v != none {
				came = append(came, v)
			}
		}
		if known {
			i++
		}
		sources, values = append(sources, o), append(values, v)
	}
	for ; i < len(d.sources); i++ {
		drop(d.values[i])
	}
	d.sources, d.values = sources, values
	if len(gone)+len(came) > 0 {
		d.list = replace(d.list, gone, came, compare)
	}
	return gone, came
}

// Of returns what was made of an object, the zero value if that is not among
// them.
func (d *List[V]) Of(o registry.Object) V {
	i, found := slices.BinarySearchFunc(d.sources, registry.KeyOf(o), func(o registry.Object, key registry.Key) int { return registry.KeyOf(o).Compare(key) })
	if !found || d.sources[i] != o {
		var none V
		return none
	}
	return d.values[i]
}

// replace returns an ordered list without some values and with others.
func replace[V comparable](list, gone, came []V, compare func(a, b V) int) []V {
	without := make(map[V]bool, len(gone))
	for _, v := range gone {
		without[v] = true
	}
	came = slices.SortedFunc(slices.Values(came), compare)
	out := make([]V, 0, max(0, len(list)-len(gone))+len(came))
	for _, v := range list {
		if without[v] {
			continue
		}
		for len(came) > 0 && compare(came[0], v) < 0 {
			out, came = append(out, came[0]), came[1:]
		}
		out = append(out, v)
	}
	return append(out, came...)
}
