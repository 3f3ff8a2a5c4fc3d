package policy

import (
	"fmt"
	"hash/fnv"
	"iter"
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
	// newcomers is how many of its pods have come while it waits; see apart.
	newcomers int
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
	// What an administrator changes does not wait for a namespace's turn.
	stale, urgent, changed := map[*subject]struct{}{}, map[*subject]bool{}, map[*subject]bool{}
	for o, n := range changes(was.Policies, is.Policies, comparePolicies) {
		for _, of := range s.subjects {
			if of.follow(o, n, n != nil && s.about(n, of)) {
				stale[of] = struct{}{}
				changed[of] = true
				urgent[of] = urgent[of] || o.ofCluster() || n.ofCluster()
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
			urgent[of] = true
		}
	}
	var left []*subject
	joined := map[*subject][]newcomer{}
	for o, n := range changes(was.Local, is.Local, func(a, b *Local) int { return strings.Compare(a.Interface, b.Interface) }) {
		s.endpointsChanged = true
		if o != nil && n != nil && o.subject() == n.subject() {
			continue
		}
		var before *[2]*set
		if o != nil {
			if o.Identity != nil {
				sets := s.setsOf(o)
				before = &sets
			}
			s.joinAll(o.Interface)
			of := s.subjects[o.subject()]
			of.pods--
			left = append(left, of)
		}
		if n != nil {
			key := n.subject()
			of := s.subjects[key]
			if of == nil {
				of = &subject{key: key, namespace: n.Namespace, identity: n.Identity, unidentified: n.Unidentified}
				if n.Identity != nil {
					of.namespace = n.Identity.Namespace
					of.member = s.members.add(n.Identity, 0)
				}
				s.subjects[key] = of
				anew(of)
			}
			of.pods++
			joined[of] = append(joined[of], newcomer{n.Interface, before})
		}
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
	s.queue.changed = s.queue.changed || len(stale)+len(joined)+len(left) > 0
	s.queue.hasty = map[string]bool{}
	var now []*subject
	for _, of := range slices.SortedFunc(maps.Keys(stale), func(a, b *subject) int { return strings.Compare(a.key, b.key) }) {
		if of.held = !urgent[of] && s.queue.holds(of, changed[of]); of.held {
			s.queue.add(debt{subject: of})
		} else {
			if changed[of] && !urgent[of] {
				s.queue.hasty[of.namespace] = true
			}
			s.queue.remove(debt{subject: of})
			now = append(now, of)
		}
	}
	for of, newcomers := range joined {
		for _, n := range newcomers {
			if of.held {
				s.keepApart(of, n)
			}
		}
	}
	switch d := s.queue.take(); {
	case d.subject != nil:
		now = append(now, s.queue.with(d.subject)...)
	case d.judge != nil:
		s.staleSets[d.judge] = struct{}{}
	case d.drop != nil:
		s.dropSet(d.drop)
	case d.rewiden:
		s.rewidens = true
	}
	for _, of := range now {
		s.admit(of)
	}
	s.dropIdle()
}

// newcomer is a pod that was none of a subject's, and the sets that it had; nil where
// it is new.
type newcomer struct {
	name   string // of its interface
	before *[2]*set
}

// apart are the sets of a pod that came to a subject while that waits: those that it
// had before, or, where it is new, such that allow nothing. The older rules of the
// subject's other pods were never its own.
type apart struct {
	of   *subject
	sets [2]*set
}

func (s *state) keepApart(of *subject, n newcomer) {
	a := &apart{of: of}
	for i, d := range directions {
		if n.before != nil {
			s.assign(&a.sets, i, n.before[i])
		} else {
			s.assign(&a.sets, i, s.closedSet(of, d))
		}
	}
	s.apart[n.name] = a
	of.newcomers++
}

// joinAll has a pod have what the other pods of its subject have.
func (s *state) joinAll(name string) {
	if a := s.apart[name]; a != nil {
		for i := range directions {
			s.assign(&a.sets, i, nil)
		}
		delete(s.apart, name)
		a.of.newcomers--
		s.endpointsChanged = true
	}
}

// setsOf returns the sets of a pod.
func (s *state) setsOf(l *Local) [2]*set {
	if a := s.apart[l.Interface]; a != nil {
		return a.sets
	}
	return s.subjects[l.subject()].sets
}

// waitsWith reports whether who waits has a set.
func (s *state) waitsWith(set *set) bool {
	for _, a := range s.apart {
		if slices.Contains(a.sets[:], set) {
			return true
		}
	}
	return slices.ContainsFunc(s.queue.debts, func(d debt) bool { return d.subject != nil && slices.Contains(d.subject.sets[:], set) })
}

// notInForce yields the policies that are about the subject and not in force for some
// pod of its.
func (of *subject) notInForce() iter.Seq[*Policy] {
	return func(yield func(*Policy) bool) {
		rest := of.inForce
		for _, p := range of.policies {
			for len(rest) > 0 && comparePolicies(rest[0], p) < 0 {
				rest = rest[1:]
			}
			if (of.newcomers > 0 || len(rest) == 0 || rest[0] != p) && !yield(p) {
				return
			}
		}
	}
}

// admit gives a subject that does not wait the sets that its policies make.
func (s *state) admit(of *subject) {
	of.held = false
	for name, a := range s.apart {
		if a.of == of {
			s.joinAll(name)
		}
	}
	of.inForce, of.size = of.policies, sizeOf(of.policies)
	s.chooseSets(of)
}

// ofCluster reports whether a policy, nil for none, is an administrator's.
func (p *Policy) ofCluster() bool { return p != nil && p.Subject.Namespace == "" }

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
			if !slices.Equal(next.policies, policies) && s.waitsWith(next) {
				s.setAside(next)
				next = s.set(of, d, policies)
			}
		}
		s.assign(&of.sets, i, next)
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

// assign makes a set one of some pods' sets, nil for none.
func (s *state) assign(sets *[2]*set, direction int, next *set) {
	old := sets[direction]
	if old == next {
		return
	}
	if next != nil {
		if next.subjects++; next.idle {
			// It was not followed while nobody had it.
			next.idle = false
			s.queue.remove(debt{drop: next})
			s.staleSets[next] = struct{}{}
		}
	}
	if old != nil {
		if old.subjects--; old.subjects == 0 {
			s.sets.left = append(s.sets.left, old)
		}
	}
	sets[direction] = next
	s.endpointsChanged = true
}

// dropIdle forgets the sets that lost their last subject. Large ones have their turn,
// as there is no hurry with what nobody has.
func (s *state) dropIdle() {
	for _, set := range s.sets.left {
		switch {
		case set.subjects > 0 || s.sets.byKey[set.key] != set:
		case !s.queue.gradual || set.verdicts <= smallVerdicts:
			s.dropSet(set)
		default:
			set.idle = true
			s.queue.remove(debt{judge: set})
			s.queue.add(debt{drop: set})
		}
	}
	s.sets.left = nil
}

// rules returns those that hold for the subject, of policies that are about it.
func (of *subject) rules(d plan.Direction, policies []*Policy, s *state) []Applied {
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
	if of.identity == nil {
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

// closedSet returns the set of new pods of a subject that waits: nothing is allowed.
func (s *state) closedSet(of *subject, d plan.Direction) *set {
	key := []byte(string(d) + "\x00waiting\x00" + of.key)
	known := s.sets.byKey[string(key)]
	if known == nil {
		known = &set{key: string(key), name: s.sets.name(of.namespace+"/waiting", key), direction: d}
		s.sets.byKey[known.key], s.sets.byName[known.name] = known, known
		s.setRules(known, []Applied{{&Rule{Origin: "the policies of namespace " + of.namespace + " are large, and not worked out for a new pod yet", Action: Deny}, Admin}})
	}
	return known
}

// sets are all that there are.
type sets struct {
	byKey, byName map[string]*set
	// left lost their last subject in this update.
	left []*set
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
