package registry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/internal/retry"
)

// How long a cache waits before it tries again, at first and at most. The most
// is short, because it is also what a recovery takes.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// For how long a registry must say that it does not know an Optional kind before a Cache goes on
// without it: one that starts may say so of any. It asks again now and then.
var (
	absentAfter = 5 * time.Second
	absentRetry = 30 * time.Second
)

// Cache keeps copies of some kinds of objects, follows their changes, and goes
// on serving the last state while the registry is away. Run does the work; the
// other methods never wait for the registry. Objects handed out are shared:
// nobody may change them.
type Cache struct {
	registry Registry
	log      *slog.Logger
	order    []*Kind
	synced   chan struct{} // closed when each kind was listed

	mu          sync.Mutex
	mirrors     map[*Kind]*mirror // the map itself never changes
	subscribers map[chan struct{}]struct{}
}

// mirror is the copy of one kind.
type mirror struct {
	kind *Kind
	// objects are in key order. A change makes a new slice.
	objects []Object
	listed  bool
	outage  *Outage // nil while the kind is followed
	// absent says that the cache goes on without the kind, which the registry does not know.
	absent bool
}

// Outage says that a kind cannot be followed at present.
type Outage struct {
	Kind *Kind
	// Since is when it began, Err what the last attempt failed with.
	Since time.Time
	Err   error
}

func (o *Outage) Error() string {
	return fmt.Sprintf("not following %s since %s: %v", o.Kind.Plural, o.Since.Format(time.RFC3339), o.Err)
}

// Unwrap returns Err.
func (o *Outage) Unwrap() error { return o.Err }

// NewCache returns an empty cache of some kinds. log hears when the registry
// goes away and comes back.
func NewCache(r Registry, kinds []*Kind, log *slog.Logger) *Cache {
	c := &Cache{
		registry:    r,
		log:         log,
		synced:      make(chan struct{}),
		mirrors:     map[*Kind]*mirror{},
		subscribers: map[chan struct{}]struct{}{},
	}
	for _, k := range kinds {
		if c.mirrors[k] == nil {
			c.mirrors[k] = &mirror{kind: k}
			c.order = append(c.order, k)
		}
	}
	if len(c.order) == 0 {
		close(c.synced)
	}
	return c
}

// Run follows the registry until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, k := range c.order {
		wg.Go(func() { c.follow(ctx, c.mirrors[k]) })
	}
	wg.Wait()
}

// follow keeps one kind up to date until ctx ends.
func (c *Cache) follow(ctx context.Context, m *mirror) {
	var revision Revision
	listed := false
	var unknown time.Time // since when the registry does not know the kind
	wait := retry.Backoff{First: firstRetry, Last: lastRetry}
	for ctx.Err() == nil {
		var err error
		began := time.Now()
		if !listed {
			var objects []Object
			if objects, revision, err = c.registry.List(ctx, m.kind); err == nil {
				listed = true
				c.replace(m, objects)
			}
		}
		if err == nil {
			err = c.watch(ctx, m, &revision)
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrCompacted) {
			listed = false
		} else {
			c.failed(m, err)
		}
		if time.Since(began) > lastRetry {
			wait.Reset()
		}
		most := wait.Next()
		switch {
		case m.listed && !m.absent || !m.kind.Optional || !errors.Is(err, ErrNotInstalled):
			unknown = time.Time{}
		case unknown.IsZero():
			unknown = began
		case time.Since(unknown) >= absentAfter:
			c.without(m)
			most = absentRetry
		}
		retry.Sleep(ctx, most/2+rand.N(most/2))
	}
}

// watch applies changes after *revision until the watch ends, moves *revision
// on, and returns why.
func (c *Cache) watch(ctx context.Context, m *mirror, revision *Revision) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.registry.Watch(ctx, m.kind, *revision)
	if err != nil {
		return err
	}
	c.recovered(m)
	for event := range w.Events() {
		// What else is there is applied in one go, as each costs a copy.
		events := []Event{event}
	collect:
		for len(events) < 256 {
			select {
			case event, ok := <-w.Events():
				if !ok {
					break collect
				}
				events = append(events, event)
			default:
				break collect
			}
		}
		c.apply(m, events)
		*revision = events[len(events)-1].Revision
	}
	return w.Err()
}

func (c *Cache) replace(m *mirror, objects []Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.absent = false
	c.put(m, objects)
}

// without has the cache go on without a kind that was never read.
func (c *Cache) without(m *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.absent {
		m.absent = true
		c.put(m, nil)
	}
}

// put stores the objects of a kind. The cache is locked.
func (c *Cache) put(m *mirror, objects []Object) {
	m.objects = objects
	m.listed = true
	all := true
	for _, other := range c.mirrors {
		all = all && other.listed
	}
	if all && !c.isSynced() {
		close(c.synced)
	}
	c.announce()
}

func (c *Cache) apply(m *mirror, events []Event) {
	objects := slices.Clone(m.objects) // written by this goroutine only
	for _, e := range events {
		i, found := find(objects, KeyOf(e.Object))
		switch {
		case e.Type == Put && found:
			objects[i] = e.Object
		case e.Type == Put:
			objects = slices.Insert(objects, i, e.Object)
		case found:
			objects = slices.Delete(objects, i, i+1)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.objects = objects
	c.announce()
}

func find(objects []Object, key Key) (int, bool) {
	return slices.BinarySearchFunc(objects, key, func(o Object, key Key) int { return KeyOf(o).Compare(key) })
}

func (c *Cache) failed(m *mirror, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.outage == nil {
		m.outage = &Outage{Kind: m.kind, Since: time.Now(), Err: err}
		c.log.Warn("cannot follow the registry, going on with what is known", "kind", m.kind.Plural, "error", err)
		return
	}
	m.outage = &Outage{Kind: m.kind, Since: m.outage.Since, Err: err}
}

func (c *Cache) recovered(m *mirror) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.outage != nil {
		c.log.Info("following the registry again", "kind", m.kind.Plural, "after", time.Since(m.outage.Since).Round(time.Millisecond))
		m.outage = nil
	}
}

// announce tells subscribers of a change. The cache is locked.
func (c *Cache) announce() {
	for ch := range c.subscribers {
		select {
		case ch <- struct{}{}:
		default: // it has not looked since the last one
		}
	}
}

// Subscribe returns a channel that delivers once after each change or
// several, until cancel is called. A first delivery comes at once where there
// is something already.
func (c *Cache) Subscribe() (changed <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	return ch, c.Notify(ch)
}

// Notify is Subscribe with a channel that may be that of several caches. It must have a
// buffer; what it has no room for is not delivered.
func (c *Cache) Notify(ch chan struct{}) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers[ch] = struct{}{}
	for _, m := range c.mirrors {
		if m.listed {
			select {
			case ch <- struct{}{}:
			default:
			}
			break
		}
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, ch)
	}
}

func (c *Cache) isSynced() bool {
	select {
	case <-c.synced:
		return true
	default:
		return false
	}
}

// Synced says whether each kind was read at least once, or is absent.
func (c *Cache) Synced() bool { return c.isSynced() }

// WaitSynced waits until Synced, and returns ctx.Err() together with what
// keeps the registry from being read when ctx ends before.
func (c *Cache) WaitSynced(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), c.Err())
	}
}

// Err returns the *Outage that has lasted longest, or nil when all kinds are
// being followed, but those of Absent.
func (c *Cache) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var longest *Outage
	for _, k := range c.order {
		if o := c.mirrors[k].outage; o != nil && !c.mirrors[k].absent && (longest == nil || o.Since.Before(longest.Since)) {
			longest = o
		}
	}
	if longest == nil {
		return nil
	}
	return longest
}

// Absent returns the outages of the Optional kinds without which the cache goes on, as the
// registry does not know them.
func (c *Cache) Absent() (all []*Outage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.order {
		if m := c.mirrors[k]; m.absent && m.outage != nil {
			all = append(all, m.outage)
		}
	}
	return all
}

// Get returns an object, or nil.
func (c *Cache) Get(k *Kind, key Key) Object {
	objects := c.objects(k)
	if i, found := find(objects, key); found {
		return objects[i]
	}
	return nil
}

// All yields a kind's objects in key order, as they are when it is called.
func (c *Cache) All(k *Kind) iter.Seq[Object] { return slices.Values(c.objects(k)) }

func (c *Cache) objects(k *Kind) []Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mirrors[k]
	if m == nil {
		panic(fmt.Sprintf("registry: the cache was not made to follow %s", k.Plural))
	}
	return m.objects
}

// Snapshot returns the present state of all kinds, which stays as it is. It
// copies no objects.
func (c *Cache) Snapshot() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := make(Snapshot, len(c.mirrors))
	for k, m := range c.mirrors {
		s[k] = m.objects
	}
	return s
}

// Snapshot is a set of objects that changes by Put alone: those of each kind in key order.
type Snapshot map[*Kind][]Object

// NewSnapshot returns a snapshot of the given objects, in any order.
func NewSnapshot(objects map[*Kind][]Object) Snapshot {
	s := maps.Clone(Snapshot(objects))
	for k, list := range s {
		s[k] = slices.SortedFunc(slices.Values(list), func(a, b Object) int { return KeyOf(a).Compare(KeyOf(b)) })
	}
	return s
}

// Put adds an object, or replaces the one of its name. What shares the objects with s, as
// the Cache that s is of, keeps those that it has.
func (s Snapshot) Put(k *Kind, o Object) {
	i, found := find(s[k], KeyOf(o))
	rest := s[k][i:]
	if found {
		rest = rest[1:]
	}
	s[k] = slices.Concat(s[k][:i], []Object{o}, rest)
}

// Get returns an object, or nil.
func (s Snapshot) Get(k *Kind, key Key) Object {
	if i, found := find(s[k], key); found {
		return s[k][i]
	}
	return nil
}

// All yields a kind's objects in key order.
func (s Snapshot) All(k *Kind) iter.Seq[Object] { return slices.Values(s[k]) }

// Objects is what both a Cache and a Snapshot offer.
type Objects interface {
	// Get returns an object, or nil.
	Get(k *Kind, key Key) Object
	// All yields a kind's objects in key order.
	All(k *Kind) iter.Seq[Object]
}

// Each yields a kind's objects as what they are: Each[*corev1.Node](objects,
// api.Node).
func Each[T Object](objects Objects, k *Kind) iter.Seq[T] {
	return func(yield func(T) bool) {
		for o := range objects.All(k) {
			if t, ok := o.(T); ok && !yield(t) {
				return
			}
		}
	}
}

// GetAs returns an object as what it is, or nil.
func GetAs[T Object](objects Objects, k *Kind, key Key) T {
	t, _ := objects.Get(k, key).(T)
	return t
}
