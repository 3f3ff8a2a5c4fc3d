package service

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// What becomes of a Service has a price, in entries: what it takes to compile it, and what a data plane
// has to write for it. It goes by what is in the tables, and by nothing that objects say: an endpoint that is ready, a Grant, or
// another Service of the namespace changes all frontends of one that nobody wrote. Backends are
// not in it, as they come and go one by one for what room there is; nor are rules, see rules.go.

// next is what becomes of a Service, before any of it is done.
type next struct {
	key    registry.Key
	behind []*slice
	// found says that there is something to be compiled, before and now what it made, and makes.
	found       bool
	before, now *compiled
	made        edits
	// least is how much room backends have, whatever else comes, and reserved how much is for that.
	least, reserved int
	// leaving are those claims that come to name another set than older ones do, and have room for that.
	leaving map[*claim]bool
}

// next compiles a Service anew.
func (c *Compiler) next(key registry.Key) (n next) {
	n = next{key: key, behind: c.behind(key), before: c.compiled[key], now: &compiled{}}
	if n.before == nil {
		n.before = &compiled{}
	}
	s := c.service(key)
	if n.found = s != nil; n.found {
		n.now = compile(s, n.behind, c.spaces[key.Namespace].over[key], c.granted(s), c.standings(s), c.node, &n.made)
	}
	if c.isAPIServer(key) && len(n.behind) > 0 {
		// Also where the Service is not there, or another program's.
		if !n.found {
			n.now = compile(&service{key: key, name: key.String()}, nil, excess{}, granted{}, standings{}, c.node, &n.made)
		}
		n.found = true
		n.now.keep(n.behind)
	}
	if key == nobodys && len(c.node.names.At) > 0 {
		n.found = true
		n.now.keepNames(c.node.names)
	}
	return n
}

// reserve has so much of the room be for what comes beside backends, in the place of what was reserved before.
func (n *next) reserve(room *int, price int) {
	*room += n.reserved
	n.reserved = max(0, min(price, *room-n.least))
	*room -= n.reserved
}

// costOf is what it takes to compile a Service anew.
func (c *Compiler) costOf(s *service) int {
	size := c.sizes[s.key]
	entries := size.frontends + size.backends
	if before := c.compiled[s.key]; before != nil {
		entries += len(before.claims) + len(before.backends)
	}
	return 1 + entries/perEntry
}

// price is what it takes to load what comes, and may wait for that, and what goes, and may not.
type price struct{ comes, goes int }

// priceOf is what it takes to load what a Service is next in the place of what it was.
func (c *Compiler) priceOf(n *next) (p price) {
	before, now := n.before, n.now
	put := func(e change) {
		if e.comes {
			p.comes++
		} else {
			p.goes++
		}
	}
	gone := func(older *claim) {
		for e := range c.changesAt(older.key, nil) {
			if e.was.Origin == older.by.origin {
				put(e)
			}
		}
	}
	had := before.claims
	for _, is := range now.claims {
		for ; len(had) > 0 && had[0].key.Compare(is.key) < 0; had = had[1:] {
			gone(had[0])
		}
		if len(had) > 0 && had[0].key == is.key {
			had = had[1:]
		}
		if all := c.claims[is.key]; len(all) > 0 && all.first().by.key != is.by.key && compareClaims(all.first(), is) < 0 {
			continue // it is another's, and stays so
		}
		for e := range c.changesAt(is.key, is.sides()) {
			put(e)
		}
	}
	for _, older := range had {
		gone(older)
	}
	due := keysOf(n.made.sources)
	switch list := now.priceOfList(before.sources, due); {
	case list == 0:
	case isWithin(due, before.sources):
		p.goes += list
	default:
		p.comes += list
	}
	return p
}

// priceOfList is what it takes to have some be let in at guarded frontends in the place of others. A data plane writes a list of whom
// one is for all anew where one range is another, and each frontend that is for these.
func (c *compiled) priceOfList(before, now []plan.SourceKey) int {
	if slices.Equal(before, now) {
		return 0
	}
	price := len(before) + len(now)
	for _, one := range c.claims {
		if one.rank == rankBalanced && one.port != theRest && one.by.guards(plan.FamilyOf(one.key.Address)) {
			price++
		}
	}
	return price
}

// isWithin reports whether nobody is in a list who is not in another.
func isWithin(list, other []plan.SourceKey) bool {
	lets := letsIn(other)
	return !slices.ContainsFunc(list, func(k plan.SourceKey) bool { return !lets(k.Prefix) })
}

// letsIn returns what reports whether one range of a list has all of a range.
func letsIn(list []plan.SourceKey) func(netip.Prefix) bool {
	all := make(map[netip.Prefix]bool, len(list))
	for _, k := range list {
		all[k.Prefix] = true
	}
	return func(p netip.Prefix) bool {
		for bits := p.Bits(); bits >= 0 && len(all) > 0; bits-- {
			if all[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				return true
			}
		}
		return false
	}
}

// change is one of a frontend. It comes, in the place of what was there, or goes.
type change struct {
	key          plan.ServiceKey
	was, is      plan.Service
	there, comes bool
}

// changesAt yields what changes where sides of an address and port come in the place of those that the table has.
func (c *Compiler) changesAt(key plan.ServiceKey, sides []side) iter.Seq[change] {
	return func(yield func(change) bool) {
		for _, key.From = range scopes {
			e := change{key: key}
			e.was, e.there = c.tables.Services.Get(key)
			for i := range sides {
				if sides[i].from == key.From {
					e.is, e.comes = sides[i].is, true
				}
			}
			if (e.there || e.comes) && (e.there != e.comes || e.was != e.is) && !yield(e) {
				return
			}
		}
	}
}
