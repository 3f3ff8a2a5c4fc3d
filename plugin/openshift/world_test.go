package openshift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/plugin"
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
	t        tester
	registry registry.Registry
	// store is what registry is in a world made by newStoredWorld.
	store      *explore.Store
	now        time.Time
	quarantine time.Duration
	uids       int
	// controllers is how many were made.
	controllers int
	// elsewhere is what other plug-ins give.
	elsewhere plugin.Elsewhere
}

func newWorld(t tester) *world {
	return &world{t: t, registry: memory.New(), now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC), quarantine: time.Minute}
}

// newStoredWorld is newWorld for random tests of many steps: what is in it can
// be seen without encoding and decoding it each time.
func newStoredWorld(t tester) *world {
	w := newWorld(t)
	w.store = &explore.Store{Now: w.now}
	w.registry = w.store.Registry()
	return w
}

func (w *world) clock() time.Time { return w.now }

func (w *world) cluster(r registry.Registry) *cluster {
	return &cluster{registry: r, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil),
		quarantine: w.quarantine, now: w.clock,
		elsewhere: func(context.Context) (plugin.Elsewhere, error) { return w.elsewhere, nil }}
}

// gives has another plug-in give a node a subnet.
func (w *world) gives(node string, p netip.Prefix) {
	if w.elsewhere.Holdings == nil {
		w.elsewhere.Holdings = plugin.Holdings{}
	}
	w.elsewhere.Holdings[p] = node
}

// settle runs one controller until it has nothing to do.
func (w *world) settle() decision {
	w.t.Helper()
	c := w.cluster(&gate{Registry: w.registry, now: w.clock, allow: func() bool { return true }})
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
	var list []registry.Object
	if w.store != nil {
		list = w.store.Snapshot(k)[k]
	} else {
		var err error
		if list, _, err = w.registry.List(context.Background(), k); err != nil {
			w.t.Fatal(err)
		}
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
		fmt.Fprintf(&b, "hostsubnet %s host %s hostIP %s subnet %s egressIPs %v annotations %v\n", name, h.Host, h.HostIP, h.Subnet, h.EgressIPs, h.Annotations)
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
				until := "its HostSubnet is gone"
				if g.Until != nil {
					until = g.Until.UTC().Format(time.TimeOnly)
				}
				fmt.Fprintf(&b, "quarantined %s %s until %s\n", g.Subnet, g.Node, until)
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
