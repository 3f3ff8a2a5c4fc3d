package service_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// Whatever changes, and in whatever order, what is compiled step by step is what is compiled
// at once, and a valid plan.
func TestStepByStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if rapid.Bool().Draw(t, "little room") {
			defer service.SetBudget(rapid.IntRange(1, 12).Draw(t, "frontends"), rapid.IntRange(1, 12).Draw(t, "backends"))()
			defer service.SetRanges(rapid.IntRange(1, 5).Draw(t, "ranges"))()
		}
		w := world{api.Service: {}, api.EndpointSlice: {}, api.Node: {}, service.GrantKind: {}, api.AddressPoolKind: {}, api.AddressGrantKind: {}}
		var c service.Compiler
		at := node
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				w.change(t)
			}
			if rapid.IntRange(0, 5).Draw(t, "node") == 0 {
				at.Addresses = node.Addresses[:rapid.IntRange(0, 2).Draw(t, "addresses")]
				at.Pools = node.Pools[:rapid.IntRange(0, 2).Draw(t, "pools")]
			}
			tables := c.Compile(w.snapshot(), at)
			problems := c.Problems()
			other := new(service.Compiler)
			fresh := other.Compile(w.snapshot(), at)
			same := other.Problems()
			now, anew := planOf(at, tables), planOf(at, fresh)
			if !now.Equal(anew) || fmt.Sprint(problems) != fmt.Sprint(same) {
				t.Fatalf("step by step it is\n%s%v\nand at once\n%s%v", now, problems, anew, same)
			}
			if err := now.Validate(); err != nil {
				t.Fatal(err)
			}
			again := c.Compile(w.snapshot(), at)
			if again != tables {
				t.Fatalf("nothing changes, and the tables do:\n%s", now.Diff(planOf(at, again)))
			}
		}
	})
}

// What is left for later is, when it has been worked off, what is compiled at once, whatever changed
// meanwhile. Until then the plan is valid, and no Service is served that is none any
// more, nor at an address that it has no more, nor for whom it does not want any more.
func TestLater(t *testing.T) {
	plantest.CheckMeeting(t, []string{"waiting", "done"}, func(t *rapid.T, meets func(string)) {
		defer service.SetRooms(evenly(t, "room at once", 31), 4+evenly(t, "room of a turn", 17))()
		if rapid.Bool().Draw(t, "little room") {
			defer service.SetBudget(rapid.IntRange(1, 12).Draw(t, "frontends"), rapid.IntRange(1, 12).Draw(t, "backends"))()
			defer service.SetRanges(rapid.IntRange(1, 5).Draw(t, "ranges"))()
		}
		w := world{api.Service: {}, api.EndpointSlice: {}, api.Node: {}, service.GrantKind: {}, api.AddressPoolKind: {}, api.AddressGrantKind: {}}
		c := service.Compiler{Gradual: true, Grants: rapid.Bool().Draw(t, "grants")}
		at := node
		if rapid.Bool().Draw(t, "two are there already") {
			w.people()
		}
		for range 1 + evenly(t, "steps", 12) {
			for range evenly(t, "changes", 4) {
				w.change(t)
			}
			if evenly(t, "node", 11) == 0 {
				at.Addresses = node.Addresses[:rapid.IntRange(0, 2).Draw(t, "addresses")]
			}
			if waiting := c.Waiting(); len(waiting) > 0 && rapid.Bool().Draw(t, "a turn") {
				c.Advance(waiting[0])
			}
			c.Rest(rapid.SampledFrom([]map[string]bool{nil, nil, {"default": true}}).Draw(t, "resting"))
			now := planOf(at, c.Compile(w.snapshot(), at))
			w.mustAllow(t, now, c.Grants, at)
			if len(c.Waiting()) > 0 {
				meets("waiting")
			}
			if rapid.Bool().Draw(t, "work it off") {
				c.Rest(nil)
				for turns := 0; len(c.Waiting()) > 0; turns++ {
					if turns > 100 {
						t.Fatalf("it does not end: %v", c.Late())
					}
					c.Advance(c.Waiting()[0])
					now = planOf(at, c.Compile(w.snapshot(), at))
					w.mustAllow(t, now, c.Grants, at)
				}
			}
			if len(c.Waiting()) == 0 {
				other := service.Compiler{Grants: c.Grants}
				anew := planOf(at, other.Compile(w.snapshot(), at))
				if !now.Equal(anew) || fmt.Sprint(c.Problems()) != fmt.Sprint(other.Problems()) {
					t.Fatalf("in turns it is\n%s%v\nand at once\n%s%v", now, c.Problems(), anew, other.Problems())
				}
				meets("done")
			}
		}
	})
}

// A frontend that has somebody who gets connections, and is to have the same endpoint still, by whatever number and in whatever set, is never
// without anybody, however little is done at once.
func TestWhoIsServedStaysServed(t *testing.T) {
	plantest.CheckMeeting(t, []string{"waiting", "served"}, func(t *rapid.T, meets func(string)) {
		defer service.SetRooms(evenly(t, "room at once", 16), 4+evenly(t, "room of a turn", 17))()
		w := world{}
		w.people()
		c := service.Compiler{Gradual: true}
		before := planOf(node, c.Compile(w.snapshot(), node))
		dueBefore := before
		step := func() {
			now := planOf(node, c.Compile(w.snapshot(), node))
			var fresh service.Compiler
			due := planOf(node, fresh.Compile(w.snapshot(), node))
			for k := range due.Services.All() {
				had, was, will := getting(before, k), getting(dueBefore, k), getting(due, k)
				stays := func(a netip.Addr, _ bool) bool { return !was[a] || !will[a] }
				if maps.DeleteFunc(had, stays); len(had) == 0 {
					continue
				}
				if meets("served"); len(getting(now, k)) == 0 {
					t.Fatalf("%v had %v, which it is to have still, and has nobody. It was\n%sand is\n%s", k, had, before, now)
				}
			}
			before, dueBefore = now, due
		}
		for range 1 + evenly(t, "steps", 8) {
			for range evenly(t, "changes", 3) {
				w.moveEndpoints(t)
			}
			if waiting := c.Waiting(); len(waiting) > 0 && rapid.Bool().Draw(t, "a turn") {
				c.Advance(waiting[0])
			}
			c.Rest(rapid.SampledFrom([]map[string]bool{nil, {"default": true}}).Draw(t, "resting"))
			if step(); len(c.Waiting()) > 0 {
				meets("waiting")
			}
			if rapid.Bool().Draw(t, "work it off") {
				for turns := 0; len(c.Waiting()) > 0; turns++ {
					if turns > 100 {
						t.Fatal("it does not end")
					}
					c.Advance(c.Waiting()[0])
					step()
				}
			}
		}
	})
}

// getting returns the addresses of who gets connections at a frontend, by whatever number.
func getting(p *plan.Plan, k plan.ServiceKey) map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	if s, there := p.Services.Get(k); there {
		for b, is := range p.BackendsOf(k.Network, s.Set) {
			if is.Weight > 0 {
				all[b.Address] = true
			}
		}
	}
	return all
}

// moveEndpoints has a Service of people have other endpoints, or the same by other numbers, or its ports be called otherwise.
func (w world) moveEndpoints(t *rapid.T) {
	key := registry.Key{Namespace: "default", Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")}
	svc, slice := w[api.Service][key].(*corev1.Service).DeepCopy(), w[api.EndpointSlice][key].(*discoveryv1.EndpointSlice).DeepCopy()
	switch evenly(t, "what", 4) {
	case 0:
		slice.Endpoints = nil
		for i := range 8 {
			e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.1.1.", i+2)}}
			if e.Conditions.Ready = new(rapid.Bool().Draw(t, "ready")); rapid.Bool().Draw(t, "there") {
				slice.Endpoints = append(slice.Endpoints, e)
			}
		}
	case 1:
		name := fmt.Sprint("p", evenly(t, "called", 4))
		if i := evenly(t, "port", len(svc.Spec.Ports)); svc.Spec.Ports[1-i].Name != name {
			svc.Spec.Ports[i].Name, slice.Ports[i].Name = name, &name
		}
	default:
		for i := range slice.Ports {
			slice.Ports[i].Port = new(int32(8000 + 10*i + evenly(t, "number", 3)))
		}
	}
	w.put(api.Service, svc)
	w.put(api.EndpointSlice, slice)
}

// mustAllow fails the test where a plan is invalid, or has a Service served where, or for whom, it is not any more.
func (w world) mustAllow(t *rapid.T, now *plan.Plan, grants bool, at plan.Local) {
	if err := now.Validate(); err != nil {
		t.Fatal(err)
	}
	alone := map[string]*plan.Plan{}
	of := func(origin string) *plan.Plan {
		if alone[origin] == nil {
			alone[origin] = w.alone(grants, origin, at)
		}
		return alone[origin]
	}
	type guarded struct {
		origin string
		family plan.Family
	}
	guarding := map[guarded]bool{} // of the other family all may come, and who could before still may
	for k, s := range now.Services.All() {
		due := of(s.Origin).Services
		is, there := due.Get(k)
		for _, k.From = range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} { // it may be for other sides now
			if !there {
				is, there = due.Get(k)
			}
		}
		if !there || is.Origin != s.Origin {
			t.Fatalf("%s is served at %v, which is not its any more:\n%s", s.Origin, k, now)
		}
		if is.Sources != "" && s.Sources == "" {
			t.Fatalf("%s is for all at %v, which it is not any more:\n%s", s.Origin, k, now)
		}
		by := guarded{s.Origin, plan.FamilyOf(k.Address)}
		guarding[by] = guarding[by] || is.Sources != ""
	}
	for k, s := range now.Sources.All() {
		if _, there := of(s.Origin).Sources.Get(k); !there && guarding[guarded{s.Origin, plan.FamilyOf(k.Prefix.Addr())}] {
			t.Fatalf("%s is for %v, which may not come any more:\n%s", s.Origin, k, now)
		}
	}
}

// alone returns the plan of a world that has of all Services one only, named by its origin.
func (w world) alone(grants bool, origin string, at plan.Local) *plan.Plan {
	one := maps.Clone(w)
	one[api.Service] = map[registry.Key]registry.Object{}
	for k, s := range w[api.Service] {
		if "Service "+k.String() == origin {
			one[api.Service][k] = s
		}
	}
	c := service.Compiler{Grants: grants}
	return planOf(at, c.Compile(one.snapshot(), at))
}

// people puts two Services into a world, with endpoints.
func (w world) people() {
	for i, name := range []string{"a", "b"} {
		meta := metav1.ObjectMeta{Namespace: "default", Name: name, UID: uids[0]}
		svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprint("10.96.0.", i+1)}}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprint("203.0.113.", i+1)}}
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
		for _, p := range []int32{80, 81} {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", p)), Port: new(8000 + p)})
		}
		for i := range 4 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.1.1.", i+2)}})
		}
		w.put(api.Service, svc)
		w.put(api.EndpointSlice, slice)
	}
}

// evenly draws a number from 0 up to, but without, n. rapid's own generators favour small ones.
func evenly(t *rapid.T, label string, n int) (drawn int) {
	for range 8 {
		drawn *= 2
		if rapid.Bool().Draw(t, label) {
			drawn++
		}
	}
	return drawn * n >> 8
}

// uids are those that a Service has, one after the other.
var uids = []types.UID{"u", "v"}

// ranges are those that may come to a load balancer's address.
var ranges = rapid.SampledFrom([][]string{nil, {"192.0.2.0/24"}, {"0.0.0.0/0"}, {"none"}, {"::ffff:192.0.2.0/120"}, {"::ffff:0:0/96"}, {"::ffff:0:0/90"}})

// change makes, changes or removes an object.
func (w world) change(t *rapid.T) {
	flip := rapid.Bool()
	name := rapid.SampledFrom([]string{"a", "b", "c", "kubernetes"}).Draw(t, "name")
	key := registry.Key{Namespace: "default", Name: name}
	ips := []string{"10.96.0.1", "10.96.0.2", "fd96::1", "::ffff:10.96.0.1", "172.30.0.2", "fd01::2", "10.1.1.0", "10.1.1.1", "fd00:1::1"}
	switch evenly(t, "what", 12) {
	case 0:
		delete(w[api.Service], key)
	case 1:
		delete(w[api.EndpointSlice], key)
	case 2:
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Node, Labels: map[string]string{corev1.LabelTopologyZone: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")}}}
		w[api.Node][registry.Key{Name: node.Node}] = n
	case 3:
		local := corev1.ServiceInternalTrafficPolicyLocal
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: rapid.SampledFrom(uids).Draw(t, "UID"), CreationTimestamp: metav1.NewTime(time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "created")), 0))}}
		s.Spec = corev1.ServiceSpec{Type: rapid.SampledFrom([]corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}).Draw(t, "type"),
			ClusterIPs:  rapid.SliceOfNDistinct(rapid.SampledFrom(ips), 1, 2, rapid.ID).Draw(t, "cluster IPs"),
			ExternalIPs: rapid.SliceOfNDistinct(rapid.SampledFrom(append(ips, "198.51.100.1")), 0, 2, rapid.ID).Draw(t, "external IPs")}
		for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom([]int32{80, 81}), 0, 2, rapid.ID).Draw(t, "ports") {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p, NodePort: rapid.SampledFrom([]int32{0, 30080}).Draw(t, "node port"),
				Protocol: rapid.SampledFrom([]corev1.Protocol{"", corev1.ProtocolUDP}).Draw(t, "protocol")})
		}
		if flip.Draw(t, "selects") {
			s.Spec.Selector = map[string]string{"app": name}
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].TargetPort = rapid.SampledFrom([]intstr.IntOrString{{}, intstr.FromInt32(8080), intstr.FromInt32(8081), intstr.FromString("http")}).Draw(t, "target")
			}
		}
		if flip.Draw(t, "stays inside") {
			s.Spec.InternalTrafficPolicy = &local
		}
		if flip.Draw(t, "stays from outside") {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		if flip.Draw(t, "affinity") {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		s.Spec.LoadBalancerSourceRanges = ranges.Draw(t, "ranges")
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: rapid.SampledFrom(append(ips, "203.0.113.1")).Draw(t, "balanced")}}
		w[api.Service][key] = s
	case 4:
		g := &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: rapid.SampledFrom(append(ips, "30080-tcp", "30080-udp", "30080-x", "x")).Draw(t, "granted")}}
		if flip.Draw(t, "taken away") {
			delete(w[service.GrantKind], registry.KeyOf(g))
			return
		}
		g.Spec = service.GrantSpec{Namespace: "default", Name: name, UID: rapid.SampledFrom(uids).Draw(t, "UID")}
		w[service.GrantKind][registry.KeyOf(g)] = g
	case 5:
		p := &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: api.AddressPoolSpec{Addresses: rapid.SliceOfN(rapid.SampledFrom([]string{"203.0.113.0/24", "203.0.113.1-203.0.113.9", "198.51.100.1-198.51.100.1", "172.30.0.0/24", "fd96::/64", "x"}), 0, 3).Draw(t, "pooled")}}
		if flip.Draw(t, "taken away") {
			delete(w[api.AddressPoolKind], registry.KeyOf(p))
			return
		}
		w[api.AddressPoolKind][registry.KeyOf(p)] = p
	case 6:
		g := &api.AddressGrant{ObjectMeta: metav1.ObjectMeta{Name: rapid.SampledFrom([]string{"203.0.113.1", "198.51.100.1", "172.30.0.2", "fd96--1", "x"}).Draw(t, "granted")}}
		if flip.Draw(t, "taken away") {
			delete(w[api.AddressGrantKind], registry.KeyOf(g))
			return
		}
		g.Spec = api.AddressGrantSpec{Namespace: "default", Name: name, UID: rapid.SampledFrom(uids).Draw(t, "UID")}
		w[api.AddressGrantKind][registry.KeyOf(g)] = g
	case 7, 8, 9, 10:
		if is, there := w[api.Service][key]; there { // and else stays as it is
			s := is.(*corev1.Service).DeepCopy()
			s.Spec.LoadBalancerSourceRanges = ranges.Draw(t, "ranges")
			for i, p := range s.Spec.Ports {
				if otherwise := map[string]string{"p80": "p81", "p81": "p80"}; flip.Draw(t, "ports are called otherwise") {
					s.Spec.Ports[i].Name = otherwise[p.Name]
				}
			}
			if flip.Draw(t, "another policy") {
				s.Spec.InternalTrafficPolicy = rapid.SampledFrom([]*corev1.ServiceInternalTrafficPolicy{nil, new(corev1.ServiceInternalTrafficPolicyLocal)}).Draw(t, "internal policy")
			}
			w[api.Service][key] = s
		}
	default:
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: rapid.SampledFrom([]string{"a", "b", "", "kubernetes"}).Draw(t, "of")}},
			AddressType: discoveryv1.AddressTypeIPv4}
		for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"p80", "p81"}), 0, 2, rapid.ID).Draw(t, "ports") {
			port, protocol := rapid.SampledFrom([]int32{8080, 8081, 80}).Draw(t, "port"), rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}).Draw(t, "protocol")
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p, Port: &port, Protocol: &protocol})
		}
		for range rapid.IntRange(0, 3).Draw(t, "endpoints") {
			e := discoveryv1.Endpoint{Addresses: []string{rapid.SampledFrom([]string{"10.1.1.2", "10.1.1.3", "fd00:1::2", "127.0.0.1", "10.96.0.1", "172.30.0.2"}).Draw(t, "address")}}
			for _, condition := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
				if flip.Draw(t, "said") {
					is := flip.Draw(t, "is")
					*condition = &is
				}
			}
			if on := rapid.SampledFrom([]string{"", "node1", "node2"}).Draw(t, "node"); on != "" {
				e.NodeName = &on
			}
			if flip.Draw(t, "hints") {
				e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "for zone")}}}
			}
			s.Endpoints = append(s.Endpoints, e)
		}
		w[api.EndpointSlice][key] = s
	}
}
