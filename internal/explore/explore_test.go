package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

var settings = &registry.Kind{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Singular: "configmap",
	New: func() registry.Object { return &corev1.ConfigMap{} },
}

// counting is a system of processes that each count up once.
type counting struct {
	store     *Store
	processes []Process[bool]
}

func count(blind bool) func(*Calls, bool) bool {
	return func(c *Calls, counted bool) bool {
		if counted {
			return true
		}
		r, ctx, key := c.Registry(), context.Background(), registry.Key{Name: "counter"}
		o, err := r.Get(ctx, settings, key)
		if err != nil {
			return false
		}
		m := o.(*corev1.ConfigMap)
		m.Data["count"] += "|"
		if blind { // as a program that overwrites what others wrote
			now, _ := r.Get(ctx, settings, key)
			m.ResourceVersion = now.GetResourceVersion()
		}
		_, err = r.Update(ctx, settings, m)
		return err == nil
	}
}

func (c counting) count() int {
	o, _ := c.store.Get(settings, registry.Key{Name: "counter"})
	return len(o.(*corev1.ConfigMap).Data["count"])
}

func (c counting) counted() (n int) {
	for _, p := range c.processes {
		if p.Memory {
			n++
		}
	}
	return n
}

func explore(t *testing.T, processes int, blind bool) Report {
	store := &Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
	if _, err := store.Create(settings, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"}, Data: map[string]string{"count": ""}}); err != nil {
		t.Fatal(err)
	}
	return Model[counting]{
		Start: counting{store, make([]Process[bool], processes)},
		Next: func(s counting, yield func(string, counting)) {
			for i, p := range s.processes {
				n := counting{s.store.Clone(), slices.Clone(s.processes)}
				var event string
				if n.processes[i], event = p.Step(n.store, nil, count(blind)); event != "" {
					yield(fmt.Sprintf("process %d: %s", i+1, event), n)
				}
			}
		},
		Key: func(s counting) []byte {
			var t Text
			s.store.Put(&t)
			var all []Text
			for _, p := range s.processes {
				var one Text
				one.Say(fmt.Sprint(p.Memory))
				p.Put(&one, s.store)
				all = append(all, one)
			}
			t.AddSet(all...)
			return t.Key(s.store.Now, time.Hour)
		},
		Check: func(s counting) error {
			if s.count() != s.counted() {
				return fmt.Errorf("%d have counted to %d", s.counted(), s.count())
			}
			return nil
		},
	}.Run()
}

// TestLostUpdate has processes count that overwrite each other: the shortest
// story of it is told.
func TestLostUpdate(t *testing.T) {
	r := explore(t, 2, true)
	if r.Wrong == nil || r.Complete {
		t.Fatalf("nothing was found: %v", r)
	}
	if len(r.Story) != 6 || !strings.HasPrefix(r.String(), "2 have counted to 1\nafter 6 events") ||
		!strings.HasSuffix(r.String(), "   6. process 2: update configmap counter\n") {
		t.Errorf("the story is: %s", r)
	}
}

// TestAllStates has processes count by compare-and-swap, and each state visited
// once: what a process did is all that tells it from another.
func TestAllStates(t *testing.T) {
	for processes, states := range map[int]int{
		// A process has not begun, has read the counter as it is, has read it as
		// it was at one of the counts before, or has counted.
		1: 3, 2: 3 + 3 + 1, 3: 4 + 6 + 4 + 1,
	} {
		r := explore(t, processes, false)
		if r.Wrong != nil || !r.Complete || r.States != states {
			t.Errorf("of %d processes: %v; want %d states", processes, r, states)
		}
	}
}

// TestLimit has fewer states visited than there are.
func TestLimit(t *testing.T) {
	m := Model[int]{
		Next:  func(s int, yield func(string, int)) { yield("more", s+1) },
		Key:   func(s int) []byte { return fmt.Append(nil, s) },
		Check: func(int) error { return nil },
		Limit: 7,
	}
	if r := m.Run(); r.States != 7 || r.Complete {
		t.Errorf("%v", r)
	}
}

// TestText holds keys to be the same for what has the same future, and only then.
func TestText(t *testing.T) {
	now := time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
	key := func(now time.Time, say ...any) string {
		var t Text
		for _, s := range say {
			switch s := s.(type) {
			case string:
				t.Say(s)
			case []byte:
				t.Add(textOf(s))
			case time.Time:
				t.Time(s)
			}
		}
		return string(t.Key(now, time.Minute))
	}
	uids := func(a, b, c string) []byte { return fmt.Appendf(nil, `{"uid":%q,"of":[%q,%q]}`, a, b, c) }
	stamp := func(d time.Duration) []byte { return fmt.Appendf(nil, `{"at":%q}`, now.Add(d).Format(time.RFC3339)) }
	for _, c := range []struct {
		what string
		a, b string
		same bool
	}{
		{"UIDs by what they are equal to", key(now, uids("uid-1", "uid-2", "uid-1")), key(now, uids("uid-7", "uid-3", "uid-7")), true},
		{"UIDs that are equal to others", key(now, uids("uid-1", "uid-2", "uid-1")), key(now, uids("uid-1", "uid-2", "uid-2")), false},
		{"times by how long ago they are", key(now, stamp(0)), key(now.Add(time.Second), stamp(time.Second)), true},
		{"times that differ", key(now, stamp(0)), key(now, stamp(time.Second)), false},
		{"long past times by their order", key(now, stamp(-time.Hour), stamp(-2*time.Hour)), key(now, stamp(-3*time.Hour), stamp(-7*time.Hour)), true},
		{"long past times in another order", key(now, stamp(-time.Hour), stamp(-2*time.Hour)), key(now, stamp(-2*time.Hour), stamp(-time.Hour)), false},
		{"long past and not so long past", key(now, stamp(-time.Hour)), key(now, stamp(-time.Second)), false},
		{"words", key(now, "a"), key(now, "b"), false},
		{"when a condition changed", key(now, []byte(`{"lastTransitionTime":"2026-01-05T10:00:00Z","x":1}`)), key(now, []byte(`{"lastTransitionTime":"2026-01-05T11:00:00Z","x":1}`)), true},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: %q and %q", c.what, c.a, c.b)
		}
	}
}

// TestStore does the same at random to a Store and to a registry in memory:
// both answer the same.
func TestStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := t.Context()
		store := &Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		mine, other := store.Registry(), registry.Registry(memory.New())
		// Versions and UIDs differ, so each has its own.
		type pair struct{ mine, other registry.Object }
		var seen []pair
		plain := func(o registry.Object) registry.Object {
			o = copyOf(o)
			o.SetResourceVersion("")
			o.SetUID("")
			o.SetCreationTimestamp(metav1.Time{})
			return o
		}
		same := func(a, b registry.Object, errA, errB error) {
			for _, e := range []error{registry.ErrNotFound, registry.ErrExists, registry.ErrConflict, registry.ErrInvalid} {
				if errors.Is(errA, e) != errors.Is(errB, e) {
					t.Fatalf("one says %v, the other %v", errA, errB)
				}
			}
			if errA == nil {
				if d := cmp.Diff(plain(a), plain(b)); d != "" {
					t.Fatal(d)
				}
				seen = append(seen, pair{a, b})
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "calls") {
			name := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "name")
			switch rapid.IntRange(0, 4).Draw(t, "call") {
			case 0:
				o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
				a, errA := mine.Create(ctx, settings, o)
				b, errB := other.Create(ctx, settings, o)
				same(a, b, errA, errB)
			case 1:
				if len(seen) > 0 {
					was := rapid.SampledFrom(seen).Draw(t, "seen")
					value := rapid.StringMatching("[a-z]{3}").Draw(t, "value")
					change := func(r registry.Registry, o registry.Object) (registry.Object, error) {
						m := copyOf(o).(*corev1.ConfigMap)
						m.Data = map[string]string{"value": value}
						return r.Update(ctx, settings, m)
					}
					a, errA := change(mine, was.mine)
					b, errB := change(other, was.other)
					same(a, b, errA, errB)
				}
			case 2:
				was := pair{&corev1.ConfigMap{}, &corev1.ConfigMap{}}
				if len(seen) > 0 && rapid.Bool().Draw(t, "conditional") {
					was = rapid.SampledFrom(seen).Draw(t, "seen")
				}
				errA := mine.Delete(ctx, settings, registry.Key{Name: name}, was.mine.GetResourceVersion())
				errB := other.Delete(ctx, settings, registry.Key{Name: name}, was.other.GetResourceVersion())
				same(&corev1.ConfigMap{}, &corev1.ConfigMap{}, errors.Join(errA, errB), errors.Join(errB, errA))
				if (errA == nil) != (errB == nil) {
					t.Fatalf("one says %v, the other %v", errA, errB)
				}
			case 3:
				a, errA := mine.Get(ctx, settings, registry.Key{Name: name})
				b, errB := other.Get(ctx, settings, registry.Key{Name: name})
				same(a, b, errA, errB)
			default:
				a, _, _ := mine.List(ctx, settings)
				b, _, _ := other.List(ctx, settings)
				if len(a) != len(b) {
					t.Fatalf("one lists %d, the other %d", len(a), len(b))
				}
				for i := range a {
					same(a[i], b[i], nil, nil)
				}
			}
		}
	})
}

// TestTimeToLive lets an object with a time to live vanish, and one that was
// written again stay.
func TestTimeToLive(t *testing.T) {
	s := &Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
	for _, name := range []string{"goes", "stays"} {
		if _, err := s.Create(settings, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, registry.WithTTL(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Clone()
	s.Advance(30 * time.Second)
	o, _ := s.Get(settings, registry.Key{Name: "stays"})
	if _, err := s.Update(settings, o, registry.WithTTL(time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.Advance(30 * time.Second)
	if left := s.List(settings); len(left) != 1 || left[0].GetName() != "stays" {
		t.Errorf("what is left is %v", left)
	}
	if n := len(before.List(settings)); n != 2 {
		t.Errorf("the clone from before has %d", n)
	}
}
