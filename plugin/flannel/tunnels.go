package flannel

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// What VXLAN costs in bytes of each packet over IPv4 and over IPv6: outer
// Ethernet payload is IP, UDP, VXLAN and the inner Ethernet header (RFC 7348,
// section 5).
const (
	overheadV4 = 20 + 8 + 8 + 14
	overheadV6 = 40 + 8 + 8 + 14
)

// nameV6 is what plans call the tunnel over IPv6 where there is one over IPv4, too,
// which has the plug-in's name.
const nameV6 = Name + "6"

// overlay is a tunnel that all nodes have an end of. As with flanneld, packets between
// pods' addresses of a family go between nodes' addresses of the same family.
type overlay struct {
	name string
	v6   bool
	// only is the family of what it carries, where there is an overlay of each.
	only plan.Family
}

// overlays are those of the cluster.
func (s Settings) overlays() []overlay {
	switch {
	case s.Backend != BackendVXLAN:
		return nil
	case s.V6.IsZero():
		return []overlay{{name: Name}}
	case s.V4.IsZero():
		return []overlay{{name: Name, v6: true}}
	}
	return []overlay{{Name, false, plan.IPv4}, {nameV6, true, plan.IPv6}}
}

// overhead is how many bytes of a packet the costliest of the overlays takes.
func (s Settings) overhead() int {
	most := 0
	for _, o := range s.overlays() {
		if o.v6 {
			most = max(most, overheadV6)
		} else {
			most = max(most, overheadV4)
		}
	}
	return most
}

// end returns the address by which a lease's node is reached in an overlay, and its
// end there.
func (l *lease) end(o overlay) (netip.Addr, *TunnelEnd) {
	if o.v6 {
		return l.PublicIPv6, l.TunnelV6
	}
	return l.PublicIP, l.Tunnel
}

// overlay returns that of a prefix's packets; false where the node has no end of it.
func (c *compiler) overlay(p netip.Prefix) (overlay, bool) {
	for _, o := range c.settings.overlays() {
		if _, has := c.b.Local.Tunnel(o.name); has && o.v6 == p.Addr().Is6() {
			return o, true
		}
	}
	return overlay{}, false
}

// putTunnels states the node's ends of overlays.
func (c *compiler) putTunnels() {
	c.b.Local.Tunnels = nil
	for _, o := range c.settings.overlays() {
		vtep := firstOf(c.in.Node.Addresses, o.v6)
		if !vtep.IsValid() {
			network := c.settings.V4.Network
			if o.v6 {
				network = c.settings.V6.Network
			}
			c.problems = append(c.problems, plugin.Problem{Message: fmt.Sprintf(
				"node %s has no address of the family of %s, which tunnels need; give it one", c.in.Node.Name, network.Addr())})
			continue
		}
		c.b.PutNetwork(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: o.name}, plan.Network{FirstVNI: c.settings.VNI, LastVNI: c.settings.VNI, Origin: c.config.String()})
		t := plan.Tunnel{Name: o.name, VTEP: vtep, MAC: plan.MACOf(vtep), Port: c.settings.port(c.in.Config), Only: o.only}
		// What the lease says is what peers go by, until it is written anew. Where it says
		// what is proven to be another's, they do not.
		if c.own != nil {
			if _, end := c.own.end(o); end != nil && end.MAC[0]&1 == 0 && !end.MAC.IsZero() && !c.isAnothers(o, end.MAC) {
				t.MAC = end.MAC
			}
		}
		c.b.Local.Tunnels = append(c.b.Local.Tunnels, t)
		c.settleTunnel(o, t)
	}
}

// isAnothers reports whether a MAC address is proven to be that of another node's end.
func (c *compiler) isAnothers(o overlay, mac plan.MAC) bool {
	return slices.ContainsFunc(c.leases, func(l *lease) bool {
		vtep, end := l.end(o)
		return l != c.own && end != nil && end.MAC == mac && c.addresses[vtep].lease == l && c.weigh(l, vtep, mac) == 0
	})
}
