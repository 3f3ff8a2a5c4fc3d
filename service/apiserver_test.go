package service_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/service"
)

// serversSlice is an EndpointSlice of the API server's Service.
func serversSlice(name string, port int32, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(port), Protocol: new(corev1.ProtocolTCP)}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// Slices that others write beside the API server's own, however many, do not take from it what
// is kept, and one that has too much is said to.
func TestManyEndpointsKeepNothingFromTheAPIServer(t *testing.T) {
	var many []string
	for i := range service.MaxFrontends {
		many = append(many, fmt.Sprintf("192.0.%d.%d", 3+i/250, i%250+1))
	}
	w := world{}
	w.put(api.EndpointSlice, serversSlice("a", 80, many...))
	w.put(api.EndpointSlice, serversSlice("kubernetes", 6443, "192.0.2.1"))
	s := serviceOf("web", "10.96.0.1")
	s.Spec.Ports = []corev1.ServicePort{{Port: 6443}}
	s.Spec.ExternalIPs = []string{"192.0.2.1", "198.51.100.1"}
	w.put(api.Service, s)
	var c service.Compiler
	served := make(map[string]bool)
	for k := range c.Compile(w.snapshot(), node).Services.All() {
		served[fmt.Sprint(k.Address, " ", k.Protocol)] = true
	}
	if len(served) != 3 || served["192.0.2.1 tcp"] {
		t.Errorf("served are %v", served)
	}
	said := fmt.Sprint(c.Problems())
	if !strings.Contains(said, "with EndpointSlice default/a its endpoints are 5001 addresses and ports, more than 5000") || !strings.Contains(said, "192.0.2.1:6443/TCP is where the API server is") {
		t.Errorf("it is said: %s", said)
	}
}

// Where there are Grants there is no API server, and who writes EndpointSlices takes nothing
// from Services.
func TestGrantsCountWhereThereIsNoAPIServer(t *testing.T) {
	w := world{}
	s := serviceOf("web", "10.96.0.1")
	s.UID = "u"
	w.put(api.Service, s)
	w.put(service.GrantKind, &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.1"}, Spec: service.GrantSpec{Namespace: "default", Name: "web", UID: "u"}})
	w.put(api.EndpointSlice, serversSlice("kubernetes", 80, "10.96.0.1"))
	c := service.Compiler{Grants: true}
	if n, problems := c.Compile(w.snapshot(), node).Services.Len(), c.Problems(); n != ports+1 || len(problems) > 0 {
		t.Errorf("it has %d frontends, and of it is said: %v", n, problems)
	}
}
