package plan

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"strconv"
	"strings"
)

// Class is what the policies of one node tell apart: the other side of a connection
// is of one class, and verdicts speak of classes.
//
// A class up to MaxTag is that of whoever wears the tag of this number. The classes
// from FirstOwnClass on are the node's own: its compiler gives one to all that the
// node's policies cannot tell apart. They mean nothing to another node and never
// travel.
type Class uint32

// The bounds of classes.
const (
	FirstOwnClass = Class(MaxTag) + 1
	MaxClass      = AnyPeer - 1
	// AnyPeer stands for every class as the peer of a verdict.
	AnyPeer Class = 1<<32 - 1
)

// ClassOf returns the class of whoever wears a tag.
func ClassOf(t Tag) Class { return Class(t) }

// ownClass begins the text form of a node's own class, which goes on with its
// number, counted from 0.
const ownClass = "c"

// String returns "5" for the class of tag 5, "c5" for a node's own class, or "any".
func (c Class) String() string {
	switch {
	case c == AnyPeer:
		return "any"
	case c >= FirstOwnClass:
		return ownClass + strconv.FormatUint(uint64(c-FirstOwnClass), 10)
	}
	return strconv.FormatUint(uint64(c), 10)
}

// name is the class for people: "tag 5" or "class c5".
func (c Class) name() string {
	if c < FirstOwnClass {
		return "tag " + c.String()
	}
	return "class " + c.String()
}

// ParseClass reads what String writes.
func ParseClass(s string) (Class, error) {
	if s == AnyPeer.String() {
		return AnyPeer, nil
	}
	first, last, digits := Class(0), FirstOwnClass-1, s
	if own, ok := strings.CutPrefix(s, ownClass); ok {
		first, last, digits = FirstOwnClass, MaxClass, own
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n > uint64(last-first) {
		return 0, fmt.Errorf("class %q is none of a tag from 0 to %d, %s0 to %s%d, or any", s, MaxTag, ownClass, ownClass, MaxClass-FirstOwnClass)
	}
	return first + Class(n), nil
}

// ClassKey is a set of addresses in a network. Prefix is masked.
type ClassKey struct {
	Network string
	Prefix  netip.Prefix
}

// Compare orders by network, then family, then address, then length.
func (k ClassKey) Compare(o ClassKey) int {
	return cmp.Or(strings.Compare(k.Network, o.Network), comparePrefix(k.Prefix, o.Prefix))
}

// Membership says of which class the addresses of a prefix are. The longest prefix
// wins, and it wins over any tag.
type Membership struct {
	Class Class
	// Origin says where the entry comes from, as "NodePods node2", for people.
	Origin string
}

// Equal reports whether both are the same in every field.
func (m Membership) Equal(o Membership) bool { return m == o }

// ClassAt returns the class of an address: that of the longest of a network's
// prefixes in the Classes table that contains it, or else the class of the tag that
// the Tags table gives it. It returns false where neither says anything of it: then
// it is the tag of the local endpoint that counts, or the one that came with the
// packet.
func (p *Plan) ClassAt(network string, a netip.Addr) (Class, bool) {
	return p.ClassAround(network, netip.PrefixFrom(a, a.BitLen()))
}

// ClassAround is ClassAt for all addresses of a prefix that no longer one has in either
// table.
func (p *Plan) ClassAround(network string, all netip.Prefix) (Class, bool) {
	if m, ok := p.membership(network, all); ok {
		return m.Class, true
	}
	_, t, ok := p.TagAround(network, all)
	return ClassOf(t.Tag), ok
}

// membership returns the longest of a network's entries in the Classes table that
// contains all of a prefix.
func (p *Plan) membership(network string, all netip.Prefix) (Membership, bool) {
	_, m, ok := around(p.Classes, all,
		func(prefix netip.Prefix) ClassKey { return ClassKey{network, prefix} },
		func(k ClassKey) (netip.Prefix, bool) { return k.Prefix, k.Network == network },
		func(Membership) bool { return true })
	return m, ok
}

// AllClasses yields what ClassAt goes by as one table: the class of an address is that
// of the longest prefix that contains it. They are the entries of the Classes table
// and those of the Tags table that are not within one of them.
func (p *Plan) AllClasses() iter.Seq2[ClassKey, Class] {
	return func(yield func(ClassKey, Class) bool) {
		for k, m := range p.Classes.All() {
			if !yield(k, m.Class) {
				return
			}
		}
		for k, t := range p.Tags.All() {
			if _, ok := p.membership(k.Network, k.Prefix); !ok && !yield(ClassKey(k), ClassOf(t.Tag)) {
				return
			}
		}
	}
}

// ClassChange is how one entry of AllClasses differs between two plans; nil where one
// of them has none.
type ClassChange struct {
	Key      ClassKey
	Old, New *Class
}

// ClassChanges returns how AllClasses of p differs from that of next, to which changes
// lead. It costs in proportion to the changes and to the tags within changed prefixes.
func (p *Plan) ClassChanges(next *Plan, changes Diff) []ClassChange {
	var all []ClassChange
	seen := map[ClassKey]bool{}
	add := func(k ClassKey) {
		if seen[k] {
			return
		}
		seen[k] = true
		c := ClassChange{k, p.classEntry(k), next.classEntry(k)}
		if c.Old == nil && c.New == nil || c.Old != nil && c.New != nil && *c.Old == *c.New {
			return
		}
		all = append(all, c)
	}
	for _, c := range changes.Classes {
		add(c.Key)
		if c.Old != nil && c.New != nil {
			continue // what is within it is so before and after
		}
		for _, in := range []*Plan{p, next} {
			for k := range in.Tags.From(TagKey(c.Key)) {
				if k.Network != c.Key.Network || !c.Key.Prefix.Contains(k.Prefix.Addr()) {
					break
				}
				add(ClassKey(k))
			}
		}
	}
	for _, c := range changes.Tags {
		add(ClassKey(c.Key))
	}
	return all
}

// classEntry returns the entry of AllClasses for one prefix, or nil.
func (p *Plan) classEntry(k ClassKey) *Class {
	if m, ok := p.Classes.Get(k); ok {
		return &m.Class
	}
	t, ok := p.Tags.Get(TagKey(k))
	if !ok {
		return nil
	}
	if _, ok := p.membership(k.Network, k.Prefix); ok {
		return nil
	}
	c := ClassOf(t.Tag)
	return &c
}
