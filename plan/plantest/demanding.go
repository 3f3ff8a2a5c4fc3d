package plantest

import (
	"fmt"
	"net/netip"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// Demanding generates the plans of clusters whose first node asks for more than most data
// planes can do: networks, tunnels, ways, limits, policies and rules of every kind. They are
// valid. Each entry that can have an origin has one.
func Demanding() *rapid.Generator[map[string]*plan.Plan] {
	return rapid.Custom(func(t *rapid.T) map[string]*plan.Plan {
		plans := Shapes().Filter(func(s Shape) bool { return !s.Ghost || len(s.Endpoints) > 1 }).Draw(t, "shape").Plans()
		name := NodeName(1)
		for i := range rapid.IntRange(0, 12).Draw(t, "demands") {
			next := *plans[name]
			demand(t, &next, fmt.Sprintf("Demand %d", i))
			if next.Validate() == nil { // else it contradicts another
				plans[name] = &next
			}
		}
		return plans
	})
}

// demand adds something to a plan, which may make it invalid.
func demand(t *rapid.T, p *plan.Plan, origin string) {
	flip := rapid.Bool()
	network := rapid.SampledFrom([]string{plan.DefaultNetwork, plan.DefaultNetwork, "blue"}).Draw(t, "network")
	iface := rapid.SampledFrom([]string{"extra1", "extra2", interfaceName(1, 1)}).Draw(t, "interface")
	prefix := Prefix().Draw(t, "prefix")
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); kind {
	case 0, 1:
		e, there := p.Endpoints.Get(plan.EndpointKey{Interface: iface})
		if !there {
			e = plan.Endpoint{Name: "default/" + iface, Network: network,
				Addresses: rapid.SliceOfNDistinct(Addr(), 1, 3, rapid.ID[netip.Addr]).Draw(t, "addresses")}
		}
		e.Origin, e.AntiSpoof = origin, flip.Draw(t, "anti-spoof")
		e.IngressRate, e.EgressRate = rapid.Uint64Range(0, 2).Draw(t, "ingress rate"), rapid.Uint64Range(0, 2).Draw(t, "egress rate")
		e.IngressPolicy = rapid.SampledFrom([]string{"", "p1"}).Draw(t, "ingress policy")
		p.Endpoints = p.Endpoints.Set(plan.EndpointKey{Interface: iface}, e)
		if !there && flip.Draw(t, "routed") {
			for _, a := range e.Addresses {
				p.Routes = p.Routes.Set(plan.RouteKey{Network: e.Network, Prefix: hostPrefix(a)},
					plan.Route{Way: plan.ToEndpoint, Interface: iface, EndpointsOnly: flip.Draw(t, "endpoints only"), Origin: origin})
			}
		}
	case 2, 3:
		r := plan.Route{Way: rapid.SampledFrom([]plan.Way{plan.ToEndpoint, plan.ToTunnel, plan.ToNextHop, plan.ToHost, plan.ToGateway, plan.ToDrop}).Draw(t, "way"),
			EndpointsOnly: flip.Draw(t, "endpoints only"), Origin: origin}
		switch r.Way {
		case plan.ToEndpoint:
			r.Interface = iface
		case plan.ToTunnel, plan.ToNextHop:
			r.Peers = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{NodeName(2), NodeName(3), "router"}), 1, 2, rapid.ID[string]).Draw(t, "peers")
		}
		p.Routes = p.Routes.Set(plan.RouteKey{Network: network, Prefix: prefix}, r)
	case 4:
		p.Peers = p.Peers.Set(plan.PeerKey{Name: "router"}, plan.Peer{Addresses: []netip.Addr{nodeAddress(0, 100), nodeAddress(1, 100)}, Origin: origin})
	case 5:
		// A tunnel over IPv6, in which one peer has an end, and which the node prefers.
		o := overlay{plan.Tunnel{Name: "over6", Port: 9999, VTEP: nodeAddress(1, 1)}, 5, 1}
		o.MAC = o.macOf(1)
		p.Local.Tunnels = append([]plan.Tunnel{o.Tunnel}, p.Local.Tunnels...)
		for _, name := range []string{plan.DefaultNetwork, "blue"} {
			o.vni++
			p.Networks = p.Networks.Set(plan.NetworkKey{Name: name, Tunnel: o.Name}, plan.Network{FirstVNI: o.vni, LastVNI: o.vni, Origin: origin})
		}
		k := plan.PeerKey{Name: NodeName(2)}
		if peer, ok := p.Peers.Get(k); ok {
			peer.Ends = append([]plan.TunnelEnd{{Tunnel: o.Name, VTEP: nodeAddress(1, 2), MAC: o.macOf(2)}}, peer.Ends...)
			p.Peers = p.Peers.Set(k, peer)
		}
	case 6:
		k := plan.Otherwise(rapid.SampledFrom(policies).Draw(t, "policy"), rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction"))
		k.Protocol, k.Peer = plan.SCTP, rapid.SampledFrom(anyClasses).Draw(t, "peer")
		k.Ports.Last = rapid.SampledFrom([]uint16{ports[0], plan.AllPorts.Last}).Draw(t, "last port")
		p.Verdicts = p.Verdicts.Set(k, plan.Verdict{Allow: flip.Draw(t, "allow"), Origin: origin})
	case 7:
		a := rapid.OneOf(Addr(), rapid.Just(netip.MustParseAddr("10.3.0.1"))).Draw(t, "address")
		p.Services = p.Services.Set(plan.ServiceKey{Network: network, Address: a, Protocol: plan.TCP, Port: ports[0]},
			plan.Service{Set: "web", Origin: origin})
		p.Backends = p.Backends.Set(plan.BackendKey{Network: network, Set: "web", Address: podAddress(map[bool]int{true: 0, false: 1}[a.Is4()], 1, 2), Port: ports[1]},
			plan.Backend{Weight: 1, Origin: origin})
	case 8:
		k := plan.EgressKey{Network: network, Destination: prefix}
		switch rapid.IntRange(0, 2).Draw(t, "sources") {
		case 1:
			k.Tagged, k.Tag = true, rapid.SampledFrom(clusterTags).Draw(t, "tag")
		case 2:
			k.Interface = iface
		}
		e := plan.Egress{Action: rapid.SampledFrom([]plan.EgressAction{plan.Direct, plan.Masquerade, plan.SourceNAT, plan.ViaNode, plan.Discard}).Draw(t, "action"), Origin: origin}
		switch e.Action {
		case plan.SourceNAT:
			e.Source = Outside[map[bool]int{true: 0, false: 1}[prefix.Addr().Is4()]]
		case plan.ViaNode:
			e.Node = NodeName(2)
		}
		p.Egress = p.Egress.Set(k, e)
	default:
		// The network blue, and who is who in it. It has the addresses of the other one.
		p.Local.Pools = append(p.Local.Pools[:len(p.Local.Pools):len(p.Local.Pools)], plan.Pool{Network: "blue", Prefix: poolPrefix(0, 1), Gateway: podAddress(0, 1, 1)})
		p.Routes = p.Routes.Set(plan.RouteKey{Network: "blue", Prefix: poolPrefix(0, 1)}, plan.Route{Way: plan.ToDrop, Origin: origin})
		p.Tags = p.Tags.Set(plan.TagKey{Network: "blue", Prefix: prefix}, plan.Tagging{Tag: clusterTags[0], Origin: origin})
		p.Classes = p.Classes.Set(plan.ClassKey{Network: "blue", Prefix: prefix}, plan.Membership{Class: ownClasses[0], Origin: origin})
	}
}
