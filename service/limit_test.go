package service_test

import (
	"fmt"
	"net/netip"
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
