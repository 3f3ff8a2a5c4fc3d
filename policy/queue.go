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
// before: its policies are an older version, as if they had been changed later. A new
// pod has nothing that was there before, and is allowed nothing until its turn.
//
// Each thing is owed to a namespace, or to the cluster, which is "". They take turns,
// so that one that is owed much does not keep the others waiting.
type queue struct {
	gradual bool
	// advance says that one thing that is owed to owner is to be taken.
	advance bool
	owner   string
	// held are the subjects that wait, in the order in which they came.
	held []*subject
	// due are sets that must be judged anew: those that deny everything because of
	// what they would cost, and may not do so any more, and those that deny classes
	// of which they cannot say anything yet; see state.follow.
	due map[*set]struct{}
	// idle are sets that lost their last subject.
	idle []*set
	// rewidened says that other peers are wide than most classes go by. They mean the
	// same, but cost more. As that is about all tenants' sets, it is owed to the cluster.
	rewidened bool
	// served is by owner the turn at which something was taken last, or at which it
	// came.
	served map[string]uint64
	turn   uint64
}

// smallSize is how large the policies of a subject may be together, before and after
// a change, for it not to wait. Only tests set it.
var smallSize = 100

// smallVerdicts is how many verdicts a set may have to be dropped at once. Only tests
// set it.
var smallVerdicts = 256

func newQueue() queue { return queue{served: map[string]uint64{}, due: map[*set]struct{}{}} }

// holds reports whether a subject must wait.
func (q *queue) holds(of *subject) bool {
	return q.gradual && of.pods > 0 && of.identity != nil && of.size+sizeOf(of.policies) > smallSize
}

// owners returns to whom something is owed, in the order of their turns.
func (q *queue) owners() []string {
	owed := map[string]bool{}
	for _, of := range q.held {
		owed[of.namespace] = true
	}
	for set := range q.due {
		owed[set.owner] = true
	}
	for _, set := range q.idle {
		owed[set.owner] = true
	}
	if q.rewidened {
		owed[""] = true
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

// taken says that the one thing was taken that there is to take.
func (q *queue) taken() {
	q.advance = false
	q.turn++
	q.served[q.owner] = q.turn
}

func (q *queue) add(of *subject) {
	if !of.held {
		of.held = true
		q.held = append(q.held, of)
	}
}

func (q *queue) remove(of *subject) {
	if of.held {
		of.held = false
		q.held = slices.DeleteFunc(q.held, func(o *subject) bool { return o == of })
	}
}

// nextSubjects takes the first subject that is owed to the owner, and those that the
// same policies are about, which have its sets or ones that are as quickly made.
func (q *queue) nextSubjects() []*subject {
	i := slices.IndexFunc(q.held, func(of *subject) bool { return of.namespace == q.owner })
	if !q.advance || i < 0 {
		return nil
	}
	q.taken()
	first := q.held[i]
	var together []*subject
	for _, of := range q.held {
		if of.namespace == first.namespace && slices.Equal(of.policies, first.policies) && slices.Equal(portsOf(of), portsOf(first)) {
			together = append(together, of)
		}
	}
	for _, of := range together {
		q.remove(of)
	}
	return together
}

// mayRewiden reports whether classes may be given the wide ones that they are within now.
func (q *queue) mayRewiden() bool {
	if !q.gradual {
		return true
	}
	its := q.advance && q.owner == ""
	if its {
		q.taken()
	}
	return its
}

// isDue reports whether a set is due that is owed to an owner.
func (q *queue) isDue(owner string) bool {
	for set := range q.due {
		if set.owner == owner {
			return true
		}
	}
	return false
}

// nextSet takes the first set by name that is due and owed to the owner, nil if none is.
func (q *queue) nextSet() (first *set) {
	for set := range q.due {
		if q.advance && set.owner == q.owner && (first == nil || set.name < first.name) {
			first = set
		}
	}
	if first != nil {
		q.taken()
	}
	return first
}

// has reports whether a subject that waits has a set.
func (q *queue) has(set *set) bool {
	return slices.ContainsFunc(q.held, func(of *subject) bool { return slices.Contains(of.sets[:], set) })
}

// portsOf are the named ports by which sets of the same policies differ.
func portsOf(of *subject) []NamedPort {
	if of.identity == nil {
		return nil
	}
	return of.identity.Ports
}

// waiting returns the policies that are not in force yet for some subject that they
// are about, or towards some peer, in the order of their names.
func (q *queue) waiting() []*Policy {
	var all []*Policy
	for _, of := range q.held {
		for _, p := range of.policies {
			if !slices.Contains(of.inForce, p) {
				all = append(all, p)
			}
		}
	}
	for set := range q.due {
		if set.costly == "" && set.rows.denies {
			all = append(all, set.policies...)
		}
	}
	slices.SortFunc(all, comparePolicies)
	return slices.Compact(all)
}

// sizeOf returns how many rules, peers and ports policies have together.
func sizeOf(policies []*Policy) int {
	sum := Size{}
	for _, p := range policies {
		sum = sum.Plus(p.Size())
	}
	return sum.Rules + sum.Peers + sum.Ports
}
