package agent

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/retry"
)

// dispute paces repairs of what others keep changing. The first is at once. If
// the same goes on fast, each waits twice as long as the one before, so that an
// agent and a program that want different things do not take the node's
// processor from its pods; and it is said who that is.
type dispute struct {
	// row is how many repairs there were with less than disputeOver between any
	// two, and last when the last of them was due.
	row  int
	last time.Time
	// heat is how many of them came faster than disputeCools.
	heat float64
	// due says that the last of them has not begun.
	due bool
	// pause is the longest time between two of them.
	pause time.Duration
	// contested says that repairs came so fast that the node may not have done
	// what it should for a good part of the time. It stays so until it is over.
	contested bool
	what      datapath.Disturbance
}

const (
	// disputeFirst is what a repair waits that follows another at once, and
	// disputeMost the most that one waits, as policies are not in force meanwhile
	// where it is their table that is gone.
	disputeFirst = 50 * time.Millisecond
	disputeMost  = time.Second
	// disputeCools is how long after a repair another is no part of a dispute: a
	// person who edits by hand is slower, and a program that fights for its own
	// faster.
	disputeCools = 2 * time.Second
	// disputeHot is how much heat is a dispute, and disputeLong how many repairs in
	// a row are said to be one though they come slowly, as from a program that
	// undoes Weft's work every few seconds.
	disputeHot  = 5
	disputeLong = 20
	// disputeOver is how long nothing may be changed until it is no dispute any
	// more, and disputeCalm how long until it is not said any more where there was never a
	// longer pause in it: else twice the longest, so that who does something every few
	// seconds is not told of by turns.
	disputeOver = 30 * time.Second
	disputeCalm = 5 * time.Second
)

// noted takes note of a change of somebody else's, and returns when to put
// things right.
func (d *dispute) noted(what datapath.Disturbance, now time.Time) time.Time {
	if d.over(now) {
		*d = dispute{due: d.due, last: d.last}
	}
	d.what = what
	if d.due { // what changes meanwhile it puts right, too
		return d.last
	}
	due := now
	if d.row > 0 {
		d.pause = max(d.pause, now.Sub(d.last))
		d.heat = max(0, d.heat-now.Sub(d.last).Seconds()/disputeCools.Seconds())
		if d.heat > 0 {
			wait := disputeFirst.Seconds() * math.Exp2(min(d.heat-1, 20))
			due = later(now, d.last.Add(min(disputeMost, time.Duration(wait*float64(time.Second)))))
		}
	}
	d.row++
	d.heat++
	d.contested = d.contested || d.heat >= disputeHot
	d.due, d.last = true, due
	return due
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (d *dispute) over(now time.Time) bool { return now.Sub(d.last) >= disputeOver }

// calms is how long nothing may be changed until it is not said any more.
func (d *dispute) calms() time.Duration { return min(disputeOver, max(disputeCalm, 2*d.pause)) }

// calm reports whether nothing was changed for so long.
func (d *dispute) calm(now time.Time) bool { return now.Sub(d.last) >= d.calms() }

// told reports whether it is said that others keep changing things.
func (d *dispute) told(now time.Time) bool {
	return (d.contested || d.row >= disputeLong) && !d.calm(now)
}

// message says that others keep changing things; empty where they do not.
func (d *dispute) message(now time.Time) string {
	if !d.told(now) {
		return ""
	}
	by := ""
	if d.what.By != "" {
		by = ", by " + d.what.By
	}
	return fmt.Sprintf("others keep changing what is Weft's, the last time %s%s: stop what does that, as in between the node does not do what it should", d.what.What, by)
}

// Disturbed asks for a repair, as somebody else changed something.
func (s *syncer) Disturbed(d datapath.Disturbance) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.dispute.due
	due := s.dispute.noted(d, now)
	if s.dispute.told(due) {
		s.calm.Reset(due.Add(s.dispute.calms()).Sub(now))
	}
	if !told {
		s.log.Warn("others changed what is Weft's", "what", d.What, "by", d.By)
		s.mend.Reset(due.Sub(now))
	}
}

// mending says that a repair begins.
func (s *syncer) mending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dispute.due = false
}

// Disputed says who keeps changing what is Weft's; empty where nobody does.
func (s *syncer) Disputed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dispute.message(time.Now())
}

// Contested reports whether somebody changes what is Weft's so often that the
// node may not do what it should.
func (s *syncer) Contested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dispute.contested && !s.dispute.calm(time.Now())
}

// watch has what others change put right at once, until ctx ends, and says where
// it cannot be seen.
func (a *agent) watch(ctx context.Context, s *syncer, w datapath.Watcher) {
	problem := a.problem(watchPart)
	defer problem("")
	for ctx.Err() == nil {
		if err := w.Watch(ctx, func() { problem("") }, s.Disturbed); err != nil && ctx.Err() == nil {
			problem(fmt.Sprintf("cannot follow what others change of Weft's, which is put right every %v only: %v", a.RepairEvery, err))
			retry.Sleep(ctx, a.RepairEvery)
		}
	}
}

// survey says, until ctx ends, what others keep from working, or that it cannot be seen.
// It looks soon after others have changed something, and again a moment later, as what they
// have changed may be in the way of a pod that was just starting then; and now and then as
// well, as not all that they change is told. What Apply was refused it has tried again then.
func (a *agent) survey(ctx context.Context, s *syncer, plane datapath.Surveyor) {
	defer a.obstruct(nil)
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		a.followOthers(ctx, plane, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	next := time.NewTimer(surveyFirst)
	defer next.Stop()
	for {
		again := a.RepairEvery
		select {
		case <-ctx.Done():
			return
		case <-changed:
			again = min(again, surveyAgain)
			if s.Last().Err != nil {
				s.Kick()
			}
		case <-next.C:
		}
		start := time.Now()
		found, err := plane.Obstacles()
		if err != nil {
			found = append(found, fmt.Sprintf("it is not known whether others keep what Weft forwards from passing: %v", err))
		}
		a.obstruct(found)
		next.Reset(again)
		retry.Sleep(ctx, max(surveyRest, surveyShare*time.Since(start)))
	}
}

// followOthers calls f when others change what is theirs, until ctx ends.
func (a *agent) followOthers(ctx context.Context, plane datapath.Surveyor, f func()) {
	problem := a.problem(surveyPart)
	defer problem("")
	for ctx.Err() == nil {
		err := plane.Others(ctx, func() { problem("") }, f)
		if err != nil && ctx.Err() == nil {
			problem(fmt.Sprintf("cannot follow what others change of their own, which is looked at every %v only: %v", a.RepairEvery, err))
			retry.Sleep(ctx, a.RepairEvery)
		}
	}
}

// obstruct takes note of what others keep from working.
func (a *agent) obstruct(found []string) {
	var lines []string
	for _, what := range found {
		lines = append(lines, "obstacle: "+what)
	}
	a.mu.Lock()
	before := a.obstacles
	a.obstacles = lines
	a.mu.Unlock()
	if slices.Equal(before, lines) {
		return
	}
	for _, line := range lines {
		if !slices.Contains(before, line) {
			a.Log.Warn("trouble", "problem", line)
		}
	}
	a.node.Kick()
}

const (
	// surveyFirst is how long after its start an agent looks first, when it has
	// loaded a plan as a rule.
	surveyFirst = 2 * time.Second
	// surveyAgain is how long after others have changed something it looks again.
	surveyAgain = 2 * time.Second
	// surveyRest is how long at least it does not look again, and surveyShare how many
	// times as long as it has looked, so that who changes things all the time has it
	// take two percent of a processor at most.
	surveyRest  = time.Second
	surveyShare = 50
)
