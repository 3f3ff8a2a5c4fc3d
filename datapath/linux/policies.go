package linux

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// policies is what the policy table holds.
type policies struct {
	stamps Stamps
	// present says that there is a table.
	present bool
	// shares counts, for each profile, the peers that have it.
	shares map[string]int
}

// compilePolicies returns all of the table for a plan; nothing where no
// endpoint has a policy.
func compilePolicies(stamps Stamps, p *plan.Plan) (policies, *ruleset) {
	if !policed(p) {
		return policies{stamps: stamps}, newRuleset(stamps, stamps.PolicyTable)
	}
	state, r := policies{stamps: stamps, present: true, shares: map[string]int{}}, policyRules(stamps)
	put := func(set string, e element, v value) { r.sets[set].elements[e] = v }
	for k, e := range p.Endpoints.All() {
		endpointElements(k, e, put)
	}
	for k, c := range p.AllClasses() {
		addressElement(k, c, put)
	}
	for _, is4 := range families {
		r.sets[classesOfPrefixes+suffix(is4)].elements = prefixElements(p, is4)
	}
	for k, w := range p.Within.All() {
		put(widerClasses, element{key: widerKey(k.Class)}, classData(w.Class))
	}
	for k, of := range peersOf(p) {
		of.each(k, put, func(p *profile) {
			if state.shares[p.id]++; state.shares[p.id] == 1 {
				for e, v := range p.elements {
					put(profileVerdicts, e, v)
				}
			}
		})
	}
	return state, r
}

// each puts a peer's elements, and calls f for each of its profiles.
func (s said) each(k peerKey, put func(set string, e element, v value), f func(*profile)) {
	if s.own != nil {
		put(profilesOfPeers, element{key: k.id()}, digestData(s.own.id))
		f(s.own)
	}
	if s.like != nil {
		put(profilesOfLikes, element{key: k.id()}, digestData(s.like.id))
		f(s.like)
	}
}

// endpointElements puts what an endpoint has in the table.
func endpointElements(k plan.EndpointKey, e plan.Endpoint, put func(set string, e element, v value)) {
	name := interfaceKey(k.Interface)
	keys := policiesOf(e)
	for _, policy := range keys {
		put(policiesPrefix+string(policy.direction), element{key: name}, digestData(policy.id()))
	}
	if e.Tag != 0 {
		put(tagsOfEndpoints, element{key: name}, classData(plan.ClassOf(e.Tag)))
	}
	for _, a := range e.Addresses {
		if len(keys) > 0 {
			put(ownAddresses+suffix(a.Is4()), element{key: name + string(a.AsSlice())}, value{})
		}
	}
}

// addressElement puts the class of a whole address.
func addressElement(k plan.ClassKey, c plan.Class, put func(set string, e element, v value)) {
	if a := k.Prefix.Addr(); k.Prefix.IsSingleIP() {
		put(classesOfAddresses+suffix(a.Is4()), element{key: string(a.AsSlice())}, classData(c))
	}
}

// prefixElements returns the intervals of the shorter prefixes. There are few.
func prefixElements(p *plan.Plan, is4 bool) elements {
	e := elements{}
	e.addIntervals(flatten(func(yield func(netip.Prefix, value) bool) {
		for k, c := range p.AllClasses() {
			if k.Prefix.Addr().Is4() == is4 && !k.Prefix.IsSingleIP() && !yield(k.Prefix, classData(c)) {
				return
			}
		}
	}))
	return e
}

// policyEdit is what must be done to the table's elements, by set.
type policyEdit map[string]*setChange

func (e policyEdit) of(set string) *setChange {
	c, ok := e[set]
	if !ok {
		c = &setChange{add: elements{}, del: elements{}}
		e[set] = c
	}
	return c
}

// add and remove note what the next plan has and what the one before had. What
// both have is left alone.
func (e policyEdit) remove(set string, k element, v value) { e.of(set).del[k] = v }

func (e policyEdit) add(set string, k element, v value) {
	c := e.of(set)
	if old, ok := c.del[k]; ok && old == v {
		delete(c.del, k)
		return
	}
	c.add[k] = v
}

// advance compiles the changes that lead from one plan to the next, of which
// the table has the first. It costs in proportion to the changes, and, where
// shorter prefixes are among them, to all of those.
func (s *policies) advance(p, q *plan.Plan, changes plan.Diff) policyEdit {
	edit := policyEdit{}
	for _, c := range changes.Endpoints {
		if c.Old != nil {
			endpointElements(c.Key, *c.Old, edit.remove)
		}
	}
	for _, c := range changes.Endpoints {
		if c.New != nil {
			endpointElements(c.Key, *c.New, edit.add)
		}
	}
	ranges := map[bool]bool{}
	for _, c := range p.ClassChanges(q, changes) {
		if !c.Key.Prefix.IsSingleIP() {
			ranges[c.Key.Prefix.Addr().Is4()] = true
		}
		if c.Old != nil {
			addressElement(c.Key, *c.Old, edit.remove)
		}
		if c.New != nil {
			addressElement(c.Key, *c.New, edit.add)
		}
	}
	for is4 := range ranges {
		old, next := prefixElements(p, is4), prefixElements(q, is4)
		if !maps.Equal(old, next) {
			edit[classesOfPrefixes+suffix(is4)] = &setChange{add: next, whole: true}
		}
	}
	for _, c := range changes.Within {
		if c.Old != nil {
			edit.remove(widerClasses, element{key: widerKey(c.Key.Class)}, classData(c.Old.Class))
		}
		if c.New != nil {
			edit.add(widerClasses, element{key: widerKey(c.Key.Class)}, classData(c.New.Class))
		}
	}
	s.advancePeers(p, q, changes, edit)
	maps.DeleteFunc(edit, func(_ string, c *setChange) bool { return c.empty() })
	return edit
}

func (s *policies) advancePeers(p, q *plan.Plan, changes plan.Diff, edit policyEdit) {
	// A policy has a profile for any peer as long as there is anything of it.
	touched := map[policyKey]map[plan.Class]bool{}
	touch := func(k policyKey, peer plan.Class) {
		if touched[k] == nil {
			touched[k] = map[plan.Class]bool{plan.AnyPeer: true}
		}
		touched[k][peer] = true
	}
	for _, c := range changes.Verdicts {
		k := peerOf(c.Key)
		touch(k.policyKey, k.peer)
	}
	for _, c := range changes.Endpoints {
		for _, e := range []*plan.Endpoint{c.Old, c.New} {
			if e == nil {
				continue
			}
			for _, policy := range policiesOf(*e) {
				touch(policy, plan.AnyPeer)
			}
		}
	}
	if len(touched) == 0 {
		return
	}
	for k, peers := range touched {
		// Who is like a peer changes with it, and who is like that one.
		for range plan.MaxLikes {
			touchLikes(p, k, peers)
			touchLikes(q, k, peers)
		}
	}
	compiled, before := map[string]*profile{}, map[string]int{}
	each := func(p *plan.Plan, put func(string, element, value), by int) {
		named := policiesNamed(p)
		for policy, peers := range touched {
			has := named[policy]
			if !has {
				next, _, ok := firstFrom(p, policy.first())
				has = ok && peerOf(next).policyKey == policy
			}
			if !has {
				continue
			}
			of := profilesOf(p, policy)
			for peer := range peers {
				of.said(peer).each(peerKey{policy, peer}, put, func(p *profile) {
					if _, ok := compiled[p.id]; !ok {
						compiled[p.id], before[p.id] = p, s.shares[p.id]
					}
					s.shares[p.id] += by
				})
			}
		}
	}
	each(p, edit.remove, -1)
	each(q, edit.add, 1)
	for id, profile := range compiled {
		switch had, has := before[id] > 0, s.shares[id] > 0; {
		case had && !has:
			for e, v := range profile.elements {
				edit.remove(profileVerdicts, e, v)
			}
		case !had && has:
			for e, v := range profile.elements {
				edit.add(profileVerdicts, e, v)
			}
		}
		if s.shares[id] == 0 {
			delete(s.shares, id)
		}
	}
}

// touchLikes adds to peers of a policy those that a plan says are like one of
// them.
func touchLikes(p *plan.Plan, k policyKey, peers map[plan.Class]bool) {
	for key, v := range p.Verdicts.From(k.first()) {
		if peerOf(key).policyKey != k {
			break
		}
		if v.Like != 0 && peers[v.Like] {
			peers[key.Peer] = true
		}
	}
}

func firstFrom(p *plan.Plan, k plan.VerdictKey) (plan.VerdictKey, plan.Verdict, bool) {
	for k, v := range p.Verdicts.From(k) {
		return k, v, true
	}
	return plan.VerdictKey{}, plan.Verdict{}, false
}

// sync reads the table, and writes where it differs from what a plan needs. It
// returns what it changed.
func (s *policies) sync(p *plan.Plan) ([]string, error) {
	have, err := readTable(s.stamps.PolicyTable)
	if err != nil {
		return nil, err
	}
	state, want := compilePolicies(s.stamps, p)
	_, done, err := writeTable(have, want)
	if err == nil {
		*s = state
	}
	return done, err
}

// update writes what leads from one plan to the next, in one transaction.
// After an error the table must be read anew.
func (s *policies) update(p, q *plan.Plan, changes plan.Diff) ([]string, error) {
	if policed(q) != s.present {
		return s.sync(q)
	}
	if !s.present {
		return nil, nil
	}
	edit := s.advance(p, q, changes)
	if len(edit) == 0 {
		return nil, nil
	}
	conn, err := nftConn()
	if err != nil {
		return nil, err
	}
	var done []string
	shapes := policyRules(s.stamps).sets
	for _, name := range slices.Sorted(maps.Keys(edit)) {
		if err := edit[name].write(conn, shapes[name].to(s.stamps.PolicyTable, name)); err != nil {
			return nil, fmt.Errorf("change set %s: %w", name, err)
		}
		done = append(done, edit[name].describe(name))
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("change nftables table inet %s: %w", s.stamps.PolicyTable, err)
	}
	return done, nil
}
