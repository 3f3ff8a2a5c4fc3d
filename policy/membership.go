package policy

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/plan"
)

// member is a group, or an identity of the node's own pods, as something that
// pod selectors select.
type member struct {
	id *Identity
	// tag is that of the group.
	tag plan.Tag
	// profile is nil for what no selector selects.
	profile *profile
}

// profile is what the node's policies can tell of pods but for their addresses.
type profile struct {
	key string
	selected
	// ports are those of their named ports that egress rules mention.
	ports   []NamedPort
	members int
}

// selected are the peers that select a pod: their ids, and the sum of their
// hashes.
type selected struct {
	in  bitset
	sum uint64
}

func (s *selected) add(p *peer) {
	if !s.in.has(p.id) {
		s.in = s.in.with(p.id)
		s.sum += p.hash
	}
}

func (s *selected) remove(p *peer) {
	if s.in.has(p.id) {
		s.in.drop(p.id)
		s.sum -= p.hash
	}
}

// membership knows which selectors select which members. It looks at a pair of
// them once, and only where one can select the other: selectors of a namespace
// see the members of that alone.
type membership struct {
	groups     map[plan.Tag]*member
	namespaces map[string]labels.Set
	// members are by namespace, and so are selectors, those of no one namespace
	// by "".
	members   map[string]map[*member]struct{}
	selectors map[string]map[*peer]struct{}
	profiles  map[string]*profile
	// fresh are members of which nothing is known yet, changed those whose
	// profile changed since the last call of settle, idle the profiles that lost
	// their last member.
	fresh, changed map[*member]struct{}
	idle           []*profile
}

func put[K, E comparable](m map[K]map[E]struct{}, k K, e E) {
	if m[k] == nil {
		m[k] = map[E]struct{}{}
	}
	m[k][e] = struct{}{}
}

func drop[K, E comparable](m map[K]map[E]struct{}, k K, e E) {
	delete(m[k], e)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}

func (x *membership) add(id *Identity, tag plan.Tag) *member {
	m := &member{id: id, tag: tag}
	put(x.members, id.Namespace, m)
	x.fresh[m] = struct{}{}
	return m
}

func (x *membership) remove(m *member) {
	drop(x.members, m.id.Namespace, m)
	delete(x.fresh, m)
	x.assign(m, nil)
}

// updateGroups follows the groups.
func (x *membership) updateGroups(was, is []*Group) {
	for o, n := range changes(was, is, func(a, b *Group) int { return cmp.Compare(a.Tag, b.Tag) }) {
		if o != nil {
			x.remove(x.groups[o.Tag])
			delete(x.groups, o.Tag)
		}
		if n != nil {
			x.groups[n.Tag] = x.add(&n.Identity, n.Tag)
		}
	}
}

// updateNamespaces follows the namespaces' labels, and returns the namespaces
// whose labels changed.
func (x *membership) updateNamespaces(was, is []*Namespace) map[string]bool {
	changed := map[string]bool{}
	for o, n := range changes(was, is, func(a, b *Namespace) int { return cmp.Compare(a.Name, b.Name) }) {
		name := ""
		if n != nil {
			name = n.Name
			if o != nil && maps.Equal(o.Labels, n.Labels) {
				continue
			}
			x.namespaces[name] = n.Labels
		} else {
			name = o.Name
			delete(x.namespaces, name)
		}
		changed[name] = true
		for m := range x.members[name] {
			x.fresh[m] = struct{}{}
		}
	}
	return changed
}

// settle finds the profiles of members anew where selectors came or went, and of
// fresh members; with all, those of all members, since the ports that matter are
// others. ports are the names of these: those that matter for members that some
// selector selects, and those for all members. It returns the members whose
// profiles changed.
func (x *membership) settle(came, gone []*peer, ports portNames, all bool) map[*member]struct{} {
	by := map[*member]*selected{} // anew, unless fresh
	stale := func(m *member) *selected {
		s := by[m]
		if s == nil {
			s = &selected{}
			if m.profile != nil {
				*s = selected{slices.Clone(m.profile.in), m.profile.sum}
			}
			by[m] = s
		}
		return s
	}
	for _, p := range gone {
		if p.Pods != nil {
			drop(x.selectors, p.Pods.Namespace, p)
			x.within(p.Pods, func(m *member) {
				if m.profile != nil && m.profile.in.has(p.id) {
					stale(m).remove(p)
				}
			})
		}
	}
	for _, p := range came {
		if p.Pods != nil {
			put(x.selectors, p.Pods.Namespace, p)
			x.selected(p.Pods, func(m *member) { stale(m).add(p) })
		}
	}
	if all {
		for _, members := range x.members {
			for m := range members {
				stale(m)
			}
		}
	}
	for m := range x.fresh {
		s := &selected{}
		by[m] = s
		for _, ns := range [...]string{"", m.id.Namespace} {
			for p := range x.selectors[ns] {
				if p.Pods.Selects(m.id, x.namespaces[m.id.Namespace]) {
					s.add(p)
				}
			}
		}
	}
	for m, s := range by {
		x.assign(m, x.profileOf(*s, m.id, ports))
	}
	changed := x.changed
	clear(x.fresh)
	x.changed = map[*member]struct{}{}
	return changed
}

// tells reports whether the pods of a tag have a profile.
func (x *membership) tells(tag plan.Tag) bool {
	m := x.groups[tag]
	return m != nil && m.profile != nil
}

// within calls f for the members of the namespaces in which s can select.
func (x *membership) within(s *Selector, f func(*member)) {
	if s.Namespace != "" {
		for m := range x.members[s.Namespace] {
			f(m)
		}
		return
	}
	for _, members := range x.members {
		for m := range members {
			f(m)
		}
	}
}

// selected calls f for the members that s selects.
func (x *membership) selected(s *Selector, f func(*member)) {
	among := func(namespace string) {
		if s.SelectsNamespace(namespace, x.namespaces[namespace]) {
			for m := range x.members[namespace] {
				if s.Pods == nil || s.Pods.Matches(m.id.Labels) {
					f(m)
				}
			}
		}
	}
	if s.Namespace != "" {
		among(s.Namespace)
		return
	}
	for namespace := range x.members {
		among(namespace)
	}
}

// profileOf returns the profile of what these select, nil where it tells
// nothing.
func (x *membership) profileOf(by selected, id *Identity, names portNames) *profile {
	by.in = by.in.trimmed()
	var ports []NamedPort
	for _, p := range id.Ports {
		if names.everywhere[p.Name] > 0 || len(by.in) > 0 && names.selected[p.Name] > 0 {
			ports = append(ports, p)
		}
	}
	if len(by.in) == 0 && len(ports) == 0 {
		return nil
	}
	key := string(appendPorts(by.in.append(nil), ports))
	p := x.profiles[key]
	if p == nil {
		p = &profile{key: key, selected: by, ports: ports}
		x.profiles[key] = p
	}
	return p
}

// compareNamedPorts orders ports by name, then protocol, then number.
func compareNamedPorts(a, b NamedPort) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// appendPorts appends what tells lists of ports apart.
func appendPorts(b []byte, ports []NamedPort) []byte {
	for _, p := range ports {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p.Name)))
		b = append(append(b, p.Name...), byte(p.Protocol))
		b = binary.BigEndian.AppendUint16(b, p.Port)
	}
	return b
}

func (x *membership) assign(m *member, p *profile) {
	if m.profile == p {
		return
	}
	if p != nil {
		p.members++
	}
	if old := m.profile; old != nil {
		if old.members--; old.members == 0 {
			x.idle = append(x.idle, old)
		}
	}
	m.profile = p
	x.changed[m] = struct{}{}
}

// sweep forgets profiles without members.
func (x *membership) sweep() {
	for _, p := range x.idle {
		if p.members == 0 {
			delete(x.profiles, p.key)
		}
	}
	x.idle = nil
}
