package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

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
	make := slices.Values([]call{{Do: func(ctx context.Context, r registry.Registry) error { return create(ctx, r, service.GrantKind, g) }}})
	for range 2 { // the second time it is there, and that is no error
		if err := carryOut(t.Context(), r, make); err != nil {
			t.Fatal(err)
		}
	}
	r.PutValue(service.GrantKind, registry.KeyOf(g), []byte("{"))
	err := carryOut(t.Context(), r, make)
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

// restless is a registry in which somebody changes each Service of namespace default whenever it is written. Those
// that are called so are refused.
type restless struct {
	registry.Registry
	// takes is how long a write takes.
	takes  time.Duration
	writes int
}

func (r *restless) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if o.GetName() == "refused" {
		return nil, k.Errorf(registry.KeyOf(o), registry.ErrInvalid, nil)
	}
	if k == api.Service && o.GetNamespace() == "default" {
		time.Sleep(r.takes)
		r.writes++
		return nil, k.Errorf(registry.KeyOf(o), registry.ErrConflict, nil)
	}
	return r.Registry.Update(ctx, k, o, opts...)
}

// Each round writes the Grant, and that begins the next one. Nobody else waits for that, nor does it change by what
// else of its namespace fails.
func TestRoundsThatGetNothingDoneAreEverRarer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := &restless{Registry: memory.New()}
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/24"}}}
		config.Name = api.DefaultName
		refused := newService(1)
		refused.Name = "refused"
		for o, k := range map[registry.Object]*registry.Kind{config: api.ClusterConfigKind, newService(0): api.Service, refused: api.Service} {
			if _, err := r.Create(ctx, k, o); err != nil {
				t.Fatal(err)
			}
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler), nil) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		writes := r.writes
		another := newService(1)
		another.Namespace = "shop"
		if _, err := r.Create(ctx, api.Service, another); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * pause)
		if o, err := r.Get(ctx, api.Service, registry.KeyOf(another)); err != nil || o.(*corev1.Service).Spec.ClusterIP == "" {
			t.Errorf("a Service of another namespace has no address yet: %v, %v", o, err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if writes < 10 || writes > 100 {
			t.Errorf("in 10 minutes the Service is written %d times", writes)
		}
	})
}

// A Service is changed whenever it is written, of which something is to be said alone.
func TestWhatIsToBeSaidIsWrittenEverMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		// There is nothing that it gets an address from.
		r := &restless{Registry: memory.New(), takes: 5 * time.Millisecond}
		if _, err := r.Create(ctx, api.Service, newService(0)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler), nil) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if r.writes < 10 || r.writes > 100 {
			t.Errorf("in 10 minutes the Service is written %d times", r.writes)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
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
	if err := (filling{service: svc, uses: []*service.Grant{g}}).write(t.Context(), r); !errors.Is(err, registry.ErrInvalid) {
		t.Errorf("it is written: %v", err)
	}
	after, err := r.Get(t.Context(), service.GrantKind, registry.KeyOf(g))
	if err != nil || after.GetResourceVersion() != g.ResourceVersion {
		t.Errorf("the Grant changed: %v", err)
	}
}

// A Service that gets something, and is told at the same time what it cannot have, is written once.
func TestWhoGetsSomethingIsToldWithIt(t *testing.T) {
	r := memory.New()
	config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/24"}}}
	config.Name = api.DefaultName
	policy := corev1.IPFamilyPolicyRequireDualStack
	svc := newService(0)
	svc.Spec.IPFamilyPolicy = &policy
	for o, k := range map[registry.Object]*registry.Kind{config: api.ClusterConfigKind, svc: api.Service} {
		if _, err := r.Create(t.Context(), k, o); err != nil {
			t.Fatal(err)
		}
	}
	objects := func() registry.Objects {
		all := make(registry.Snapshot)
		for _, k := range []*registry.Kind{api.ClusterConfigKind, api.Service, service.GrantKind} {
			all[k], _, _ = r.List(t.Context(), k)
		}
		return all
	}
	if _, err := r.Create(t.Context(), service.GrantKind, decide(objects()).make[0]); err != nil {
		t.Fatal(err)
	}
	d := decide(objects())
	if len(d.fill) != 1 || len(d.say) != 0 {
		t.Fatalf("%d are filled, and of %d something is said besides", len(d.fill), len(d.say))
	}
	if err := carryOut(t.Context(), r, slices.Values(d.calls())); err != nil {
		t.Fatal(err)
	}
	o, err := r.Get(t.Context(), api.Service, registry.KeyOf(svc))
	if err != nil {
		t.Fatal(err)
	}
	if svc := o.(*corev1.Service); svc.Spec.ClusterIP == "" || !isSaid(svc, "no range of IPv6") || len(decide(objects()).calls()) != 0 {
		t.Errorf("it becomes %+v, %+v", svc.Spec, svc.Status)
	}
}

// Registries refuse to write such a slice now, and may still have one.
func TestAnEndpointWithoutAddressesGoesFromItsSlice(t *testing.T) {
	svc := newService(0)
	svc.Spec.Selector = map[string]string{"app": "web"}
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.2"}}
	members := []member{{pod, discoveryv1.AddressTypeIPv4, "10.1.1.2", numbersOf(svc).on(pod)}}
	before := slicesOf(svc, members, nil, nil, func(string) bool { return false })
	if len(before) != 1 {
		t.Fatalf("there are %d slices", len(before))
	}
	before[0].Endpoints = append([]discoveryv1.Endpoint{{}}, before[0].Endpoints...)
	after := slicesOf(svc, members, nil, before, func(string) bool { return false })
	if len(after) != 1 || len(after[0].Endpoints) != 1 || len(after[0].Endpoints[0].Addresses) != 1 {
		t.Errorf("the slices become %v", after)
	}
}

// An EndpointSlice goes once those that replace it are as they are to be, whatever of that fails.
func TestASliceGoesBehindThoseThatReplaceIt(t *testing.T) {
	svc := newService(0)
	svc.UID, svc.Spec.Selector = "u", map[string]string{"app": "web"}
	svc.Spec.Ports[0].TargetPort = intstr.FromString("old")
	pod := func(name, ip string, before, after int32) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: name, Labels: svc.Spec.Selector}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}}
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "old", ContainerPort: before}, {Name: "new", ContainerPort: after}}}}
		return p
	}
	// The slice of port 81 stays, with other pods, that of 80 goes, and one of 82 comes.
	objects := registry.Snapshot{api.Service: {svc}, api.Pod: {pod("a", "10.1.1.2", 80, 81), pod("b", "10.1.1.3", 81, 82), pod("c", "10.1.1.4", 81, 81)}}
	d := decide(objects)
	for _, s := range d.create {
		objects[api.EndpointSlice] = append(objects[api.EndpointSlice], s)
	}
	svc.Spec.Ports[0].TargetPort = intstr.FromString("new")
	d = decide(objects)
	if len(d.create) != 1 || len(d.update) != 1 || len(d.drop) != 0 {
		t.Fatalf("at first %d slices are made, %d changed and %d dropped", len(d.create), len(d.update), len(d.drop))
	}
	objects[api.EndpointSlice] = append(objects[api.EndpointSlice], d.create[0])
	if d := decide(objects); len(d.update) != 1 || len(d.drop) != 0 {
		t.Errorf("while one is not changed yet, %d are dropped", len(d.drop))
	}
	for i, s := range objects[api.EndpointSlice] {
		if s.GetName() == d.update[0].Name {
			objects[api.EndpointSlice][i] = d.update[0]
		}
	}
	if d := decide(objects); len(d.create)+len(d.update) != 0 || len(d.drop) != 1 {
		t.Errorf("in the end %d are dropped", len(d.drop))
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

// counted is a registry that counts what is written.
type counted struct {
	registry.Registry
	writes atomic.Int64
}

func (r *counted) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	r.writes.Add(1)
	return r.Registry.Create(ctx, k, o, opts...)
}

func (r *counted) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	r.writes.Add(1)
	return r.Registry.Update(ctx, k, o, opts...)
}

// What was stored before there was a rule that it breaks says so, keeps nothing from others, is not
// written again and again, and gets what it is to get once it is as it is to be.
func TestWhatBreaksALaterRuleSaysSo(t *testing.T) {
	specs := map[string]struct {
		spec   corev1.ServiceSpec
		breaks string
	}{
		"kind":     {corev1.ServiceSpec{Type: "Foo", Ports: []corev1.ServicePort{{Port: 80}}}, `spec.type: Unsupported value: "Foo"`},
		"ports":    {corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 80}}}, "spec.ports[1]: Duplicate value"},
		"number":   {corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 70000}}}, "spec.ports[0].port: Invalid value: 70000"},
		"chosen":   {corev1.ServiceSpec{ClusterIP: "10.96.0.2", SessionAffinity: "Foo", Ports: []corev1.ServicePort{{Port: 80}}}, `spec.sessionAffinity: Unsupported value: "Foo"`},
		"families": {corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{"IPv5"}, Ports: []corev1.ServicePort{{Port: 80}}}, "spec.ipFamilies[0]: Unsupported value"},
		"ranges": {corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: slices.Repeat([]string{strings.Repeat("x", 5000)}, 100),
			Ports: []corev1.ServicePort{{Port: 80}}}, " and 97 more"},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := memory.New()
		r := &counted{Registry: m}
		// There is one address but the one that a Service has chosen.
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{ServiceNetworks: []string{"10.96.0.0/30"}}}
		config.Name = api.DefaultName
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{"app": "web"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.1.2"}}
		fine := newService(0)
		fine.Namespace, fine.Name, fine.CreationTimestamp = "default", "fine", metav1.Now()
		for k, o := range map[*registry.Kind]registry.Object{api.ClusterConfigKind: config, api.Pod: pod, api.Service: fine} {
			if _, err := m.Create(ctx, k, o); err != nil {
				t.Fatal(err)
			}
		}
		for name, of := range specs {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}, Spec: of.spec}
			svc.SetGroupVersionKind(api.Service.GroupVersionKind)
			value, err := api.Service.Encode(svc)
			if err != nil || api.Service.Validate(svc) == nil {
				t.Fatalf("%s breaks no rule: %v", name, err)
			}
			m.PutValue(api.Service, registry.KeyOf(svc), value)
		}
		var log strings.Builder
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.NewTextHandler(&log, nil)), nil) }()
		get := func(name string) (*corev1.Service, string) {
			o, err := m.Get(ctx, api.Service, registry.Key{Namespace: "default", Name: name})
			if err != nil {
				t.Fatal(err)
			}
			svc := o.(*corev1.Service)
			if c := meta.FindStatusCondition(svc.Status.Conditions, Granted); c != nil {
				return svc, c.Message
			}
			return svc, ""
		}
		time.Sleep(10 * time.Minute)
		if svc, said := get("fine"); svc.Spec.ClusterIP != "10.96.0.1" || said != "" {
			t.Errorf("the one that breaks no rule has %q: %s", svc.Spec.ClusterIP, said)
		}
		for name, of := range specs {
			if _, said := get(name); !strings.Contains(said, of.breaks) || !strings.HasSuffix(said, "apply it anew as it is to be") || len(said) > 4000 {
				t.Errorf("%s says %.5000s", name, said)
			}
		}
		if n := r.writes.Load(); n > 40 {
			t.Errorf("in 10 minutes there are %d writes", n)
		}
		if err := m.Delete(ctx, api.Service, registry.KeyOf(fine), ""); err != nil {
			t.Fatal(err)
		}
		if _, err := registry.Modify(ctx, m, api.Service, registry.Key{Namespace: "default", Name: "kind"}, func(svc *corev1.Service) error { svc.Spec.Type = ""; return nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if svc, said := get("kind"); svc.Spec.ClusterIP != "10.96.0.1" || said != "" {
			t.Errorf("once it breaks no rule it has %q, and says %s", svc.Spec.ClusterIP, said)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if log.Len() > 0 {
			t.Errorf("it is logged:\n%s", log.String())
		}
	})
}
