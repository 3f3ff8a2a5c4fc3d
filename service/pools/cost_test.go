package pools

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// many returns n Services, each in a namespace of its own, that have addresses or wait for them,
// in m pools.
func many(n, m int, have bool) registry.Snapshot {
	objects := make(map[*registry.Kind][]registry.Object)
	for i := range m {
		p := &api.AddressPool{Spec: api.AddressPoolSpec{Addresses: []string{fmt.Sprintf("10.%d.0.0/16", i), fmt.Sprintf("2001:db8:%x::/48", i+1)}}}
		p.Name = fmt.Sprintf("pool-%05d", i)
		objects[api.AddressPoolKind] = append(objects[api.AddressPoolKind], p)
	}
	mode := corev1.LoadBalancerIPModeVIP
	for i := range n {
		svc := newService(0)
		svc.Namespace, svc.Name, svc.UID = fmt.Sprintf("n-%05d", i), "web", types.UID(fmt.Sprint("u", i))
		if have {
			g := &api.AddressGrant{Spec: api.AddressGrantSpec{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, Pool: "pool-00000"}}
			g.Name = fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)
			objects[api.AddressGrantKind] = append(objects[api.AddressGrantKind], g)
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: g.Name, IPMode: &mode}}
		}
		objects[api.Service] = append(objects[api.Service], svc)
	}
	return registry.NewSnapshot(objects)
}

func allocated(by func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// Ten thousand Services cost ten times what a thousand do, whether they have addresses or wait
// for them, and all of them are given one in a round.
func TestARoundIsNoProduct(t *testing.T) {
	for _, have := range []bool{false, true} {
		cost := func(n int) float64 {
			objects := many(n, 10, have)
			var d decision
			bytes := allocated(func() { d = decide(objects) })
			made := 0
			for _, g := range d.give {
				made += len(g.lacks)
			}
			if want := map[bool]int{false: n, true: 0}[have]; made != want || len(d.remove) > 0 {
				t.Fatalf("of %d services that have addresses (%t), %d are given one, and %d grants are taken away", n, have, made, len(d.remove))
			}
			return bytes
		}
		if one, ten := cost(1000), cost(10_000); ten > 14*one {
			t.Errorf("have addresses %t: it takes %.0f bytes, and %.0f with ten times as many", have, one, ten)
		}
	}
}

// A free address is found by what is taken, and not by what there is.
func TestAFreeAddressCostsWhatIsTaken(t *testing.T) {
	objects := many(100, 1, true)
	pool := objects[api.AddressPoolKind][0].(*api.AddressPool)
	pool.Spec.Addresses = []string{"10.0.0.0/10"}
	small := allocated(func() { decide(objects) })
	svc := newService(0)
	svc.Namespace, svc.Name, svc.UID = "zz", "new", "new"
	objects[api.Service] = append(objects[api.Service], svc)
	a := newAllotment(objects)
	if a.pools[0].total != 1<<22-2 {
		t.Errorf("there are %d addresses", a.pools[0].total)
	}
	if more := allocated(func() { decide(objects) }); more > 2*small {
		t.Errorf("it takes %.0f bytes, and %.0f where one is to be found", small, more)
	}
}

// Where nothing is free, that is found once in a round, and not for each that waits.
func TestThatNothingIsFreeIsFoundOnce(t *testing.T) {
	objects := many(1000, 0, true)
	p := &api.AddressPool{Spec: api.AddressPoolSpec{Addresses: []string{"10.0.0.1-10.0.3.250"}}}
	p.Name = "full"
	objects[api.AddressPoolKind] = []registry.Object{p}
	a := newAllotment(objects)
	for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
		a.taken[g.Address()] = g
	}
	given := 0
	for a.pools[0].next(corev1.IPv4Protocol, a).IsValid() {
		given++
	}
	if given != 1018-1000 || len(a.pools[0].free[corev1.IPv4Protocol]) > 0 {
		t.Errorf("%d were free, and %v is left to look at", given, a.pools[0].free)
	}
}
