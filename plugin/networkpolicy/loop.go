package networkpolicy

import (
	"context"
	"time"
)

// loop calls round whenever changed delivers, and when the time is over that it
// returned, unless that is 0; after an error, which failed is told of, soon and
// then ever less often. It lets pause pass between two calls, at least, and ends
// with ctx.
func loop(ctx context.Context, changed <-chan struct{}, pause time.Duration, failed func(error), round func(context.Context) (time.Duration, error)) error {
	retry := firstRetry
	for {
		wait, err := round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed(err)
		rest := pause
		if err != nil {
			rest, wait = max(pause, firstRetry), retry
			retry = min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		if rest > 0 && !sleep(ctx, rest) {
			return ctx.Err()
		}
		over := time.NewTimer(wait)
		if wait == 0 {
			over.Stop()
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-over.C:
		}
		over.Stop()
	}
}

// sooner returns the lesser of two times to wait, 0 being without end.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// sleep waits, and reports whether ctx did not end meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
