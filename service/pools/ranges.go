package pools

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// segment is a range whose addresses are all in the same pools, in the order of their names.
type segment struct {
	api.AddressRange
	pools []*pool
}

// segments are in ascending order, and none overlaps with another.
type segments []segment

// at returns the pools that have an address.
func (s segments) at(a netip.Addr) []*pool {
	i, found := slices.BinarySearchFunc(s, a, func(s segment, a netip.Addr) int {
		switch {
		case s.Last.Less(a):
			return -1
		case a.Less(s.First):
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return s[i].pools
}

// maxNamedPools is how many pools a segment names that several have.
const maxNamedPools = 3

// divide returns where the ranges of pools begin and end.
func divide(pools []*pool) (all segments) {
	type edge struct {
		at    netip.Addr
		pool  *pool
		comes bool
	}
	var edges []edge
	for _, p := range pools {
		for _, r := range p.ranges {
			// The last addresses of a family are in no pool, so that there is one behind.
			edges = append(edges, edge{r.First, p, true}, edge{r.Last.Next(), p, false})
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	var active []*pool // with one entry for each range
	for i, e := range edges {
		at, _ := slices.BinarySearchFunc(active, e.pool, comparePools)
		if e.comes {
			active = slices.Insert(active, at, e.pool)
		} else if at < len(active) && active[at] == e.pool {
			active = slices.Delete(active, at, at+1)
		}
		if i+1 < len(edges) && edges[i+1].at == e.at || len(active) == 0 {
			continue
		}
		s := segment{AddressRange: api.AddressRange{First: e.at, Last: edges[i+1].at.Prev()}}
		for _, p := range active {
			if len(s.pools) < maxNamedPools && !slices.Contains(s.pools, p) {
				s.pools = append(s.pools, p)
			}
		}
		all = append(all, s)
	}
	return all
}

func comparePools(a, b *pool) int { return cmp.Compare(a.Name, b.Name) }

// reserved is a range that is no Service's to have outside of the cluster, and what it is of.
type reserved struct {
	api.AddressRange
	of string
}

// reservedRanges returns where Services have their addresses in the cluster, and pods theirs.
func reservedRanges(objects registry.Objects) (all []reserved) {
	add := func(what, text string) {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
			all = append(all, reserved{api.RangeOf(p), what + " " + p.Masked().String()})
		}
	}
	config := api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	for _, text := range config.Spec.ServiceNetworks {
		add("spec.serviceNetworks", text)
	}
	if n := registry.GetAs[*networkv1.ClusterNetwork](objects, api.ClusterNetwork, registry.Key{Name: api.DefaultName}); n != nil {
		if len(config.Spec.ServiceNetworks) == 0 {
			add("serviceNetwork", n.ServiceNetwork)
		}
		add("the pods' network", n.Network)
		for _, c := range n.ClusterNetworks {
			add("the pods' network", c.CIDR)
		}
	}
	for h := range registry.Each[*networkv1.HostSubnet](objects, api.HostSubnet) {
		subnets, _ := api.Subnets(h)
		for _, s := range subnets {
			add("node "+h.Name+"'s pods' network", s.String())
		}
	}
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		for _, text := range n.Spec.PodCIDRs {
			add("node "+n.Name+"'s pods' network", text)
		}
	}
	slices.SortStableFunc(all, func(a, b reserved) int {
		return cmp.Or(a.First.Compare(b.First), -a.Last.Compare(b.Last))
	})
	// What is in one that is there already adds nothing.
	var out []reserved
	for _, r := range all {
		if n := len(out); n > 0 && out[n-1].Contains(r.Last) {
			continue
		}
		out = append(out, r)
	}
	return out
}

// reservedAt returns what of the cluster an address is of, empty where that is nothing. Prefixes
// do not overlap but where one is in the other, so that there is one at most.
func reservedAt(all []reserved, a netip.Addr) string {
	i, found := slices.BinarySearchFunc(all, a, func(r reserved, a netip.Addr) int {
		switch {
		case r.Last.Less(a):
			return -1
		case a.Less(r.First):
			return 1
		}
		return 0
	})
	if !found {
		return ""
	}
	return "is of " + all[i].of
}

// without returns what of a range is in none of some others, which are in ascending order and
// do not overlap.
func without(r api.AddressRange, others []reserved) (left []api.AddressRange) {
	i, _ := slices.BinarySearchFunc(others, r.First, func(o reserved, a netip.Addr) int { return o.Last.Compare(a) })
	for ; i < len(others) && others[i].Overlaps(r); i++ {
		if r.First.Less(others[i].First) {
			left = append(left, api.AddressRange{First: r.First, Last: others[i].First.Prev()})
		}
		if !others[i].Last.Less(r.Last) {
			return left
		}
		r.First = others[i].Last.Next()
	}
	return append(left, r)
}

// edges returns the addresses of a pool that a link has for itself, if the pool's prefixes are
// those of links: of IPv4 the network's and the broadcast address (RFC 919), of IPv6 that of
// all routers (RFC 4291, section 2.6.1). Who means others writes ranges.
func (p *pool) edges() (all []netip.Addr) {
	if !p.OnLink() {
		return nil
	}
	for _, text := range p.Spec.Addresses[:min(len(p.Spec.Addresses), api.MaxPoolRanges)] {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		// A link between two has neither (RFC 3021, RFC 6164).
		if err != nil || prefix.Addr().BitLen()-prefix.Bits() < 2 {
			continue
		}
		r := api.RangeOf(prefix)
		all = append(all, r.First)
		if r.First.Is4() {
			all = append(all, r.Last)
		}
	}
	return all
}

// ownReserved returns single addresses of pools that Services are not to get, and why: those
// of nodes, of Services in the cluster, and VirtualAddresses.
func ownReserved(objects registry.Objects, in segments) map[netip.Addr]string {
	all := make(map[netip.Addr]string)
	add := func(a netip.Addr, why string) {
		if all[a] == "" && len(in.at(a)) > 0 {
			all[a] = why
		}
	}
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		// Those that are too many are used by nobody.
		addresses, _ := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP)
		for _, a := range addresses {
			add(a, "is an address of node "+n.Name)
		}
	}
	for h := range registry.Each[*networkv1.HostSubnet](objects, api.HostSubnet) {
		addresses, _ := api.HostAddresses(h)
		for _, a := range addresses {
			add(a, "is an address of node "+h.Name)
		}
	}
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		for _, text := range append(slices.Clip(svc.Spec.ClusterIPs), svc.Spec.ClusterIP) {
			if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
				add(a.Unmap(), fmt.Sprintf("is the clusterIP of Service %s", registry.KeyOf(svc)))
			}
		}
	}
	for v := range registry.Each[*api.VirtualAddress](objects, api.VirtualAddressKind) {
		// One that a Service was given before no node has by the VirtualAddress.
		if a := v.Address(); objects.Get(api.AddressGrantKind, registry.Key{Name: api.GrantName(a)}) == nil {
			add(a, "is VirtualAddress "+v.Name+"'s")
		}
	}
	return all
}

// edgesOf returns the addresses of pools that links have for themselves, and why no Service is
// given them, but for those that nobody gets anyhow.
func edgesOf(pools []*pool, own map[netip.Addr]string) map[netip.Addr]string {
	all := make(map[netip.Addr]string)
	for _, p := range pools {
		for _, a := range p.edges() {
			if own[a] == "" && all[a] == "" {
				all[a] = "is the first or the last of a prefix of AddressPool " + p.Name + ", which a link has for itself (where it has not, write the prefix as a range)"
			}
		}
	}
	return all
}
