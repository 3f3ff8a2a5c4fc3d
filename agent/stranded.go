package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// strands says which endpoints a plan takes the network from that follows another one; nil
// where there are none. Those are endpoints with an address in a pool that only the previous
// plan has, of a network in which the next plan gives no addresses at all. This happens where
// the object that says the node's subnet is lost, or the plug-in's configuration. A plan
// that gives addresses of another pool is no such plan: the node has its new subnet then.
//
// Endpoints that the previous plan does not have do not count. They have never had the
// network.
func strands(previous, next *plan.Plan, endpoints []plugin.Endpoint) error {
	if previous == nil {
		return nil
	}
	var pods []string
	var lost []netip.Prefix
	for _, e := range endpoints {
		if _, had := previous.Endpoints.Get(plan.EndpointKey{Interface: e.Interface}); !had || givesIn(next, e.Network) {
			continue
		}
		if pool, ok := lostPool(previous, next, e); ok {
			pods = append(pods, e.Name())
			if !slices.Contains(lost, pool) {
				lost = append(lost, pool)
			}
		}
	}
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	slices.SortFunc(lost, netip.Prefix.Compare)
	return fmt.Errorf("plan not loaded: by it node %s has no subnet, and pods live on %v (%s); the node goes on with the plan before: "+
		"put right what is said of its subnet, or drain the node", next.Local.Node, lost, printable.Few(pods, 0))
}

// givesIn reports whether a plan gives addresses in a network.
func givesIn(p *plan.Plan, network string) bool {
	return slices.ContainsFunc(open(p), func(pool plan.Pool) bool { return pool.Network == network })
}

// lostPool returns the pool of the first address of an endpoint that has one by the previous
// plan alone.
func lostPool(previous, next *plan.Plan, e plugin.Endpoint) (netip.Prefix, bool) {
	for _, ip := range e.Addresses {
		a := plan.Address{Network: e.Network, IP: ip}
		if before, had := previous.PoolOf(a.Network, a.IP); had {
			if _, has := next.PoolOf(a.Network, a.IP); !has {
				return before.Prefix, true
			}
		}
	}
	return netip.Prefix{}, false
}
