package compile_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/dns/compile"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/registry"
)

// Whatever changes, and in whatever order, what is compiled step by step is what is compiled
// at once; what did not change is the same pointer, and Since leads from any snapshot to any
// later one.
func TestStepByStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		defer compile.SetBudget(rapid.SampledFrom([]int{compile.MaxEndpointsOfNamespace, 3}).Draw(t, "budget"))()
		w := world{api.Service: {}, api.EndpointSlice: {}, api.Namespace: {}}
		var c compile.Compiler
		var all []*compile.Snapshot
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				w.change(t)
			}
			now := c.Compile(w.snapshot())
			if err := check(&c, w); err != nil {
				t.Fatal(err)
			}
			for _, before := range append([]*compile.Snapshot{nil}, all...) {
				since(t, before, now)
			}
			all = append(all, now)
		}
	})
}

func since(t *rapid.T, before, now *compile.Snapshot) {
	have := make(map[records.Key]*records.Service)
	if before != nil {
		for _, s := range before.Services {
			have[s.Key] = s
		}
	}
	changed, gone := now.Since(before)
	for _, s := range changed {
		if have[s.Key] == s {
			t.Fatalf("%s did not change", s.Key)
		}
		have[s.Key] = s
	}
	for _, k := range gone {
		if have[k] == nil {
			t.Fatalf("%s was not there", k)
		}
		delete(have, k)
	}
	if len(have) != len(now.Services) {
		t.Fatalf("it leads to %v, which is not\n%s", have, texts(now))
	}
	for _, s := range now.Services {
		if have[s.Key] != s {
			t.Fatalf("it leads to another %s than\n%s", s.Key, texts(now))
		}
	}
}

// TestUnchangedIsTheSame changes one Service's endpoints, and no other record.
func TestUnchangedIsTheSame(t *testing.T) {
	w := world{}
	for i := range 10 {
		w.put(api.Service, serviceOf(fmt.Sprint("s", i), "10.96.0.1"))
		w.put(api.EndpointSlice, sliceOf(fmt.Sprint("s", i), 0, 3))
	}
	var c compile.Compiler
	before := c.Compile(w.snapshot())
	same := sliceOf("s4", 0, 3)
	same.ResourceVersion = "2"
	w.put(api.EndpointSlice, same)
	if now := c.Compile(w.snapshot()); now != before {
		t.Error("an object that means the same makes another snapshot")
	}
	w.put(api.EndpointSlice, sliceOf("s4", 0, 4))
	now := c.Compile(w.snapshot())
	changed, gone := now.Since(before)
	if len(changed) != 1 || changed[0].Name != "s4" || len(changed[0].Endpoints) != 4 || len(gone) > 0 {
		t.Errorf("an endpoint of s4 changes %v, and %v go", changed, gone)
	}
}

// change makes, changes or removes an object.
func (w world) change(t *rapid.T) {
	namespace := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	key := registry.Key{Namespace: namespace, Name: name}
	switch rapid.IntRange(0, 5).Draw(t, "what") {
	case 0:
		delete(w[api.Service], key)
	case 1:
		delete(w[api.EndpointSlice], key)
	case 2:
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if rapid.Bool().Draw(t, "namespace goes") {
			delete(w[api.Namespace], registry.KeyOf(n))
			return
		}
		w.put(api.Namespace, n)
	case 3:
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		s.CreationTimestamp = metav1.Unix(rapid.Int64Range(1, 2).Draw(t, "created"), 0)
		s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName}).Draw(t, "type")
		s.Spec.ExternalName = rapid.SampledFrom([]string{"", "db.example.com", "192.0.2.1"}).Draw(t, "external name")
		s.Spec.ClusterIPs = rapid.SliceOfN(rapid.SampledFrom([]string{"10.96.0.1", "10.96.0.2", "fd96::1", "127.0.0.1", "None", ""}), 0, 3).Draw(t, "cluster IPs")
		for _, p := range rapid.SliceOfN(rapid.SampledFrom([]string{"", "http", "-", "HTTP"}), 0, 3).Draw(t, "ports") {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p, Port: 80, Protocol: rapid.SampledFrom([]corev1.Protocol{"", "UDP", "X"}).Draw(t, "protocol")})
		}
		w.put(api.Service, s)
	default:
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "of")}
		s.AddressType = rapid.SampledFrom([]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeFQDN}).Draw(t, "type")
		for _, p := range rapid.SliceOfN(rapid.SampledFrom([]string{"", "http", "x"}), 0, 3).Draw(t, "ports") {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p, Port: new(int32(rapid.IntRange(0, 3).Draw(t, "port")))})
		}
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses:  rapid.SliceOfN(rapid.SampledFrom([]string{"10.1.0.1", "10.1.0.2", "::ffff:10.1.0.1", "fd00::1", "fe80::1", "x"}), 0, 2).Draw(t, "addresses"),
				Hostname:   rapid.SampledFrom([]*string{nil, new(""), new("web-0"), new("A")}).Draw(t, "hostname"),
				Conditions: discoveryv1.EndpointConditions{Ready: rapid.SampledFrom([]*bool{nil, new(true), new(false)}).Draw(t, "ready")},
			})
		}
		w.put(api.EndpointSlice, s)
	}
}

func serviceOf(name, clusterIP string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// sliceOf is one of a Service, with the endpoints from one number up to another.
func sliceOf(of string, from, to int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(of, "-", from), Labels: map[string]string{discoveryv1.LabelServiceName: of}}}
	s.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}}
	for i := from; i < to; i++ {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 1+i/62500, i/250%250, i%250+1)}})
	}
	return s
}
