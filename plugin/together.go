package plugin

import (
	"context"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// NodeWork is work of a plug-in on a node, as NodeRunner.RunNode.
type NodeWork func(context.Context, NodeEnv) error

// RunTogether does works on one node, each as if it had env alone, until ctx ends or one
// of them fails.
func RunTogether(ctx context.Context, env NodeEnv, works ...NodeWork) error {
	if len(works) == 1 {
		return works[0](ctx, env)
	}
	g, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	said := make([]string, len(works))
	changed := make([]chan struct{}, len(works))
	for i, work := range works {
		changed[i] = make(chan struct{}, 1)
		share := env
		share.Changed = changed[i]
		share.Problem = func(message string) {
			mu.Lock()
			defer mu.Unlock()
			said[i] = message
			env.Problem(strings.Join(slices.DeleteFunc(slices.Clone(said), func(s string) bool { return s == "" }), "; "))
		}
		g.Go(func() error { return work(ctx, share) })
	}
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-env.Changed:
			}
			for _, c := range changed {
				select {
				case c <- struct{}{}:
				default: // it has not looked since the last one
				}
			}
		}
	})
	return g.Wait()
}
