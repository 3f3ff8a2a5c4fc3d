package explore

import (
	"context"
	"slices"
	"time"

	"github.com/weftnet/weft/registry"
)

// Process is a program between two calls to the registry. It is a value.
//
// What the program is doing is told by what it remembered when it began with
// it, and by the answers that it had since: the program is run again from there,
// is given the same answers, and so comes to the same place. It must do the
// same if it is told the same: it has no other clock than that of its Calls, and
// no other source of chance.
type Process[M any] struct {
	// Memory is what it remembered when it began.
	Memory M
	// heard are the answers since then.
	heard []answer
}

// answer is what a call returned.
type answer struct {
	kind  *registry.Kind
	items []*item
	err   error
	time  time.Time
}

// Idle reports whether the process is at the beginning of its work.
func (p Process[M]) Idle() bool { return len(p.heard) == 0 }

// Heard is how many calls it has done since it began.
func (p Process[M]) Heard() int { return len(p.heard) }

// Outdated reports whether the process heard of objects of a kind that the Store
// no longer has so.
func (p Process[M]) Outdated(s *Store, k *registry.Kind) bool {
	return slices.ContainsFunc(p.heard, func(a answer) bool {
		return a.kind == k && slices.ContainsFunc(a.items, func(i *item) bool { return s.items[i.path] != i })
	})
}

// Put adds what the process has heard to a text. Of an object it says whether
// the Store still has it so: only then can a write that goes by it succeed.
func (p Process[M]) Put(t *Text, s *Store) {
	for _, a := range p.heard {
		t.Say("[")
		if !a.time.IsZero() {
			t.Time(a.time)
		}
		for _, i := range a.items {
			if s.items[i.path] == i {
				t.Say("=", i.path, ";")
				continue
			}
			t.Say("old ", i.path)
			t.Add(i.text)
		}
		if a.err != nil {
			t.Say(a.err.Error())
		}
		t.Say("]")
	}
}

// Calls is what a program may use: a registry, and a clock.
type Calls struct {
	store *Store
	quiet func(verb string, k *registry.Kind) bool
	heard []answer
	// next is how many of the answers have been given.
	next int
	// done says that the one call of this step has been made, event what it was.
	done  bool
	event string
}

// stopped is what ends a program at the call that follows its step.
type stopped struct{}

// Step lets a process do one call, and runs it up to before its next one. work
// is what the program does from its memory on; what it returns is what it
// remembers when it begins anew. Calls for which quiet is true are no steps:
// they are done together with the one before or after. s is changed.
//
// Step returns what the call was, or "" if the work has come to its end without
// one.
func (p Process[M]) Step(s *Store, quiet func(verb string, k *registry.Kind) bool, work func(*Calls, M) M) (after Process[M], event string) {
	c := &Calls{store: s, heard: slices.Clip(p.heard), quiet: quiet}
	after.Memory = p.Memory
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(stopped); !ok {
				panic(e)
			}
			after.heard, event = c.heard, c.event
		}
	}()
	after.Memory = work(c, p.Memory)
	return after, c.event
}

// Now is the time, as a call.
func (c *Calls) Now() time.Time {
	return c.call("look at the clock", nil, "", func() answer { return answer{time: c.store.Now} }).time
}

// call does a call, or gives the answer that it had.
func (c *Calls) call(verb string, k *registry.Kind, name string, do func() answer) answer {
	if c.next < len(c.heard) {
		c.next++
		return c.heard[c.next-1]
	}
	silent := c.quiet != nil && c.quiet(verb, k)
	if !silent {
		if c.done {
			panic(stopped{})
		}
		c.done = true
	}
	a := do()
	a.kind = k
	c.heard = append(c.heard, a)
	c.next++
	if !silent {
		if k == nil {
			c.event = verb
		} else {
			c.event = describe(verb, k, name, a.err)
		}
	}
	return a
}

// Look returns the objects of some kinds as one who follows them by a watch
// sees them; it is one call.
func (c *Calls) Look(kinds ...*registry.Kind) registry.Snapshot {
	s := registry.Snapshot{}
	for _, k := range kinds {
		s[k] = objectsOf(c.call("see", k, "", func() answer { return answer{items: c.store.list(k)} }).items)
	}
	return s
}

// Registry returns the registry whose calls are those of the process.
func (c *Calls) Registry() registry.Registry { return &called{Calls: c} }

type called struct {
	*Calls
	direct // for what is not served
}

func one(i *item, err error) answer {
	if err != nil {
		return answer{err: err}
	}
	return answer{items: []*item{i}}
}

func (a answer) object() (registry.Object, error) {
	if a.err != nil {
		return nil, a.err
	}
	return copyOf(a.items[0].object), nil
}

func (c *called) Get(_ context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	return c.call("get", k, key.String(), func() answer { return one(c.Calls.store.get(k, key)) }).object()
}

func (c *called) List(_ context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	a := c.call("list", k, "", func() answer { return answer{items: c.Calls.store.list(k)} })
	objects := objectsOf(a.items)
	for i, o := range objects {
		objects[i] = copyOf(o)
	}
	return objects, "1", nil
}

func (c *called) Create(_ context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	return c.call("create", k, o.GetName(), func() answer { return one(c.Calls.store.create(k, o, opts...)) }).object()
}

func (c *called) Update(_ context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	return c.call("update", k, o.GetName(), func() answer { return one(c.Calls.store.update(k, o, opts...)) }).object()
}

func (c *called) Delete(_ context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	return c.call("delete", k, key.String(), func() answer { return answer{err: c.Calls.store.Delete(k, key, resourceVersion)} }).err
}
