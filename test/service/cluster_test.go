package service

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/test/service/oracle"
)

// TestCluster asks the oracle, and plan.Explain of a cluster whose nodes all have the
// tables, about the same packets.
func TestCluster(t *testing.T) {
	answers := tally{}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		plans := map[string]*plan.Plan{}
		for name := range bare {
			c := &compiled{node: name}
			if err := c.become(w); err != nil {
				t.Fatalf("the plan is not valid: %v\n%s", err, format(w))
			}
			plans[name] = c.plan
		}
		for range packetsEach {
			p := drawPacket(t, w)
			flow := plan.Flow{Source: p.Source, Destination: p.Destination, Protocol: planned[p.Protocol], Port: p.Port}
			p.Node = here
			switch p.Sender {
			case oracle.Outsider:
				flow.Node = here
			case oracle.PodElsewhere:
				p.Sender, p.Node = oracle.PodHere, homeOf(p.Source)
			}
			p, want := arrive(w, p)
			x := plan.Explain(plans, flow)
			if got := said(p, x); !agree(leftOpen(want, x), leftOpen(got, x)) {
				t.Fatalf("%s\n%+v\nthe oracle: %+v\nit is:      %+v\n%s%s", flow, p, want, got, x, format(w))
			}
			answers.add(p, want)
		}
	})
	answers.check(t)
}

// homeOf returns the node of a pod, as addresses tell it.
func homeOf(a netip.Addr) string {
	if a.Is4() {
		return nodeName(int(a.As4()[2]))
	}
	return nodeName(int(a.As16()[3]))
}

// arrive asks the node where a packet begins, and where that serves nothing, the one that
// has its destination. It returns the packet as the node has it that decided.
func arrive(w *oracle.World, p oracle.Packet) (oracle.Packet, oracle.Answer) {
	a := w.Evaluate(p)
	if a.Fate != oracle.Unserved || p.Destination.IsLoopback() {
		return p, a
	}
	for i := range 3 {
		next := p
		if next.Node = nodeName(i + 1); next.Node == p.Node {
			continue
		}
		// What a node sent from its own address it takes from nobody else.
		if own := slices.Concat(bare[next.Node].Local.Addresses, w.Gateways[next.Node]); !slices.Contains(own, p.Destination) || slices.Contains(own, p.Source) {
			continue
		}
		// Nor does it take from a tunnel what comes from outside, and others' gateways are behind tunnels.
		if p.Sender == oracle.Outsider && slices.Contains(w.Gateways[next.Node], p.Destination) {
			continue
		}
		// Nor does a node that answers names at another's gateway take from that one what it has sent through the tunnel, which is under
		// that address.
		if p.Sender == oracle.NodeItself && slices.Contains(w.Gateways[next.Node], p.Destination) && answersAt(w, next.Node, w.Gateways[p.Node]) {
			continue
		}
		switch p.Sender {
		case oracle.PodHere:
			next.Sender = oracle.PodElsewhere
		case oracle.NodeItself:
			next.Sender = oracle.Outsider
		}
		return next, w.Evaluate(next)
	}
	return p, a
}

// answersAt reports whether a node answers names at one of some addresses.
func answersAt(w *oracle.World, node string, at []netip.Addr) bool {
	return w.Names != nil && slices.ContainsFunc(w.Names.Answering[node], func(a netip.Addr) bool { return slices.Contains(at, a) })
}

// said is what an explanation says of the first Service that it comes to.
func said(p oracle.Packet, x plan.Explanation) oracle.Answer {
	at := 0
	for at < len(x.Steps) && !isFrontend(x.Steps[at]) {
		at++
	}
	if at == len(x.Steps) {
		if slices.ContainsFunc(x.Steps, func(s plan.Step) bool {
			return s.Table == "services" && strings.HasSuffix(s.Decision, "and nobody else does: dropped")
		}) {
			return oracle.Answer{Fate: oracle.Dropped}
		}
		return oracle.Answer{Fate: oracle.Unserved}
	}
	step := x.Steps[at]
	a := oracle.Answer{Service: owner(step.Origin)}
	switch {
	case step.Decision == "the node itself answers":
		a.Fate = oracle.AnsweredHere
	case strings.HasPrefix(step.Decision, "to one of "):
		a.Fate = oracle.Served
		for _, c := range x.Backends {
			a.Backends = append(a.Backends, oracle.Backend{AddrPort: c.Backend, Masqueraded: isMasqueraded(p, c.Steps)})
		}
	case strings.HasPrefix(step.Decision, "to backend "):
		a.Fate = oracle.Served
		only := netip.MustParseAddrPort(strings.TrimPrefix(step.Decision, "to backend "))
		a.Backends = append(a.Backends, oracle.Backend{AddrPort: only, Masqueraded: isMasqueraded(p, x.Steps[at+1:])})
	case strings.HasSuffix(step.Decision, "refused"):
		a.Fate = oracle.Refused
	default:
		a.Fate = oracle.Dropped
	}
	if strings.HasPrefix(step.Decision, "no such port") {
		a.Service = ""
	}
	return a
}

func isFrontend(s plan.Step) bool { return s.Table == "services" && s.Entry != "" }

// isForNobody reports whether a step drops what is sent to where a node answers, and is for nothing
// that does.
func isForNobody(s plan.Step) bool {
	return s.Table == "services" && strings.HasSuffix(s.Decision, "and nobody else does: dropped")
}

// isMasqueraded reports whether the node that decided gives a packet its own address, by
// what comes behind.
func isMasqueraded(p oracle.Packet, steps []plan.Step) bool {
	for _, s := range steps {
		if isFrontend(s) || s.Node != p.Node {
			break
		}
		if s.Table == "services" && !isForNobody(s) {
			return true
		}
	}
	return p.Sender == oracle.NodeItself
}

// leftOpen returns an answer that says of no backend that the node's address would become the source, where an
// explanation has it dropped before that would be.
func leftOpen(a oracle.Answer, x plan.Explanation) oracle.Answer {
	a.Backends = slices.Clone(a.Backends)
	for i := range a.Backends {
		steps := x.Steps
		if len(x.Backends) > 0 {
			steps = nil
			for _, c := range x.Backends {
				if c.Backend == a.Backends[i].AddrPort {
					steps = c.Steps
				}
			}
		}
		if slices.ContainsFunc(steps, isForNobody) {
			a.Backends[i].Masqueraded = false
		}
	}
	return a
}

// agree reports whether two answers are the same, but for affinity, of which an
// explanation says nothing.
func agree(want, got oracle.Answer) bool {
	want.Affinity = 0
	return reflect.DeepEqual(want, got)
}
