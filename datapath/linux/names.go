package linux

import (
	"strings"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// known returns what the interfaces of endpoints, and Weft's devices, were called when they
// were known last, or else what they ought to be called by what they are. A device that a
// plan does not need and that is named as Weft's another data plane may have taken over.
func (d *DataPlane) known(inv *rtnl.Links, p *plan.Plan) rtnl.Known {
	known := rtnl.Known{}
	defer d.kernel.Recognize(inv, p, known)
	if d.compiler == nil {
		return known
	}
	n := d.compiler.node
	for name, index := range n.Links {
		known[index] = name
	}
	for _, l := range inv.All {
		index := l.Attrs().Index
		name, own := n.Own(index)
		needed := len(p.Local.Pools) > 0
		if tunnel, ok := n.Tunnel(index); ok {
			_, needed = p.Local.Tunnel(tunnel)
		}
		if own && (needed || !datapath.OwnsInterface(l.Attrs().Name)) {
			known[index] = name
		}
	}
	return known
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
