package openshift

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// A node that has a subnet by another plug-in gets the same, where it is one to be given,
// and no node gets one that another machine has.
func TestSubnetsOfOtherPlugins(t *testing.T) {
	w := newWorld(t)
	if _, err := w.registry.Create(t.Context(), api.ClusterNetwork, &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/20", HostSubnetLength: 8}},
	}); err != nil {
		t.Fatal(err)
	}
	elsewhere := plugin.Holdings{
		netip.MustParsePrefix("10.1.3.0/24"): "node1",
		netip.MustParsePrefix("10.1.0.0/24"): "172.30.0.99",
		netip.MustParsePrefix("10.1.2.0/25"): "node2", // of another length
		netip.MustParsePrefix("10.9.0.0/24"): "node3", // of another range
	}
	for i, name := range []string{"node1", "node2", "node3"} {
		w.node(name, fmt.Sprintf("172.30.0.%d", i+1))
	}
	c := w.cluster(w.registry)
	c.elsewhere = func(context.Context) (plugin.Holdings, error) { return elsewhere, nil }
	for range 20 {
		if d, err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(d.writes) == 0 {
			break
		}
	}
	for name, want := range map[string]string{"node1": "10.1.3.0/24", "node2": "10.1.1.0/24", "node3": "10.1.4.0/24"} {
		o, err := w.registry.Get(t.Context(), api.HostSubnet, registry.Key{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := o.(*networkv1.HostSubnet).Subnet; got != want {
			t.Errorf("%s has %s, and not %s", name, got, want)
		}
	}
}
