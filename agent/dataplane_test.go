package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

// TestDataPlaneStories plays what users ask for, what of it fails and agents that
// start, and writes which steps follow, what the Node reports and what is said. Lines are:
//
//	start [PLANE...]       an agent starts where these have something on the node
//	annotation [PLANE]     the Node asks for it, or no longer does
//	config PLANE           the ClusterConfig asks for it
//	fail STEP: WHY         from now on a step fails, as "fail prepare b: no module"
//	mend                   nothing fails any more
//	after DURATION         so much later
func TestDataPlaneStories(t *testing.T) {
	golden.Answers(t, "testdata/dataplane.txtar", func(t *testing.T, _, story string) string { return tellDataPlanes(t, story) })
}

func tellDataPlanes(t *testing.T, story string) string {
	var out strings.Builder
	known := []string{"a", "b", "c"}
	s, now, fails := standing{known: known}, time.Unix(0, 0), map[string]string{}
	annotated, configured := "", "a"
	for line := range strings.Lines(story) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		switch verb {
		case "start":
			present := map[string]bool{}
			for _, name := range strings.Fields(rest) {
				present[name] = true
			}
			s = standing{known: known, present: present, failed: map[string]failure{}, stuck: map[string]failure{}}
		case "annotation":
			annotated = rest
		case "config":
			configured = rest
		case "fail":
			what, why, _ := strings.Cut(rest, ": ")
			fails[what] = why
		case "mend":
			clear(fails)
		case "after":
			d, err := time.ParseDuration(rest)
			if err != nil {
				t.Fatal(err)
			}
			now = now.Add(d)
		default:
			t.Fatalf("%q is no line of such a story", line)
		}
		fmt.Fprintf(&out, "%s\n", line)
		if s.present == nil {
			continue // no agent has started
		}
		s = s.wants(annotated, configured)
		for range 20 {
			next := s.next(now)
			if next.deed == "" {
				break
			}
			var err error
			if why, ok := fails[string(next.deed)+" "+next.plane]; ok {
				err = errors.New(why)
				fmt.Fprintf(&out, "  %s: %s\n", next, why)
			} else {
				fmt.Fprintf(&out, "  %s\n", next)
			}
			s = s.after(next, err, now)
		}
		if next := s.next(now); next.deed != "" {
			t.Errorf("it never ends; next is %s", next)
		}
		fmt.Fprintf(&out, "  = %s", s.report().Text())
		if due := s.due(); !due.IsZero() {
			fmt.Fprintf(&out, ", again after %v", due.Sub(now))
			if !due.After(now) {
				t.Errorf("%s: it is woken again and again, and has nothing to do", line)
			}
		}
		if trouble := s.trouble(); trouble != "" {
			fmt.Fprintf(&out, "\n  ! %s", trouble)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// strictNode is a node in memory that data planes work on. It refuses what the
// contract does not allow, and can be killed between any two moments.
type strictNode struct {
	mu sync.Mutex
	// present are those with something on the node, and inForce those that decide: two
	// within a switch.
	present map[string]bool
	inForce []string
	// applied is whose instance applied a plan last.
	applied *strictPlane
	// moments are how many there are until the agent is killed; negative for never.
	moments int
	kill    context.CancelFunc
	misuse  []string
	fails   map[string]error
	takes   map[string]time.Duration
	done    []string
}

var errKilled = errors.New("killed")

// moment is between two things that a data plane does. It fails once the agent has
// been killed.
func (n *strictNode) moment() error {
	if n.moments == 0 {
		n.kill()
		return errKilled
	}
	n.moments--
	return nil
}

func (n *strictNode) wrong(format string, args ...any) {
	n.misuse = append(n.misuse, fmt.Sprintf(format, args...))
}

type strictPlane struct {
	datapath.DataPlane
	node     *strictNode
	name     string
	prepared []string // those it is prepared to take over from
	closed   bool
}

func (n *strictNode) open(name string) (datapath.DataPlane, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.fails["open "+name]; err != nil {
		return nil, err
	}
	return &strictPlane{node: n, name: name}, nil
}

// enter is called first by each method.
func (p *strictPlane) enter(method string) (leave func(), err error) {
	if !p.node.mu.TryLock() {
		p.node.mu.Lock()
		p.node.wrong("%s of %s while another call runs", method, p.name)
	}
	if p.closed {
		p.node.wrong("%s of %s, which is closed", method, p.name)
	}
	if err := p.node.moment(); err != nil {
		return p.node.mu.Unlock, err
	}
	p.node.done = append(p.node.done, method+" "+p.name)
	time.Sleep(p.node.takes[method+" "+p.name])
	return p.node.mu.Unlock, p.node.fails[method+" "+p.name]
}

func (p *strictPlane) Name() string { return p.name }

func (*strictPlane) Capabilities() datapath.Capabilities {
	return datapath.Capabilities{Tunnels: true, Verdicts: true, AntiSpoof: true}
}

func (p *strictPlane) Present(context.Context) (bool, error) {
	leave, err := p.enter("present")
	defer leave()
	return p.node.present[p.name], err
}

func (p *strictPlane) Prepare(_ context.Context, _ *plan.Plan, from ...datapath.DataPlane) error {
	leave, err := p.enter("prepare")
	defer leave()
	p.prepared = nil
	for _, f := range from {
		other := f.(*strictPlane)
		if other.closed || other.name == p.name || !p.node.present[other.name] {
			p.node.wrong("%s is prepared to take over from %s", p.name, other.name)
		}
		p.prepared = append(p.prepared, other.name)
	}
	p.node.present[p.name] = true
	if err != nil {
		return err
	}
	return p.node.moment()
}

func (p *strictPlane) Apply(context.Context, *plan.Plan) error {
	leave, err := p.enter("switch to")
	defer leave()
	n := p.node
	for name := range n.present {
		if name != p.name && n.applied != p && !slices.Contains(p.prepared, name) {
			n.wrong("%s applies a plan though %s has something on the node, for which it is not prepared", p.name, name)
		}
	}
	if n.applied != p && len(n.inForce) > 0 && len(p.prepared) > 0 {
		n.inForce = append(slices.DeleteFunc(slices.Clone(n.inForce), func(s string) bool { return s == p.name }), p.name)
	}
	n.present[p.name] = true
	if err != nil {
		return fmt.Errorf("%w: %w", datapath.ErrNotTaken, err)
	}
	if err := n.moment(); err != nil {
		return err
	}
	n.inForce, n.applied = []string{p.name}, p
	return n.moment()
}

func (p *strictPlane) Repair(context.Context) ([]string, error) {
	leave, err := p.enter("repair")
	defer leave()
	if p.node.applied != p || !slices.Equal(p.node.inForce, []string{p.name}) {
		p.node.wrong("%s is told to repair while %q decide about packets", p.name, p.node.inForce)
	}
	return nil, err
}

func (p *strictPlane) Remove(context.Context) error {
	leave, err := p.enter("remove")
	defer leave()
	n := p.node
	if slices.Contains(n.inForce, p.name) {
		n.wrong("%s is removed, which decides about packets", p.name)
	}
	if err != nil {
		return err
	}
	if err := n.moment(); err != nil {
		return err
	}
	delete(n.present, p.name)
	return n.moment()
}

func (p *strictPlane) Close() error {
	p.closed = true
	return nil
}

// agentOn is what an agent has of data planes, on a node.
func agentOn(n *strictNode, said *[]string, wake func()) *dataPlanes {
	return newDataPlanes([]string{"a", "b"}, n.open, slog.New(slog.DiscardHandler), func(problem string) {
		if len(*said) == 0 || (*said)[len(*said)-1] != problem {
			*said = append(*said, problem)
		}
	}, wake)
}

// once chooses, and applies the plan as a round does.
func once(ctx context.Context, c *dataPlanes, annotated string) error {
	p := &plan.Plan{}
	if _, err := c.choose(ctx, annotated, "a", p); err != nil {
		return err
	}
	return c.Apply(ctx, p)
}

// TestTakeOverSurvivesKills kills an agent at every moment of a take-over, and again
// at every moment of what the next one does, which may be asked for the other.
func TestTakeOverSurvivesKills(t *testing.T) {
	killed := 0
	for first := 0; ; first++ {
		whole := true
		for second := -1; second < 24; second++ {
			for _, then := range []string{"a", "b"} {
				n := &strictNode{present: map[string]bool{}, moments: -1, fails: map[string]error{}}
				var said []string
				run := func(annotated string, moments int) error {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					n.moments, n.kill = moments, cancel
					c := agentOn(n, &said, func() {})
					defer c.close()
					if err := once(ctx, c, annotated); ctx.Err() == nil {
						return err
					}
					return errKilled
				}
				if err := run("a", -1); err != nil {
					t.Fatal(err)
				}
				if err := run("b", first); errors.Is(err, errKilled) {
					whole = false
					killed++
				} else if err != nil {
					t.Fatalf("killed after %d: %v", first, err)
				}
				_ = run("a", second) // killed as well, or not
				if err := run(then, -1); err != nil {
					t.Errorf("killed after %d and %d, then %s: %v", first, second, then, err)
				}
				if !slices.Equal(n.inForce, []string{then}) || len(n.present) != 1 || len(n.misuse) > 0 {
					t.Errorf("killed after %d and %d, then %s: in force is %q, on the node %v; misuse: %q", first, second, then, n.inForce, n.present, n.misuse)
				}
			}
		}
		if whole {
			break
		}
		if first > 100 {
			t.Fatal("a take-over never ends")
		}
	}
	if killed < 100 {
		t.Errorf("only %d kills", killed)
	}
}

// TestWhatCannotTakeOver has data planes that fail: the one that is there goes on, it
// is said once, and tried again ever more rarely.
func TestWhatCannotTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fail := range []string{"open b", "prepare b", "switch to b"} {
			n := &strictNode{present: map[string]bool{}, moments: -1, fails: map[string]error{fail: errors.New("no module")}}
			var said []string
			woken := make(chan struct{}, 1)
			c := agentOn(n, &said, func() { woken <- struct{}{} })
			if err := once(t.Context(), c, ""); err != nil {
				t.Fatal(err)
			}
			attempts := 0
			for began := time.Now(); ; <-woken {
				attempts++
				if err := once(t.Context(), c, "b"); err != nil {
					t.Fatal(err)
				}
				if r := c.report(); r.Uses != "a" || r.Wants != "b" {
					t.Errorf("%s: it is reported that it uses %q and wants %q", fail, r.Uses, r.Wants)
				}
				if !slices.Equal(n.inForce, []string{"a"}) || len(n.present) != 1 {
					t.Errorf("%s: in force is %q, on the node %v", fail, n.inForce, n.present)
				}
				if time.Since(began) >= 10*time.Minute {
					break
				}
			}
			// 1, 2, 4, … 32 s, then each minute.
			if attempts < 10 || attempts > 16 {
				t.Errorf("%s: %d attempts in ten minutes", fail, attempts)
			}
			want := `annotation weft.network/data-plane asks for data plane b, which cannot take over: `
			if len(said) != 2 || !strings.HasPrefix(said[1], want) || !strings.Contains(said[1], "no module; the node goes on with a, and it is tried again") {
				t.Errorf("%s: it is said %q", fail, said)
			}
			clear(n.fails)
			if err := once(t.Context(), c, "b"); err != nil {
				t.Fatal(err)
			}
			if slices.Equal(n.inForce, []string{"b"}) {
				t.Errorf("%s: it was tried before its time", fail)
			}
			<-woken
			if err := once(t.Context(), c, "b"); err != nil || !slices.Equal(n.inForce, []string{"b"}) || len(n.present) != 1 || said[len(said)-1] != "" {
				t.Errorf("%s, which is over: %v; in force is %q, on the node %v; it is said %q", fail, err, n.inForce, n.present, said)
			}
			c.close()
			if len(n.misuse) > 0 {
				t.Errorf("%s: misuse: %q", fail, n.misuse)
			}
		}
	})
}

// TestWhatFailsAfterLong has a data plane that takes longer to fail than the longest wait for
// another attempt: the node has the one that was there before it is tried again.
func TestWhatFailsAfterLong(t *testing.T) {
	for _, slow := range []string{"prepare b", "switch to b"} {
		synctest.Test(t, func(t *testing.T) {
			n := &strictNode{present: map[string]bool{}, moments: -1, fails: map[string]error{slow: errors.New("no answer")}, takes: map[string]time.Duration{slow: 2 * takeOverMost}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var said []string
			woken := make(chan time.Time, 1)
			c := agentOn(n, &said, func() { woken <- time.Now() })
			if err := once(ctx, c, ""); err != nil {
				t.Fatal(err)
			}
			for attempt := range 10 {
				n.done = nil
				if err := once(ctx, c, "b"); err != nil {
					t.Fatalf("%s: attempt %d does not end: %v; done was %q", slow, attempt, err, n.done)
				}
				tried := slices.DeleteFunc(slices.Clone(n.done), func(s string) bool { return s != slow })
				if len(tried) != 1 || !slices.Equal(n.inForce, []string{"a"}) {
					t.Errorf("%s: attempt %d is made %d times, and in force is %q", slow, attempt, len(tried), n.inForce)
				}
				ended := time.Now()
				if wait, want := (<-woken).Sub(ended), min(takeOverFirst<<attempt, takeOverMost); wait != want {
					t.Errorf("%s: attempt %d is followed by the next after %v, want %v", slow, attempt, wait, want)
				}
			}
			c.close()
			if len(n.misuse) > 0 {
				t.Errorf("%s: misuse: %q", slow, n.misuse)
			}
		})
	}
}

// TestUsersOfADataPlaneFollow has what observes and watches a data plane end before
// another takes over, and go on with that one.
func TestUsersOfADataPlaneFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &strictNode{present: map[string]bool{}, moments: -1, fails: map[string]error{}}
		var said []string
		c := agentOn(n, &said, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var events []string
		var wg sync.WaitGroup
		wg.Go(func() {
			c.each(ctx, func(ctx context.Context, p datapath.DataPlane) {
				mu.Lock()
				events = append(events, "begin "+p.Name())
				mu.Unlock()
				<-ctx.Done()
				n.mu.Lock()
				inForce := slices.Clone(n.inForce)
				n.mu.Unlock()
				mu.Lock()
				events = append(events, fmt.Sprintf("end %s while %s is in force", p.Name(), inForce))
				mu.Unlock()
			})
		})
		for _, name := range []string{"a", "a", "b"} {
			if err := once(ctx, c, name); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		cancel()
		wg.Wait()
		c.close()
		want := []string{"begin a", "end a while [a] is in force", "begin b", "end b while [b] is in force"}
		if !slices.Equal(events, want) {
			t.Errorf("%q; expected %q", events, want)
		}
	})
}
