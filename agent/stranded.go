package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// strands says from which endpoints a plan takes the network; nil where it takes it from
// none. It does where it gives no addresses at all in a network, and has not a subnet that
// the node has, while endpoints of that network have addresses in none of its subnets. This
// happens where the object that says the node's subnet is lost, or the plug-in's
// configuration. A plan that gives addresses of another subnet is no such plan: the node has
// its new one then. Nor is one that takes nothing away, as where the node had no subnet.
//
// gateways returns those of the subnets that the node has. It is asked only where that
// decides.
//
// Endpoints whose ADD has not ended count as well: it fails as the plan is refused, and they
// go.
func strands(gateways func() ([]netip.Addr, error), next *plan.Plan, endpoints []plugin.Endpoint) error {
	var pods []string
	for _, e := range endpoints {
		if givesIn(next, e.Network) {
			continue
		}
		if a, lost := firstOutside(next, e); lost {
			pods = append(pods, e.Name()+" "+a.String())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	had, err := gateways()
	if err != nil {
		return fmt.Errorf("plan not loaded: it cannot be seen whether it takes the network from pods: %w", err)
	}
	isLost := func(gateway netip.Addr) bool {
		return !slices.ContainsFunc(next.Local.Pools, func(p plan.Pool) bool { return p.Prefix.Contains(gateway) })
	}
	if !slices.ContainsFunc(had, isLost) {
		return nil
	}
	slices.Sort(pods)
	return fmt.Errorf("plan not loaded: by it node %s has no subnet, and pods live on the network that it has (%s); the node goes on as it was: "+
		"put right what is said of its subnet, or drain the node", next.Local.Node, printable.Few(pods, 0))
}

// givesIn reports whether a plan gives addresses in a network.
func givesIn(p *plan.Plan, network string) bool {
	return slices.ContainsFunc(open(p), func(pool plan.Pool) bool { return pool.Network == network })
}

// firstOutside returns the first address of an endpoint that is in no subnet of a plan.
func firstOutside(p *plan.Plan, e plugin.Endpoint) (plan.Address, bool) {
	for _, ip := range e.Addresses {
		if _, in := p.PoolOf(e.Network, ip); !in {
			return plan.Address{Network: e.Network, IP: ip}, true
		}
	}
	return plan.Address{}, false
}

// gatewaysOf returns the gateways of a plan's subnets.
func gatewaysOf(p *plan.Plan) (gateways []netip.Addr) {
	for _, pool := range p.Local.Pools {
		gateways = append(gateways, pool.Gateway)
	}
	return gateways
}
