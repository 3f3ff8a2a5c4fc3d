package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// apply does what changes say, and fails where that cannot be done.
func apply(t *rapid.T, have map[int]int, changes []Change[int, int]) map[int]int {
	now := maps.Clone(have)
	if now == nil {
		now = map[int]int{}
	}
	if !slices.IsSortedFunc(changes, func(a, b Change[int, int]) int { return cmp.Compare(a.Key, b.Key) }) {
		t.Fatalf("%v are not in order", changes)
	}
	for _, c := range changes {
		old, ok := now[c.Key]
		if ok != (c.Old != nil) || ok && old != *c.Old {
			t.Fatalf("of %d it is said that it was %v; it is %d, %t", c.Key, c.Old, old, ok)
		}
		if delete(now, c.Key); c.New != nil {
			if c.Old != nil && *c.Old == *c.New {
				t.Fatalf("%d stays what it is", c.Key)
			}
			now[c.Key] = *c.New
		} else if c.Old == nil {
			t.Fatalf("nothing happens to %d", c.Key)
		}
	}
	return now
}

func TestDiff(t *testing.T) {
	objects := rapid.MapOf(rapid.IntRange(0, 9), rapid.IntRange(0, 2))
	rapid.Check(t, func(t *rapid.T) {
		have, want := objects.Draw(t, "have"), objects.Draw(t, "want")
		if got := apply(t, have, Diff(have, want, cmp.Compare)); !maps.Equal(got, want) {
			t.Fatalf("it leads from %v to %v instead of %v", have, got, want)
		}
	})
}

// TestLedger checks a ledger against a list of who asks for what.
func TestLedger(t *testing.T) {
	conflicts, ended := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		type object struct{ key, value int }
		var l Ledger[int, int]
		var asked []object
		have := map[int]int{}
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			o := object{rapid.IntRange(0, 3).Draw(t, "key"), rapid.IntRange(0, 1).Draw(t, "value")}
			at := slices.Index(asked, o)
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				other := slices.Contains(asked, object{o.key, 1 - o.value})
				if ok := l.Add(o.key, o.value); ok == other {
					t.Fatalf("%v is added: %t; %v are asked for", o, ok, asked)
				} else if ok {
					asked = append(asked, o)
				} else {
					conflicts++
				}
			case 2, 3:
				if ok := l.Remove(o.key, o.value); ok != (at >= 0) {
					t.Fatalf("%v is taken back: %t; %v are asked for", o, ok, asked)
				} else if ok {
					asked = slices.Delete(asked, at, at+1)
					ended++
				}
			case 4:
				l.Begin()
				have = maps.Clone(l.Now)
			default:
				have = apply(t, have, l.Changes(cmp.Compare))
			}
			want := map[int]int{}
			for _, o := range asked {
				want[o.key] = o.value
			}
			if !maps.Equal(l.Now, want) {
				t.Fatalf("there are %v; %v are asked for", l.Now, asked)
			}
		}
		if have = apply(t, have, l.Changes(cmp.Compare)); !maps.Equal(have, l.Now) {
			t.Fatalf("the changes lead to %v instead of %v", have, l.Now)
		}
	})
	if conflicts == 0 || ended == 0 {
		t.Errorf("%d conflicts, %d taken back: something was not tried", conflicts, ended)
	}
}
