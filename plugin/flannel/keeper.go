package flannel

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// keeper keeps something true on a node, in either form of the plug-in.
type keeper struct {
	plugin.NodeEnv
	cache *registry.Cache
	said  string
}

// run calls reconcile whenever an object of the kinds or the node has changed,
// and when the time that it returned is over, until ctx ends.
func (k *keeper) run(ctx context.Context, kinds []*registry.Kind, reconcile func(context.Context) (time.Duration, error)) error {
	k.cache = registry.NewCache(k.Registry, kinds, k.Log)
	changed, unsubscribe := k.cache.Subscribe()
	defer unsubscribe()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { k.cache.Run(ctx) })
	k.tell("the registry has not been read yet")
	if err := k.cache.WaitSynced(ctx); err != nil {
		return err
	}

	nodeChanged := k.Changed
	pause := firstPause
	for {
		wait, err := reconcile(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			k.report(err.Error())
			wait, pause = pause, min(2*pause, longestPause)
		default:
			k.report("")
			pause = firstPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case _, ok := <-nodeChanged:
			if !ok {
				nodeChanged = nil // the caller has nothing more to say
			}
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// writeSubnetFile tells other programs about the node's subnet.
func (k *keeper) writeSubnetFile(objects registry.Objects, s Settings, node plugin.Node, subnet Subnet) error {
	config := api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	mtu, err := s.mtu(config, node)
	return errors.Join(err, writeFile(k.SubnetFile, formatSubnetFile(s, subnet, mtu)))
}

// tell says what keeps the node from having its lease to the node's readiness.
func (k *keeper) tell(problem string) {
	if k.Problem != nil {
		k.Problem(problem)
	}
}

// report says what keeps the node from having its lease, "" for nothing, once.
func (k *keeper) report(problem string) {
	k.tell(problem)
	if problem != k.said && problem != "" {
		k.Log.LogAttrs(context.Background(), slog.LevelWarn, problem)
	}
	k.said = problem
}
