package agent

import (
	"maps"
	"time"
)

// pace keeps rounds from taking the node's processor from its pods. A lone round
// does not wait, nor do some in a row; where they keep coming, rounds take one part
// in share of the time.
type pace struct {
	share int64
	// longest bounds the wait for a round.
	longest time.Duration
	// spent is what rounds took, less what time has forgiven until at.
	spent time.Duration
	at    time.Time
}

// paceBurst is how long rounds may take in a row before one waits.
const paceBurst = time.Second

// paceOfChanges is for rounds about what changed, as while a large cluster starts,
// and every node's every change reaches every agent.
func paceOfChanges() pace { return pace{share: 4, longest: time.Second} }

// paceOfTheRest is for rounds about what the compiler left for later. Changes wait
// for such a round where it is at work, so that it must seldom be.
func paceOfTheRest() pace { return pace{share: 20, longest: 3 * time.Second} }

// paceOfOwner is for those of one namespace, that who keeps changing what takes long
// meets another's change in one of a hundred cases at most.
func paceOfOwner() pace { return pace{share: 100, longest: 30 * time.Second} }

// turns say which of those to whom the compiler owes something it is the turn of.
type turns struct {
	all pace
	// owners are those that took some time lately.
	owners map[string]*pace
}

func newTurns() turns { return turns{paceOfTheRest(), map[string]*pace{}} }

// next returns, of those who wait in this order, who need not wait any more, or else
// who may go first, and how long until then. There must be one.
func (t *turns) next(waiting []string, now time.Time) (first string, wait time.Duration) {
	for i, owner := range waiting {
		own := time.Duration(0)
		if p := t.owners[owner]; p != nil {
			own = p.breath(now)
		}
		if i == 0 || own < wait {
			first, wait = owner, own
		}
	}
	return first, max(wait, t.all.breath(now))
}

// ordinary is what a change of an ordinary policy takes at most in a large cluster,
// which is nobody's debt, and as long as others may wait for one.
const ordinary = 50 * time.Millisecond

// mostlyWaits is how many times the processor time that a round uses it may take, as it
// waits for the kernel. What it takes beyond that it has waited for processors, which is
// to blame on who uses them.
const mostlyWaits = 4

// hurried takes note that a round that followed some owners' changes at once took a
// time. What is more than ordinary is on them, as on who has had a turn.
func (t *turns) hurried(owners []string, d time.Duration, now time.Time) {
	for _, owner := range owners {
		if own := (d - ordinary) / time.Duration(len(owners)); own > 0 {
			t.charge(owner, own, now)
		}
	}
}

// resting are the owners who have had more than is theirs, and have to wait.
func (t *turns) resting(now time.Time) map[string]bool {
	resting := map[string]bool{}
	for owner, p := range t.owners {
		if p.breath(now) > 0 {
			resting[owner] = true
		}
	}
	return resting
}

// took takes note that a round for an owner that ended now took a time.
func (t *turns) took(owner string, d time.Duration, now time.Time) {
	t.all.took(d, now)
	t.charge(owner, d, now)
}

func (t *turns) charge(owner string, d time.Duration, now time.Time) {
	maps.DeleteFunc(t.owners, func(_ string, p *pace) bool { return p.left(now) == 0 })
	if t.owners[owner] == nil {
		p := paceOfOwner()
		t.owners[owner] = &p
	}
	t.owners[owner].took(d, now)
}

// took takes note that a round that ended now took a time.
func (p *pace) took(d time.Duration, now time.Time) {
	// What is more would only make the wait longer than the longest.
	p.spent = min(p.left(now)+d, paceBurst+p.longest/time.Duration(p.share))
	p.at = now
}

// breath is how long to let changes gather before the next round.
func (p *pace) breath(now time.Time) time.Duration {
	return max(0, (p.left(now)-paceBurst)*time.Duration(p.share))
}

func (p *pace) left(now time.Time) time.Duration {
	return max(0, p.spent-now.Sub(p.at)/time.Duration(p.share))
}
