package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// lacking is a registry that does not know some kinds for a while.
type lacking struct {
	registry.Registry
	kinds map[*registry.Kind]bool
	// knows says that it knows them by now, asked counts how often it was asked for them.
	knows atomic.Bool
	asked atomic.Int64
}

func (l *lacking) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if l.kinds[k] && !l.knows.Load() {
		l.asked.Add(1)
		return nil, "", fmt.Errorf("%w: %s %w", registry.ErrUnavailable, k.Plural, registry.ErrNotInstalled)
	}
	return l.Registry.List(ctx, k)
}

// TestAKindThatIsNotInstalled has a cache follow kinds of which the registry does not know one,
// as behind an update: it goes on without one that is optional, says so, and has its objects once
// the registry knows it.
func TestAKindThatIsNotInstalled(t *testing.T) {
	for _, k := range []*registry.Kind{api.AddressPoolKind, api.ClusterConfigKind} {
		synctest.Test(t, func(t *testing.T) {
			stored := memory.New()
			r := &lacking{Registry: stored, kinds: map[*registry.Kind]bool{k: true}}
			c := registry.NewCache(r, []*registry.Kind{api.TagKind, k}, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { c.Run(ctx); close(ended) }()
			defer func() { cancel(); <-ended; stored.Close() }()
			changes, end := c.Subscribe()
			defer end()

			// A registry that starts may not know a kind for a moment.
			time.Sleep(4 * time.Second)
			if synctest.Wait(); c.Synced() || len(c.Absent()) > 0 || !errors.Is(c.Err(), registry.ErrNotInstalled) {
				t.Errorf("%s: at once it is complete: %v, absent: %v, its trouble is %v", k.Plural, c.Synced(), c.Absent(), c.Err())
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if !k.Optional {
				if c.Synced() || len(c.Absent()) > 0 {
					t.Errorf("%s: it goes on without what is not optional", k.Plural)
				}
				return
			}
			if !c.Synced() || len(c.Absent()) != 1 || c.Absent()[0].Kind != k || c.Err() != nil {
				t.Fatalf("%s: it is complete: %v, absent: %v, its trouble is %v", k.Plural, c.Synced(), c.Absent(), c.Err())
			}
			for range c.All(k) {
				t.Error("it has an object of what there is not")
			}
			<-changes
			before := r.asked.Load()
			time.Sleep(10 * time.Minute)
			if asked := r.asked.Load() - before; asked > 60 {
				t.Errorf("in 10 minutes it asked %d times", asked)
			}
			pool := &api.AddressPool{Spec: api.AddressPoolSpec{Addresses: []string{"192.0.2.0/24"}}}
			pool.Name = "public"
			if _, err := stored.Create(ctx, k, pool); err != nil {
				t.Fatal(err)
			}
			r.knows.Store(true)
			time.Sleep(time.Minute)
			if synctest.Wait(); c.Get(k, registry.Key{Name: "public"}) == nil || len(c.Absent()) > 0 || c.Err() != nil {
				t.Errorf("now that it is installed: absent: %v, its trouble is %v", c.Absent(), c.Err())
			}
			select {
			case <-changes:
			default:
				t.Error("nobody is told that it is there")
			}
		})
	}
}
