package service

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// APIServer is the Service behind which the API server is. Its endpoints are where agents find
// what all nodes are to do: who drew connections to these would lock agents out, and no object
// could put that right. So they are no Service's, whatever it claims, and whoever is older.
//
// Who may write EndpointSlices of it has pods' connections to the API server anyway. Where
// nobody but the controller may say who has which address, which is where there are Grants,
// there is no API server either.
var APIServer = registry.Key{Namespace: "default", Name: "kubernetes"}

// isAPIServer reports whether a Service is the one behind which the API server is. Where there are Grants one of that name
// is a tenant's, as any other.
func (c *Compiler) isAPIServer(key registry.Key) bool { return key == APIServer && !c.node.grants }

// APIServers returns the addresses and ports at which EndpointSlices say that the API server
// is, each with a key of the table Services that has no side. It looks at all EndpointSlices.
func APIServers(objects registry.Objects) []plan.ServiceKey {
	var behind []*slice
	for o := range objects.All(api.EndpointSlice) {
		if o.GetNamespace() == APIServer.Namespace && o.GetLabels()[discoveryv1.LabelServiceName] == APIServer.Name {
			if s := readSlice(o, nil); s != nil {
				behind = append(behind, s)
			}
		}
	}
	keys, _ := kept(behind)
	return keys
}

// kept returns the addresses and ports that slices keep from Services, in their order. A slice of which
// there would be too many keeps none. The one that API servers write themselves is never
// among those that are left out for what others have.
func kept(behind []*slice) (keys []plan.ServiceKey, problems []string) {
	behind = slices.Clone(behind)
	slices.SortStableFunc(behind, func(a, b *slice) int { return first(a.key == APIServer, b.key == APIServer) })
	for _, s := range behind {
		if n := len(keys) + len(s.ports)*len(s.endpoints); n > MaxFrontends {
			problems = append(problems, fmt.Sprintf("with EndpointSlice %s its endpoints are %d addresses and ports, more than %d, and Services may have those of that slice: give it fewer ports or endpoints", s.key, n, MaxFrontends))
			continue
		}
		for _, p := range s.ports {
			for _, e := range s.endpoints {
				keys = append(keys, plan.ServiceKey{Network: plan.DefaultNetwork, Address: e.address, Protocol: p.protocol, Port: p.number})
			}
		}
	}
	slices.SortFunc(keys, plan.ServiceKey.Compare)
	return slices.Compact(keys), problems
}

// first orders what is so before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// keep has the Service claim what is kept, before all others: nobody serves it, and nobody refuses
// what is sent to other ports of these addresses. The Service itself does not either: what is sent
// there gets there as it is, also where its own port has no endpoint.
func (c *compiled) keep(behind []*slice) {
	keys, problems := kept(behind)
	c.problems = append(c.problems, problems...)
	for _, key := range keys {
		for _, key := range []plan.ServiceKey{key, {Network: key.Network, Address: key.Address}} {
			c.claims = append(c.claims, &claim{by: c, rank: rankAPIServer, key: key})
		}
	}
	all := slices.Clone(c.claims)
	c.order()
	for _, own := range all {
		if i, _ := slices.BinarySearchFunc(c.claims, own, func(a, b *claim) int { return a.key.Compare(b.key) }); own.rank != rankAPIServer && c.claims[i] != own {
			c.problems = append(c.problems, own.lostTo(c.claims[i]))
		}
	}
}
