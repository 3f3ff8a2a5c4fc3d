// Package profile compiles the verdicts of policies into what a data plane looks up.
//
// A policy's verdicts about one peer become a Profile: disjoint ranges of protocols
// and ports, each with one verdict. Peers of which the same is said share it, and so
// do policies, as it is known by its content. What is Said of a peer is one profile
// or two: its own, and the one of whom it goes like. A packet that neither knows goes
// by the profile of any peer.
//
// It is pure. Start at Peers, which yields all that a plan says; Of compiles what it
// says in one policy.
package profile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/weftnet/weft/plan"
)

// PolicyKey is a policy in one direction.
type PolicyKey struct {
	Name      string
	Direction plan.Direction
}

// First is where the verdicts of a policy begin in the table.
func (k PolicyKey) First() plan.VerdictKey {
	return plan.VerdictKey{Policy: k.Name, Direction: k.Direction}
}

// ID is what the policy is called in a kernel, in 8 bytes.
func (k PolicyKey) ID() string { return digest("policy", string(k.Direction), k.Name) }

// PeerKey names the verdicts of a policy, in one direction, about one peer.
type PeerKey struct {
	PolicyKey
	Peer plan.Class
}

// ID is what the policy's peer is called in a kernel: the ID of the policy and the 4
// bytes of the class.
func (k PeerKey) ID() string {
	return string(binary.BigEndian.AppendUint32([]byte(k.PolicyKey.ID()), uint32(k.Peer)))
}

// PeerOf is the peer that an entry is about.
func PeerOf(k plan.VerdictKey) PeerKey { return PeerKey{PolicyKey{k.Policy, k.Direction}, k.Peer} }

// Profile is what a policy says of a peer: who knows a packet's protocol and
// port finds the one verdict. It is known by its content, so that peers, and
// policies, share it. One that denies holds for one policy only, and there for
// peers or for any peer, so that what it counts can be told apart.
type Profile struct {
	ID     string
	Ranges []Range
}

// Range is a range of what packets may be, in the order of protocols
// and then ports.
type Range struct {
	First, Last Kind
	Allow       bool
	// Key is the entry that decides, for the first peer whose profile it is.
	Key plan.VerdictKey
}

// Kind is a protocol and a port as one number.
type Kind uint32

const lastKind Kind = 0xffffff

// KindOf is the number of a protocol and a port.
func KindOf(p plan.Protocol, port uint16) Kind { return Kind(p)<<16 | Kind(port) }

// Entry is an entry of the Verdicts table.
type Entry struct {
	Key   plan.VerdictKey
	Value plan.Verdict
}

// compileProfile returns the profile of one peer's entries, which come in key
// order: that for any protocol first. It fills what the others leave, unless it
// names another peer.
func compileProfile(k PeerKey, entries []Entry) Profile {
	var p Profile
	add := func(first, last Kind, e Entry) {
		p.Ranges = append(p.Ranges, Range{first, last, e.Value.Allow, e.Key})
	}
	var rest *Entry
	if len(entries) > 0 && entries[0].Key.Protocol == plan.AnyProtocol {
		if entries[0].Value.Like == 0 {
			rest = &entries[0]
		}
		entries = entries[1:]
	}
	next := Kind(0)
	for _, e := range entries {
		first, last := KindOf(e.Key.Protocol, e.Key.Ports.First), KindOf(e.Key.Protocol, e.Key.Ports.Last)
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
	denies := func(e Entry) bool { return !e.Value.Allow }
	if slices.ContainsFunc(entries, denies) || rest != nil && denies(*rest) {
		words = append(words, k.Name, string(k.Direction), fmt.Sprint(k.Peer == plan.AnyPeer))
	}
	for _, r := range p.Ranges {
		words = append(words, fmt.Sprint(r.First, r.Last, r.Allow))
	}
	// What is told of a denial is told by its origin.
	for _, e := range entries {
		if denies(e) {
			words = append(words, e.Value.Origin)
		}
	}
	if rest != nil && denies(*rest) {
		words = append(words, rest.Value.Origin)
	}
	p.ID = digest(words...)
	return p
}

// Entries returns the verdicts about one peer, as the kernel gets them: with
// the denial of what else there is, where the peer is any.
func Entries(p *plan.Plan, k PeerKey) []Entry {
	var entries []Entry
	first := k.First()
	first.Peer = k.Peer
	for key, v := range p.Verdicts.From(first) {
		if PeerOf(key) != k {
			break
		}
		entries = append(entries, Entry{key, v})
	}
	return withRest(k, entries)
}

func withRest(k PeerKey, entries []Entry) []Entry {
	if k.Peer == plan.AnyPeer && (len(entries) == 0 || entries[0].Key.Protocol != plan.AnyProtocol) {
		entries = slices.Insert(entries, 0, Entry{Key: plan.Otherwise(k.Name, k.Direction)})
	}
	return entries
}

// Said is what the kernel is told of a peer: a profile of its own, and the one of
// whom it goes like, which is asked for what the first leaves. Either may be
// missing; where the second is, any peer's is asked.
type Said struct{ Own, Like *Profile }

// Profiles compiles those of one policy and direction, each once.
type Profiles struct {
	plan   *plan.Plan
	policy PolicyKey
	known  map[plan.Class]*Profile
}

// Of returns what compiles the profiles of a policy.
func Of(p *plan.Plan, k PolicyKey) *Profiles {
	return &Profiles{p, k, map[plan.Class]*Profile{}}
}

// of returns the profile of what is said of a peer itself, nil for nothing.
func (x *Profiles) of(peer plan.Class) *Profile {
	known, ok := x.known[peer]
	if !ok {
		k := PeerKey{x.policy, peer}
		if entries := Entries(x.plan, k); len(entries) > 0 {
			if compiled := compileProfile(k, entries); len(compiled.Ranges) > 0 {
				known = &compiled
			}
		}
		x.known[peer] = known
	}
	return known
}

// Said returns what the kernel is told of a peer. Of one that takes two steps
// nothing else is said, so that what is left are two profiles at most.
func (x *Profiles) Said(peer plan.Class) Said {
	all := make([]*Profile, 0, 1+plan.MaxLikes)
	for range 1 + plan.MaxLikes {
		if p := x.of(peer); p != nil {
			all = append(all, p)
		}
		v, _ := x.plan.Verdicts.Get(plan.Rest(x.policy.Name, x.policy.Direction, peer))
		if peer = v.Like; peer == 0 {
			break
		}
	}
	switch len(all) {
	case 0:
		return Said{}
	case 1:
		return Said{Own: all[0]}
	}
	return Said{all[0], all[1]}
}

// Policed reports whether an endpoint of the plan has a policy.
func Policed(p *plan.Plan) bool {
	for _, e := range p.Endpoints.All() {
		if e.IngressPolicy != "" || e.EgressPolicy != "" {
			return true
		}
	}
	return false
}

// PoliciesNamed are the policies that endpoints name.
func PoliciesNamed(p *plan.Plan) map[PolicyKey]bool {
	named := map[PolicyKey]bool{}
	for _, e := range p.Endpoints.All() {
		for _, k := range PoliciesOf(e) {
			named[k] = true
		}
	}
	return named
}

// PoliciesOf are those that an endpoint names.
func PoliciesOf(e plan.Endpoint) []PolicyKey {
	var keys []PolicyKey
	if e.IngressPolicy != "" {
		keys = append(keys, PolicyKey{e.IngressPolicy, plan.Incoming})
	}
	if e.EgressPolicy != "" {
		keys = append(keys, PolicyKey{e.EgressPolicy, plan.Outgoing})
	}
	return keys
}

// Peers yields the peers of all policies that have verdicts or that endpoints
// name, with what is said of them.
func Peers(p *plan.Plan) iter.Seq2[PeerKey, Said] {
	return func(yield func(PeerKey, Said) bool) {
		lacks := PoliciesNamed(p) // a profile for any peer
		var last PeerKey
		var of *Profiles
		for key := range p.Verdicts.All() {
			k := PeerOf(key)
			if k == last && of != nil {
				continue
			}
			if of == nil || k.PolicyKey != last.PolicyKey {
				of = Of(p, k.PolicyKey)
			}
			last = k
			lacks[k.PolicyKey] = k.Peer != plan.AnyPeer // which is the last
			if !yield(k, of.Said(k.Peer)) {
				return
			}
		}
		for policy, lacking := range lacks {
			if k := (PeerKey{policy, plan.AnyPeer}); lacking && !yield(k, Of(p, policy).Said(plan.AnyPeer)) {
				return
			}
		}
	}
}

// digest is 8 bytes that stand for words, in any number.
func digest(words ...string) string {
	h := sha256.New()
	for _, w := range words {
		fmt.Fprintf(h, "%d:%s", len(w), w)
	}
	return string(h.Sum(nil)[:8])
}
