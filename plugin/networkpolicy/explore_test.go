package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// scope bounds what happens in a world that is explored.
type scope struct {
	nodes, collectors int
	// changes is how often a pod comes or goes, or a Node, at most; ticks how
	// often time passes.
	changes, ticks int
	// nodesGo says that Nodes come and go, too.
	nodesGo bool
	// there says that the first pod is there at the beginning, and nobody has seen
	// it.
	there bool
	// long says that it takes minutes or hours.
	long bool
	// limit, where there are too many states, is how many are visited.
	limit int
}

func (sc scope) String() string {
	return fmt.Sprintf("%d nodes %d collectors %d changes %d ticks %t", sc.nodes, sc.collectors, sc.changes, sc.ticks, sc.nodesGo)
}

// tick is how much time passes at once. It is more than idle, and a Tag that
// nobody uses is kept no longer.
const tick = idle + time.Second

// twins are two identities whose first candidate is the same number.
var twins = findTwins()

func findTwins() [2]*policy.Identity {
	seen := map[plan.Tag]*policy.Identity{}
	for i := 0; ; i++ {
		id := &policy.Identity{Namespace: "shop", Labels: map[string]string{"app": strconv.Itoa(i)}}
		t := candidate(id)
		if other := seen[t]; other != nil {
			return [2]*policy.Identity{other, id}
		}
		seen[t] = id
	}
}

// since is what a controller remembers: since when something looks unused.
type since map[any]time.Time

// cell is a state: the registry, the agents and controllers, and what users did.
type cell struct {
	store      *explore.Store
	agents     []explore.Process[struct{}]
	collectors []explore.Process[since]
	changes    int
	ticks      int
}

// pod is the n-th of a node's pods, which are of the twins.
func pod(node, n int) *corev1.Pod {
	name := fmt.Sprintf("pod-%d-%d", node, n)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: twins[n].Labels},
		Spec: corev1.PodSpec{NodeName: nodeName(node)}}
}

func nodeName(node int) string { return fmt.Sprint("node", node) }

func podAddress(node, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1, byte(node), byte(n + 1)})
}

// looks is how many calls an agent's look at what it follows is.
const looks = 3

// agentOf is what an agent does: it looks at what it follows, and does what a
// runner that has just started does in one round.
func agentOf(node int) func(*explore.Calls, struct{}) struct{} {
	return func(c *explore.Calls, m struct{}) struct{} {
		objects := c.Look(api.Pod, api.TagKind, api.NodePodsKind)
		in := plugin.Input{Config: &api.ClusterConfig{}, Objects: objects, Node: plugin.Node{Name: nodeName(node)}}
		for n := range twins {
			p := pod(node, n)
			if objects.Get(api.Pod, registry.KeyOf(p)) != nil {
				in.Node.Endpoints = append(in.Node.Endpoints, plugin.Endpoint{Interface: p.Name, Network: plan.DefaultNetwork, Namespace: p.Namespace, Pod: p.Name,
					UID: string(p.UID), Addresses: []netip.Addr{podAddress(node, n)}})
			}
		}
		r := newRunner(plugin.NodeEnv{Registry: c.Registry(), Log: slog.New(slog.DiscardHandler), Problem: func(string) {}})
		r.draw = func() plan.Tag { return candidate(twins[0]) + 1 } // a state is no state of chance
		_, _ = r.round(context.Background(), in, nil)               // the next round puts errors right
		return m
	}
}

// collect is what a controller does about Tags.
func collect(c *explore.Calls, m since) since {
	objects := c.Look(collectorKinds...)
	now := c.Now()
	k := &collector{keep: idle, since: maps.Clone(m)}
	d := k.decide(objects, now)
	_ = d.carryOut(context.Background(), c.Registry(), now) // as above
	return k.since
}

func quiet(verb string, k *registry.Kind) bool {
	// A node's own pods it knows at once, and the clock is read with the rest.
	return k == nil || k == api.Pod || k == api.Node || k == api.NodeReportKind
}

func (c *cell) key() []byte {
	var t explore.Text
	t.Say(strconv.Itoa(c.changes), " ", strconv.Itoa(c.ticks), "\n")
	c.store.Put(&t)
	for i, p := range c.agents {
		t.Say("\nagent ", strconv.Itoa(i))
		p.Put(&t, c.store)
	}
	var collectors []explore.Text
	for _, p := range c.collectors {
		var one explore.Text
		names := map[string]time.Time{}
		for what, at := range p.Memory {
			name := fmt.Sprint(what)
			if m, ok := what.(seenMark); ok {
				name = fmt.Sprint("mark of ", m.tag, " from ", c.store.Now.Sub(time.Unix(m.at, 0)))
			}
			names[name] = at
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			one.Say(name)
			one.Time(names[name])
		}
		p.Put(&one, c.store)
		collectors = append(collectors, one)
	}
	t.AddSet(collectors...)
	return t.Key(c.store.Now, 2*tick)
}

func (c *cell) follow() *cell {
	out := *c
	out.store = c.store.Clone()
	out.agents, out.collectors = slices.Clone(c.agents), slices.Clone(c.collectors)
	return &out
}

func (sc scope) next(c *cell, yield func(string, *cell)) {
	for i, p := range c.agents {
		n := c.follow()
		var event string
		n.agents[i], event = p.Step(n.store, quiet, agentOf(i))
		yield(fmt.Sprintf("agent %d: %s", i, event), n)
		if p.Heard() > looks {
			n = c.follow()
			n.agents[i] = explore.Process[struct{}]{}
			yield(fmt.Sprintf("agent %d is killed and starts again", i), n)
		}
	}
	for i, p := range c.collectors {
		n := c.follow()
		var event string
		n.collectors[i], event = p.Step(n.store, quiet, collect)
		yield(fmt.Sprintf("controller %d: %s", i, event), n)
		if !p.Idle() || len(p.Memory) > 0 {
			n = c.follow()
			n.collectors[i] = explore.Process[since]{}
			yield(fmt.Sprintf("controller %d is killed, and another starts", i), n)
		}
	}
	toggle := func(k *registry.Kind, o registry.Object) {
		n := c.follow()
		n.changes++
		event := "goes"
		if errors.Is(n.store.Delete(k, registry.KeyOf(o), ""), registry.ErrNotFound) {
			event = "comes"
			if _, err := n.store.Create(k, o); err != nil {
				panic(err)
			}
		}
		yield(fmt.Sprintf("%s %s %s", k.Singular, o.GetName(), event), n)
	}
	if c.changes < sc.changes {
		for i := range c.agents {
			for which := range twins {
				toggle(api.Pod, pod(i, which))
			}
			if sc.nodesGo {
				toggle(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
			}
		}
	}
	if c.ticks < sc.ticks {
		n := c.follow()
		n.ticks++
		n.store.Advance(tick)
		for i, p := range n.agents {
			// What an agent follows may be old to any extent, but no call of its
			// takes longer than callTimeout.
			if p.Heard() > looks {
				n.agents[i] = explore.Process[struct{}]{}
			}
		}
		yield(fmt.Sprintf("%s pass", tick), n)
	}
}

// truthful says where others are told something wrong of a pod.
func (c *cell) truthful() error {
	tags := map[plan.Tag]*policy.Group{}
	s := c.store.Snapshot(api.TagKind, api.NodePodsKind)
	for o := range s.All(api.TagKind) {
		if read := readTag(o, nil); read.group != nil {
			tags[read.group.Tag] = read.group
		}
	}
	for o := range s.All(api.NodePodsKind) {
		for _, p := range readNodePods(o, nil).Pods {
			for _, a := range p.Addresses {
				was := twins[a.As4()[3]-1]
				if g := tags[p.Tag]; g != nil && !sameIdentity(&g.Identity, was) {
					return fmt.Errorf("%s of %s is said to be %v, and is %v", a, o.GetName(), g.Identity.Labels, was.Labels)
				}
			}
		}
	}
	return nil
}

// ends says what is wrong with what becomes of a registry if all go on from
// there, without haste: each pod is told of, and no Tag is left that none needs.
func (sc scope) ends(s *explore.Store) error {
	c := &cell{store: s.Clone(), agents: make([]explore.Process[struct{}], sc.nodes), collectors: make([]explore.Process[since], 1)}
	for i := range sc.nodes {
		_, _ = c.store.Create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}) // unless it is there
	}
	for range 8 {
		for i := range c.agents {
			for more := true; more; more = !c.agents[i].Idle() {
				c.agents[i], _ = c.agents[i].Step(c.store, quiet, agentOf(i))
			}
		}
		for more := true; more; more = !c.collectors[0].Idle() {
			c.collectors[0], _ = c.collectors[0].Step(c.store, quiet, collect)
		}
		c.store.Advance(tick)
	}
	objects := c.store.Snapshot(api.Pod, api.TagKind, api.NodePodsKind)
	needed, told := map[plan.Tag]bool{}, 0
	for o := range objects.All(api.NodePodsKind) {
		for _, p := range readNodePods(o, nil).Pods {
			needed[p.Tag] = true
			told += len(p.Addresses)
		}
	}
	for o := range objects.All(api.TagKind) {
		read := readTag(o, nil)
		if !needed[read.group.Tag] || read.marked() {
			return fmt.Errorf("in the end Tag %s is there for nobody, or marked", o.GetName())
		}
		delete(needed, read.group.Tag)
	}
	if pods := len(objects[api.Pod]); pods != told || len(needed) > 0 {
		return fmt.Errorf("in the end %d of %d pods are told of, %d tags stand for nothing", told, pods, len(needed))
	}
	return c.truthful()
}

// TestAllInterleavings visits every state that the Tags of small clusters can get
// into, whose pods are of two kinds that go for the same number first: by any
// order of the calls of agents and controllers, by their ends at any call, by
// looks at what is followed that are old to any extent, and by time. Nobody is
// told that a pod is what it is not, and from each state all comes to a good end.
func TestAllInterleavings(t *testing.T) {
	for _, sc := range []scope{
		{nodes: 1, collectors: 1, there: true, changes: 1, ticks: 2},
		{nodes: 1, collectors: 1, changes: 2, ticks: 2, long: true},
		{nodes: 1, collectors: 1, there: true, changes: 2, ticks: 4, long: true, limit: 2000000},
		{nodes: 1, collectors: 2, there: true, changes: 1, ticks: 3, long: true, limit: 2000000},
		{nodes: 1, collectors: 1, there: true, changes: 3, ticks: 3, nodesGo: true, long: true, limit: 2000000},
		{nodes: 2, collectors: 1, there: true, changes: 2, ticks: 3, long: true, limit: 2000000},
	} {
		t.Run(sc.String(), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			start := &cell{store: &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)},
				agents: make([]explore.Process[struct{}], sc.nodes), collectors: make([]explore.Process[since], sc.collectors)}
			for i := range sc.nodes {
				if _, err := start.store.Create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}); err != nil {
					t.Fatal(err)
				}
			}
			if sc.there {
				if _, err := start.store.Create(api.Pod, pod(0, 0)); err != nil {
					t.Fatal(err)
				}
			}
			ends := explore.PerContent(2*tick, sc.ends)
			r := explore.Model[*cell]{
				Start: start,
				Next:  sc.next,
				Key:   (*cell).key,
				Check: func(c *cell) error {
					if err := c.truthful(); err != nil {
						return err
					}
					return ends(c.store)
				},
				Limit: sc.limit,
			}.Run()
			if r.Wrong != nil || !r.Complete && sc.limit == 0 {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}
