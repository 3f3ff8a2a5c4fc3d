package openshift

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

var errKilled = errors.New("killed")

// gate is a registry that asks before each call, and fails every call from the
// first that it is not allowed.
type gate struct {
	registry.Registry
	allow  func() bool
	killed bool
	now    func() time.Time
	// next is the call that is about to be made.
	next string
}

func (g *gate) pass(verb string, k *registry.Kind, name string) error {
	g.next = verb + " " + k.Plural + " " + name
	if g.killed || !g.allow() {
		g.killed = true
		return errKilled
	}
	return nil
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
	o.SetCreationTimestamp(metav1.NewTime(g.now()))
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

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// world is a cluster without a network: a registry, a clock, and a user.
type world struct {
	t          tester
	registry   *memory.Registry
	now        time.Time
	quarantine time.Duration
	uids       int
}

func newWorld(t tester) *world {
	return &world{t: t, registry: memory.New(), now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC), quarantine: time.Minute}
}

func (w *world) clock() time.Time { return w.now }

func (w *world) cluster(r registry.Registry) *cluster {
	return &cluster{registry: r, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil),
		quarantine: w.quarantine, now: w.clock}
}

// settle runs one controller until it has nothing to do.
func (w *world) settle() decision {
	w.t.Helper()
	c := w.cluster(w.registry)
	for range 20 {
		d, err := c.round(context.Background())
		if err != nil {
			w.t.Fatal("undisturbed round:", err)
		}
		if len(d.writes) == 0 {
			return d
		}
	}
	w.t.Fatal("the controller finds no end")
	return decision{}
}

func (w *world) create(k *registry.Kind, o registry.Object) {
	w.t.Helper()
	o.SetCreationTimestamp(metav1.NewTime(w.now))
	if _, err := w.registry.Create(context.Background(), k, o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(k *registry.Kind, name string) {
	w.t.Helper()
	if err := w.registry.Delete(context.Background(), k, registry.Key{Name: name}, ""); err != nil {
		w.t.Fatal(err)
	}
}

func modify[T registry.Object](w *world, k *registry.Kind, name string, change func(T)) {
	w.t.Helper()
	_, err := registry.Modify(context.Background(), w.registry, k, registry.Key{Name: name}, func(o T) error { change(o); return nil })
	if err != nil {
		w.t.Fatal(err)
	}
}

// network makes the ClusterNetwork, of entries such as "10.1.0.0/16 8".
func (w *world) network(entries ...string) {
	w.t.Helper()
	cn := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
	for _, e := range entries {
		var entry networkv1.ClusterNetworkEntry
		if _, err := fmt.Sscan(e, &entry.CIDR, &entry.HostSubnetLength); err != nil {
			w.t.Fatal(err)
		}
		cn.ClusterNetworks = append(cn.ClusterNetworks, entry)
	}
	w.create(api.ClusterNetwork, cn)
}

// node makes a Node.
func (w *world) node(name string, addresses ...string) {
	w.t.Helper()
	w.uids++
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("uid-%d", w.uids))}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	w.create(api.Node, n)
}

// ghost makes a HostSubnet that no node stands behind.
func (w *world) ghost(name, address string) {
	w.t.Helper()
	w.create(api.HostSubnet, &networkv1.HostSubnet{Host: name, HostIP: address,
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{AssignSubnet: "true"}}})
}

func objects[T registry.Object](w *world, k *registry.Kind) map[string]T {
	w.t.Helper()
	list, _, err := w.registry.List(context.Background(), k)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]T{}
	for _, o := range list {
		out[o.GetName()] = o.(T)
	}
	return out
}

func (w *world) hosts() map[string]*networkv1.HostSubnet {
	return objects[*networkv1.HostSubnet](w, api.HostSubnet)
}
func (w *world) nodes() map[string]*corev1.Node { return objects[*corev1.Node](w, api.Node) }

// state is everything that people see, without what differs from run to run.
func (w *world) state() string {
	var b strings.Builder
	hosts := w.hosts()
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		h := hosts[name]
		fmt.Fprintf(&b, "hostsubnet %s host %s hostIP %s subnet %s annotations %v\n", name, h.Host, h.HostIP, h.Subnet, h.Annotations)
	}
	nodes := w.nodes()
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(&b, "node %s annotations %v\n", name, nodes[name].Annotations)
	}
	for _, c := range objects[*api.ClusterConfig](w, api.ClusterConfigKind) {
		for _, condition := range c.Status.Conditions {
			fmt.Fprintf(&b, "condition %s %s %s %q\n", condition.Type, condition.Status, condition.Reason, condition.Message)
		}
		if l := c.Status.Subnets; l != nil {
			for _, g := range l.Pending {
				fmt.Fprintf(&b, "pending %s %s\n", g.Subnet, g.Node)
			}
			for _, g := range l.Quarantined {
				fmt.Fprintf(&b, "quarantined %s %s until %s\n", g.Subnet, g.Node, g.Until.UTC().Format(time.TimeOnly))
			}
			for _, cidr := range slices.Sorted(maps.Keys(l.Cursor)) {
				fmt.Fprintf(&b, "cursor %s %s\n", cidr, l.Cursor[cidr])
			}
		}
	}
	for _, cn := range objects[*networkv1.ClusterNetwork](w, api.ClusterNetwork) {
		fmt.Fprintf(&b, "clusternetwork %v %s %d annotations %v\n", cn.ClusterNetworks, cn.Network, cn.HostSubnetLength, cn.Annotations)
	}
	return b.String()
}

// TestKilledAfterEachCall kills the controller after each of its calls to the
// registry in turn, starts another, and wants the state in the end that an
// undisturbed one leaves.
func TestKilledAfterEachCall(t *testing.T) {
	story := []func(*world){
		func(w *world) { w.network("10.1.0.0/22 0", "fd01::/48 64") },
		func(w *world) { w.node("node1", "192.168.7.1"); w.node("node2", "192.168.7.2", "fd00::2") },
		func(w *world) {
			w.node("node3", "192.168.7.3")
			w.ghost("f5", "192.168.7.200")
			w.remove(api.Node, "node1")
		},
		func(w *world) { w.node("node4", "192.168.7.4"); w.node("node5", "192.168.7.2") },
		func(w *world) { w.remove(api.Node, "node2"); w.node("node2", "192.168.7.22") },
		func(w *world) { w.now = w.now.Add(w.quarantine + 2*time.Second) },
		func(w *world) { w.remove(api.Node, "node4"); w.node("node1", "192.168.7.1") },
		func(w *world) {
			modify(w, api.Node, "node3", func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.168.7.33" })
		},
	}
	run := func(kill int) (states []string, calls int) {
		w := newWorld(t)
		for _, event := range story {
			event(w)
			for {
				g := &gate{Registry: w.registry, now: w.clock, allow: func() bool { calls++; return calls-1 != kill }}
				d, err := w.cluster(g).round(t.Context())
				if err != nil && !errors.Is(err, errKilled) {
					t.Fatal(err)
				}
				if err == nil && len(d.writes) == 0 {
					break
				}
			}
			states = append(states, w.state())
		}
		return states, calls
	}
	want, calls := run(-1)
	if calls < 50 {
		t.Fatalf("the story has %d calls only", calls)
	}
	for kill := range calls {
		got, _ := run(kill)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("killed instead of call %d: -want +got\n%s", kill, d)
		}
	}
	t.Logf("killed at each of %d calls; in the end:\n%s", calls, want[len(want)-1])
}

// controller is one of several that act at once, a call at a time.
type controller struct {
	world *world
	gate  *gate
	next  func() (struct{}, bool)
	stop  func()
}

func newController(w *world) *controller {
	c := &controller{world: w}
	c.restart()
	return c
}

func (c *controller) restart() {
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.gate = &gate{Registry: c.world.registry, now: c.world.clock, allow: func() bool { return yield(struct{}{}) }}
		for g := c.gate; !g.killed; {
			// Errors are what this is about: the next round puts them right.
			_, _ = c.world.cluster(g).round(context.Background())
		}
	})
	c.next() // up to before its first call
}

// step lets it do one call, up to before the next.
func (c *controller) step() { c.next() }

func (c *controller) kill() { c.stop(); c.restart() }

// until lets it do calls up to before a certain one.
func (c *controller) until(call string) {
	c.world.t.Helper()
	for range 100 {
		if c.gate.next == call {
			return
		}
		c.step()
	}
	c.world.t.Fatalf("the controller does not come to %q", call)
}

// TestStraggler stops a controller before a write and lets it do that write
// at any later moment: after any number of another's calls, which itself was
// killed meanwhile.
func TestStraggler(t *testing.T) {
	for _, c := range []struct {
		name  string
		story func(w *world, straggler, other *controller)
		want  map[string]string
	}{
		{"fills in the subnet of a node that is gone", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			straggler.until("update hostsubnets a")
			w.remove(api.Node, "a")
			other.until("delete hostsubnets a")
			other.kill()
			w.now = w.now.Add(2 * w.quarantine)
			w.node("b", "192.168.7.2")
		}, map[string]string{"b": "10.1.0.0/24"}},
		{"fills in the subnet of a node that is back", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			straggler.until("update hostsubnets a")
			w.remove(api.Node, "a")
			w.node("b", "192.168.7.2")
			other.until("create hostsubnets b")
			other.kill()
			w.node("a", "192.168.7.1")
		}, map[string]string{"a": "10.1.0.0/24", "b": ""}},
		{"deletes the HostSubnet of a node that is back", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			w.settle()
			w.remove(api.Node, "a")
			straggler.until("delete hostsubnets a")
			w.node("a", "192.168.7.1")
			w.settle()
			w.node("b", "192.168.7.2")
		}, map[string]string{"a": "10.1.0.0/24", "b": ""}},
		{"makes a HostSubnet for a node that is gone", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			straggler.until("create hostsubnets a")
			w.settle()
			w.remove(api.Node, "a")
			w.settle()
			w.now = w.now.Add(2 * w.quarantine)
			w.node("b", "192.168.7.2")
		}, map[string]string{"b": "10.1.0.0/24"}},
		{"gives out what was given out", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			straggler.until("update clusterconfigs default")
			w.node("b", "192.168.7.2")
		}, map[string]string{"a": "10.1.0.0/24", "b": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for calls := range 40 {
				w := newWorld(t)
				w.network("10.1.0.0/24 8") // there is one subnet to fight for
				w.settle()
				straggler, other := newController(w), newController(w)
				watch := newObserver(w)
				c.story(w, straggler, other)
				watch.look()
				for range calls {
					other.step()
					watch.look()
				}
				straggler.step()
				watch.look()
				for range 40 {
					other.step()
					watch.look()
				}
				straggler.stop()
				other.stop()
				w.settle()
				watch.look()
				got := map[string]string{}
				for name, h := range w.hosts() {
					got[name] = h.Subnet
				}
				if d := cmp.Diff(c.want, got); d != "" {
					t.Fatalf("after %d calls of the other: -want +got\n%s", calls, d)
				}
			}
		})
	}
}

// TestRaces lets controllers act at once that know nothing of each other, in
// any interleaving of their calls and of what users do; they are killed and
// stopped for any time. No subnet is ever with two, none comes to another
// node before its quarantine is over, and in the end each node has its own.
func TestRaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		dual := rapid.Bool().Draw(t, "dual stack")
		if dual {
			w.network("10.1.0.0/21 8", "fd01::/61 64")
		} else {
			w.network("10.1.0.0/23 8", "10.2.0.0/22 6") // 2 and 16, rotated
		}
		controllers := []*controller{newController(w), newController(w), newController(w)}
		defer func() {
			for _, c := range controllers {
				c.stop()
			}
		}()
		watch := newObserver(w)
		names := []string{"a", "b", "c", "d", "e"}
		for range rapid.IntRange(10, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0: // a node comes or goes
				name := rapid.SampledFrom(names).Draw(t, "node")
				if w.nodes()[name] != nil {
					w.remove(api.Node, name)
				} else {
					w.node(name, "192.168.7."+fmt.Sprint(slices.Index(names, name)+1))
				}
			case 1:
				if h := w.hosts()["ghost"]; h == nil {
					w.ghost("ghost", "192.168.7.200")
				}
			case 2:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			case 3:
				rapid.SampledFrom(controllers).Draw(t, "killed").kill()
			default: // a few calls of one
				c := rapid.SampledFrom(controllers).Draw(t, "controller")
				for range rapid.IntRange(1, 12).Draw(t, "calls") {
					c.step()
					watch.look()
				}
			}
			watch.look()
		}
		// Those that were stopped go on, all at once, until nothing changes.
		for range 100 {
			for _, c := range controllers {
				c.step()
				watch.look()
			}
		}
		if d := w.settle(); len(d.problems) > 0 {
			t.Fatalf("problems in the end: %v", d.problems)
		}
		watch.look()
		families := 1
		if dual {
			families = 2
		}
		nodes := w.nodes()
		for name, hs := range w.hosts() {
			h := readHost(hs)
			if len(h.claims) != families || hs.Annotations[AssignSubnet] != "" || name != "ghost" && nodes[name] == nil {
				t.Fatalf("in the end there is HostSubnet %s with %v, annotations %v", name, h.claims, hs.Annotations)
			}
			delete(nodes, name)
		}
		if len(nodes) > 0 {
			t.Fatalf("in the end %d nodes have no HostSubnet", len(nodes))
		}
		for _, c := range objects[*api.ClusterConfig](w, api.ClusterConfigKind) {
			if l := c.Status.Subnets; l != nil && len(l.Pending) > 0 {
				t.Fatalf("still pending: %v", l.Pending)
			}
		}
	})
}

// observer holds at every moment that no address is in two HostSubnets, and
// that a subnet is not with another before its quarantine is over.
type observer struct {
	world *world
	// last is who had a subnet while it lived, and when that was last so.
	last map[netip.Prefix]tenancy
}

type tenancy struct {
	node string
	at   time.Time
}

func newObserver(w *world) *observer { return &observer{w, map[netip.Prefix]tenancy{}} }

func (o *observer) look() {
	w := o.world
	nodes := w.nodes()
	var seen []*host
	for _, hs := range w.hosts() {
		h := readHost(hs)
		for _, p := range h.claims {
			for _, other := range seen {
				if slices.ContainsFunc(other.claims, p.Overlaps) {
					w.t.Fatalf("%s of %s overlaps with %v of %s", p, h.name, other.claims, other.name)
				}
			}
			if before, ok := o.last[p]; ok && before.node != h.name && w.now.Before(before.at.Add(w.quarantine)) {
				w.t.Fatalf("%s is with %s at %s, but was with %s at %s", p, h.name, w.now.Format(time.TimeOnly), before.node, before.at.Format(time.TimeOnly))
			}
			if h.ghost || nodes[h.name] != nil {
				o.last[p] = tenancy{h.name, w.now}
			}
		}
		seen = append(seen, h)
	}
}
