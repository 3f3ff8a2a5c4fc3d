package linux

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/profile"
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
	if !profile.Policed(p) {
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
	for k, of := range profile.Peers(p) {
		putPeer(k, of, put, func(p *profile.Profile) {
			if state.shares[p.ID]++; state.shares[p.ID] == 1 {
				for e, v := range profileElements(p) {
					put(profileVerdicts, e, v)
				}
			}
		})
	}
	return state, r
}

// putPeer puts a peer's elements, and calls f for each of its profiles.
func putPeer(k profile.PeerKey, s profile.Said, put func(set string, e element, v value), f func(*profile.Profile)) {
	if s.Own != nil {
		put(profilesOfPeers, element{key: k.ID()}, digestData(s.Own.ID))
		f(s.Own)
	}
	if s.Like != nil {
		put(profilesOfLikes, element{key: k.ID()}, digestData(s.Like.ID))
		f(s.Like)
	}
}

// profileElements yields the profile's intervals. An interval ends right behind what
// is last in it, which is before the next begins: no two share an end.
func profileElements(p *profile.Profile) iter.Seq2[element, value] {
	return func(yield func(element, value) bool) {
		for _, r := range p.Ranges {
			v := value{verdict: verdict{kind: expr.VerdictReturn}}
			if r.Allow {
				v = value{verdict: accept}
			}
			if !yield(beginOf(p, r), v) || !yield(element{key: profileKey(p, r.Last) + "\x01", end: true}, value{}) {
				return
			}
		}
	}
}

func beginOf(p *profile.Profile, r profile.Range) element {
	return element{key: profileKey(p, r.First) + "\x00"}
}

// profileKey is where something is in the map, but for the last byte.
func profileKey(p *profile.Profile, k profile.Kind) string {
	b := append([]byte(p.ID), byte(k>>16), 0, 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(k)), 0))
}

// endpointElements puts what an endpoint has in the table.
func endpointElements(k plan.EndpointKey, e plan.Endpoint, put func(set string, e element, v value)) {
	name := interfaceKey(k.Interface)
	keys := profile.PoliciesOf(e)
	for _, policy := range keys {
		put(policiesPrefix+string(policy.Direction), element{key: name}, digestData(policy.ID()))
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
	e.addIntervals(interval.Flatten(func(yield func(netip.Prefix, value) bool) {
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
	touched := map[profile.PolicyKey]map[plan.Class]bool{}
	touch := func(k profile.PolicyKey, peer plan.Class) {
		if touched[k] == nil {
			touched[k] = map[plan.Class]bool{plan.AnyPeer: true}
		}
		touched[k][peer] = true
	}
	for _, c := range changes.Verdicts {
		k := profile.PeerOf(c.Key)
		touch(k.PolicyKey, k.Peer)
	}
	for _, c := range changes.Endpoints {
		for _, e := range []*plan.Endpoint{c.Old, c.New} {
			if e == nil {
				continue
			}
			for _, policy := range profile.PoliciesOf(*e) {
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
	compiled, before := map[string]*profile.Profile{}, map[string]int{}
	each := func(p *plan.Plan, put func(string, element, value), by int) {
		named := profile.PoliciesNamed(p)
		for policy, peers := range touched {
			has := named[policy]
			if !has {
				next, _, ok := firstFrom(p, policy.First())
				has = ok && profile.PeerOf(next).PolicyKey == policy
			}
			if !has {
				continue
			}
			of := profile.Of(p, policy)
			for peer := range peers {
				putPeer(profile.PeerKey{PolicyKey: policy, Peer: peer}, of.Said(peer), put, func(p *profile.Profile) {
					if _, ok := compiled[p.ID]; !ok {
						compiled[p.ID], before[p.ID] = p, s.shares[p.ID]
					}
					s.shares[p.ID] += by
				})
			}
		}
	}
	each(p, edit.remove, -1)
	each(q, edit.add, 1)
	for id, one := range compiled {
		switch had, has := before[id] > 0, s.shares[id] > 0; {
		case had && !has:
			for e, v := range profileElements(one) {
				edit.remove(profileVerdicts, e, v)
			}
		case !had && has:
			for e, v := range profileElements(one) {
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
func touchLikes(p *plan.Plan, k profile.PolicyKey, peers map[plan.Class]bool) {
	for key, v := range p.Verdicts.From(k.First()) {
		if profile.PeerOf(key).PolicyKey != k {
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
	if profile.Policed(q) != s.present {
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
