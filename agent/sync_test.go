package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// recorder is a data plane that only remembers, for testing the loop that
// drives one; data planes themselves are tested with packets.
type recorder struct {
	datapath.DataPlane
	mu      sync.Mutex
	applied []*plan.Plan
	repairs int
	fail    error
}

func (r *recorder) Apply(_ context.Context, p *plan.Plan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = append(r.applied, p)
	return r.fail
}

func (r *recorder) Repair(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repairs++
	return nil, nil
}

func (r *recorder) rounds() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.applied)
}

func (r *recorder) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

func start(t *testing.T, plane *recorder, compile func(*plan.Plan) (*plan.Plan, []plugin.Problem, error)) *syncer {
	s := newSyncer(plane, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), compile, func(round) {})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func somePlan(*plan.Plan) (*plan.Plan, []plugin.Problem, error) {
	return &plan.Plan{Local: plan.Local{Node: "node1"}}, nil, nil
}

func TestPublishWaitsForARoundThatBeganAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, somePlan)
		synctest.Wait()
		before := plane.rounds()
		if err := s.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if plane.rounds() != before+1 {
			t.Errorf("%d rounds for one request", plane.rounds()-before)
		}
	})
}

func TestManyRequestsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, func(*plan.Plan) (*plan.Plan, []plugin.Problem, error) {
			time.Sleep(time.Millisecond)
			return somePlan(nil)
		})
		synctest.Wait()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if err := s.Publish(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := plane.rounds(); n > 4 {
			t.Errorf("%d rounds for 100 requests at one moment", n)
		}
	})
}

func TestAFailedRoundIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{fail: errors.New("no buffer space")}
		s := start(t, plane, somePlan)
		if err := s.Publish(t.Context()); err == nil {
			t.Error("Publish succeeded though the data plane failed")
		}
		plane.set(nil)
		time.Sleep(retryAfter + time.Millisecond)
		synctest.Wait()
		if err := s.Last().Err; err != nil {
			t.Errorf("not tried again: %v", err)
		}
	})
}

func TestAnInvalidPlanIsNotLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, func(*plan.Plan) (*plan.Plan, []plugin.Problem, error) {
			return &plan.Plan{Local: plan.Local{Node: "node1", MTU: -1}}, nil, nil
		})
		if err := s.Publish(t.Context()); err == nil {
			t.Error("a plan with MTU -1 was accepted")
		}
		if plane.rounds() != 0 {
			t.Error("an invalid plan reached the data plane")
		}
	})
}

func TestAnotherPodsMissingInterfaceIsNotOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{fail: errors.Join(&datapath.MissingError{Interface: "weftgone", Name: "default/gone"})}
		s := start(t, plane, somePlan)
		if err := s.Publish(t.Context(), "weftmine"); err != nil {
			t.Errorf("weftmine is in place, yet: %v", err)
		}
		if err := s.Publish(t.Context(), "weftgone"); err == nil {
			t.Error("weftgone is not in place, yet there was no error")
		}
	})
}

func TestRepairsComeByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		start(t, plane, somePlan)
		time.Sleep(150 * time.Second)
		synctest.Wait()
		plane.mu.Lock()
		defer plane.mu.Unlock()
		if plane.repairs != 2 {
			t.Errorf("%d repairs in two and a half minutes", plane.repairs)
		}
	})
}
