package plantest

import (
	"net/netip"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// OtherNetwork is the second network of clusters that Networked generates.
const OtherNetwork = "red"

// Twin names the endpoint of OtherNetwork that is like one of the default network.
func Twin(endpoint string) string { return "r" + endpoint }

// Networked generates the plans of small clusters of two networks, half of them with
// policies. What is between pods is in both alike: pools, addresses, routes, tags and
// classes. Nodes and the outside are of the default network alone.
func Networked() *rapid.Generator[map[string]*plan.Plan] {
	tunnelled := rapid.Map(unpoliced(), func(s Shape) Shape {
		// Plainly, no packet says of which network it is.
		s.Tunnel, s.Plainly = true, nil
		return s
	})
	return rapid.Map(rapid.OneOf(tunnelled, Policed(tunnelled)), func(s Shape) map[string]*plan.Plan {
		plans := s.Plans()
		for name, p := range plans {
			plans[name] = twice(p, s.families())
		}
		return plans
	})
}

// twice returns a plan with OtherNetwork beside the default one.
func twice(p *plan.Plan, families []int) *plan.Plan {
	q := *p
	q.Local.Pools = nil
	for _, pool := range p.Local.Pools {
		other := pool
		other.Network = OtherNetwork
		q.Local.Pools = append(q.Local.Pools, pool, other)
	}
	for k, n := range p.Networks.All() {
		// Either gets as much of the room for tags.
		first, last := n, n
		if room := n.LastVNI - n.FirstVNI; room == 0 {
			last.FirstVNI, last.LastVNI = n.LastVNI+1, n.LastVNI+1
		} else {
			first.LastVNI = n.FirstVNI + (room-1)/2
			last.FirstVNI, last.LastVNI = first.LastVNI+1, first.LastVNI+1+(room-1)/2
		}
		q.Networks = q.Networks.Set(k, first).Set(plan.NetworkKey{Name: OtherNetwork, Tunnel: k.Tunnel}, last)
	}
	for k, e := range p.Endpoints.All() {
		e.Network, e.Name = OtherNetwork, e.Name+"-"+OtherNetwork
		q.Endpoints = q.Endpoints.Set(plan.EndpointKey{Interface: Twin(k.Interface)}, e)
	}
	ofPods := func(prefix netip.Prefix) bool {
		for _, f := range families {
			if clusterPrefixes[f].Contains(prefix.Addr()) && prefix.Bits() >= clusterPrefixes[f].Bits() {
				return true
			}
		}
		return false
	}
	for k, r := range p.Routes.All() {
		if !ofPods(k.Prefix) {
			continue
		}
		if r.Way == plan.ToEndpoint {
			r.Interface = Twin(r.Interface)
		}
		q.Routes = q.Routes.Set(plan.RouteKey{Network: OtherNetwork, Prefix: k.Prefix}, r)
	}
	for k, t := range p.Tags.All() {
		q.Tags = q.Tags.Set(plan.TagKey{Network: OtherNetwork, Prefix: k.Prefix}, t)
	}
	for k, m := range p.Classes.All() {
		q.Classes = q.Classes.Set(plan.ClassKey{Network: OtherNetwork, Prefix: k.Prefix}, m)
	}
	return &q
}
