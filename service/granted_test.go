package service_test

import (
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestGranted has a Service say what it has where Grants decide: it is served where it has Grants
// alone, whatever it says.
func TestGranted(t *testing.T) {
	local := plan.Local{Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u1"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.1.1.7", ClusterIPs: []string{"10.1.1.7"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Port: 80, NodePort: 22, Protocol: corev1.ProtocolTCP}}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.2"}}}}
	step := &service.Compiler{Grants: true}
	for _, c := range []struct {
		what   string
		grants map[string]types.UID
		want   int
	}{
		{"none", nil, 0},
		{"an earlier one's of that name", map[string]types.UID{"10.1.1.7": "u0", "22-tcp": "u0"}, 0},
		{"the address", map[string]types.UID{"10.1.1.7": "u1"}, 2}, // and all of its other ports
		{"both", map[string]types.UID{"10.1.1.7": "u1", "22-tcp": "u1"}, 3},
		{"the port", map[string]types.UID{"22-tcp": "u1"}, 1},
	} {
		objects := registry.Snapshot{}
		objects.Put(api.Service, svc)
		objects.Put(api.EndpointSlice, slice)
		for name, uid := range c.grants {
			objects.Put(service.GrantKind, &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: service.GrantSpec{Namespace: "default", Name: "web", UID: uid}})
		}
		for how, compiler := range map[string]*service.Compiler{"step by step": step, "at once": {Grants: true}} {
			if got := compiler.Compile(objects, local).Services.Len(); got != c.want {
				t.Errorf("with Grants for %s, compiled %s, it has %d frontends, and not %d", c.what, how, got, c.want)
			}
		}
		if got := new(service.Compiler).Compile(objects, local).Services.Len(); got != 3 {
			t.Errorf("where nobody keeps Grants it has %d frontends", got)
		}
	}
}

// Where users choose clusterIPs themselves, none gets what another Service was given of an
// AddressPool, although an address of the cluster goes before one of a load balancer.
func TestChosenAddressOfAPool(t *testing.T) {
	local := plan.Local{Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}
	of := func(name string, address string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: address, ClusterIPs: []string{address}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
	}
	web, thief := of("web", "10.96.0.1"), of("thief", "192.0.2.1")
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	objects := registry.Snapshot{}
	objects.Put(api.Service, web)
	objects.Put(api.Service, thief)
	for address, svc := range map[string]*corev1.Service{"10.96.0.1": web, "192.0.2.1": thief} {
		objects.Put(service.GrantKind, &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: service.GrantSpec{Namespace: "default", Name: svc.Name, UID: svc.UID}})
	}
	step := &service.Compiler{Grants: true}
	at := plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("192.0.2.1"), Protocol: plan.TCP, Port: 80}
	for _, want := range []string{"Service default/thief", "Service default/web"} {
		for how, compiler := range map[string]*service.Compiler{"step by step": step, "at once": {Grants: true}} {
			has, _ := compiler.Compile(objects, local).Services.Get(at)
			if has.Origin != want || len(compiler.Problems()) == 0 {
				t.Errorf("compiled %s, %s has the address, and not %s: %v", how, has.Origin, want, compiler.Problems())
			}
		}
		objects = maps.Clone(objects)
		objects.Put(api.AddressGrantKind, &api.AddressGrant{ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.1"}, Spec: api.AddressGrantSpec{Namespace: "default", Name: "web", UID: "web", Pool: "public"}})
	}
}

// Where there are Grants the Service default/kubernetes is a tenant's: it has no more room than others, rests with its namespace, and
// waits for rules in data planes as they do.
func TestWhatIsCalledAsTheAPIServerWaitsWhereThereAreGrants(t *testing.T) {
	p := &paced{T: t, world: world{}, compiler: service.Compiler{Gradual: true, Grants: true}}
	p.step()
	const outside = "198.51.100.1"
	p.put("default", "kubernetes", 1, 100, 200)
	if _, backends := p.step(); backends > 1024 {
		t.Errorf("it came, and %d backends did at once", backends)
	}
	p.finish()
	p.put("default", "kubernetes", 1, 100, 200, outside)
	remember(p.svc("default", "kubernetes"), 777)
	p.put("default", "older", 2, 100, 1, outside)
	p.svc("default", "kubernetes").CreationTimestamp = metav1.Unix(1, 0)
	p.step()
	p.finish()
	p.put("default", "older", 2, 100, 1)
	p.compiler.Rest(map[string]bool{"default": true})
	p.step()
	for k, s := range p.plan.Services.All() {
		if s.Affinity > 0 {
			t.Fatalf("the namespace rests, and clients are remembered at %v, which none are elsewhere", k)
		}
	}
	p.finish()
}
