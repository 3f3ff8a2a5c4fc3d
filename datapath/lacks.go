package datapath

import (
	"slices"

	"github.com/weftnet/weft/plan"
)

// Lacks names, in order and for people, what a plan asks for that a data plane of such
// capabilities cannot do. It is pure. Of what Possible and then Enforceable return it
// names nothing.
func Lacks(p *plan.Plan, able Capabilities) []string {
	if p == nil {
		return nil
	}
	var lacks []string
	need := func(able bool, what string) {
		if !able && !slices.Contains(lacks, what) {
			lacks = append(lacks, what)
		}
	}
	network := func(name string) {
		need(name == plan.DefaultNetwork || able.OverlappingNetworks, "overlapping networks")
	}
	family := func(is6 bool) { need(!is6 || able.IPv6, "IPv6") }
	for _, a := range p.Local.Addresses {
		family(a.Is6())
	}
	for _, pool := range p.Local.Pools {
		network(pool.Network)
		family(pool.Prefix.Addr().Is6())
	}
	for _, t := range p.Local.Tunnels {
		need(able.Tunnels, "tunnels")
		family(t.VTEP.Is6())
		need(!t.CarriesTags || able.Tags, "tags in the tunnel")
	}
	for k := range p.Networks.All() {
		network(k.Name)
	}
	for _, peer := range p.Peers.All() {
		need(!peer.CarriesTags || able.Tags, "tags in the tunnel")
	}
	for _, e := range p.Endpoints.All() {
		network(e.Network)
		for _, a := range e.Addresses {
			family(a.Is6())
		}
		need(e.IngressPolicy+e.EgressPolicy == "" || able.Verdicts, "verdicts")
		need(!e.AntiSpoof || able.AntiSpoof, "anti-spoof")
		need(e.IngressRate|e.EgressRate == 0 || able.Bandwidth, "bandwidth limits")
	}
	for k, r := range p.Routes.All() {
		network(k.Network)
		family(k.Prefix.Addr().Is6())
		need(!r.EndpointsOnly || able.EndpointsOnlyHere || !endsHere(r.Way), "ways for endpoints only that lead to no peer")
		need(len(r.Peers) < 2 || able.Multipath, "several peers")
	}
	for k := range p.Tags.All() {
		network(k.Network)
	}
	for k := range p.Classes.All() {
		network(k.Network)
	}
	need(p.Tags.Len()+p.Classes.Len()+p.Within.Len()+p.Verdicts.Len() == 0 || able.Verdicts, "verdicts")
	_, refused := Enforceable(p, able, nil)
	need(len(refused) == 0, "SCTP")
	for k, s := range p.Services.All() {
		network(k.Network)
		family(k.Address.Is6())
		need(able.Services, "services")
		need(!s.Here || able.AnswersHere, "frontends that the node itself answers")
	}
	for k := range p.Backends.All() {
		network(k.Network)
		family(k.Address.Is6())
	}
	for k := range p.Sources.All() {
		network(k.Network)
		family(k.Prefix.Addr().Is6())
	}
	need(p.Backends.Len()+p.Sources.Len() == 0 || able.Services, "services")
	for k, e := range p.Egress.All() {
		network(k.Network)
		family(k.Destination.Addr().Is6())
		need(able.does(e.Action), "egress action "+string(e.Action))
	}
	slices.Sort(lacks)
	return lacks
}
