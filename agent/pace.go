package agent

import (
	"cmp"
	"maps"
	"time"

	"github.com/weftnet/weft/plugin"
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

// paceOfSlices is for rounds about what is left for later in slices, of all namespaces and of each.
// Others wait for a slice no longer than for an ordinary change, so that there is nothing to be
// sparing of but the node's processors.
func paceOfSlices() pace { return pace{share: 3, longest: 3 * time.Second} }

// turns say which of what the compiler owes it is the turn of.
type turns struct {
	// rest is the pace of rounds about what may take long, slices that of the others.
	rest, slices pace
	// debts are those for which some time was taken lately.
	debts map[plugin.Debt]*pace
}

func newTurns() turns { return turns{paceOfTheRest(), paceOfSlices(), map[plugin.Debt]*pace{}} }

// all is the pace of all that is of a debt's kind.
func (t *turns) all(d plugin.Debt) *pace {
	if d.Slices {
		return &t.slices
	}
	return &t.rest
}

// next returns, of the debts that wait in this order, which need not wait any more, or else
// which may go first, and how long until then. There must be one. Of slices it is those of
// whose owner least was done lately.
func (t *turns) next(waiting []plugin.Debt, now time.Time) (first plugin.Debt, wait time.Duration) {
	var least time.Duration
	for i, d := range waiting {
		var own, had time.Duration
		if p := t.debts[d]; p != nil {
			if own = p.breath(now); d.Slices {
				had = p.left(now)
			} else {
				had = own
			}
		}
		if own = max(own, t.all(d).breath(now)); i == 0 || cmp.Or(cmp.Compare(own, wait), cmp.Compare(had, least)) < 0 {
			first, wait, least = d, own, had
		}
	}
	return first, wait
}

// ordinary is what a change of an ordinary policy takes at most in a large cluster,
// which is nobody's debt, and as long as others may wait for one.
const ordinary = 50 * time.Millisecond

// mostlyWaits is how many times the processor time that a round uses it may take, as it
// waits for the kernel. What it takes beyond that it has waited for processors, which is
// to blame on who uses them.
const mostlyWaits = 4

// hurried takes note that a round that followed some at once took a time. What is more
// than ordinary is on them, as on who has had a turn.
func (t *turns) hurried(debts []plugin.Debt, d time.Duration, now time.Time) {
	for _, of := range debts {
		if own := (d - ordinary) / time.Duration(len(debts)); own > 0 {
			t.charge(of, own, now)
		}
	}
}

// resting are those of which so much was had that what changes has to wait.
func (t *turns) resting(now time.Time) map[plugin.Debt]bool {
	resting := map[plugin.Debt]bool{}
	for d, p := range t.debts {
		if p.breath(now) > 0 {
			resting[d] = true
		}
	}
	return resting
}

// took takes note that a round about a debt that ended now took a time, and as much of the
// processors as worked says, and followed some others at once. While there are slices all the time,
// many changes are followed beside one, and what is more than that takes is on who made them.
func (t *turns) took(of plugin.Debt, d, worked time.Duration, hasty []plugin.Debt, now time.Time) {
	if of.Slices {
		d = min(d, worked) // else so long others had to wait
		t.hurried(hasty, d-ordinary, now)
	}
	t.all(of).took(d, now)
	t.charge(of, d, now)
}

func (t *turns) charge(of plugin.Debt, d time.Duration, now time.Time) {
	maps.DeleteFunc(t.debts, func(_ plugin.Debt, p *pace) bool { return p.left(now) == 0 })
	if t.debts[of] == nil {
		p := paceOfOwner()
		if of.Slices {
			p = paceOfSlices()
		}
		t.debts[of] = &p
	}
	t.debts[of].took(d, now)
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
