package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// followed is what an agent follows for a plug-in.
type followed struct {
	// caches hold the plug-in's kinds between them. Where the agent follows its
	// node's pods anyway, the second is that of the pods.
	caches []*registry.Cache
	// changes are those of the caches; one that is not there is nil.
	changes [2]<-chan struct{}
	cancels []func()
}

// followKinds follows kinds until ctx ends, pods not a second time.
func (a *agent) followKinds(ctx context.Context, wg *sync.WaitGroup, kinds []*registry.Kind) *followed {
	f := &followed{}
	own := kinds
	if a.pods != nil {
		own = slices.DeleteFunc(slices.Clone(kinds), func(k *registry.Kind) bool { return k == api.Pod })
	}
	objects := registry.NewCache(a.Registry, own, a.Log)
	f.add(objects)
	if len(own) < len(kinds) {
		f.add(a.pods.pods)
	}
	wg.Go(func() { a.follow(ctx, objects) })
	return f
}

func (f *followed) add(c *registry.Cache) {
	changes, cancel := c.Subscribe()
	f.changes[len(f.caches)] = changes
	f.caches, f.cancels = append(f.caches, c), append(f.cancels, cancel)
}

func (f *followed) cancel() {
	for _, cancel := range f.cancels {
		cancel()
	}
}

// drain forgets the changes that there were.
func (f *followed) drain() {
	for _, c := range f.changes {
		select {
		case <-c:
		default:
		}
	}
}

// snapshot returns the objects as they are, and whether each kind has been read.
func (f *followed) snapshot() (objects registry.Snapshot, complete bool) {
	objects, complete = registry.Snapshot{}, true
	for _, c := range f.caches {
		complete = complete && c.Synced() // before they are looked at
		maps.Copy(objects, c.Snapshot())
	}
	return objects, complete
}
