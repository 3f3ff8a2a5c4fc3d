package policy

import (
	"maps"
	"slices"

	"github.com/weftnet/weft/plan"
)

// set is a set of verdicts: what pods that the same policies are about have in
// common in a direction.
type set struct {
	key, name string
	direction plan.Direction
	// destination is whose named ports count, of what comes in.
	destination *Identity
	subjects    int
	policies    []*Policy
	rules       []Applied
	// uses are the peers of the rules, and which rules have them.
	uses map[*peer][]int
	// names are those of ports that matter of what goes out, and everywhere
	// those of them which do so for all destinations, for some because of
	// their addresses alone.
	names, everywhere map[string]bool
	// wild says that some rule for all peers has named ports.
	wild bool
	// otherwise decides about what no peer matches.
	otherwise []Decision
}

// portNames count the sets to which the named ports of destinations matter: of
// those that some selector selects, and of all.
type portNames struct{ selected, everywhere map[string]int }

// setRules gives a set other rules.
func (s *state) setRules(set *set, rules []Applied) {
	uses := map[*peer][]int{}
	names, everywhere, wild := map[string]bool{}, map[string]bool{}, false
	for i, r := range rules {
		bySelector := r.Peers != nil
		for _, p := range r.Peers {
			bySelector = bySelector && p.Pods != nil
			if p.key() == "" {
				continue
			}
			if of := s.peers.use(p, set); len(uses[of]) == 0 || uses[of][len(uses[of])-1] != i {
				uses[of] = append(uses[of], i)
			}
		}
		if set.direction == plan.Outgoing {
			for _, p := range r.Ports {
				if p.Name != "" {
					names[p.Name] = true
					if !bySelector {
						everywhere[p.Name] = true
					}
					wild = wild || r.Peers == nil
				}
			}
		}
	}
	for p := range set.uses {
		if _, ok := uses[p]; !ok {
			s.peers.release(p, set)
		}
	}
	s.countNames(s.names.selected, set.names, names)
	s.countNames(s.names.everywhere, set.everywhere, everywhere)
	set.rules, set.uses, set.names, set.everywhere, set.wild = rules, uses, names, everywhere, wild
	if wild {
		s.sets.wild[set] = struct{}{}
	} else {
		delete(s.sets.wild, set)
	}
	s.staleSets[set] = struct{}{}
}

func (s *state) countNames(counts map[string]int, was, is map[string]bool) {
	count := func(names map[string]bool, n int) {
		for name := range names {
			before := counts[name]
			if counts[name] += n; counts[name] == 0 {
				delete(counts, name)
			}
			s.namesChanged = s.namesChanged || (before == 0) != (counts[name] == 0)
		}
	}
	count(is, 1)
	count(was, -1)
}

// dropSet forgets a set and its verdicts.
func (s *state) dropSet(set *set) {
	s.setRules(set, nil)
	delete(s.staleSets, set)
	delete(s.sets.byKey, set.key)
	delete(s.sets.byName, set.name)
	s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, nil)
}

// ruling is how a set decides about classes. What it was asked it keeps, since
// few rules make few answers for however many classes.
type ruling struct {
	*set
	answers map[string][]Decision
}

// decide returns the decisions about a class, nil for what no peer matches.
func (r *ruling) decide(c *class) []Decision {
	holds := make([]byte, len(r.rules))
	for i, rule := range r.rules {
		if rule.Peers == nil {
			holds[i] = 1
		}
	}
	destination := r.destination
	if c != nil {
		for _, p := range c.peers {
			for _, i := range r.uses[p] {
				holds[i] = 1
			}
		}
		if r.direction == plan.Outgoing && len(r.names) > 0 {
			destination = &Identity{Ports: c.ports}
		}
	}
	key := string(holds)
	if destination != nil {
		key = string(appendPorts(holds, destination.Ports))
	}
	if known, ok := r.answers[key]; ok {
		return known
	}
	var holding []Applied
	for i, rule := range r.rules {
		if holds[i] == 1 {
			holding = append(holding, rule)
		}
	}
	decisions := flatten(holding, destination)
	r.answers[key] = decisions
	return decisions
}

// write adds to verdicts those that a class needs beside those of what no peer
// matches; nil is that itself.
func (r *ruling) write(c *class, verdicts map[plan.VerdictKey]plan.Verdict) {
	decisions := r.decide(c)
	peer, base := plan.AnyPeer, []Decision(nil)
	if c != nil {
		peer, base = c.tag, r.otherwise
	} else {
		r.otherwise = decisions
	}
	for _, d := range beyond(base, decisions) {
		k := plan.VerdictKey{Policy: r.name, Direction: r.direction, Peer: peer, Protocol: d.Protocol, Ports: d.Ports}
		verdicts[k] = plan.Verdict{Allow: d.Allow, Origin: d.Origin}
	}
}

// beyond returns what must be said about a peer for decisions to hold, as Resolve
// returns them, where base is said about all. An entry for the peer and
// AnyProtocol decides before all of base, so either it and what differs from it
// is said, or what differs from base.
func beyond(base, decisions []Decision) []Decision {
	rest := decisions[len(decisions)-1]
	var said []Decision
	if len(base) == 0 || !base[len(base)-1].same(rest) {
		for _, d := range decisions {
			if d == rest || !d.same(rest) {
				said = append(said, d)
			}
		}
		return said
	}
	protocols := map[plan.Protocol]bool{}
	for _, d := range slices.Concat(base, decisions) {
		protocols[d.Protocol] = true
	}
	delete(protocols, plan.AnyProtocol)
	for _, protocol := range slices.Sorted(maps.Keys(protocols)) {
		for _, d := range of(decisions, protocol) {
			// One entry says all of it, from the first port to the last at which
			// base says otherwise.
			first, last := -1, -1
			for _, b := range of(base, protocol) {
				from, to := max(int(b.Ports.First), int(d.Ports.First)), min(int(b.Ports.Last), int(d.Ports.Last))
				if from > to || b.same(d) {
					continue
				}
				if first < 0 {
					first = from
				}
				last = to
			}
			if first >= 0 {
				d.Ports = plan.PortRange{First: uint16(first), Last: uint16(last)}
				said = append(said, d)
			}
		}
	}
	return said
}

// of returns the decisions about all ports of a protocol.
func of(decisions []Decision, protocol plan.Protocol) []Decision {
	var its []Decision
	for _, d := range decisions {
		if d.Protocol == protocol {
			its = append(its, d)
		}
	}
	if len(its) == 0 {
		d := decisions[len(decisions)-1]
		d.Protocol = protocol
		its = append(its, d)
	}
	return its
}

// judge writes the verdicts of sets whose rules are others, and those of the
// classes that came and went.
func (s *state) judge(came, gone []*class) {
	stale := map[*set][]*class{}
	concerned := func(c *class, f func(*set)) {
		for _, p := range c.peers {
			for set := range p.sets {
				f(set)
			}
		}
		if len(c.ports) > 0 {
			for set := range s.sets.wild {
				f(set)
			}
		}
	}
	note := func(c *class) {
		concerned(c, func(set *set) {
			if _, whole := s.staleSets[set]; !whole && (len(stale[set]) == 0 || stale[set][len(stale[set])-1] != c) {
				stale[set] = append(stale[set], c)
			}
		})
	}
	for _, c := range came {
		for _, p := range c.peers {
			p.classes[c] = struct{}{}
		}
		note(c)
	}
	for _, c := range gone {
		for _, p := range c.peers {
			delete(p.classes, c)
		}
		note(c)
	}
	for set := range s.staleSets {
		r := ruling{set, map[string][]Decision{}}
		verdicts := map[plan.VerdictKey]plan.Verdict{}
		r.write(nil, verdicts)
		for c := range s.concerning(set) {
			r.write(c, verdicts)
		}
		s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, verdicts)
	}
	for set, changed := range stale {
		r := ruling{set, map[string][]Decision{}}
		for _, c := range changed {
			verdicts := map[plan.VerdictKey]plan.Verdict{}
			if s.classes.byTag[c.tag] == c {
				r.write(c, verdicts)
			}
			s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction, Peer: c.tag}, true, verdicts)
		}
	}
	clear(s.staleSets)
}

// concerning returns the classes that may matter to a set.
func (s *state) concerning(set *set) map[*class]struct{} {
	all := map[*class]struct{}{}
	for p := range set.uses {
		maps.Copy(all, p.classes)
	}
	if set.wild {
		for _, c := range s.classes.byTag {
			if len(c.ports) > 0 {
				all[c] = struct{}{}
			}
		}
	}
	return all
}

// replace makes the verdicts of a policy and direction, or with peer those of
// its peer alone, the ones that are given.
func (s *state) replace(of plan.VerdictKey, peer bool, verdicts map[plan.VerdictKey]plan.Verdict) {
	t := s.tables.Verdicts
	for k := range t.From(of) {
		if k.Policy != of.Policy || k.Direction != of.Direction || peer && k.Peer != of.Peer {
			break
		}
		if _, ok := verdicts[k]; !ok {
			s.tables.Verdicts = s.tables.Verdicts.Delete(k)
		}
	}
	for k, v := range verdicts {
		s.tables.Verdicts = s.tables.Verdicts.Set(k, v)
	}
}
