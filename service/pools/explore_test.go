package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/registry"
)

// cell is a state of a small cluster.
type cell struct {
	store       *explore.Store
	controllers []explore.Process[struct{}]
	changes     int
}

// scope bounds what is visited.
type scope struct {
	controllers, services, there, changes int
	// addresses is how many the pool has.
	addresses int
	// settled says that what is there has what there is before all begins.
	settled bool
	// pools says that the pool comes and goes.
	pools bool
	// left says that what is there has an address of another load balancer, each its own.
	left  bool
	long  bool
	limit int
}

func (sc scope) String() string {
	what := fmt.Sprintf("%d controllers %d of %d services %d changes %d addresses", sc.controllers, sc.there, sc.services, sc.changes, sc.addresses)
	for name, is := range map[string]bool{" settled": sc.settled, " pools come and go": sc.pools, " left by another": sc.left} {
		if is {
			what += name
		}
	}
	return what
}

// chosen is the address that users ask for.
const chosen = "192.0.2.1"

func serviceName(i int) string { return string(rune('a' + i)) }

func newService(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: serviceName(i), CreationTimestamp: metav1.NewTime(began.Add(-time.Duration(i) * time.Hour))}}
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80}}}
	return svc
}

func newPool(addresses int) *api.AddressPool {
	p := &api.AddressPool{Spec: api.AddressPoolSpec{Addresses: []string{fmt.Sprintf("192.0.2.1-192.0.2.%d", addresses)}}}
	p.Name = "public"
	return p
}

// act is one round of a controller, which follows each kind by itself: Services may be older
// than grants, or the other way round.
func act(servicesFirst bool) func(*explore.Calls, struct{}) struct{} {
	return func(c *explore.Calls, _ struct{}) struct{} {
		seen := registry.Snapshot{}
		order := []*registry.Kind{api.AddressGrantKind, api.Service}
		if servicesFirst {
			slices.Reverse(order)
		}
		for _, k := range append(order, api.AddressPoolKind) {
			seen[k] = c.Look(k)[k]
		}
		d := decide(seen)
		d.report = nil // of how much is used nothing depends
		_ = carryOut(c.Registry(), d.calls())
		return struct{}{}
	}
}

func quiet(_ string, k *registry.Kind) bool { return k == api.AddressPoolKind }

func (c *cell) follow() *cell {
	out := *c
	out.store, out.controllers = c.store.Clone(), slices.Clone(c.controllers)
	return &out
}

// change has a user do something to a Service, nil where there is none.
func (c *cell) change(i int, do func(*corev1.Service)) *cell {
	n := c.follow()
	n.changes++
	o, err := n.store.Get(api.Service, registry.Key{Namespace: "default", Name: serviceName(i)})
	if err != nil {
		return nil
	}
	svc := o.(*corev1.Service)
	do(svc)
	if _, err := n.store.Update(api.Service, svc); err != nil {
		panic(err)
	}
	return n
}

func (sc scope) next(c *cell, yield func(string, *cell)) {
	for i, p := range c.controllers {
		n := c.follow()
		var event string
		n.controllers[i], event = p.Step(n.store, quiet, act(i%2 == 1))
		yield(fmt.Sprintf("controller %d: %s", i+1, event), n)
		if !p.Idle() {
			n = c.follow()
			n.controllers[i] = explore.Process[struct{}]{}
			yield(fmt.Sprintf("controller %d is killed, and another starts", i+1), n)
		}
	}
	if c.changes == sc.changes {
		return
	}
	if sc.pools {
		n := c.follow()
		n.changes++
		if err := n.store.Delete(api.AddressPoolKind, registry.Key{Name: "public"}, ""); err == nil {
			yield("the pool goes", n)
		} else if _, err := n.store.Create(api.AddressPoolKind, newPool(sc.addresses)); err != nil {
			panic(err)
		} else {
			yield("the pool comes", n)
		}
	}
	for i := range sc.services {
		name := "service " + serviceName(i)
		n := c.follow()
		n.changes++
		if err := n.store.Delete(api.Service, registry.Key{Namespace: "default", Name: serviceName(i)}, ""); err == nil {
			yield(name+" goes", n)
		} else {
			if _, err := n.store.Create(api.Service, newService(i)); err != nil {
				panic(err)
			}
			yield(name+" comes", n)
			continue
		}
		for what, do := range map[string]func(*corev1.Service){
			" is no load balancer's any more": func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeClusterIP },
			" is a load balancer's": func(svc *corev1.Service) {
				svc.Spec.Type, svc.Annotations = corev1.ServiceTypeLoadBalancer, nil
			},
			" asks for an address": func(svc *corev1.Service) {
				svc.Spec.Type, svc.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{api.AddressesAnnotation: chosen}
			},
			" asks for what there is not": func(svc *corev1.Service) {
				svc.Annotations = map[string]string{api.AddressesAnnotation: "203.0.113.1"}
			},
		} {
			if n := c.change(i, do); n != nil {
				yield(name+what, n)
			}
		}
	}
}

func (c *cell) key() []byte {
	var t explore.Text
	t.Say(strconv.Itoa(c.changes), "\n")
	c.store.Put(&t)
	var all []explore.Text
	for i, p := range c.controllers {
		var one explore.Text
		one.Say(strconv.Itoa(i % 2))
		p.Put(&one, c.store)
		all = append(all, one)
	}
	t.AddSet(all...)
	return t.Key(c.store.Now, time.Hour)
}

// check says what is wrong with a state: whoever has an address has its grant, of which there
// is one, so that no two have the same. What another load balancer left may have none, but not
// somebody else's.
func (sc scope) check(s *explore.Store) error {
	objects := s.Snapshot(api.Service, api.AddressGrantKind)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		has, _ := inStatus(svc)
		for _, a := range has {
			if sc.left && !isBalanced(svc) {
				continue // an API server takes that away
			}
			if g := grantOf(objects, a); g == nil && !sc.left || g != nil && !g.IsOf(svc) {
				return fmt.Errorf("service %s has %s, and of that the grant is %v", svc.Name, a, g)
			}
		}
	}
	return nil
}

func grantOf(objects registry.Objects, a netip.Addr) *api.AddressGrant {
	return registry.GetAs[*api.AddressGrant](objects, api.AddressGrantKind, registry.Key{Name: api.GrantName(a)})
}

// ends says what is wrong with what becomes of it if one controller goes on alone.
func (sc scope) ends(s *explore.Store) error {
	before := s.Snapshot(api.Service)
	s = s.Clone()
	if err := settle(s); err != nil {
		return err
	}
	objects := s.Snapshot(Kinds...)
	pool := registry.GetAs[*api.AddressPool](objects, api.AddressPoolKind, registry.Key{Name: "public"})
	given, without := 0, 0
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		has, _ := inStatus(svc)
		if isBalanced(svc) || !sc.left {
			given += len(has)
		}
		asked, _ := askedOf(svc)
		one, asks := asked[corev1.IPv4Protocol]
		told := said(svc)
		switch {
		case !isBalanced(svc):
			if len(has) > 0 && !sc.left || told != nil {
				return fmt.Errorf("in the end service %s, which is no load balancer's, has %v, and it is said %v", svc.Name, has, told)
			}
		case len(has) > 1:
			return fmt.Errorf("in the end service %s has %v", svc.Name, has)
		case len(has) == 0 && (pool != nil || asks) && told == nil:
			return fmt.Errorf("in the end service %s has no address, and it is not said why", svc.Name)
		case asks && len(has) == 1 && has[0] != one && told == nil:
			return fmt.Errorf("in the end service %s has %s and asks for %s, and it is not said why", svc.Name, has[0], one)
		case !asks && len(has) == 1 && told != nil && pool != nil:
			return fmt.Errorf("in the end service %s has an address, and it is said %v", svc.Name, told)
		}
		if len(has) == 0 && isBalanced(svc) && !asks {
			without++
		}
		// Who had an address, and asks for no other, has it still.
		was := registry.GetAs[*corev1.Service](before, api.Service, registry.KeyOf(svc))
		had, _ := inStatus(was)
		if isBalanced(svc) && len(had) > 0 && !slices.Equal(had, has) && (!asks || has[0] != one) {
			return fmt.Errorf("in the end service %s has %v, and had %v", svc.Name, has, had)
		}
	}
	if err := sc.check(s); err != nil {
		return fmt.Errorf("in the end %w", err)
	}
	grants := 0
	for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
		grants++
		svc := registry.GetAs[*corev1.Service](objects, api.Service, g.Spec.Service())
		if svc == nil || !g.IsOf(svc) {
			return fmt.Errorf("in the end %s is given to a service that is gone", g.Name)
		}
	}
	if grants != given {
		return fmt.Errorf("in the end there are %d grants, and services have %d addresses", grants, given)
	}
	if pool != nil && !sc.left && without > 0 && given < sc.addresses {
		return fmt.Errorf("in the end %d services have no address, and %d of %d are given", without, given, sc.addresses)
	}
	return nil
}

// TestAllInterleavings visits every state that the addresses of a few Services can get into, by
// any order of the calls of controllers, each call as their last, and of what users do to
// Services and pools. No two ever have one address. One controller alone brings all to a good
// end from there, where nobody has lost the address that he had.
func TestAllInterleavings(t *testing.T) {
	for _, sc := range []scope{
		{controllers: 1, services: 2, there: 1, changes: 2, addresses: 2, pools: true},
		{controllers: 2, services: 2, there: 1, changes: 1, addresses: 2, limit: 8_000},
		{controllers: 2, services: 2, there: 2, changes: 2, addresses: 1, settled: true, limit: 8_000},
		{controllers: 2, services: 2, there: 2, changes: 1, addresses: 2, left: true, limit: 8_000},
		{controllers: 1, services: 3, there: 2, changes: 2, addresses: 2, left: true},
		{controllers: 1, services: 2, there: 1, changes: 3, addresses: 2, pools: true, long: true},
		{controllers: 2, services: 2, there: 1, changes: 1, addresses: 2, long: true},
		{controllers: 2, services: 2, there: 2, changes: 3, addresses: 2, settled: true, pools: true, long: true, limit: 2_000_000},
		{controllers: 2, services: 3, there: 2, changes: 3, addresses: 2, long: true, limit: 2_000_000},
		{controllers: 3, services: 2, there: 1, changes: 2, addresses: 1, long: true, limit: 2_000_000},
	} {
		t.Run(sc.String(), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			start := &cell{store: &explore.Store{Now: began}, controllers: make([]explore.Process[struct{}], sc.controllers)}
			if _, err := start.store.Create(api.AddressPoolKind, newPool(sc.addresses)); err != nil {
				t.Fatal(err)
			}
			for i := range sc.there {
				svc := newService(i)
				if sc.left {
					svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("192.0.2.%d", i+1)}}
				}
				if _, err := start.store.Create(api.Service, svc); err != nil {
					t.Fatal(err)
				}
			}
			if sc.settled {
				if err := settle(start.store); err != nil {
					t.Fatal(err)
				}
			}
			ends := explore.PerContent(time.Hour, sc.ends)
			r := explore.Model[*cell]{Start: start, Next: sc.next, Key: (*cell).key, Limit: sc.limit,
				Check: func(c *cell) error {
					if err := sc.check(c.store); err != nil {
						return err
					}
					return ends(c.store)
				}}.Run()
			if r.Wrong != nil || !r.Complete && sc.limit == 0 {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}
