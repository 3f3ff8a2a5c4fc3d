package service

import (
	"cmp"
	"container/heap"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// rank says which of several Services gets an address and port that all of them claim: the
// one whose claim is of the first rank, then the one that has the Grant, then the older one.
type rank uint8

const (
	// rankAPIServer is that of addresses at which the API server is.
	rankAPIServer rank = iota
	rankClusterIP
	rankNodePort
	rankBalanced
	// rankNameServer is that of name servers, see NameServers.
	rankNameServer
	rankExternal
)

// claim is what a Service makes of an address and port.
type claim struct {
	by   *compiled
	rank rank
	// names says that it is a name server, and the Service the one that may claim these.
	names bool
	// granted says that the Service has the Grant of it.
	granted bool
	// key is without a side.
	key plan.ServiceKey
	// port says what is served: one of those that the Service serves, or theRest.
	port int32
	// index is where the claim is in its contest.
	index int
}

// theRest is the port of a claim that refuses what is no port of the Service.
const theRest = -1

// served is what is behind a port of a Service.
type served struct {
	// set is of all endpoints, where a frontend names it, localSet of those on the node, where these are asked for.
	set, localSet string
	// otherwise is, by family, what becomes of packets where localSet has nobody.
	otherwise [2]plan.Refusal
}

// side is what becomes of packets that come from one.
type side struct {
	from plan.Scope
	is   plan.Service
}

// sides returns what the Service makes of the address and port if they are its own. Who loses keeps
// nothing of it, as many may claim the same.
func (c *claim) sides() []side {
	by := c.by
	switch {
	case c.rank == rankAPIServer, c.rank == rankNameServer:
		return nil
	case c.port == theRest:
		return []side{{plan.Anywhere, plan.Service{Origin: by.origin}}}
	}
	port, family := by.served[c.port], plan.FamilyOf(c.key.Address)
	v := plan.Service{Set: port.set, Affinity: by.affinity, Origin: by.origin}
	if c.rank == rankBalanced && by.guards(family) {
		v.Sources = by.name
	}
	local := v
	local.Set, local.Otherwise = port.localSet, port.otherwise[slices.Index(bothFamilies, family)]
	switch {
	case c.rank == rankClusterIP && by.internalLocal:
		local.Masquerade = plan.FromStrangers
		return []side{{plan.Anywhere, local}}
	case c.rank == rankClusterIP:
		v.Masquerade = plan.FromStrangers
		return []side{{plan.Anywhere, v}}
	case by.externalLocal:
		return []side{{plan.Inside, v}, {plan.Outside, local}}
	}
	v.Masquerade = plan.FromAll
	return []side{{plan.Anywhere, v}}
}

// precedence is the rank by which it is decided whose it is.
func (c *claim) precedence() rank {
	if c.names {
		return min(c.rank, rankNameServer)
	}
	return c.rank
}

func compareClaims(a, b *claim) int {
	if a.precedence() == b.precedence() && a.granted != b.granted {
		if a.granted {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.precedence(), b.precedence()), a.by.created.Compare(b.by.created), a.by.key.Compare(b.by.key))
}

// contest are the claims of an address and port, of each Service one at most: a heap, as
// who is first is all that counts, and many may claim it.
type contest []*claim

func (c contest) Len() int           { return len(c) }
func (c contest) Less(i, j int) bool { return compareClaims(c[i], c[j]) < 0 }

func (c contest) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].index, c[j].index = i, j
}

// Push and Pop are heap.Interface's.
func (c *contest) Push(one any) {
	one.(*claim).index = len(*c)
	*c = append(*c, one.(*claim))
}

func (c *contest) Pop() any {
	last := len(*c) - 1
	one := (*c)[last]
	(*c)[last] = nil
	*c = (*c)[:last]
	return one
}

func (c contest) first() *claim    { return c[0] }
func (c contest) losers() []*claim { return c[1:] }

// order puts the claims of the Service into order. Of its own at one address the first rank
// counts, and of that the one that was made first.
func (c *compiled) order() {
	slices.SortStableFunc(c.claims, func(a, b *claim) int { return cmp.Or(a.key.Compare(b.key), cmp.Compare(a.rank, b.rank)) })
	c.claims = slices.CompactFunc(c.claims, func(a, b *claim) bool { return a.key == b.key })
}

// contend has what a Service claims now in the place of what it claimed before.
func (c *Compiler) contend(before, now *compiled) {
	had := before.claims
	gone := func(was *claim) {
		all := c.claims[was.key]
		heap.Remove(&all, was.index)
		c.settle(was.key, all)
	}
	for _, is := range now.claims {
		for ; len(had) > 0 && had[0].key.Compare(is.key) < 0; had = had[1:] {
			gone(had[0])
		}
		all := c.claims[is.key]
		if len(had) > 0 && had[0].key == is.key {
			is.index = had[0].index
			all[is.index] = is
			heap.Fix(&all, is.index)
			had = had[1:]
		} else {
			heap.Push(&all, is)
		}
		c.settle(is.key, all)
	}
	for _, was := range had {
		gone(was)
	}
}

// settle takes note of who claims an address and port now.
func (c *Compiler) settle(key plan.ServiceKey, all contest) {
	if len(all) == 0 {
		delete(c.claims, key)
	} else {
		c.claims[key] = all
	}
	if len(all) > 1 {
		c.contested[key] = true
	} else {
		delete(c.contested, key)
	}
	c.settled = append(withRoom(c.settled, 1), key)
}

// give gives the addresses and ports of which something changed to the first of those who claim
// them. Several Services may have changed of one. Where that takes rules in data planes that are not there, it is for
// who gets it to pay: of one Service the room is given, and of others, who
// get what it does not claim any more, it is that of their namespaces. Where that does not suffice it is
// owed to the Service, which has what it had there until then, but for those of its claims that leave a set, which goes
// in the meantime: these were found to have room. It reports whether nothing is owed to the one.
func (c *Compiler) give(payer registry.Key, leaving map[*claim]bool, rules *int) (whole bool) {
	whole = true
	slices.SortFunc(c.settled, plan.ServiceKey.Compare)
	keys := slices.Compact(c.settled)
	edits := make([]plan.Edit[plan.ServiceKey, plan.Service], 0, len(keys))
	if len(leaving) > 0 {
		// They pay before others, which may as well stay what they are.
		stay := func(key plan.ServiceKey) int {
			if all := c.claims[key]; len(all) > 0 && leaving[all.first()] {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(keys, func(a, b plan.ServiceKey) int { return cmp.Compare(stay(a), stay(b)) })
	}
	for _, key := range keys {
		var sides []side
		if all := c.claims[key]; len(all) > 0 {
			first := all.first()
			if sides = first.sides(); !c.pay(first, sides, payer, rules, leaving[first]) {
				if first.by.key == payer {
					whole = false
				} else {
					c.queue.add(first.by.key)
				}
				if c.mayStay(first, sides) {
					continue
				}
				sides = nil
			}
		}
		for e := range c.changesAt(key, sides) {
			if e.comes {
				c.counts.frontend(e.key, e.is, 1)
			}
			if e.there {
				c.counts.frontend(e.key, e.was, -1)
			}
			edits = append(edits, plan.Edit[plan.ServiceKey, plan.Service]{Key: e.key, Value: e.is, Gone: !e.comes})
		}
	}
	if len(leaving) > 0 {
		slices.SortFunc(edits, func(a, b plan.Edit[plan.ServiceKey, plan.Service]) int { return a.Key.Compare(b.Key) })
	}
	c.tables.Services = c.tables.Services.With(edits)
	c.settled = nil
	return whole
}

// scopes are the sides for which a frontend may be, first that it is for each.
var scopes = []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside}

// pay has the rules be paid for that come with what a claim makes of its address and port, and reports whether there is room,
// or they must come.
func (c *Compiler) pay(first *claim, sides []side, payer registry.Key, room *int, must bool) bool {
	of := first.by.key
	if c.rooms == nil || c.isAPIServer(of) { // which is no tenant's
		return true
	}
	rules := c.missing(first.key, sides, nil)
	if len(rules) == 0 {
		return true
	}
	price := c.priceOfRules(rules)
	if of == payer {
		if !must && !suffices(*room, price) {
			return false
		}
		*room -= price
		return true
	}
	r := c.roomOf(of.Namespace)
	if c.resting[of.Namespace] || !suffices(r.rules, price) {
		return false
	}
	r.rules, r.changes = r.rules-price, r.changes-price
	return true
}

// mayStay reports whether what there is at an address and port may stay until there is room for what is to be: it is the same Service's,
// and for no more clients.
func (c *Compiler) mayStay(first *claim, sides []side) bool {
	key := first.key
	guards := slices.ContainsFunc(sides, func(s side) bool { return s.is.Sources != "" })
	for _, key.From = range scopes {
		if was, there := c.tables.Services.Get(key); there && (was.Origin != first.by.origin || guards && was.Sources == "") {
			return false
		}
	}
	return true
}

// maxLost is how many problems there are of what a Service claims and has not got.
const maxLost = printable.MaxNamed

// losses are what a Service claims and has not got: the first of it, in order, and how much it is.
type losses struct {
	first [maxLost]*claim
	many  int
}

// with returns the losses with one more.
func (l losses) with(c *claim) losses {
	for i := range min(l.many, maxLost) {
		if c.key.Compare(l.first[i].key) < 0 {
			c, l.first[i] = l.first[i], c
		}
	}
	if l.many < maxLost {
		l.first[l.many] = c
	}
	l.many++
	return l
}

// lostTo says that another Service has what is claimed.
func (c *claim) lostTo(first *claim) string {
	where := netip.AddrPortFrom(c.key.Address, c.key.Port).String() + "/" + strings.ToUpper(c.key.Protocol.String())
	if c.key.Protocol == plan.AnyProtocol {
		where = c.key.Address.String()
	}
	if first.rank == rankAPIServer {
		return fmt.Sprintf("%s is where the API server is, as EndpointSlices of Service %s say, and no Service's: choose another address or port", where, first.by.key)
	}
	if first.by.key == nobodys {
		return fmt.Sprintf("%s is a name server, as the ClusterConfig says, and no Service's: choose another address or port", where)
	}
	return fmt.Sprintf("%s is Service %s's: choose another address or port", where, first.by.name)
}
