package linux

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// policies is what the policy table holds.
type policies struct {
	stamps Stamps
	// tags says whether the kernel labels connections.
	tags bool
	// present says that there is a table.
	present bool
	// counts says which of its elements count.
	counts counting
	// shares has the profiles, for which the peers ask that have them.
	shares reconcile.Ledger[string, struct{}]
}

// counting is the generation of a table's elements, and the sides of sets that are
// there twice.
type counting struct {
	generation int
	sides      sides
}

func (n counting) generationElements() nft.Elements {
	return nft.Elements{{Key: generationKey(n.generation)}: {}}
}

func (n counting) sideElements() nft.Elements {
	all := nft.Elements{}
	for i, name := range sided {
		all[nft.Element{Key: sideKey(name, n.sides[i])}] = nft.Value{}
	}
	return all
}

// countingIn is that of a table, or any where it says none.
func countingIn(c nft.Content) (n counting) {
	has := func(set, key string) bool {
		_, ok := c.Elements[set][nft.Element{Key: key}]
		return ok
	}
	for g := range generations {
		if has(currentGeneration, generationKey(g)) {
			n.generation = g
			break
		}
	}
	for i, name := range sided {
		if has(currentSides, sideKey(name, 1)) {
			n.sides[i] = 1
		}
	}
	return n
}

// compilePolicies returns all of the table for a plan; nothing where it forbids no
// connection. tags says whether the kernel labels connections, and
// counts which of the elements are to count. Devices may have the names of others.
func compilePolicies(stamps Stamps, p *plan.Plan, tags bool, counts counting, others ...Stamps) (policies, *ruleset) {
	if !judge.Needed(p) {
		return policies{stamps: stamps, tags: tags}, newRuleset(stamps, stamps.PolicyTable)
	}
	state, r := policies{stamps: stamps, tags: tags, present: true, counts: counts}, policyRules(stamps, tags)
	put := func(set string, e nft.Element, v nft.Value) { r.Sets[set].Elements[e] = v }
	r.Sets[currentGeneration].Elements, r.Sets[currentSides].Elements = counts.generationElements(), counts.sideElements()
	fill := func(name string, all nft.Elements) {
		r.Sets[setOn(name, counts.sides[slices.Index(sided, name)])].Elements = all
	}
	for k, e := range p.Endpoints.All() {
		endpointElements(k, e, put)
	}
	for k, c := range p.AllClasses() {
		addressElement(k, c, put)
	}
	for _, is4 := range interval.Families {
		fill(classesOfPrefixes+suffix(is4), prefixElements(p, is4))
	}
	for name, sources := range believedSources(stamps, p, others...) {
		fill(name, sources)
	}
	for k, w := range p.Within.All() {
		put(widerClasses, nft.Element{Key: widerKey(k.Class)}, classData(w.Class))
	}
	for k, of := range profile.Peers(p) {
		putPeer(k, of, put, func(p *profile.Profile) {
			_, known := state.shares.Now[p.ID]
			if state.shares.Add(p.ID, struct{}{}); !known {
				for e, v := range profileElements(p) {
					put(profileVerdicts, e, v)
				}
			}
		})
	}
	state.shares.Begin()
	return state, r
}

// putPeer puts a peer's elements, and calls f for each of its profiles.
func putPeer(k profile.PeerKey, s profile.Said, put func(set string, e nft.Element, v nft.Value), f func(*profile.Profile)) {
	if s.Own != nil {
		put(profilesOfPeers, nft.Element{Key: k.ID()}, digestData(s.Own.ID))
		f(s.Own)
	}
	if s.Like != nil {
		put(profilesOfLikes, nft.Element{Key: k.ID()}, digestData(s.Like.ID))
		f(s.Like)
	}
}

// profileElements yields the profile's intervals. An interval ends right behind what
// is last in it, which is before the next begins: no two share an end.
func profileElements(p *profile.Profile) iter.Seq2[nft.Element, nft.Value] {
	return func(yield func(nft.Element, nft.Value) bool) {
		for _, r := range p.Ranges {
			v := nft.Value{Verdict: denied}
			if r.Allow {
				v = nft.Value{Verdict: allowed}
			}
			if !yield(beginOf(p, r), v) || !yield(nft.Element{Key: profileKey(p, r.Last) + "\x01", End: true}, nft.Value{}) {
				return
			}
		}
	}
}

func beginOf(p *profile.Profile, r profile.Range) nft.Element {
	return nft.Element{Key: profileKey(p, r.First) + "\x00"}
}

// profileKey is where something is in the map, but for the last byte.
func profileKey(p *profile.Profile, k profile.Kind) string {
	b := append([]byte(p.ID), byte(k>>16), 0, 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(k)), 0))
}

// endpointElements puts what an endpoint has in the table.
func endpointElements(k plan.EndpointKey, e plan.Endpoint, put func(set string, e nft.Element, v nft.Value)) {
	name := nft.InterfaceKey(k.Interface)
	keys := profile.PoliciesOf(e)
	for _, policy := range keys {
		put(policiesPrefix+string(policy.Direction), nft.Element{Key: name}, digestData(policy.ID()))
	}
	if e.Tag != 0 {
		put(tagsOfEndpoints, nft.Element{Key: name}, classData(plan.ClassOf(e.Tag)))
	}
	for _, a := range e.Addresses {
		if len(keys) > 0 {
			put(ownAddresses+suffix(a.Is4()), nft.Element{Key: name + string(a.AsSlice())}, nft.Value{})
		}
	}
}

// addressElement puts the class of a whole address.
func addressElement(k plan.ClassKey, c plan.Class, put func(set string, e nft.Element, v nft.Value)) {
	if a := k.Prefix.Addr(); k.Prefix.IsSingleIP() {
		put(classesOfAddresses+suffix(a.Is4()), nft.Element{Key: string(a.AsSlice())}, classData(c))
	}
}

// prefixElements returns the intervals of the shorter prefixes. There are few.
func prefixElements(p *plan.Plan, is4 bool) nft.Elements {
	e := nft.Elements{}
	e.AddIntervals(interval.Flatten(func(yield func(netip.Prefix, nft.Value) bool) {
		for k, c := range p.AllClasses() {
			if k.Prefix.Addr().Is4() == is4 && !k.Prefix.IsSingleIP() && !yield(k.Prefix, classData(c)) {
				return
			}
		}
	}))
	return e
}

// setEdits is what must be done to the elements of a table, by set.
type setEdits map[string]*reconcile.Edit[nft.Element, nft.Value]

func (e setEdits) of(set string) *reconcile.Edit[nft.Element, nft.Value] {
	if e[set] == nil {
		e[set] = &reconcile.Edit[nft.Element, nft.Value]{}
	}
	return e[set]
}

// add and remove note what the next plan has and what the one before had. What
// both have is left alone.
func (e setEdits) remove(set string, k nft.Element, v nft.Value) { e.of(set).Remove(k, v) }
func (e setEdits) add(set string, k nft.Element, v nft.Value)    { e.of(set).Add(k, v) }

// put is add for what comes, and remove for what goes.
func (e setEdits) put(comes bool) putElement {
	if comes {
		return e.add
	}
	return e.remove
}

// changes are those of each set.
func (e setEdits) changes() map[string]nft.Change {
	all := map[string]nft.Change{}
	for set, edit := range e {
		if changes := edit.Changes(nft.Element.Compare); len(changes) > 0 {
			all[set] = nft.Change{Elements: changes}
		}
	}
	return all
}

// advance compiles the changes that lead from one plan to the next, of which
// the table has the first. It costs in proportion to the changes, and, where
// shorter prefixes are among them, to all of those. What is there twice is under the
// name of both.
func (s *policies) advance(p, q *plan.Plan, changes plan.Diff) map[string]nft.Change {
	edit := setEdits{}
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
	done, ranges := map[string]nft.Change{}, map[bool]bool{}
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
			done[classesOfPrefixes+suffix(is4)] = nft.Change{Whole: next}
		}
	}
	for _, c := range changes.Within {
		if c.Old != nil {
			edit.remove(widerClasses, nft.Element{Key: widerKey(c.Key.Class)}, classData(c.Old.Class))
		}
		if c.New != nil {
			edit.add(widerClasses, nft.Element{Key: widerKey(c.Key.Class)}, classData(c.New.Class))
		}
	}
	advanceBelieved(s.stamps, p, q, changes, done)
	s.advancePeers(p, q, changes, edit)
	maps.Copy(done, edit.changes())
	return done
}

func (s *policies) advancePeers(p, q *plan.Plan, changes plan.Diff, edit setEdits) {
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
	compiled := map[string]*profile.Profile{}
	each := func(p *plan.Plan, put func(string, nft.Element, nft.Value), ask func(id string, _ struct{}) bool) {
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
					compiled[p.ID] = p
					ask(p.ID, struct{}{})
				})
			}
		}
	}
	each(p, edit.remove, s.shares.Remove)
	each(q, edit.add, s.shares.Add)
	for _, c := range s.shares.Changes(strings.Compare) {
		put := edit.add
		if c.New == nil {
			put = edit.remove
		}
		for e, v := range profileElements(compiled[c.Key]) {
			put(profileVerdicts, e, v)
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

// stages are the two transactions that make changes of elements, by set, and which
// elements count then. The first changes nothing for packets, and is empty where there is
// nothing to bring before.
func (n counting) stages(edits map[string]nft.Change) (first, second map[string]nft.Change, next counting) {
	next = counting{(n.generation + 1) % generations, n.sides}
	first, second = map[string]nft.Change{}, maps.Clone(edits)
	for i, name := range sided {
		if c, ok := edits[name]; ok {
			next.sides[i] = 1 - n.sides[i]
			delete(second, name)
			first[setOn(name, next.sides[i])] = c
			second[setOn(name, n.sides[i])] = nft.Change{Whole: nft.Elements{}}
		}
	}
	var come, rest []reconcile.Change[nft.Element, nft.Value]
	for _, c := range edits[profileVerdicts].Elements {
		if c.Old == nil {
			come = append(come, c)
		} else {
			rest = append(rest, c)
		}
	}
	if len(come) > 0 {
		first[profileVerdicts] = nft.Change{Elements: come}
		second[profileVerdicts] = nft.Change{Elements: rest}
	}
	if len(rest) == 0 {
		delete(second, profileVerdicts)
	}
	second[currentGeneration] = nft.Change{Whole: next.generationElements()}
	if next.sides != n.sides {
		second[currentSides] = nft.Change{Whole: next.sideElements()}
	}
	return first, second, next
}

// edit makes changes of elements, which no packet sees in part, and edits of other tables
// in the same moment. It returns what each of its transactions did, and which elements
// count from then on.
func (n counting) edit(r *ruleset, edits map[string]nft.Change, write writer) (done [][]string, next counting, err error) {
	first, second, next := n.stages(edits)
	if done, err = apply(nft.Edit{Table: r.Table, Changes: first}); err != nil {
		return nil, n, err
	}
	noticed, err := write(nft.Edit{Table: r.Table, Changes: second})
	if err != nil {
		return done, n, err
	}
	return append(done, noticed...), next, nil
}

// writer writes edits in one transaction, with whatever else packets are to notice in the same
// moment. It returns what each of its transactions did, of which this is the last.
type writer func(...nft.Edit) (done [][]string, err error)

// apply is the writer of nothing else.
func apply(edits ...nft.Edit) ([][]string, error) {
	lines, err := nft.Apply(edits...)
	return transactions(lines), err
}

// with is the writer of these edits, too.
func (w writer) with(also ...nft.Edit) writer {
	return func(edits ...nft.Edit) ([][]string, error) { return w(slices.Concat(edits, also)...) }
}

// transactions is one, of which lines tell what it did, or none where it did nothing.
func transactions(lines []string) [][]string {
	if len(lines) == 0 {
		return nil
	}
	return [][]string{lines}
}

// sync reads the table, and writes where it differs from what a plan needs, with edits of other
// tables in the transaction that packets notice, and, where elements alone differ, with what
// else write writes. It returns what each of its transactions changed.
func (s *policies) sync(p *plan.Plan, write writer, also ...nft.Edit) (done [][]string, err error) {
	return s.syncBeside(p, nil, write, also...)
}

// syncBeside is sync while devices may still have the names of others, from which this
// data plane takes over. The next sync knows its own alone.
func (s *policies) syncBeside(p *plan.Plan, others []Stamps, write writer, also ...nft.Edit) (done [][]string, err error) {
	have, err := reading(s.stamps.PolicyTable)
	if err != nil {
		return nil, err
	}
	counts := countingIn(have)
	state, want := compilePolicies(s.stamps, p, s.tags, counts, others...)
	edits, alike, err := nft.Difference(have, want.Table)
	switch {
	case err != nil:
		return nil, err
	case alike && len(edits) > 0:
		if done, state.counts, err = counts.edit(want, counts.bySets(edits, want), write.with(also...)); err == nil {
			*s = state
			return done, nil
		}
		// What others put there may be in the way.
		state.counts = counts
		done, err = append(done, []string{"write table inet " + want.Name + " anew"}), replace(have, want, also...)
	case alike || want.Empty():
		var lines []string
		_, lines, err = nft.Write(have, want.Table, also...)
		done = transactions(lines)
	case have.Exists():
		// With the rules all sets are others. Were only their elements to change, a packet that
		// is being judged would not notice.
		done, err = [][]string{{nft.Anew(have, want.Table)}}, replace(have, want, also...)
	default:
		done = [][]string{{"write table inet " + want.Name}, {"have packets meet table inet " + want.Name}}
		err = nft.Replace(want.Table, false, nil, also...)
	}
	if err != nil {
		return done, err
	}
	*s = state
	rest, err := write()
	return append(done, rest...), err
}

// replace writes the table over what is there. A packet that is being judged finds its maps empty,
// and no generation either: it is allowed by nothing.
func replace(have nft.Content, want *ruleset, also ...nft.Edit) error {
	over := nft.Placed{Table: want.Table, There: true, Vouching: slices.DeleteFunc(slices.Clone(vouching), func(set string) bool { return !have.HasSet(set) })}
	return nft.ReplaceAll([]nft.Placed{over}, nil, also...)
}

// vouching are the sets in which something must be for a packet to be allowed.
var vouching = []string{currentGeneration}

// bySets are changes of a table's elements with those of a set that is there twice under
// the name of both.
func (n counting) bySets(edits map[string]nft.Change, want *ruleset) map[string]nft.Change {
	for i, name := range sided {
		counts, other := setOn(name, n.sides[i]), setOn(name, 1-n.sides[i])
		if _, ok := edits[counts]; ok {
			delete(edits, counts)
			delete(edits, other)
			edits[name] = nft.Change{Whole: want.Sets[counts].Elements}
		}
	}
	if c, ok := edits[profileVerdicts]; ok {
		// A set of intervals would be emptied and filled anew; of this one the changes alone
		// are written, as stages writes them in two parts.
		edits[profileVerdicts] = nft.Change{Elements: c.Elements}
	}
	return edits
}

// update writes what leads from one plan to the next, with edits of other tables in the
// transaction that packets notice. It returns what each of its transactions did. After an
// error the table must be read anew.
func (s *policies) update(p, q *plan.Plan, changes plan.Diff, also ...nft.Edit) (done [][]string, err error) {
	write := writer(apply).with(also...)
	if judge.Needed(q) != s.present {
		return s.sync(q, apply, also...)
	}
	var edits map[string]nft.Change
	if s.present {
		edits = s.advance(p, q, changes)
	}
	if len(edits) == 0 {
		return write()
	}
	done, s.counts, err = s.counts.edit(policyRules(s.stamps, s.tags), edits, write)
	return done, err
}
