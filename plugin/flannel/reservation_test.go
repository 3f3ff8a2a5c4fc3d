package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Of several subnets that are reserved for a node, it takes the first that it can have, and
// a reservation that is made again is the one that the node goes by, whoever asks. Where it
// can have none, another is made.
func TestSeveralReservationsForANode(t *testing.T) {
	settings, err := ParseSettings([]byte(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.1")}
	for name, test := range map[string]struct {
		reserved []string // for the node
		others   []string // for another
		leases   []string
		takes    string // "" where it says why it takes none, for it cannot have the one that is named in cannot
		cannot   string
		again    string // what is reserved again
	}{
		"the first of two":                 {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"by the names of their leases":     {reserved: []string{"10.5.9.0-24", "10.5.10.0-24"}, takes: "10.5.10.0-24", again: "10.5.10.0-24"},
		"one is of a network of before":    {reserved: []string{"10.4.7.0-24", "10.5.7.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"one is the first of the network":  {reserved: []string{"10.5.0.0-24", "10.5.7.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"it is the only one":               {reserved: []string{"10.5.0.0-24"}, takes: "10.5.0.0-24", again: "10.5.0.0-24"},
		"another has a part of one":        {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, leases: []string{"10.5.7.0-25"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
		"one is reserved for another, too": {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, others: []string{"10.5.7.0-25"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
		"none can be":                      {reserved: []string{"10.4.9.0-24", "10.4.7.0-24"}, cannot: "10.4.7.0-24", again: "10.5.1.0-24"},
		"it has the lease of the second":   {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, leases: []string{"10.5.9.0-24"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
		"it has one of a former network":   {reserved: []string{"10.4.7.0-24", "10.5.9.0-24"}, leases: []string{"10.4.7.0-24"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := map[*registry.Kind][]registry.Object{ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(goodConfig), false)}}
			for who, names := range map[string][]string{"node1": test.reserved, "node2": test.others} {
				for _, name := range names {
					objects[ReservationKind] = append(objects[ReservationKind], decode(t, ReservationKind, name, fmt.Appendf(nil, `{"node":%q,"publicIP":"172.30.0.1"}`, who), false))
				}
			}
			for _, name := range test.leases {
				objects[LeaseKind] = append(objects[LeaseKind], decode(t, LeaseKind, name, []byte(`{"PublicIP":"172.30.0.9"}`), false))
			}
			snapshot := registry.NewSnapshot(objects)
			for range 50 {
				leases, _ := Plugin{}.withDefaults().readLeases(snapshot)
				reserved, _ := readReservations(snapshot, ReservationKind)
				v := view{settings: settings, node: plugin.Node{Name: "node1", Addresses: addresses}, owner: owner{name: "node1", addresses: addresses}, leases: leases, reserved: reserved}
				s, err := v.decide()
				switch {
				case test.takes == "" && (err == nil || !strings.HasPrefix(err.Error(), "subnet "+test.cannot+" is reserved for node node1, but")):
					t.Fatalf("it takes %s, or says %v", s.subnet, err)
				case test.takes != "" && (err != nil || s.subnet.String() != test.takes):
					t.Fatalf("it takes %s, and not %s: %v", s.subnet, test.takes, err)
				}
				r, l, err := Plugin{}.Reserve(snapshot, "node1", addresses)
				if err != nil || r.Name != test.again || (l == nil) != slices.Contains(test.leases, r.Name) {
					t.Fatalf("again %v is reserved, with lease %v, and not %s: %v", r, l, test.again, err)
				}
			}
		})
	}
}

// What is reserved for a node spares the nodes' own network, by what their Nodes say, and
// the node takes it, be it that something else was reserved for it before. A lease that it
// has stays, as pods may live on it. The network that another says it is on is spared where
// there is room beside it, and takes nothing away from what is reserved already: else one
// node's agent could leave the others none.
func TestReservedOutsideTheNodesOwnNetwork(t *testing.T) {
	node := func(name, address, onLink string) registry.Object {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.OnLinkAnnotation: onLink}}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		return n
	}
	const nodesOnLink = "172.30.0.0/22"
	addresses := []netip.Addr{netip.MustParseAddr("172.30.1.5")}
	for name, test := range map[string]struct {
		reserved, lease string
		onLink          string
		others          string
		want            string
	}{
		"none before":                          {onLink: nodesOnLink, want: "172.30.5.0-24"},
		"the network is not known yet":         {want: "172.30.2.0-24"},
		"one of it before":                     {reserved: "172.30.1.0-24", onLink: nodesOnLink, want: "172.30.5.0-24"},
		"one with another node's address":      {reserved: "172.30.4.0-24", onLink: nodesOnLink, want: "172.30.5.0-24"},
		"one of it before, and it has a lease": {reserved: "172.30.1.0-24", lease: "172.30.1.0-24", onLink: nodesOnLink, want: "172.30.1.0-24"},
		"another is on the next":               {onLink: nodesOnLink, others: "172.30.4.0/22", want: "172.30.8.0-24"},
		"another is on one that has its own":   {onLink: nodesOnLink, others: "172.30.0.0/20", want: "172.30.16.0-24"},
		"another says that it is everywhere":   {onLink: nodesOnLink, others: "0.0.0.0/0", want: "172.30.5.0-24"},
		"one of another's network before":      {reserved: "172.30.6.0-24", onLink: nodesOnLink, others: "172.30.4.0/22", want: "172.30.6.0-24"},
		"it has a lease of another's network":  {lease: "172.30.6.0-24", onLink: nodesOnLink, others: "172.30.4.0/22", want: "172.30.6.0-24"},
		"it has a lease":                       {lease: "172.30.1.0-24", onLink: nodesOnLink, want: "172.30.1.0-24"},
		"one of it, and the lease of another":  {reserved: "172.30.1.0-24", lease: "172.30.7.0-24", onLink: nodesOnLink, want: "172.30.7.0-24"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := map[*registry.Kind][]registry.Object{
				ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(`{"Network":"172.30.0.0/16","Backend":{"Type":"vxlan"}}`), false)},
				api.Node:   {node("node1", "172.30.1.5", test.onLink), node("node2", "172.30.4.5", test.others)},
			}
			if test.reserved != "" {
				objects[ReservationKind] = append(objects[ReservationKind], decode(t, ReservationKind, test.reserved, []byte(`{"node":"node1","publicIP":"172.30.1.5"}`), false))
			}
			if test.lease != "" {
				objects[LeaseKind] = append(objects[LeaseKind], decode(t, LeaseKind, test.lease, []byte(`{"PublicIP":"172.30.1.5"}`), false))
			}
			r, l, err := Plugin{}.Reserve(registry.NewSnapshot(objects), "node1", addresses)
			if err != nil || r.Name != test.want {
				t.Fatalf("reserved is %v, and not %s: %v", r, test.want, err)
			}
			if r.Name != test.reserved {
				objects[ReservationKind] = append(objects[ReservationKind], r)
			}
			// The node takes it, with the lease that is made for it and without.
			for _, made := range []bool{false, true} {
				if made && l != nil {
					objects[LeaseKind] = append(objects[LeaseKind], l)
				}
				snapshot := registry.NewSnapshot(objects)
				leases, _ := Plugin{}.withDefaults().readLeases(snapshot)
				reserved, _ := readReservations(snapshot, ReservationKind)
				settings, err := readSettings(snapshot, ConfigKind)
				if err != nil {
					t.Fatal(err)
				}
				self := plugin.Node{Name: "node1", Addresses: addresses, Prefixes: api.OnLink(objects[api.Node][0].(*corev1.Node))}
				s, err := view{settings: settings, node: self, owner: ownerOf(self, snapshot), leases: leases, reserved: reserved}.decide()
				if err != nil || s.subnet.String() != test.want {
					t.Errorf("with its lease made (%t), the node takes %s, and not %s: %v", made, s.subnet, test.want, err)
				}
			}
		})
	}
}
