package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/registry"
)

var configKey = registry.Key{Name: api.DefaultName}

// agent is a node's agent as the others see it. It hears of the configuration and is
// heard at any time later.
type agent struct {
	name string
	// revision is that of the configuration that it acted by last, uses, mix, held and
	// pods what its data plane does and has since, and ready what it knows that this
	// holds: held, pods and ready are sets.
	revision          int64
	uses              string
	mix               []string
	held, ready, pods string
	plugin, prepared  string // as it heard last
	first             []string
	// said is a report on its way.
	said string
	// fresh says that its data plane was never loaded, so that it has no pods.
	fresh bool
}

// Sets are strings with the names of plug-ins, which are single letters, in order.
func with(set, name string) string {
	if name == "" || strings.Contains(set, name) {
		return set
	}
	return strings.Join(slices.Sorted(slices.Values(strings.Split(set+name, ""))), "")
}

func less(set, name string) string { return strings.ReplaceAll(set, name, "") }

func (a agent) report() string {
	needs := strings.Split(less(a.pods, a.uses), "")
	return api.PluginReport{Revision: a.revision, Uses: a.uses, Ready: strings.Split(a.ready, ""), Needs: needs}.Text()
}

// hear has it act by a configuration: what has left the mix leaves its data plane. Where
// the status says nothing, it goes by the one that it heard last.
func (a agent) hear(c *api.ClusterConfig) agent {
	if c.Status.Plugin == "" && a.plugin != "" {
		known := *c
		known.Status = api.ClusterConfigStatus{Plugin: a.plugin, Plugins: a.mix, PreparedPlugin: a.prepared, PluginNodes: a.first, PluginRevision: a.revision}
		c = &known
	}
	a.plugin, a.prepared, a.first = c.Status.Plugin, c.Status.PreparedPlugin, c.Status.PluginNodes
	a.revision, a.uses, a.mix = c.Status.PluginRevision, api.PluginOf(c, a.name), api.PluginMix(c)
	for _, name := range strings.Split(a.held, "") {
		if !slices.Contains(a.mix, name) {
			a.held, a.ready = less(a.held, name), less(a.ready, name)
		}
	}
	return a
}

// hold has it hear of a configuration whose mix has what it cannot load yet, and go on as
// it was.
func (a agent) hold(c *api.ClusterConfig) agent {
	a.revision = c.Status.PluginRevision
	return a
}

// load has it load what is in the mix.
func (a agent) load() agent {
	for _, name := range a.mix {
		a.held, a.ready = with(a.held, name), with(a.ready, name)
	}
	a.fresh = false
	return a
}

// restart has it start anew, with what the data plane holds, and what its Node says.
func (a agent) restart(node *corev1.Node) agent {
	var s api.ClusterConfigStatus
	if r, _ := api.NodePlugins(node); r != nil {
		s = r.Status()
	}
	return agent{name: a.name, held: a.held, pods: a.pods, fresh: a.fresh,
		plugin: s.Plugin, mix: s.Plugins, revision: s.PluginRevision}
}

// world is a state: the registry, the controllers, the agents, how often users may still
// change their minds, and how often the status may still be lost.
type world struct {
	store       *explore.Store
	controllers []explore.Process[struct{}]
	agents      []agent
	edits       int
	losses      int
	// joins, leaves and restarts are how often nodes may still come, go, and have their
	// agents start anew.
	joins, leaves, restarts int
	// patient says that a forced change still waits for nodes, and forced that nodes that are
	// not ready may have been passed over.
	patient, forced bool
	// lossy says that it may have been lost.
	lossy bool
	// asked is what the user asked for when he did so.
	asked wish
	// swift says that nothing happens between the calls of a controller.
	swift bool
}

func (w *world) follow() *world {
	out := *w
	out.store, out.controllers, out.agents = w.store.Clone(), slices.Clone(w.controllers), slices.Clone(w.agents)
	return &out
}

// now is the time, which goes on by a second whenever a status is lost.
func (w *world) now() time.Time { return began.Add(-time.Duration(w.losses) * time.Second) }

func (w *world) config() *api.ClusterConfig {
	return registry.GetAs[*api.ClusterConfig](w.store.Snapshot(api.ClusterConfigKind), api.ClusterConfigKind, configKey)
}

func (w *world) edit(change func(*api.ClusterConfig)) {
	c := w.config().DeepCopyObject().(*api.ClusterConfig)
	change(c)
	if _, err := w.store.Update(api.ClusterConfigKind, c); err != nil {
		panic(err)
	}
}

// ask has a user write what he wants.
func (w *world) ask(change func(*api.ClusterConfig)) {
	w.edit(change)
	w.asked = wish{}
	if c := w.config(); c.Spec.Plugin != "" || c.Status.Plugin != "" {
		w.asked.plugin, w.asked.nodes = api.AskedPlugin(c)
		if c.Spec.Plugin == "" {
			w.asked.others = c.Status.Plugin
		}
	}
}

// wish is a plug-in, and the nodes that are to use it where that are not all; it is empty where
// nobody knows.
type wish struct {
	plugin string
	nodes  []string
	// others is what all others use, where no plug-in is named: that is what is asked for once
	// none of the nodes is there any more.
	others string
}

// among returns the wish where some nodes alone are left.
func (a wish) among(there func(node string) bool) string {
	nodes := a.nodes
	if a.others != "" {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return !there(name) })
	}
	if len(nodes) == 0 && len(a.nodes) > 0 {
		return a.others + " []"
	}
	return fmt.Sprint(a.plugin, " ", nodes)
}

// lose has the status be lost, and with it what somebody asked for who named no plug-in.
func (w *world) lose() {
	w.edit(func(c *api.ClusterConfig) { c.Status = api.ClusterConfigStatus{} })
	if w.config().Spec.Plugin == "" {
		w.asked = wish{}
	}
}

func known(names string) func(string) error {
	return func(name string) error {
		if !strings.Contains(names, name) {
			return fmt.Errorf("plug-in %q is unknown", name)
		}
		return nil
	}
}

func unopposed(Question) (Objections, error) { return Objections{}, nil }

var began = time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)

func step(r registry.Registry, against func(Question) (Objections, error), now time.Time, patient bool) error {
	_, err := Step(context.Background(), r, func(*api.ClusterConfig) Cluster {
		return Cluster{Unknown: known("abc " + api.DefaultPlugin), Against: against, Now: metav1.NewTime(now), Patient: func() bool { return patient }}
	})
	return err
}

func newWorld(controllers int, nodes ...string) *world {
	w := &world{store: &explore.Store{Now: began}, controllers: make([]explore.Process[struct{}], controllers)}
	c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: "a"}}
	_, err := w.store.Create(api.ClusterConfigKind, c)
	for _, name := range nodes {
		_, e := w.store.Create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		err = errors.Join(err, e)
		w.agents = append(w.agents, agent{name: name, fresh: true})
	}
	if err := errors.Join(err, w.settle()); err != nil {
		panic(err)
	}
	return w
}

// tell has what an agent says arrive.
func (w *world) tell(i int, text string) {
	n := registry.GetAs[*corev1.Node](w.store.Snapshot(api.Node), api.Node, registry.Key{Name: w.agents[i].name}).DeepCopy()
	n.Annotations = map[string]string{api.PluginsAnnotation: text}
	if _, err := w.store.Update(api.Node, n); err != nil {
		panic(err)
	}
}

// settle has all act, in turn, until nothing happens any more, and pods be made anew.
func (w *world) settle() error {
	for range 20 {
		before := w.store.Version()
		if err := step(w.store.Registry(), unopposed, w.now(), w.patient); err != nil {
			return err
		}
		c := w.config()
		for i, a := range w.agents {
			a = a.hear(c).load()
			if a.pods != "" {
				a.pods = a.uses
			}
			a.said, w.agents[i] = "", a
			node := registry.GetAs[*corev1.Node](w.store.Snapshot(api.Node), api.Node, registry.Key{Name: a.name})
			if text := a.report(); node.Annotations[api.PluginsAnnotation] != text {
				w.tell(i, text)
			}
		}
		if w.store.Version() == before {
			return nil
		}
	}
	return errors.New("it finds no end")
}

// lost says what is wrong with a state: what a node gives or has given its pods is not
// in the mix, or a node does not know the way to it; or policies may be in force that a
// node has not prepared for.
func (w *world) lost() error {
	if w.config().Status.Plugin == "" {
		return nil // whoever has no status yet goes by the last one
	}
	mix := api.PluginMix(w.config())
	for _, a := range w.agents {
		uses := a.uses
		if !strings.Contains(a.held, uses) {
			uses = "" // it gives no pod an address yet
		}
		for _, name := range strings.Split(with(a.pods, uses), "") {
			if !slices.Contains(mix, name) {
				return fmt.Errorf("%s uses or needs %s, and the mix is %v", a.name, name, mix)
			}
			for _, other := range w.agents {
				if !w.forced && !other.fresh && !strings.Contains(other.held, name) {
					return fmt.Errorf("%s uses or needs %s, of which %s has loaded nothing", a.name, name, other.name)
				}
			}
		}
	}
	c := w.config()
	for _, name := range inForce(c.Status) {
		for _, a := range w.agents {
			if !w.lossy && !w.forced && !a.fresh && !strings.Contains(a.held, name) {
				return fmt.Errorf("policies of %s are in force, for which %s is not ready", name, a.name)
			}
		}
	}
	for _, node := range []string{"node1", "node2", "other"} {
		if uses := api.PluginOf(c, node); !slices.Contains(mix, uses) {
			return fmt.Errorf("%s is to use %s, and the mix is %v", node, uses, mix)
		}
	}
	if slices.ContainsFunc(c.Status.LoadingPlugins, func(name string) bool {
		return !slices.Contains(mix, name) || name == c.Status.Plugin || name == c.Status.PreparedPlugin
	}) {
		return fmt.Errorf("of %v some are used, or not in the mix", c.Status.LoadingPlugins)
	}
	if !slices.IsSorted(mix) || c.Status.Plugin == "" {
		return fmt.Errorf("the mix is %v, and status.plugin %q", mix, c.Status.Plugin)
	}
	return nil
}

// ends says what is wrong with what becomes of a state if nobody changes his mind, and
// if somebody wants back what the cluster uses.
func (w *world) ends() error {
	end := w.follow()
	if err := end.settle(); err != nil {
		return err
	}
	c := end.config()
	asked, some := api.AskedPlugin(c)
	there := func(node string) bool {
		return slices.ContainsFunc(end.agents, func(a agent) bool { return a.name == node })
	}
	got := wish{asked, some, w.asked.others}
	if w.asked.others != "" && !slices.ContainsFunc(some, there) && len(some) > 0 {
		return fmt.Errorf("in the end %s is asked for on %v, of which none is there", asked, some)
	}
	if w.asked.plugin != "" && got.among(there) != w.asked.among(there) {
		return fmt.Errorf("in the end %s is asked for, and it was %s", got.among(there), w.asked.among(there))
	}
	want := []string{asked}
	if len(some) > 0 && c.Status.Plugin != asked {
		want = inOrder(asked, c.Status.Plugin)
	}
	if !slices.Equal(c.Status.Plugins, want) {
		return fmt.Errorf("in the end the mix is %v, and not %v", c.Status.Plugins, want)
	}
	for _, a := range end.agents {
		if a.uses != api.PluginOf(c, a.name) || len(some) == 0 && a.uses != asked {
			return fmt.Errorf("in the end %s uses %s", a.name, a.uses)
		}
	}
	back := w.follow()
	old := back.config().Status.Plugin
	if old == "" {
		return nil // nobody knows which it is
	}
	back.edit(func(c *api.ClusterConfig) { c.Spec.Plugin, c.Spec.PluginNodes = old, nil })
	for _, a := range back.agents {
		if uses := api.PluginOf(back.config(), a.name); uses != old {
			return fmt.Errorf("%s is to use %s, though the user wants %s back", a.name, uses, old)
		}
	}
	if err := back.settle(); err != nil {
		return err
	}
	if c := back.config(); !slices.Equal(c.Status.Plugins, []string{old}) || c.Status.Plugin != old {
		return fmt.Errorf("back to %s ends with %v", old, c.Status.Plugins)
	}
	return nil
}

func inOrder(names ...string) []string { return slices.Sorted(slices.Values(names)) }

// happens calls yield with all that can happen to a world. What users may want is a
// plug-in, with "!" if it is forced, and the nodes that are to use it first.
func (w *world) happens(wants [][]string, against func(Question) (Objections, error), yield func(string, func(*world) string)) {
	for i := range w.controllers {
		yield("controller", func(w *world) (event string) {
			quiet := func(verb string, _ *registry.Kind) bool { return w.swift && verb != "update" }
			w.controllers[i], event = w.controllers[i].Step(w.store, quiet, func(calls *explore.Calls, m struct{}) struct{} {
				_ = step(calls.Registry(), against, w.now(), w.patient)
				return m
			})
			return fmt.Sprintf("controller %d: %s", i+1, event)
		})
	}
	c := w.config()
	for i, a := range w.agents {
		does := func(what string, change func(agent) agent) {
			yield(a.name+" "+what, func(w *world) string {
				w.agents[i] = change(w.agents[i])
				return a.name + " " + what
			})
		}
		next := a.hear(c)
		// A node that comes while the status is lost goes by what is asked for alone, until
		// there is one: nothing is said of that.
		if c.Status.Plugin == "" && a.plugin == "" {
			continue
		}
		if next.revision != a.revision || next.uses != a.uses || !slices.Equal(next.mix, a.mix) {
			does("hears", func(a agent) agent { return a.hear(c) })
		}
		more := slices.ContainsFunc(next.mix, func(name string) bool { return !slices.Contains(a.mix, name) })
		if more && next.revision != a.revision {
			does("hears, and cannot load it", func(a agent) agent { return a.hold(c) })
		}
		if a.load().ready != a.ready {
			does("loads", agent.load)
		}
		if a.uses != "" && strings.Contains(a.held, a.uses) && !strings.Contains(a.pods, a.uses) {
			does("gets a pod", func(a agent) agent { a.pods = with(a.pods, a.uses); return a })
		}
		for _, name := range strings.Split(a.pods, "") {
			does("loses its pods of "+name, func(a agent) agent { a.pods = less(a.pods, name); return a })
		}
		if a.said != "" {
			yield("said", func(w *world) string {
				w.tell(i, w.agents[i].said)
				w.agents[i].said = ""
				return a.name + " is heard"
			})
		} else if a.uses != "" && a.report() != registry.GetAs[*corev1.Node](w.store.Snapshot(api.Node), api.Node, registry.Key{Name: a.name}).Annotations[api.PluginsAnnotation] {
			does("speaks", func(a agent) agent { a.said = a.report(); return a })
		}
	}
	for i, a := range w.agents {
		if w.restarts > 0 && a.uses != "" {
			yield("restart", func(w *world) string {
				w.restarts--
				node := registry.GetAs[*corev1.Node](w.store.Snapshot(api.Node), api.Node, registry.Key{Name: a.name})
				w.agents[i] = a.restart(node)
				return a.name + " starts anew"
			})
		}
		if w.leaves > 0 && len(w.agents) > 1 {
			yield("leave", func(w *world) string {
				w.leaves--
				if err := w.store.Delete(api.Node, registry.Key{Name: a.name}, ""); err != nil {
					panic(err)
				}
				w.agents = slices.Delete(w.agents, i, i+1)
				return a.name + " leaves"
			})
		}
	}
	if w.joins > 0 {
		yield("join", func(w *world) string {
			name := fmt.Sprintf("node%d", 3+w.joins)
			w.joins--
			if _, err := w.store.Create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				panic(err)
			}
			w.agents = append(w.agents, agent{name: name, fresh: true})
			return name + " joins"
		})
	}
	if w.losses > 0 && c.Status.Plugin != "" {
		yield("loss", func(w *world) string {
			w.losses--
			w.lose()
			return "the status is lost"
		})
	}
	if w.patient {
		yield("impatience", func(w *world) string {
			w.patient, w.forced = false, true
			return "a force waits no more"
		})
	}
	if w.edits == 0 {
		return
	}
	for _, want := range wants {
		if want[0] != c.Spec.Plugin || !slices.Equal(want[1:], c.Spec.PluginNodes) {
			yield("edit", func(w *world) string {
				w.edits--
				w.ask(func(c *api.ClusterConfig) {
					name, forced := strings.CutSuffix(want[0], "!")
					c.Spec.Plugin, c.Spec.PluginNodes = name, slices.Clone(want[1:])
					if forced {
						w.patient = true
						c.Annotations = map[string]string{api.ForcePluginAnnotation: fmt.Sprint(name, " ", w.edits)}
					}
				})
				return fmt.Sprintf("the user wants %v", want)
			})
		}
	}
}

func (w *world) key() []byte {
	var t explore.Text
	t.Say(fmt.Sprint(w.edits, w.losses, w.joins, w.leaves, w.restarts, w.patient, w.asked, w.agents), "\n")
	w.store.Put(&t)
	var controllers []explore.Text
	for _, p := range w.controllers {
		var one explore.Text
		p.Put(&one, w.store)
		controllers = append(controllers, one)
	}
	t.AddSet(controllers...)
	return t.Key(w.store.Now, time.Hour)
}

// TestAllInterleavings visits all states of small clusters whose users change their
// minds, with agents that hear late and are heard late.
func TestAllInterleavings(t *testing.T) {
	for _, test := range []struct {
		name               string
		nodes, controllers int
		edits, limit       int
		swift              bool
		wants              [][]string
		losses             int
		joins, leaves      int
		restarts           int
	}{
		{"a node, there and back", 1, 1, 2, 0, false, [][]string{{"a"}, {"b"}}, 0, 0, 0, 0},
		{"a node that is one of some", 1, 1, 5, 20_000, true, [][]string{{"a"}, {"b", "node1"}}, 0, 0, 0, 0},
		{"two nodes", 2, 1, 3, 5_000, true, [][]string{{"a"}, {"b"}}, 0, 0, 0, 0},
		{"two controllers", 1, 2, 3, 5_000, false, [][]string{{"a"}, {"b"}}, 0, 0, 0, 0},
		{"some nodes of two", 2, 1, 3, 5_000, true, [][]string{{"a"}, {"b"}, {"b", "node1"}}, 0, 0, 0, 0},
		{"a third", 1, 1, 3, 5_000, true, [][]string{{"a"}, {"b"}, {"c"}, {"c", "node2"}}, 0, 0, 0, 0},
		{"a node whose status is lost", 1, 1, 2, 5_000, true, [][]string{{"a"}, {"b"}}, 2, 0, 0, 0},
		{"two nodes whose status is lost", 2, 1, 2, 5_000, true, [][]string{{"a"}, {"b"}, {"b", "node1"}}, 1, 0, 0, 0},
		{"nodes that come and go", 1, 1, 2, 5_000, true, [][]string{{"a"}, {"b"}}, 0, 2, 1, 0},
		{"a node comes between the calls of a controller", 1, 1, 2, 5_000, false, [][]string{{"a"}, {"b"}}, 0, 1, 0, 0},
		{"agents that start anew", 2, 1, 2, 5_000, true, [][]string{{"a"}, {"b"}, {"b", "node1"}}, 0, 0, 0, 2},
		{"an agent starts anew while the status is lost", 2, 1, 1, 5_000, true, [][]string{{"a"}, {"b"}}, 1, 0, 0, 2},
		{"who asks for nothing", 2, 1, 3, 5_000, true, [][]string{{"b"}, {"b", "node1"}, {""}, {"", "node2"}}, 0, 0, 0, 0},
		{"a node, of which nothing is asked any more", 1, 1, 2, 0, true, [][]string{{"b", "node1"}, {""}, {"", "node2"}}, 0, 0, 0, 0},
		{"who asks for nothing, and the status is lost", 1, 1, 2, 5_000, true, [][]string{{"b"}, {""}}, 1, 0, 0, 0},
		{"some nodes, of whom nothing is asked any more, and the status is lost", 2, 1, 2, 5_000, true, [][]string{{"b"}, {"b", "node1"}, {""}}, 1, 0, 0, 0},
		{"forced", 2, 1, 3, 5_000, true, [][]string{{"a"}, {"b!"}, {"b", "node1"}}, 0, 1, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := newWorld(test.controllers, []string{"node1", "node2"}[:test.nodes]...)
			start.edits, start.swift = test.edits, test.swift
			start.losses, start.lossy = test.losses, test.losses > 0
			start.joins, start.leaves, start.restarts = test.joins, test.leaves, test.restarts
			limit := test.limit
			if explore.Long() {
				limit *= 20
			}
			ends := map[string]error{}
			report := explore.Model[*world]{
				Start: start,
				Next: func(w *world, yield func(string, *world)) {
					w.happens(test.wants, unopposed, func(_ string, change func(*world) string) {
						n := w.follow()
						event := change(n)
						yield(event, n)
					})
				},
				Key: (*world).key,
				Check: func(w *world) error {
					if err := w.lost(); err != nil {
						return err
					}
					// How it ends follows from the registry and the agents alone.
					one := *w
					one.controllers, one.edits, one.losses = nil, 0, 0
					key := string(one.key())
					err, done := ends[key]
					if !done {
						err = w.ends()
						ends[key] = err
					}
					return err
				},
				Limit: limit,
			}.Run()
			if report.Wrong != nil || limit == 0 && !report.Complete {
				t.Fatal(report)
			}
			t.Log(report, "of which", len(slices.Collect(maps.Keys(ends))), "differ in how they end")
		})
	}
}

// TestRandom has clusters of more nodes go through long lives in which changes are
// refused, too.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(2, "node1", "node2", "node3")
		w.edits = 1000
		w.losses = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "losses")
		w.lossy = w.losses > 0
		if w.joins, w.leaves = 3, 3; w.lossy {
			w.joins, w.leaves = 1, 0 // else those that say nothing may decide
		}
		w.restarts = rapid.SampledFrom([]int{0, 3}).Draw(t, "restarts")
		opposed := func(q Question) (o Objections, err error) {
			switch rapid.IntRange(0, 8).Draw(t, "against") {
			case 0:
				err = registry.ErrUnavailable
			case 1, 2, 3:
				if q.To == "c" || !slices.Contains(q.After, "a") {
					o.Refusals = []string{"something would be cut off"}
				}
			}
			return o, err
		}
		wants := [][]string{{"a"}, {"b"}, {"c"}, {"d"}, {"b", "node1"}, {"c", "node2", "node9"}, {"a", "node3"}, {""}, {"", "node2"}}
		// What is forced nodes do before they report, so that nobody knows if it is lost then.
		if !w.lossy && rapid.Bool().Draw(t, "forces") {
			wants = append(wants, []string{"a!"}, []string{"c!"}, []string{"b!", "node2"})
		}
		var story []string
		for range rapid.IntRange(1, 120).Draw(t, "events") {
			var can []func(*world) string
			var kinds []string
			w.happens(wants, opposed, func(what string, change func(*world) string) {
				can = append(can, change)
				kinds = append(kinds, what)
			})
			i := rapid.IntRange(0, len(can)-1).Draw(t, "event")
			if kinds[i] == "edit" && rapid.IntRange(0, 3).Draw(t, "patience") > 0 {
				continue // there would be little else
			}
			story = append(story, can[i](w))
			if err := w.lost(); err != nil {
				t.Fatalf("%v after\n%s", err, strings.Join(story, "\n"))
			}
		}
		if w.config().Spec.Plugin == "d" { // which there is not
			w.ask(func(c *api.ClusterConfig) { c.Spec.Plugin = "c" })
		}
		if err := w.ends(); err != nil {
			t.Fatalf("%v after\n%s", err, strings.Join(story, "\n"))
		}
	})
}
