package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// recorder is a data plane that only remembers, for testing the loop that
// drives one; data planes themselves are tested with packets.
type recorder struct {
	datapath.DataPlane
	mu      sync.Mutex
	applied []*plan.Plan
	repairs int
	fail    error
	// unrepaired is what Repair returns.
	unrepaired error
}

func (r *recorder) Apply(_ context.Context, p *plan.Plan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = append(r.applied, p)
	return r.fail
}

func (*recorder) Capabilities() datapath.Capabilities {
	return datapath.Capabilities{Tunnels: true, Verdicts: true, AntiSpoof: true}
}

func (r *recorder) Repair(context.Context) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repairs++
	return nil, r.unrepaired
}

func (r *recorder) unrepairable(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unrepaired = err
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

func start(t *testing.T, plane *recorder, compile func(*plan.Plan) (plugin.Applied, error)) *syncer {
	s := newSyncer(plane, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), []*registry.Kind{api.NetworkPolicy}, compile, func(round) {})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func somePlan(*plan.Plan) (plugin.Applied, error) {
	return plugin.Applied{Plan: &plan.Plan{Local: plan.Local{Node: "node1"}}}, nil
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

// What the data plane is being brought to is known before that is done: it may be in
// force already.
func TestWhatComesIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSyncer(&recorder{}, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, somePlan, func(round) {})
		s.plane = stuck{s.plane}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		synctest.Wait()
		if p := s.Coming(); p == nil || p.Local.Node != "node1" || s.Last().Plan != nil {
			t.Errorf("what comes is %v, what there is %v", p, s.Last().Plan)
		}
		cancel()
	})
}

// Who waits for a round, and who asks for one, when there are no more is told so at
// once: whoever wants a pod attached must ask again, of what comes after.
func TestPublishEndsWithTheRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSyncer(&recorder{}, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, somePlan, func(round) {})
		s.plane = stuck{s.plane}
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		answered := make(chan error)
		go func() { answered <- s.Publish(t.Context()) }()
		synctest.Wait()
		cancel()
		if err := <-answered; !errors.Is(err, cni.ErrChanging) {
			t.Errorf("who waited is told: %v", err)
		}
		if err := s.Publish(t.Context()); !errors.Is(err, cni.ErrChanging) {
			t.Errorf("who asks later is told: %v", err)
		}
	})
}

// stuck is a data plane that gets no further until it is told to stop.
type stuck struct{ datapath.DataPlane }

func (stuck) Apply(ctx context.Context, _ *plan.Plan) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestManyRequestsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
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

// What keeps failing for the same reason is tried ever more rarely, and at once
// again when the reason changes.
func TestWhatKeepsFailingIsTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{fail: errors.New("no buffer space")}
		start(t, plane, somePlan)
		tries := func(d time.Duration) int {
			before := plane.rounds()
			time.Sleep(d)
			synctest.Wait()
			return plane.rounds() - before
		}
		if n := tries(10 * time.Minute); n < 20 || n > 30+10 { // 10 of them repairs
			t.Errorf("%d rounds in the first ten minutes", n)
		}
		plane.set(errors.New("permission denied"))
		tries(retryAtLatest)
		if n := tries(5 * time.Second); n < 2 {
			t.Errorf("%d rounds in five seconds for another reason", n)
		}
		plane.set(nil)
		tries(retryAtLatest)
		if n := tries(30 * time.Second); n > 1 {
			t.Errorf("%d rounds in half a minute, though nothing is wrong", n)
		}
	})
}

func TestAnInvalidPlanIsNotLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
			return plugin.Applied{Plan: &plan.Plan{Local: plan.Local{Node: "node1", MTU: -1}}}, nil
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
		plane := &recorder{fail: errors.Join(&datapath.EndpointError{Interface: "weftgone", Name: "default/gone", Err: datapath.ErrMissing})}
		s := start(t, plane, somePlan)
		if err := s.Publish(t.Context(), "weftmine"); err != nil {
			t.Errorf("weftmine is in place, yet: %v", err)
		}
		if err := s.Publish(t.Context(), "weftgone"); err == nil {
			t.Error("weftgone is not in place, yet there was no error")
		}
	})
}

// TestWhoNamesNoInterfaceIsToldOfTheWhole has another program's route be in the way of another
// node's subnet. Whoever asks only whether pods that went are gone is told that they are.
func TestWhoNamesNoInterfaceIsToldOfTheWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inTheWay := &datapath.EntryError{Entry: "add route 10.1.2.0/24", Origin: "HostSubnet node2", Err: errors.New("another program's route is in the way")}
		plane := &recorder{fail: errors.Join(inTheWay)}
		s := start(t, plane, somePlan)
		if err := s.Publish(t.Context()); err != nil {
			t.Errorf("of a single entry it is told: %v", err)
		}
		plane.set(errors.Join(inTheWay, errors.New("no buffer space")))
		if err := s.Publish(t.Context()); err == nil || strings.Contains(err.Error(), "in the way") {
			t.Errorf("of more than a single entry it is told: %v", err)
		}
	})
}

// A pod may leave between a plan that still has it and the data plane that misses it. A
// round that comes by itself soon tells whether it did.
func TestAMissingInterfaceIsToldOnceItStaysMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{fail: errors.Join(&datapath.EndpointError{Interface: "weftgone", Name: "default/gone", Err: datapath.ErrMissing})}
		s := start(t, plane, somePlan)
		synctest.Wait()
		if last := s.Last(); last.Err == nil || last.Told != nil {
			t.Errorf("after the first round: %v, told %v", last.Err, last.Told)
		}
		time.Sleep(retryAfter + time.Millisecond)
		synctest.Wait()
		if last := s.Last(); last.Told == nil {
			t.Error("it stays missing, and is not told")
		}
		plane.set(nil)
		s.Publish(t.Context())
		if last := s.Last(); last.Told != nil {
			t.Errorf("nothing is missing any more, and told is %v", last.Told)
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

// TestRepairsNeedNoPlan has others change what is Weft's while nothing can be compiled. It
// is put right at once, as it needs only what was applied before.
func TestRepairsNeedNoPlan(t *testing.T) {
	for what, compile := range map[string]func() (plugin.Applied, error){
		"an invalid plan": func() (plugin.Applied, error) {
			return plugin.Applied{Plan: &plan.Plan{Local: plan.Local{Node: "node1", MTU: -1}}}, nil
		},
		"no plan": func() (plugin.Applied, error) { return plugin.Applied{}, errors.New("nothing is known") },
	} {
		synctest.Test(t, func(t *testing.T) {
			plane, broken := &recorder{}, false
			s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
				if broken {
					return compile()
				}
				return somePlan(nil)
			})
			s.Publish(t.Context())
			broken = true
			s.Publish(t.Context())
			applied, began := plane.rounds(), time.Now()
			s.Disturbed(datapath.Disturbance{What: "nftables table inet weft"})
			synctest.Wait()
			if last := s.Last(); plane.repaired() != 1 || time.Since(began) > 0 || plane.rounds() != applied || !last.Repaired || last.Whole {
				t.Errorf("%s: %d repairs after %v; the round is %+v", what, plane.repaired(), time.Since(began), last)
			}
			time.Sleep(150 * time.Second)
			synctest.Wait()
			if plane.repaired() != 3 {
				t.Errorf("%s: %d repairs, of which the clock should have asked for two", what, plane.repaired())
			}
			broken = false
			s.Publish(t.Context())
			if last := s.Last(); plane.repaired() != 3 || last.Repaired || !last.Whole {
				t.Errorf("%s: once there is a plan there are %d repairs; the round is %+v", what, plane.repaired(), last)
			}
		})
	}
}

// TestARepairIsOwedUntilItIsDone has a repair fail while nothing can be compiled. It is
// tried again, until it works or a plan is applied, which reads everything.
func TestARepairIsOwedUntilItIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane, broken := &recorder{}, false
		s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
			if broken {
				return plugin.Applied{}, errors.New("nothing is known")
			}
			return somePlan(nil)
		})
		s.Publish(t.Context())
		check := func(what string, repairs int, repaired bool) {
			t.Helper()
			s.Publish(t.Context())
			if plane.repaired() != repairs || s.Last().Repaired != repaired {
				t.Errorf("%s: %d repairs, expected %d; the round says %v", what, plane.repaired(), repairs, s.Last().Repaired)
			}
		}
		broken = true
		plane.unrepairable(errors.New("no buffer space"))
		s.Disturbed(datapath.Disturbance{What: "nftables table inet weft"})
		synctest.Wait()
		check("one that fails is tried again", 2, false)
		plane.unrepairable(nil)
		check("it works", 3, true)
		check("it is done", 3, false)
		plane.unrepairable(errors.New("no buffer space"))
		time.Sleep(2 * disputeCools)
		s.Disturbed(datapath.Disturbance{What: "nftables table inet weft"})
		synctest.Wait()
		failed := plane.repaired()
		broken = false
		check("one that fails, and an Apply", failed+1, true)
		check("it is done by that", failed+1, false)
	})
}

// TestNoRepairWhereNoneIsInForce has the switch to another data plane fail, and what was
// before not be ready to take over in turn. Neither is told to repair: the one has never
// applied a plan, the other no longer knows what is on the node.
func TestNoRepairWhereNoneIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &strictNode{present: map[string]bool{}, moments: -1, fails: map[string]error{}}
		var said []string
		planes := agentOn(n, &said, func() {})
		defer planes.close()
		annotated := ""
		s := newSyncer(planes, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, somePlan, func(round) {})
		s.choose = func(ctx context.Context, compiled plugin.Applied) (bool, error) {
			return planes.choose(ctx, annotated, "a", compiled.Plan)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		repair := func() (repaired []string) {
			n.done = nil
			s.Disturbed(datapath.Disturbance{What: "nftables table inet weft"})
			synctest.Wait()
			for _, done := range n.done {
				if strings.HasPrefix(done, "repair ") {
					repaired = append(repaired, done)
				}
			}
			time.Sleep(disputeOver)
			return repaired
		}
		s.Publish(ctx)
		if got := repair(); !slices.Equal(got, []string{"repair a"}) {
			t.Errorf("where a is in force the steps are %q", got)
		}
		n.fails["switch to b"], n.fails["prepare a"] = errors.New("no memory"), errors.New("no memory")
		annotated = "b"
		s.Publish(ctx)
		if got := repair(); len(got) > 0 || planes.report().Uses != "" {
			t.Errorf("where none is in force the steps are %q", got)
		}
		clear(n.fails)
		time.Sleep(takeOverMost)
		s.Publish(ctx)
		if got := repair(); !slices.Equal(got, []string{"repair b"}) {
			t.Errorf("where b is in force the steps are %q", got)
		}
		if len(n.misuse) > 0 {
			t.Errorf("misuse: %q", n.misuse)
		}
	})
}

// What counts as applied is what the data plane does, and stays that while
// what follows is not in force, or not valid.
func TestApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{fail: errors.New("no buffer space")}
		mtu := 1400
		s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
			if mtu == 0 {
				return plugin.Applied{}, errors.New("nothing is known")
			}
			return plugin.Applied{Input: plugin.Input{Node: plugin.Node{MTU: mtu}}, Plan: &plan.Plan{Local: plan.Local{Node: "node1", MTU: mtu}},
				Problems: []plugin.Problem{{Message: "some"}}}, nil
		})
		s.Publish(t.Context())
		if a := s.Applied(); a != nil {
			t.Errorf("applied is %+v, though nothing was", a)
		}
		check := func(what string, fail error, next, want int) {
			t.Helper()
			plane.set(fail)
			mtu = next
			s.Publish(t.Context(), "weftmine")
			if a := s.Applied(); a == nil || a.Plan.Local.MTU != want || a.Input.Node.MTU != want || len(a.Problems) != 1 {
				t.Errorf("%s: applied is %+v", what, a)
			}
			if last := s.Last(); last.Plan == nil || last.Whole != (next == want) {
				t.Errorf("%s: the round is %+v", what, last)
			}
		}
		check("the first", nil, 1500, 1500)
		check("one that fails", errors.New("no buffer space"), 1600, 1500)
		check("an invalid one", nil, -1, 1500)
		check("none at all", nil, 0, 1500)
		check("one that works", nil, 1700, 1700)
		check("one without a pod's interface", errors.Join(&datapath.EndpointError{Interface: "weftgone", Err: datapath.ErrMissing}), 1800, 1800)
	})
}

// A change counts from when it was first noted to when the data plane does
// what follows, rounds that fail included, and no round is counted twice.
func TestEnforcementIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
			time.Sleep(time.Millisecond)
			return somePlan(nil)
		})
		check := func(what string, count uint64, seconds float64) {
			t.Helper()
			var m dto.Metric
			if err := s.metrics.enforced.Write(&m); err != nil {
				t.Fatal(err)
			}
			if h := m.Histogram; h.GetSampleCount() != count || math.Abs(h.GetSampleSum()-seconds) > 1e-6 {
				t.Errorf("%s: %d changes in %f s", what, h.GetSampleCount(), h.GetSampleSum())
			}
		}
		s.Publish(t.Context())
		check("of none", 0, 0)
		if breath := s.Note(); breath != 0 {
			t.Errorf("a lone change waits %s", breath)
		}
		time.Sleep(4 * time.Millisecond)
		s.Note()
		s.Publish(t.Context())
		check("of two at once", 1, 0.005)
		plane.set(errors.New("no buffer space"))
		s.Note()
		s.Publish(t.Context())
		check("of one that failed", 1, 0.005)
		plane.set(nil)
		time.Sleep(retryAfter + time.Millisecond)
		synctest.Wait()
		check("of one that works at last", 2, 0.005+0.001+retryAfter.Seconds()+0.001)
		s.Publish(t.Context())
		check("of none again", 2, 0.005+0.001+retryAfter.Seconds()+0.001)
	})
}

// TestWhatIsLoadedAtFirst has rounds take two seconds of a processor. What changes waits for no
// such round before, but for the first that loads a plan, which followed no change.
func TestWhatIsLoadedAtFirst(t *testing.T) {
	for name, test := range map[string]struct {
		rounds int
		fails  error
		waits  bool
	}{
		"the first":              {1, nil, false},
		"one behind it":          {2, nil, true},
		"one that loads no plan": {1, errors.New("the node's own address is not known"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const took = 2 * time.Second
				s := newSyncer(&recorder{}, slog.New(slog.DiscardHandler), time.Hour, newMetrics(), nil, func(*plan.Plan) (plugin.Applied, error) {
					time.Sleep(took)
					applied, _ := somePlan(nil)
					return applied, test.fails
				}, func(round) {})
				began := time.Now()
				s.used = func() time.Duration { return time.Since(began) }
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { s.Run(ctx) })
				defer wg.Wait()
				defer cancel()
				time.Sleep(took / 2)
				for range test.rounds - 1 {
					s.Kick()
					time.Sleep(took)
				}
				time.Sleep(took/2 + time.Millisecond)
				if breath := s.Note(); breath > 0 != test.waits {
					t.Errorf("a change waits %s", breath)
				}
			})
		})
	}
}

func TestRefusalsBecomeProblems(t *testing.T) {
	refused := []datapath.Refusal{
		{Verdict: plan.Verdict{Origin: "NetworkPolicy default/web ingress[0]"}, Message: "SCTP is denied"},
		{Verdict: plan.Verdict{Origin: "NetworkPolicy default/web ingress[1]"}, Message: "SCTP is denied"},
		{Verdict: plan.Verdict{Origin: "NetworkPolicy default/db ingress[0]"}, Message: "SCTP is denied"},
		{Verdict: plan.Verdict{Origin: "Tenant blue"}, Message: "SCTP is denied"},
		{Message: "SCTP is denied"},
	}
	var got []string
	for _, p := range problems([]*registry.Kind{api.NetworkPolicy}, refused) {
		got = append(got, p.String())
	}
	want := []string{"NetworkPolicy default/web: SCTP is denied", "NetworkPolicy default/db: SCTP is denied", "Tenant blue: SCTP is denied", "SCTP is denied"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// backlog is a compiler that leaves some things for later, each of which takes long.
type backlog struct {
	plugin.Compiler
	left    int
	advance bool
	slices  bool
}

func (b *backlog) LeaveForLater()            {}
func (b *backlog) Advance(plugin.Debt)       { b.advance = true }
func (b *backlog) Hasty() []plugin.Debt      { return nil }
func (b *backlog) Rest(map[plugin.Debt]bool) {}

func (b *backlog) Waiting() []plugin.Debt {
	if b.left == 0 {
		return nil
	}
	return []plugin.Debt{{Owner: "shop", Slices: b.slices}}
}

func (b *backlog) compile(*plan.Plan) (plugin.Applied, error) {
	if b.advance && b.left > 0 {
		time.Sleep(50 * time.Millisecond)
		b.left--
	}
	b.advance = false
	return somePlan(nil)
}

// What the compiler left for later is done one thing after the other. Who asks
// meanwhile waits for no more than one of these, however many there are.
func TestWhatIsLeftForLaterKeepsNobodyWaiting(t *testing.T) {
	for _, slices := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &backlog{left: 100, slices: slices}
			s := newSyncer(&recorder{}, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, b.compile, func(round) {})
			s.gradual = b
			begin := time.Now()
			s.used = func() time.Duration { return time.Since(begin) }
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { s.Run(ctx) })
			defer wg.Wait()
			defer cancel()
			for range 20 {
				time.Sleep(60 * time.Millisecond)
				asked := time.Now()
				if err := s.Publish(ctx); err != nil {
					t.Fatal(err)
				}
				// One may be at work, and another may be begun with.
				if waited := time.Since(asked); waited > 100*time.Millisecond {
					t.Errorf("waited for %v", waited)
				}
			}
			// What takes long gets a hundredth of the time, and slices get a third.
			for rest := 10 * time.Minute; rest > 0; rest -= time.Second {
				time.Sleep(time.Second)
				synctest.Wait()
				if took := time.Since(begin); b.left == 0 && slices && took > 3*100*50*time.Millisecond+10*time.Second {
					t.Errorf("slices of 5 s together took %v", took)
				} else if b.left == 0 {
					return
				}
			}
			t.Errorf("%d are left", b.left)
		})
	}
}
