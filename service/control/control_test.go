package control

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
	"github.com/weftnet/weft/service"
)

// What cannot be read is in no snapshot. Somebody has to delete it, and so it has to be said.
func TestWhatCannotBeReadIsAnErrorWhereItIsInTheWay(t *testing.T) {
	r := memory.New()
	svc := newService(0)
	svc.UID = "u"
	g := newGrant(svc, "10.96.0.1", "")
	make := []call{func(ctx context.Context, r registry.Registry) error { return create(ctx, r, service.GrantKind, g) }}
	if done, err := carryOut(t.Context(), r, make); done != 1 || err != nil {
		t.Fatalf("at first %d are made: %v", done, err)
	}
	if done, err := carryOut(t.Context(), r, make); done != 0 || err != nil {
		t.Errorf("where another made it, %d are made: %v", done, err)
	}
	r.PutValue(service.GrantKind, registry.KeyOf(g), []byte("{"))
	_, err := carryOut(t.Context(), r, make)
	if err == nil || !strings.Contains(err.Error(), "servicegrant 10.96.0.1") || !strings.HasSuffix(err.Error(), ": weft delete servicegrant 10.96.0.1") {
		t.Errorf("where it cannot be read: %v", err)
	}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	slice.Namespace, slice.Name = "shop", "web-ipv4-1"
	r.PutValue(api.EndpointSlice, registry.KeyOf(slice), []byte("{"))
	if err := create(t.Context(), r, api.EndpointSlice, slice); err == nil || !strings.HasSuffix(err.Error(), ": weft delete endpointslice web-ipv4-1 --namespace shop") {
		t.Errorf("where a slice cannot be read: %v", err)
	}
}

// restless is a registry in which somebody changes each Service whenever it is written.
type restless struct {
	registry.Registry
	writes int
}

func (r *restless) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if k == api.Service {
		r.writes++
		return nil, k.Errorf(registry.KeyOf(o), registry.ErrConflict, nil)
	}
	return r.Registry.Update(ctx, k, o, opts...)
}

// Each round writes the Grant, and that begins the next one.
func TestRoundsThatGetNothingDoneAreEverRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &restless{Registry: memory.New()}
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/24"}}}
		config.Name = api.DefaultName
		for k, o := range map[*registry.Kind]registry.Object{api.ClusterConfigKind: config, api.Service: newService(0)} {
			if _, err := r.Create(ctx, k, o); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler)) }()
		time.Sleep(10 * time.Minute)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if r.writes < 10 || r.writes > 100 {
			t.Errorf("in 10 minutes the Service is written %d times", r.writes)
		}
	})
}

// A Service that is refused as it is to be changes no Grant, so that no round follows from it.
func TestWhatIsRefusedChangesNoGrant(t *testing.T) {
	r := memory.New()
	svc := newService(0)
	svc.UID = "u"
	o, err := r.Create(t.Context(), service.GrantKind, newGrant(svc, "30080-tcp", "80/TCP"))
	if err != nil {
		t.Fatal(err)
	}
	g := o.(*service.Grant)
	svc.Spec.Type, svc.Spec.Ports = corev1.ServiceTypeNodePort, []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 80, Protocol: corev1.ProtocolTCP}}
	filled, uses, _, _ := allot(nil, []*corev1.Service{svc}, []*service.Grant{g}, nil).serve(svc)
	if len(uses) != 1 {
		t.Errorf("two ports that are one have %d Grants", len(uses))
	}
	if err := (filling{filled, uses}).write(t.Context(), r); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("it is written: %v", err)
	}
	after, err := r.Get(t.Context(), service.GrantKind, registry.KeyOf(g))
	if err != nil || after.GetResourceVersion() != g.ResourceVersion {
		t.Errorf("the Grant changed: %v", err)
	}
}

// Registries refuse to write such a slice now, and may still have one.
func TestAnEndpointWithoutAddressesGoesFromItsSlice(t *testing.T) {
	svc := newService(0)
	svc.Spec.Selector = map[string]string{"app": "web"}
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.2"}}
	before, _ := slicesOf(svc, []*corev1.Pod{pod}, nil, nil, func(string) bool { return false })
	if len(before) != 1 {
		t.Fatalf("there are %d slices", len(before))
	}
	before[0].Endpoints = append([]discoveryv1.Endpoint{{}}, before[0].Endpoints...)
	after, _ := slicesOf(svc, []*corev1.Pod{pod}, nil, before, func(string) bool { return false })
	if len(after) != 1 || len(after[0].Endpoints) != 1 || len(after[0].Endpoints[0].Addresses) != 1 {
		t.Errorf("the slices become %v", after)
	}
}

// Registries refuse such an address now, and may still have one. No Grant is called like that.
func TestAnAddressWithAZoneIsReplaced(t *testing.T) {
	config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"fd96::/112"}}}
	config.Name = api.DefaultName
	svc := newService(0)
	svc.UID, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "u", "fd96::1%x", []string{"fd96::1%x"}
	objects := registry.Snapshot{api.ClusterConfigKind: {config}, api.Service: {svc}}
	d := decide(objects)
	if len(d.make) != 1 || len(d.fill) != 1 || d.fill[0].service.Spec.ClusterIP != "" {
		t.Fatalf("at first it is decided: %+v", d)
	}
	if _, _, err := service.GrantKind.Admit(d.make[0]); err != nil {
		t.Fatal(err)
	}
	objects[service.GrantKind], objects[api.Service] = []registry.Object{d.make[0]}, []registry.Object{d.fill[0].service}
	d = decide(objects)
	if len(d.fill) != 1 || d.fill[0].service.Spec.ClusterIP != d.fill[0].uses[0].Name {
		t.Fatalf("with a Grant it is decided: %+v", d)
	}
	if _, _, err := api.Service.Admit(d.fill[0].service); err != nil {
		t.Error(err)
	}
}
