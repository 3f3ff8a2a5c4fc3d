package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// actor is one of several who act at once, a call to the registry at a time. It
// knows nothing of the others.
type actor struct {
	world *world
	// work works with a registry until it was killed.
	work func(g *gate)
	gate *gate
	next func() (struct{}, bool)
	stop func()
}

func newActor(w *world, work func(*gate)) *actor {
	a := &actor{world: w, work: work}
	a.restart()
	return a
}

func (a *actor) restart() {
	a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.gate = &gate{Registry: a.world.registry, allow: func(string) bool { return yield(struct{}{}) }}
		for !a.gate.killed {
			a.work(a.gate)
			// One that has nothing to do gives the others a turn, too.
			if !a.gate.killed && !yield(struct{}{}) {
				return
			}
		}
	})
	a.next() // up to before its first call
}

func (a *actor) step() { a.next() }
func (a *actor) kill() { a.stop(); a.restart() }

// clock is the time of a world in which the actors' own never passes.
type clock struct{ now time.Time }

// agent returns what an agent does again and again: a round with what it knows,
// which may be behind, as any reading is old once it acts.
func agent(m *machine) func(g *gate) {
	var r *runner
	var gates *gate
	return func(g *gate) {
		if gates != g {
			r, gates = newRunner(m.env(g)), g // it started anew
		}
		// Its own time stands still, so let what it wrote be long ago.
		r.wrote.at = time.Time{}
		clear(r.made)
		// Errors are what this is about: the next round puts them right.
		_, _ = r.round(context.Background(), m.input(), nil)
	}
}

// controllerOf returns what a controller does again and again.
func controllerOf(w *world, c *clock) func(g *gate) {
	var k *collector
	var gates *gate
	return func(g *gate) {
		if gates != g {
			k, gates = &collector{keep: DefaultKeepTags}, g
		}
		d := k.decide(w.snapshot(collectorKinds), c.now)
		_ = d.carryOut(context.Background(), g, c.now)
	}
}

// TestRaces lets agents and controllers act at once, in any interleaving of
// their calls and of pods that come and go; they are killed and stopped for any
// time. What others are told never lies: a tag stands for pods that are what the
// Tag says. In the end every pod has a Tag that nobody is about to remove, and
// those that nobody needs are gone.
func TestRaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		c := &clock{time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		machines := []*machine{{world: w, name: "node1"}, {world: w, name: "node2"}}
		var actors []*actor
		for _, m := range machines {
			w.create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}})
			actors = append(actors, newActor(w, agent(m)))
		}
		actors = append(actors, newActor(w, controllerOf(w, c)), newActor(w, controllerOf(w, c)))
		defer func() {
			for _, a := range actors {
				a.stop()
			}
		}()
		addresses := 0
		was := map[string]*policy.Identity{} // by address, of all pods there ever were
		truthful := func() {
			tags := map[plan.Tag]*tag{}
			for _, o := range all[*api.Tag](w, api.TagKind) {
				if read := readTag(o, nil); read.group != nil {
					tags[read.group.Tag] = read
				}
			}
			for _, n := range all[*api.NodePods](w, api.NodePodsKind) {
				for _, p := range n.Pods {
					for _, a := range p.Addresses {
						if g := tags[plan.Tag(p.Tag)]; g != nil && !sameIdentity(was[a], &g.group.Identity) {
							t.Fatalf("%s of %s is said to be %v, and was %v", a, n.Name, g.group.Identity, was[a])
						}
					}
				}
			}
		}
		for range rapid.IntRange(10, 60).Draw(t, "steps") {
			m := rapid.SampledFrom(machines).Draw(t, "node")
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				addresses++
				app, address := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "app"), fmt.Sprint("10.1.1.", addresses)
				was[address] = &policy.Identity{Namespace: "shop", Labels: labels.Set{"app": app}}
				m.start(fmt.Sprint("shop/pod-", addresses), "app="+app, address)
			case 1:
				if len(m.pods) > 0 {
					m.stop(rapid.SampledFrom(m.pods).Draw(t, "pod").Name())
				}
			case 2:
				c.now = c.now.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
			case 3:
				rapid.SampledFrom(actors).Draw(t, "killed").kill()
			default:
				a := rapid.SampledFrom(actors).Draw(t, "actor")
				for range rapid.IntRange(1, 6).Draw(t, "calls") {
					a.step()
					truthful()
				}
			}
		}
		// Those that were stopped go on, all at once, while time passes.
		for i := range 160 {
			if i%8 == 0 {
				c.now = c.now.Add(idle)
			}
			for _, a := range actors {
				a.step()
			}
			truthful()
		}
		needed := map[string]bool{}
		for _, m := range machines {
			byTag := map[plan.Tag]bool{}
			var tags tags
			tags.update(w.snapshot([]*registry.Kind{api.TagKind}))
			for _, e := range m.pods {
				tag := tags.of(was[e.Addresses[0].String()])
				if tag == nil || tag.marked() {
					t.Fatalf("in the end %s has %+v", e.Name(), tag)
				}
				byTag[tag.group.Tag] = true
				needed[tag.object.Name] = true
			}
			told := 0
			for _, n := range all[*api.NodePods](w, api.NodePodsKind) {
				if n.Name != m.name {
					continue
				}
				for _, p := range n.Pods {
					if told += len(p.Addresses); !byTag[plan.Tag(p.Tag)] {
						t.Fatalf("in the end %s says %+v", m.name, n.Pods)
					}
				}
			}
			if told != len(m.pods) {
				t.Fatalf("in the end %s tells of %d pods and has %d", m.name, told, len(m.pods))
			}
		}
		for _, o := range all[*api.Tag](w, api.TagKind) {
			if !needed[o.Name] {
				t.Fatalf("in the end Tag %s is there for nobody: %+v", o.Name, o.Spec)
			}
		}
	})
}

// TestControllerKilledAtEachCall kills the controller instead of each of its
// calls in turn.
func TestControllerKilledAtEachCall(t *testing.T) {
	run := func(kill int) (state string, calls int) {
		w := newWorld(t)
		c := &clock{time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}
		w.create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		for i, id := range []*policy.Identity{identity("a"), identity("b"), identity("c")} {
			o := &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(20 + i)}, Spec: specOf(id)}
			if i == 2 {
				mark := metav1.NewTime(c.now.Add(-time.Hour))
				o.Spec.UnusedSince = &mark
			}
			w.create(api.TagKind, o)
		}
		for _, name := range []string{"node1", "node2", "node3"} {
			w.create(api.NodePodsKind, &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: name},
				Pods: []api.TaggedPods{{Tag: 21, Addresses: []string{"10.1.1.1"}}}})
			w.create(api.NodeReportKind, &api.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		g := &gate{killed: true}
		var k *collector
		for range 30 {
			if g.killed {
				g = &gate{Registry: w.registry, allow: func(string) bool { calls++; return calls-1 != kill }}
				k = &collector{keep: DefaultKeepTags}
			}
			if err := k.decide(w.snapshot(collectorKinds), c.now).carryOut(t.Context(), g, c.now); err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			c.now = c.now.Add(idle)
		}
		return w.state(), calls
	}
	want, calls := run(-1)
	if calls < 8 {
		t.Fatalf("the story has %d calls only", calls)
	}
	for kill := range calls {
		if got, _ := run(kill); got != want {
			t.Fatalf("killed instead of call %d: -want +got\n%s", kill, cmp.Diff(want, got))
		}
	}
	if want != "tag 21 of b map[]\nnodepods node1 21:[10.1.1.1]\nnodereport node1 of []\n" {
		t.Errorf("in the end there is\n%s", want)
	}
}
