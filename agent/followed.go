package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// follower follows kinds for one choice of plug-ins after the other. What the next reads,
// too, is not read again, and what it reads besides can be read before it begins. It is not
// safe for concurrent use.
type follower struct {
	agent *agent
	// run follows a cache until stop is called.
	run func(*registry.Cache) (stop func())
	// own are the kinds that are followed, but pods where the agent follows those anyway.
	own map[*registry.Kind]following
}

// following is one kind that is followed.
type following struct {
	cache *registry.Cache
	stop  func()
}

// newFollower returns one that follows nothing yet, and nothing after ctx ends.
func (a *agent) newFollower(ctx context.Context, wg *sync.WaitGroup) *follower {
	run := func(c *registry.Cache) func() {
		ctx, stop := context.WithCancel(ctx)
		wg.Go(func() { c.Run(ctx) })
		return stop
	}
	return &follower{agent: a, run: run, own: make(map[*registry.Kind]following)}
}

// follow follows kinds, and no others from now on, and returns their caches.
func (f *follower) follow(kinds []*registry.Kind) (caches []*registry.Cache) {
	for _, k := range kinds {
		if k == api.Pod && f.agent.pods != nil {
			caches = append(caches, f.agent.pods.pods)
			continue
		}
		one, there := f.own[k]
		if !there {
			one.cache = registry.NewCache(f.agent.Registry, []*registry.Kind{k}, f.agent.Log)
			one.stop = f.run(one.cache)
			f.own[k] = one
		}
		caches = append(caches, one.cache)
	}
	for k, one := range f.own {
		if !slices.Contains(kinds, k) {
			one.stop()
			delete(f.own, k)
		}
	}
	return caches
}

// followed is what the node goes by under a choice of plug-ins.
type followed struct {
	caches []*registry.Cache
	// changes delivers after changes in any of them.
	changes chan struct{}
	cancels []func()
}

// use has the node go by kinds, and no others be followed, until end is called. What keeps
// them from being followed is said of the node.
func (f *follower) use(kinds []*registry.Kind) *followed {
	u := &followed{caches: f.follow(kinds), changes: make(chan struct{}, 1)}
	for _, c := range u.caches {
		u.cancels = append(u.cancels, c.Notify(u.changes))
		if f.agent.pods == nil || c != f.agent.pods.pods { // of which it is said anyway
			u.cancels = append(u.cancels, f.agent.goBy(c))
		}
	}
	return u
}

func (f *followed) end() {
	for _, cancel := range f.cancels {
		cancel()
	}
}

// drain forgets the changes that there were.
func (f *followed) drain() {
	select {
	case <-f.changes:
	default:
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
