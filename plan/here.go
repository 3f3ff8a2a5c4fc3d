package plan

import (
	"net/netip"
	"slices"
)

// here checks what a frontend says that the node itself answers; see Service.Here.
func (v *validator) here(s subject, k ServiceKey, svc Service) {
	switch {
	case svc.Set != "":
		s.add("the node itself answers, and set %s does, too", svc.Set)
	case svc.Affinity != 0:
		s.add("the node itself answers, and there is nobody else to whom clients could go: affinity %s", svc.Affinity)
	case svc.Masquerade != 0:
		s.add("the node itself answers, and sees who asks: masquerade %s", svc.Masquerade)
	case svc.Otherwise != Refuse:
		s.add("the node itself answers, always: else %s", svc.Otherwise)
	}
	switch {
	case k.Protocol == AnyProtocol:
		s.add("the node itself answers, but at single ports alone")
	case k.From != Inside:
		s.add("the node itself answers what comes from %s alone", Inside)
	case k.Address.IsLoopback():
		s.add("a loopback address is the node's own to itself, and no endpoint's packets get there")
	case k.Address.Is6() && k.Address.IsLinkLocalUnicast():
		s.add("a link-local address means another machine on each link")
	}
}

// AnswersAt reports whether the node itself answers at an address that is none of its own
// (see Service.Here), and so takes for itself all that is sent there.
func (p *Plan) AnswersAt(network string, a netip.Addr) bool {
	if p.Owns(network, a) {
		return false
	}
	for k, s := range p.Services.From(ServiceKey{Network: network, Address: a}) {
		if k.Network != network || k.Address != a {
			return false
		}
		if s.Here {
			return true
		}
	}
	return false
}

// AskedFrom returns the address from which the node itself sends to an address of its own
// kind of AnswersAt: the one that it sends from to all else, or, where it has none of the
// family, the gateway of its first pool.
func (p *Plan) AskedFrom(network string, a netip.Addr) netip.Addr {
	if own := p.underlayAddress(a); own.IsValid() {
		return own
	}
	return p.gatewayAddress(network, a)
}

// nodeAnswers is the decision of a frontend that the node itself answers.
const nodeAnswers = "the node itself answers"

// AnsweredHere reports whether the packet came to a frontend that a node itself answers, whether
// or not a policy let it get there. It is not translated.
func (e Explanation) AnsweredHere() bool {
	return slices.ContainsFunc(e.Steps, func(s Step) bool { return s.Table == "services" && s.Decision == nodeAnswers })
}

// asksItself gives what the node itself sends to where it answers the source that its kernel
// would choose.
func (x *explainer) asksItself(p *Plan) {
	switch own := p.AskedFrom(x.network, x.dst); {
	case p.AnswersAt(x.network, x.dst) && own.IsValid():
		x.src = own
	default:
		x.src = x.dst
	}
}

// answeredPast is the stage of what a Service sends to an address of the node's own at which the
// node itself answers. It comes there, but what is answered leaves without connection tracking, and
// so is not translated back: who has asked gets an answer of somebody whom he has not asked. It
// returns false for all else.
func (x *explainer) answeredPast(p *Plan) (stage, bool) {
	if !x.translated || !x.protocol.HasPorts() {
		return nil, false
	}
	front, svc, ok := p.Service(x.network, x.dst, x.protocol, x.port, Inside)
	if !ok || !svc.Here {
		return nil, false
	}
	at := netip.AddrPortFrom(x.dst, x.port)
	noteEntry(x, p, "services", front, svc, "the node itself answers, but only who asks there, and not behind another service: no answer is translated back")
	return x.deny("%s answers itself at %s, and not what comes there through another service", p.Local.Node, at), true
}

// answer is the stage of a frontend that the node itself answers. Nothing is left to choose,
// and no route is asked.
func (x *explainer) answer(p *Plan, from sender, e Endpoint) stage {
	if from == fromEndpoint {
		if why := x.intoTunnel(p); why != "" {
			x.note(p, "node", "%s", why)
			return x.deny("%s", why)
		}
		if !x.mayLeave(p, e, false, Route{}) {
			return nil
		}
	}
	return x.arrive(p, "", "answered by %s itself", p.Local.Node)
}
