package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

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

// several says what is wrong where several nodes answer for an address, "" where they do not.
func (a Announced) several() string {
	if len(a.Nodes) < 2 {
		return ""
	}
	return a.String() + ": one stops as soon as they hear each other, so where it stays so, see whether all nodes that are selected are on one link, and its switches pass frames of EtherType 0x88b5"
}

// AnnounceProblems returns what is wrong with who answers for addresses on the link: those for
// which several nodes do, and VirtualAddresses for which none does.
func (c Cluster) AnnounceProblems() (all []api.Problem) {
	answer := make(map[netip.Addr][]string)
	known := true
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if c.Lost[node.Name] {
			continue
		}
		addresses, more := api.Announces(node)
		for _, a := range addresses {
			if !slices.Contains(answer[a], node.Name) {
				answer[a] = append(answer[a], node.Name)
			}
		}
		known = known && !more
	}
	of := make(map[netip.Addr]string)
	for v := range registry.Each[*api.VirtualAddress](c.Objects, api.VirtualAddressKind) {
		a := v.Address()
		of[a] = v.Name
		if by := (Announced{Address: a}); known && a.IsValid() && len(answer[a]) == 0 {
			all = append(all, api.Problem{Kind: api.VirtualAddressKind.Kind, Name: v.Name,
				Message: by.String() + ": see whether a node is selected, has an interface next to it, and has a program that answers at the port of spec.check"})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(answer), netip.Addr.Compare) {
		text := (Announced{Address: a, Nodes: answer[a]}).several()
		if text == "" {
			continue
		}
		p := api.Problem{Kind: api.AddressGrantKind.Kind, Name: api.GrantName(a), Message: text}
		if name := of[a]; name != "" {
			p.Kind, p.Name = api.VirtualAddressKind.Kind, name
		}
		all = append(all, p)
	}
	return all
}

// saidOf returns what nodes say of themselves that speaks of an address, as that somebody else has it.
func (c Cluster) saidOf(a netip.Addr) (all []string) {
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		for _, p := range api.NodeProblems(node) {
			own := p.Kind == "" || p.Kind == api.Node.Kind && p.Name == node.Name
			if own && slices.Contains(strings.FieldsFunc(p.Message, notOfAddress), a.String()) {
				all = append(all, node.Name+" says: "+p.Message)
			}
		}
	}
	return all
}

// notOfAddress reports whether no address has a rune in its text.
func notOfAddress(r rune) bool {
	return r != '.' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'f')
}

// announce adds who answers for the Service's addresses that nodes announce, and which of those
// nobody answers for, or several nodes do.
func (c Cluster) announce(s *Serving, svc *corev1.Service) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		a, err := netip.ParseAddr(i.IP)
		if err != nil {
			continue
		}
		by, known := c.AnnouncedBy(a)
		if len(by.Nodes) > 0 {
			s.Announced = append(s.Announced, by)
			if text := by.several(); text != "" {
				s.Problems = append(s.Problems, text)
			}
		} else if g := registry.GetAs[*api.AddressGrant](c.Objects, api.AddressGrantKind, registry.Key{Name: api.GrantName(a)}); known && g != nil && g.IsOf(svc) {
			pool := registry.GetAs[*api.AddressPool](c.Objects, api.AddressPoolKind, registry.Key{Name: g.Spec.Pool})
			if pool == nil || pool.OnLink() {
				s.Announced = append(s.Announced, by)
				s.Problems = append(s.Problems, c.saidOf(a)...)
				s.Problems = append(s.Problems, by.String()+": see whether any is selected by AddressPool "+g.Spec.Pool+", has endpoints where only nodes with some are asked, and has an interface next to it")
			}
		}
	}
}
