package plugin

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// TestInside asks whose addresses are in a cluster.
func TestInside(t *testing.T) {
	p := &plan.Plan{Local: plan.Local{Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")},
		Pools: []plan.Pool{{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.1.0/24")}}}}
	route := func(prefix string, r plan.Route) {
		p.Routes = p.Routes.Set(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(prefix)}, r)
	}
	route("0.0.0.0/0", plan.Route{Way: plan.ToGateway})
	route("10.1.2.0/24", plan.Route{Way: plan.ToTunnel, Peers: []string{"node2"}})
	route("10.1.3.0/24", plan.Route{Way: plan.ToNextHop, Peers: []string{"node3"}})
	route("10.96.0.0/16", plan.Route{Way: plan.ToDrop})
	for address, want := range map[string]string{
		"172.30.0.11": "an address of node1", "10.1.1.9": "in the cluster's own network 10.1.1.0/24", "10.1.2.9": "in the cluster's own network 10.1.2.0/24", "10.1.3.9": "in the cluster's own network 10.1.3.0/24",
		"10.96.0.1": "in the cluster's own network 10.96.0.0/16", "192.0.2.7": "", "2001:db8::7": "",
	} {
		if got := Inside(p, netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is %q, want %q", address, got, want)
		}
	}
}

// TestFree: a name server begins to answer at no address that is another's in the cluster, and it is
// told whose it is.
func TestFree(t *testing.T) {
	p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
peer node2 addresses 172.30.0.3
route default 0.0.0.0/0 gateway
route default 10.1.2.0/24 nexthop node2
route default 10.96.0.0/16 drop
service default 10.96.0.10 any # Service kube-system/kube-dns
service default 10.97.0.7 any # Service shop/web
service default 198.51.100.7 udp 53 to shop/web # Service shop/web
`)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "172.30.0.3"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.3"}, {Type: corev1.NodeInternalIP, Address: "169.254.20.10"}}}}
	node.Name = "node2"
	objects := registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Node: {node}})
	for address, whose := range map[string]string{
		"169.254.20.10": "", "192.0.2.53": "", "172.30.0.2": "", "10.96.0.10": "", "fd00::53": "",
		"198.51.100.7": "", // the Service has the port there, which PutNames leaves it
		"10.1.1.2":     "in the cluster's own network 10.1.1.0/24", "10.1.2.2": "in the cluster's own network 10.1.2.0/24",
		"10.96.0.11": "in the cluster's own network 10.96.0.0/16", "10.97.0.7": "an address of Service shop/web",
		"172.30.0.3": "an address of Node node2", "203.0.113.3": "an address of Node node2",
	} {
		a := netip.MustParseAddr(address)
		s := NameServer{Service: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, More: []netip.Addr{a}, Origin: "Service kube-system/kube-dns", MoreOrigin: "ClusterConfig default"}
		free, taken, problems := s.Free(p, objects, nil)
		if got := slices.Contains(free.More, a); got != (whose == "") || slices.Contains(taken, a) == got || len(problems) != len(taken) || len(free.Service) != 1 {
			t.Errorf("%s: free are %v, taken %v, and %v is told", address, free.More, taken, problems)
		}
		for _, one := range problems {
			if !strings.Contains(one.Message, address+" is "+whose+", and no name server answers there") {
				t.Errorf("%s: it is told %q", address, one.Message)
			}
		}
		// No Node's word ends a name server that is there.
		stays := whose == "" || strings.Contains(whose, "Node")
		free, taken, problems = s.Free(p, objects, []netip.Addr{a})
		if slices.Contains(free.More, a) != stays || slices.Contains(taken, a) == stays || len(problems) == 0 != (whose == "") {
			t.Errorf("%s, where the name server is already: free are %v, taken %v, and %v is told", address, free.More, taken, problems)
		}
		for _, one := range problems {
			if stays && !strings.Contains(one.Message, address+" is "+whose+", and the name server that is there already stays") {
				t.Errorf("%s, where the name server is already: it is told %q", address, one.Message)
			}
		}
	}
}
