package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// syncer brings the data plane to what compile says, over and over. Everyone
// who changes an input calls Kick; whoever must know that the change has
// arrived calls Publish. One goroutine, Run, does the work, so requests that
// come while it works are answered together by its next round.
type syncer struct {
	plane   datapath.DataPlane
	compile func(previous *plan.Plan) (*plan.Plan, []plugin.Problem, error)
	log     *slog.Logger
	// repairEvery is how often what others did to the node is put right.
	repairEvery time.Duration
	metrics     *metrics
	// reported is called after each round.
	reported func(round)

	kick chan struct{}
	// took is how long the last round took, in nanoseconds.
	took atomic.Int64

	mu          sync.Mutex
	asked, done uint64
	last        round
	finished    chan struct{} // closed and replaced after each round
}

// round is the outcome of one round.
type round struct {
	// Plan is the plan compiled last, or nil before there was one.
	Plan     *plan.Plan
	Problems []plugin.Problem
	// Err is why the plan could not be compiled or is not wholly in the data
	// plane.
	Err error
}

// retryAfter is how long after a failed round the next one begins by itself.
const retryAfter = time.Second

func newSyncer(plane datapath.DataPlane, log *slog.Logger, repairEvery time.Duration, m *metrics,
	compile func(*plan.Plan) (*plan.Plan, []plugin.Problem, error), reported func(round)) *syncer {
	return &syncer{plane: plane, compile: compile, log: log, repairEvery: repairEvery, metrics: m, reported: reported,
		kick: make(chan struct{}, 1), finished: make(chan struct{})}
}

// Kick asks for a round, and does not wait.
func (s *syncer) Kick() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Publish asks for a round that begins after the call and waits for its end.
// It returns nil if the interfaces named are in the data plane then, whatever
// else may have failed.
func (s *syncer) Publish(ctx context.Context, interfaces ...string) error {
	s.mu.Lock()
	s.asked++
	want := s.asked
	s.mu.Unlock()
	s.Kick()
	for {
		s.mu.Lock()
		done, last, finished := s.done, s.last, s.finished
		s.mu.Unlock()
		if done >= want {
			return datapath.Concerning(last.Err, interfaces...)
		}
		select {
		case <-finished:
		case <-ctx.Done():
			return fmt.Errorf("the data plane has not taken the change yet: %w", context.Cause(ctx))
		}
	}
}

// breath is how long to let the registry's changes gather before the next
// round: while a large cluster starts, every node's every change reaches every
// agent, and rounds must not take the node's processor from its pods. A pod
// that comes or goes here does not wait for it.
func (s *syncer) breath() time.Duration {
	return min(10*time.Duration(s.took.Load()), time.Second)
}

// Last is the outcome of the last round.
func (s *syncer) Last() round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Run works until ctx ends.
func (s *syncer) Run(ctx context.Context) {
	repair := time.NewTicker(s.repairEvery)
	defer repair.Stop()
	retry := time.NewTimer(0) // the first round needs no kick
	defer retry.Stop()
	for {
		repairing := false
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-retry.C:
		case <-repair.C:
			repairing = true
		}
		s.mu.Lock()
		want, previous := s.asked, s.last
		s.mu.Unlock()

		start := time.Now()
		next := s.round(ctx, previous, repairing)
		s.took.Store(int64(time.Since(start)))
		if ctx.Err() != nil {
			return
		}
		retry.Stop()
		if next.Err != nil {
			retry.Reset(retryAfter)
		}
		s.mu.Lock()
		s.last, s.done = next, want
		close(s.finished)
		s.finished = make(chan struct{})
		s.mu.Unlock()
		s.reported(next)
	}
}

func (s *syncer) round(ctx context.Context, previous round, repairing bool) round {
	start := time.Now()
	p, problems, err := s.compile(previous.Plan)
	if err != nil {
		return round{Plan: previous.Plan, Problems: previous.Problems, Err: err}
	}
	s.metrics.compiled.Observe(time.Since(start).Seconds())
	next := round{Plan: p, Problems: problems}
	if err := p.Validate(); err != nil {
		// A plug-in that compiles nonsense must not take the node with it.
		return round{Plan: previous.Plan, Problems: problems, Err: fmt.Errorf("plan not loaded, it is invalid: %w", err)}
	}
	if repairing && previous.Err == nil {
		drift, err := s.plane.Repair(ctx)
		for _, line := range drift {
			s.log.Warn("put right what others changed", "what", line)
		}
		s.metrics.repaired.Add(float64(len(drift)))
		if err != nil {
			next.Err = fmt.Errorf("repair: %w", err)
			return next
		}
	}
	start = time.Now()
	if next.Err = s.plane.Apply(ctx, p); next.Err == nil {
		s.metrics.applied.Observe(time.Since(start).Seconds())
	}
	return next
}
