package plantest

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
	"pgregory.net/rapid"
)

// Served generates what some plans are with Services: of each a few backends, among them
// nodes and others outside, an address in the cluster, where nodes may answer by themselves,
// one outside that not everybody may use, and a port of each node.
func Served(plans map[string]*plan.Plan) *rapid.Generator[map[string]*plan.Plan] {
	return rapid.Custom(func(t *rapid.T) map[string]*plan.Plan {
		served := make(map[string]*plan.Plan, len(plans))
		for name, p := range plans {
			q := *p
			served[name] = &q
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "services") {
			family := 0
			if !slices.ContainsFunc(slices.Collect(maps.Values(plans)), func(p *plan.Plan) bool { return slices.ContainsFunc(p.Local.Addresses, netip.Addr.Is4) }) {
				family = 1
			}
			serve(t, served, i, family)
		}
		return served
	})
}

// serve puts the i-th service, of a family, into all plans.
func serve(t *rapid.T, plans map[string]*plan.Plan, i, family int) {
	set, origin, flip := fmt.Sprintf("default/s%d", i), fmt.Sprintf("Service default/s%d", i), rapid.Bool()
	protocol := rapid.SampledFrom([]plan.Protocol{plan.TCP, plan.UDP}).Draw(t, "protocol")
	backends := make(map[plan.BackendKey]plan.Backend)
	near := map[string]map[plan.BackendKey]plan.Backend{}
	for _, a := range rapid.SliceOfNDistinct(rapid.SampledFrom(servers(plans, family)), 0, 4, rapid.ID).Draw(t, "backends") {
		k := plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: a.address, Port: rapid.SampledFrom(ports).Draw(t, "port")}
		b := plan.Backend{Node: a.node, Weight: rapid.SampledFrom([]uint16{0, 1, 1, 1, 3}).Draw(t, "weight"), Origin: origin}
		backends[k] = b
		if near[a.node] == nil {
			near[a.node] = make(map[plan.BackendKey]plan.Backend)
		}
		k.Set = set + "@" + a.node
		near[a.node][k] = b
	}
	// Outside, each node may have its own backends alone.
	local := flip.Draw(t, "local")
	masquerade := plan.Clients(rapid.IntRange(0, int(plan.FromAll)).Draw(t, "masquerade"))
	sources := rapid.SampledFrom([]string{"", set}).Draw(t, "sources")
	// And inside each may answer by itself, perhaps not everybody.
	here, admitted := flip.Draw(t, "here"), rapid.SampledFrom([]string{"", "", set}).Draw(t, "admitted")
	for name, p := range plans {
		put := func(a netip.Addr, port uint16, s plan.Service, from plan.Scope) {
			s.Origin = origin
			p.Services = p.Services.Set(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: protocol, Port: port, From: from}, s)
		}
		for k, b := range backends {
			p.Backends = p.Backends.Set(k, b)
		}
		clusterIP := podAddress(family, 230, i+1)
		if here {
			put(clusterIP, ports[0], plan.Service{Here: true, Sources: admitted}, plan.Inside)
			put(clusterIP, ports[0], plan.Service{Set: set, Masquerade: masquerade}, plan.Outside)
		} else {
			put(clusterIP, ports[0], plan.Service{Set: set, Masquerade: masquerade}, plan.Anywhere)
		}
		p.Services = p.Services.Set(plan.ServiceKey{Network: plan.DefaultNetwork, Address: clusterIP}, plan.Service{Origin: origin})
		external := []netip.Addr{ExternalAddress(family, i)}
		for _, a := range p.Local.Addresses {
			if a.Is4() == clusterIP.Is4() {
				external = append(external, a)
			}
		}
		for _, a := range external {
			s := plan.Service{Set: set, Masquerade: plan.FromAll}
			port := uint16(30080 + i)
			if a == external[0] {
				s.Sources, port = sources, ports[0]
			}
			if !local {
				put(a, port, s, plan.Anywhere)
				continue
			}
			s.Masquerade = 0
			put(a, port, s, plan.Inside)
			if s.Set, s.Otherwise = set+"@"+name, plan.Silence; len(near[name]) == 0 {
				s.Set = ""
			}
			put(a, port, s, plan.Outside)
			for k, b := range near[name] {
				p.Backends = p.Backends.Set(k, b)
			}
		}
		for _, f := range []netip.Addr{Outside[0], Outside[1], podAddress(family, 1, 2)} {
			if f.Is4() == clusterIP.Is4() {
				p.Sources = p.Sources.Set(plan.SourceKey{Network: plan.DefaultNetwork, Name: set, Prefix: hostPrefix(f)}, plan.Source{Origin: origin})
			}
		}
	}
}

// frontends yields those of all plans in key order, each once.
func frontends(plans map[string]*plan.Plan) iter.Seq[plan.ServiceKey] {
	all := make(map[plan.ServiceKey]bool)
	for _, p := range plans {
		for k := range p.Services.All() {
			all[k] = true
		}
	}
	return slices.Values(slices.SortedFunc(maps.Keys(all), plan.ServiceKey.Compare))
}

// ExternalAddress is the address outside the cluster of the i-th service, counted from 0,
// that Served makes.
func ExternalAddress(family, i int) netip.Addr {
	if family == 1 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:80::%d", i+1))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(80 + i)})
}

// server is who may be a backend, and the node that it is on, if any.
type server struct {
	address netip.Addr
	node    string
}

// servers returns all who may be a backend of a family: endpoints, nodes, somebody in
// nobody's pool and somebody outside.
func servers(plans map[string]*plan.Plan, family int) []server {
	all := []server{{Outside[family], ""}, {podAddress(family, 200, 9), ""}}
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		p := plans[name]
		addresses := slices.Clone(p.Local.Addresses)
		for _, e := range p.Endpoints.All() {
			addresses = append(addresses, e.Addresses...)
		}
		for _, a := range addresses {
			if a.Is4() == (family == 0) {
				all = append(all, server{a, name})
			}
		}
	}
	return all
}
