package openshift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/registry"
)

// scope bounds what happens in a world that is explored.
type scope struct {
	controllers, subnets int
	nodes                []string
	// there is how many of the nodes are there and seen to at the beginning.
	there int
	// changes is how often a node comes or goes, at most; ticks how often half a
	// quarantine passes.
	changes, ticks int
	// clock says that time may pass between reading and looking at the clock,
	// too.
	clock bool
	// long says that it takes minutes or hours.
	long bool
}

func (sc scope) String() string {
	s := fmt.Sprintf("%d controllers %d subnets %d of %d nodes %d changes %d ticks",
		sc.controllers, sc.subnets, sc.there, len(sc.nodes), sc.changes, sc.ticks)
	if sc.clock {
		s += " clock"
	}
	return s
}

// rest is the quarantine of the worlds that are explored.
const rest = time.Minute

// tick is how much time passes at once: two of them are a quarantine, which is
// kept in whole seconds and so takes a little longer.
const tick = rest/2 + time.Second

// intent is what a controller has in mind between its calls: what it has yet to
// write of what it decided.
type intent struct {
	writes []write
	texts  []explore.Text
}

// cell is a state: the registry, the controllers, and what the world around
// them did and saw.
type cell struct {
	store       *explore.Store
	controllers []explore.Process[intent]
	changes     int
	ticks       int
	// last is who had a subnet while it lived, and when that was last so.
	last  map[netip.Prefix]tenancy
	wrong error
}

var quietMetrics = newMetrics(nil)

func clusterOf(r registry.Registry, now func() time.Time) *cluster {
	return &cluster{registry: r, log: slog.New(slog.DiscardHandler), metrics: quietMetrics, quarantine: rest, now: now}
}

// act is what a controller does: it decides, and it writes what it decided.
func act(calls *explore.Calls, m intent) intent {
	c := clusterOf(calls.Registry(), calls.Now)
	if len(m.writes) > 0 {
		_ = c.perform(context.Background(), m.writes) // the next round puts errors right
		return intent{}
	}
	d, err := c.decide(context.Background())
	if err != nil {
		return intent{}
	}
	if len(d.writes) == 0 {
		return intent{}
	}
	first := d.writes[0]
	if !first.barrier || first.kind != api.ClusterConfigKind {
		panic("a round does not begin with the ClusterConfig")
	}
	if first.verb == doCheck {
		if c.perform(context.Background(), d.writes[:1]) != nil {
			return intent{}
		}
		d.writes = d.writes[1:]
	}
	out := intent{writes: d.writes}
	for _, w := range d.writes {
		var t explore.Text
		t.Say(string(w.verb), w.kind.Singular, w.object.GetName())
		if w.verb == doCreate || w.verb == doUpdate {
			t.Add(explore.Object(w.kind, w.object))
		}
		out.texts = append(out.texts, t)
	}
	return out
}

// put adds what a controller may still do to a text.
func put(t *explore.Text, p explore.Process[intent], s *explore.Store) {
	if len(p.Memory.writes) == 0 {
		// With a ClusterConfig of before it will write nothing.
		if !p.Outdated(s, api.ClusterConfigKind) {
			p.Put(t, s)
		}
		return
	}
	for i, w := range p.Memory.writes[p.Heard():] {
		if w.verb != doCreate && !s.Current(w.kind, w.object) {
			if w.barrier {
				break // it will fail, and nothing that follows is done
			}
			continue // it will fail
		}
		t.Say("\n")
		t.Add(p.Memory.texts[p.Heard()+i])
	}
}

func (c *cell) key() []byte {
	var t explore.Text
	t.Say(strconv.Itoa(c.changes), " ", strconv.Itoa(c.ticks), "\n")
	c.store.Put(&t)
	for _, p := range slices.SortedFunc(maps.Keys(c.last), netip.Prefix.Compare) {
		if was := c.last[p]; c.store.Now.Before(was.at.Add(rest)) {
			t.Say(p.String(), was.node)
			t.Time(was.at)
		}
	}
	var controllers []explore.Text
	for _, p := range c.controllers {
		var one explore.Text
		put(&one, p, c.store)
		controllers = append(controllers, one)
	}
	t.AddSet(controllers...)
	return t.Key(c.store.Now, 2*rest)
}

// follow returns a copy of the state to change.
func (c *cell) follow() *cell {
	out := *c
	out.store = c.store.Clone()
	out.controllers = slices.Clone(c.controllers)
	return &out
}

// look sees who has which subnet, as the observer of TestRaces does.
func (c *cell) look() {
	var seen []*host
	s := c.store.Snapshot(api.HostSubnet, api.Node)
	for hs := range registry.Each[*networkv1.HostSubnet](s, api.HostSubnet) {
		h := readHost(hs)
		for _, p := range h.claims {
			for _, other := range seen {
				if slices.ContainsFunc(other.claims, p.Overlaps) {
					c.wrong = fmt.Errorf("%s of %s is with %s, too", p, h.name, other.name)
				}
			}
			before, ok := c.last[p]
			if ok && before.node != h.name && c.store.Now.Before(before.at.Add(rest)) {
				c.wrong = fmt.Errorf("%s is with %s, but was with %s %s ago", p, h.name, before.node, c.store.Now.Sub(before.at))
			}
			if now := (tenancy{h.name, c.store.Now}); now != before && (h.ghost || s.Get(api.Node, registry.Key{Name: h.name}) != nil) {
				c.last = maps.Clone(c.last)
				c.last[p] = now
			}
		}
		seen = append(seen, h)
	}
}

func (sc scope) next(c *cell, yield func(string, *cell)) {
	quiet := func(verb string, k *registry.Kind) bool {
		// Nobody writes the ClusterNetwork.
		return k == api.ClusterNetwork || k == api.ClusterConfigKind && verb != "update" || k == nil && !sc.clock
	}
	for i, p := range c.controllers {
		n := c.follow()
		var event string
		n.controllers[i], event = p.Step(n.store, quiet, act)
		n.look()
		yield(fmt.Sprintf("controller %d: %s", i+1, event)+ledgerNews(n.store, event), n)
		if !p.Idle() || len(p.Memory.writes) > 0 {
			n = c.follow()
			n.controllers[i] = explore.Process[intent]{}
			yield(fmt.Sprintf("controller %d is killed, and another starts", i+1), n)
		}
	}
	if c.changes < sc.changes {
		for i, name := range sc.nodes {
			n := c.follow()
			n.changes++
			err := n.store.Delete(api.Node, registry.Key{Name: name}, "")
			event := "node " + name + " goes"
			if err != nil {
				event = "node " + name + " comes"
				n.store.Create(api.Node, nodeOf(name, i))
			}
			n.look()
			yield(event, n)
		}
	}
	if c.ticks < sc.ticks {
		n := c.follow()
		n.ticks++
		n.store.Advance(tick)
		n.look()
		yield(fmt.Sprintf("%s pass", tick), n)
	}
}

func nodeOf(name string, i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("192.168.7.", i+1)}}}}
}

// ledgerNews says what a write has made of the ledger.
func ledgerNews(s *explore.Store, event string) string {
	if !strings.HasPrefix(event, "update clusterconfig") || strings.Contains(event, ":") {
		return ""
	}
	config := registry.GetAs[*api.ClusterConfig](s.Snapshot(api.ClusterConfigKind), api.ClusterConfigKind, networkKey)
	if config == nil || config.Status.Subnets == nil {
		return ""
	}
	l := readLedger(config.Status.Subnets)
	var b strings.Builder
	for _, g := range l.pending {
		fmt.Fprintf(&b, ", %s pending for %s", g.subnet, g.node)
	}
	for _, g := range l.quarantined {
		fmt.Fprintf(&b, ", %s quarantined of %s", g.subnet, g.node)
		if !g.until.IsZero() {
			fmt.Fprintf(&b, " until %s", g.until.Format(time.TimeOnly))
		}
	}
	return b.String()
}

// world returns the state that a scope begins with: a ClusterNetwork of one or
// two subnets, seen to by a controller that is gone.
func (sc scope) world(t *testing.T) *cell {
	t.Helper()
	cidr := map[int]string{1: "10.1.0.0/24", 2: "10.1.0.0/23"}[sc.subnets]
	c := &cell{last: map[netip.Prefix]tenancy{}, store: &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}}
	cn := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: 8}}}
	if _, err := c.store.Create(api.ClusterNetwork, cn); err != nil {
		t.Fatal(err)
	}
	for i := range sc.there {
		if _, err := c.store.Create(api.Node, nodeOf(sc.nodes[i], i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := settle(c.store); err != nil {
		t.Fatal(err)
	}
	c.look()
	c.controllers = make([]explore.Process[intent], sc.controllers)
	return c
}

// settle lets one controller work until nothing is left to do.
func settle(s *explore.Store) error {
	c := clusterOf(s.Registry(), func() time.Time { return s.Now })
	for range 20 {
		d, err := c.round(context.Background())
		if err != nil {
			return err
		}
		if len(d.writes) == 0 {
			return nil
		}
	}
	return errors.New("the controller finds no end")
}

// ends says what is wrong with what becomes of a registry if one controller goes
// on alone: each node has a subnet if there are enough, and all others can be
// given out once they have rested.
func ends(s *explore.Store, subnets int) error {
	s = s.Clone()
	for range 3 {
		if err := settle(s); err != nil {
			return err
		}
		s.Advance(2 * rest)
	}
	objects := s.Snapshot(clusterKinds...)
	have := 0
	for hs := range registry.Each[*networkv1.HostSubnet](objects, api.HostSubnet) {
		if objects.Get(api.Node, registry.Key{Name: hs.Name}) == nil {
			return fmt.Errorf("in the end there is HostSubnet %s without a Node", hs.Name)
		}
		if hs.Subnet != "" {
			have++
		}
	}
	if nodes := len(objects[api.Node]); have != min(nodes, subnets) {
		return fmt.Errorf("in the end %d of %d nodes have a subnet", have, nodes)
	}
	l := readLedger(registry.GetAs[*api.ClusterConfig](objects, api.ClusterConfigKind, networkKey).Status.Subnets)
	for _, g := range l.quarantined {
		if !g.over(s.Now) {
			return fmt.Errorf("in the end %s of %s does not come to rest", g.subnet, g.node)
		}
	}
	if len(l.pending) > 0 {
		return fmt.Errorf("in the end %s is pending", l.pending[0].subnet)
	}
	return nil
}

func (sc scope) explore(t *testing.T) explore.Report {
	t.Helper()
	ends := explore.PerContent(2*rest, func(s *explore.Store) error { return ends(s, sc.subnets) })
	return explore.Model[*cell]{
		Start: sc.world(t),
		Next:  sc.next,
		Key:   (*cell).key,
		Check: func(c *cell) error {
			if c.wrong != nil {
				return c.wrong
			}
			return ends(c.store)
		},
	}.Run()
}

// TestAllInterleavings visits every state that small clusters can get into, by
// any order of the controllers' calls, of their ends at any call, of nodes that
// come, go and come back, and of time. No subnet is with two, none comes to
// another node before it has rested, and one controller alone brings all to a
// good end from there.
func TestAllInterleavings(t *testing.T) {
	two, three := []string{"a", "b"}, []string{"a", "b", "c"}
	for _, sc := range []scope{
		{controllers: 2, subnets: 1, nodes: two, there: 2, changes: 3},
		{controllers: 2, subnets: 1, nodes: two, there: 1, changes: 2, ticks: 1},
		{controllers: 2, subnets: 2, nodes: three, there: 2, changes: 2},
		{controllers: 2, subnets: 1, nodes: two, changes: 3, ticks: 1, clock: true, long: true},
		{controllers: 2, subnets: 1, nodes: two, there: 2, changes: 3, ticks: 2, clock: true, long: true},
		{controllers: 2, subnets: 1, nodes: two, changes: 5, long: true},
		{controllers: 2, subnets: 2, nodes: three, changes: 4, long: true},
		{controllers: 2, subnets: 2, nodes: three, there: 3, changes: 3, ticks: 2, long: true},
		{controllers: 3, subnets: 1, nodes: two, there: 2, changes: 3, long: true},
		{controllers: 3, subnets: 1, nodes: two, there: 2, changes: 2, ticks: 2, long: true},
		{controllers: 3, subnets: 2, nodes: three, there: 3, changes: 2, long: true},
	} {
		t.Run(sc.String(), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			r := sc.explore(t)
			if !r.Complete {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}
