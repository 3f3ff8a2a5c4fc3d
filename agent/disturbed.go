package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weftnet/weft/datapath"
)

// dispute paces repairs of what others keep changing. The first is at once. If
// the same goes on, each waits twice as long as the one before, so that an
// agent and a program that want different things do not take the node's
// processor from its pods; and it is said who that is.
type dispute struct {
	// times is how many repairs there were in a row, and last when the last of
	// them was due.
	times int
	last  time.Time
	// due says that the last of them has not begun.
	due  bool
	what datapath.Disturbance
}

const (
	// disputeFirst is what the second repair in a row waits, disputeMost the
	// most that one waits, as policies are not in force meanwhile where it is
	// their table that is gone, and disputeOver how long nothing may be changed
	// until it is no dispute any more.
	disputeFirst = 50 * time.Millisecond
	disputeMost  = time.Second
	disputeOver  = time.Minute
	// disputeTold is how many repairs in a row are said to be a dispute.
	disputeTold = 5
)

// noted takes note of a change of somebody else's, and returns when to put
// things right.
func (d *dispute) noted(what datapath.Disturbance, now time.Time) time.Time {
	d.what = what
	switch {
	case d.due: // what changes meanwhile it puts right, too
		return d.last
	case d.times == 0 || d.over(now):
		d.times, d.last = 1, now
	default:
		wait := min(disputeMost, disputeFirst<<min(d.times-1, 20))
		d.times++
		d.last = now
		if due := d.last.Add(wait); due.After(now) {
			d.last = due
		}
	}
	d.due = true
	return d.last
}

func (d *dispute) over(now time.Time) bool { return now.Sub(d.last) >= disputeOver }

// message says that others keep changing things; empty where they do not.
func (d *dispute) message(now time.Time) string {
	if d.times < disputeTold || d.over(now) {
		return ""
	}
	by := "something"
	if d.what.By != "" {
		by = d.what.By
	}
	return fmt.Sprintf("%s keeps changing what is Weft's, the last time %s: stop it, as in between the node does not do what it should", by, d.what.What)
}

// Disturbed asks for a repair, as somebody else changed something.
func (s *syncer) Disturbed(d datapath.Disturbance) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.dispute.due
	due := s.dispute.noted(d, now)
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

// Contested says who keeps changing what is Weft's; empty where nobody does.
func (s *syncer) Contested() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dispute.message(time.Now())
}

// watch has what others change put right at once, until ctx ends, and says where
// it cannot be seen.
func (a *agent) watch(ctx context.Context, s *syncer, w datapath.Watcher) {
	problem := a.problem(watchPart)
	defer problem("")
	for ctx.Err() == nil {
		if err := w.Watch(ctx, func() { problem("") }, s.Disturbed); err != nil && ctx.Err() == nil {
			problem(fmt.Sprintf("cannot follow what others change of Weft's, which is put right every %v only: %v", a.RepairEvery, err))
			sleep(ctx, a.RepairEvery)
		}
	}
}

// survey says now and then, until ctx ends, what others keep from working, or
// that it cannot be seen.
func (a *agent) survey(ctx context.Context, s datapath.Surveyor) {
	problem := a.problem(obstaclePart)
	defer problem("")
	for every := surveyFirst; ; every = a.RepairEvery {
		sleep(ctx, every)
		if ctx.Err() != nil {
			return
		}
		found, err := s.Obstacles()
		if err != nil {
			found = append(found, fmt.Sprintf("it is not known whether others keep what Weft forwards from passing: %v", err))
		}
		problem(strings.Join(found, "; "))
	}
}

// surveyFirst is how long after its start an agent looks first, when it has
// loaded a plan as a rule.
const surveyFirst = 2 * time.Second
