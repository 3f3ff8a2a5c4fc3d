package plan

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// number is a key and a value that counts how often it is looked at.
type number int

var looks int

func (n number) Compare(o number) int { looks++; return cmp.Compare(n, o) }
func (n number) Equal(o number) bool  { looks++; return n == o }

type numbers = Table[number, number]

func tableOf(m map[number]number) numbers {
	var t numbers
	for k, v := range m {
		t = t.Set(k, v)
	}
	return t
}

// A table is a map whose keys are in order, whatever is done to it, and no
// earlier table changes.
func TestTableIsAnOrderedMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table numbers
		model := map[number]number{}
		var earlier []numbers
		var earlierModels []map[number]number
		key := rapid.Map(rapid.IntRange(0, 30), func(i int) number { return number(i) })
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k, v := key.Draw(t, "key"), key.Draw(t, "value")
				table = table.Set(k, v)
				model[k] = v
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				table = table.Delete(k)
				delete(model, k)
			},
			"many": func(t *rapid.T) {
				edits := edits().Draw(t, "edits")
				for _, e := range edits {
					if model[e.Key] = e.Value; e.Gone {
						delete(model, e.Key)
					}
				}
				table = table.With(edits)
			},
			"keep": func(t *rapid.T) {
				earlier = append(earlier, table)
				earlierModels = append(earlierModels, maps.Clone(model))
			},
			"get": func(t *rapid.T) {
				k := key.Draw(t, "key")
				v, ok := table.Get(k)
				if want, wantOK := model[k]; v != want || ok != wantOK {
					t.Fatalf("Get(%d) = %d, %v, want %d, %v", k, v, ok, want, wantOK)
				}
			},
			"floor": func(t *rapid.T) {
				k := key.Draw(t, "key")
				want := number(-1)
				for have := range model {
					if have <= k {
						want = max(want, have)
					}
				}
				if got, v, ok := table.Floor(k); ok != (want >= 0) || ok && (got != want || v != model[want]) {
					t.Fatalf("Floor(%d) = %d, %d, %v, want key %d", k, got, v, ok, want)
				}
			},
			"from": func(t *rapid.T) {
				k := key.Draw(t, "key")
				var want, got []number
				for _, have := range slices.Sorted(maps.Keys(model)) {
					if have >= k {
						want = append(want, have)
					}
				}
				for have := range table.From(k) {
					got = append(got, have)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("From(%d) yields %v, want %v", k, got, want)
				}
			},
			"": func(t *rapid.T) {
				checkTable(t, table, model)
				for i := range earlier {
					checkTable(t, earlier[i], earlierModels[i])
				}
			},
		})
	})
}

// edits are up to as many as a table has keys in these tests.
func edits() *rapid.Generator[[]Edit[number, number]] {
	one := rapid.Custom(func(t *rapid.T) Edit[number, number] {
		return Edit[number, number]{number(rapid.IntRange(0, 30).Draw(t, "key")), number(rapid.IntRange(0, 30).Draw(t, "value")), rapid.IntRange(0, 2).Draw(t, "gone") == 0}
	})
	return rapid.OneOf(rapid.SliceOfN(one, 0, 3), rapid.SliceOfN(one, 0, 60))
}

func checkTable(t *rapid.T, table numbers, model map[number]number) {
	if table.Len() != len(model) {
		t.Fatalf("Len is %d, want %d", table.Len(), len(model))
	}
	var keys []number
	for k, v := range table.All() {
		if model[k] != v {
			t.Fatalf("key %d has %d, want %d", k, v, model[k])
		}
		keys = append(keys, k)
	}
	if !slices.Equal(keys, slices.Sorted(maps.Keys(model))) {
		t.Fatalf("keys %v are not those of %v in order", keys, model)
	}
}

func sameShape(a, b *treap[number, number]) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.key == b.key && a.size == b.size && sameShape(a.left, b.left) && sameShape(a.right, b.right)
}

// The shape depends on what a table holds, not on how it came to.
func TestTableShapeIsCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfDistinct(rapid.IntRange(0, 1000), rapid.ID[int]).Draw(t, "keys")
		var a, b numbers
		for _, k := range keys {
			a = a.Set(number(k), number(k))
		}
		detours := rapid.SliceOf(rapid.IntRange(1001, 2000)).Draw(t, "detours")
		for _, k := range detours {
			b = b.Set(number(k), 0)
		}
		for _, k := range rapid.Permutation(keys).Draw(t, "permutation") {
			b = b.Set(number(k), 0).Set(number(k), number(k))
		}
		for _, k := range detours {
			b = b.Delete(number(k))
		}
		if !sameShape(a.root, b.root) {
			t.Fatalf("two shapes for the keys %v", keys)
		}
	})
}

// What Diff says leads from one table to the other, in key order, whether or
// not the two share anything.
func TestTableDiffLeadsToNext(t *testing.T) {
	content := rapid.MapOf(
		rapid.Map(rapid.IntRange(0, 40), func(i int) number { return number(i) }),
		rapid.Map(rapid.IntRange(0, 3), func(i int) number { return number(i) }))
	rapid.Check(t, func(t *rapid.T) {
		from, to := content.Draw(t, "from"), content.Draw(t, "to")
		a, b := tableOf(from), tableOf(to)
		if rapid.Bool().Draw(t, "share") {
			b = a
			for k := range from {
				if _, ok := to[k]; !ok {
					b = b.Delete(k)
				}
			}
			for k, v := range to {
				b = b.Set(k, v)
			}
		}
		changes := a.Diff(b)
		if !slices.IsSortedFunc(changes, func(x, y Change[number, number]) int { return cmp.Compare(x.Key, y.Key) }) {
			t.Fatalf("not in key order: %v", changes)
		}
		got := maps.Clone(from)
		for _, c := range changes {
			old, had := got[c.Key]
			if had != (c.Old != nil) || had && *c.Old != old {
				t.Fatalf("key %d: Old is not what was there", c.Key)
			}
			if c.New == nil {
				delete(got, c.Key)
				continue
			}
			if had && *c.New == old {
				t.Fatalf("key %d did not change", c.Key)
			}
			got[c.Key] = *c.New
		}
		if !maps.Equal(got, to) {
			t.Fatalf("applied to %v it gives %v, want %v", from, got, to)
		}
	})
}

const large = 100_000

func largeTable() numbers {
	var t numbers
	for i := range number(large) {
		t = t.Set(2*i, i)
	}
	return t
}

// Diff of a large table and one made of it looks at what changed and at the
// path that leads there, not at the table.
func TestDiffCostsWhatChanged(t *testing.T) {
	table := largeTable()
	for _, test := range []struct {
		name    string
		next    numbers
		changes int
	}{
		{"nothing", table.Set(0, 0), 0},
		{"one set", table.Set(2*777, -1), 1},
		{"one more", table.Set(2*777+1, -1), 1},
		{"one less", table.Delete(2 * 777), 1},
		{"there and back", table.Delete(2*777).Set(2*777, 777), 0},
		{"three", table.Set(1, 1).Delete(2*5000).Set(2*9000, 0), 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			looks = 0
			changes := table.Diff(test.next)
			if len(changes) != test.changes {
				t.Fatalf("%d changes, want %d", len(changes), test.changes)
			}
			// A treap of this size is about 40 deep; each change costs a few
			// paths from the root.
			if limit := 1000 * (test.changes + 1); looks > limit {
				t.Errorf("looked at %d keys and values of %d, want at most %d", looks, large, limit)
			}
		})
	}
	if n := testing.AllocsPerRun(10, func() { table.Set(2*777, 777) }); n != 0 {
		t.Errorf("setting what is there already makes %v allocations, want none", n)
	}
}

func BenchmarkTableSet(b *testing.B) {
	table := largeTable()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Set(number(i*7919%(2*large)), -1)
	}
}

func BenchmarkTableDiffOneChange(b *testing.B) {
	table := largeTable()
	next := table.Set(2*777, -1)
	b.ReportAllocs()
	for b.Loop() {
		table.Diff(next)
	}
}

// Many edits at once make what they make one after the other, shape and shared parts included.
func TestManyEditsAreOneAfterTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := numbers{}.With(edits().Draw(t, "before"))
		all := edits().Draw(t, "edits")
		want := before
		for _, e := range all {
			if e.Gone {
				want = want.Delete(e.Key)
			} else {
				want = want.Set(e.Key, e.Value)
			}
		}
		got := before.With(all)
		if !sameShape(want.root, got.root) || len(want.Diff(got)) > 0 {
			t.Fatalf("it has other entries or another shape: %v", want.Diff(got))
		}
		if len(before.Diff(got)) == 0 && got != before {
			t.Fatal("nothing changes, and it is another table")
		}
		looks = 0
		before.Diff(got)
		atOnce := looks
		looks = 0
		before.Diff(want)
		if atOnce > looks {
			t.Fatalf("to find the difference takes %d looks, and %d after one edit after the other", atOnce, looks)
		}
	})
}
