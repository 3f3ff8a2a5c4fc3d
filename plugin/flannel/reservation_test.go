package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Of several subnets that are reserved for a node, it takes the first that it can have, and
// a reservation that is made again is the one that the node goes by, whoever asks.
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
		takes    string // "" where it says why it takes none
		again    string // what is reserved again
	}{
		"the first of two":                 {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"by the names of their leases":     {reserved: []string{"10.5.9.0-24", "10.5.10.0-24"}, takes: "10.5.10.0-24", again: "10.5.10.0-24"},
		"one is of a network of before":    {reserved: []string{"10.4.7.0-24", "10.5.7.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"one is the first of the network":  {reserved: []string{"10.5.0.0-24", "10.5.7.0-24"}, takes: "10.5.7.0-24", again: "10.5.7.0-24"},
		"it is the only one":               {reserved: []string{"10.5.0.0-24"}, takes: "10.5.0.0-24", again: "10.5.0.0-24"},
		"another has a part of one":        {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, leases: []string{"10.5.7.0-25"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
		"one is reserved for another, too": {reserved: []string{"10.5.7.0-24", "10.5.9.0-24"}, others: []string{"10.5.7.0-25"}, takes: "10.5.9.0-24", again: "10.5.9.0-24"},
		"none can be":                      {reserved: []string{"10.4.9.0-24", "10.4.7.0-24"}, again: "10.4.7.0-24"},
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
				case test.takes == "" && (err == nil || !strings.HasPrefix(err.Error(), "subnet "+test.again+" is reserved for node node1, but")):
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
