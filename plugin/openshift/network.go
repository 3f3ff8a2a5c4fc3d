package openshift

import (
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// network is what a ClusterNetwork means.
type network struct {
	// ranges are those that are valid and overlap none before them.
	ranges []subnet.Range
	// service is where Services get their addresses; invalid if not known.
	service netip.Prefix
	// port and mtu are 0 if not set.
	port, mtu int
	problems  []networkProblem
}

// networkProblem is something wrong with a ClusterNetwork.
type networkProblem struct {
	// reason is one for a condition.
	reason, message string
}

// The reasons of networkProblem.
const (
	reasonInvalid     = "InvalidClusterNetwork"
	reasonOverlapping = "OverlappingCIDRs"
)

func (n *network) problem(reason, format string, args ...any) {
	n.problems = append(n.problems, networkProblem{reason, fmt.Sprintf(format, args...)})
}

// withDefaults returns a ClusterNetwork with what its user left open filled
// in, or cn itself if nothing was. cn may be nil.
func withDefaults(cn *networkv1.ClusterNetwork) *networkv1.ClusterNetwork {
	out := &networkv1.ClusterNetwork{}
	if cn != nil {
		out = cn.DeepCopy()
	}
	out.Name = api.DefaultName
	changed := cn == nil
	if len(out.ClusterNetworks) == 0 {
		// The form of before there could be several.
		entry := networkv1.ClusterNetworkEntry{CIDR: out.Network}
		if entry.CIDR == "" {
			entry.CIDR = DefaultCIDR
		}
		out.ClusterNetworks = []networkv1.ClusterNetworkEntry{entry}
		changed = true
	}
	for i := range out.ClusterNetworks {
		entry := &out.ClusterNetworks[i]
		if entry.HostSubnetLength != 0 {
			continue
		}
		entry.HostSubnetLength = defaultHostBits(entry.CIDR)
		if i == 0 && out.HostSubnetLength != 0 {
			entry.HostSubnetLength = out.HostSubnetLength
		}
		changed = true
	}
	first := out.ClusterNetworks[0]
	if out.Network == "" {
		out.Network = first.CIDR
		changed = true
	}
	if out.HostSubnetLength == 0 && out.Network == first.CIDR {
		out.HostSubnetLength = first.HostSubnetLength
		changed = true
	}
	if !changed {
		return cn
	}
	return out
}

// defaultHostBits returns the host bits of a CIDR's subnets where nothing is
// said about them.
func defaultHostBits(cidr string) uint32 {
	p, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil:
		return DefaultHostBits
	case p.Addr().Is6():
		return uint32(min(DefaultHostBitsIPv6, 128-p.Bits()))
	default:
		return uint32(min(DefaultHostBits, 32-p.Bits()))
	}
}

// readNetwork returns what a ClusterNetwork means, which may lack what
// withDefaults fills in, and be nil.
func readNetwork(cn *networkv1.ClusterNetwork) network {
	var n network
	if cn == nil {
		n.problem(reasonInvalid, "there is no ClusterNetwork %s; a controller with plug-in %s makes it", api.DefaultName, Name)
		return n
	}
	cn = withDefaults(cn)
	if cn.ServiceNetwork != "" {
		p, err := netip.ParsePrefix(cn.ServiceNetwork)
		if err != nil {
			n.problem(reasonInvalid, "serviceNetwork %q is not a CIDR such as 172.30.0.0/16", cn.ServiceNetwork)
		} else {
			n.service = p.Masked()
		}
	}
	var before subnet.Set
	for _, entry := range cn.ClusterNetworks {
		p, err := netip.ParsePrefix(entry.CIDR)
		if err != nil {
			n.problem(reasonInvalid, "CIDR %q is not one such as %s; it is left out", entry.CIDR, DefaultCIDR)
			continue
		}
		r := subnet.Range{CIDR: p, HostBits: int(entry.HostSubnetLength)}
		if err := r.Check(); err != nil {
			n.problem(reasonInvalid, "%v; it is left out", err)
			continue
		}
		if other, overlaps := before.Overlap(p); overlaps {
			n.problem(reasonOverlapping, "CIDR %s overlaps with CIDR %s before it and is left out", p, other)
			continue
		}
		if n.service.IsValid() && n.service.Overlaps(p) {
			n.problem(reasonOverlapping, "CIDR %s overlaps with serviceNetwork %s; no node gets a subnet in both", p, n.service)
		}
		before.Add(p)
		n.ranges = append(n.ranges, r)
	}
	if cn.VXLANPort != nil {
		if *cn.VXLANPort < 1 || *cn.VXLANPort > 65535 {
			n.problem(reasonInvalid, "vxlanPort %d is not between 1 and 65535", *cn.VXLANPort)
		} else {
			n.port = int(*cn.VXLANPort)
		}
	}
	if cn.MTU != nil {
		n.mtu = int(min(*cn.MTU, 65536)) // Compile judges it
	}
	return n
}

// covers reports whether a prefix lies in one of the ranges.
func (n network) covers(p netip.Prefix) bool {
	for _, r := range n.ranges {
		if r.CIDR.Bits() <= p.Bits() && r.CIDR.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// rangeOf returns the range that an address is in.
func (n network) rangeOf(a netip.Addr) (netip.Prefix, bool) {
	for _, r := range n.ranges {
		if r.CIDR.Contains(a) {
			return r.CIDR, true
		}
	}
	return netip.Prefix{}, false
}

// families returns the families that ranges belong to, in their order.
func families(ranges []subnet.Range) []subnet.Family {
	var out []subnet.Family
	for _, r := range ranges {
		if f := r.Family(); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// networkKey is that of the only ClusterNetwork.
var networkKey = registry.Key{Name: api.DefaultName}

// networkOf reads the ClusterNetwork among objects.
func networkOf(objects registry.Objects) network {
	cn, _ := objects.Get(api.ClusterNetwork, networkKey).(*networkv1.ClusterNetwork)
	return readNetwork(cn)
}
