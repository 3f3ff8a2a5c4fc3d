package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{First: time.Second, Last: 5 * time.Second}
	next := func(n int) (all []time.Duration) {
		for range n {
			all = append(all, b.Next()/time.Second)
		}
		return all
	}
	if got := next(5); !slices.Equal(got, []time.Duration{1, 2, 4, 5, 5}) {
		t.Errorf("it waits for %v", got)
	}
	b.Reset()
	if got := next(2); !slices.Equal(got, []time.Duration{1, 2}) {
		t.Errorf("after a success it waits for %v", got)
	}
}

// TestLoop has rounds fail, be due and be asked for, and looks when each begins.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changed := make(chan struct{}, 1)
		began := time.Now()
		var at []time.Duration
		var told []error
		broken := errors.New("broken")
		rounds := []struct {
			next time.Duration
			err  error
		}{
			{0, broken}, {0, broken}, {0, nil}, // until something changes
			{time.Minute, nil}, {0, broken}, {0, nil},
		}
		loop := Loop{Changed: changed, Pause: 100 * time.Millisecond, AfterError: 200 * time.Millisecond, Backoff: Backoff{First: time.Second, Last: 10 * time.Second},
			Told: func(err error) { told = append(told, err) }}
		ended := make(chan error)
		go func() {
			ended <- loop.Run(ctx, func(context.Context) (time.Duration, error) {
				r := rounds[len(at)]
				at = append(at, time.Since(began))
				return r.next, r.err
			})
		}()
		time.Sleep(time.Hour)
		changed <- struct{}{}
		time.Sleep(time.Hour)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
		// The time to wait begins after the pause.
		const pause, hour = 100 * time.Millisecond, time.Hour
		want := []time.Duration{0, 2*pause + time.Second, 4*pause + 3*time.Second, hour, hour + pause + time.Minute, hour + 3*pause + time.Minute + time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("rounds begin at %v, not at %v", at, want)
		}
		if !slices.Equal(told, []error{broken, broken, nil, nil, broken, nil}) {
			t.Errorf("it tells of %v", told)
		}
	})
}
