package control

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
	"github.com/weftnet/weft/service"
)

// world is what a round is about.
type world registry.Snapshot

func newWorld() world {
	config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/16"}}}
	config.Name = api.DefaultName
	return world{api.ClusterConfigKind: {config}}
}

// put adds objects, and names them.
func (w world) put(k *registry.Kind, objects ...registry.Object) {
	for _, o := range objects {
		if o.GetName() == "" {
			o.SetName(fmt.Sprintf("%s-%05d", k.Singular, len(w[k])))
		}
		if k.Namespaced {
			o.SetNamespace("default")
		}
		o.SetUID(types.UID(o.GetName()))
		o.SetResourceVersion("1")
		w[k] = append(w[k], o)
	}
}

func (w world) snapshot() registry.Snapshot { return registry.NewSnapshot(registry.Snapshot(w)) }

// become carries out what is decided.
func (w world) become(d decision) {
	for _, g := range d.make {
		w.put(service.GrantKind, g)
	}
	for _, f := range d.fill {
		w.replace(api.Service, f.service)
	}
	for _, s := range d.create {
		w.put(api.EndpointSlice, s)
	}
	for _, s := range d.update {
		w.replace(api.EndpointSlice, s)
	}
	for _, s := range d.drop {
		w[api.EndpointSlice] = slices.DeleteFunc(w[api.EndpointSlice], func(o registry.Object) bool { return registry.KeyOf(o) == registry.KeyOf(s) })
	}
}

// replace puts an object in the place of the one with its name.
func (w world) replace(k *registry.Kind, now registry.Object) {
	for i, o := range w[k] {
		if registry.KeyOf(o) == registry.KeyOf(now) {
			w[k][i] = now
		}
	}
}

// broad is a Service with n ports of nodes.
func broad(n int) *corev1.Service {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"}}}
	for i := range n {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	return svc
}

// popular has n pods, each with its own number of the port "named".
func (w world) popular(n int) {
	for i := range n {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}}
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "named", ContainerPort: int32(i + 1)}}}}
		w.put(api.Pod, p)
	}
}

// A round about twice as much takes about twice as much memory, and not four times as much.
func TestARoundIsNoProduct(t *testing.T) {
	const n = 500
	for name, of := range map[string]func(n int) world{
		"ports that get ports of nodes": func(n int) world {
			w := newWorld()
			w.put(api.Service, broad(n))
			return w
		},
		"ports that have Grants of ports of nodes": func(n int) world {
			w := newWorld()
			w.put(api.Service, broad(n))
			w.become(decide(w.snapshot()))
			return w
		},
		"ports that have ports of nodes": func(n int) world {
			w := newWorld()
			w.put(api.Service, broad(n))
			w.become(decide(w.snapshot()))
			w.become(decide(w.snapshot()))
			return w
		},
		"ports and pods": func(n int) world {
			w := newWorld()
			w.put(api.Service, broad(n/8))
			w.popular(n / 8)
			return w
		},
		"ports and pods that have slices": func(n int) world {
			w := newWorld()
			w.put(api.Service, broad(n/8))
			w.popular(n / 8)
			w.become(decide(w.snapshot()))
			return w
		},
		"pods, each with a number of its own": func(n int) world {
			w, svc := newWorld(), broad(1)
			svc.Spec.Ports[0].TargetPort = intstr.FromString("named")
			w.put(api.Service, svc)
			w.popular(n)
			return w
		},
		"pods, each with a number of its own, that have slices": func(n int) world {
			w, svc := newWorld(), broad(1)
			svc.Spec.Ports[0].TargetPort = intstr.FromString("named")
			w.put(api.Service, svc)
			w.popular(n)
			w.become(decide(w.snapshot()))
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			cost := func(n int) float64 {
				objects := of(n).snapshot()
				return allocated(func() { decide(objects) })
			}
			if one, two := cost(n), cost(2*n); two > 2.8*one {
				t.Errorf("it takes %.0f bytes, and %.0f with twice as many of all", one, two)
			}
		})
	}
}

// Where no port of nodes is free, that is found once, and not for each that is to get one.
func TestThatNothingIsFreeIsFoundOnce(t *testing.T) {
	cost := func(n int) float64 {
		w := newWorld()
		full := broad(lastNodePort - firstNodePort + 1)
		for i := range full.Spec.Ports {
			full.Spec.Ports[i].NodePort = int32(firstNodePort + i)
		}
		w.put(api.Service, full)
		for range n {
			w.put(api.Service, broad(1))
		}
		objects := w.snapshot()
		return allocated(func() { decide(objects) })
	}
	if each := (cost(210) - cost(10)) / 200; each > 20_000 {
		t.Errorf("each Service that gets nothing costs %.0f bytes", each)
	}
}

// counting counts how often Services are read.
type counting struct {
	registry.Registry
	reads int
}

func (c *counting) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	if k == api.Service {
		c.reads++
	}
	return c.Registry.Get(ctx, k, key)
}

// A Service is read once to take all of its Grants away.
func TestAServiceIsReadOnceForAllOfItsGrants(t *testing.T) {
	r := &counting{Registry: memory.New()}
	w := newWorld()
	w.put(api.Service, broad(100))
	for _, g := range decide(w.snapshot()).make {
		g.Spec.Name = "gone"
		if _, err := r.Create(t.Context(), service.GrantKind, g); err != nil {
			t.Fatal(err)
		}
	}
	grants, _, err := r.List(t.Context(), service.GrantKind)
	if err != nil {
		t.Fatal(err)
	}
	err = carryOut(t.Context(), r, slices.Values(decide(registry.Snapshot{service.GrantKind: grants}).calls()))
	reads := r.reads
	left, _, listed := r.List(t.Context(), service.GrantKind)
	if err := errors.Join(err, listed); err != nil || len(left) > 0 || reads != 1 {
		t.Errorf("of %d Grants %d are not taken away by %d reads: %v", len(grants), len(left), reads, err)
	}
}

// A Service with more ports than any node serves is left out, and told. Others get what they
// are to get.
func TestPortsThatAreTooManyGetNothing(t *testing.T) {
	w := newWorld()
	w.put(api.Service, broad(service.MaxFrontends+1), broad(1))
	w.popular(1)
	d := decide(w.snapshot())
	for _, g := range d.make {
		if g.Spec.Name != w[api.Service][1].GetName() {
			t.Errorf("%s gets %s", g.Spec.Name, g.Name)
		}
	}
	if len(d.make) != 2 || len(d.create) != 1 || d.create[0].Labels[discoveryv1.LabelServiceName] != w[api.Service][1].GetName() {
		t.Errorf("%d Grants and %d slices are made", len(d.make), len(d.create))
	}
	if len(d.say) != 1 || !strings.Contains(d.say[0].problem, "its ports are 5001, more than 5000") {
		t.Errorf("it is said: %+v", d.say)
	}
}

// Nodes serve no Service with so many endpoints for all of its ports, and none is made, whether or not each pod has
// numbers of its own for the ports.
func TestEndpointsThatAreTooManyMakeNoSlices(t *testing.T) {
	for _, named := range []bool{false, true} {
		cost := func(ports int) float64 {
			w, svc := newWorld(), broad(ports)
			svc.Spec.Type, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, "10.96.0.1", []string{"10.96.0.1"}
			if named {
				svc.Spec.Ports[0].TargetPort = intstr.FromString("named")
			}
			w.put(api.Service, svc)
			w.popular(200)
			objects := w.snapshot()
			var d decision
			bytes := allocated(func() { d = decide(objects) })
			if said := strings.Contains(d.told(svc.Name), "its endpoints are more than 20000 for all of its ports together"); said == (len(d.create) > 0) {
				t.Errorf("of %d ports %d slices are made, and it is said: %q", ports, len(d.create), d.told(svc.Name))
			}
			return bytes
		}
		if one, ten := cost(100), cost(1000); named && ten > 2.8*one {
			t.Errorf("it takes %.0f bytes, and %.0f with ten times as many ports", one, ten)
		}
	}
}

// told returns what is to be said of a Service.
func (d decision) told(name string) string {
	says := d.say
	for _, f := range d.fill {
		says = append(says, f.says)
	}
	for _, s := range says {
		if s.service.Name == name {
			return s.problem
		}
	}
	return ""
}

// allocated returns how many bytes are.
func allocated(by func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}
