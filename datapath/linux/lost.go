package linux

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// lostBy returns the addresses of endpoints that a change takes from an
// interface.
func lostBy(changes plan.Diff) []netip.Addr {
	var lost []netip.Addr
	for _, c := range changes.Endpoints {
		if c.Old == nil {
			continue
		}
		for _, a := range c.Old.Addresses {
			if c.New == nil || !slices.Contains(c.New.Addresses, a) {
				lost = append(lost, a)
			}
		}
	}
	return lost
}

// resume has the connections forgotten that an instance before this one did not
// come to: those of addresses of the node's pools that nobody has. Whose
// interface is up has its address already, and keeps its connections.
func (d *DataPlane) resume(p *plan.Plan) error {
	var pools []netip.Prefix
	for _, pool := range p.Local.Pools {
		if !d.resumed[pool.Prefix] {
			pools = append(pools, pool.Prefix)
		}
	}
	if len(pools) == 0 {
		return nil
	}
	own, err := rtnl.LocalAddresses()
	if err != nil {
		return err
	}
	had := map[netip.Addr]bool{}
	for _, a := range slices.Concat(own, p.Local.Addresses, p.Local.PoolAddresses()) {
		had[a] = true
	}
	for k, e := range p.Endpoints.All() {
		if down, there := d.down[k.Interface]; there && !down {
			for _, a := range e.Addresses {
				had[a] = true
			}
		}
	}
	err = conntrack.Forget(func(a netip.Addr) bool {
		return !had[a] && slices.ContainsFunc(pools, func(pool netip.Prefix) bool { return pool.Contains(a) })
	})
	if err != nil {
		return err
	}
	for _, pool := range pools {
		d.resumed[pool] = true
	}
	return nil
}
