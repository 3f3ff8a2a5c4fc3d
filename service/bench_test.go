package service_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// many are Services with a port and two endpoints each, as a registry has them.
func many(n int) registry.Snapshot {
	objects := make(map[*registry.Kind][]registry.Object)
	for i := range n {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("web", i)}}
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.IPFamilies = corev1.ServiceTypeClusterIP, fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255), []corev1.IPFamily{corev1.IPv4Protocol}
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}
		objects[api.Service] = append(objects[api.Service], s)
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}}}
		slice.AddressType = discoveryv1.AddressTypeIPv4
		slice.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}
		for j := range 2 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 1+j, i>>8&255, i&255)},
				NodeName: new(fmt.Sprint("node", j+1)), Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}})
		}
		objects[api.EndpointSlice] = append(objects[api.EndpointSlice], slice)
	}
	return registry.NewSnapshot(objects)
}

// BenchmarkFirst compiles all Services for the first time, as an agent does when it starts.
func BenchmarkFirst(b *testing.B) {
	objects := many(10_000)
	b.ReportAllocs()
	for b.Loop() {
		new(service.Compiler).Compile(objects, node)
	}
}

// BenchmarkEndpoint gives one Service another endpoint, and takes it away again.
func BenchmarkEndpoint(b *testing.B) {
	objects := many(10_000)
	var c service.Compiler
	c.Compile(objects, node)
	key := registry.Key{Namespace: "ns7", Name: "web7-abcde"}
	two := objects.Get(api.EndpointSlice, key).(*discoveryv1.EndpointSlice)
	one := two.DeepCopy()
	one.Endpoints = one.Endpoints[:1]
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		objects.Put(api.EndpointSlice, []registry.Object{one, two}[i%2])
		c.Compile(objects, node)
	}
}

// BenchmarkPortsAndSlices changes one of very many slices of a Service that has very many ports, none of which
// the slices call so.
func BenchmarkPortsAndSlices(b *testing.B) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
	for i := range service.MaxFrontends {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1 + i)})
	}
	sliceOf := func(i int, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("other"), Port: new(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
	}
	all := map[*registry.Kind][]registry.Object{api.Service: {s}}
	for i := range 5000 {
		all[api.EndpointSlice] = append(all[api.EndpointSlice], sliceOf(i, "10.1.1.2"))
	}
	objects := registry.NewSnapshot(all)
	var c service.Compiler
	c.Compile(objects, node)
	one, other := sliceOf(7, "10.1.1.3"), sliceOf(7, "10.1.1.4")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		objects.Put(api.EndpointSlice, []registry.Object{one, other}[i%2])
		c.Compile(objects, node)
	}
}
