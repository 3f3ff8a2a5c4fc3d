package registrytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weftnet/weft/registry"
)

func (s *suite) acquire(t *testing.T, r registry.Registry, name, holder string, ttl time.Duration) registry.Lease {
	t.Helper()
	l, err := r.Acquire(short(t), name, holder, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (s *suite) wantHolder(t *testing.T, name, want string) {
	t.Helper()
	if got, err := s.Registry.Holder(t.Context(), name); err != nil || got != want {
		t.Fatalf("the holder of %s is %q (%v), want %q", name, got, err, want)
	}
}

func leaseExclusion(t *testing.T, s *suite) {
	s.wantHolder(t, "leader", "")
	var holders, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			for range 3 {
				l, err := s.Registry.Acquire(short(t), "leader", fmt.Sprintf("h%d", i), time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lease", n)
				}
				if got, err := s.Registry.Holder(t.Context(), "leader"); err != nil || got != fmt.Sprintf("h%d", i) {
					t.Errorf("the holder is %q, %v", got, err)
				}
				select {
				case <-l.Lost():
					t.Error("lost what is held")
				default:
				}
				turns.Add(1)
				holders.Add(-1)
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				wait(t, l.Lost(), "Lost after Release")
			}
		})
	}
	// Another lease is another matter.
	other := s.acquire(t, s.Registry, "node/n1", "n1", time.Minute)
	s.wantHolder(t, "node/n1", "n1")
	upper := s.acquire(t, s.Registry, "node/N2", "n2", time.Minute)
	held, err := s.Registry.Holders(t.Context(), "node/")
	if want := map[string]string{"node/n1": "n1", "node/N2": "n2"}; err != nil || !maps.Equal(held, want) {
		t.Errorf("of the nodes' leases are held %v (%v), want %v", held, err, want)
	}
	if err := upper.Release(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if turns.Load() != 15 {
		t.Errorf("%d turns, want 15", turns.Load())
	}
	s.wantHolder(t, "leader", "")
	if err := other.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if held, err := s.Registry.Holders(t.Context(), ""); err != nil || len(held) > 0 {
		t.Errorf("of what was let go, there is %v, %v", held, err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Errorf("a second Release: %v", err)
	}
}

func leaseRefused(t *testing.T, s *suite) {
	for _, c := range []struct {
		name, holder string
		ttl          time.Duration
	}{{"", "h", time.Second}, {"l", "", time.Second}, {"l", "h", time.Millisecond}} {
		_, err := s.Registry.Acquire(t.Context(), c.name, c.holder, c.ttl)
		wantError(t, err, registry.ErrInvalid)
	}
	// Whoever gives up waiting leaves the lease to its holder.
	held := s.acquire(t, s.Registry, "l", "first", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := s.Registry.Acquire(ctx, "l", "second", time.Minute)
		waiting <- err
	}()
	cancel()
	wantError(t, <-waiting, context.Canceled)
	s.wantHolder(t, "l", "first")
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantHolder(t, "l", "")
}

func leaseKilled(t *testing.T, s *suite) {
	if s.Another == nil {
		t.Skip("this registry has no second client")
	}
	other := s.Another(t)
	dead := s.acquire(t, other, "l", "other", time.Second)
	s.wantHolder(t, "l", "other")
	other.Close()
	wait(t, dead.Lost(), "the lease of a closed client to be lost")
	// After its ttl somebody else may have it.
	mine := s.acquire(t, s.Registry, "l", "me", time.Minute)
	s.wantHolder(t, "l", "me")
	if err := mine.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func leaseSameHolder(t *testing.T, s *suite) {
	if s.Another == nil {
		t.Skip("this registry has no second client")
	}
	// A killed process comes back long before its lease expires.
	other := s.Another(t)
	s.acquire(t, other, "l", "me", 24*time.Hour)
	other.Close()
	again := s.acquire(t, s.Registry, "l", "me", 24*time.Hour)
	s.wantHolder(t, "l", "me")
	if err := again.Release(t.Context()); err != nil {
		t.Error(err)
	}
	// A process that was thought dead and is not learns that it is.
	lingering := s.Another(t)
	defer lingering.Close()
	old := s.acquire(t, lingering, "l", "me", 2*time.Second)
	again = s.acquire(t, s.Registry, "l", "me", time.Minute)
	wait(t, old.Lost(), "the old lease to be lost")
	s.wantHolder(t, "l", "me")
	if err := old.Release(t.Context()); err != nil {
		t.Error(err)
	}
	s.wantHolder(t, "l", "me") // the old one's release is no business of the new one
	select {
	case <-again.Lost():
		t.Error("the new lease is lost")
	default:
	}
}

func leaseLost(t *testing.T, s *suite) {
	if s.Stop == nil {
		t.Skip("this registry cannot be taken away")
	}
	l := s.acquire(t, s.Registry, "l", "me", time.Second)
	long := s.acquire(t, s.Registry, "long", "me", time.Hour)
	s.Stop(t)
	wait(t, l.Lost(), "the lease to be lost while the registry is away")
	s.Start(t)
	retry(t, func() error {
		l, err := s.Registry.Acquire(short(t), "l", "other", time.Minute)
		if err == nil {
			err = l.Release(t.Context())
		}
		return err
	})
	// A lease that lasts longer than the outage survives it.
	select {
	case <-long.Lost():
		t.Error("a lease of an hour was lost")
	default:
	}
	s.wantHolder(t, "long", "me")
	if err := long.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func leaks(t *testing.T, s *suite) {
	r := s.Registry
	if s.Another != nil {
		r = s.Another(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, now := s.list(t, setting)
	w, err := r.Watch(ctx, setting, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Watch(t.Context(), setting, now); err != nil {
		t.Fatal(err)
	}
	s.acquire(t, r, "l", "me", time.Minute)
	waiting := make(chan error, 1)
	go func() {
		_, err := r.Acquire(t.Context(), "l", "other", time.Minute)
		waiting <- err
	}()
	released := s.acquire(t, r, "released", "me", time.Minute)
	if err := released.Release(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	for range w.Events() {
	}
	for _, r := range []registry.Registry{r, s.Registry} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-waiting; !errors.Is(err, registry.ErrUnavailable) {
		t.Errorf("one who waits for a lease got %v", err)
	}
	var left string
	defer func() {
		if left != "" {
			t.Errorf("still runs:\n%s", left)
		}
	}()
	eventually(t, "all goroutines of the registry to end", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		left = ""
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			for _, implementation := range []string{"memory", "etcd", "kubernetes"} {
				if strings.Contains(stack, "weft/registry/"+implementation+".") {
					left = stack
				}
			}
		}
		return left == ""
	})
}
