package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
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
	bits                                  int
	// settled says that what is there has what there is before all begins.
	settled bool
	long    bool
	limit   int
}

func (sc scope) String() string {
	what := fmt.Sprintf("%d controllers %d of %d services %d changes %d free addresses", sc.controllers, sc.there, sc.services, sc.changes, 1<<(32-sc.bits)-2)
	if sc.settled {
		what += " settled"
	}
	return what
}

// began is when all begins.
var began = time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)

// chosenPort is the port of nodes that users choose.
const chosenPort = 30080

// chosen is the address that users choose, one of those that are given.
const chosen = "10.96.0.1"

// hasChosen reports whether a Service has what its user chose.
func hasChosen(svc *corev1.Service) bool {
	_, ok := svc.Annotations["chosen"]
	return ok
}

func serviceName(i int) string { return string(rune('a' + i)) }

// newService returns a Service that says that it is older than those before it.
func newService(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: serviceName(i),
		CreationTimestamp: metav1.NewTime(began.Add(-time.Duration(i) * time.Hour))}}
	svc.Spec.Type, svc.Spec.Ports = corev1.ServiceTypeClusterIP, []corev1.ServicePort{{Port: 80}}
	return svc
}

// act is one round of a controller, which follows each kind by itself: Services may be older
// than Grants, or the other way round.
func act(servicesFirst bool) func(*explore.Calls, struct{}) struct{} {
	return func(c *explore.Calls, _ struct{}) struct{} {
		seen := registry.Snapshot{}
		order := []*registry.Kind{service.GrantKind, api.Service}
		if servicesFirst {
			slices.Reverse(order)
		}
		for _, k := range append(order, api.ClusterConfigKind) {
			seen[k] = c.Look(k)[k]
		}
		_ = carryOut(context.Background(), c.Registry(), new(turns).each(decide(seen).calls(), time.Hour)) // what failed is decided again
		return struct{}{}
	}
}

func quiet(verb string, k *registry.Kind) bool { return k == api.ClusterConfigKind }

func (c *cell) follow() *cell {
	out := *c
	out.store, out.controllers = c.store.Clone(), slices.Clone(c.controllers)
	return &out
}

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
		if n := c.change(i, func(svc *corev1.Service) {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Annotations = "", nil, nil
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeClusterIP, 0
		}); n != nil {
			yield(name+" is applied without an address", n)
		}
		if n := c.change(i, func(svc *corev1.Service) {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = chosen, []string{chosen}
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, chosenPort
			svc.Annotations = map[string]string{"chosen": ""}
		}); n != nil {
			yield(name+" chooses its address and a port of nodes", n)
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

// check says what is wrong with a state: who was given an address has its Grant, of which
// there is one, so that no two were given the same. Of those who say that they have what one
// of them has a Grant of, that one has it on nodes.
func check(s *explore.Store) error {
	objects := s.Snapshot(api.Service, service.GrantKind)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		for _, a := range api.ClusterAddresses(svc) {
			if !hasChosen(svc) && !isGranted(objects, svc, a) {
				return fmt.Errorf("service %s was given %s and has no Grant of it", svc.Name, a)
			}
		}
	}
	return onNodes(objects)
}

// onNodes says what somebody has a Grant of, and says that it has, and another has on a node.
func onNodes(objects registry.Objects) error {
	node := plan.Local{Node: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.2")}}
	tables := new(service.Compiler).Compile(objects, node)
	for g := range registry.Each[*service.Grant](objects, service.GrantKind) {
		svc := registry.GetAs[*corev1.Service](objects, api.Service, g.Spec.Service())
		if svc == nil || !g.IsOf(svc) {
			continue
		}
		key := plan.ServiceKey{Network: plan.DefaultNetwork, From: plan.Anywhere, Protocol: plan.TCP, Port: uint16(svc.Spec.Ports[0].Port)}
		if a, err := netip.ParseAddr(g.Name); err != nil {
			key.Address, key.Port = node.Addresses[0], uint16(svc.Spec.Ports[0].NodePort)
		} else {
			key.Address = a
		}
		says := g.Spec.Port == "" && slices.Contains(api.ClusterAddresses(svc), key.Address) || g.Spec.Port != "" && len(api.ClusterAddresses(svc)) > 0 && g.Name == service.NodePortGrant(svc.Spec.Ports[0].NodePort, "")
		if has, there := tables.Services.Get(key); says && (!there || has.Origin != "Service "+registry.KeyOf(svc).String()) {
			return fmt.Errorf("service %s has the Grant %s, and on nodes %v has it", svc.Name, g.Name, has)
		}
	}
	return nil
}

// isGranted reports whether a Service has the Grant of an address.
func isGranted(objects registry.Objects, svc *corev1.Service, a netip.Addr) bool {
	g := registry.GetAs[*service.Grant](objects, service.GrantKind, registry.Key{Name: a.String()})
	return g != nil && g.IsOf(svc)
}

// isSaid reports whether what a Service has not got is said, in words that include some.
func isSaid(svc *corev1.Service, words string) bool {
	c := meta.FindStatusCondition(svc.Status.Conditions, Granted)
	return c != nil && strings.Contains(c.Message, words)
}

// settle lets one controller work until nothing is left to do.
func settle(s *explore.Store) error {
	for range 10 {
		before := s.Version()
		if err := carryOut(context.Background(), s.Registry(), slices.Values(decide(s.Snapshot(api.Service, service.GrantKind, api.ClusterConfigKind)).calls())); err != nil {
			return err
		}
		if s.Version() == before {
			return nil
		}
	}
	return errors.New("the controller finds no end")
}

// ends says what is wrong with what becomes of it if one controller goes on alone.
func (sc scope) ends(s *explore.Store) error {
	s = s.Clone()
	objects := func() registry.Snapshot { return s.Snapshot(api.Service, service.GrantKind, api.ClusterConfigKind) }
	if err := settle(s); err != nil {
		return err
	}
	without, given := 0, make(map[netip.Addr]bool)
	for svc := range registry.Each[*corev1.Service](objects(), api.Service) {
		said := isSaid(svc, "all addresses") || isSaid(svc, "clusterIP")
		all := api.ClusterAddresses(svc)
		if port := registry.GetAs[*service.Grant](objects(), service.GrantKind, registry.Key{Name: service.NodePortGrant(chosenPort, "")}); svc.Spec.Ports[0].NodePort == chosenPort {
			if port == nil || port.IsOf(svc) == isSaid(svc, "nodePort") {
				return fmt.Errorf("in the end service %s has chosen a port of nodes, of which there is %v, and it is said %v", svc.Name, port, svc.Status.Conditions)
			}
		}
		if len(all) == 0 {
			without++
			if !said {
				return fmt.Errorf("in the end service %s has no address, and it is not said why", svc.Name)
			}
		}
		for _, a := range all {
			given[a] = true
			switch granted := isGranted(objects(), svc, a); {
			case registry.GetAs[*service.Grant](objects(), service.GrantKind, registry.Key{Name: a.String()}) == nil:
				return fmt.Errorf("in the end nobody has the Grant of %s", a)
			case granted && said:
				return fmt.Errorf("in the end service %s has an address, and it is said that it has none", svc.Name)
			case !granted && !said:
				return fmt.Errorf("in the end service %s has %s, which is another's, and it is not said", svc.Name, a)
			}
		}
	}
	if err := onNodes(objects()); err != nil {
		return fmt.Errorf("in the end %w", err)
	}
	if free := 1<<(32-sc.bits) - 2; without > 0 && len(given) < free {
		return fmt.Errorf("in the end %d services have no address, and %d of %d are given out", without, len(given), free)
	}
	for g := range registry.Each[*service.Grant](objects(), service.GrantKind) {
		svc := registry.GetAs[*corev1.Service](objects(), api.Service, g.Spec.Service())
		if svc == nil || svc.UID != g.Spec.UID {
			return fmt.Errorf("in the end %s is given to a service that is gone", g.Name)
		}
	}
	return nil
}

// TestAllInterleavings visits every state that the addresses of a few Services can get into,
// by any order of the calls of controllers, each call as their last, and of what users do to
// Services. No two have one address that was given out. One controller alone brings all to a
// good end from there, where each address is one Service's, and others that chose it are told.
// All the time it is on nodes whoever has the Grant of it, although another is older.
func TestAllInterleavings(t *testing.T) {
	for _, sc := range []scope{
		{controllers: 1, services: 2, changes: 3, bits: 30},
		{controllers: 2, services: 2, there: 1, changes: 1, bits: 30},
		{controllers: 2, services: 2, there: 2, changes: 2, bits: 30, settled: true, limit: 20_000},
		{controllers: 2, services: 3, there: 2, changes: 3, bits: 30, long: true, limit: 3_000_000},
		{controllers: 3, services: 2, there: 1, changes: 2, bits: 30, long: true, limit: 3_000_000},
	} {
		t.Run(sc.String(), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			start := &cell{store: &explore.Store{Now: began}, controllers: make([]explore.Process[struct{}], sc.controllers)}
			config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{fmt.Sprintf("10.96.0.0/%d", sc.bits)}}}
			config.Name = api.DefaultName
			if _, err := start.store.Create(api.ClusterConfigKind, config); err != nil {
				t.Fatal(err)
			}
			for i := range sc.there {
				if _, err := start.store.Create(api.Service, newService(i)); err != nil {
					t.Fatal(err)
				}
			}
			if sc.settled {
				// All but one address is another Service's.
				other := newService(sc.services)
				other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.0.2", []string{"10.96.0.2"}
				other.Annotations = map[string]string{"chosen": ""}
				if _, err := start.store.Create(api.Service, other); err != nil {
					t.Fatal(err)
				}
				if err := settle(start.store); err != nil {
					t.Fatal(err)
				}
			}
			ends := explore.PerContent(time.Hour, sc.ends)
			r := explore.Model[*cell]{Start: start, Next: sc.next, Key: (*cell).key, Limit: sc.limit,
				Check: func(c *cell) error {
					if err := check(c.store); err != nil {
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
