package policy

import (
	"maps"
	"slices"
)

// queue holds the subjects whose policies are so large that to make sets of them
// takes as long as everything else that changes in an ordinary round. A call of Compile
// that is told to advance takes the next, so that whoever changes little waits for no
// more than one of these. Until its turn a subject has the sets that it had before: its policies
// are an older version, as if they had been changed later. A new pod has nothing that
// was there before, and is allowed nothing until its turn.
//
// The namespaces take turns, so that one with many subjects does not keep the others
// waiting.
type queue struct {
	gradual bool
	// advance says that the next is to be taken.
	advance bool
	// held are those that wait, in the order in which they came.
	held []*subject
	// served is by namespace the turn at which one of its was taken last.
	served map[string]uint64
	turn   uint64
	// closed are the sets that deny everything because of what they would cost, and
	// may not do so any more.
	closed map[*set]struct{}
}

// smallSize is how large the policies of a subject may be together, before and after
// a change, for it not to wait. Only tests set it.
var smallSize = 100

// smallVerdicts is how many verdicts a set may have to be dropped at once. Only tests
// set it.
var smallVerdicts = 256

func newQueue() queue { return queue{served: map[string]uint64{}, closed: map[*set]struct{}{}} }

// holds reports whether a subject must wait.
func (q *queue) holds(of *subject) bool {
	return q.gradual && of.pods > 0 && of.size+sizeOf(of.policies) > smallSize
}

// waits reports whether anything waits.
func (q *queue) waits() bool { return len(q.held)+len(q.closed) > 0 }

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

// next returns the subjects whose turn it is: one, and those that the same policies
// of the same namespace are about, which have its sets or ones that are as quickly
// made.
func (q *queue) next(subjects map[string]*subject) []*subject {
	if len(q.held) == 0 {
		return nil
	}
	first := q.held[0]
	for _, of := range q.held {
		if q.served[of.namespace] < q.served[first.namespace] {
			first = of
		}
	}
	q.turn++
	q.served[first.namespace] = q.turn
	if len(q.served) > 2*len(subjects)+16 {
		there := map[string]bool{}
		for _, of := range subjects {
			there[of.namespace] = true
		}
		maps.DeleteFunc(q.served, func(namespace string, _ uint64) bool { return !there[namespace] })
	}
	var together []*subject
	for _, of := range q.held {
		if of.namespace == first.namespace && slices.Equal(of.policies, first.policies) && slices.Equal(portsOf(of), portsOf(first)) {
			together = append(together, of)
		}
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

// waiting returns the policies that are not in force yet for some subject that they
// are about, in the order of their names.
func (q *queue) waiting() []*Policy {
	var all []*Policy
	for _, of := range q.held {
		for _, p := range of.policies {
			if !slices.Contains(of.inForce, p) {
				all = append(all, p)
			}
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
