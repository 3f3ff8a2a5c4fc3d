package registrytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/registry"
)

// sameObject says whether two are equal but for how times are represented.
func sameObject(a, b registry.Object) bool { return equality.Semantic.DeepEqual(a, b) }

func watchDeleted(t *testing.T, s *suite) {
	first := s.create(t, setting, newSetting("ns", "a", "1")).(*corev1.ConfigMap)
	_, revision := s.list(t, setting)
	w := s.watch(t, setting, revision)
	first.Data["value"] = "2"
	if _, err := s.Registry.Update(t.Context(), setting, first); err != nil {
		t.Fatal(err)
	}
	if err := s.Registry.Delete(t.Context(), setting, registry.KeyOf(first), ""); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); e.Type != registry.Put || valueOf(e.Object) != "2" {
		t.Errorf("event %+v", e)
	}
	if e := next(t, w); e.Type != registry.Deleted || valueOf(e.Object) != "2" || e.Object.GetUID() != first.UID {
		t.Errorf("event %+v", e)
	}
	// From before all others, everything comes that is still known.
	if s.lacks(t, AllHistory) {
		s.watchAll(t, first)
		return
	}
	all := s.watch(t, setting, "")
	for _, want := range []registry.EventType{registry.Put, registry.Put, registry.Deleted} {
		if e := next(t, all); e.Type != want {
			t.Errorf("event %+v, want type %d", e, want)
		}
	}
}

// watchAll watches from before all revisions a store that others used before,
// and that may have forgotten what they did. An object was created, changed and
// deleted.
func (s *suite) watchAll(t *testing.T, o registry.Object) {
	all, err := s.Registry.Watch(t.Context(), setting, "")
	if err != nil {
		wantError(t, err, registry.ErrCompacted)
		return
	}
	want := []registry.EventType{registry.Put, registry.Put, registry.Deleted}
	for e := range all.Events() {
		if e.Object.GetUID() != o.GetUID() {
			continue
		}
		if e.Type != want[0] {
			t.Errorf("event %+v, want type %d", e, want[0])
		}
		if want = want[1:]; len(want) == 0 {
			return
		}
	}
	wantError(t, all.Err(), registry.ErrCompacted)
}

// churn has several writers create, change and delete objects, and last one
// that says that they are done.
func churn(t *testing.T, s *suite) {
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range 60 {
				o := newSetting("ns", fmt.Sprintf("o%d", random.IntN(8)), strconv.Itoa(n))
				_, err := s.Registry.Create(ctx, setting, o)
				if errors.Is(err, registry.ErrExists) {
					if random.IntN(3) == 0 {
						err = s.Registry.Delete(ctx, setting, registry.KeyOf(o), "")
					} else {
						_, err = registry.Modify(ctx, s.Registry, setting, registry.KeyOf(o), func(now *corev1.ConfigMap) error {
							now.Data = o.Data
							return nil
						})
					}
				}
				if err != nil && !errors.Is(err, registry.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	s.create(t, setting, newSetting("ns", "zz-done", ""))
}

func watchWriters(t *testing.T, s *suite) {
	versions := !s.lacks(t, LastVersions)
	var writers sync.WaitGroup
	writers.Go(func() { churn(t, s) })
	defer writers.Wait()
	var watchers sync.WaitGroup
	finals := make([]map[string]string, 3)
	for i := range finals {
		objects, revision := s.list(t, setting) // in the middle of it all
		w := s.watch(t, setting, revision)
		watchers.Go(func() {
			state := map[string]string{}
			for _, o := range objects {
				state[o.GetName()] = o.GetResourceVersion()
			}
			last := map[string]registry.Revision{}
			for state["zz-done"] == "" {
				e, ok := <-w.Events()
				if !ok {
					t.Errorf("the watch ended: %v", w.Err())
					return
				}
				name, version := e.Object.GetName(), e.Object.GetResourceVersion()
				switch {
				case e.Revision == last[name]:
					t.Errorf("%s: an event came twice: %+v", name, e)
				case e.Type == registry.Put && state[name] == version:
					t.Errorf("%s: a state came twice: %+v", name, e)
				case e.Type == registry.Deleted && state[name] == "":
					t.Errorf("%s: deleted before it was seen", name)
				case e.Type == registry.Deleted && versions && state[name] != version:
					t.Errorf("%s: deleted at version %s, last seen was %s", name, version, state[name])
				}
				last[name] = e.Revision
				if state[name] = version; e.Type == registry.Deleted {
					delete(state, name)
				}
			}
			finals[i] = state
		})
	}
	watchers.Wait()
	want := map[string]string{}
	objects, _ := s.list(t, setting)
	for _, o := range objects {
		want[o.GetName()] = o.GetResourceVersion()
	}
	for i, got := range finals {
		if !maps.Equal(got, want) {
			t.Errorf("watch %d ended with %v, want %v", i, got, want)
		}
	}
}

func watchResume(t *testing.T, s *suite) {
	_, start := s.list(t, setting)
	churn(t, s)
	collect := func(after registry.Revision) (events []registry.Event) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := s.Registry.Watch(ctx, setting, after)
		if err != nil {
			t.Fatal(err)
		}
		for {
			e := next(t, w)
			if events = append(events, e); e.Object.GetName() == "zz-done" {
				return events
			}
		}
	}
	all := collect(start)
	for i := 0; i < len(all)-1; i += 7 {
		rest := collect(all[i].Revision)
		if !slices.EqualFunc(rest, all[i+1:], func(a, b registry.Event) bool {
			return a.Type == b.Type && a.Revision == b.Revision && sameObject(a.Object, b.Object)
		}) {
			t.Fatalf("after event %d of %d, %d events came", i, len(all), len(rest))
		}
	}
}

func watchCompacted(t *testing.T, s *suite) {
	if s.Compact == nil {
		t.Skip("this registry cannot be made to forget")
	}
	ctx := t.Context()
	_, start := s.list(t, setting)
	for i := range 3 {
		s.create(t, setting, newSetting("ns", strconv.Itoa(i), ""))
	}
	s.Compact(t)
	for _, after := range []registry.Revision{"", start} {
		w, err := s.Registry.Watch(ctx, setting, after)
		if err == nil {
			for e := range w.Events() {
				t.Errorf("event %+v", e)
			}
			err = w.Err()
		}
		wantError(t, err, registry.ErrCompacted)
	}
	// From what is known now it goes on.
	objects, now := s.list(t, setting)
	if len(objects) != 3 {
		t.Errorf("listed %v", objects)
	}
	w := s.watch(t, setting, now)
	s.create(t, setting, newSetting("ns", "later", ""))
	if e := next(t, w); e.Object.GetName() != "later" {
		t.Errorf("event %+v", e)
	}
	// One who has been delivered everything is not troubled.
	s.Compact(t)
	s.create(t, setting, newSetting("ns", "latest", ""))
	if e := next(t, w); e.Object.GetName() != "latest" {
		t.Errorf("event %+v", e)
	}
}

func watchContext(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	_, now := s.list(t, setting)
	w, err := s.Registry.Watch(ctx, setting, now)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := s.Registry.Watch(ctx, setting, now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // more than is held for one who does not read
		s.create(t, setting, newSetting("ns", strconv.Itoa(i), ""))
	}
	cancel()
	for _, w := range []registry.Watch{w, slow} {
		for range w.Events() {
		}
		wantError(t, w.Err(), context.Canceled)
	}
	closed := s.watch(t, setting, now)
	s.Registry.Close()
	for range closed.Events() {
	}
	wantError(t, closed.Err(), registry.ErrUnavailable)
	_, _, err = s.Registry.List(t.Context(), setting)
	wantError(t, err, registry.ErrUnavailable)
	if err := s.Registry.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func outage(t *testing.T, s *suite) {
	if s.Stop == nil {
		t.Skip("this registry cannot be taken away")
	}
	ctx := t.Context()
	s.create(t, setting, newSetting("ns", "before", "1"))
	_, revision := s.list(t, setting)
	w := s.watch(t, setting, revision)
	s.create(t, setting, newSetting("ns", "seen", "1"))
	revision = next(t, w).Revision

	s.Stop(t)
	for e := range w.Events() {
		t.Errorf("event %+v", e)
	}
	wantError(t, w.Err(), registry.ErrUnavailable)
	_, err := s.Registry.Get(ctx, setting, registry.Key{Namespace: "ns", Name: "before"})
	wantError(t, err, registry.ErrUnavailable)
	_, _, err = s.Registry.List(ctx, setting)
	wantError(t, err, registry.ErrUnavailable)
	_, err = s.Registry.Create(ctx, setting, newSetting("ns", "during", "1"))
	wantError(t, err, registry.ErrUnavailable)
	_, err = s.Registry.Watch(ctx, setting, revision)
	wantError(t, err, registry.ErrUnavailable)
	_, err = s.Registry.Acquire(ctx, "lease", "me", patience)
	wantError(t, err, registry.ErrUnavailable)

	s.Start(t)
	retry(t, func() error {
		_, err := s.Registry.Create(ctx, setting, newSetting("ns", "after", "1"))
		return err
	})
	retry(t, func() (err error) {
		w, err = s.Registry.Watch(ctx, setting, revision)
		return err
	})
	if e := next(t, w); e.Object.GetName() != "after" {
		t.Errorf("event %+v", e)
	}
	objects, _ := s.list(t, setting)
	if len(objects) != 3 {
		t.Errorf("listed %v", keys(objects))
	}
}

// settings returns what a cache holds, "name=value".
func settings(c *registry.Cache) []string {
	var all []string
	for o := range registry.Each[*corev1.ConfigMap](c, setting) {
		all = append(all, o.Name+"="+o.Data["value"])
	}
	return all
}

// until waits for a cache to hold just what is wanted.
func until(t *testing.T, c *registry.Cache, changed <-chan struct{}, want ...string) {
	t.Helper()
	for !slices.Equal(settings(c), want) {
		wait(t, changed, fmt.Sprintf("the cache to hold %q; it has %q, and its trouble is %v", want, settings(c), c.Err()))
	}
}

// runCache runs a cache until the end of the test.
func runCache(t *testing.T, s *suite) *registry.Cache {
	c := registry.NewCache(s.Registry, []*registry.Kind{setting, volume}, slog.New(slog.NewTextHandler(s.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return c
}

func cache(t *testing.T, s *suite) {
	a := s.create(t, setting, newSetting("ns", "a", "1")).(*corev1.ConfigMap)
	c := runCache(t, s)
	changed, cancel := c.Subscribe()
	defer cancel()
	if err := c.WaitSynced(short(t)); err != nil || !c.Synced() {
		t.Fatal(err)
	}
	until(t, c, changed, "a=1")
	s.create(t, setting, newSetting("ns", "c", "1"))
	s.create(t, setting, newSetting("ns", "b", "1"))
	a.Data["value"] = "2"
	if _, err := s.Registry.Update(t.Context(), setting, a); err != nil {
		t.Fatal(err)
	}
	until(t, c, changed, "a=2", "b=1", "c=1")
	before := c.Snapshot()
	if err := s.Registry.Delete(t.Context(), setting, registry.Key{Namespace: "ns", Name: "b"}, ""); err != nil {
		t.Fatal(err)
	}
	until(t, c, changed, "a=2", "c=1")
	if got := registry.GetAs[*corev1.ConfigMap](before, setting, registry.Key{Namespace: "ns", Name: "b"}); got == nil {
		t.Error("a snapshot changed")
	}
	if got := registry.GetAs[*corev1.ConfigMap](c, setting, registry.Key{Namespace: "ns", Name: "b"}); got != nil {
		t.Errorf("the cache has %v", got)
	}
	if got := c.Get(setting, registry.Key{Namespace: "ns", Name: "c"}); got == nil || valueOf(got) != "1" {
		t.Errorf("the cache has %v", got)
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
	if s.Stop == nil {
		t.Log("this registry cannot be taken away: the cache in an outage is not tested")
		return
	}

	s.Stop(t)
	eventually(t, "the cache to notice the outage", func() bool { return c.Err() != nil })
	wantError(t, c.Err(), registry.ErrUnavailable)
	var o *registry.Outage
	if !errors.As(c.Err(), &o) || o.Since.IsZero() {
		t.Errorf("the cache's trouble is %v", c.Err())
	}
	until(t, c, changed, "a=2", "c=1") // it serves what it knows
	s.Start(t)
	retry(t, func() error {
		_, err := s.Registry.Create(t.Context(), setting, newSetting("ns", "d", "1"))
		return err
	})
	until(t, c, changed, "a=2", "c=1", "d=1")
	eventually(t, "the cache to be content", func() bool { return c.Err() == nil })
}

func cacheCompacted(t *testing.T, s *suite) {
	if s.Compact == nil {
		t.Skip("this registry cannot be made to forget")
	}
	s.create(t, setting, newSetting("ns", "a", "1"))
	s.create(t, setting, newSetting("ns", "b", "1"))
	// A registry that goes away for the cache alone, and meanwhile forgets.
	gate := &gated{Registry: s.Registry}
	c := runCache(t, &suite{Harness: Harness{Registry: gate}, log: s.log})
	changed, cancel := c.Subscribe()
	defer cancel()
	until(t, c, changed, "a=1", "b=1")
	gate.shut()
	if err := s.Registry.Delete(t.Context(), setting, registry.Key{Namespace: "ns", Name: "a"}, ""); err != nil {
		t.Fatal(err)
	}
	s.create(t, setting, newSetting("ns", "c", "1"))
	s.Compact(t)
	until(t, c, changed, "a=1", "b=1")
	gate.open()
	until(t, c, changed, "b=1", "c=1")
}

// gated is a registry whose watches can be made to fail.
type gated struct {
	registry.Registry
	mu     sync.Mutex
	closed bool
	ends   []context.CancelFunc
}

func (g *gated) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, registry.ErrUnavailable
	}
	ctx, end := context.WithCancel(ctx)
	g.ends = append(g.ends, end)
	return g.Registry.Watch(ctx, k, after)
}

func (g *gated) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, end := range g.ends {
		end()
	}
}

func (g *gated) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}
