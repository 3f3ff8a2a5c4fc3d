package deploy

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// testPools has the controller give a Service an address of an AddressPool, and take it back
// when the Service is gone.
func (s *server) testPools(ctx context.Context, t *testing.T, cache *registry.Cache, changes <-chan struct{}) {
	t.Helper()
	pool := `{"apiVersion": "weft.network/v1", "kind": "AddressPool", "metadata": {"name": "public"}, "spec": {"addresses": ["192.0.2.7-192.0.2.9"]}}`
	if err := s.client.RESTClient().Post().AbsPath("/apis/weft.network/v1/addresspools").SetHeader("Content-Type", "application/json").Body([]byte(pool)).Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := s.client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	key := registry.Key{Namespace: "default", Name: "web"}
	until := func(what string, holds func(svc *corev1.Service, g *api.AddressGrant, p *api.AddressPool) bool) {
		t.Helper()
		for {
			svc := registry.GetAs[*corev1.Service](cache, api.Service, key)
			g := registry.GetAs[*api.AddressGrant](cache, api.AddressGrantKind, registry.Key{Name: "192.0.2.7"})
			p := registry.GetAs[*api.AddressPool](cache, api.AddressPoolKind, registry.Key{Name: "public"})
			if holds(svc, g, p) {
				return
			}
			select {
			case <-changes:
			case <-ctx.Done():
				t.Fatalf("%s: the Service is %+v, the grant %+v, and the pool %+v", what, svc, g, p)
			}
		}
	}
	until("the Service gets an address", func(svc *corev1.Service, g *api.AddressGrant, p *api.AddressPool) bool {
		return svc != nil && g != nil && g.IsOf(svc) && len(svc.Status.LoadBalancer.Ingress) == 1 && svc.Status.LoadBalancer.Ingress[0].IP == "192.0.2.7" &&
			p != nil && p.Status.Total == 3 && p.Status.Used == 1
	})
	// Its grant is changed before its status is written again.
	svc, err := s.client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	if _, err := s.client.CoreV1().Services("default").UpdateStatus(ctx, svc, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until("the Service gets its address back", func(svc *corev1.Service, g *api.AddressGrant, _ *api.AddressPool) bool {
		return svc != nil && g != nil && g.Spec.Turn && g.IsOf(svc) && len(svc.Status.LoadBalancer.Ingress) == 1
	})
	if err := s.client.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("the address is free", func(svc *corev1.Service, g *api.AddressGrant, p *api.AddressPool) bool {
		return svc == nil && g == nil && p.Status.Used == 0
	})
}
