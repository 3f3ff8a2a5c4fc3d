package service

import (
	"cmp"
	"container/heap"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// rank says which of several Services gets an address and port that all of them claim: the
// one whose claim is of the first rank, then the one that has the Grant, then the older one.
type rank int

const (
	// rankAPIServer is that of addresses at which the API server is.
	rankAPIServer rank = iota
	rankClusterIP
	rankNodePort
	rankBalanced
	rankExternal
)

// claim is what a Service makes of an address and port.
type claim struct {
	by   *compiled
	rank rank
	// granted says that the Service has the Grant of it.
	granted bool
	// key is without a side.
	key   plan.ServiceKey
	sides []side
	// index is where the claim is in its contest.
	index int
}

// side is what becomes of packets that come from one.
type side struct {
	from plan.Scope
	is   plan.Service
}

func compareClaims(a, b *claim) int {
	if a.rank == b.rank && a.granted != b.granted {
		if a.granted {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.rank, b.rank), a.by.created.Compare(b.by.created), a.by.key.Compare(b.by.key))
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

// add makes a claim of the Service. Of its own at one address the first rank counts.
func (c *compiled) add(claimed claim) {
	claimed.by = c
	if before := c.claims[claimed.key]; before == nil || claimed.rank < before.rank {
		c.claims[claimed.key] = &claimed
	}
}

// contend has what a Service claims now in the place of what it claimed before.
func (c *Compiler) contend(before, now *compiled) {
	for key, was := range before.claims {
		if now.claims[key] == nil {
			heap.Remove(c.claims[key], was.index)
			c.settle(key)
		}
	}
	for key, is := range now.claims {
		all := c.claims[key]
		if all == nil {
			all = new(contest)
			c.claims[key] = all
		}
		if was := before.claims[key]; was != nil {
			is.index = was.index
			(*all)[is.index] = is
			heap.Fix(all, is.index)
		} else {
			heap.Push(all, is)
		}
		c.settle(key)
	}
}

// settle gives an address and port to the first of those who claim it.
func (c *Compiler) settle(key plan.ServiceKey) {
	var sides []side
	all := c.claims[key]
	if all.Len() == 0 {
		delete(c.claims, key)
	} else {
		sides = all.first().sides
	}
	if all.Len() > 1 {
		c.contested[key] = true
	} else {
		delete(c.contested, key)
	}
	for _, from := range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} {
		key.From = from
		if i := slices.IndexFunc(sides, func(s side) bool { return s.from == from }); i >= 0 {
			c.tables.Services = c.tables.Services.Set(key, sides[i].is)
		} else {
			c.tables.Services = c.tables.Services.Delete(key)
		}
	}
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
	return fmt.Sprintf("%s is Service %s's: choose another address or port", where, first.by.name)
}
