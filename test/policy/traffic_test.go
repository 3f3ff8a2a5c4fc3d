package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/test/policy/oracle"
)

// traffic is who may send what to whom in a cluster.
type traffic struct {
	// By family. For each node there are two nodes: its address among its pods
	// and the one among nodes. external are other addresses of nodes.
	pods, nodes, external, outside [2][]netip.Addr
	ports                          []uint16
}

// trafficOf finds the parties, and the ports on both sides of which policies
// may differ.
func trafficOf(c *oracle.Cluster) *traffic {
	t := &traffic{}
	for _, p := range c.Pods {
		if !p.Spec.HostNetwork && !ended(p) {
			for _, a := range addressesOf(p) {
				t.pods[family(a)] = append(t.pods[family(a)], a)
			}
		}
	}
	for _, n := range c.Nodes {
		for i, a := range internal(n) {
			gateway := netip.MustParsePrefix(n.Spec.PodCIDRs[i]).Addr().Next()
			t.nodes[family(a)] = append(t.nodes[family(a)], gateway, a)
		}
		for _, a := range n.Status.Addresses {
			if address := netip.MustParseAddr(a.Address); a.Type == corev1.NodeExternalIP {
				t.external[family(address)] = append(t.external[family(address)], address)
			}
		}
	}
	for _, a := range elsewhere {
		t.addOutside(a)
	}
	edges := func(cidr string) {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return
		}
		first, last := p.Masked().Addr(), lastOf(p)
		for _, a := range []netip.Addr{first.Prev(), first, last, last.Next()} {
			t.addOutside(a)
		}
	}
	for _, name := range domains {
		for _, a := range c.Domains[name] {
			t.addOutside(a)
		}
	}
	t.ports = []uint16{80, 8080, 443}
	for _, p := range named {
		t.addPort(p.ContainerPort)
	}
	for _, p := range c.NetworkPolicies {
		for _, r := range p.Spec.Ingress {
			for _, peer := range r.From {
				if peer.IPBlock != nil {
					edges(peer.IPBlock.CIDR)
					for _, e := range peer.IPBlock.Except {
						edges(e)
					}
				}
			}
		}
		for _, r := range p.Spec.Egress {
			for _, peer := range r.To {
				if peer.IPBlock != nil {
					edges(peer.IPBlock.CIDR)
					for _, e := range peer.IPBlock.Except {
						edges(e)
					}
				}
			}
		}
	}
	for _, p := range c.ClusterNetworkPolicies {
		for _, r := range p.Spec.Egress {
			for _, peer := range r.To {
				for _, cidr := range peer.Networks {
					edges(string(cidr))
				}
			}
		}
	}
	for _, number := range portNumbers {
		t.addPort(number)
	}
	slices.Sort(t.ports)
	t.ports = slices.Compact(t.ports)
	return t
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// addOutside adds an address if it is of a machine that may be outside of the
// cluster.
func (t *traffic) addOutside(a netip.Addr) {
	if !a.IsValid() || !a.IsGlobalUnicast() || podNetworks[family(a)].Contains(a) || underlays[family(a)].Contains(a) || externals.Contains(a) || a.Is4() && a.As4()[0] == 0 {
		return
	}
	if f := family(a); !slices.Contains(t.outside[f], a) {
		t.outside[f] = append(t.outside[f], a)
	}
}

// has reports whether somebody has an address.
func (t *traffic) has(a netip.Addr) bool {
	f := family(a)
	return slices.ContainsFunc([][]netip.Addr{t.pods[f], t.nodes[f], t.external[f], t.outside[f]}, func(all []netip.Addr) bool { return slices.Contains(all, a) })
}

func (t *traffic) addPort(number int32) {
	for _, n := range []int32{number - 1, number, number + 1} {
		if 0 < n && n <= 65535 {
			t.ports = append(t.ports, uint16(n))
		}
	}
}

// packets makes so many, or none where there is no pod. Those that no policy
// decides about are not as many as they would be.
func (g *generator) packets(c *oracle.Cluster, count int) []oracle.Packet {
	between := trafficOf(c)
	var packets []oracle.Packet
	for range count {
		p, ok := g.packet(between)
		for again := 0; ok && again < 2 && !c.Evaluate(p).Decided(); again++ {
			p, ok = g.packet(between)
		}
		if !ok {
			return packets
		}
		packets = append(packets, p)
	}
	return packets
}

// packet makes one that a policy may be asked about; none where there is no pod.
func (g *generator) packet(t *traffic) (oracle.Packet, bool) {
	f := pick(g, g.families)
	pods, nodes, outside := t.pods[f], t.nodes[f], t.outside[f]
	if len(pods) == 0 {
		return oracle.Packet{}, false
	}
	p := oracle.Packet{Source: pick(g, pods), Destination: pick(g, pods)}
	switch n := g.IntN(20); {
	case n < 3:
		p.Source = pick(g, outside)
	case n < 5:
		// What a node sends to another's pods comes from its address in its
		// own pods' subnet.
		p.Source = nodes[g.IntN(len(nodes)/2)*2]
	case n < 8:
		p.Destination = pick(g, outside)
	case n < 10:
		p.Destination = pick(g, slices.Concat(nodes, t.external[f]))
	case n < 11:
		if a := pick(g, append([]netip.Addr{elsewhere[0]}, g.resolved...)); family(a) == f && t.has(a) {
			p.Destination = a
		}
	}
	switch n := g.IntN(20); {
	case n < 10:
		p.Protocol = corev1.ProtocolTCP
	case n < 14:
		p.Protocol = corev1.ProtocolUDP
	case n < 17:
		p.Protocol = corev1.ProtocolSCTP
	case n < 19:
		p.Protocol = "ICMP"
		return p, true
	default:
		p.Protocol = "GRE"
		return p, true
	}
	if p.Port = pick(g, t.ports); g.chance(30) {
		p.Port = pick(g, []uint16{53, 80, 8080})
	}
	return p, true
}
