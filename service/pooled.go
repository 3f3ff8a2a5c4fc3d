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

// standing is what AddressPools and AddressGrants say of an address and a Service.
type standing int

const (
	// notPooled: they say nothing.
	notPooled standing = iota
	// pooledOwn: the Service has the grant.
	pooledOwn
	// pooledOthers: another has it, or nobody.
	pooledOthers
)

// standings returns that of the addresses of a Service that are pooled.
func (c *Compiler) standings(s *service) map[netip.Addr]standing {
	var all map[netip.Addr]standing
	grants, ranges := c.addressGrants.All(), c.node.pooled
	for _, a := range s.pooledAt(c.Grants) {
		is := notPooled
		if i, found := slices.BinarySearchFunc(grants, a, func(g *addressGrant, a netip.Addr) int { return g.address.Compare(a) }); found {
			if is = pooledOthers; grants[i].of == s.key && grants[i].uid == s.uid {
				is = pooledOwn
			}
		} else if i, _ := slices.BinarySearchFunc(ranges, a, func(r api.AddressRange, a netip.Addr) int { return r.Last.Compare(a) }); i < len(ranges) && ranges[i].Contains(a) && !slices.Contains(s.clusterIPs, a) {
			is = pooledOthers
		}
		if is != notPooled {
			if all == nil {
				all = make(map[netip.Addr]standing)
			}
			all[a] = is
		}
	}
	return all
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
		if c.pooled[a] == pooledOthers {
			c.problems = append(c.problems, fmt.Sprintf("spec.clusterIPs: %s is of an AddressPool, and another Service has the AddressGrant of it: choose another", a))
		}
	}
	for _, a := range c.balanced {
		if c.pooled[a] == pooledOthers {
			c.problems = append(c.problems, fmt.Sprintf("status.loadBalancer.ingress: %s is of an AddressPool, and is not served, as the Service has no AddressGrant of it: have it ask for the address, or give the AddressPool others", a))
		}
	}
	for _, a := range c.external {
		if c.pooled[a] == pooledOthers {
			c.problems = append(c.problems, fmt.Sprintf("spec.externalIPs: %s is of an AddressPool, and is not served, as the Service has no AddressGrant of it: ask for it by type LoadBalancer and the annotation %s", a, api.AddressesAnnotation))
		}
	}
}
