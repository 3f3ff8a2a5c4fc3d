package explain

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

// Announced is which nodes say that they answer for an address on the link. It is one, but
// for the moment in which it changes.
type Announced struct {
	Address netip.Addr `json:"address"`
	Nodes   []string   `json:"nodes"`
}

// String writes it for people.
func (a Announced) String() string {
	if len(a.Nodes) == 0 {
		return fmt.Sprintf("no node says that it answers for %s on the link", a.Address)
	}
	return fmt.Sprintf("%s is answered for on the link by %s", a.Address, printable.Few(a.Nodes, 0))
}

// AnnouncedBy returns which nodes say that they answer for an address, those whose agents are
// lost left out: another has it by now. known is false where one answers for more addresses
// than it names, so that it may be that one.
func (c Cluster) AnnouncedBy(a netip.Addr) (by Announced, known bool) {
	by, known = Announced{Address: a, Nodes: []string{}}, true
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if c.Lost[node.Name] {
			continue
		}
		addresses, more := api.Announces(node)
		if slices.Contains(addresses, a) {
			by.Nodes = append(by.Nodes, node.Name)
		} else if more {
			known = false
		}
	}
	return by, known || len(by.Nodes) > 0
}

// announce adds who answers for the Service's addresses that nodes announce, and which of those
// nobody answers for.
func (c Cluster) announce(s *Serving, svc *corev1.Service) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			continue
		}
		by, known := c.AnnouncedBy(a)
		if len(by.Nodes) > 0 {
			s.Announced = append(s.Announced, by)
		} else if g := registry.GetAs[*api.AddressGrant](c.Objects, api.AddressGrantKind, registry.Key{Name: api.GrantName(a)}); known && g != nil && g.IsOf(svc) {
			pool := registry.GetAs[*api.AddressPool](c.Objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
			if pool != nil && pool.OnLink() {
				s.Announced = append(s.Announced, by)
				s.Problems = append(s.Problems, by.String()+": see whether any is selected by AddressPool "+pool.Name+", has endpoints where only nodes with some are asked, and has an interface next to it")
			}
		}
	}
}
