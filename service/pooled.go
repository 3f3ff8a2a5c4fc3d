package service

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// poolRanges are the addresses of an AddressPool.
type poolRanges struct {
	key    registry.Key
	ranges []api.AddressRange
}

// readPool reads an AddressPool. What else it says, and how many of its addresses are used,
// means nothing here.
func readPool(o registry.Object, before *poolRanges) *poolRanges {
	made := &poolRanges{registry.KeyOf(o), o.(*api.AddressPool).Ranges()}
	if before != nil && slices.Equal(before.ranges, made.ranges) {
		return before
	}
	return made
}

func comparePools(a, b *poolRanges) int { return a.key.Compare(b.key) }

// merged returns the ranges of all pools in ascending order, none of which overlap.
func merged(pools []*poolRanges) (all []api.AddressRange) {
	for _, p := range pools {
		all = append(all, p.ranges...)
	}
	slices.SortFunc(all, func(a, b api.AddressRange) int { return a.First.Compare(b.First) })
	n := 0
	for _, r := range all {
		if n > 0 && all[n-1].Overlaps(r) {
			if all[n-1].Last.Less(r.Last) {
				all[n-1].Last = r.Last
			}
			continue
		}
		all[n] = r
		n++
	}
	return all[:n]
}

// addressGrant is what of an AddressGrant is compiled.
type addressGrant struct {
	address netip.Addr
	of      registry.Key
	uid     types.UID
}

// readAddressGrant reads an AddressGrant; nil where its name is none that the controller gives.
func readAddressGrant(o registry.Object, before *addressGrant) *addressGrant {
	g := o.(*api.AddressGrant)
	made := &addressGrant{g.Address(), g.Spec.Service(), g.Spec.UID}
	if !made.address.IsValid() {
		return nil
	}
	if before != nil && *before == *made {
		return before
	}
	return made
}

func compareAddressGrants(a, b *addressGrant) int { return a.address.Compare(b.address) }

// standing is what AddressPools and AddressGrants say of an address and a Service. The zero
// value is that they say nothing.
type standing int

const (
	// pooledOwn: the Service has the grant.
	pooledOwn standing = iota + 1
	// pooledOthers: another has it, or nobody.
	pooledOthers
)

// standings returns what is so of the addresses of a Service outside of the cluster that are
// pooled, and which of its addresses in the cluster another has by an AddressGrant.
func (c *Compiler) standings(s *service) standings {
	is := standings{}
	for _, a := range slices.Concat(s.balanced, s.external) {
		switch g := c.addressGrantOf(a); {
		case g == nil && !c.isPooled(a):
			continue
		case g != nil && g.isOf(s):
			is.putOutside(a, pooledOwn)
		default:
			is.putOutside(a, pooledOthers)
		}
	}
	if !c.Grants {
		return is // its API server gives Services these, and nobody else
	}
	for _, a := range s.clusterIPs {
		if g := c.addressGrantOf(a); g != nil && !g.isOf(s) {
			is.taken = append(is.taken, a)
		}
	}
	return is
}

// standings is what AddressPools and AddressGrants say of a Service.
type standings struct {
	// outside is of its addresses outside of the cluster, balanced ones and external ones.
	outside map[netip.Addr]standing
	// taken are those of its addresses in the cluster that another has.
	taken []netip.Addr
}

func (is *standings) putOutside(a netip.Addr, as standing) {
	if is.outside == nil {
		is.outside = make(map[netip.Addr]standing)
	}
	is.outside[a] = as
}

// isOf reports whether the AddressGrant is a Service's.
func (g *addressGrant) isOf(s *service) bool { return g.of == s.key && g.uid == s.uid }

// addressGrantOf returns the AddressGrant of an address, nil where there is none.
func (c *Compiler) addressGrantOf(a netip.Addr) *addressGrant {
	grants := c.addressGrants.All()
	if i, found := slices.BinarySearchFunc(grants, a, func(g *addressGrant, a netip.Addr) int { return g.address.Compare(a) }); found {
		return grants[i]
	}
	return nil
}

// isPooled reports whether an AddressPool has an address.
func (c *Compiler) isPooled(a netip.Addr) bool {
	ranges := c.node.pooled
	i, _ := slices.BinarySearchFunc(ranges, a, func(r api.AddressRange, a netip.Addr) int { return r.Last.Compare(a) })
	return i < len(ranges) && ranges[i].Contains(a)
}

// pooledAt are the addresses of a Service of which AddressPools and AddressGrants may say
// something: those outside of the cluster, whoever gave them. Where the registry keeps Grants,
// who writes a Service may also choose one of these as its clusterIP, which goes before.
func (s *service) pooledAt(grants bool) []netip.Addr {
	if grants {
		return slices.Concat(s.balanced, s.external, s.clusterIPs)
	}
	return slices.Concat(s.balanced, s.external)
}

// refuseOthers says which addresses of AddressPools the Service is not served at, as nodes go
// by AddressGrants and not by what Services say.
func (c *compiled) refuseOthers() {
	for _, a := range c.clusterIPs {
		if slices.Contains(c.pooled.taken, a) {
			c.problems = append(c.problems, fmt.Sprintf("spec.clusterIPs: %s is of an AddressPool, and another Service has the AddressGrant of it: choose another", a))
		}
	}
	for _, a := range c.balanced {
		if c.pooled.outside[a] == pooledOthers {
			c.problems = append(c.problems, fmt.Sprintf("status.loadBalancer.ingress: %s is of an AddressPool, and is not served, as the Service has no AddressGrant of it: have it ask for the address, or give the AddressPool others", a))
		}
	}
	for _, a := range c.external {
		if c.pooled.outside[a] == pooledOthers {
			c.problems = append(c.problems, fmt.Sprintf("spec.externalIPs: %s is of an AddressPool, and is not served, as the Service has no AddressGrant of it: ask for it by type LoadBalancer and the annotation %s", a, api.AddressesAnnotation))
		}
	}
}
