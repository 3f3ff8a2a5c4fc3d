package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// served completes an answer about what the nodes' own plans say is a frontend of a Service:
// which one it is, and of each backend that may be chosen what becomes of the connection, and
// why.
func (c Cluster) served(a *Answer, flow plan.Flow, planner *planner) {
	for _, s := range a.Steps {
		kind, name, _ := strings.Cut(s.Origin, " ")
		if s.Table != "services" || name == "" {
			continue
		}
		if kind == api.Pod.Kind {
			kind = "hostPort of pod"
		}
		a.Service = &Frontend{Name: kind + " " + name, By: api.WeftProxy}
		if asked := a.Destination.service; asked != nil && registry.KeyOf(asked).String() != name {
			a.Doubt(fmt.Sprintf("%s leads to %s, which has the address, too: no node serves Service %s there", flow.Destination, a.Service.Name, registry.KeyOf(asked)))
		}
		break
	}
	choices := a.Explanation.Backends
	if len(choices) == 0 {
		return
	}
	a.Explanation.Backends = nil // they are told by Backends
	allowed, doubts := 0, []string(nil)
	for _, choice := range choices {
		one := Answer{Source: a.Source, Destination: c.owner(choice.Backend.Addr()), Protocol: a.Protocol, Port: choice.Backend.Port(),
			Explanation: choice.Explanation, behind: choice.Backend}
		one.Destination.Address = choice.Backend.Addr()
		c.told(&one, flow, planner)
		if one.Verdict != Denied {
			allowed++
			doubts = append(doubts, one.Doubts...)
		}
		a.inherit(&one)
		a.Backends = append(a.Backends, one)
	}
	switch {
	case a.Verdict == Denied && allowed > 0:
		// Which of them a connection gets nobody knows before.
		a.Verdict = NotKnown
	case a.Verdict == Allowed:
		for _, d := range doubts {
			a.Doubt(d)
		}
	}
}

// seenFrom returns what becomes of a flow with a backend, or all of it where that is none.
func seenFrom(e plan.Explanation, backend netip.AddrPort) plan.Explanation {
	for _, choice := range e.Backends {
		if choice.Backend == backend {
			return choice.Explanation
		}
	}
	return e
}

// reached yields the addresses of machines that an explanation leads to.
func reached(e plan.Explanation) (addresses []netip.Addr) {
	if e.SeenDestination.IsValid() {
		addresses = append(addresses, e.SeenDestination)
	}
	for _, choice := range e.Backends {
		addresses = append(append(addresses, choice.Backend.Addr()), reached(choice.Explanation)...)
	}
	return addresses
}
