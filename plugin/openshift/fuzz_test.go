package openshift

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// FuzzObjects holds that no text in the objects leads to an invalid plan.
func FuzzObjects(f *testing.F) {
	f.Add("10.1.0.0/16", uint32(8), "172.30.0.0/16", "192.168.7.2", "10.1.1.0/24", "fd01::/64", "fd00::2")
	f.Add("fd01::/48", uint32(64), "", "fd00::2", "fd01:0:0:1::/64", "10.1.1.0/24,10.1.2.0/24", "192.168.7.2, 192.168.7.3")
	f.Add("0.0.0.0/0", uint32(32), "0.0.0.0/0", "255.255.255.255", "0.0.0.0/0", "::/0", "::ffff:10.0.0.1,fe80::1%eth0")
	f.Add("10.1.0.0/33", uint32(1<<31), "x", "", "10.1.1.1/24", ",", "192.168.7.1")
	f.Fuzz(func(t *testing.T, cidr string, bits uint32, service, hostIP, subnet, moreSubnets, moreAddresses string) {
		host := func(name string) *networkv1.HostSubnet {
			return &networkv1.HostSubnet{Host: name, HostIP: hostIP, Subnet: subnet, ObjectMeta: metav1.ObjectMeta{Name: name,
				Annotations: map[string]string{NodeUID: "uid", api.AdditionalSubnets: moreSubnets, api.AdditionalHostIPs: moreAddresses}}}
		}
		objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{
			api.ClusterNetwork: {&networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, ServiceNetwork: service,
				ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: bits}}}},
			api.HostSubnet: {host("node1"), host("node2")},
		})
		for _, name := range []string{"node1", "node2", "node3"} {
			p, _ := compile(objects, plugin.Node{Name: name, MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("192.168.7.1")}}, nil)
			if err := p.Validate(); err != nil {
				t.Errorf("%v\n%s", err, p)
			}
		}
		reconcile(objects, plugin.Elsewhere{}, time.Unix(0, 0), time.Minute)
	})
}
