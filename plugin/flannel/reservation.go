package flannel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Reservation is an administrator's word on whose a subnet is. Its name is that
// of the lease. Where each agent may write its own keys of etcd alone, the key of
// a node's lease must be known before the node has it, and a reservation says
// more than a lease without a time to live: a node cannot change it, so others
// believe of the lease's node what the reservation says.
//
// flanneld knows nothing of it.
type Reservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ReservationSpec `json:"spec"`
}

// ReservationSpec is the value of a Reservation's key.
type ReservationSpec struct {
	// Node is the name of the node that may have the lease.
	Node string `json:"node"`
	// PublicIP and PublicIPv6 are the addresses by which others reach it; at
	// least one.
	PublicIP   string `json:"publicIP,omitempty"`
	PublicIPv6 string `json:"publicIPv6,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (r *Reservation) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func reservationKind(prefix string) *registry.Kind {
	gvk := api.GroupVersion.WithKind("FlannelReservation")
	return &registry.Kind{
		GroupVersionKind: gvk, Plural: "flannelreservations", Singular: "flannelreservation",
		New: func() registry.Object { return &Reservation{} },
		Validate: func(o registry.Object) error {
			if _, err := ParseSubnet(o.GetName()); err != nil {
				return fmt.Errorf("metadata.name: %w", err)
			}
			_, err := o.(*Reservation).Spec.read()
			return err
		},
		Layout: &registry.Layout{
			Prefix: prefix + "/weft/reservations/",
			Encode: func(o registry.Object) ([]byte, error) { return json.Marshal(o.(*Reservation).Spec) },
			Decode: func(_ string, value []byte, _ registry.Stored) (registry.Object, error) {
				r := &Reservation{}
				err := json.Unmarshal(value, &r.Spec)
				return r, err
			},
		},
	}
}

// reservation is what a Reservation means.
type reservation struct {
	Node                 string
	PublicIP, PublicIPv6 netip.Addr
}

func (s ReservationSpec) read() (*reservation, error) {
	r := &reservation{Node: s.Node}
	if s.Node == "" {
		return nil, fmt.Errorf("spec.node is empty; name the node that the subnet is for")
	}
	for _, f := range []struct {
		field, text string
		is          func(netip.Addr) bool
		addr        *netip.Addr
	}{{"publicIP", s.PublicIP, netip.Addr.Is4, &r.PublicIP}, {"publicIPv6", s.PublicIPv6, netip.Addr.Is6, &r.PublicIPv6}} {
		if f.text == "" {
			continue
		}
		a, err := netip.ParseAddr(f.text)
		if err != nil || !f.is(a) || a.IsUnspecified() || !ordinary(a) {
			return nil, fmt.Errorf("spec.%s: %q is not a node's address of that family", f.field, f.text)
		}
		*f.addr = a
	}
	if !r.PublicIP.IsValid() && !r.PublicIPv6.IsValid() {
		return nil, fmt.Errorf("spec.publicIP and spec.publicIPv6 are both empty; say by which address node %s is reached", s.Node)
	}
	return r, nil
}

// String is the addresses.
func (r *reservation) String() string {
	var words []string
	for _, a := range []netip.Addr{r.PublicIP, r.PublicIPv6} {
		if a.IsValid() {
			words = append(words, a.String())
		}
	}
	return strings.Join(words, " and ")
}

// names reports whether one of a node's addresses is reserved for.
func (r *reservation) names(addresses []netip.Addr) bool {
	return slices.Contains(addresses, r.PublicIP) || slices.Contains(addresses, r.PublicIPv6)
}

// Reserve returns a Reservation for a node that others reach at an address of
// each of the cluster's families: the one that the node has and can take, brought to these
// addresses, and of several the one that it goes by; or one of the subnet whose lease
// names the node or its address; or of one that is free, and that spares the nodes' own
// network as the node's own choice would. It returns also the lease to make for it, where
// there is none, by which flanneld learns that the subnet is taken. objects are Configs,
// Leases, Reservations and Nodes.
func (p Plugin) Reserve(objects registry.Objects, node string, addresses []netip.Addr) (*Reservation, *Lease, error) {
	p = p.withDefaults()
	settings, err := readSettings(objects, p.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("flannel's configuration: %w", err)
	}
	reserved, _ := readReservations(objects, p.Reservations)
	leases, _ := p.readLeases(objects)
	spec := ReservationSpec{Node: node}
	for _, network := range settings.families() {
		a := firstOf(addresses, network.Is6())
		switch {
		case !a.IsValid():
			return nil, nil, fmt.Errorf("node %s: no address of the family of %s is given, which the cluster's network has", node, network)
		case a.Is4():
			spec.PublicIP = a.String()
		default:
			spec.PublicIPv6 = a.String()
		}
	}
	self := plugin.Node{Name: node, Addresses: addresses}
	if n := registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: node}); n != nil {
		self.Prefixes = api.OnLink(n)
	}
	o := ownerOf(self, objects)
	others := slices.DeleteFunc(slices.Clone(leases), o.reserved)
	v := view{settings: settings, node: self, owner: o, leases: others, reserved: reserved, pick: func(int) int { return 0 }}
	subnet, able := v.granted()
	// Pods may live on a lease that the node has, so it stays, unless the node has better.
	if own := o.find(leases, &settings); own != nil && (!able || o.reserved(own) && settings.Bears(own.subnet)) {
		subnet, able = own.subnet, true
	}
	if !able {
		if subnet, _, err = v.chooseAny(); err != nil {
			return nil, nil, err
		}
	}
	r := &Reservation{Spec: spec}
	r.Name = subnet.String()
	if slices.ContainsFunc(leases, func(l *lease) bool { return l.subnet == subnet }) {
		return r, nil, nil
	}
	l := &Lease{}
	l.Name = r.Name
	l.Spec, err = json.Marshal(map[string]string{"PublicIP": spec.PublicIP, "PublicIPv6": spec.PublicIPv6})
	return r, l, err
}

// reservations are what administrators said, by subnet.
type reservations map[Subnet]*reservation

// of returns the subnets that are reserved for a node, in the order of their leases' keys.
func (r reservations) of(node string) []Subnet {
	var all []Subnet
	for s := range r {
		if r[s].Node == node {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Subnet) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// readReservations returns what administrators said, by subnet, and what of it
// means nothing.
func readReservations(objects registry.Objects, k *registry.Kind) (reservations, []plugin.Problem) {
	said := reservations{}
	var problems []plugin.Problem
	for o := range registry.Each[*Reservation](objects, k) {
		subnet, err := ParseSubnet(o.Name)
		if err == nil {
			said[subnet], err = o.Spec.read()
		}
		if err != nil {
			delete(said, subnet)
			problems = append(problems, plugin.Problem{Kind: k, Key: registry.KeyOf(o), Message: err.Error()})
		}
	}
	return said, problems
}
