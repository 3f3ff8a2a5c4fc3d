package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// syncer brings the data plane to what compile says, over and over. Everyone
// who changes an input calls Kick; whoever must know that the change has
// arrived calls Publish. One goroutine, Run, does the work, so requests that
// come while it works are answered together by its next round.
type syncer struct {
	plane   datapath.DataPlane
	compile func(previous *plan.Plan) (plugin.Applied, error)
	// choose, where it is not nil, brings the data plane into force that is asked for,
	// and says whether that is another than before; plane is that one then.
	choose func(context.Context, plugin.Applied) (changed bool, err error)
	// gateways returns those of the subnets that the node has by the plan that another syncer
	// loaded, or another agent. It is asked while this one has loaded none.
	gateways func() ([]netip.Addr, error)
	// gradual is what compile compiles with, nil where that leaves nothing for later.
	gradual plugin.Gradual
	// kinds are those that origins in plans may name.
	kinds []*registry.Kind
	log   *slog.Logger
	// repairEvery is how often what others did to the node is put right.
	repairEvery time.Duration
	metrics     *metrics
	// reported is called after each round.
	reported func(round)
	// used is what the process has used of the node's processors.
	used func() time.Duration

	kick chan struct{}
	// mend ends when what others changed is to be put right.
	mend *time.Timer
	// owed says that this is due, and that no round has done it yet. It is Run's own.
	owed bool
	// calm ends when nobody has changed anything for so long that a dispute is
	// over, which the round that follows reports.
	calm *time.Timer

	mu          sync.Mutex
	dispute     dispute
	asked, done uint64
	last        round
	finished    chan struct{} // closed and replaced after each round
	ended       chan struct{} // closed when there are no more rounds
	// pace is that of rounds for what changes, turns that of those for what the
	// compiler left for later.
	pace  pace
	turns turns
	// since is when the first change came of those that no round began after;
	// zero where there is none.
	since time.Time
	// loaded is when the last round ended that left nothing to be done but what concerns single
	// endpoints or entries, and behind when the first round after it began, or had cause to.
	loaded, behind time.Time

	applied atomic.Pointer[plugin.Applied]
	// coming is the plan that the data plane was brought to last, or is being.
	coming atomic.Pointer[plan.Plan]
}

// round is the outcome of one round.
type round struct {
	// Plan is what the data plane was told to do last, or nil before there was
	// a plan: what was compiled, as far as the data plane can do it.
	Plan *plan.Plan
	// Problems are those that the plug-in found in objects, and which the plan
	// takes into account; Undone is what of the plan the data plane cannot do.
	Problems, Undone []plugin.Problem
	// Err is why the plan could not be compiled or is not wholly in the data
	// plane.
	Err error
	// Told is what of Err is said: not that an interface is missing that the round
	// before did not miss.
	Told error
	// Whole says that the data plane does all of the plan that it can do: what
	// is left out concerns single endpoints alone, as that an interface is missing,
	// or that another program's route is in the way of an endpoint's own. No policy is
	// broken by it: an endpoint is under its policies from the first packet.
	Whole bool
	// Loaded says that what is left out concerns single endpoints or entries alone.
	Loaded bool
	// Repaired says that what others changed was put right as well.
	Repaired bool
	// Able is what the data plane can do; nil before there was a plan.
	Able *datapath.Capabilities

	// compiled is the last valid plan as it was compiled.
	compiled *plan.Plan
	// applied is what the data plane does if it does the whole.
	applied *plugin.Applied
}

// retryAfter is how long after a failed round the next one begins by itself.
// While the reason stays the same, each waits twice as long as the one before,
// up to retryAtLatest.
const (
	retryAfter    = time.Second
	retryAtLatest = 30 * time.Second
)

func newSyncer(plane datapath.DataPlane, log *slog.Logger, repairEvery time.Duration, m *metrics, kinds []*registry.Kind,
	compile func(*plan.Plan) (plugin.Applied, error), reported func(round)) *syncer {
	mend, calm := time.NewTimer(0), time.NewTimer(0)
	mend.Stop()
	calm.Stop()
	return &syncer{mend: mend, calm: calm, plane: plane, compile: compile, kinds: kinds, log: log, repairEvery: repairEvery, metrics: m, reported: reported,
		gateways: readGateways, used: processorTime, pace: paceOfChanges(), turns: newTurns(),
		kick: make(chan struct{}, 1), finished: make(chan struct{}), ended: make(chan struct{})}
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
// else may have failed, and where none is, if one that is still to come would be;
// and cni.ErrChanging when there are no more rounds.
func (s *syncer) Publish(ctx context.Context, interfaces ...string) error {
	if len(interfaces) == 0 {
		interfaces = []string{noInterface}
	}
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
		case <-s.ended:
			return cni.ErrChanging
		case <-ctx.Done():
			return fmt.Errorf("the data plane has not taken the change yet: %w", context.Cause(ctx))
		}
	}
}

// Note takes note of a change that the next round has to do with, and returns
// how long to let others gather before that. A pod that comes or goes here
// does not wait for it.
func (s *syncer) Note() time.Duration {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since = now
	}
	s.metrics.queued.Set(float64(now.UnixMilli()) / 1000)
	return s.pace.breath(now)
}

// Applied is what plugin.NodeEnv.Applied returns.
func (s *syncer) Applied() *plugin.Applied { return s.applied.Load() }

// Coming is what the data plane is being brought to, also before the round has ended, or
// nil: what it has of that may be in force already.
func (s *syncer) Coming() *plan.Plan { return s.coming.Load() }

// Progress returns when all that was known was loaded last, but for what concerns single
// endpoints or entries alone, and since when there is something that is not, a round among it
// that has not ended; zero where there is none.
func (s *syncer) Progress() (loaded, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.behind.IsZero():
		return s.loaded, s.behind
	case s.since.Before(s.loaded): // what is left of that concerns single ones
		return s.loaded, time.Time{}
	}
	return s.loaded, s.since
}

// Last is the outcome of the last round.
func (s *syncer) Last() round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Run works until ctx ends. It is called once.
func (s *syncer) Run(ctx context.Context) {
	defer close(s.ended)
	repair := time.NewTicker(s.repairEvery)
	defer repair.Stop()
	again := time.NewTimer(0) // the first round needs no kick
	defer again.Stop()
	left := time.NewTimer(0)
	left.Stop()
	defer left.Stop()
	backoff := retry.Backoff{First: retryAfter, Last: retryAtLatest}
	wait, yielded, debt := time.Duration(0), false, plugin.Debt{}
	for {
		retried, advancing := false, false
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-s.calm.C:
		case <-again.C:
			retried = true
		case <-repair.C:
			s.owed = true
		case <-s.mend.C:
			s.mending()
			s.owed = true
		case <-left.C:
			advancing = true
			if !yielded { // who asked goes first, once
				select {
				case <-s.kick:
					advancing = false
				default:
				}
			}
			if yielded = !advancing; advancing {
				s.gradual.Advance(debt)
			}
		}
		s.mu.Lock()
		want, previous, since := s.asked, s.last, s.since
		s.since = time.Time{}
		if s.behind.IsZero() {
			if s.behind = since; since.IsZero() || since.Before(s.loaded) {
				s.behind = time.Now()
			}
		}
		s.mu.Unlock()

		start, used := time.Now(), s.used()
		if s.gradual != nil {
			s.gradual.Rest(s.turns.resting(start))
		}
		next := s.round(ctx, previous)
		now := time.Now()
		took, worked := now.Sub(start), s.used()-used
		if ctx.Err() != nil {
			return
		}
		next.Told = datapath.Lasting(next.Err, previous.Err)
		again.Stop()
		if next.Err != nil {
			fresh := previous.Err == nil || previous.Err.Error() != next.Err.Error()
			if fresh {
				backoff.Reset()
			}
			if fresh || retried {
				wait = backoff.Next()
			}
			again.Reset(wait)
		}
		s.metrics.synced.Observe(took.Seconds())
		if next.Loaded {
			s.metrics.done.Set(float64(now.UnixMilli()) / 1000)
		}
		if next.Whole && !since.IsZero() {
			s.metrics.enforced.Observe(now.Sub(since).Seconds())
		}
		s.mu.Lock()
		if next.Loaded {
			s.loaded, s.behind = now, time.Time{}
		}
		if !next.Whole && !since.IsZero() {
			s.since = since
		}
		if advancing {
			s.turns.took(debt, took, worked, s.gradual.Hasty(), now)
		} else {
			if previous.Plan != nil || next.Plan == nil { // all that there is at first is loaded once
				// A round that waited for a processor has taken none from pods.
				s.pace.took(min(took, worked), now)
			}
			if s.gradual != nil {
				s.turns.hurried(s.gradual.Hasty(), min(took, mostlyWaits*worked), now)
			}
		}
		if left.Stop(); s.gradual != nil {
			if waiting := s.gradual.Waiting(); len(waiting) > 0 {
				var rest time.Duration
				debt, rest = s.turns.next(waiting, now)
				left.Reset(rest)
			}
		}
		s.last, s.done = next, want
		close(s.finished)
		s.finished = make(chan struct{})
		s.mu.Unlock()
		// Who gives addresses goes by last, so nobody gets one of what was before.
		if next.applied != nil {
			s.applied.Store(next.applied)
		}
		s.reported(next)
	}
}

// repair puts right what others changed of what was applied last, where that is owed. It
// stays owed until it succeeds.
func (s *syncer) repair(ctx context.Context) {
	if !s.owed {
		return
	}
	drift, err := s.plane.Repair(ctx)
	for _, line := range drift {
		s.log.Warn("put right what others changed", "what", line)
	}
	s.metrics.repaired.Add(float64(len(drift)))
	if err != nil {
		s.log.Debug("cannot put all right", "error", err)
	}
	s.owed = err != nil
}

func (s *syncer) round(ctx context.Context, previous round) round {
	stay := previous
	stay.Whole, stay.Loaded, stay.applied = false, false, nil
	owed := s.owed
	if previous.Plan != nil {
		// Before all that can end the round: what holds on the node must hold also while
		// nothing new can be compiled.
		s.repair(ctx)
	}
	stay.Repaired = owed && !s.owed
	start := time.Now()
	compiled, err := s.compile(previous.compiled)
	if err != nil {
		stay.Err = err
		return stay
	}
	s.metrics.compiled.Observe(time.Since(start).Seconds())
	stay.Problems = compiled.Problems
	if err := compiled.Plan.ValidateAfter(previous.compiled); err != nil {
		// A plug-in that compiles nonsense must not take the node with it.
		stay.Err = fmt.Errorf("plan not loaded, it is invalid: %w", err)
		return stay
	}
	gateways := s.gateways
	if previous.Plan != nil {
		gateways = func() ([]netip.Addr, error) { return gatewaysOf(previous.Plan), nil }
	}
	if err := strands(gateways, compiled.Plan, compiled.Input.Node.Endpoints); err != nil {
		stay.Err = err
		return stay
	}
	s.coming.Store(compiled.Plan)
	enforced := previous.Plan
	if s.choose != nil {
		changed, err := s.choose(ctx, compiled)
		if err != nil {
			stay.Err = err
			return stay
		}
		if changed { // which may do other things
			enforced = nil
		}
	}
	able := s.plane.Capabilities()
	if previous.Able == nil || previous.Able.SCTP != able.SCTP {
		enforced = nil // it was made for another data plane's, or kernel's, lack
	}
	next := round{compiled: compiled.Plan, Able: &able, Repaired: owed}
	possible, impossible := datapath.Possible(compiled.Plan, able)
	var refused []datapath.Refusal
	next.Plan, refused = datapath.Enforceable(possible, able, enforced)
	next.Problems, next.Undone = compiled.Problems, slices.Concat(problems(s.kinds, impossible), problems(s.kinds, refused))
	compiled.Plan, compiled.Problems = next.Plan, slices.Concat(next.Problems, next.Undone)
	start = time.Now()
	if next.Err = s.plane.Apply(ctx, next.Plan); next.Err == nil {
		s.metrics.applied.Observe(time.Since(start).Seconds())
	}
	// What a Repair could not put right Apply has read again, and says it if it is still
	// so. An Apply that fails has the next one read all as well.
	s.owed = false
	next.Loaded = datapath.Concerning(next.Err, "") == nil
	if next.Whole = datapath.Concerning(next.Err) == nil; next.Whole {
		next.applied = &compiled
	}
	return next
}

// problems are what is refused of a plan, once for each object and message.
func problems(kinds []*registry.Kind, refused []datapath.Refusal) []plugin.Problem {
	var all []plugin.Problem
	said := make(map[plugin.Problem]bool)
	for _, r := range refused {
		p := plugin.Problem{Message: r.Message}
		origin := cmp.Or(r.Verdict.Origin, r.Origin)
		var ok bool
		if p.Kind, p.Key, ok = plugin.ParseOrigin(kinds, origin); !ok && origin != "" {
			p.Message = origin + ": " + r.Message
		}
		p.Told = ok && r.Origin == "" // by who compiled the rule, to whom Applied tells it
		if !said[p] {
			said[p] = true
			all = append(all, p)
		}
	}
	return all
}
