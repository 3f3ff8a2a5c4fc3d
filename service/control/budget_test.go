package control

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// setBudget has the Services of a namespace have no more than so many endpoints, found by so many looks, until the test
// ends.
func setBudget(t *testing.T, endpoints, looks int) {
	was := budget
	t.Cleanup(func() { budget = was })
	budget = space{endpoints, looks}
}

// selecting is a Service of some ports and an age in hours that selects pods by labels.
func selecting(name string, age, ports int, selector map[string]string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(began.Add(-time.Duration(age) * time.Hour))}}
	svc.Spec.Selector, svc.Spec.IPFamilies = selector, []corev1.IPFamily{corev1.IPv4Protocol}
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	return svc
}

// pods puts n pods with some labels.
func (w world) pods(n int, labels map[string]string) {
	for range n {
		i := len(w[api.Pod])
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}}
		p.Labels = labels
		w.put(api.Pod, p)
	}
}

// endpoints returns how many of them Services have, each counted once for each of its ports, or once where it has none.
func endpoints(slices []*discoveryv1.EndpointSlice) map[string]int {
	of := make(map[string]int)
	for _, s := range slices {
		of[s.Labels[discoveryv1.LabelServiceName]] += len(s.Endpoints) * max(1, len(s.Ports))
	}
	return of
}

// TestANamespaceHasNoMoreEndpointsThanNodesServe holds what is made for any Services of a namespace to what follows from
// their sizes: the older ones have all of their endpoints as long as these fit, and the others have none and are told.
func TestANamespaceHasNoMoreEndpointsThanNodesServe(t *testing.T) {
	setBudget(t, 40, budget.looks)
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		with := make([]int, 3) // pods of each app
		for app := range with {
			with[app] = rapid.IntRange(0, 12).Draw(t, "pods")
			w.pods(with[app], map[string]string{"app": fmt.Sprint(app), "all": ""})
			// These are no endpoints.
			for _, p := range []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodSucceeded, PodIP: "10.2.1.1"}}, {Status: corev1.PodStatus{Phase: corev1.PodPending}}} {
				p.Labels = map[string]string{"app": fmt.Sprint(app), "all": ""}
				w.put(api.Pod, &p)
			}
		}
		size := make(map[string]int)
		many := rapid.IntRange(1, 8).Draw(t, "services")
		for i := range many {
			app, ports := rapid.IntRange(-1, 2).Draw(t, "app"), rapid.IntRange(1, 4).Draw(t, "ports")
			svc := selecting(fmt.Sprint("s", i), many-i, ports, map[string]string{"all": ""})
			if app < 0 {
				size[svc.Name] = (with[0] + with[1] + with[2]) * ports
			} else {
				svc.Spec.Selector["app"] = fmt.Sprint(app)
				size[svc.Name] = with[app] * ports
			}
			switch rapid.IntRange(0, 3).Draw(t, "special") {
			case 0:
				svc.Spec.ClusterIP = corev1.ClusterIPNone
			case 1:
				// No pod has the port.
				svc.Spec.Ports = svc.Spec.Ports[:1]
				svc.Spec.Ports[0].TargetPort = intstr.FromString("nowhere")
				size[svc.Name] /= ports
			}
			w.put(api.Service, svc)
		}
		d := decide(w.snapshot())
		made, left := endpoints(d.create), budget.endpoints
		for i := range many {
			name := fmt.Sprint("s", i)
			fits := size[name] <= left
			if fits {
				left -= size[name]
			}
			if told := strings.Contains(d.told(name), "and those of older Services are more than 40 in namespace default"); told == fits || fits && made[name] != size[name] || !fits && made[name] > 0 {
				t.Fatalf("%s has %d endpoints of %d, fits: %v, and it is told %q", name, made[name], size[name], fits, d.told(name))
			}
		}
	})
}

// A Service loses its endpoints where an older one comes to have more, so that no dead one stays. It has them again where
// they fit.
func TestAnOlderServiceTakesEndpointsFromAYoungerOne(t *testing.T) {
	setBudget(t, 10, budget.looks)
	w := newWorld()
	w.put(api.Service, selecting("old", 2, 1, map[string]string{"app": "old"}), selecting("young", 1, 1, map[string]string{"app": "young"}))
	w.pods(6, map[string]string{"app": "young"})
	step := func(want map[string]int, says string) {
		t.Helper()
		for range 4 {
			w.become(decide(w.snapshot()))
		}
		d := decide(w.snapshot())
		if len(d.create)+len(d.update)+len(d.drop) > 0 {
			t.Error("it finds no end")
		}
		var all []*discoveryv1.EndpointSlice
		for s := range registry.Each[*discoveryv1.EndpointSlice](w.snapshot(), api.EndpointSlice) {
			all = append(all, s)
		}
		if has := endpoints(all); !maps.Equal(has, want) || !strings.Contains(d.told("young"), says) || says == "" && d.told("young") != "" {
			t.Errorf("they have %v, not %v, and it is told %q", has, want, d.told("young"))
		}
	}
	step(map[string]int{"young": 6}, "")
	w.pods(5, map[string]string{"app": "old"})
	step(map[string]int{"old": 5}, "its endpoints for all of its ports and those of older Services are more than 10 in namespace default, and none of its is made: remove")
	w[api.Pod] = w[api.Pod][:len(w[api.Pod])-1]
	step(map[string]int{"old": 4, "young": 6}, "")
}

// A Service for which there is no space costs no more where it selects more pods.
func TestWhatIsBeyondTheBudgetCostsLittle(t *testing.T) {
	setBudget(t, 50, budget.looks)
	each := func(pods int) float64 {
		cost := func(services int) float64 {
			w := newWorld()
			for i := range services {
				w.put(api.Service, selecting(fmt.Sprintf("s%04d", i), 1, 1, map[string]string{"app": "web"}))
			}
			w.pods(pods, map[string]string{"app": "web"})
			objects := w.snapshot()
			return allocated(func() { decide(objects) })
		}
		return (cost(300) - cost(100)) / 200
	}
	if few, many := each(60), each(6000); many > 1.5*few {
		t.Errorf("each Service costs %.0f bytes, and %.0f where it selects a hundred times as many pods", few, many)
	}
}

// Where pods have one label that Services select, and not another one, they are looked at as often as there is space for.
// Services whose pods are not looked for are told, and have no endpoints.
func TestPodsAreNotLookedAtWithoutEnd(t *testing.T) {
	setBudget(t, 1000, 200)
	w := newWorld()
	w.pods(50, map[string]string{"app": "web"})
	w.pods(50, map[string]string{"tier": "front"})
	w.pods(1, map[string]string{"app": "web", "tier": "front"})
	for i := range 6 {
		w.put(api.Service, selecting(fmt.Sprint("s", i), 10-i, 1, map[string]string{"app": "web", "tier": "front"}))
	}
	w.put(api.Service, selecting("nobodys", 0, 1, map[string]string{"app": "none"}))
	d := decide(w.snapshot())
	made := endpoints(d.create)
	for i := range 6 {
		name, has := fmt.Sprint("s", i), i < 3
		if told := strings.Contains(d.told(name), "200 were looked at already for older Services of namespace default"); has == told || has != (made[name] == 1) {
			t.Errorf("%s has %d endpoints, and it is told %q", name, made[name], d.told(name))
		}
	}
	if d.told("nobodys") != "" {
		t.Errorf("who selects no pod is told %q", d.told("nobodys"))
	}
}

// A headless Service, which nodes do not serve, may have more endpoints than another one, and takes space as well.
func TestHeadlessServicesCountAsWell(t *testing.T) {
	w := newWorld()
	for i := range 6 {
		svc := selecting(fmt.Sprint("s", i), 10-i, service.MaxBackends/100+1, map[string]string{"app": "web"})
		svc.Spec.ClusterIP = corev1.ClusterIPNone
		w.put(api.Service, svc)
	}
	w.pods(100, map[string]string{"app": "web"})
	d := decide(w.snapshot())
	if made := endpoints(d.create); len(made) != 4 || made["s0"] != service.MaxBackends+100 || !strings.Contains(d.told("s4"), "more than 100000 in namespace default") {
		t.Errorf("they have %v, and it is told %q", made, d.told("s4"))
	}
}
