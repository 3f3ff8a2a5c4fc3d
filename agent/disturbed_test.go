package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath"
)

func (r *recorder) repaired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repairs
}

// What others change is put right at once; what they keep changing, ever more
// rarely, and it is said who they are, until they stop.
func TestWhatOthersKeepChanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, somePlan)
		synctest.Wait()
		reported := ""
		s.reported = func(round) { reported = s.Disputed() }
		flush := datapath.Disturbance{What: "nftables table inet weft", By: "firewalld (process 7)"}

		began := time.Now()
		// A change of a second thing does not put off the repair of the first.
		s.Disturbed(flush)
		s.Disturbed(datapath.Disturbance{What: "nftables table inet weft-policy"})
		synctest.Wait()
		if plane.repaired() != 1 || time.Since(began) > 0 {
			t.Errorf("%d repairs in %v", plane.repaired(), time.Since(began))
		}
		if said := s.Disputed(); said != "" || s.Contested() {
			t.Errorf("after one change it is said that %s", said)
		}
		// Many changes at one time are one repair.
		for range 1000 {
			s.Disturbed(flush)
		}
		time.Sleep(disputeFirst)
		synctest.Wait()
		if plane.repaired() != 2 {
			t.Errorf("%d repairs", plane.repaired())
		}
		// Somebody who changes it back each time it is repaired.
		const fight = 10 * time.Minute
		for began := time.Now(); time.Since(began) < fight; time.Sleep(10 * time.Millisecond) {
			s.Disturbed(flush)
		}
		synctest.Wait()
		if n := plane.repaired(); n > 12+int(fight/disputeMost)+int(fight/time.Minute) || n < int(fight/disputeMost)/2 {
			t.Errorf("%d repairs in %v", n, fight)
		}
		if said := s.Disputed(); !strings.Contains(said, "the last time nftables table inet weft, by firewalld (process 7)") || reported != said || !s.Contested() {
			t.Errorf("it is said: %q, and reported: %q", said, reported)
		}
		// That it is over is reported soon after the last change, though there is
		// nothing else to do.
		time.Sleep(disputeMost + disputeOver)
		synctest.Wait()
		if said := s.Disputed(); said != "" || reported != "" || s.Contested() {
			t.Errorf("it is over, and it is said that %q, and reported that %q", said, reported)
		}
		synctest.Wait()
		n, before := plane.repaired(), time.Now()
		s.Disturbed(flush)
		synctest.Wait()
		if plane.repaired() != n+1 || time.Since(before) > 0 {
			t.Errorf("the first change after it was repaired %d times in %v", plane.repaired()-n, time.Since(before))
		}
	})
}

// A person who edits by hand is no dispute, and a program that comes as seldom is
// one once it has come often; neither keeps the node from doing what it should.
func TestWhatOthersChangeSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := &recorder{}
		s := start(t, plane, somePlan)
		synctest.Wait()
		for edit := range disputeLong {
			if said := s.Disputed(); said != "" || s.Contested() {
				t.Errorf("after %d edits it is said that %s", edit, said)
			}
			n, before := plane.repaired(), time.Now()
			s.Disturbed(datapath.Disturbance{What: "route 10.1.2.0/24"})
			synctest.Wait()
			if plane.repaired() == n || time.Since(before) > 0 { // beside those that come now and then
				t.Errorf("edit %d was repaired %d times in %v", edit+1, plane.repaired()-n, time.Since(before))
			}
			time.Sleep(4 * time.Second)
		}
		if said := s.Disputed(); said == "" || s.Contested() {
			t.Errorf("after %d edits it is said that %q, and that the node does not do what it should: %v", disputeLong, said, s.Contested())
		}
	})
}

// blind is a data plane that cannot see what others do while it has an error.
type blind struct {
	*recorder
	mu  sync.Mutex
	err error
	// found are its obstacles, broken ends what follows others.
	found  []string
	broken chan error
	// looked is how often its obstacles were asked for, others what is called when
	// others change something.
	looked int
	others func()
	// deaf is what it has for an error where it cannot tell that.
	deaf error
}

func (b *blind) see(err error, found ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err, b.found = err, found
}

func (b *blind) Watch(ctx context.Context, following func(), _ func(datapath.Disturbance)) error {
	b.mu.Lock()
	err := b.err
	b.mu.Unlock()
	if err != nil {
		return err
	}
	following()
	select {
	case <-ctx.Done():
		return nil
	case err := <-b.broken:
		return err
	}
}

func (b *blind) Obstacles() ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looked++
	return b.found, b.err
}

func (b *blind) Others(ctx context.Context, following, f func()) error {
	b.mu.Lock()
	err := b.deaf
	b.others = f
	b.mu.Unlock()
	if err != nil {
		return err
	}
	following()
	<-ctx.Done()
	return nil
}

// TestOthersChange has others change what is theirs. What is in the way is looked at
// soon after, not too often though they go on, and what was refused is tried again.
func TestOthersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &blind{recorder: &recorder{}, deaf: errors.New("no buffer space")}
		a := &agent{Config: Config{Log: slog.New(slog.DiscardHandler), RepairEvery: time.Minute}, trouble: map[string]string{}, node: &registrar{kick: make(chan struct{}, 1)}}
		a.syncer = start(t, b.recorder, somePlan)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { a.survey(ctx, a.syncer, b) })
		time.Sleep(10 * time.Second)
		if is := undoneOf(a); len(is) != 1 || !strings.Contains(is[0].Message, "cannot follow what others change of their own") {
			t.Errorf("the node says %v", is)
		}
		b.mu.Lock()
		b.deaf = nil
		b.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if is := undoneOf(a); len(is) != 0 {
			t.Errorf("others can be followed again, and the node says %v", is)
		}
		looked, rounds := b.looked, b.rounds()
		b.see(nil, "one drops")
		b.others()
		synctest.Wait()
		if is := undoneOf(a); len(is) != 1 || is[0].Message != "obstacle: one drops" {
			t.Errorf("others have put something in the way, and the node says %v", is)
		}
		if b.looked != looked+1 || b.rounds() != rounds {
			t.Errorf("for one change it was looked %d times, and %d rounds were made, though nothing was refused", b.looked-looked, b.rounds()-rounds)
		}
		// A pod that was starting then is looked for in a moment, though nothing changes.
		b.see(nil, "one is in the way of a pod")
		time.Sleep(surveyRest + surveyAgain)
		synctest.Wait()
		if is := undoneOf(a); len(is) != 1 || is[0].Message != "obstacle: one is in the way of a pod" || b.looked != looked+2 {
			t.Errorf("it was looked %d times, and the node says %v", b.looked-looked, is)
		}
		time.Sleep(surveyRest)
		looked = b.looked
		for range 1000 {
			b.others()
			time.Sleep(10 * time.Millisecond)
		}
		if n := b.looked - looked; n < 5 || n > 11 {
			t.Errorf("others changed something all the time for ten seconds, and it was looked %d times", n)
		}
		time.Sleep(time.Minute)
		b.set(errors.New("a route of somebody's is in the way"))
		a.syncer.Kick()
		time.Sleep(100 * time.Second) // until it is tried seldom
		synctest.Wait()
		b.set(nil)
		b.others()
		synctest.Wait()
		if err := a.syncer.Last().Err; err != nil {
			t.Errorf("what was in the way is gone, and it is still said that %v", err)
		}
	})
}

// TestBlindness has a data plane that cannot see what others change, and what
// they drop. It is said at the node, once, until it can.
func TestBlindness(t *testing.T) {
	for part, test := range map[string]struct {
		run  func(*agent, context.Context, *blind)
		says string
	}{
		"what others change": {func(a *agent, ctx context.Context, b *blind) { a.watch(ctx, a.syncer, b) }, "cannot follow what others change"},
		"what others drop":   {func(a *agent, ctx context.Context, b *blind) { a.survey(ctx, a.syncer, b) }, "it is not known whether others keep"},
	} {
		t.Run(part, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				b := &blind{recorder: &recorder{}, broken: make(chan error)}
				a := &agent{Config: Config{Log: log, RepairEvery: time.Minute}, trouble: map[string]string{}, node: &registrar{kick: make(chan struct{}, 1)}}
				a.syncer = start(t, b.recorder, somePlan)
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				b.see(errors.New("no buffer space"))
				wg.Go(func() { test.run(a, ctx, b) })
				said := func() (messages []string) {
					synctest.Wait()
					for _, p := range undoneOf(a) {
						messages = append(messages, p.Message)
					}
					return messages
				}
				kicked := 0
				for range 10 * 60 {
					time.Sleep(time.Second)
					synctest.Wait()
					select {
					case <-a.node.kick:
						kicked++
					default:
					}
				}
				if is := said(); len(is) != 1 || !strings.Contains(is[0], test.says) || !strings.Contains(is[0], "no buffer space") {
					t.Errorf("the node says %q", is)
				}
				if kicked != 1 {
					t.Errorf("in ten minutes the Node was written %d times", kicked)
				}
				b.see(nil)
				time.Sleep(2 * time.Minute)
				if is := said(); len(is) != 0 {
					t.Errorf("it works again, and the node says %q", is)
				}
				if b.see(nil, "one drops", "another drops"); part == "what others drop" {
					time.Sleep(2 * time.Minute)
					if is := said(); !slices.Equal(is, []string{"obstacle: one drops", "obstacle: another drops"}) {
						t.Errorf("two things are in the way, and the node says %q", is)
					}
				}
				b.see(errors.New("no memory"))
				if part == "what others change" {
					b.broken <- errors.New("no memory")
				}
				time.Sleep(2 * time.Minute)
				if is := said(); len(is) != 1 || !strings.Contains(is[0], "no memory") {
					t.Errorf("it fails again, and the node says %q", is)
				}
				cancel()
				wg.Wait()
				if is := said(); len(is) != 0 {
					t.Errorf("it has ended, and the node says %q", is)
				}
			})
		})
	}
}

// undoneOf is what keeps a node from doing all that its plan says.
func undoneOf(a *agent) []api.Problem {
	undone, _ := a.problems()
	return undone
}
