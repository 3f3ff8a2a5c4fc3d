package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/registry"
)

// someService draws a Service, with what somebody may have written into its status.
func someService(t *rapid.T, name string) *corev1.Service {
	svc := newService(rapid.IntRange(0, 3).Draw(t, "age"))
	svc.Namespace, svc.Name = rapid.SampledFrom([]string{"shop", "other"}).Draw(t, "namespace"), name
	svc.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeClusterIP}).Draw(t, "type")
	svc.Spec.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{{corev1.IPv4Protocol}, {corev1.IPv6Protocol, corev1.IPv4Protocol}, nil}).Draw(t, "families")
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
	if class := rapid.SampledFrom([]string{"", "", api.LinkClass, "example.com/x"}).Draw(t, "class"); class != "" && svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		svc.Spec.LoadBalancerClass = &class
	}
	some := rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2", "192.0.2.5", "2001:db8::1", "203.0.113.1"})
	if asks := rapid.SampledFrom([]string{"", "", "asks", "x"}).Draw(t, "asks"); asks == "asks" {
		svc.Annotations = map[string]string{api.AddressesAnnotation: some.Draw(t, "asked")}
	} else if asks != "" {
		svc.Annotations = map[string]string{api.AddressesAnnotation: asks}
	}
	if pool := rapid.SampledFrom([]string{"", "", "a", "z"}).Draw(t, "asks for a pool"); pool != "" && svc.Annotations == nil {
		svc.Annotations = map[string]string{naming[0]: pool}
	}
	if rapid.IntRange(0, 3).Draw(t, "has a status") == 0 {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: some.Draw(t, "has")}}
		switch rapid.IntRange(0, 3).Draw(t, "has more") {
		case 0:
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: "lb.example.com"})
		case 1:
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: some.Draw(t, "has, too")})
		}
	}
	return svc
}

func somePool(t *rapid.T, name string) *api.AddressPool {
	p := &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.Addresses = rapid.SampledFrom([][]string{{"192.0.2.1-192.0.2.3"}, {"192.0.2.0/29"}, {"192.0.2.3-192.0.2.6", "2001:db8::/126"}, {"2001:db8::1-2001:db8::1"}}).Draw(t, "addresses")
	p.Spec.LoadBalancerClass = rapid.SampledFrom([]string{"", "", "example.com/x"}).Draw(t, "serves")
	if rapid.Bool().Draw(t, "of one namespace") {
		p.Spec.Namespaces = &api.PoolNamespaces{Names: []string{"shop"}}
	}
	if rapid.IntRange(0, 3).Draw(t, "is asked") == 0 {
		no := false
		p.Spec.AutoAssign = &no
	}
	return p
}

// Whatever there is, and however old what a controller has seen of it is: whoever is given an
// address has a use for it by what was read of him, which is what makes it safe to take grants
// away; nobody gets what another has, or loses what nobody else was given; and it all comes to an end, where addresses are of pools,
// of one Service each, and of those who may have them.
func TestNoAddressIsTwoServices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &explore.Store{Now: began}
		seen := s.Snapshot(Kinds...)
		for range rapid.IntRange(1, 14).Draw(t, "steps") {
			s.Advance(time.Second)
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			put := func(k *registry.Kind, o registry.Object) {
				before, err := s.Get(k, registry.KeyOf(o))
				if err == nil {
					o.SetUID(before.GetUID())
					o.SetResourceVersion(before.GetResourceVersion())
					if svc, is := o.(*corev1.Service); is && len(svc.Status.LoadBalancer.Ingress) == 0 {
						svc.Status = before.(*corev1.Service).Status
					}
					_, err = s.Update(k, o)
				} else {
					_, err = s.Create(k, o)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				_ = s.Delete(api.Service, registry.Key{Namespace: rapid.SampledFrom([]string{"shop", "other"}).Draw(t, "of"), Name: name}, "")
			case 1:
				_ = s.Delete(api.AddressPoolKind, registry.Key{Name: name}, "")
			case 2:
				put(api.AddressPoolKind, somePool(t, name))
			case 3:
				// One sees each kind for itself, some of them as they were.
				now := s.Snapshot(Kinds...)
				for _, k := range Kinds {
					if rapid.IntRange(0, 3).Draw(t, "sees "+k.Plural) > 0 {
						seen[k] = now[k]
					}
				}
				d := decide(seen)
				for _, g := range d.give {
					was := registry.GetAs[*corev1.Service](seen, api.Service, registry.KeyOf(g.service))
					for _, one := range slices.Concat(g.lacks, g.begins) {
						if !uses(was, one) {
							t.Fatalf("it is given %s, which it has no use for: %+v", one.Name, was)
						}
					}
					if address, is := loses(was, g.service); is && grantOf(seen, address) == nil && !d.grants(address) {
						t.Fatalf("it loses %s, of which nobody has the grant: %+v", address, was)
					}
				}
				if err := carryOut(s.Registry(), d.calls()); err != nil {
					t.Fatal(err)
				}
			default:
				put(api.Service, someService(t, name))
			}
		}
		if err := settle(s); err != nil {
			t.Fatal(err)
		}
		if err := orderly(s); err != nil {
			t.Fatal(err)
		}
	})
}

// grants reports whether somebody is given an address in this round.
func (d decision) grants(a netip.Addr) bool {
	return slices.ContainsFunc(d.give, func(g giving) bool {
		return slices.ContainsFunc(g.lacks, func(one *api.AddressGrant) bool { return one.Address() == a })
	})
}

// loses returns an address that a Service loses, of a family that it is of, and gets no other for it.
func loses(was, now *corev1.Service) (netip.Addr, bool) {
	had, _ := inStatus(was)
	has, _ := inStatus(now)
	for _, a := range had {
		if isBalanced(now) && slices.Contains(familiesOf(now), familyOf(a)) && !slices.ContainsFunc(has, func(b netip.Addr) bool { return familyOf(b) == familyOf(a) }) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// orderly says what is wrong with where it all ended.
func orderly(s *explore.Store) error {
	objects := s.Snapshot(Kinds...)
	has := make(map[netip.Addr]string)
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		all, _ := inStatus(svc)
		for _, a := range all {
			g := grantOf(objects, a)
			if g != nil && g.IsOf(svc) {
				if other := has[a]; other != "" {
					return fmt.Errorf("%s is %s's and %s's", a, other, registry.KeyOf(svc))
				}
				has[a] = registry.KeyOf(svc).String()
			}
		}
	}
	for g := range registry.Each[*api.AddressGrant](objects, api.AddressGrantKind) {
		svc := registry.GetAs[*corev1.Service](objects, api.Service, g.Spec.Service())
		if svc == nil || !g.IsOf(svc) || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			return fmt.Errorf("%s is given to %s, which is %+v", g.Name, g.Spec.Service(), svc)
		}
	}
	return nil
}
