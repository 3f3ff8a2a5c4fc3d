package plugin

import "github.com/weftnet/weft/plan"

// Outlives reports whether an address of a node's pod may be of a plug-in other than the one
// that the node uses. parts are what plug-ins state of the node, as Parts returns it, and of
// and used are the names of bases. A plug-in that has no subnet for the node just now, as its
// configuration cannot be read or the subnet was lost, may have given all addresses that are
// in no other's subnet: pods live on them still.
func Outlives(parts map[string]*plan.Plan, of, used string, a plan.Address) bool {
	if gives(parts[used], a) {
		return false
	}
	if p := parts[of]; len(p.Local.Pools) > 0 {
		return gives(p, a)
	}
	for _, p := range parts {
		if gives(p, a) {
			return false
		}
	}
	return true
}

// gives reports whether an address is of a subnet that a plan gives its node.
func gives(p *plan.Plan, a plan.Address) bool {
	_, in := p.PoolOf(a.Network, a.IP)
	return in
}
