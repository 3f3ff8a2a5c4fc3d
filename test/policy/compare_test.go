package policy

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/weftnet/weft/test/policy/oracle"
	"github.com/weftnet/weft/test/policy/story"
)

// subject is what is held against the oracle. It follows one cluster through
// its states.
type subject interface {
	// become says that the cluster is like this from now on.
	become(c *oracle.Cluster) error
	// evaluate says what becomes of a packet, and why.
	evaluate(p oracle.Packet) (a oracle.Answer, why string)
}

// difference is a packet of which two say different things.
type difference struct {
	packet oracle.Packet
	oracle oracle.Answer
	found  oracle.Answer
	why    string
	// failed says that the subject did not even answer.
	failed bool
}

func (d *difference) String() string {
	return fmt.Sprintf("%s\nthe oracle: %s\nit is:      %s\n%s", story.FormatPacket(d.packet), describe(d.oracle), describe(d.found), d.why)
}

func describe(a oracle.Answer) string {
	text := "denied"
	if a.Allowed {
		text = "allowed"
	}
	if a.Egress != "" {
		text += ", egress by " + a.Egress
	}
	if a.Ingress != "" {
		text += ", ingress by " + a.Ingress
	}
	return text
}

// compare returns the first packet of which the subject does not say what the
// oracle says, nil if there is none. The subject is in the state c. answers
// counts what the oracle said.
func compare(s subject, c *oracle.Cluster, packets []oracle.Packet, answers tally) (d *difference) {
	var p oracle.Packet
	defer func() {
		if failed := recover(); failed != nil {
			d = &difference{packet: p, why: fmt.Sprintf("panic: %v\n%s", failed, debug.Stack()), failed: true}
		}
	}()
	for _, p = range packets {
		want := c.Evaluate(p)
		answers.add(want)
		if got, why := s.evaluate(p); !agree(want, got) {
			return &difference{packet: p, oracle: want, found: got, why: why}
		}
	}
	return nil
}

// tally counts answers by what decided.
type tally map[string]int

// decisions are all that there can be, but that of what nobody decides.
var decisions = []string{
	"allowed by a NetworkPolicy", "denied by a NetworkPolicy's isolation",
	"allowed by a ClusterNetworkPolicy", "denied by a ClusterNetworkPolicy",
}

func (t tally) add(a oracle.Answer) {
	by := cmp.Or(a.Ingress, a.Egress)
	kind, _, _ := strings.Cut(by, " ")
	switch {
	case kind == "":
		t["undecided"]++
	case !a.Allowed && kind == "NetworkPolicy":
		t["denied by a NetworkPolicy's isolation"]++
	case a.Allowed:
		t["allowed by a "+kind]++
	default:
		t["denied by a "+kind]++
	}
}

// addAll adds what another counted, and returns how many answers that were.
func (t tally) addAll(o tally) (count int) {
	for decision, n := range o {
		t[decision] += n
		count += n
	}
	return count
}

// agree reports whether two answers are the same, but that the subject may
// quote a rule's name behind its index.
func agree(want, got oracle.Answer) bool {
	return want.Allowed == got.Allowed && names(want.Egress, got.Egress) && names(want.Ingress, got.Ingress)
}

func names(want, got string) bool {
	rest, ok := strings.CutPrefix(got, want)
	return ok && (rest == "" || want != "" && strings.HasPrefix(rest, ` "`))
}

// become is subject.become, with a difference for an error.
func become(s subject, c *oracle.Cluster) (d *difference) {
	defer func() {
		if failed := recover(); failed != nil {
			d = &difference{why: fmt.Sprintf("panic: %v\n%s", failed, debug.Stack()), failed: true}
		}
	}()
	if err := s.become(c); err != nil {
		return &difference{why: err.Error(), failed: true}
	}
	return nil
}

// trial is one packet in the last of some states of a cluster.
type trial struct {
	states []*oracle.Cluster
	packet oracle.Packet
}

// run returns the difference that shows in a trial, or nil.
func (t trial) run(start func() subject) *difference {
	s := start()
	for _, c := range t.states {
		if d := become(s, c); d != nil {
			d.packet = t.packet
			return d
		}
	}
	return compare(s, t.states[len(t.states)-1], []oracle.Packet{t.packet}, tally{})
}
