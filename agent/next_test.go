package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// lacking is a registry that has no HostSubnets until somebody makes the kind, and counts
// who follows what.
type lacking struct {
	registry.Registry
	mu      sync.Mutex
	made    bool
	watched map[string]int
}

var errNoKind = errors.New("the server could not find the requested resource")

func (l *lacking) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	l.mu.Lock()
	made := l.made
	l.mu.Unlock()
	if k == api.HostSubnet && !made {
		return nil, "", errNoKind
	}
	return l.Registry.List(ctx, k)
}

func (l *lacking) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	l.mu.Lock()
	l.watched[k.Plural]++
	l.mu.Unlock()
	return l.Registry.Watch(ctx, k, after)
}

// pooled is a plug-in that gives the node a subnet, and notes for how many Nodes.
type pooled struct {
	name   string
	subnet netip.Prefix
	kinds  []*registry.Kind
	mu     sync.Mutex
	nodes  int
}

func (p *pooled) Name() string            { return p.name }
func (p *pooled) Kinds() []*registry.Kind { return p.kinds }

func (p *pooled) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	p.mu.Lock()
	p.nodes = len(slices.Collect(in.Objects.All(api.Node)))
	p.mu.Unlock()
	b := plan.NewBuilder(in.Previous)
	plugin.PutNode(b, in.Node)
	plugin.PutPool(b, p.subnet, "", p.name)
	return b.Build(), nil
}

func (p *pooled) compiledWith() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes
}

// changing is an agent of node1 that knows some plug-ins, and has a data plane that takes
// all.
func changing(reg registry.Registry, known ...plugin.Plugin) *agent {
	plane := &recorder{}
	a := &agent{
		Config: Config{Node: "node1", Registry: reg, Log: slog.New(slog.DiscardHandler), RepairEvery: time.Hour,
			Plugin: func(name string) (plugin.Plugin, error) {
				for _, p := range known {
					if p.Name() == name {
						return p, nil
					}
				}
				return nil, fmt.Errorf("plug-in %q is unknown", name)
			},
			DataPlanes: []string{api.DefaultDataPlane},
			DataPlane:  func(string, *slog.Logger) (datapath.DataPlane, error) { return plane, nil }},
		metrics: newMetrics(), trouble: map[string]string{}, caches: map[*registry.Cache]bool{}, first: make(chan struct{}),
		node: &registrar{kick: make(chan struct{}, 1)}, installed: true, names: nobodyAnswers(),
	}
	a.server = cni.NewServer(cni.Config{Node: a, Log: a.Log})
	a.endpoints = func() []plugin.Endpoint { return nil }
	a.held = func() []plan.Address { return nil }
	a.underlay.Addresses = addresses("172.30.0.11")
	close(a.first)
	return a
}

// TestNextThatCannotBeRead has the mix grow by a plug-in of which a kind cannot be read. The
// node goes on as it was, in full, and says why, until it can be, or nobody wants it any more.
func TestNextThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := &lacking{Registry: memory.New(), watched: map[string]int{}}
		old := &pooled{name: "old", subnet: netip.MustParsePrefix("10.1.1.0/24"), kinds: []*registry.Kind{api.Node}}
		young := &pooled{name: "young", subnet: netip.MustParsePrefix("10.2.1.0/24"), kinds: []*registry.Kind{api.Node, api.HostSubnet}}
		a := changing(reg, old, young)
		node := func(name, address string) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
			if _, err := reg.Create(t.Context(), api.Node, n); err != nil {
				t.Fatal(err)
			}
		}
		config := func(wanted string, revision int64, mix ...string) {
			t.Helper()
			change := func(c *api.ClusterConfig) error {
				c.Spec.Plugin = wanted
				c.Status.Plugin, c.Status.Plugins, c.Status.PluginRevision = "old", mix, revision
				return nil
			}
			var err error
			if revision == 1 {
				c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
				_ = change(c)
				_, err = reg.Create(t.Context(), api.ClusterConfigKind, c)
			} else {
				_, err = registry.Modify(t.Context(), reg, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, change)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		// noWay says that the node is ready for neither, as it knows no way to node2.
		said := func(report string, problem, noWay bool) {
			t.Helper()
			s := a.nodeState()
			var unready []string
			s.Problems = slices.DeleteFunc(s.Problems, func(p api.Problem) bool {
				name, _, ok := strings.Cut(p.Message, ": it knows no way yet to the pods of node2 under it;")
				if ok {
					unready = append(unready, name)
				}
				return ok
			})
			want := ""
			if noWay {
				want = "not ready for old, not ready for young"
			}
			if got := strings.Join(unready, ", "); got != want {
				t.Errorf("of node2 it says %q, not %q", got, want)
			}
			if s.Plugins != report || s.NotReady != "" {
				t.Errorf("the Node says %s, not ready: %q, and not %s", s.Plugins, s.NotReady, report)
			}
			const begin = "plug-in: the node goes on with old, and cannot load young yet: not following hostsubnets since "
			told := slices.ContainsFunc(s.Problems, func(p api.Problem) bool {
				return strings.HasPrefix(p.Message, begin) && strings.HasSuffix(p.Message, errNoKind.Error())
			})
			if told != problem || problem != (len(s.Problems) > 0) {
				t.Errorf("the Node's problems are %v", s.Problems)
			}
		}
		node("node1", "172.30.0.11")
		config("old", 1, "old")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { a.followConfig(ctx) })
		defer func() { cancel(); wg.Wait() }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		said(`{"revision":1,"uses":"old","ready":["old"]}`, false, false)
		running := a.running()

		config("young", 2, "old", "young")
		said(`{"revision":2,"uses":"old","ready":["old"]}`, true, false)
		if a.running() != running || young.compiledWith() != 0 {
			t.Error("the former one ended")
		}
		if err := a.Publish(ctx); err != nil {
			t.Errorf("a new pod is told: %v", err)
		}
		node("node2", "172.30.0.12")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := old.compiledWith(); n != 2 {
			t.Errorf("it knows %d nodes", n)
		}

		config("old", 3, "old")
		said(`{"revision":3,"uses":"old","ready":["old"]}`, false, false)
		if a.running() != running {
			t.Error("the former one ended, though nobody wants another any more")
		}

		config("young", 4, "old", "young")
		said(`{"revision":4,"uses":"old","ready":["old"]}`, true, false)
		reg.mu.Lock()
		reg.made = true
		reg.mu.Unlock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		said(`{"revision":4,"uses":"old"}`, false, true) // nobody gives node2 a way by any
		if a.running() == running || young.compiledWith() != 2 {
			t.Error("the next one has not begun")
		}
		reg.mu.Lock()
		if reg.watched["nodes"] != 1 || reg.watched["hostsubnets"] != 1 {
			t.Errorf("followed are %v", reg.watched)
		}
		reg.mu.Unlock()

		config("old", 5, "old")
		said(`{"revision":5,"uses":"old","ready":["old"]}`, false, false)
	})
}

// TestNodesAreRead: who may have VirtualAddresses Nodes say, so they are read, once, also under a
// plug-in that reads none, as some do where Services are left to another program.
func TestNodesAreRead(t *testing.T) {
	a := changing(memory.New(), &pooled{name: "some", kinds: []*registry.Kind{api.HostSubnet}}, &pooled{name: "all", kinds: []*registry.Kind{api.Node}})
	for _, name := range []string{"some", "all"} {
		kinds := a.kindsOf(plugin.ChoiceOf(name, &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: name, ServiceProxy: api.KubeProxy}}))
		if !slices.Contains(kinds, api.Node) || len(slices.Compact(slices.Sorted(pluralsOf(kinds)))) != len(kinds) {
			t.Errorf("under %s are read: %v", name, slices.Sorted(pluralsOf(kinds)))
		}
	}
}

// pluralsOf are the names of kinds.
func pluralsOf(kinds []*registry.Kind) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, k := range kinds {
			if !yield(k.Plural) {
				return
			}
		}
	}
}

// TestNextThatIsUnknown has the cluster use a plug-in that this version does not know, as
// one that came with a later one. The node goes on with the one that it uses, in full, says
// so, and is not ready for the other; so does an agent that starts then.
func TestNextThatIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := memory.New()
		old := &pooled{name: "old", subnet: netip.MustParsePrefix("10.1.1.0/24"), kinds: []*registry.Kind{api.Node}}
		third := &pooled{name: "third", subnet: netip.MustParsePrefix("10.3.1.0/24"), kinds: []*registry.Kind{api.Node}}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}}
		if _, err := reg.Create(t.Context(), api.Node, n); err != nil {
			t.Fatal(err)
		}
		c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
		c.Spec.Plugin, c.Status = "old", api.ClusterConfigStatus{Plugin: "old", Plugins: []string{"old"}, PluginRevision: 1}
		if _, err := reg.Create(t.Context(), api.ClusterConfigKind, c); err != nil {
			t.Fatal(err)
		}
		config := func(s api.ClusterConfigStatus) {
			t.Helper()
			if _, err := registry.Modify(t.Context(), reg, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
				c.Spec.Plugin, c.Status = s.Plugin, s
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		var a *agent
		run := func() (end func()) {
			a = changing(reg, old, third)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { a.followConfig(ctx) })
			time.Sleep(5 * time.Second)
			synctest.Wait()
			return func() { cancel(); wg.Wait() }
		}
		said := func(report string, problem bool) {
			t.Helper()
			s := a.nodeState()
			if s.Plugins != report || s.NotReady != "" {
				t.Errorf("the Node says %s, not ready: %q, and not %s", s.Plugins, s.NotReady, report)
			}
			want := api.Problem{Kind: api.ClusterConfigKind.Kind, Name: api.DefaultName, Message: `plug-in "later" is unknown; the node goes on with old`}
			if told := slices.Contains(s.Problems, want); told != problem || problem != (len(s.Problems) > 0) {
				t.Errorf("the Node's problems are %v", s.Problems)
			}
		}
		end := run()
		said(`{"revision":1,"uses":"old","ready":["old"]}`, false)
		forced := api.ClusterConfigStatus{Plugin: "later", Plugins: []string{"later", "old", "third"}, PreparedPlugin: "later", PluginRevision: 2}
		config(forced)
		const goesOn = `{"revision":2,"uses":"old","ready":["old","third"]}`
		said(goesOn, true)
		if err := a.Publish(t.Context()); err != nil {
			t.Errorf("a new pod is told: %v", err)
		}

		end()
		if _, err := registry.Modify(t.Context(), reg, api.Node, registry.Key{Name: "node1"}, func(n *corev1.Node) error {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, api.PluginsAnnotation, goesOn)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		end = run()
		defer func() { end() }()
		said(goesOn, true)

		config(api.ClusterConfigStatus{Plugin: "third", Plugins: []string{"old", "third"}, PreparedPlugin: "third", PluginRevision: 3})
		said(`{"revision":3,"uses":"third","ready":["old","third"]}`, false)
	})
}

// TestReadyForNothing has the data plane of a node not take the plan: the node is ready for
// no plug-in, whatever it said before, until it does; so it is where its agent starts anew,
// or comes to another choice.
func TestReadyForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := memory.New()
		old := &pooled{name: "old", subnet: netip.MustParsePrefix("10.1.1.0/24"), kinds: []*registry.Kind{api.Node}}
		young := &pooled{name: "young", subnet: netip.MustParsePrefix("10.2.1.0/24"), kinds: []*registry.Kind{api.Node}}
		const whole, none = `{"revision":1,"uses":"old","ready":["old","young"]}`, `{"revision":1,"uses":"old"}`
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{api.PluginsAnnotation: whole}}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}}
		if _, err := reg.Create(t.Context(), api.Node, n); err != nil {
			t.Fatal(err)
		}
		c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
		c.Spec.Plugin, c.Status = "young", api.ClusterConfigStatus{Plugin: "old", Plugins: []string{"old", "young"}, PluginRevision: 1}
		if _, err := reg.Create(t.Context(), api.ClusterConfigKind, c); err != nil {
			t.Fatal(err)
		}
		a := changing(reg, old, young)
		var attaches []error
		a.held = func() []plan.Address { // as the Node comes to say something else
			attaches = append(attaches, a.Ready())
			return nil
		}
		plane, _ := a.DataPlane(api.DefaultDataPlane, nil)
		refuses := func(err error) {
			plane.(*recorder).set(err)
			a.kick()
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		said := func(what, report string) {
			t.Helper()
			if s := a.nodeState(); s.Plugins != report {
				t.Errorf("%s: the Node says %s, and not %s", what, s.Plugins, report)
			}
		}
		refuses(errors.New("no memory"))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { a.followConfig(ctx) })
		defer func() { cancel(); wg.Wait() }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		said("an agent that starts, and whose data plane takes nothing", none)
		refuses(nil)
		said("it takes the plan", whole)
		refuses(&datapath.EntryError{Entry: "add route 10.2.2.0/24", Err: errors.New("another's is in the way")})
		said("it does not take all of it", none)
		refuses(nil)
		said("it takes all of it again", whole)
		plane.(*recorder).set(errors.New("no memory"))
		if _, err := registry.Modify(t.Context(), reg, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
			c.Status.Plugin, c.Status.PreparedPlugin, c.Status.PluginRevision = "young", "young", 2
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		said("it does not take the next choice", none)
		refuses(nil)
		said("it takes that", `{"revision":2,"uses":"young","ready":["old","young"]}`)

		attaches = nil
		if _, err := registry.Modify(t.Context(), reg, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
			c.Status.Plugin, c.Status.PreparedPlugin, c.Status.PluginRevision = "old", "old", 3
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		said("it comes to another", `{"revision":3,"uses":"old","ready":["old","young"]}`)
		if len(attaches) == 0 || !errors.Is(attaches[0], cni.ErrChanging) {
			t.Errorf("a pod that gets an address of that before the Node can say so is told: %v", attaches)
		}
	})
}
