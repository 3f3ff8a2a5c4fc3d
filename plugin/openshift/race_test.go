package openshift

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
)

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
	// number tells it from others in what rapid prints.
	number int
	gate   *gate
	next   func() (struct{}, bool)
	stop   func()
}

func newController(w *world) *controller {
	w.controllers++
	c := &controller{world: w, number: w.controllers}
	c.restart()
	return c
}

// GoString is what rapid prints.
func (c *controller) GoString() string { return fmt.Sprint("controller ", c.number) }

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
			w.node("b", "192.168.7.2") // it has to wait
			straggler.until("update hostsubnets a")
			w.remove(api.Node, "a")
			other.until("delete hostsubnets a")
			other.kill()
			w.now = w.now.Add(2 * w.quarantine)
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
		{"deletes the HostSubnet of a node that came back unseen", func(w *world, straggler, other *controller) {
			w.node("a", "192.168.7.1")
			w.settle()
			w.node("b", "192.168.7.2")
			w.settle()
			w.remove(api.Node, "a")
			straggler.until("delete hostsubnets a")
			w.node("a", "192.168.7.1")
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
				w.now = w.now.Add(2 * w.quarantine) // a rest begins with the last that the straggler did
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

// TestFormerLedger goes on from a ledger as it was written before entries had a
// UID: a quarantine that is over, or runs, says nothing of a HostSubnet that is
// still there.
func TestFormerLedger(t *testing.T) {
	w := newWorld(t)
	w.network("10.1.0.0/24 8")
	w.node("a", "192.168.7.1")
	w.settle()
	w.node("b", "192.168.7.2")
	w.settle()
	modify(w, api.ClusterConfigKind, api.DefaultName, func(c *api.ClusterConfig) {
		c.Status.Subnets.Quarantined = []api.SubnetGrant{{Subnet: "10.1.0.0/24", Node: "a", Until: &metav1.Time{Time: w.now.Add(-time.Hour)}}}
	})
	watch := newObserver(w)
	w.remove(api.Node, "a")
	for range 4 {
		w.settle()
		watch.look()
		w.now = w.now.Add(w.quarantine / 2)
	}
	w.settle()
	if got := w.hosts()["b"].Subnet; got != "10.1.0.0/24" {
		t.Errorf("in the end b has %q", got)
	}
}

// TestRaces lets controllers act at once that know nothing of each other, in
// any interleaving of their calls and of what users do; they are killed and
// stopped for any time. No subnet is ever with two, none comes to another
// node before its quarantine is over, and in the end each node has its own.
func TestRaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newStoredWorld(t)
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
	// version and at are those of a store when it was looked at.
	version int64
	at      time.Time
}

type tenancy struct {
	node string
	at   time.Time
}

func newObserver(w *world) *observer {
	o := &observer{world: w, last: map[netip.Prefix]tenancy{}}
	o.look()
	return o
}

func (o *observer) look() {
	w := o.world
	if w.store != nil {
		if w.store.Version() == o.version && w.now.Equal(o.at) {
			return
		}
		o.version, o.at = w.store.Version(), w.now
	}
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
