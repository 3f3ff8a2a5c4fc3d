package plugins_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// TestMixAfterAnother compiles for a node of a mix after whatever was compiled before, as
// nodes come, get subnets of each plug-in, and go: it comes to the same as anew.
func TestMixAfterAnother(t *testing.T) {
	find := plugins.Finder(func(k *registry.Kind) bool { return k.Layout == nil }) // flannel's form with podCIDRs
	rapid.Check(t, func(t *rapid.T) {
		mix := rapid.SampledFrom([][]string{
			{"openshift-subnet", "flannel"}, {"flannel", "openshift-subnet"}, {"openshift-subnet", "flannel-networkpolicy"}}).Draw(t, "mix")
		p, err := plugin.MixOf(mix[0], &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: mix[0], Plugins: mix}}, find)
		if err != nil {
			t.Fatal(err)
		}
		compiler := plugin.CompilerOf(p)
		var previous *plan.Plan
		for range rapid.IntRange(2, 5).Draw(t, "times") {
			in := plugin.Input{Config: api.Effective(nil), Objects: drawCluster(t), Node: plugin.Node{Name: "node1", MTU: 1500,
				Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}}}
			for i := range rapid.IntRange(0, 2).Draw(t, "pods") {
				a := netip.AddrFrom4([4]byte{10, byte(i + 1), 1, 2})
				in.Node.Endpoints = append(in.Node.Endpoints, plugin.Endpoint{Interface: fmt.Sprintf("weft%d", i), Network: plan.DefaultNetwork,
					Addresses: []netip.Addr{a}, MAC: plan.MACOf(a), Namespace: "default", Pod: fmt.Sprintf("pod%d", i)})
			}
			anew, wanted := p.Compile(in)
			in.Previous = previous
			made, problems := compiler.Compile(in)
			if !made.Equal(anew) {
				t.Fatalf("after another it is\n%s\nand anew\n%s", made, anew)
			}
			if !slices.Equal(problems, wanted) {
				t.Fatalf("after another it is said %v, and anew %v", problems, wanted)
			}
			previous = made
		}
	})
}

// drawCluster returns nodes that have subnets of some plug-ins.
func drawCluster(t *rapid.T) registry.Snapshot {
	objects := map[*registry.Kind][]registry.Object{api.ClusterNetwork: {&networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/16", HostSubnetLength: 8}}}}}
	for i := 1; i <= 4; i++ {
		if !rapid.Bool().Draw(t, "a node is there") {
			continue
		}
		address := netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i)}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}
		if rapid.Bool().Draw(t, "it has a podCIDR") {
			n.Spec.PodCIDRs = []string{rapid.SampledFrom([]string{"10.2.%d.0/24", "10.1.%d.0/24", "10.1.%d.128/25"}).Draw(t, "which")}
			n.Spec.PodCIDRs[0] = fmt.Sprintf(n.Spec.PodCIDRs[0], i)
			n.Annotations = map[string]string{"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/backend-type": "vxlan",
				"flannel.alpha.coreos.com/backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, plan.MACOf(address)), "flannel.alpha.coreos.com/public-ip": address.String()}
		}
		objects[api.Node] = append(objects[api.Node], n)
		if rapid.Bool().Draw(t, "it has a HostSubnet") {
			objects[api.HostSubnet] = append(objects[api.HostSubnet], &networkv1.HostSubnet{
				ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{networkv1.NodeUIDAnnotation: n.Name}},
				Host:       n.Name, HostIP: address.String(), Subnet: fmt.Sprintf("10.1.%d.0/24", i)})
		}
	}
	return registry.NewSnapshot(objects)
}

// TestAPodsAddressIsNoMachines has machines say, while two plug-ins are loaded, that they
// are at addresses which one of the two gives pods: by a HostSubnet that the controller
// made of a Node, and by a lease. Nothing leads to them there, and nothing is taken from
// there but what pods send.
func TestAPodsAddressIsNoMachines(t *testing.T) {
	const objects = `
apiVersion: network.openshift.io/v1
kind: ClusterNetwork
metadata: {name: default}
network: 10.1.0.0/16
hostsubnetlength: 8
clusterNetworks: [{CIDR: 10.1.0.0/16, hostSubnetLength: 8}]
serviceNetwork: ""
---
apiVersion: network.openshift.io/v1
kind: HostSubnet
metadata: {name: node1}
host: node1
hostIP: 172.30.0.11
subnet: 10.1.1.0/24
---
apiVersion: network.openshift.io/v1
kind: HostSubnet
metadata: {name: node3}
host: node3
hostIP: 10.5.64.2
subnet: 10.1.3.0/24
---
apiVersion: weft.network/v1
kind: FlannelConfig
metadata: {name: config}
spec: {Network: 10.5.0.0/16, SubnetLen: 24, Backend: {Type: vxlan}}
---
apiVersion: weft.network/v1
kind: FlannelLease
metadata: {name: 10.5.64.0-24}
spec: {PublicIP: 172.30.0.11, BackendType: vxlan, BackendData: {VNI: 1, VtepMAC: "0a:59:ac:1e:00:0b"}}
---
apiVersion: weft.network/v1
kind: FlannelLease
metadata: {name: 10.5.99.0-24}
spec: {PublicIP: 10.1.1.2, BackendType: vxlan, BackendData: {VNI: 1, VtepMAC: "0a:58:ac:1e:00:50"}}
`
	for _, mix := range [][]string{{"openshift-subnet", "flannel"}, {"flannel", "openshift-subnet"}} {
		t.Run(mix[0], func(t *testing.T) {
			p, err := plugin.MixOf(mix[0], &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: mix[0], Plugins: mix}}, plugins.Get)
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := api.Decode([]byte(objects), append(slices.Clone(api.Kinds), p.Kinds()...))
			if err != nil {
				t.Fatal(err)
			}
			there := map[*registry.Kind][]registry.Object{}
			for _, d := range decoded {
				there[d.Kind] = append(there[d.Kind], d.Object)
			}
			made, problems := p.Compile(plugin.Input{Config: api.Effective(nil), Objects: registry.NewSnapshot(there), Node: plugin.Node{Name: "node2", MTU: 1500,
				Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.12")}, Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}}})
			if err := made.Validate(); err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"10.5.64.2", "10.1.1.2"} {
				pod := netip.MustParseAddr(s)
				if r, ok := made.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(pod, 32)}); ok {
					t.Errorf("there is a route to %s by itself: %v", pod, r)
				}
				for k, peer := range made.Peers.All() {
					if slices.Contains(peer.Addresses, pod) || slices.ContainsFunc(peer.Ends, func(e plan.TunnelEnd) bool { return e.VTEP == pod }) {
						t.Errorf("peer %s is at %s", k.Name, pod)
					}
				}
				if !slices.ContainsFunc(problems, func(p plugin.Problem) bool {
					return p.Kind != nil && strings.Contains(p.Message, s) && strings.Contains(p.Message, "another plug-in")
				}) {
					t.Errorf("nothing is said of %s: %v", pod, problems)
				}
			}
			for _, s := range []string{"10.1.1.0/24", "10.5.64.0/24"} {
				if r, ok := made.Routes.Get(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(s)}); !ok || r.Way != plan.ToTunnel {
					t.Errorf("%s is not reached through a tunnel: %v", s, r)
				}
			}
		})
	}
}
