package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// queue holds what takes as long as everything else that changes in an ordinary round,
// above all the subjects whose policies are so large that to make sets of them does. A
// call of Compile that is told to advance takes one thing, so that whoever changes
// little waits for no more than that. Until its turn a subject has the sets that it had
// before: its policies are an older version, as if they had been changed later. A pod
// that comes to a subject meanwhile has what it had before, or, where it is new, is
// allowed nothing; see apart.
//
// Each thing is owed to a namespace, or to the cluster, which is "". They take turns,
// so that one that is owed much does not keep the others waiting. What one is owed it
// gets in the order in which it came.
type queue struct {
	gradual bool
	// advance says that one thing that is owed to owner is to be taken.
	advance bool
	owner   string
	// resting are the owners whose rules wait however small they are, and hasty those
	// whose did not wait in the last update.
	resting map[string]bool
	hasty   map[string]bool
	debts   []debt
	// served is by owner the turn at which something was taken last, or at which it
	// came.
	served map[string]uint64
	turn   uint64
	// waits are the policies that waiting returns, where nothing changed since.
	waits   []*Policy
	changed bool
}

// debt is one thing that waits: a subject that must be given its sets, a set that must
// be judged anew or can be dropped, or all classes, which must be given the wide ones
// that they are within.
//
// A set must be judged anew if it denies everything because of what it would cost, and
// may not do so any more, or if it denies classes of which it cannot say anything yet;
// see state.follow. Classes can do with the wide ones of before, but that costs more.
// As it is about all tenants' sets, it is owed to the cluster.
type debt struct {
	subject     *subject
	judge, drop *set
	rewiden     bool
}

func (d debt) owner() string {
	switch {
	case d.subject != nil:
		return d.subject.namespace
	case d.judge != nil:
		return d.judge.owner
	case d.drop != nil:
		return d.drop.owner
	}
	return ""
}

// smallSize is how large the policies of a subject may be together, before and after
// a change, for it not to wait. Only tests set it.
var smallSize = 100

// smallVerdicts is how many verdicts a set may have to be dropped at once. Only tests
// set it.
var smallVerdicts = 256

func newQueue() queue { return queue{served: map[string]uint64{}} }

// holds reports whether a subject must wait, for what its policies are, or because
// policies of its namespace changed, which is resting.
func (q *queue) holds(of *subject, changed bool) bool {
	if !q.gradual || of.pods == 0 || of.identity == nil {
		return false
	}
	return (changed || of.held) && q.resting[of.namespace] || of.size+sizeOf(of.policies) > smallSize
}

// owners returns to whom something is owed, in the order of their turns.
func (q *queue) owners() []string {
	owed := map[string]bool{}
	for _, d := range q.debts {
		owed[d.owner()] = true
	}
	maps.DeleteFunc(q.served, func(owner string, _ uint64) bool { return !owed[owner] })
	for owner := range owed {
		if _, ok := q.served[owner]; !ok {
			q.served[owner] = q.turn // after those that wait already
		}
	}
	return slices.SortedFunc(maps.Keys(owed), func(a, b string) int {
		return cmp.Or(cmp.Compare(q.served[a], q.served[b]), strings.Compare(a, b))
	})
}

// add adds what does not wait yet.
func (q *queue) add(d debt) {
	if !slices.Contains(q.debts, d) {
		q.debts, q.changed = append(q.debts, d), true
	}
}

func (q *queue) remove(d debt) {
	if i := slices.Index(q.debts, d); i >= 0 {
		q.debts, q.changed = slices.Delete(q.debts, i, i+1), true
	}
}

// take takes the one thing that there is to take, which may be nothing.
func (q *queue) take() (d debt) {
	i := slices.IndexFunc(q.debts, func(d debt) bool { return d.owner() == q.owner })
	if !q.advance || i < 0 {
		return d
	}
	q.turn++
	q.served[q.owner] = q.turn
	d = q.debts[i]
	q.remove(d)
	return d
}

// with takes the subjects that the same policies are about as a subject, itself among
// them, which have its sets or ones that are as quickly made.
func (q *queue) with(first *subject) []*subject {
	together := []*subject{first}
	for _, d := range q.debts {
		if of := d.subject; of != nil && of.namespace == first.namespace && slices.Equal(of.policies, first.policies) && slices.Equal(portsOf(of), portsOf(first)) {
			together = append(together, of)
		}
	}
	for _, of := range together {
		q.remove(debt{subject: of})
	}
	return together
}

// portsOf are the named ports by which sets of the same policies differ.
func portsOf(of *subject) []NamedPort {
	if of.identity == nil {
		return nil
	}
	return of.identity.Ports
}

// waiting returns the policies that are not in force yet for some pod that they are
// about, or towards some peer, in the order of their names.
func (q *queue) waiting() []*Policy {
	if !q.changed {
		return q.waits
	}
	all := map[*Policy]struct{}{}
	for _, d := range q.debts {
		switch {
		case d.subject != nil:
			for p := range d.subject.notInForce() {
				all[p] = struct{}{}
			}
		case d.judge != nil && d.judge.costly == "" && d.judge.rows.denies:
			for _, p := range d.judge.policies {
				all[p] = struct{}{}
			}
		}
	}
	q.waits, q.changed = slices.SortedFunc(maps.Keys(all), comparePolicies), false
	return q.waits
}

// sizeOf returns how many rules, peers and ports policies have together.
func sizeOf(policies []*Policy) int {
	sum := Size{}
	for _, p := range policies {
		sum = sum.Plus(p.Size())
	}
	return sum.Rules + sum.Peers + sum.Ports
}
