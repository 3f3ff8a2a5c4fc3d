package policy

import "iter"

// changes yields what differs between two lists in the order of compare, which
// hold no key twice: what was and what is of a key, nil for what was or is not
// there. Elements that are the same pointer do not differ, and cost next to
// nothing.
func changes[T any](was, is []*T, compare func(a, b *T) int) iter.Seq2[*T, *T] {
	return func(yield func(was, is *T) bool) {
		if len(was) == len(is) && (len(is) == 0 || &was[0] == &is[0]) {
			return
		}
		for len(was) > 0 || len(is) > 0 {
			var o, n *T
			switch {
			case len(was) > 0 && len(is) > 0 && was[0] == is[0]:
				was, is = was[1:], is[1:]
				continue
			case len(is) == 0:
				o = was[0]
			case len(was) == 0:
				n = is[0]
			default:
				c := compare(was[0], is[0])
				if c <= 0 {
					o = was[0]
				}
				if c >= 0 {
					n = is[0]
				}
			}
			if o != nil {
				was = was[1:]
			}
			if n != nil {
				is = is[1:]
			}
			if !yield(o, n) {
				return
			}
		}
	}
}
