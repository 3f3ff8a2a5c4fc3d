package datapath

import (
	"fmt"
	"slices"

	"github.com/weftnet/weft/plan"
)

// Refusal is an entry of a plan that a data plane cannot do as it is written.
type Refusal struct {
	// Origin is the entry's, where that is no verdict.
	Origin string
	// Key is, for a verdict, the entry of the plan that Enforceable returned
	// which denies now.
	Key plan.VerdictKey
	// Verdict is what decided about the same packets before; it allows.
	Verdict plan.Verdict
	// Message names the value and says what becomes of it.
	Message string
}

// Enforceable returns the plan that a data plane of such capabilities can do
// in the place of p, and what it had to refuse, in the order of the keys: what
// cannot be told apart is denied. It is pure. Where nothing has to be refused
// it returns p itself.
//
// Without Capabilities.SCTP what is known of an SCTP connection is who talks to
// whom: after the first packet all ports of the two are open, both ways. So
// where a policy treats the ports of a peer differently, what it allows of them
// is denied. The plan returned says the same of every SCTP port of a peer; of
// all other protocols it says what p says.
//
// p must be valid. previous is what Enforceable returned for the plan before,
// for the same capabilities, or nil: the cost is that of the policies in which
// p differs from it.
func Enforceable(p *plan.Plan, able Capabilities, previous *plan.Plan) (*plan.Plan, []Refusal) {
	if able.SCTP || p == nil {
		return p, nil
	}
	e := enforcer{plan: *p}
	if previous == nil {
		for k := range p.Verdicts.All() {
			e.touch(k)
		}
	} else {
		// What is the same in previous treats ports alike already.
		for _, c := range previous.Verdicts.Diff(p.Verdicts) {
			e.touch(c.Key)
		}
	}
	if len(e.refusals) == 0 {
		return p, nil
	}
	slices.SortFunc(e.refusals, func(a, b Refusal) int { return a.Key.Compare(b.Key) })
	return &e.plan, e.refusals
}

// enforcer is a plan on its way to one that can be enforced.
type enforcer struct {
	plan     plan.Plan
	refusals []Refusal
	touched  plan.VerdictKey // the last
}

// touch sees to the policy and direction of an entry, once for those that come
// one after the other.
func (e *enforcer) touch(k plan.VerdictKey) {
	least := plan.VerdictKey{Policy: k.Policy, Direction: k.Direction}
	if least != e.touched {
		e.touched = least
		e.policy(least)
	}
}

// policy makes one direction of a policy indifferent to SCTP's ports. least is
// the least key that such an entry can have.
func (e *enforcer) policy(least plan.VerdictKey) {
	var peers [][]plan.VerdictKey // the SCTP entries of each peer that has any
	for entry := range e.plan.Verdicts.From(least) {
		if entry.Policy != least.Policy || entry.Direction != least.Direction {
			break
		}
		if entry.Protocol != plan.SCTP {
			continue
		}
		if n := len(peers); n > 0 && peers[n-1][0].Peer == entry.Peer {
			peers[n-1] = append(peers[n-1], entry)
		} else {
			peers = append(peers, []plan.VerdictKey{entry})
		}
	}
	// Whom others fall back to comes first: AnyPeer, which is the last, and of
	// the rest those that are like nobody.
	slices.Reverse(peers)
	slices.SortStableFunc(peers, func(a, b []plan.VerdictKey) int { return e.steps(a[0]) - e.steps(b[0]) })
	for _, entries := range peers {
		e.peer(entries)
	}
}

// steps is how often a lookup for a peer goes on with another.
func (e *enforcer) steps(k plan.VerdictKey) int {
	for n := range plan.MaxLikes {
		v, ok := e.plan.Verdicts.Get(plan.Rest(k.Policy, k.Direction, k.Peer))
		if !ok || v.Like == 0 {
			return n
		}
		k.Peer = v.Like
	}
	return plan.MaxLikes
}

// peer makes a peer's SCTP entries, and what holds between them, all deny
// unless all of that says the same.
func (e *enforcer) peer(entries []plan.VerdictKey) {
	pieces := slices.Concat(entries, gaps(entries))
	decided := make([]plan.Verdict, len(pieces))
	allowed := 0
	for i, k := range pieces {
		if _, decided[i], _ = e.plan.Verdict(k.Policy, k.Direction, k.Peer, plan.SCTP, k.Ports.First); decided[i].Allow {
			allowed++
		}
	}
	if allowed == len(pieces) {
		return
	}
	for i, k := range pieces {
		if decided[i].Allow {
			e.plan.Verdicts = e.plan.Verdicts.Set(k, plan.Verdict{Origin: decided[i].Origin})
			e.refusals = append(e.refusals, Refusal{Key: k, Verdict: decided[i], Message: refused(k.Ports)})
		}
	}
}

// gaps returns, as keys, the ports that a peer's entries, which are in order,
// leave out.
func gaps(entries []plan.VerdictKey) []plan.VerdictKey {
	var gaps []plan.VerdictKey
	gap := entries[0]
	next := 0
	for _, k := range entries {
		if first := int(k.Ports.First); first > next {
			gap.Ports = plan.PortRange{First: uint16(next), Last: uint16(first - 1)}
			gaps = append(gaps, gap)
		}
		next = int(k.Ports.Last) + 1
	}
	if last := plan.AllPorts.Last; next <= int(last) {
		gap.Ports = plan.PortRange{First: uint16(next), Last: last}
		gaps = append(gaps, gap)
	}
	return gaps
}

func refused(ports plan.PortRange) string {
	what := fmt.Sprintf("SCTP port %s is", ports)
	if ports.First != ports.Last {
		what = fmt.Sprintf("SCTP ports %s are", ports)
	}
	return "SCTP ports cannot be told apart on this node: " + what + " denied instead of allowed; allow all SCTP ports or none"
}
