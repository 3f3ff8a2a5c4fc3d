package controller

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

func TestPluginChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		d := &diary{t: t}
		configure(t, r, "other")
		_, stop := start(r, "a", d, nil)
		// So that what follows from what was written has been done.
		wants := func(want string) {
			t.Helper()
			time.Sleep(time.Minute)
			d.wants(want)
		}
		wants("+a:other")
		configure(t, r, "") // nothing else than what is used
		wants("")
		configure(t, r, "openshift-subnet") // there are no nodes to wait for
		wants("+a:openshift-subnet -a:other")
		configure(t, r, "idle")
		wants("-a:openshift-subnet")
		configure(t, r, "othr")
		wants("")
		known := func() *metav1.Condition { return conditionOf(t, r, PluginKnown) }
		if c := known(); c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, `"othr"`) {
			t.Errorf("condition %v", c)
		}
		if c := conditionOf(t, r, api.PluginChanged); c == nil || c.Reason != api.PluginRefused || c.Message != known().Message {
			t.Errorf("condition %v", c)
		}
		configure(t, r, "other")
		wants("+a:other")
		if c := known(); c == nil || c.Status != metav1.ConditionTrue {
			t.Errorf("condition %v", c)
		}
		if c := conditionOf(t, r, api.PluginChanged); c == nil || c.Status != metav1.ConditionTrue {
			t.Errorf("condition %v", c)
		}
		stop()
		d.wants("-a:other")
	})
}

func configOf(t *testing.T, r registry.Registry) *api.ClusterConfig {
	t.Helper()
	o, err := r.Get(t.Context(), api.ClusterConfigKind, registry.Key{Name: api.DefaultName})
	if err != nil {
		t.Fatal(err)
	}
	return o.(*api.ClusterConfig)
}

func conditionOf(t *testing.T, r registry.Registry, name string) *metav1.Condition {
	t.Helper()
	return meta.FindStatusCondition(configOf(t, r).Status.Conditions, name)
}

// TestChangeWithNodes has nodes report, and the work of plug-ins go on as others come
// and go; what two do alike is done once.
func TestChangeWithNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		d := &diary{t: t}
		configure(t, r, "other")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		if _, err := r.Create(t.Context(), api.Node, node); err != nil {
			t.Fatal(err)
		}
		is := func(reason, work string) {
			t.Helper()
			time.Sleep(time.Minute)
			if c := conditionOf(t, r, api.PluginChanged); c == nil || c.Reason != reason {
				t.Errorf("it is %v, and not %s", c, reason)
			}
			d.wants(work)
		}
		_, stop := start(r, "a", d, nil)
		is(api.PluginSettled, "+a:other")
		report(t, r)
		configure(t, r, "other-policy")
		is(api.PluginPreparing, "+a:policy")
		report(t, r)
		is(api.PluginSwitching, "")
		report(t, r)
		is(api.PluginSettled, "")
		report(t, r)
		configure(t, r, "idle-policy")
		is(api.PluginPreparing, "")
		report(t, r)
		is(api.PluginSwitching, "")
		report(t, r, "other-policy")
		is(api.PluginRetiring, "")
		report(t, r)
		is(api.PluginSettled, "-a:other")
		report(t, r)
		configure(t, r, "idle")
		is(api.PluginPreparing, "")
		configure(t, r, "idle-policy")
		is(api.PluginSettled, "")
		stop()
		d.wants("-a:policy")
	})
}

// TestForcedWithoutAgents forces a change while an agent runs that does not come to it. It gets
// its time to be ready, and no more. Once it runs no more, which no watch tells, the change waits
// for it no longer.
func TestForcedWithoutAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		stop := runPolicies(t, r)
		lease, err := r.Acquire(t.Context(), api.NodeLease("node1"), "agent", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		report(t, r)
		if _, err := registry.Modify(t.Context(), r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
			c.Spec.Plugin, c.Annotations = "idle", map[string]string{api.ForcePluginAnnotation: "idle"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		is := func(reason string, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			if c := conditionOf(t, r, api.PluginChanged); c.Reason != reason {
				t.Errorf("it is %v, and not %s", c, reason)
			}
		}
		is(api.PluginPreparing, change.ForcePatience-changePause)
		is(api.PluginSwitching, 4*changePause)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		is(api.PluginRetiring, 10*time.Second)
		stop()
	})
}

// TestRefused has a change refused while there are policies that would be without
// effect, and go on once these are gone, though nobody writes the configuration.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		stop := runPolicies(t, r)
		time.Sleep(time.Minute)
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		if _, err := r.Create(t.Context(), api.NetworkPolicy, policy); err != nil {
			t.Fatal(err)
		}
		configure(t, r, "idle")
		time.Sleep(time.Hour)
		if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginRefused || !strings.Contains(c.Message, "1 networkpolicy, which policies enforces") || !strings.Contains(c.Message, "shop/web") {
			t.Errorf("it is %v", c)
		}
		if got := configOf(t, r).Status; got.Plugin != "policies" || len(got.Plugins) != 1 {
			t.Errorf("the status is %+v", got)
		}
		if err := r.Delete(t.Context(), api.NetworkPolicy, registry.KeyOf(policy), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lastRecheck + 10*changePause)
		if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginSettled {
			t.Errorf("it is %v", c)
		}
		stop()
	})
}

// unreadable is a registry that cannot list policies while there is an error.
type unreadable struct {
	registry.Registry
	err   atomic.Pointer[string]
	asked atomic.Int32
}

func (u *unreadable) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if err := u.err.Load(); k == api.NetworkPolicy && err != nil {
		return nil, "", fmt.Errorf("%s (attempt %d)", *err, u.asked.Add(1))
	}
	return u.Registry.List(ctx, k)
}

// TestForcedAgain asks for what was forced once more, after the cluster was back where it was.
// Nodes that can be ready have their time for that again, though the wish is the same.
func TestForcedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		stop := runPolicies(t, r)
		if _, err := r.Acquire(t.Context(), api.NodeLease("node1"), "agent", 10*time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		report(t, r)
		set := func(plugin, force string) {
			t.Helper()
			if _, err := registry.Modify(t.Context(), r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
				c.Spec.Plugin, c.Annotations = plugin, map[string]string{api.ForcePluginAnnotation: force}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		settle := func() {
			t.Helper()
			for range 4 {
				time.Sleep(firstRecheck)
				report(t, r)
			}
			time.Sleep(firstRecheck)
		}
		for _, back := range []struct{ what, force string }{
			{"the annotation stays", "idle"}, {"the annotation goes", ""}, {"another is forced", "policies"}, {"at last", ""},
		} {
			set("idle", "idle")
			time.Sleep(change.ForcePatience - changePause)
			if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginPreparing {
				t.Fatalf("before %q it is %v", back.what, c)
			}
			if back.force == "" {
				settle()
				if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginSettled || configOf(t, r).Status.Plugin != "idle" {
					t.Fatalf("before %q it is %v", back.what, c)
				}
			}
			set("policies", back.force)
			settle()
			time.Sleep(change.ForcePatience)
			if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginSettled || configOf(t, r).Status.Plugin != "policies" {
				t.Fatalf("%s: it is %v", back.what, c)
			}
		}
		stop()
	})
}

// TestWorkWithoutAStatus has a controller lead where no status says what nodes use. Its work
// is for what they say that they use, and for what is asked for where they say nothing: what
// is made for a plug-in that none uses would stay. So it is not done for what one Node alone says
// that it has loaded.
func TestWorkWithoutAStatus(t *testing.T) {
	for what, test := range map[string]struct {
		config bool
		plugin string
		uses   []string
		// alone is what one more Node says that it has loaded.
		alone string
		want  string
	}{
		"an empty cluster":                      {want: "+a:openshift-subnet"},
		"an empty cluster with a ClusterConfig": {config: true, want: "+a:openshift-subnet"},
		"nodes whose agents are still to come":  {config: true, plugin: "other", uses: []string{"", ""}, want: "+a:other"},
		"a status that was lost":                {config: true, uses: []string{"other", "other", "", "", ""}, want: "+a:other"},
		"a ClusterConfig that was deleted":      {uses: []string{"other", "other", "", "", ""}, want: "+a:other"},
		"one that has loaded what none uses":    {uses: []string{"other", "other"}, alone: "openshift-subnet", want: "+a:other"},
		"the same, and a status that was lost":  {config: true, uses: []string{"other", "other"}, alone: "openshift-subnet", want: "+a:other"},
		"a plug-in that there is not":           {config: true, plugin: "elephant", uses: []string{"other"}, want: "+a:other"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := memory.New()
				for i, uses := range test.uses {
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
					if uses != "" {
						node.Annotations = map[string]string{api.PluginsAnnotation: api.PluginReport{Revision: 5, Uses: uses, Ready: []string{uses}}.Text()}
					}
					if _, err := r.Create(t.Context(), api.Node, node); err != nil {
						t.Fatal(err)
					}
				}
				if test.alone != "" {
					node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alone", Annotations: map[string]string{api.PluginsAnnotation: api.PluginReport{Ready: []string{test.alone}}.Text()}}}
					if _, err := r.Create(t.Context(), api.Node, node); err != nil {
						t.Fatal(err)
					}
				}
				if test.config {
					configure(t, r, test.plugin)
				}
				d := &diary{t: t}
				_, stop := start(r, "a", d, nil)
				time.Sleep(time.Minute)
				d.wants(test.want)
				if test.config && test.plugin != "elephant" {
					if _, err := registry.Modify(t.Context(), r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
						c.Status = api.ClusterConfigStatus{}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
					d.wants("")
				}
				stop()
			})
		})
	}
}

// TestWorkWhileOneNodeChangesItsMind has a Node say again and again that it has loaded what no
// other has, and that it has not. No work begins or ends for that.
func TestWorkWhileOneNodeChangesItsMind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		for i := range 3 {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}
			node.Annotations = map[string]string{api.PluginsAnnotation: api.PluginReport{Revision: 5, Uses: "other", Ready: []string{"other"}}.Text()}
			if _, err := r.Create(t.Context(), api.Node, node); err != nil {
				t.Fatal(err)
			}
		}
		d := &diary{t: t}
		_, stop := start(r, "a", d, nil)
		for i := range 10 {
			says := api.PluginReport{Revision: 5, Uses: "other", Ready: []string{"other"}}
			if i%2 == 0 {
				says = api.PluginReport{Revision: 5, Uses: "openshift-subnet", Ready: []string{"openshift-subnet"}}
			}
			if _, err := registry.Modify(t.Context(), r, api.Node, registry.Key{Name: "node0"}, func(node *corev1.Node) error {
				node.Annotations = map[string]string{api.PluginsAnnotation: says.Text()}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * changePause)
		}
		d.wants("+a:other")
		stop()
		d.wants("-a:other")
	})
}

// TestNodesThatJoinAtOnce has many Nodes come one soon after the other. What is to be done for the
// cluster is not asked for each of them, as that reads them all.
func TestNodesThatJoinAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		var asked atomic.Int32
		c := New(Config{Registry: r, Identity: "a", LeaseTTL: ttl, Log: slog.New(slog.DiscardHandler),
			Plugin: func(name string) (plugin.Plugin, error) { return idle{worker{name: name}}, nil },
			Beside: func(string, []plugin.Plugin) plugin.ClusterRunner { asked.Add(1); return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		for i := range 100 {
			if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i)}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(changePause / 50)
		}
		time.Sleep(2 * changePause)
		if n := asked.Load(); n > 4 {
			t.Errorf("it looks %d times at what is to be done, in the time of four pauses", n)
		}
		cancel()
		<-ended
	})
}

// runPolicies runs a controller, until stop, of a cluster with a plug-in that enforces
// policies and others that do not.
func runPolicies(t *testing.T, r registry.Registry) (stop func()) {
	t.Helper()
	configure(t, r, "policies")
	return runController(t, r)
}

// runController runs a controller that knows the plug-ins policies and idle.
func runController(t *testing.T, r registry.Registry) (stop func()) {
	t.Helper()
	policies := reads{idle{worker{name: "idle"}}, []*registry.Kind{api.NetworkPolicy}}
	c := New(Config{Registry: r, Identity: "a", LeaseTTL: ttl, Log: slog.New(slog.DiscardHandler),
		Plugin: func(name string) (plugin.Plugin, error) {
			if name == "policies" {
				return policies, nil
			}
			return idle{worker{name: name}}, nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	return func() { cancel(); <-ended }
}

// TestUnreadable has nobody know what speaks against a change, with another error each
// time; and then has the old plug-in stay for a policy that was made meanwhile.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &unreadable{Registry: memory.New()}
		stop := runPolicies(t, r)
		if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}); err != nil {
			t.Fatal(err)
		}
		is := func(reason, message string) {
			t.Helper()
			time.Sleep(2 * lastRecheck)
			if c := conditionOf(t, r, api.PluginChanged); c.Reason != reason || !strings.Contains(c.Message, message) {
				t.Errorf("it is %v", c)
			}
		}
		is(api.PluginSettled, "")
		broken := "the registry has no time"
		r.err.Store(&broken)
		configure(t, r, "idle")
		is(api.PluginWaiting, broken)
		if n := r.asked.Load(); n < 2 || n > int32(2*lastRecheck/firstRecheck)+1 {
			t.Errorf("it was asked %d times", n)
		}
		r.err.Store(nil)
		is(api.PluginPreparing, "")
		report(t, r)
		is(api.PluginSwitching, "")
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
		if _, err := r.Create(t.Context(), api.NetworkPolicy, policy); err != nil {
			t.Fatal(err)
		}
		report(t, r)
		is(api.PluginRetiring, "policies stays, as 1 networkpolicy")
		if err := r.Delete(t.Context(), api.NetworkPolicy, registry.KeyOf(policy), ""); err != nil {
			t.Fatal(err)
		}
		is(api.PluginSettled, "")
		stop()
	})
}

// overtaken is a registry in which something happens before Nodes are listed.
type overtaken struct {
	registry.Registry
	meanwhile, beforeWrite atomic.Pointer[func()]
}

func (o *overtaken) Update(ctx context.Context, k *registry.Kind, object registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if k == api.ClusterConfigKind {
		if happens := o.beforeWrite.Swap(nil); happens != nil {
			(*happens)()
		}
	}
	return o.Registry.Update(ctx, k, object, opts...)
}

func (o *overtaken) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	if k == api.Node {
		if happens := o.meanwhile.Swap(nil); happens != nil {
			(*happens)()
		}
	}
	return o.Registry.List(ctx, k)
}

// preparing has two nodes prepare for a plug-in without policies, and returns what stops the
// controller, and the revision that the nodes have heard of.
func preparing(t *testing.T) (r *overtaken, stop func(), revision int64) {
	t.Helper()
	r = &overtaken{Registry: memory.New()}
	stop = runPolicies(t, r)
	for _, name := range []string{"node1", "node2"} {
		if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Minute)
	configure(t, r, "idle")
	time.Sleep(10 * lastRecheck)
	if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginPreparing {
		t.Fatalf("it is %v", c)
	}
	return r, stop, configOf(t, r).Status.PluginRevision
}

// turn makes a policy that speaks against the change, and the last node ready for it.
func (o *overtaken) turn(t *testing.T) {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	if _, err := o.Create(t.Context(), api.NetworkPolicy, policy); err != nil {
		t.Error(err)
	}
	reportOf(t, o, "node2")
}

// refused wants the change to be refused, and nodes to be told nothing new.
func (o *overtaken) refused(t *testing.T, revision int64) {
	t.Helper()
	if c := conditionOf(t, o, api.PluginChanged); c.Reason != api.PluginRefused || configOf(t, o).Status.PluginRevision != revision {
		t.Errorf("it is %v", c)
	}
}

// TestOvertaken has the last node become ready, and a policy be made, after the controller
// looked at its cache: what was known to speak against the change before is not enough then.
func TestOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, before := preparing(t)
		happens := func() { r.turn(t) }
		r.meanwhile.Store(&happens)
		report(t, r)
		time.Sleep(2 * changePause)
		if r.meanwhile.Load() != nil {
			t.Fatal("the controller has not looked")
		}
		r.refused(t, before)
		stop()
	})
}

// TestOvertakenInWriting has all of that happen after the controller has read what speaks
// against the change, and before it writes, as another writes the ClusterConfig: what it has
// read is not enough for what it writes then.
func TestOvertakenInWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stop, before := preparing(t)
		stop()
		happens := func() {
			r.turn(t)
			if _, err := registry.Modify(t.Context(), r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
				c.Labels = map[string]string{"written": "meanwhile"}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		r.beforeWrite.Store(&happens)
		report(t, r)
		stop = runController(t, r) // which knows nothing yet of what speaks against it
		time.Sleep(2 * changePause)
		if r.beforeWrite.Load() != nil {
			t.Fatal("the controller has not written")
		}
		r.refused(t, before)
		stop()
	})
}

// TestLeftBehind has a cluster be settled, while there are objects that a plug-in made that
// has left: of those whose Nodes are gone it is said, and of no other.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		configure(t, r, "idle")
		for _, name := range []string{"node1", "node7", "router"} {
			hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: "172.30.0.7", Subnet: "10.1.7.0/24"}
			if name != "router" {
				hs.Annotations = map[string]string{networkv1.NodeUIDAnnotation: "uid-of-" + name}
			}
			if _, err := r.Create(t.Context(), api.HostSubnet, hs); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}); err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{"1 hostsubnet (node7), which no plug-in that is loaded deletes", "1 hostsubnet (node7)", ""} {
			c := New(Config{Registry: r, Identity: "a", LeaseTTL: ttl, Log: slog.New(slog.DiscardHandler),
				Plugin: func(name string) (plugin.Plugin, error) { return idle{worker{name: name}}, nil }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); c.Run(ctx) }()
			if left == "" {
				if err := r.Delete(t.Context(), api.HostSubnet, registry.Key{Name: "node7"}, ""); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * lastRecheck)
			if c := conditionOf(t, r, api.PluginChanged); c.Reason != api.PluginSettled || !strings.Contains(c.Message, left) || (left == "") != !strings.Contains(c.Message, "left behind") {
				t.Errorf("it is %v", c)
			}
			cancel()
			<-ended
		}
	})
}

// report has node1 do what it is told, with pods that need some plug-ins.
func report(t *testing.T, r registry.Registry, needs ...string) {
	t.Helper()
	reportOf(t, r, "node1", needs...)
}

// reportOf has a node do what it is told.
func reportOf(t *testing.T, r registry.Registry, node string, needs ...string) {
	t.Helper()
	c := configOf(t, r)
	text := api.PluginReport{Revision: c.Status.PluginRevision, Uses: api.PluginOf(c, node), Ready: api.PluginMix(c), Needs: needs}.Text()
	if _, err := registry.Modify(t.Context(), r, api.Node, registry.Key{Name: node}, func(n *corev1.Node) error {
		n.Annotations = map[string]string{api.PluginsAnnotation: text}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
