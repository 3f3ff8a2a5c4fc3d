package explain

import (
	"net/netip"
	"slices"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// warnOfPools says of a destination that is an address of an AddressPool, and at which no
// Service is served, why that is.
func (c Cluster) warnOfPools(a *Answer, destination netip.Addr) {
	if a.Service != nil {
		return
	}
	for p := range registry.Each[*api.AddressPool](c.Objects, api.AddressPoolKind) {
		if !slices.ContainsFunc(p.Ranges(), func(r api.AddressRange) bool { return r.Contains(destination) }) {
			continue
		}
		said := api.Problem{Kind: api.AddressPoolKind.Kind, Name: p.Name}
		key := registry.Key{Name: api.GrantName(destination)}
		if g := registry.GetAs[*api.AddressGrant](c.Objects, api.AddressGrantKind, key); g == nil {
			said.Message = destination.String() + " is one of its addresses, and no Service has it"
		} else {
			said.Message = destination.String() + " is one of its addresses, and Service " + g.Spec.Service().String() + " has it, but is not served there: see weft service " + g.Spec.Name + " -n " + g.Spec.Namespace
		}
		a.Warn("", said)
		return
	}
}
