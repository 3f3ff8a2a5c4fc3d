package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// set is a set of verdicts: what pods that the same policies are about have in
// common in a direction.
type set struct {
	key, name string
	direction plan.Direction
	// owner is the namespace whose policies it is made of, "" if all of them are
	// the cluster's.
	owner string
	// destination is whose named ports count, of what comes in.
	destination *Identity
	// subjects counts who has it; idle says that nobody has, and that it waits to be
	// dropped and is not followed.
	subjects int
	idle     bool
	policies []*Policy
	// size is how large they are.
	size  int
	rules []Applied
	// uses are the peers of the rules, and which rules have them; mask are the
	// peers' ids.
	uses map[*peer][]int
	mask bitset
	// names are those of ports that matter of what goes out, and everywhere
	// those of them which do so for all destinations, for some because of
	// their addresses alone.
	names, everywhere map[string]bool
	// wild says that some rule for all peers has named ports.
	wild bool
	// rows are what the set says of classes.
	rows *rows
	// verdicts is how many it has, wanted how many it would have if it did not deny
	// everything for what it costs.
	verdicts, wanted int
	// costly says why it denies everything, "" where it does not.
	costly string
}

// costly returns the sets that deny everything because of what they would cost.
func (s *state) costly() (all []Costly) {
	for _, set := range s.sets.byKey {
		if set.costly != "" && set.subjects > 0 {
			all = append(all, Costly{set.policies, set.costly})
		}
	}
	slices.SortFunc(all, func(a, b Costly) int { return slices.CompareFunc(a.Policies, b.Policies, comparePolicies) })
	return all
}

// portNames count the sets to which the named ports of destinations matter: of
// those that some selector selects, and of all.
type portNames struct{ selected, everywhere map[string]int }

// setRules gives a set other rules.
func (s *state) setRules(set *set, rules []Applied) {
	uses, mask := map[*peer][]int{}, bitset(nil)
	names, everywhere, wild := map[string]bool{}, map[string]bool{}, false
	for i, r := range rules {
		bySelector := r.Peers != nil
		for _, p := range r.Peers {
			bySelector = bySelector && p.Pods != nil
			if p.key() == "" {
				continue
			}
			if of := s.peers.use(p, set); len(uses[of]) == 0 || uses[of][len(uses[of])-1] != i {
				uses[of], mask = append(uses[of], i), mask.with(of.id)
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
	set.rules, set.rows, set.size = rules, nil, sizeOf(set.policies)
	set.uses, set.mask, set.names, set.everywhere, set.wild = uses, mask, names, everywhere, wild
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
	s.queue.remove(debt{judge: set})
	s.queue.remove(debt{drop: set})
	delete(s.sets.byKey, set.key)
	delete(s.sets.byName, set.name)
	s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, nil)
}

// concerns reports whether a class may matter to the set: of one that is within a
// wider one, by what that is not.
func (s *set) concerns(c *class) bool { return s.concernsWithin(c, c.wider) }

func (s *set) concernsWithin(c, wider *class) bool {
	if wider != nil {
		return s.mask.meetsBut(c.in, wider.in)
	}
	return s.mask.meets(c.in) || s.wild && len(c.ports) > 0
}

// same reports whether an heir is to the set what the class was whose number it has.
func (s *set) same(c, heir *class) bool {
	if heir == nil || !slices.Equal(c.ports, heir.ports) || !c.in.agrees(heir.in, s.mask) || (c.wider == nil) != (heir.wider == nil) {
		return false
	}
	return c.wider == heir.wider || s.sameWider(c.wider, heir.wider)
}

// sameWider is same for wide classes.
func (s *set) sameWider(c, heir *class) bool {
	return c != nil && c.heir != nil && c.heir == heir && c.in.agrees(heir.in, s.mask)
}

// tells reports whether a class has named ports by which the set tells it from others,
// beside those that are known.
func (s *set) tells(c *class, known []NamedPort) bool {
	return s.destination == nil && slices.ContainsFunc(c.ports, func(p NamedPort) bool { return s.names[p.Name] && !slices.Contains(known, p) })
}

// judge writes the verdicts of sets whose rules are others, and those of the
// classes that changed.
func (s *state) judge(changes classChanges) {
	if len(changes.came)+len(changes.gone)+len(changes.rewidened) > 0 {
		for _, set := range s.sets.byKey {
			if _, whole := s.staleSets[set]; !whole && set.subjects > 0 && !s.follow(set, changes) {
				s.reopen(set)
			}
		}
	}
	for again := true; again; again = len(s.staleSets) > 0 {
		for set := range s.staleSets {
			if set.subjects > 0 {
				s.judgeAnew(set)
			}
		}
		clear(s.staleSets)
		s.shareOut()
	}
}

// judgeAnew writes all verdicts of a set.
func (s *state) judgeAnew(set *set) {
	s.queue.remove(debt{judge: set})
	var concerning []*class
	for _, c := range s.classes.byNumber {
		if set.concerns(c) {
			concerning = append(concerning, c)
		}
	}
	set.rows = newRows(set, concerning)
	verdicts := map[plan.VerdictKey]plan.Verdict{}
	set.costly, set.wanted = "", 0
	if set.rows.work <= maxWork {
		set.rows.write(verdicts)
	}
	if why := set.beyond(len(verdicts)); why != "" {
		s.shut(set, why)
		return
	}
	set.wanted = len(verdicts)
	set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, verdicts)
}

// beyond says what a set with so many verdicts would cost too much, "" for nothing.
func (s *set) beyond(verdicts int) string {
	switch {
	case s.rows.work > maxWork:
		return tooMuchWork
	case verdicts > maxVerdicts:
		return tooManyVerdicts
	}
	return ""
}

// shut has a set deny everything.
func (s *state) shut(set *set, why string) {
	set.costly = why
	set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, map[plan.VerdictKey]plan.Verdict{
		plan.Otherwise(set.name, set.direction): {Origin: shutOrigin(set.policies, why)}})
}

// shareOut sees to it that no namespace has more verdicts than it may have, and that
// what was shut for that and need not be any more is judged anew.
func (s *state) shareOut() {
	owned := map[string][]*set{}
	for _, set := range s.sets.byKey {
		if set.owner != "" && set.subjects > 0 && set.wanted > 0 {
			owned[set.owner] = append(owned[set.owner], set)
		}
	}
	for _, sets := range owned {
		sum := 0
		for _, set := range sets {
			sum += set.wanted
		}
		if sum > maxOfNamespace {
			slices.SortFunc(sets, func(a, b *set) int { return cmp.Or(b.wanted-a.wanted, strings.Compare(a.key, b.key)) })
		}
		for _, set := range sets {
			switch over := sum > maxOfNamespace; {
			case over && set.costly == "":
				s.shut(set, tooManyTogether)
			case !over && set.costly == tooManyTogether:
				s.reopen(set)
			}
			if sum > maxOfNamespace {
				sum -= set.wanted
			}
		}
	}
}

// reopen has a set be judged anew, which may wait if it takes long.
func (s *state) reopen(set *set) {
	if s.mayWait(set) {
		s.queue.add(debt{judge: set})
	} else {
		s.staleSets[set] = struct{}{}
	}
}

// mayWait reports whether a set takes so long to be judged anew that it has to wait for
// its turn.
func (s *state) mayWait(set *set) bool {
	return s.queue.gradual && (set.costly != "" || set.size > smallSize)
}

// follow writes the verdicts of a set for the classes that changed. It returns false
// where the set is to be judged anew; until then it holds, and where that may wait, it
// denies new classes of which it cannot say anything yet.
func (s *state) follow(set *set, changes classChanges) bool {
	waits, e, told := s.mayWait(set), statements{}, true
	// What is said of some depends on the rows of others, so heirs come first.
	same := map[*class]bool{}
	for _, c := range changes.gone {
		if set.same(c, c.heir) {
			same[c], same[c.heir] = true, true
			set.rows.inherit(c, c.heir)
		}
	}
	for _, c := range changes.gone {
		if set.concerns(c) && !same[c] {
			if set.costly != "" {
				return false
			}
			set.rows.leave(c, e)
		}
	}
	for _, c := range changes.came {
		if !set.concerns(c) || c.gone || same[c] {
			continue
		}
		if set.costly != "" {
			return false
		}
		if !set.rows.enter(c, e) {
			if told = false; !waits {
				return false
			}
			set.rows.denies, s.queue.changed = true, true
			e[c.number] = map[plan.VerdictKey]plan.Verdict{
				plan.Rest(set.name, set.direction, c.number): {Origin: set.policies[0].Name + " and others of the same pod are large, and not worked out for a new peer yet"}}
		}
	}
	for _, r := range changes.rewidened {
		c := r.class
		was, is := set.concernsWithin(c, r.before), set.concerns(c)
		switch {
		case !was && !is || set.sameWider(r.before, c.wider):
			continue
		case set.costly != "":
			return false
		case !is:
			set.rows.leave(c, e)
		case set.rows.of[c] != nil:
			set.rows.sayClass(c, e)
		case !set.rows.enter(c, e):
			// It may do what it did, so it must not wait.
			s.staleSets[set] = struct{}{}
			return true
		}
	}
	for peer, verdicts := range e {
		set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction, Peer: peer}, true, verdicts)
	}
	if len(e) > 0 {
		set.wanted = set.verdicts
		if why := set.beyond(set.verdicts); why != "" {
			if waits {
				set.wanted = 0
				s.shut(set, why)
			}
			return false
		}
	}
	return told && set.rows.exact()
}

// replace makes the verdicts of a policy and direction, or with peer those of
// its peer alone, the ones that are given. It returns how many more there are.
func (s *state) replace(of plan.VerdictKey, peer bool, verdicts map[plan.VerdictKey]plan.Verdict) (more int) {
	before := s.tables.Verdicts.Len()
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
	return s.tables.Verdicts.Len() - before
}
