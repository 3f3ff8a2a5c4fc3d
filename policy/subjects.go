package policy

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// subject is what the node's own pods of one identity have in common, or those
// of one namespace whose labels are not known.
type subject struct {
	key       string
	namespace string
	// identity is nil while it is not known.
	identity *Identity
	// member is the subject as a peer; nil without identity.
	member *member
	// policies are those about it, in the order of their names.
	policies []*Policy
	// sets are those of its pods, Incoming and Outgoing; nil where everything
	// is allowed.
	sets [2]*set
	pods int
}

var directions = [2]plan.Direction{plan.Incoming, plan.Outgoing}

// about reports whether a policy is about the subject, or may be.
func (s *state) about(p *Policy, of *subject) bool {
	l := s.members.namespaces[of.namespace]
	if of.identity == nil {
		return p.Subject.SelectsNamespace(of.namespace, l)
	}
	return p.Subject.Selects(of.identity, l)
}

// updateSubjects follows the policies and the node's own pods, and gives these
// the sets that they must have.
func (s *state) updateSubjects(was, is *World, relabelled map[string]bool) {
	stale := map[*subject]struct{}{}
	for o, n := range changes(was.Policies, is.Policies, comparePolicies) {
		for _, of := range s.subjects {
			if of.follow(o, n, n != nil && s.about(n, of)) {
				stale[of] = struct{}{}
			}
		}
	}
	anew := func(of *subject) {
		of.policies = nil
		for _, p := range is.Policies {
			if s.about(p, of) {
				of.policies = append(of.policies, p)
			}
		}
		stale[of] = struct{}{}
	}
	for _, of := range s.subjects {
		if relabelled[of.namespace] {
			anew(of)
		}
	}
	var left []*subject
	for o, n := range changes(was.Local, is.Local, func(a, b *Local) int { return strings.Compare(a.Interface, b.Interface) }) {
		if n != nil {
			key := n.subject()
			of := s.subjects[key]
			if of == nil {
				of = &subject{key: key, namespace: n.Namespace, identity: n.Identity}
				if n.Identity != nil {
					of.namespace = n.Identity.Namespace
					of.member = s.members.add(n.Identity, 0)
				}
				s.subjects[key] = of
				anew(of)
			}
			of.pods++
		}
		if o != nil {
			of := s.subjects[o.subject()]
			of.pods--
			left = append(left, of)
		}
		s.endpointsChanged = true
	}
	for _, of := range left {
		if of.pods == 0 && s.subjects[of.key] == of {
			of.policies = nil
			stale[of] = struct{}{}
			delete(s.subjects, of.key)
			if of.member != nil {
				s.members.remove(of.member)
			}
		}
	}
	for of := range stale {
		s.chooseSets(of)
	}
	for _, set := range s.sets.idle {
		if set.subjects == 0 && s.sets.byKey[set.key] == set {
			s.dropSet(set)
		}
	}
	s.sets.idle = nil
}

func comparePolicies(a, b *Policy) int { return strings.Compare(a.Name, b.Name) }

// follow puts a policy in the place of the one of its name, either nil for none,
// and reports whether that changed anything.
func (of *subject) follow(was, is *Policy, about bool) bool {
	either := is
	if either == nil {
		either = was
	}
	i, found := slices.BinarySearchFunc(of.policies, either, comparePolicies)
	switch {
	case found && about:
		of.policies = slices.Clone(of.policies)
		of.policies[i] = is
	case found:
		of.policies = slices.Concat(of.policies[:i], of.policies[i+1:])
	case about:
		of.policies = slices.Concat(of.policies[:i], []*Policy{is}, of.policies[i:])
	}
	return found || about
}

// subject is the key of the subject that a pod is.
func (l *Local) subject() string {
	id := l.Identity
	if id == nil {
		return l.Namespace
	}
	b := []byte(id.Namespace)
	for _, k := range slices.Sorted(maps.Keys(id.Labels)) {
		b = append(append(append(append(b, 0), k...), 0), id.Labels[k]...)
	}
	return string(appendPorts(append(b, 0, 0), id.Ports))
}

// side is what a policy says in a direction.
func (p *Policy) side(d plan.Direction) (rules []Rule, isolates bool) {
	if d == plan.Outgoing {
		return p.Egress, p.IsolatesEgress && p.Tier == Isolating
	}
	return p.Ingress, p.IsolatesIngress && p.Tier == Isolating
}

// chooseSets gives a subject the sets that its policies make.
func (s *state) chooseSets(of *subject) {
	for i, d := range directions {
		var policies []*Policy
		for _, p := range of.policies {
			if rules, isolates := p.side(d); len(rules) > 0 || isolates {
				policies = append(policies, p)
			}
		}
		var next *set
		if len(policies) > 0 {
			next = s.set(of, d, policies)
		}
		if old := of.sets[i]; old != next {
			if next != nil {
				next.subjects++
			}
			if old != nil {
				if old.subjects--; old.subjects == 0 {
					s.sets.idle = append(s.sets.idle, old)
				}
			}
			of.sets[i] = next
			s.endpointsChanged = true
		}
		if next != nil && !slices.Equal(next.policies, policies) {
			next.policies = policies
			s.setRules(next, of.rules(d, policies, s))
		}
	}
}

// rules returns those that hold for the subject, of policies that are about it.
func (of *subject) rules(d plan.Direction, policies []*Policy, s *state) []Applied {
	if of.identity == nil {
		origin := "namespace " + of.namespace + ": the labels of a pod are not known yet"
		return []Applied{{&Rule{Origin: origin, Action: Deny}, Admin}}
	}
	return Applicable(policies, of.identity, s.members.namespaces[of.namespace], d)
}

// set returns the set that these policies make for a subject, which may be a new
// one without rules. What it is called goes by the policies' names, and not by
// what they say, so that an edited policy is not another set.
func (s *state) set(of *subject, d plan.Direction, policies []*Policy) *set {
	key := []byte(d)
	label := of.namespace + "/unknown"
	var destination *Identity
	if of.identity == nil {
		key = append(append(key, 0), of.namespace...)
	} else {
		// Of the last, as a NetworkPolicy's name says more than that of a
		// ClusterNetworkPolicy.
		last := policies[len(policies)-1].Name
		label = last[strings.LastIndexByte(last, ' ')+1:]
		if len(policies) > 1 {
			label = fmt.Sprintf("%s+%d", label, len(policies)-1)
		}
		names := map[string]bool{}
		for _, p := range policies {
			key = append(append(key, 0), p.Name...)
			if d == plan.Incoming {
				for _, r := range p.Ingress {
					for _, port := range r.Ports {
						names[port.Name] = true
					}
				}
			}
		}
		if d == plan.Incoming {
			ports := slices.DeleteFunc(slices.Clone(of.identity.Ports), func(p NamedPort) bool { return !names[p.Name] })
			key = appendPorts(append(key, 0, 0), ports)
			destination = &Identity{Ports: ports}
		}
	}
	known := s.sets.byKey[string(key)]
	if known == nil {
		known = &set{key: string(key), name: s.sets.name(label, key), direction: d, destination: destination}
		s.sets.byKey[known.key], s.sets.byName[known.name] = known, known
	}
	return known
}

// sets are all that there are.
type sets struct {
	byKey, byName map[string]*set
	// idle lost their last subject.
	idle []*set
	// wild are those that tell all destinations apart by their named ports.
	wild map[*set]struct{}
}

// name returns a name that no other set has: what people know it by, and a hash
// that tells it from others.
func (x *sets) name(label string, key []byte) string {
	h := fnv.New32a()
	h.Write(key)
	for n := h.Sum32(); ; n++ {
		if name := fmt.Sprintf("%s-%08x", label, n); x.byName[name] == nil {
			return name
		}
	}
}
