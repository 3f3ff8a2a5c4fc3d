package linux

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// listing lists the interfaces. Only tests set it.
var listing = (*rtnl.Kernel).List

// list returns what interfaces there are, and of which it is known that they cannot have
// their names.
func (d *DataPlane) list() (*rtnl.Links, error) {
	inv, err := listing(d.kernel)
	if err == nil {
		inv.Misnamed = d.misnamed
	}
	return inv, err
}

// known returns what the interfaces of endpoints, and Weft's devices, ought to be called by
// what was known of their indexes last. That counts only of what still wears the data plane's
// stamps, as another may have the index now: it says itself what it is, or has the group, or
// is a device of that kind.
func (d *DataPlane) known(inv *rtnl.Links) rtnl.Known {
	known := rtnl.Known{}
	for name, m := range d.misnamed {
		if l := inv.ByIndex(m.Index); l != nil && !m.Copy && m.Is(l) {
			known[m.Index] = name
		}
	}
	if d.compiler == nil {
		return known
	}
	n := d.compiler.node
	endpoints := make(map[int]string, len(n.Links))
	for name, index := range n.Links {
		endpoints[index] = name
	}
	for _, l := range inv.All {
		a := l.Attrs()
		if name := endpoints[a.Index]; name != "" && (a.Group == d.stamps.Group || rtnl.Whose(l) == name) {
			known[a.Index] = name
		}
		if name, own := n.Own(a.Index); own && l.Type() == d.kindOf(name) {
			known[a.Index] = name
		}
	}
	return known
}

// kindOf is the kind of the device of Weft's that ought to have a name.
func (d *DataPlane) kindOf(name string) string {
	if name == d.stamps.Bridge {
		return rtnl.BridgeKind
	}
	return rtnl.VXLANKind
}

// mayBe reports whether what has an endpoint's name may be its interface: where that could
// not be given the name, it is not.
func (d *DataPlane) mayBe(name string) bool {
	m, misnamed := d.misnamed[name]
	return !misnamed || m.Copy
}

// names reports whether a plan has to do with the interface that ought to have a name.
// Others may have gone since they were last read.
func (d *DataPlane) names(p *plan.Plan, name string) bool {
	_, is := p.Endpoints.Get(plan.EndpointKey{Interface: name})
	if tunnel, ok := strings.CutPrefix(name, d.stamps.TunnelPrefix); ok && !is {
		_, is = p.Local.Tunnel(tunnel)
	}
	return is || name == d.stamps.Bridge && len(p.Local.Pools) > 0
}

// elsewhere reports whether the interface of one of the endpoints with such names is called
// otherwise, by what its alias says. It reads all interfaces.
func (d *DataPlane) elsewhere(names map[string]bool) (bool, error) {
	inv, err := d.kernel.List()
	if err != nil {
		return false, err
	}
	return elsewhere(inv, names), nil
}

func elsewhere(inv *rtnl.Links, names map[string]bool) bool {
	return slices.ContainsFunc(inv.All, func(l netlink.Link) bool {
		name := rtnl.Whose(l)
		return names[name] && l.Attrs().Name != name
	})
}
