package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// Party is one side of a connection.
type Party struct {
	// Identity is that of a pod; nil for what is none.
	Identity *Identity
	// NamespaceLabels are those of the pod's namespace.
	NamespaceLabels labels.Set
	// Address is the side's own.
	Address netip.Addr
	// Machines are the labels of the nodes that have the address, and Domains
	// the names that stand for it.
	Machines []labels.Set
	Domains  []string
}

// Selects reports whether the selector selects a pod.
func (s *Selector) Selects(id *Identity, namespaceLabels labels.Set) bool {
	return id != nil && s.SelectsNamespace(id.Namespace, namespaceLabels) &&
		(s.Pods == nil || s.Pods.Matches(id.Labels))
}

// SelectsNamespace reports whether the selector can select pods of a namespace.
func (s *Selector) SelectsNamespace(name string, l labels.Set) bool {
	if s.Namespace != "" {
		return s.Namespace == name
	}
	return s.Namespaces == nil || s.Namespaces.Matches(l)
}

// Matches reports whether the peer is the party.
func (p *Peer) Matches(o Party) bool {
	switch {
	case p.Pods != nil:
		return p.Pods.Selects(o.Identity, o.NamespaceLabels)
	case p.Block != nil:
		return p.Block.Contains(o.Address)
	case p.Nodes != nil:
		return slices.ContainsFunc(o.Machines, func(l labels.Set) bool { return p.Nodes.Matches(l) })
	case p.Domain != "":
		return slices.Contains(o.Domains, p.Domain)
	}
	return false
}

// Holds reports whether the rule holds for a peer, on some port.
func (r *Rule) Holds(peer Party) bool {
	return r.Peers == nil || slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Matches(peer) })
}

// Applied is a rule that holds for some pod, in the place at which it is asked.
type Applied struct {
	*Rule
	Tier Tier
}

// Applicable returns the rules that hold for a pod in a direction, in the order
// in which they decide. Where policies isolate it, a rule that denies everything
// ends the tier Isolating; its origin names the first of these policies. No
// rules at all means that everything is allowed.
func Applicable(policies []*Policy, subject *Identity, namespaceLabels labels.Set, d plan.Direction) []Applied {
	var chosen []*Policy
	for _, p := range policies {
		if p.Subject.Selects(subject, namespaceLabels) {
			chosen = append(chosen, p)
		}
	}
	slices.SortStableFunc(chosen, func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.priority(), b.priority()), strings.Compare(a.Name, b.Name))
	})
	var applied []Applied
	var isolation *Rule
	for i, p := range chosen {
		rules, isolates := p.Ingress, p.IsolatesIngress
		if d == plan.Outgoing {
			rules, isolates = p.Egress, p.IsolatesEgress
		}
		for j := range rules {
			applied = append(applied, Applied{&rules[j], p.Tier})
		}
		if isolation == nil && isolates && p.Tier == Isolating {
			isolation = Isolation(p.Name, d)
		}
		if isolation != nil && (i+1 == len(chosen) || chosen[i+1].Tier != Isolating) && p.Tier == Isolating {
			applied = append(applied, Applied{isolation, Isolating})
		}
	}
	return applied
}

func (p *Policy) priority() int {
	if p.Tier == Isolating {
		return 0
	}
	return p.Priority
}

// Isolation is the rule by which a policy of that name denies what no policy
// of its tier allows.
func Isolation(policy string, d plan.Direction) *Rule {
	return &Rule{Origin: policy + " " + string(d) + " isolation", Action: Deny}
}

// Unrestricted is the origin of what no policy decides.
const Unrestricted = "no policy decides"

// Decision is what becomes of connections to some destination ports.
type Decision struct {
	Protocol plan.Protocol
	Ports    plan.PortRange
	Allow    bool
	Origin   string
}

// Resolve flattens rules, as Applicable returns them, for one peer of the
// subject. destination is whichever of the two is the destination, by whose
// named ports it goes; nil where that is no pod.
//
// What it returns covers every protocol and port once: the last decision is
// that of AnyProtocol, which holds for protocols that no other names; those of
// a named protocol follow each other from port 0 to 65535. Decisions side by
// side differ, and a protocol all of which goes as AnyProtocol is not named.
func Resolve(rules []Applied, peer Party, destination *Identity) []Decision {
	var holding []Applied
	for _, r := range rules {
		if r.Holds(peer) {
			holding = append(holding, r)
		}
	}
	return flatten(holding, destination)
}

// flatten is Resolve for rules all of which hold for the peer.
func flatten(rules []Applied, destination *Identity) []Decision {
	type match struct {
		Applied
		ports []Port // resolved; nil means all
	}
	var matches []match
	cuts := map[plan.Protocol][]int{}
	for _, r := range rules {
		m := match{Applied: r}
		if r.Ports != nil {
			if m.ports = resolvePorts(r.Ports, destination); len(m.ports) == 0 {
				continue
			}
		}
		for _, p := range m.ports {
			if p.Protocol != plan.AnyProtocol {
				cuts[p.Protocol] = append(cuts[p.Protocol], int(p.Range.First), int(p.Range.Last)+1)
			}
		}
		matches = append(matches, m)
	}
	decide := func(protocol plan.Protocol, port uint16) (bool, string) {
		passed := Tier(-1)
		for _, m := range matches {
			if m.Tier == passed || m.ports != nil && !slices.ContainsFunc(m.ports, func(p Port) bool {
				return p.Protocol == plan.AnyProtocol || p.Protocol == protocol && p.Range.Contains(port)
			}) {
				continue
			}
			if m.Action != Pass {
				return m.Action == Allow, m.Origin
			}
			passed = m.Tier
		}
		return true, Unrestricted
	}

	rest := Decision{Protocol: plan.AnyProtocol, Ports: plan.AllPorts}
	rest.Allow, rest.Origin = decide(plan.AnyProtocol, 0)
	var decisions []Decision
	for _, protocol := range slices.Sorted(maps.Keys(cuts)) {
		at := append(cuts[protocol], 0)
		slices.Sort(at)
		at = slices.Compact(at)
		first := len(decisions)
		for i, from := range at {
			if from > 65535 {
				break
			}
			to := 65535
			if i+1 < len(at) {
				to = at[i+1] - 1
			}
			next := Decision{Protocol: protocol, Ports: plan.PortRange{First: uint16(from), Last: uint16(to)}}
			next.Allow, next.Origin = decide(protocol, uint16(from))
			if n := len(decisions); n > first && decisions[n-1].same(next) {
				decisions[n-1].Ports.Last = next.Ports.Last
			} else {
				decisions = append(decisions, next)
			}
		}
		if len(decisions) == first+1 && decisions[first].same(rest) {
			decisions = decisions[:first]
		}
	}
	return append(decisions, rest)
}

func (d Decision) same(o Decision) bool { return d.Allow == o.Allow && d.Origin == o.Origin }

// resolvePorts puts in the place of named ports those that the destination has.
func resolvePorts(ports []Port, destination *Identity) []Port {
	var resolved []Port
	for _, p := range ports {
		if p.Name == "" {
			if !p.Protocol.HasPorts() {
				p.Range = plan.AllPorts
			}
			resolved = append(resolved, p)
			continue
		}
		if destination == nil {
			continue
		}
		for _, named := range destination.Ports {
			if named.Name == p.Name && (p.Protocol == plan.AnyProtocol || p.Protocol == named.Protocol) {
				resolved = append(resolved, Port{Protocol: named.Protocol, Range: plan.PortRange{First: named.Port, Last: named.Port}})
			}
		}
	}
	return resolved
}
