package agent

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// hanging is a data plane that takes a plan when it is told what to say of it.
type hanging struct {
	recorder
	says chan error
}

func (h *hanging) Apply(ctx context.Context, _ *plan.Plan) error {
	select {
	case err := <-h.says:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestProgress has a data plane that hangs, fails, and fails in what concerns one pod alone.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{says: make(chan error)}
		s := newSyncer(h, slog.New(slog.DiscardHandler), 24*time.Hour, newMetrics(), nil, somePlan, func(round) {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })
		behind := func(what string, least, most time.Duration) {
			t.Helper()
			synctest.Wait()
			loaded, since := s.Progress()
			late := time.Duration(0)
			if !since.IsZero() {
				late = time.Since(since)
			}
			if late < least || late > most {
				t.Errorf("%s: it was loaded at %v, and is behind for %v", what, loaded, late)
			}
		}
		time.Sleep(10 * time.Minute)
		behind("the first round hangs", 10*time.Minute, 10*time.Minute)
		h.says <- nil
		behind("it is loaded", 0, 0)
		s.Note()
		s.Kick()
		time.Sleep(5 * time.Minute)
		behind("a change hangs", 5*time.Minute, 5*time.Minute)
		h.says <- context.DeadlineExceeded
		time.Sleep(time.Minute)
		behind("it fails", 6*time.Minute, 6*time.Minute)
		h.says <- &datapath.EndpointError{Interface: "weft1", Name: "default/a", Err: datapath.ErrMissing}
		behind("but for one pod it is loaded", 0, 0)
		time.Sleep(time.Minute)
		behind("that is tried again", 0, time.Minute)
		h.says <- nil
		behind("all is", 0, 0)
		cancel()
		wg.Wait()
	})
}
