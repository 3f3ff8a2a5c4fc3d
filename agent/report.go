package agent

import (
	"context"
	"errors"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/registry"
)

// withdraw takes back what this node said of the policies in force, if none are: nobody
// must go by it, also not when a plug-in that enforces some comes back and has not said
// anything yet. One that is but loading says nothing of them. It tries until that is done
// or ctx ends.
func (a *agent) withdraw(ctx context.Context, mix mixed) {
	if mix.enforces() {
		return
	}
	key := registry.Key{Name: a.Node}
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		o, err := a.Registry.Get(attempt, api.NodeReportKind, key)
		if err == nil {
			if r := o.(*api.NodeReport); len(r.Enforced)+len(r.Problems)+len(r.Untold) > 0 {
				_, err = registry.Modify(attempt, a.Registry, api.NodeReportKind, key, func(r *api.NodeReport) error {
					r.Enforced, r.Problems, r.Untold = nil, nil, nil
					return nil
				})
			}
		}
		cancel()
		if err == nil || errors.Is(err, registry.ErrNotFound) {
			return
		}
		retry.Sleep(ctx, withdrawRetry)
	}
}

// withdrawRetry is how long after an attempt that failed withdraw tries again.
const withdrawRetry = 5 * time.Second
