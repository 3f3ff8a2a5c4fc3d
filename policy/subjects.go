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
// of one namespace whose labels are not known, or those of which nothing is.
type subject struct {
	key       string
	namespace string
	// unidentified says that the namespace is not known.
	unidentified bool
	// identity is nil while it is not known.
	identity *Identity
	// member is the subject as a peer; nil without identity.
	member *member
	// policies are those about it, in the order of their names; held is false where
	// its sets are made of these, and otherwise it waits in the queue for that.
	policies []*Policy
	held     bool
	// inForce are the policies that its sets are made of, size is how large they are.
	inForce []*Policy
	size    int
	// fresh says that it has had no sets yet.
	fresh bool
	// heir says that it has the sets of another while it waits, as its pods were that one
	// before, closed that nothing is allowed while it waits.
	heir, closed bool
	// sets are those of its pods, Incoming and Outgoing; nil where everything
	// is allowed.
	sets [2]*set
	pods int
}

var directions = [2]plan.Direction{plan.Incoming, plan.Outgoing}

// about reports whether a policy is about the subject, or may be.
func (s *state) about(p *Policy, of *subject) bool {
	if of.unidentified {
		return true
	}
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
	joined := map[*subject][]*subject{} // what pods were that are these now, nil where they are new
	for o, n := range changes(was.Local, is.Local, func(a, b *Local) int { return strings.Compare(a.Interface, b.Interface) }) {
		if n != nil {
			key := n.subject()
			of := s.subjects[key]
			if of == nil {
				of = &subject{fresh: true, key: key, namespace: n.Namespace, identity: n.Identity, unidentified: n.Unidentified}
				if n.Identity != nil {
					of.namespace = n.Identity.Namespace
					of.member = s.members.add(n.Identity, 0)
				}
				s.subjects[key] = of
				anew(of)
			}
			if o == nil || o.subject() != key {
				var before *subject
				if o != nil && o.Identity != nil {
					was := *s.subjects[o.subject()] // as its sets may go with its last pod
					before = &was
				}
				joined[of] = append(joined[of], before)
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
	for of := range joined {
		if of.heir {
			s.close(of)
		}
	}
	var now []*subject
	for _, of := range slices.SortedFunc(maps.Keys(stale), func(a, b *subject) int { return strings.Compare(a.key, b.key) }) {
		if s.queue.holds(of) {
			s.hold(of, joined[of])
		} else {
			s.queue.remove(of)
			now = append(now, of)
		}
	}
	for _, of := range append(now, s.queue.nextSubjects()...) {
		s.admit(of)
	}
	s.dropIdle()
}

// hold has a subject wait in the queue. A new one is closed meanwhile, or has the
// sets of the one that all of its pods were before.
func (s *state) hold(of *subject, before []*subject) {
	s.queue.add(of)
	if !of.fresh {
		return
	}
	of.fresh = false
	first := before[0]
	if first == nil || first.closed || slices.ContainsFunc(before, func(b *subject) bool { return b == nil || b.key != first.key }) {
		s.close(of)
		return
	}
	of.heir, of.inForce, of.size = true, first.inForce, first.size
	for i, set := range first.sets {
		s.assign(of, i, set)
	}
}

// close has a subject that waits allow nothing.
func (s *state) close(of *subject) {
	of.heir, of.closed = false, true
	of.inForce, of.size = nil, 0
	s.chooseSets(of)
}

// admit gives a subject that does not wait the sets that its policies make.
func (s *state) admit(of *subject) {
	of.heir, of.closed, of.fresh = false, false, false
	of.inForce, of.size = of.policies, sizeOf(of.policies)
	s.chooseSets(of)
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

// unidentified is the key of the subject that pods are whose namespace is not
// known. No namespace has such a name.
const unidentified = "?"

// subject is the key of the subject that a pod is.
func (l *Local) subject() string {
	id := l.Identity
	switch {
	case l.Unidentified:
		return unidentified
	case id == nil:
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
			if !slices.Equal(next.policies, policies) && s.queue.has(next) {
				s.setAside(next)
				next = s.set(of, d, policies)
			}
		}
		s.assign(of, i, next)
		if next != nil && !slices.Equal(next.policies, policies) {
			next.policies = policies
			s.setRules(next, of.rules(d, policies, s))
		}
	}
}

// setAside has a set be called otherwise, so that who waits has it as it is while its
// name is another's.
func (s *state) setAside(set *set) {
	verdicts := map[plan.VerdictKey]plan.Verdict{}
	of := plan.VerdictKey{Policy: set.name, Direction: set.direction}
	for k, v := range s.tables.Verdicts.From(of) {
		if k.Policy != of.Policy || k.Direction != of.Direction {
			break
		}
		verdicts[k] = v
	}
	s.replace(of, false, nil)
	delete(s.sets.byKey, set.key)
	delete(s.sets.byName, set.name)
	for set.key += "\x00before"; s.sets.byKey[set.key] != nil; set.key += "\x00before" {
	}
	set.name = s.sets.name(set.name[:strings.LastIndexByte(set.name, '-')], []byte(set.key))
	s.sets.byKey[set.key], s.sets.byName[set.name] = set, set
	for k, v := range verdicts {
		k.Policy = set.name
		s.tables.Verdicts = s.tables.Verdicts.Set(k, v)
	}
	s.endpointsChanged = true
}

// assign gives a subject a set for a direction, nil for none.
func (s *state) assign(of *subject, direction int, next *set) {
	old := of.sets[direction]
	if old == next {
		return
	}
	if next != nil {
		next.subjects++
	}
	if old != nil {
		if old.subjects--; old.subjects == 0 {
			s.queue.idle = append(s.queue.idle, old)
		}
	}
	of.sets[direction] = next
	s.endpointsChanged = true
}

// dropIdle forgets the sets that lost their last subject. Large ones have their turn,
// as there is no hurry with what nobody has.
func (s *state) dropIdle() {
	var left []*set
	for _, set := range s.queue.idle {
		switch {
		case set.subjects > 0 || s.sets.byKey[set.key] != set:
		case !s.queue.gradual || set.verdicts <= smallVerdicts:
			s.dropSet(set)
		case s.queue.advance && set.owner == s.queue.owner && !s.queue.isDue(set.owner):
			s.queue.taken()
			s.dropSet(set)
		default:
			left = append(left, set)
		}
	}
	s.queue.idle = left
}

// rules returns those that hold for the subject, of policies that are about it.
func (of *subject) rules(d plan.Direction, policies []*Policy, s *state) []Applied {
	if of.closed {
		return []Applied{{&Rule{Origin: "the policies of namespace " + of.namespace + " are large, and not worked out for a new pod yet", Action: Deny}, Admin}}
	}
	if of.identity == nil {
		origin := "namespace " + of.namespace + ": the labels of a pod are not known yet"
		if of.unidentified {
			origin = "the node has lost which pod this is, so any policy may be about it"
		}
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
	if of.unidentified {
		label = "unidentified"
	}
	var destination *Identity
	if of.closed {
		key = append(append(key, "\x00closed\x00"...), of.key...)
	} else if of.identity == nil {
		key = append(append(key, 0), of.key...)
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
	owner := ""
	if slices.ContainsFunc(policies, func(p *Policy) bool { return p.Subject.Namespace != "" }) {
		owner = of.namespace
	}
	if owner == "" {
		key = append(key, 0)
	}
	known := s.sets.byKey[string(key)]
	if known == nil {
		known = &set{key: string(key), owner: owner, name: s.sets.name(label, key), direction: d, destination: destination}
		s.sets.byKey[known.key], s.sets.byName[known.name] = known, known
	}
	s.peers.pass(known, owner)
	return known
}

// sets are all that there are.
type sets struct {
	byKey, byName map[string]*set
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
