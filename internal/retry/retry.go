// Package retry repeats work: what failed, ever less often, and what has something to do
// again.
package retry

import (
	"context"
	"time"
)

// Backoff is how long to wait between attempts that fail one after the other.
type Backoff struct {
	// First is the time after the first of them, and Last the longest.
	First, Last time.Duration
	next        time.Duration
}

// Next returns the time to wait after one more attempt that failed: twice the one before.
func (b *Backoff) Next() time.Duration {
	wait := max(b.next, b.First)
	b.next = min(2*wait, b.Last)
	return wait
}

// Reset says that an attempt did not fail.
func (b *Backoff) Reset() { b.next = 0 }

// Sleep waits, and reports whether ctx did not end meanwhile.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Loop is work that is done in rounds, each of which looks at all that there is.
type Loop struct {
	// Changed delivers when there may be something to do.
	Changed <-chan struct{}
	// Pause passes between two rounds, at least.
	Pause time.Duration
	// AfterError passes after a round that failed, at least. What it tried may be what
	// changes.
	AfterError time.Duration
	// Backoff is how long to wait after a round that failed, though nothing changes.
	Backoff Backoff
	// Told, if set, gets the outcome of each round.
	Told func(error)
}

// Run does a round at once, whenever Changed delivers, and when the time is over that the
// last one returned, unless that is 0. It ends with ctx, and returns why that ended.
func (l Loop) Run(ctx context.Context, round func(context.Context) (next time.Duration, err error)) error {
	for {
		wait, err := round(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if l.Told != nil {
			l.Told(err)
		}
		rest := l.Pause
		if err != nil {
			rest, wait = max(rest, l.AfterError), l.Backoff.Next()
		} else {
			l.Backoff.Reset()
		}
		if rest > 0 && !Sleep(ctx, rest) {
			return ctx.Err()
		}
		over := time.NewTimer(wait)
		if wait == 0 {
			over.Stop()
		}
		select {
		case <-ctx.Done():
			over.Stop()
			return ctx.Err()
		case <-l.Changed:
			over.Stop()
		case <-over.C:
		}
	}
}
