package policy

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// prefixMap is a map by prefixes, all of them masked, which finds those around
// an address. That takes a look for each length that there is, which are few.
type prefixMap[V any] struct {
	at      map[netip.Prefix]V
	lengths [2][]int // in use, ascending, by family
	used    [2][129]int
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (m *prefixMap[V]) set(p netip.Prefix, v V) {
	if m.at == nil {
		m.at = map[netip.Prefix]V{}
	}
	if _, ok := m.at[p]; !ok {
		m.count(p, 1)
	}
	m.at[p] = v
}

func (m *prefixMap[V]) delete(p netip.Prefix) {
	if _, ok := m.at[p]; ok {
		m.count(p, -1)
		delete(m.at, p)
	}
}

func (m *prefixMap[V]) count(p netip.Prefix, n int) {
	f := family(p.Addr())
	m.used[f][p.Bits()] += n
	i, ok := slices.BinarySearch(m.lengths[f], p.Bits())
	switch in := m.used[f][p.Bits()] > 0; {
	case in && !ok:
		m.lengths[f] = slices.Insert(m.lengths[f], i, p.Bits())
	case !in && ok:
		m.lengths[f] = slices.Delete(m.lengths[f], i, i+1)
	}
}

// around yields the entries whose prefixes contain p, itself included, the
// longest first.
func (m *prefixMap[V]) around(p netip.Prefix) iter.Seq2[netip.Prefix, V] {
	return func(yield func(netip.Prefix, V) bool) {
		for _, bits := range slices.Backward(m.lengths[family(p.Addr())]) {
			if bits > p.Bits() {
				continue
			}
			q := netip.PrefixFrom(p.Addr(), bits).Masked()
			if v, ok := m.at[q]; ok && !yield(q, v) {
				return
			}
		}
	}
}

// longest returns the value of the longest prefix that contains p, itself
// included, or the zero value.
func (m *prefixMap[V]) longest(p netip.Prefix) V {
	for _, v := range m.around(p) {
		return v
	}
	var none V
	return none
}

// outer returns the value of the longest prefix that contains p and more, or
// the zero value.
func (m *prefixMap[V]) outer(p netip.Prefix) V {
	for q, v := range m.around(p) {
		if q != p {
			return v
		}
	}
	var none V
	return none
}

// reader returns what does the same as longest for addresses, while the map does
// not change. It is fast where one address is near the last.
func (m *prefixMap[V]) reader() func(netip.Addr) V {
	// Between two of these edges all addresses have the same longest prefix.
	edges := []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified(), {}}
	for p := range m.at {
		edges = append(edges, p.Addr(), last(p).Next())
	}
	slices.SortFunc(edges, netip.Addr.Compare)
	edges = slices.Compact(edges)
	var from, to netip.Addr
	var v V
	return func(a netip.Addr) V {
		if a.Less(from) || !a.Less(to) {
			i, at := slices.BinarySearchFunc(edges, a, netip.Addr.Compare)
			if at {
				i++
			}
			if from, to = edges[i-1], (netip.Addr{}); i < len(edges) {
				to = edges[i]
			}
			v = m.longest(netip.PrefixFrom(from, from.BitLen()))
		}
		return v
	}
}

// covers reports whether an entry's prefix contains p.
func (m *prefixMap[V]) covers(p netip.Prefix) bool {
	for range m.around(p) {
		return true
	}
	return false
}

// host returns the prefix of an address alone; an address that no packet can
// have has none.
func host(a netip.Addr) (netip.Prefix, bool) {
	return netip.PrefixFrom(a, a.BitLen()), a.IsValid() && !a.Is4In6() && a.Zone() == ""
}

// prefixes are those that blocks, nodes and domains mention. The longest that
// contains an address decides which of these peers do.
type prefixes struct {
	places prefixMap[*place]
	zones  map[string]*zone
	// stale are the prefixes of which marks came or went since the last call
	// of settle, and what they were before; idle the zones that lost their last
	// place.
	stale prefixMap[formerly]
	idle  []*zone
	// nodes and domains are the peers that stand for other objects' addresses.
	nodes   map[*peer]struct{}
	domains map[string]*peer
}

// place is a prefix that is mentioned.
type place struct {
	marks []mark
	// zone is that of the addresses of which this is the longest prefix.
	zone *zone
}

// formerly is whether there was a place at a prefix, and its zone.
type formerly struct {
	place bool
	zone  *zone
}

// mark is a mention of a prefix: the addresses in it are the peer's, or, as an
// exception, are not.
type mark struct {
	peer   *peer
	except bool
	// origin is where the mention comes from, for people.
	origin string
}

// zone is a set of blocks, nodes and domains that have addresses in common; nil
// is that of none.
type zone struct {
	key string
	// in are the ids of the peers, sum that of their hashes.
	in     bitset
	sum    uint64
	places int
}

const blockOrigin = "CIDR in a policy"

// zoneOf returns the zone of the addresses of p.
func (x *prefixes) zoneOf(p netip.Prefix) *zone { return zoneAt(x.places.longest(p)) }

// zoneAround returns the zone of what is around a prefix.
func (x *prefixes) zoneAround(p netip.Prefix) *zone { return zoneAt(x.places.outer(p)) }

func zoneAt(at *place) *zone {
	if at == nil {
		return nil
	}
	return at.zone
}

// origin says where a mention of the prefix comes from: of what has a name, as
// a node has, the first.
func (at *place) origin() string {
	first := ""
	for _, m := range at.marks {
		if m.origin != blockOrigin && (first == "" || m.origin < first) {
			first = m.origin
		}
	}
	if first == "" {
		return blockOrigin
	}
	return first
}

// update follows the peers that came and went, and the addresses of nodes and
// domains.
func (x *prefixes) update(came, gone []*peer, was, is *World) {
	for _, p := range gone {
		x.markPeer(p, was, (*prefixes).unmark)
		delete(x.nodes, p)
		delete(x.domains, p.Domain)
	}
	for o, n := range changes(was.Machines, is.Machines, func(a, b *Machine) int { return strings.Compare(a.Name, b.Name) }) {
		for p := range x.nodes {
			x.markMachine(p, o, (*prefixes).unmark)
			x.markMachine(p, n, (*prefixes).mark)
		}
	}
	for o, n := range changes(was.Domains, is.Domains, func(a, b *Domain) int { return strings.Compare(a.Name, b.Name) }) {
		for _, d := range []*Domain{o, n} {
			if d == nil || x.domains[d.Name] == nil {
				continue
			}
			do := (*prefixes).mark
			if d == o {
				do = (*prefixes).unmark
			}
			x.markDomain(x.domains[d.Name], d, do)
		}
	}
	for _, p := range came {
		switch {
		case p.Nodes != nil:
			x.nodes[p] = struct{}{}
		case p.Domain != "":
			x.domains[p.Domain] = p
		}
		x.markPeer(p, is, (*prefixes).mark)
	}
}

// marking makes or takes back a mark.
type marking func(*prefixes, netip.Prefix, mark)

func (x *prefixes) markPeer(p *peer, w *World, do marking) {
	switch {
	case p.Block != nil:
		// Where an exception is all of the block, nothing is in it.
		if slices.ContainsFunc(p.Block.Except, func(e netip.Prefix) bool { return contains(e, p.Block.Prefix) }) {
			return
		}
		do(x, p.Block.Prefix, mark{p, false, blockOrigin})
		for _, e := range p.Block.Except {
			do(x, e, mark{p, true, blockOrigin})
		}
	case p.Nodes != nil:
		for _, m := range w.Machines {
			x.markMachine(p, m, do)
		}
	case p.Domain != "":
		i, ok := slices.BinarySearchFunc(w.Domains, p.Domain, func(d *Domain, name string) int { return strings.Compare(d.Name, name) })
		if ok {
			x.markDomain(p, w.Domains[i], do)
		}
	}
}

func (x *prefixes) markMachine(p *peer, m *Machine, do marking) {
	if m != nil && p.Nodes.Matches(m.Labels) {
		here := mark{p, false, "Node " + m.Name}
		x.markAddresses(m.Addresses, here, do)
		for _, prefix := range m.Prefixes {
			do(x, prefix, here)
		}
	}
}

func (x *prefixes) markDomain(p *peer, d *Domain, do marking) {
	x.markAddresses(d.Addresses, mark{p, false, "domain name " + d.Name}, do)
}

func (x *prefixes) markAddresses(addresses []netip.Addr, m mark, do marking) {
	for _, a := range addresses {
		if p, ok := host(a); ok {
			do(x, p, m)
		}
	}
}

// contains reports whether all of o is in p.
func contains(p, o netip.Prefix) bool { return p.Bits() <= o.Bits() && p.Contains(o.Addr()) }

func (x *prefixes) mark(p netip.Prefix, m mark) {
	if !p.IsValid() || p.Addr().Is4In6() {
		return // no packet's address is in it
	}
	p = p.Masked()
	x.remember(p)
	at := x.places.at[p]
	if at == nil {
		at = &place{}
		x.places.set(p, at)
	}
	at.marks = append(at.marks, m)
}

func (x *prefixes) unmark(p netip.Prefix, m mark) {
	p = p.Masked()
	at := x.places.at[p]
	if at == nil {
		return
	}
	x.remember(p)
	if i := slices.Index(at.marks, m); i >= 0 {
		at.marks = slices.Delete(at.marks, i, i+1)
	}
	if len(at.marks) == 0 {
		x.assign(at, nil)
		x.places.delete(p)
	}
}

// remember notes what is at a prefix before it changes.
func (x *prefixes) remember(p netip.Prefix) {
	if _, known := x.stale.at[p]; known {
		return
	}
	var was formerly
	if at := x.places.at[p]; at != nil {
		was = formerly{true, at.zone}
	}
	x.stale.set(p, was)
}

// settle finds the zones of places anew where marks changed. It returns the
// prefixes whose taggings may differ for it; and for the longest prefix in moved
// that contains an address, whether the address is in another zone now.
func (x *prefixes) settle() (affected []netip.Prefix, moved prefixMap[bool]) {
	if len(x.stale.at) == 0 {
		return nil, moved
	}
	// A zone follows from that of the prefix around it, so shorter ones come
	// first.
	var within []netip.Prefix
	for p := range x.places.at {
		if x.stale.covers(p) {
			within = append(within, p)
		}
	}
	slices.SortFunc(within, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	was := make([]*zone, len(within))
	for i, p := range within {
		was[i] = x.formerZone(p)
	}
	for i, p := range within {
		at := x.places.at[p]
		z := x.find(p, at)
		x.assign(at, z)
		moved.set(p, z != was[i])
	}
	for p, old := range x.stale.at {
		if x.places.at[p] == nil {
			within = append(within, p)
			moved.set(p, old.place && old.zone != x.zoneAround(p))
		}
	}
	for _, p := range within {
		// Without other marks, its zone is another where that around it is.
		if _, marked := x.stale.at[p]; marked || moved.at[p] {
			affected = append(affected, p)
		}
	}
	x.stale = prefixMap[formerly]{}
	return affected, moved
}

// formerZone returns the zone that the addresses were in of which p is the
// longest prefix now. It is for when no place has its new zone yet.
func (x *prefixes) formerZone(p netip.Prefix) *zone {
	longest, zone := -1, (*zone)(nil)
	for q, was := range x.stale.around(p) {
		if was.place {
			longest, zone = q.Bits(), was.zone
			break
		}
	}
	for q, at := range x.places.around(p) {
		if _, changed := x.stale.at[q]; !changed {
			if q.Bits() > longest {
				zone = at.zone
			}
			break
		}
	}
	return zone
}

// find returns the zone of the addresses of which p is the longest prefix, when
// what is around it has its own.
func (x *prefixes) find(p netip.Prefix, at *place) *zone {
	var in bitset
	var sum uint64
	if around := x.zoneAround(p); around != nil {
		in, sum = slices.Clone(around.in), around.sum
	}
	for _, m := range at.marks {
		if m.except && in.has(m.peer.id) {
			in.drop(m.peer.id)
			sum -= m.peer.hash
		}
	}
	for _, m := range at.marks {
		if !m.except && !in.has(m.peer.id) {
			in = in.with(m.peer.id)
			sum += m.peer.hash
		}
	}
	if in = in.trimmed(); len(in) == 0 {
		return nil
	}
	key := string(in.append(nil))
	z := x.zones[key]
	if z == nil {
		z = &zone{key: key, in: in, sum: sum}
		x.zones[key] = z
	}
	return z
}

func (x *prefixes) assign(at *place, z *zone) {
	if z != nil {
		z.places++
	}
	if old := at.zone; old != nil {
		if old.places--; old.places == 0 {
			x.idle = append(x.idle, old)
		}
	}
	at.zone = z
}

// sweep forgets zones without places.
func (x *prefixes) sweep() {
	for _, z := range x.idle {
		if z.places == 0 {
			delete(x.zones, z.key)
		}
	}
	x.idle = nil
}
