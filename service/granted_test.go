package service_test

import (
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
