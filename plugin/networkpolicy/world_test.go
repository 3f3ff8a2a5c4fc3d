package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// world is a cluster in a registry in memory, and a user.
type world struct {
	t        tester
	registry *memory.Registry
	uids     int
}

func newWorld(t tester) *world { return &world{t: t, registry: memory.New()} }

// apply makes or changes objects, as a user does; those that the registry would
// refuse as programs of others can.
func (w *world) apply(text string) {
	w.t.Helper()
	decoded, err := api.Decode([]byte(text), api.Kinds)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, d := range decoded {
		o, err := w.registry.Get(context.Background(), d.Kind, registry.KeyOf(d.Object))
		if err == nil {
			d.Object.SetResourceVersion(o.GetResourceVersion())
			if now, ok := d.Object.(*policyv1alpha2.ClusterNetworkPolicy); ok {
				now.Status = o.(*policyv1alpha2.ClusterNetworkPolicy).Status
			}
			_, err = w.registry.Update(context.Background(), d.Kind, d.Object)
		} else {
			_, err = w.registry.Create(context.Background(), d.Kind, d.Object)
		}
		if errors.Is(err, registry.ErrInvalid) {
			var value []byte
			if value, err = d.Kind.Encode(d.Object); err == nil {
				w.registry.PutValue(d.Kind, registry.KeyOf(d.Object), value)
			}
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) create(k *registry.Kind, o registry.Object) {
	w.t.Helper()
	if _, err := w.registry.Create(context.Background(), k, o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(k *registry.Kind, key registry.Key) {
	w.t.Helper()
	if err := w.registry.Delete(context.Background(), k, key, ""); err != nil {
		w.t.Fatal(err)
	}
}

func all[T registry.Object](w *world, k *registry.Kind) []T {
	w.t.Helper()
	list, _, err := w.registry.List(context.Background(), k)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []T
	for _, o := range list {
		out = append(out, o.(T))
	}
	return out
}

// snapshot is what the registry has of some kinds.
func (w *world) snapshot(kinds []*registry.Kind) registry.Snapshot {
	w.t.Helper()
	s := registry.Snapshot{}
	for _, k := range kinds {
		s[k] = all[registry.Object](w, k)
	}
	return s
}

// machine is a node of the world: its endpoints, and what its data plane does.
type machine struct {
	world   *world
	name    string
	mu      sync.Mutex
	pods    []plugin.Endpoint
	applied *plugin.Applied
	// stuck says that the data plane takes no new plan.
	stuck bool
	kick  func()
}

// start starts a pod on the node: the endpoint, and the object that says what it
// is. words are labels "app=web", ports ":http=80" and addresses.
func (m *machine) start(pod string, words ...string) {
	m.world.t.Helper()
	m.world.uids++
	namespace, name, _ := strings.Cut(pod, "/")
	uid := fmt.Sprintf("uid-%d", m.world.uids)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Labels: map[string]string{}},
		Spec: corev1.PodSpec{NodeName: m.name, Containers: []corev1.Container{{Name: "c"}}}}
	e := plugin.Endpoint{Interface: "if-" + uid, Network: plan.DefaultNetwork, Namespace: namespace, Pod: name, UID: uid}
	for _, word := range words {
		if a, err := netip.ParseAddr(word); err == nil {
			e.Addresses = append(e.Addresses, a)
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		if port, ok := strings.CutPrefix(key, ":"); ok {
			var number int32
			if _, err := fmt.Sscan(value, &number); err != nil {
				m.world.t.Fatal(err)
			}
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: port, ContainerPort: number})
			continue
		}
		p.Labels[key] = value
	}
	e.MAC = plan.MACOf(e.Addresses[0])
	m.world.create(api.Pod, p)
	m.mu.Lock()
	m.pods = append(m.pods, e)
	m.mu.Unlock()
	m.changed()
}

// stop stops a pod.
func (m *machine) stop(pod string) {
	m.world.t.Helper()
	namespace, name, _ := strings.Cut(pod, "/")
	m.world.remove(api.Pod, registry.Key{Namespace: namespace, Name: name})
	m.mu.Lock()
	m.pods = slices.DeleteFunc(slices.Clone(m.pods), func(e plugin.Endpoint) bool { return e.Name() == pod })
	m.mu.Unlock()
	m.changed()
}

func (m *machine) changed() {
	m.mu.Lock()
	kick := m.kick
	m.mu.Unlock()
	if kick != nil {
		kick()
	}
}

func (m *machine) facts() plugin.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return plugin.Node{Name: m.name, Endpoints: slices.Clone(m.pods)}
}

// input is what the node's agent knows if it is not behind.
func (m *machine) input() plugin.Input {
	return plugin.Input{Config: &api.ClusterConfig{}, Objects: m.world.snapshot(On(flat{}, "p").Kinds()), Node: m.facts()}
}

// env is what a runner on the node gets.
func (m *machine) env(r registry.Registry) plugin.NodeEnv {
	return plugin.NodeEnv{Registry: r, Log: slog.New(slog.DiscardHandler), Problem: func(string) {}}
}

// apply has the data plane do what the input says.
func (m *machine) apply(c plugin.Compiler, in plugin.Input) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stuck {
		return
	}
	p, problems := c.Compile(in)
	m.applied = &plugin.Applied{Input: in, Plan: p, Problems: problems}
}

func (m *machine) lastApplied() *plugin.Applied {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.applied
}

// run is a whole agent but for the kernel: it follows the registry, compiles,
// and runs the plug-in's work.
func (m *machine) run(ctx context.Context, p plugin.Plugin) {
	cache := registry.NewCache(m.world.registry, p.Kinds(), slog.New(slog.DiscardHandler))
	changes, cancel := cache.Subscribe()
	defer cancel()
	kicked, changed := make(chan struct{}, 1), make(chan struct{}, 1)
	poke := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	m.mu.Lock()
	m.kick = func() { poke(kicked) }
	m.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { cache.Run(ctx) })
	env := m.env(m.world.registry)
	env.Changed, env.Applied = changed, m.lastApplied
	env.Input = func() (plugin.Input, bool) {
		complete := cache.Synced()
		return plugin.Input{Config: &api.ClusterConfig{}, Objects: cache.Snapshot(), Node: m.facts()}, complete
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := p.(plugin.NodeRunner).RunNode(ctx, env); ctx.Err() == nil {
				panic(err)
			}
		}
	})
	c := plugin.CompilerOf(p)
	for {
		if in, complete := env.Input(); complete {
			m.apply(c, in)
		}
		poke(changed)
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-kicked:
		}
	}
}

// names answers as a name server does.
type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
}

func (n *names) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.answers[host]; a != nil && network == "ip" {
		return a, nil
	}
	return nil, errors.New("no such host")
}

func (n *names) set(host string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.answers, host)
	for _, a := range addresses {
		n.answers[host] = append(n.answers[host], netip.MustParseAddr(a))
	}
}

// run runs the controller.
func (w *world) run(ctx context.Context, n *names, metrics prometheus.Registerer) {
	c := newCluster(plugin.ClusterEnv{Registry: w.registry, Log: slog.New(slog.DiscardHandler), Metrics: metrics})
	c.domains.resolver = n
	if err := c.run(ctx); !errors.Is(err, context.Canceled) {
		panic(err)
	}
}

// state is everything that people see, without what differs from run to run.
func (w *world) state() string {
	var b strings.Builder
	for _, t := range all[*api.Tag](w, api.TagKind) {
		var ports []string
		for _, p := range t.Spec.Ports {
			ports = append(ports, fmt.Sprintf("%s %s/%d", p.Name, p.Protocol, p.Port))
		}
		fmt.Fprintf(&b, "tag %s of %s %v", t.Name, t.Spec.Namespace, t.Spec.Labels)
		if ports != nil {
			fmt.Fprintf(&b, " %v", ports)
		}
		if t.Spec.UnusedSince != nil {
			fmt.Fprint(&b, " unused")
		}
		fmt.Fprintln(&b)
	}
	for _, n := range all[*api.NodePods](w, api.NodePodsKind) {
		fmt.Fprintf(&b, "nodepods %s", n.Name)
		for _, p := range n.Pods {
			fmt.Fprintf(&b, " %d:%v", p.Tag, p.Addresses)
		}
		fmt.Fprintln(&b)
	}
	for _, r := range all[*api.NodeReport](w, api.NodeReportKind) {
		fmt.Fprintf(&b, "nodereport %s of %v", r.Name, slices.Sorted(maps.Keys(r.Enforced)))
		for _, p := range r.Problems {
			fmt.Fprintf(&b, " %s %s/%s: %s", p.Kind, p.Namespace, p.Name, p.Message)
		}
		fmt.Fprintln(&b)
	}
	for _, d := range all[*api.DomainName](w, api.DomainNameKind) {
		fmt.Fprintf(&b, "domainname %s %v %s\n", d.Name, d.Addresses, d.Problem)
	}
	for _, p := range all[*policyv1alpha2.ClusterNetworkPolicy](w, api.ClusterNetworkPolicy) {
		for _, c := range p.Status.Conditions {
			fmt.Fprintf(&b, "clusternetworkpolicy %s %s %s %s %q\n", p.Name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, s := range States(w.snapshot(StateKinds())) {
		fmt.Fprintf(&b, "state %s %s nodes %v pending %v problems %q\n", s.Kind.Kind, s.Key, s.Nodes, s.Pending, s.Problems)
	}
	for _, e := range all[*corev1.Event](w, api.Event) {
		fmt.Fprintf(&b, "event %s %s %s/%s %s %q\n", e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}

// gate is a registry that asks before each call, and fails every call from the
// first that it is not allowed.
type gate struct {
	registry.Registry
	allow  func(call string) bool
	killed bool
}

var errKilled = errors.New("killed")

func (g *gate) pass(verb string, k *registry.Kind, name string) error {
	if g.killed || !g.allow(verb+" "+k.Plural+" "+name) {
		g.killed = true
		return errKilled
	}
	return nil
}

func (g *gate) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	if err := g.pass("get", k, key.Name); err != nil {
		return nil, err
	}
	return g.Registry.Get(ctx, k, key)
}

func (g *gate) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if err := g.pass("list", k, ""); err != nil {
		return nil, "", err
	}
	return g.Registry.List(ctx, k)
}

func (g *gate) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := g.pass("create", k, o.GetName()); err != nil {
		return nil, err
	}
	return g.Registry.Create(ctx, k, o, opts...)
}

func (g *gate) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := g.pass("update", k, o.GetName()); err != nil {
		return nil, err
	}
	return g.Registry.Update(ctx, k, o, opts...)
}

func (g *gate) Delete(ctx context.Context, k *registry.Kind, key registry.Key, resourceVersion string) error {
	if err := g.pass("delete", k, key.Name); err != nil {
		return err
	}
	return g.Registry.Delete(ctx, k, key, resourceVersion)
}

// bubble runs a test in which time passes when nobody has anything to do.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// settle lets all that was begun come to its end, and time pass for that.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
