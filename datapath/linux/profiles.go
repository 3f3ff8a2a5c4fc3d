package linux

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/plan"
)

// peerKey names the verdicts of a policy, in one direction, about one peer.
type peerKey struct {
	policyKey
	peer plan.Class
}

func peerOf(k plan.VerdictKey) peerKey { return peerKey{policyKey{k.Policy, k.Direction}, k.Peer} }

// id is the key of the peer's element.
func (k peerKey) id() string { return k.policyKey.id() + classKey(k.peer) }

// first is where the verdicts of a policy begin in the table.
func (k policyKey) first() plan.VerdictKey {
	return plan.VerdictKey{Policy: k.name, Direction: k.direction}
}

// profile is what a policy says of a peer: who knows a packet's protocol and
// port finds the one verdict. It is known by its content, so that peers, and
// policies, share it. One that denies holds for one policy only, and there for
// peers or for any peer, so that what it counts can be told apart.
type profile struct {
	id     string
	ranges []profileRange
}

// profileRange is a range of what packets may be, in the order of protocols
// and then ports.
type profileRange struct {
	first, last packetKind
	allow       bool
	// key is the entry that decides, for the first peer whose profile it is.
	key plan.VerdictKey
}

// packetKind is a protocol and a port as one number.
type packetKind uint32

const lastKind packetKind = 0xffffff

func kindOf(p plan.Protocol, port uint16) packetKind { return packetKind(p)<<16 | packetKind(port) }

// verdictEntry is an entry of the Verdicts table.
type verdictEntry struct {
	key   plan.VerdictKey
	value plan.Verdict
}

// compileProfile returns the profile of one peer's entries, which come in key
// order: that for any protocol first. It fills what the others leave, unless it
// names another peer.
func compileProfile(k peerKey, entries []verdictEntry) profile {
	var p profile
	add := func(first, last packetKind, e verdictEntry) {
		p.ranges = append(p.ranges, profileRange{first, last, e.value.Allow, e.key})
	}
	var rest *verdictEntry
	if len(entries) > 0 && entries[0].key.Protocol == plan.AnyProtocol {
		if entries[0].value.Like == 0 {
			rest = &entries[0]
		}
		entries = entries[1:]
	}
	next := packetKind(0)
	for _, e := range entries {
		first, last := kindOf(e.key.Protocol, e.key.Ports.First), kindOf(e.key.Protocol, e.key.Ports.Last)
		if rest != nil && next < first {
			add(next, first-1, *rest)
		}
		add(first, last, e)
		next = last + 1
	}
	if rest != nil && next <= lastKind {
		add(next, lastKind, *rest)
	}
	words := []string{"profile"}
	denies := func(e verdictEntry) bool { return !e.value.Allow }
	if slices.ContainsFunc(entries, denies) || rest != nil && denies(*rest) {
		words = append(words, k.name, string(k.direction), fmt.Sprint(k.peer == plan.AnyPeer))
	}
	for _, r := range p.ranges {
		words = append(words, fmt.Sprint(r.first, r.last, r.allow))
	}
	// What is told of a denial is told by its origin.
	for _, e := range entries {
		if denies(e) {
			words = append(words, e.value.Origin)
		}
	}
	if rest != nil && denies(*rest) {
		words = append(words, rest.value.Origin)
	}
	p.id = digest(words...)
	return p
}

// elements yields the profile's intervals. An interval ends right behind what
// is last in it, which is before the next begins: no two share an end.
func (p profile) elements(yield func(element, value) bool) {
	for _, r := range p.ranges {
		v := value{verdict: verdict{kind: expr.VerdictReturn}}
		if r.allow {
			v = value{verdict: accept}
		}
		if !yield(p.begin(r), v) || !yield(element{key: p.key(r.last) + "\x01", end: true}, value{}) {
			return
		}
	}
}

func (p profile) begin(r profileRange) element { return element{key: p.key(r.first) + "\x00"} }

// key is where something is in the map, but for the last byte.
func (p profile) key(k packetKind) string {
	b := append([]byte(p.id), byte(k>>16), 0, 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, uint16(k)), 0))
}

// entriesOf returns the verdicts about one peer, as the kernel gets them: with
// the denial of what else there is, where the peer is any.
func entriesOf(p *plan.Plan, k peerKey) []verdictEntry {
	var entries []verdictEntry
	first := k.first()
	first.Peer = k.peer
	for key, v := range p.Verdicts.From(first) {
		if peerOf(key) != k {
			break
		}
		entries = append(entries, verdictEntry{key, v})
	}
	return withRest(k, entries)
}

func withRest(k peerKey, entries []verdictEntry) []verdictEntry {
	if k.peer == plan.AnyPeer && (len(entries) == 0 || entries[0].key.Protocol != plan.AnyProtocol) {
		entries = slices.Insert(entries, 0, verdictEntry{key: plan.Otherwise(k.name, k.direction)})
	}
	return entries
}

// said is what the kernel is told of a peer: a profile of its own, and the one of
// whom it goes like, which is asked for what the first leaves. Either may be
// missing; where the second is, any peer's is asked.
type said struct{ own, like *profile }

// profiles compiles those of one policy and direction, each once.
type profiles struct {
	plan   *plan.Plan
	policy policyKey
	known  map[plan.Class]*profile
}

func profilesOf(p *plan.Plan, k policyKey) *profiles {
	return &profiles{p, k, map[plan.Class]*profile{}}
}

// of returns the profile of what is said of a peer itself, nil for nothing.
func (x *profiles) of(peer plan.Class) *profile {
	known, ok := x.known[peer]
	if !ok {
		k := peerKey{x.policy, peer}
		if entries := entriesOf(x.plan, k); len(entries) > 0 {
			if compiled := compileProfile(k, entries); len(compiled.ranges) > 0 {
				known = &compiled
			}
		}
		x.known[peer] = known
	}
	return known
}

// said returns what the kernel is told of a peer. Of one that takes two steps
// nothing else is said, so that what is left are two profiles at most.
func (x *profiles) said(peer plan.Class) said {
	all := make([]*profile, 0, 1+plan.MaxLikes)
	for range 1 + plan.MaxLikes {
		if p := x.of(peer); p != nil {
			all = append(all, p)
		}
		v, _ := x.plan.Verdicts.Get(plan.Rest(x.policy.name, x.policy.direction, peer))
		if peer = v.Like; peer == 0 {
			break
		}
	}
	switch len(all) {
	case 0:
		return said{}
	case 1:
		return said{own: all[0]}
	}
	return said{all[0], all[1]}
}

// policiesNamed are the policies that endpoints name.
func policiesNamed(p *plan.Plan) map[policyKey]bool {
	named := map[policyKey]bool{}
	for _, e := range p.Endpoints.All() {
		for _, k := range policiesOf(e) {
			named[k] = true
		}
	}
	return named
}

func policiesOf(e plan.Endpoint) []policyKey {
	var keys []policyKey
	if e.IngressPolicy != "" {
		keys = append(keys, policyKey{e.IngressPolicy, plan.Incoming})
	}
	if e.EgressPolicy != "" {
		keys = append(keys, policyKey{e.EgressPolicy, plan.Outgoing})
	}
	return keys
}

// peersOf yields the peers of all policies that have verdicts or that endpoints
// name, with what is said of them.
func peersOf(p *plan.Plan) iter.Seq2[peerKey, said] {
	return func(yield func(peerKey, said) bool) {
		lacks := policiesNamed(p) // a profile for any peer
		var last peerKey
		var of *profiles
		for key := range p.Verdicts.All() {
			k := peerOf(key)
			if k == last && of != nil {
				continue
			}
			if of == nil || k.policyKey != last.policyKey {
				of = profilesOf(p, k.policyKey)
			}
			last = k
			lacks[k.policyKey] = k.peer != plan.AnyPeer // which is the last
			if !yield(k, of.said(k.peer)) {
				return
			}
		}
		for policy, lacking := range lacks {
			if k := (peerKey{policy, plan.AnyPeer}); lacking && !yield(k, profilesOf(p, policy).said(plan.AnyPeer)) {
				return
			}
		}
	}
}
