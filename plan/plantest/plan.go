package plantest

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// Plan generates plans of arbitrary entries, with names of every kind, that
// the text form can hold. They need not be valid.
func Plan() *rapid.Generator[*plan.Plan] {
	return rapid.Custom(func(t *rapid.T) *plan.Plan {
		b := plan.NewBuilder(nil)
		b.Local = local().Draw(t, "local")
		few := rapid.IntRange(0, 4)
		for range few.Draw(t, "networks") {
			b.PutNetwork(plan.NetworkKey{Name: Name().Draw(t, "network"), Tunnel: Name().Draw(t, "tunnel")}, plan.Network{
				FirstVNI: rapid.Uint32().Draw(t, "first VNI"), LastVNI: rapid.Uint32().Draw(t, "last VNI"), Origin: Name().Draw(t, "origin")})
		}
		for range few.Draw(t, "peers") {
			putPeer(t, b)
		}
		for range few.Draw(t, "endpoints") {
			putEndpoint(t, b)
		}
		for range few.Draw(t, "routes") {
			putRoute(t, b)
		}
		for range few.Draw(t, "tags") {
			b.PutTag(plan.TagKey{Network: Name().Draw(t, "network"), Prefix: Prefix().Draw(t, "prefix")},
				plan.Tagging{Tag: tag(t), Origin: Name().Draw(t, "origin")})
		}
		for range few.Draw(t, "classes") {
			b.PutClass(plan.ClassKey{Network: Name().Draw(t, "network"), Prefix: Prefix().Draw(t, "prefix")},
				plan.Membership{Class: class(t), Origin: Name().Draw(t, "origin")})
		}
		for range few.Draw(t, "within") {
			b.PutWithin(plan.WithinKey{Class: class(t)}, plan.Within{Class: class(t)})
		}
		for range few.Draw(t, "verdicts") {
			putVerdict(t, b)
		}
		for range few.Draw(t, "services") {
			putService(t, b)
		}
		for range few.Draw(t, "egress") {
			putEgress(t, b)
		}
		return b.Build()
	})
}

// Name generates names: plain ones, the text form's own words, anything.
func Name() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"default", "node1", "tunnel", "via", "any", "otherwise", "#", `"`, " a", "a ", "a b", "a,b", "a@b"}),
		rapid.StringMatching(`[a-z0-9./-]{1,12}`),
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
	)
}

// Addr generates addresses of both families, close together.
func Addr() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		host := byte(rapid.IntRange(0, 255).Draw(t, "host"))
		subnet := byte(rapid.IntRange(0, 3).Draw(t, "subnet"))
		if rapid.Bool().Draw(t, "IPv4") {
			return netip.AddrFrom4([4]byte{10, 1, subnet, host})
		}
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: subnet, 15: host})
	})
}

// Prefix generates masked prefixes around what Addr generates.
func Prefix() *rapid.Generator[netip.Prefix] {
	return rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := Addr().Draw(t, "address")
		p, _ := a.Prefix(rapid.IntRange(0, a.BitLen()).Draw(t, "length"))
		return p
	})
}

func local() *rapid.Generator[plan.Local] {
	return rapid.Custom(func(t *rapid.T) plan.Local {
		l := plan.Local{
			Node:      Name().Draw(t, "node"),
			Addresses: rapid.SliceOfN(Addr(), 0, 3).Draw(t, "addresses"),
			ReachedAt: rapid.SliceOfN(Addr(), 0, 2).Draw(t, "reached at"),
			MTU:       rapid.IntRange(0, 65535).Draw(t, "MTU"),

			ServicesLeft: rapid.Bool().Draw(t, "services left"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "pools") {
			l.Pools = append(l.Pools, plan.Pool{
				Network: Name().Draw(t, "network"), Prefix: Prefix().Draw(t, "prefix"), Gateway: Addr().Draw(t, "gateway"), Tunnel: Name().Draw(t, "tunnel"), Closed: rapid.Bool().Draw(t, "closed")})
		}
		for range rapid.IntRange(0, 2).Draw(t, "tunnels") {
			l.Tunnels = append(l.Tunnels, plan.Tunnel{Name: Name().Draw(t, "tunnel"), VTEP: Addr().Draw(t, "VTEP"), MAC: mac(t),
				Port: rapid.Uint16().Draw(t, "port"), CarriesTags: rapid.Bool().Draw(t, "carries tags"),
				Only: rapid.SampledFrom([]plan.Family{plan.BothFamilies, plan.IPv4, plan.IPv6}).Draw(t, "only")})
		}
		return l
	})
}

func mac(t *rapid.T) plan.MAC { return plan.MACOf(Addr().Draw(t, "MAC")) }

// key draws a public key, or none.
func key(t *rapid.T) plan.PublicKey {
	var k plan.PublicKey
	copy(k[:], rapid.SliceOfN(rapid.Byte(), 0, len(k)).Draw(t, "key"))
	return k
}

func class(t *rapid.T) plan.Class {
	return plan.Class(rapid.Uint32Range(0, uint32(plan.MaxClass)).Draw(t, "class"))
}

func tag(t *rapid.T) plan.Tag { return plan.Tag(rapid.Uint32().Draw(t, "tag")) }

func protocol(t *rapid.T) plan.Protocol { return plan.Protocol(rapid.Byte().Draw(t, "protocol")) }

func putEndpoint(t *rapid.T, b *plan.Builder) {
	b.PutEndpoint(plan.EndpointKey{Interface: Name().Draw(t, "interface")}, plan.Endpoint{
		Name: Name().Draw(t, "name"), Network: Name().Draw(t, "network"),
		Addresses: rapid.SliceOfN(Addr(), 0, 3).Draw(t, "addresses"), MAC: mac(t), Tag: tag(t),
		IngressPolicy: Name().Draw(t, "ingress policy"), EgressPolicy: Name().Draw(t, "egress policy"),
		IngressRate: rapid.Uint64().Draw(t, "ingress rate"), EgressRate: rapid.Uint64().Draw(t, "egress rate"),
		AntiSpoof: rapid.Bool().Draw(t, "anti-spoof"), Origin: Name().Draw(t, "origin"),
	})
}

func putPeer(t *rapid.T, b *plan.Builder) {
	p := plan.Peer{Addresses: rapid.SliceOfN(Addr(), 0, 3).Draw(t, "addresses"), CarriesTags: rapid.Bool().Draw(t, "carries tags"), Origin: Name().Draw(t, "origin")}
	for range rapid.IntRange(0, 2).Draw(t, "ends") {
		p.Ends = append(p.Ends, plan.TunnelEnd{Tunnel: Name().Draw(t, "tunnel"), VTEP: Addr().Draw(t, "VTEP"), MAC: mac(t), Key: key(t)})
	}
	b.PutPeer(plan.PeerKey{Name: Name().Draw(t, "peer")}, p)
}

func putRoute(t *rapid.T, b *plan.Builder) {
	r := plan.Route{
		Way:           rapid.SampledFrom([]plan.Way{plan.ToEndpoint, plan.ToTunnel, plan.ToNextHop, plan.ToHost, plan.ToGateway, plan.ToDrop}).Draw(t, "way"),
		Interface:     Name().Draw(t, "interface"),
		EndpointsOnly: rapid.Bool().Draw(t, "endpoints only"), Origin: Name().Draw(t, "origin"),
	}
	// The text form cannot tell one empty name from none.
	for range rapid.IntRange(0, 3).Draw(t, "peers") {
		r.Peers = append(r.Peers, cmp.Or(Name().Draw(t, "peer"), "node2"))
	}
	b.PutRoute(plan.RouteKey{Network: Name().Draw(t, "network"), Prefix: Prefix().Draw(t, "prefix")}, r)
}

func putVerdict(t *rapid.T, b *plan.Builder) {
	direction := rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction")
	k := plan.Otherwise(Name().Draw(t, "policy"), direction)
	if rapid.Bool().Draw(t, "has peer") {
		k.Peer = class(t)
	}
	if rapid.Bool().Draw(t, "has protocol") {
		k.Protocol = protocol(t)
	}
	if rapid.Bool().Draw(t, "has ports") {
		k.Ports.First = rapid.Uint16().Draw(t, "first")
		k.Ports.Last = rapid.Uint16Range(k.Ports.First, 65535).Draw(t, "last")
	}
	b.PutVerdict(k, plan.Verdict{Allow: rapid.Bool().Draw(t, "allow"), Origin: Name().Draw(t, "origin")})
}

func putService(t *rapid.T, b *plan.Builder) {
	s := plan.Service{
		Set: Name().Draw(t, "set"), Otherwise: rapid.SampledFrom([]plan.Refusal{plan.Refuse, plan.Silence}).Draw(t, "otherwise"),
		Affinity: time.Duration(rapid.Int64().Draw(t, "affinity")), Masquerade: plan.Clients(rapid.IntRange(0, int(plan.FromAll)).Draw(t, "masquerade")),
		Sources: Name().Draw(t, "sources"), Here: rapid.Bool().Draw(t, "here"), Origin: Name().Draw(t, "origin"),
	}
	b.PutService(plan.ServiceKey{Network: Name().Draw(t, "network"), Address: Addr().Draw(t, "address"),
		Protocol: protocol(t), Port: rapid.Uint16().Draw(t, "port"), From: rapid.SampledFrom([]plan.Scope{plan.Anywhere, plan.Inside, plan.Outside}).Draw(t, "from")}, s)
	for range rapid.IntRange(0, 3).Draw(t, "backends") {
		b.PutBackend(plan.BackendKey{Network: Name().Draw(t, "network"), Set: rapid.OneOf(rapid.Just(s.Set), Name()).Draw(t, "of"),
			Address: Addr().Draw(t, "backend"), Port: rapid.Uint16().Draw(t, "port")},
			plan.Backend{Node: Name().Draw(t, "node"), Weight: rapid.Uint16().Draw(t, "weight"), Affinity: rapid.Bool().Draw(t, "affinity"), Origin: Name().Draw(t, "origin")})
	}
	for range rapid.IntRange(0, 2).Draw(t, "sources") {
		b.PutSource(plan.SourceKey{Network: Name().Draw(t, "network"), Name: Name().Draw(t, "name"), Prefix: Prefix().Draw(t, "prefix")},
			plan.Source{Origin: Name().Draw(t, "origin")})
	}
}

func putEgress(t *rapid.T, b *plan.Builder) {
	k := plan.EgressKey{Network: Name().Draw(t, "network"), Destination: Prefix().Draw(t, "destination")}
	switch rapid.IntRange(0, 2).Draw(t, "sources") {
	case 1:
		k.Tagged, k.Tag = true, tag(t)
	case 2:
		k.Interface = "x" + Name().Draw(t, "interface")
	}
	e := plan.Egress{
		Action: rapid.SampledFrom([]plan.EgressAction{plan.Direct, plan.Masquerade, plan.SourceNAT, plan.ViaNode, plan.Discard}).Draw(t, "action"),
		Node:   Name().Draw(t, "node"), Origin: Name().Draw(t, "origin"),
	}
	if e.Action == plan.SourceNAT || rapid.Bool().Draw(t, "has source") {
		e.Source = Addr().Draw(t, "source")
	}
	b.PutEgress(k, e)
}
