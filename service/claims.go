package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// rank says which of several Services gets an address and port that all of them claim: the
// one whose claim is of the first rank, then the older one.
type rank int

const (
	rankClusterIP rank = iota
	rankNodePort
	rankBalanced
	rankExternal
)

// claim is what a Service makes of an address and port.
type claim struct {
	by   *compiled
	rank rank
	// key is without a side.
	key    plan.ServiceKey
	values map[plan.Scope]plan.Service
}

func compareClaims(a, b *claim) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), a.by.created.Compare(b.by.created), a.by.key.Compare(b.by.key))
}

// add makes a claim of the Service. Of its own at one address the first rank counts.
func (c *compiled) add(claimed claim) {
	claimed.by = c
	i := slices.IndexFunc(c.claims, func(o *claim) bool { return o.key == claimed.key })
	switch {
	case i < 0:
		c.claims = append(c.claims, &claimed)
	case claimed.rank < c.claims[i].rank:
		c.claims[i] = &claimed
	}
}

// claim puts what a Service makes where nobody has a better claim.
func (c *Compiler) claim(s *compiled) {
	for _, one := range s.claims {
		before := c.claims[one.key]
		i, _ := slices.BinarySearchFunc(before, one, compareClaims)
		c.settle(one.key, slices.Insert(slices.Clone(before), i, one))
	}
}

// withdraw takes that back.
func (c *Compiler) withdraw(s *compiled) {
	for _, one := range s.claims {
		c.settle(one.key, slices.DeleteFunc(slices.Clone(c.claims[one.key]), func(o *claim) bool { return o == one }))
	}
}

// settle gives an address and port to the first of those who claim it.
func (c *Compiler) settle(key plan.ServiceKey, now []*claim) {
	var values map[plan.Scope]plan.Service
	if len(now) == 0 {
		delete(c.claims, key)
	} else {
		c.claims[key], values = now, now[0].values
	}
	if len(now) > 1 {
		c.contested[key] = true
	} else {
		delete(c.contested, key)
	}
	for _, from := range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} {
		key.From = from
		if v, ok := values[from]; ok {
			c.tables.Services = c.tables.Services.Set(key, v)
		} else {
			c.tables.Services = c.tables.Services.Delete(key)
		}
	}
}

// lost says what of a Service others have.
func (c *Compiler) lost(s *compiled) (problems []string) {
	for _, one := range s.claims {
		if first := c.claims[one.key][0]; first != one {
			where := netip.AddrPortFrom(one.key.Address, one.key.Port).String() + "/" + strings.ToUpper(one.key.Protocol.String())
			if one.key.Protocol == plan.AnyProtocol {
				where = one.key.Address.String()
			}
			problems = append(problems, fmt.Sprintf("%s is Service %s's: choose another address or port", where, first.by.name))
		}
	}
	return problems
}
