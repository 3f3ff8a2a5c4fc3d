package datapath

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

// Each file is a plan for a data plane that cannot tell SCTP's ports apart; what
// comes out is how that changes it, and what was refused.
func TestEnforceableStories(t *testing.T) {
	golden.Answers(t, "testdata/enforceable*.txtar", func(t *testing.T, name, in string) string {
		p := parse(t, in)
		got, refusals := Enforceable(p, Capabilities{}, nil)
		if len(refusals) == 0 {
			if got != p {
				t.Errorf("%s: another plan, though nothing is refused", name)
			}
			return "as it is\n"
		}
		out := p.Diff(got).String()
		for _, r := range refusals {
			out += fmt.Sprintf("%s\n  %s\n", r.Key.Line(r.Verdict), r.Message)
		}
		return out
	})
}

func parse(t *testing.T, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var (
	somePeers     = []plan.Class{0, 5, 6, plan.AnyPeer}
	someProtocols = []plan.Protocol{plan.AnyProtocol, plan.TCP, plan.SCTP, plan.SCTP}
	somePorts     = []uint16{0, 1, 79, 80, 81, 65534, 65535}
	// probedPorts are those and what lies between them.
	probedPorts = append([]uint16{2, 443}, somePorts...)
)

// verdicts draws a valid plan that was made of p by changes to its verdicts.
func verdicts(t *rapid.T, p *plan.Plan) *plan.Plan {
	for range rapid.IntRange(0, 10).Draw(t, "changes") {
		k := plan.Otherwise(rapid.SampledFrom([]string{"p", "q"}).Draw(t, "policy"),
			rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction"))
		k.Peer = rapid.SampledFrom(somePeers).Draw(t, "peer")
		k.Protocol = rapid.SampledFrom(someProtocols).Draw(t, "protocol")
		if k.Protocol.HasPorts() && rapid.IntRange(0, 3).Draw(t, "all ports") > 0 {
			k.Ports.First = rapid.SampledFrom(somePorts).Draw(t, "first")
			k.Ports.Last = rapid.SampledFrom(somePorts).Filter(func(last uint16) bool { return last >= k.Ports.First }).Draw(t, "last")
		}
		next := *p
		if _, ok := p.Verdicts.Get(k); ok && rapid.Bool().Draw(t, "goes") {
			next.Verdicts = p.Verdicts.Delete(k)
		} else {
			v := plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Origin: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "origin")}
			if k == plan.Rest(k.Policy, k.Direction, k.Peer) && rapid.Bool().Draw(t, "like another") {
				v = plan.Verdict{Like: rapid.SampledFrom(somePeers[1:3]).Draw(t, "like"), Origin: v.Origin}
			}
			next.Verdicts = p.Verdicts.Set(k, v)
		}
		if next.Validate() == nil { // else it overlaps
			p = &next
		}
	}
	return p
}

// What Enforceable makes of a plan allows nothing that the plan does not, and
// of a peer all of SCTP or nothing; what a peer had whole it keeps unless
// something else of its policy was refused; all else stays. Every allowance
// that is gone was told of. And it makes no difference what there was before.
func TestEnforceable(t *testing.T) {
	outcomes := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		first := verdicts(t, &plan.Plan{Local: plan.Local{Node: "node1"}})
		previous, _ := Enforceable(first, Capabilities{}, nil)
		p := verdicts(t, first)
		got, refusals := Enforceable(p, Capabilities{}, previous)
		outcomes[len(refusals) > 0]++

		fresh, freshRefusals := Enforceable(p, Capabilities{}, nil)
		if diff := cmp.Diff(freshRefusals, refusals); diff != "" || !fresh.Equal(got) {
			t.Fatalf("after\n%s\nit is another:\n%s%s", previous, fresh.Diff(got), diff)
		}
		if err := got.Validate(); err != nil {
			t.Fatal(err)
		}
		if same, none := Enforceable(p, Capabilities{SCTP: true}, nil); same != p || len(none) > 0 {
			t.Fatal("something is refused where SCTP can be told apart")
		}
		told := map[plan.VerdictKey]plan.Verdict{}
		for _, r := range refusals {
			told[r.Key] = r.Verdict
			now, _ := got.Verdicts.Get(r.Key)
			if !r.Verdict.Allow || now != (plan.Verdict{Origin: r.Verdict.Origin}) {
				t.Fatalf("refused: %s, which is now %s", r.Key.Line(r.Verdict), r.Key.Line(now))
			}
		}
		for _, policy := range []string{"p", "q"} {
			for _, d := range []plan.Direction{plan.Incoming, plan.Outgoing} {
				mixed := false // some peer's ports are treated differently
				for _, peer := range []plan.Class{0, 5, 6, 7} {
					mixed = mixed || !whole(p, policy, d, peer)
				}
				for _, peer := range []plan.Class{0, 5, 6, 7} { // 7 is of AnyPeer alone
					if !whole(got, policy, d, peer) {
						t.Fatalf("%s %s: SCTP ports of peer %s are told apart in\n%s", policy, d, peer, got)
					}
					for _, protocol := range []plan.Protocol{plan.TCP, plan.UDP, plan.SCTP} {
						for _, port := range probedPorts {
							_, before, _ := p.Verdict(policy, d, peer, protocol, port)
							k, after, _ := got.Verdict(policy, d, peer, protocol, port)
							switch {
							case before == after:
							case protocol != plan.SCTP, after.Allow, !mixed:
								t.Fatalf("%s port %d of peer %s of %s %s: %+v became %+v in\n%s", protocol, port, peer, policy, d, before, after, p)
							case before.Allow && !told[k].Allow:
								t.Fatalf("port %d of peer %s of %s %s is denied, and nothing was said of %s", port, peer, policy, d, k.Line(after))
							}
						}
					}
				}
			}
		}
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("refused or not: %v; both are to be tried", outcomes)
	}
}

// whole reports whether all SCTP ports of a peer are treated alike.
func whole(p *plan.Plan, policy string, d plan.Direction, peer plan.Class) bool {
	_, first, _ := p.Verdict(policy, d, peer, plan.SCTP, 0)
	for _, port := range probedPorts {
		if _, v, _ := p.Verdict(policy, d, peer, plan.SCTP, port); v.Allow != first.Allow {
			return false
		}
	}
	return true
}
