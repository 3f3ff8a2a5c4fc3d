package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// frontend returns what of Services the packet goes to on a node.
func (x *explainer) frontend(p *Plan, from sender) (ServiceKey, Service, bool) {
	if x.dst.IsLoopback() && from != fromHost {
		return ServiceKey{}, Service{}, false
	}
	side, _ := x.client(p, from)
	return p.Service(x.network, x.dst, x.protocol, x.port, side)
}

// client says what a node takes the sender of the packet for.
func (x *explainer) client(p *Plan, from sender) (Scope, Clients) {
	switch {
	case from == fromHost:
		return Inside, 0
	case from == fromEndpoint:
		return Inside, FromEndpoints
	case p.LeadsToPeer(x.network, x.src):
		return Outside, FromEndpoints
	default:
		return Outside, FromStrangers
	}
}

// serve is the stage of a frontend: the packet gets a backend as its destination. k and e
// are as for at.
func (x *explainer) serve(p *Plan, from sender, k EndpointKey, e Endpoint, front ServiceKey, svc Service) stage {
	at := netip.AddrPortFrom(x.dst, x.port)
	if front.Protocol == AnyProtocol {
		what := x.protocol.String()
		if x.protocol.HasPorts() {
			what = fmt.Sprintf("port %d/%s", x.port, x.protocol)
		}
		noteEntry(x, p, "services", front, svc, "no such port: %s", svc.Otherwise.done())
		return x.deny("the service at %s has no %s", x.dst, what)
	}
	if svc.Here && from == fromHost {
		x.asksItself(p)
	}
	if !p.Admits(x.network, svc.Sources, x.src) {
		noteEntry(x, p, "services", front, svc, "%s is none of those who may use it: dropped", x.src)
		return x.deny("the service at %s is not for %s", at, x.src)
	}
	if svc.Here {
		noteEntry(x, p, "services", front, svc, nodeAnswers)
		return x.answer(p, from, e)
	}
	var backends []netip.AddrPort
	if svc.Set != "" {
		for b, is := range p.BackendsOf(x.network, svc.Set) {
			if is.Weight > 0 && sameFamily(b.Address, x.dst) {
				backends = append(backends, netip.AddrPortFrom(b.Address, b.Port))
			}
		}
	}
	_, who := x.client(p, from)
	if own := x.ownSource(p); from == fromHost && svc.Masquerade&FromStrangers == 0 && slices.Contains(p.Local.ReachedAt, own) {
		x.src, x.kept = own, true
	}
	to := func(x *explainer, b netip.AddrPort) *explainer {
		x.masquerade = svc.Masquerade&who != 0 || b.Addr() == x.src
		x.dst, x.port, x.translated = b.Addr(), b.Port(), true
		return x
	}
	switch {
	case len(backends) == 0:
		noteEntry(x, p, "services", front, svc, "no backend: %s", svc.Otherwise.done())
		return x.deny("the service at %s "+NoneOnHand, at)
	case len(backends) == 1:
		noteEntry(x, p, "services", front, svc, "to backend %s", backends[0])
		return to(x, backends[0]).onward(p, from, k, e)
	}
	noteEntry(x, p, "services", front, svc, "to one of %d backends", len(backends))
	allowed, denied := 0, 0
	for i, b := range backends {
		if *x.followed == MaxFollowed {
			x.result.NotFollowed += len(backends) - i
			break
		}
		*x.followed++
		one := to(x.fork(), b)
		choice := Choice{b, one.run(one.onward(p, from, k, e))}
		switch {
		case choice.Allowed:
			allowed++
		case !choice.Unknown:
			denied++
		}
		x.result.NotFollowed += choice.NotFollowed
		x.result.Backends = append(x.result.Backends, choice)
	}
	switch {
	case allowed == len(backends):
		x.result.Allowed = true
		x.result.Reason = fmt.Sprintf("each of the %d backends of the service at %s may be reached", len(backends), at)
		return nil
	case denied == 0:
		x.result.Unknown = true
		x.result.Reason = fmt.Sprintf("of the %d backends of the service at %s, %d may be reached, and of the others it is not known (%d not looked at)",
			len(backends), at, allowed, x.result.NotFollowed)
		return nil
	case x.result.NotFollowed > 0:
		return x.deny("of the %d backends of the service at %s, %d may be reached, and %d may not (%d not looked at)", len(backends), at, allowed, denied, x.result.NotFollowed)
	}
	return x.deny("of the %d backends of the service at %s, %d may be reached", len(backends), at, allowed)
}

// ownSource is the address that the kernel gives the node's own packet to a frontend: it looks at
// where that is, as it does not know the backend yet.
func (x *explainer) ownSource(p *Plan) netip.Addr {
	if p.Owns(x.network, x.dst) || x.dst.IsLoopback() {
		return x.dst
	}
	return p.underlayAddress(x.dst)
}

// fork returns the packet as it is, to be followed by itself from here.
func (x *explainer) fork() *explainer {
	one := *x
	one.result = Explanation{}
	// What one has visited is no loop for another.
	one.visited = maps.Clone(x.visited)
	return &one
}

// masqueraded gives the packet an address of the node as its source. It returns false
// where the node has none, and the stage that says so.
func (x *explainer) masqueraded(p *Plan, own netip.Addr) (stage, bool) {
	if !own.IsValid() {
		return x.deny("%s has no address of its own to reach %s from", p.Local.Node, x.dst), false
	}
	x.src = own
	x.note(p, "services", "the source becomes the node's own address %s", own)
	return nil, true
}
