package service_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// What makes twice as many entries takes about twice as much memory to compile, and not
// four times as much.
func TestCompilingIsNoProduct(t *testing.T) {
	for name, of := range map[string]func(n int) world{
		"a Service with addresses and endpoints":                                                  func(n int) world { return large(25*n, 250*n, false) },
		"a Service with addresses and endpoints, where what comes from outside stays on the node": func(n int) world { return large(25*n, 250*n, true) },
		"Services that claim the same address":                                                    func(n int) world { return crowd(500*n, "192.0.2.1") },
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) float64 {
				objects := of(n).snapshot()
				return allocated(func() { new(service.Compiler).Compile(objects, node) })
			}
			// Tables of twice as many entries are a little deeper.
			if one, two := cost(4), cost(8); two > 2.8*one {
				t.Errorf("it takes %.0f bytes, and %.0f with twice as many of all", one, two)
			}
		})
	}
}

// An endpoint that comes to a Service changes none of its frontends: each costs what it
// takes to compile it, and no path in the table.
func TestAnEndpointChangesNoFrontend(t *testing.T) {
	cost := func(addresses int) float64 {
		w := large(addresses, 10, false)
		var c service.Compiler
		before := c.Compile(w.snapshot(), node)
		w.put(api.EndpointSlice, sliceOf("web-2", 10, 11))
		objects := w.snapshot()
		var after service.Tables
		bytes := allocated(func() { after = c.Compile(objects, node) })
		if before.Services != after.Services || before.Backends == after.Backends {
			t.Error("another endpoint changes other tables than Backends")
		}
		return bytes
	}
	if each := (cost(1010) - cost(10)) / 1000 / ports; each > 1500 {
		t.Errorf("each frontend costs %.0f bytes", each)
	}
}

// A Service that changes costs the same, however many others there are that do not.
func TestCompilingCostsWhatChanged(t *testing.T) {
	cost := func(others int) float64 {
		w := crowd(others)
		var c service.Compiler
		c.Compile(w.snapshot(), node)
		w.put(api.Service, serviceOf("web", "10.97.0.1"))
		objects := w.snapshot()
		return allocated(func() { c.Compile(objects, node) })
	}
	// Of each other a few pointers are looked at.
	if each := (cost(1010) - cost(10)) / 1000; each > 100 {
		t.Errorf("each Service that does not change costs %.0f bytes", each)
	}
}

// A Service that is written, and leaves the others of its namespace no room in their budget, or leaves them room, costs little for each of
// these while the namespace rests, or has no room to follow them at once: they are only remembered.
func TestOthersOfANamespaceWaitUncompiled(t *testing.T) {
	defer service.SetBudget(1_000_000, 4000)()
	cost := func(others int) (bytes float64) {
		w := crowd(others)
		for key := range w[api.Service] {
			w.put(api.EndpointSlice, sliceOfService(key.Name, 1))
			w[api.Service][key].(*corev1.Service).CreationTimestamp = metav1.Unix(2, 0)
		}
		owner := serviceOf("web", "10.97.0.1")
		owner.CreationTimestamp = metav1.Unix(1, 0)
		w.put(api.Service, owner)
		c := service.Compiler{Gradual: true}
		c.Compile(w.snapshot(), node)
		c.Rest(map[string]bool{"default": true})
		for _, endpoints := range []int{4000 / ports, 0, 4000 / ports, 0} {
			w.put(api.EndpointSlice, sliceOf("web-1", 0, endpoints))
			objects := w.snapshot()
			bytes = max(bytes, allocated(func() { c.Compile(objects, node) }))
		}
		return bytes
	}
	if each := (cost(910) - cost(10)) / 900; each > 2000 {
		t.Errorf("each other Service costs %.0f bytes", each)
	} else {
		t.Logf("each other Service costs %.0f bytes", each)
	}
}

// By whom an endpoint is to be used first is kept in order, whatever order it is written in: so each of very many ports finds the
// node among very many without a look at all of them.
func TestHintsAreFoundInOrder(t *testing.T) {
	slice := sliceOf("web-1", 0, 1)
	slice.Endpoints[0].Hints = &discoveryv1.EndpointHints{}
	for i := range 100 {
		slice.Endpoints[0].Hints.ForZones = append(slice.Endpoints[0].Hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprint("zone", 37*i%100)})
		slice.Endpoints[0].Hints.ForNodes = append(slice.Endpoints[0].Hints.ForNodes, discoveryv1.ForNode{Name: fmt.Sprint("node", 37*i%100)})
	}
	if zones, nodes := service.HintsOf(slice); len(zones) != 100 || len(nodes) != 100 || !slices.IsSorted(zones) || !slices.IsSorted(nodes) {
		t.Errorf("kept are the zones %v and the nodes %v", zones, nodes)
	}
}

// A claim that another Service has keeps little, as many Services may claim the same.
func TestWhatIsLostKeepsLittle(t *testing.T) {
	var outside []string
	for i := range 50 {
		outside = append(outside, fmt.Sprintf("192.0.2.%d", i+1))
	}
	kept := func(n int) float64 {
		objects := crowd(n, outside...).snapshot()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var c service.Compiler
		c.Compile(objects, node)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(c)
		runtime.KeepAlive(objects)
		return float64(after.HeapAlloc) - float64(before.HeapAlloc)
	}
	if each := (kept(220) - kept(20)) / 200 / 50 / ports; each > 200 {
		t.Errorf("each claim keeps %.0f bytes", each)
	} else {
		t.Logf("each claim keeps %.0f bytes", each)
	}
}

// What many Services claim that have it not takes no more to tell than that they have not got it, and
// how much it is.
func TestWhatIsLostIsToldInFew(t *testing.T) {
	told := func(addresses int) (bytes float64, problems []service.Problem) {
		var outside []string
		for i := range addresses {
			outside = append(outside, fmt.Sprintf("192.0.2.%d", i+1))
		}
		var c service.Compiler
		c.Compile(crowd(100, outside...).snapshot(), node)
		bytes = allocated(func() { problems = c.Problems() })
		return bytes, problems
	}
	few, _ := told(2)
	many, problems := told(100)
	if many > 1.5*few {
		t.Errorf("to tell it takes %.0f bytes, and %.0f with fifty times as many addresses", few, many)
	}
	if len(problems) != 99*3 {
		t.Fatalf("of 99 Services %d problems are told", len(problems))
	}
	for i, want := range []string{"192.0.2.1:80/TCP is Service default/other0's: choose another address or port", "192.0.2.1:81/TCP is Service default/other0's: choose another address or port",
		"398 more of its addresses and ports are others': choose other addresses or ports"} {
		if got := problems[i].Message; got != want {
			t.Errorf("it is said: %s", got)
		}
	}
}

// allocated returns how many bytes are.
func allocated(by func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// ports is how many a Service has.
const ports = 4

// large is a Service with addresses outside and endpoints.
func large(addresses, endpoints int, stay bool) world {
	s := serviceOf("web", "10.96.0.1")
	for i := range addresses {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", i/250, i%250+1))
	}
	if stay {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	w := world{}
	w.put(api.Service, s)
	w.put(api.EndpointSlice, sliceOf("web-1", 0, endpoints))
	return w
}

// crowd is Services that all have the same addresses outside.
func crowd(n int, outside ...string) world {
	w := world{}
	for i := range n {
		s := serviceOf(fmt.Sprint("other", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))
		s.Spec.ExternalIPs = outside
		w.put(api.Service, s)
	}
	return w
}

func (w world) put(k *registry.Kind, o registry.Object) {
	if w[k] == nil {
		w[k] = make(map[registry.Key]registry.Object)
	}
	w[k][registry.KeyOf(o)] = o
}

func serviceOf(name, clusterIP string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: clusterIP}}
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
	}
	return s
}

// sliceOfService is one of a Service, with some endpoints.
func sliceOfService(name string, endpoints int) *discoveryv1.EndpointSlice {
	s := sliceOf(name, 0, endpoints)
	s.Labels[discoveryv1.LabelServiceName] = name
	return s
}

// sliceOf is one of the Service web, with the endpoints from one number up to another.
func sliceOf(name string, from, to int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}}
	for i := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(8080 + i))})
	}
	for i := from; i < to; i++ {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.2.%d.%d", i/250, i%250+1)}})
	}
	return s
}
