package service_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// A Service that makes more than one may make is said to, and others are served as ever.
func TestLimits(t *testing.T) {
	of := func(name string, ports, endpoints, externals int) []registry.Object {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		svc.Spec.ClusterIP = map[string]string{"small": "10.96.0.1", "large": "10.96.0.2"}[name]
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
		for i := range ports {
			port, called, protocol := int32(1000+i), fmt.Sprint("p", i), corev1.ProtocolTCP
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: called, Port: port})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &called, Port: &port, Protocol: &protocol})
		}
		for i := range endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}})
		}
		for i := range externals {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("192.0.2.%d", i+1))
		}
		return []registry.Object{svc, slice}
	}
	for _, c := range []struct {
		ports, endpoints, externals int
		backends, frontends         int // of the large one
		says                        string
	}{
		{2, 1000, 1, 2000, 5, ""},
		{100, 201, 0, 0, 101, "its endpoints are 20100 backends for all of its ports together, more than 20000, and none gets connections"},
		{100, 201, 60, 0, 1, "its ports at all of its addresses are 6100, more than 5000, and none is served"},
	} {
		objects := map[*registry.Kind][]registry.Object{}
		for _, pair := range [][]registry.Object{of("small", 1, 2, 0), of("large", c.ports, c.endpoints, c.externals)} {
			objects[api.Service], objects[api.EndpointSlice] = append(objects[api.Service], pair[0]), append(objects[api.EndpointSlice], pair[1])
		}
		var compiler service.Compiler
		tables := compiler.Compile(registry.NewSnapshot(objects), plan.Local{Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2")}})
		frontends := 0
		for k, s := range tables.Services.All() {
			if s.Origin == "Service shop/large" && k.From == plan.Anywhere {
				frontends++
			}
		}
		if backends := tables.Backends.Len() - 2; backends != c.backends || frontends != c.frontends {
			t.Errorf("%d ports, %d endpoints, %d external IPs: %d backends and %d frontends", c.ports, c.endpoints, c.externals, backends, frontends)
		}
		said := ""
		for _, p := range compiler.Problems() {
			said += p.Message
		}
		if !strings.HasPrefix(said, c.says) || c.says == "" && said != "" {
			t.Errorf("%d ports, %d endpoints, %d external IPs: it is said: %q", c.ports, c.endpoints, c.externals, said)
		}
	}
}

// A node loads an endpoint of another node once for each port, whatever policies the Service has and wherever it is
// reached, so that it makes no more than is counted.
func TestEndpointsAreLoadedOnce(t *testing.T) {
	for i := range 1 << 5 {
		is := func(bit int) bool { return i&(1<<bit) != 0 }
		protocol := corev1.ProtocolTCP
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
		if is(0) {
			protocol = corev1.ProtocolUDP
			svc.Spec.Ports[0].Protocol = protocol
		}
		if is(1) {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		if is(2) {
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if is(3) {
			svc.Spec.ExternalIPs = []string{"192.0.2.1"}
		}
		if is(4) {
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080)), Protocol: &protocol}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.2"}, NodeName: new("node1")}, {Addresses: []string{"10.1.2.2"}, NodeName: new("node2")}}}
		w := world{}
		w.put(api.Service, svc)
		w.put(api.EndpointSlice, slice)
		times := map[string]int{}
		var c service.Compiler
		for _, b := range c.Compile(w.snapshot(), node).Backends.All() {
			times[b.Node]++
		}
		if times["node1"] == 0 || times["node2"] > 1 {
			t.Errorf("%s, internally Local %t, externally Local %t, external address %t, node port %t: the endpoints of each node are loaded so many times: %v",
				protocol, is(1), is(2), is(3), is(4), times)
		}
	}
}

// Whether the ports of nodes are too many is the same on all nodes, and for who tells it and is none, or
// has the addresses of several.
func TestNodePortsAreCountedAlike(t *testing.T) {
	at := netip.MustParseAddr
	for _, c := range []struct {
		clusterIPs []string
		ports      int
		served     bool
	}{
		{[]string{"10.96.0.1"}, 2400, true},
		{[]string{"10.96.0.1"}, 2600, false},
		{[]string{"10.96.0.1", "fd96::1"}, 1200, true},
		{[]string{"10.96.0.1", "fd96::1"}, 1300, false},
	} {
		w := world{}
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIPs: c.clusterIPs}}
		for i := range c.ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i), NodePort: int32(30000 + i)})
		}
		w.put(api.Service, svc)
		for _, addresses := range [][]netip.Addr{nil, {at("172.30.0.2")}, {at("fd01::2")}, {at("172.30.0.2"), at("fd01::2")}, {at("172.30.0.2"), at("172.30.0.3"), at("172.30.0.4")}} {
			var compiler service.Compiler
			tables := compiler.Compile(w.snapshot(), plan.Local{Node: "node1", Addresses: addresses})
			if served := tables.Services.Len() > len(c.clusterIPs); served != c.served || len(compiler.Problems()) == 0 != c.served {
				t.Errorf("%d ports at %v and of a node with %v: served is %t, and it is said %v", c.ports, c.clusterIPs, addresses, served, compiler.Problems())
			}
		}
	}
}

// Services of a namespace that make more together than they may are said to, the younger ones, and
// others are served as ever; what comes to fit again is served.
func TestLimitsOfANamespace(t *testing.T) {
	w := world{}
	put := func(namespace, name string, age, ports, endpoints, externals int) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(int64(1000-age), 0)}}
		svc.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", len(namespace), age)
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
		for i := range ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i)})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(1000 + i))})
		}
		for i := range endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}})
		}
		for i := range externals {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprintf("192.0.2.%d", i+1))
		}
		w.put(api.Service, svc)
		w.put(api.EndpointSlice, slice)
	}
	defer service.SetBudget(100, 50)()
	var c service.Compiler
	expect := func(what, served, has, said string) {
		t.Helper()
		tables := c.Compile(w.snapshot(), node)
		frontends, backends := map[string]bool{}, map[string]bool{}
		for k, s := range tables.Services.All() {
			if k.Protocol != plan.AnyProtocol {
				frontends[strings.TrimPrefix(s.Origin, "Service ")] = true
			}
		}
		for k := range tables.Backends.All() {
			set, _, _ := strings.Cut(k.Set, ":")
			backends[set] = true
		}
		if got := strings.Join(slices.Sorted(maps.Keys(frontends)), " "); got != served {
			t.Errorf("%s: served are %s, and not %s", what, got, served)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(backends)), " "); got != has {
			t.Errorf("%s: backends have %s, and not %s", what, got, has)
		}
		var all []string
		for _, p := range c.Problems() {
			if !strings.Contains(p.Message, " is Service ") {
				all = append(all, p.Key.Name+": "+p.Message)
			}
		}
		if got := strings.Join(all, "\n"); got != said {
			t.Errorf("%s: it is said\n%s\nand not\n%s", what, got, said)
		}
	}
	const (
		noBackends  = ": its endpoints for all of its ports and those of older Services are more than 50 in namespace shop, and none of its gets connections: remove Services or endpoints there, or put it into another namespace"
		noFrontends = ": its ports at all of its addresses and those of older Services are more than 100 in namespace shop, and none of its is served: remove Services or externalIPs there, or put it into another namespace"
	)
	put("shop", "a", 9, 2, 20, 0)
	put("shop", "b", 8, 2, 10, 0)
	put("shop", "c", 7, 1, 10, 0)
	put("others", "d", 6, 2, 20, 0)
	expect("too many backends", "others/d shop/a shop/b shop/c", "others/d shop/a shop/c", "b"+noBackends)
	put("shop", "e", 5, 10, 0, 9)
	expect("too many frontends", "others/d shop/a shop/b shop/c", "others/d shop/a shop/c", "b"+noBackends+"\ne"+noFrontends)
	put("shop", "a", 9, 1, 20, 0)
	expect("the oldest has less", "others/d shop/a shop/b shop/c", "others/d shop/a shop/b shop/c", "e"+noFrontends)
	delete(w[api.Service], registry.Key{Namespace: "shop", Name: "b"})
	delete(w[api.Service], registry.Key{Namespace: "shop", Name: "c"})
	expect("there is room again", "others/d shop/a", "others/d shop/a", "e"+noFrontends)
	put("shop", "e", 5, 9, 0, 9)
	expect("it needs less", "others/d shop/a shop/e", "others/d shop/a", "")
}

// Services that let in more ranges of addresses than one may, or those of its namespace, are said to, the younger ones, and let nobody
// in at load balancers' addresses. Who has no address to which only some may come lets in as many as it likes, and none is in the tables.
func TestRangesAreLimited(t *testing.T) {
	defer service.SetRanges(10)()
	w := world{}
	put := func(name string, age, ranges int, balanced ...string) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.Unix(int64(1000-age), 0)}}
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprintf("10.96.0.%d", age), Ports: []corev1.ServicePort{{Port: 80}}}
		for i := range ranges {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.%d.%d.0/24", i/250, i%250))
		}
		for _, a := range balanced {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		w.put(api.Service, svc)
	}
	var c service.Compiler
	expect := func(what string, admitted map[string]int, said string) {
		t.Helper()
		tables := c.Compile(w.snapshot(), node)
		has := map[string]int{}
		for k := range tables.Sources.All() {
			has[strings.TrimPrefix(k.Name, "shop/")]++
		}
		if !maps.Equal(has, admitted) {
			t.Errorf("%s: so many ranges may come: %v; expected %v", what, has, admitted)
		}
		for k, s := range tables.Services.All() {
			if guarded := k.Address.Is4() && k.Address.As4()[0] == 203; guarded != (s.Sources != "") {
				t.Errorf("%s: at %v there is %v", what, k, s)
			}
		}
		var all []string
		for _, p := range c.Problems() {
			all = append(all, p.Key.Name+": "+p.Message)
		}
		if got := strings.Join(all, "\n"); got != said {
			t.Errorf("%s: it is said\n%s\nand not\n%s", what, got, said)
		}
	}
	const tooMany = ": spec.loadBalancerSourceRanges: with those of older Services they are more than 10 in namespace shop, and nobody is let in at the addresses of its load balancers: " +
		"name fewer and larger ranges there, or put it into another namespace"
	put("a", 9, 5, "203.0.113.9")
	put("b", 8, 3, "203.0.113.8")
	put("c", 7, 3, "203.0.113.7")
	put("d", 6, 2000)
	put("e", 5, 2000, "2001:db8::5") // the Service is of IPv4
	expect("at first", map[string]int{"a": 5, "b": 3}, "c"+tooMany)
	put("a", 9, 1, "203.0.113.9")
	expect("the oldest has fewer", map[string]int{"a": 1, "b": 3, "c": 3}, "")
	put("b", 8, 9, "203.0.113.8")
	expect("the next has more", map[string]int{"a": 1, "c": 3}, "b"+tooMany)
	defer service.SetRanges(service.MaxRangesOfNamespace)()
	put("b", 8, service.MaxRanges-1, "203.0.113.8")
	expect("one has as many as it may", map[string]int{"a": 1, "b": service.MaxRanges - 1, "c": 3}, "")
	put("b", 8, service.MaxRanges-1, "203.0.113.8", "203.0.113.18")
	expect("it has one more address", map[string]int{"a": 1, "c": 3},
		"b: spec.loadBalancerSourceRanges: with one for each address of its load balancers they are 5001, more than 5000, and nobody is let in at these addresses: name fewer and larger ranges")
	put("b", 8, 1, "203.0.113.8")
	expect("it has fewer", map[string]int{"a": 1, "b": 1, "c": 3}, "")
}
