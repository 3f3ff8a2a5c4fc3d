package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
)

// The functions in this file state what plug-ins say alike when all pods and
// nodes share one flat network, plan.DefaultNetwork: every pod reaches every
// pod and node under its own address, and the rest of the world behind the
// node's.

// PutNode states who the node is, and that packets to its own addresses stay
// on it.
func PutNode(b *plan.Builder, n Node) {
	b.Local.Node = n.Name
	b.Local.Addresses = n.Addresses
	for _, a := range n.Addresses {
		b.PutRoute(hostRoute(a), plan.Route{Way: plan.ToHost, Origin: "Node " + n.Name})
	}
}

// PutPool gives the node a prefix to take pods' addresses from. What is in it
// and belongs to no endpoint is unreachable. tunnel names the one at whose end the node
// has an address of it, or is empty.
func PutPool(b *plan.Builder, prefix netip.Prefix, tunnel, origin string) {
	prefix = prefix.Masked()
	gateway := plan.GatewayOf(prefix)
	b.Local.Pools = append(b.Local.Pools, plan.Pool{Network: plan.DefaultNetwork, Prefix: prefix, Gateway: gateway, Tunnel: tunnel})
	b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: prefix}, plan.Route{Way: plan.ToDrop, Origin: origin})
	b.PutRoute(hostRoute(gateway), plan.Route{Way: plan.ToHost, Origin: origin})
}

// PutEndpoints states the node's endpoints and the routes to them, each in its own
// network, and returns what is wrong with some of them. It is called after PutNode
// and PutPool, whose addresses endpoints can't have: of two that claim one address
// of a network the one whose interface comes first has it, and the other is left
// out.
func PutEndpoints(b *plan.Builder, n Node) []Problem {
	holders := make(map[plan.Address]string, len(n.Endpoints))
	for _, a := range b.Local.Addresses {
		holders[plan.Address{Network: plan.DefaultNetwork, IP: a}] = "the node itself"
	}
	for _, p := range b.Local.Pools {
		holders[plan.Address{Network: p.Network, IP: p.TunnelAddress()}] = "the tunnel's end of " + p.Prefix.String()
		holders[plan.Address{Network: p.Network, IP: p.Gateway}] = "the gateway of " + p.Prefix.String()
	}
	var problems []Problem
	byInterface := func(a, b Endpoint) int { return strings.Compare(a.Interface, b.Interface) }
	for _, e := range slices.SortedFunc(slices.Values(n.Endpoints), byInterface) {
		in := func(a netip.Addr) plan.Address { return plan.Address{Network: e.Network, IP: a} }
		if i := slices.IndexFunc(e.Addresses, func(a netip.Addr) bool { return holders[in(a)] != "" }); i >= 0 {
			a := in(e.Addresses[i])
			problems = append(problems, Problem{Message: fmt.Sprintf(
				"pod %s has address %s, which is that of %s; delete the pod", e.Name(), a, holders[a])})
			continue
		}
		origin := "Pod " + e.Name()
		endpoint := plan.Endpoint{Name: e.Name(), Network: e.Network, Addresses: e.Addresses, MAC: e.MAC, AntiSpoof: true, Origin: origin}
		if e.Bandwidth != nil {
			endpoint.IngressRate, endpoint.EgressRate = e.Bandwidth.Ingress, e.Bandwidth.Egress
		}
		b.PutEndpoint(plan.EndpointKey{Interface: e.Interface}, endpoint)
		for _, a := range e.Addresses {
			holders[in(a)] = "pod " + e.Name()
			b.PutRoute(plan.RouteKey{Network: e.Network, Prefix: netip.PrefixFrom(a, a.BitLen())}, plan.Route{Way: plan.ToEndpoint, Interface: e.Interface, Origin: origin})
		}
	}
	if p, ok := outside(b.Local.Pools, n); ok {
		problems = append(problems, p)
	}
	return problems
}

// outside says which endpoints have addresses in none of the node's pools, as
// after a change of the plug-in that was forced: other nodes have no way to them. It is one
// problem, as it has one cause.
func outside(pools []plan.Pool, n Node) (Problem, bool) {
	if len(pools) == 0 {
		return Problem{}, false // a node without a subnet has another problem
	}
	var names, prefixes []string
	for _, e := range n.Endpoints {
		for _, a := range e.Addresses {
			if !slices.ContainsFunc(pools, func(p plan.Pool) bool { return p.Network == e.Network && p.Prefix.Contains(a) }) && !(e.Network == plan.DefaultNetwork && n.Keeps(a)) {
				names = append(names, e.Name()+" "+plan.Address{Network: e.Network, IP: a}.String())
				break
			}
		}
	}
	if len(names) == 0 {
		return Problem{}, false
	}
	for _, p := range pools {
		prefix := p.Prefix.String()
		if p.Network != plan.DefaultNetwork {
			prefix += " of network " + p.Network
		}
		prefixes = append(prefixes, prefix)
	}
	slices.Sort(names)
	return Problem{Message: fmt.Sprintf("pods with addresses outside the node's subnets %s, to which other nodes have no way: %s; delete them, so that they are made anew",
		strings.Join(prefixes, ", "), printable.Few(names, 0))}, true
}

// PutCluster states that a prefix belongs to the cluster's pods: nothing in it
// is masqueraded, and what no node has is unreachable rather than sent out of
// the cluster.
func PutCluster(b *plan.Builder, prefix netip.Prefix, origin string) {
	b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: prefix}, plan.Route{Way: plan.ToDrop, Origin: origin})
	PutDirect(b, prefix, origin)
}

// PutDirect states that packets to a prefix keep the endpoint's own address.
func PutDirect(b *plan.Builder, prefix netip.Prefix, origin string) {
	b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Destination: prefix}, plan.Egress{Action: plan.Direct, Origin: origin})
}

// PutExit states the way out of the cluster for addresses of the family that
// example belongs to: by the node's own routes, behind the node's address.
func PutExit(b *plan.Builder, example netip.Addr, origin string) {
	everything, _ := example.Prefix(0)
	b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: everything}, plan.Route{Way: plan.ToGateway, Origin: origin})
	b.PutEgress(plan.EgressKey{Network: plan.DefaultNetwork, Destination: everything}, plan.Egress{Action: plan.Masquerade, Origin: origin})
}

func hostRoute(a netip.Addr) plan.RouteKey {
	return plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(a, a.BitLen())}
}
