package policy

import (
	"cmp"
	"fmt"
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
	subjects    int
	policies    []*Policy
	rules       []Applied
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

// What sets do that cost too much.
var (
	tooManyVerdicts = fmt.Sprintf("make more than %d verdicts", MaxVerdicts)
	tooManyTogether = fmt.Sprintf("make more than %d verdicts together with the other policies of the namespace", MaxVerdictsOfNamespace)
	tooMuchWork     = fmt.Sprintf("take more than %d comparisons to work out", MaxWork)
)

// costly returns the sets that deny everything because of what they would cost.
func (s *state) costly() (all []Costly) {
	for _, set := range s.sets.byKey {
		if set.costly != "" {
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
	set.rules, set.rows = rules, nil
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
	delete(s.queue.closed, set)
	delete(s.sets.byKey, set.key)
	delete(s.sets.byName, set.name)
	s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, nil)
}

// concerns reports whether a class may matter to the set: of one that is within a
// wider one, by what that is not.
func (s *set) concerns(c *class) bool {
	if c.wider != nil {
		return s.mask.meetsBut(c.in, c.wider.in)
	}
	return s.mask.meets(c.in) || s.wild && len(c.ports) > 0
}

// judge writes the verdicts of sets whose rules are others, and those of the
// classes that came and went.
func (s *state) judge(came, gone []*class) {
	if len(came)+len(gone) > 0 {
		for _, set := range s.sets.byKey {
			if _, whole := s.staleSets[set]; whole || s.follow(set, came, gone) {
				continue
			}
			if set.costly != "" {
				s.reopen(set)
			} else {
				s.staleSets[set] = struct{}{}
			}
		}
	}
	if s.queue.advance {
		for set := range s.queue.closed {
			s.staleSets[set] = struct{}{}
			break
		}
	}
	for again := true; again; again = len(s.staleSets) > 0 {
		for set := range s.staleSets {
			s.judgeAnew(set)
		}
		clear(s.staleSets)
		s.shareOut()
	}
}

// judgeAnew writes all verdicts of a set.
func (s *state) judgeAnew(set *set) {
	delete(s.queue.closed, set)
	var concerning []*class
	for _, c := range s.classes.byTag {
		if set.concerns(c) {
			concerning = append(concerning, c)
		}
	}
	set.rows = newRows(set, concerning)
	verdicts := map[plan.VerdictKey]plan.Verdict{}
	set.costly, set.wanted = "", 0
	if set.rows.grid.work > maxWork {
		s.shut(set, tooMuchWork)
		return
	}
	if set.rows.write(verdicts); len(verdicts) > maxVerdicts {
		s.shut(set, tooManyVerdicts)
		return
	}
	set.wanted = len(verdicts)
	set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, verdicts)
}

// shut has a set deny everything.
func (s *state) shut(set *set, why string) {
	set.costly = why
	set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction}, false, map[plan.VerdictKey]plan.Verdict{
		plan.Otherwise(set.name, set.direction): {Origin: set.policies[0].Name + " and others of the same pod " + why}})
}

// shareOut sees to it that no namespace has more verdicts than it may have, and that
// what was shut for that and need not be any more is judged anew.
func (s *state) shareOut() {
	owned := map[string][]*set{}
	for _, set := range s.sets.byKey {
		if set.owner != "" && set.wanted > 0 {
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

// reopen has a set that denies everything be judged anew, which may wait.
func (s *state) reopen(set *set) {
	if s.queue.gradual {
		s.queue.closed[set] = struct{}{}
	} else {
		s.staleSets[set] = struct{}{}
	}
}

// follow writes the verdicts of a set for the classes that came and went. It
// returns false where all of the set must be written anew.
func (s *state) follow(set *set, came, gone []*class) bool {
	verdicts := map[plan.VerdictKey]plan.Verdict{}
	for i, c := range slices.Concat(gone, came) {
		is := s.classes.byTag[c.tag] == c
		if !set.concerns(c) || i >= len(gone) && !is {
			continue
		}
		if set.costly != "" {
			return false
		}
		if len(set.names) > 0 && len(c.ports) > 0 {
			return false // the ports that names stand for may be others
		}
		if i < len(gone) {
			if !set.rows.leave(c) {
				return false
			}
			set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction, Peer: c.tag}, true, nil)
			set.wanted = set.verdicts
			continue
		}
		clear(verdicts)
		if !set.rows.enter(c, verdicts) {
			return false
		}
		set.verdicts += s.replace(plan.VerdictKey{Policy: set.name, Direction: set.direction, Peer: c.tag}, true, verdicts)
		if set.wanted = set.verdicts; set.verdicts > maxVerdicts {
			return false
		}
	}
	return true
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
