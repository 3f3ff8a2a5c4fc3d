package plugin

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Inside says whose an address is in the cluster, by a plan; "" for nobody's. Of pods' networks all
// nodes say the same.
func Inside(p *plan.Plan, a netip.Addr) string {
	if slices.Contains(p.Local.Addresses, a) {
		return "an address of " + p.Local.Node
	}
	if pool, is := p.PoolOf(plan.DefaultNetwork, a); is {
		return "in the cluster's own network " + pool.Prefix.String()
	}
	if k, r, is := p.Route(plan.DefaultNetwork, a, false); is && k.Prefix.Bits() > 0 && (r.Way == plan.ToEndpoint || r.Way == plan.ToTunnel || r.Way == plan.ToNextHop || r.Way == plan.ToDrop) {
		return "in the cluster's own network " + k.Prefix.String()
	}
	return ""
}

// Free returns s without those of More that are another's in the cluster, which are taken, and says
// so: who answered there would cut off whoever has the address. p is the plan before PutNames. Where
// the node's name server is already, which has says, it stays though a Node says that it has the
// address, and that is a problem, too: else each Node could end all others' name servers.
func (s NameServer) Free(p *plan.Plan, objects registry.Objects, has []netip.Addr) (free NameServer, taken []netip.Addr, problems []Problem) {
	free = s
	free.More = nil
	tell := func(a netip.Addr, whose, what string) {
		problems = append(problems, Problem{Kind: api.ClusterConfigKind, Key: registry.Key{Name: api.DefaultName}, Message: fmt.Sprintf(
			"spec.dns.addresses: %s is %s, and %s", a, whose, what)})
	}
	var of map[netip.Addr]string
	for _, a := range s.More {
		if slices.Contains(p.Local.Addresses, a) || slices.Contains(s.Service, a) {
			free.More = append(free.More, a)
			continue
		}
		if of == nil {
			of = nodesOf(objects)
		}
		whose := Inside(p, a)
		// What no port of a Service is has an entry, too, where the address is that Service's alone.
		if svc, is := p.Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a}); is && svc.Origin != s.Origin {
			whose = "an address of " + svc.Origin
		}
		node := of[a]
		switch {
		case whose == "" && node == "":
			free.More = append(free.More, a)
		case whose == "" && slices.Contains(has, a):
			free.More = append(free.More, a)
			tell(a, node, "the name server that is there already stays: see why that Node says so, or choose one that nobody else has, as 169.254.20.10")
		default:
			taken = append(taken, a)
			tell(a, cmp.Or(whose, node), "no name server answers there: choose one that nobody else has, as 169.254.20.10")
		}
	}
	return free, taken, problems
}

// nodesOf returns whose the addresses of Nodes are. That a node has an address of one link is not
// believed: it means nothing elsewhere, and a Node that says so could end all others' name servers.
func nodesOf(objects registry.Objects) map[netip.Addr]string {
	of := make(map[netip.Addr]string)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		addresses, _ := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP)
		for _, a := range addresses {
			if !a.IsLinkLocalUnicast() && of[a] == "" {
				of[a] = "an address of Node " + n.Name
			}
		}
	}
	return of
}
