package flannel

import (
	"context"
	"encoding/json"
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

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/explore"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// scope bounds what happens in a world that is explored.
type scope struct {
	nodes int
	// configs are what the configuration may be, the first to begin with.
	configs []string
	// changes is how often the configuration becomes the next, or somebody deletes a
	// lease, at most; ticks how often half of a lease's life passes.
	changes, ticks int
	// picks is how many of the free subnets a node may pick.
	picks int
	// flanneld is the name of a lease that a node of flanneld's has at the start, if any.
	flanneld string
	// limit is how many states are visited, 0 for all.
	limit int
	// long says that it takes minutes or hours.
	long bool
}

func (sc scope) String() string {
	text := fmt.Sprintf("%d nodes %d configurations %d changes %d ticks %d picks", sc.nodes, len(sc.configs), sc.changes, sc.ticks, sc.picks)
	if sc.flanneld != "" {
		text += " beside " + sc.flanneld
	}
	return text
}

const exploredTTL = time.Hour

// lessee is what a node remembers between two rounds. What the subnet file has
// outlives the agent.
type lessee struct {
	name   string
	number byte
	former Subnet
	renew  renewal
	// pick is what it will pick of the free subnets.
	pick int
	// kept is the lease that it found to be its own when it looked last.
	kept Subnet
}

// cell is a state: the registry, the nodes, and what the world around them did.
type cell struct {
	store          *explore.Store
	nodes          []explore.Process[lessee]
	changes, ticks int
	config         int
	wrong          error
}

func (m lessee) addresses() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 7, m.number}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 7, 15: m.number})}
}

var exploredPlugin = Plugin{TTL: exploredTTL}.withDefaults()

// act is what a node does in a round.
func act(calls *explore.Calls, m lessee) lessee {
	r := &runner{Plugin: exploredPlugin, now: calls.Now, former: m.former, renew: m.renew}
	r.Pick = func(n int) int { return min(m.pick, n-1) }
	r.NodeEnv = plugin.NodeEnv{Registry: calls.Registry(), Log: slog.New(slog.DiscardHandler)}
	in := plugin.Input{Objects: calls.Look(r.Kinds()...), Node: plugin.Node{Name: m.name, Addresses: m.addresses(), MTU: 1500}}
	r.Input = func() (plugin.Input, bool) { return in, true }
	v, s, _ := r.settle(context.Background(), in) // the next round puts errors right
	m.kept = Subnet{}
	if v != nil && s.verb == keep {
		r.hold(v, s)
		m.kept = s.subnet
	}
	m.former, m.renew, m.pick = r.former, r.renew, 0
	return m
}

func (c *cell) follow() *cell {
	out := *c
	out.store = c.store.Clone()
	out.nodes = slices.Clone(c.nodes)
	return &out
}

func (c *cell) key() []byte {
	var t explore.Text
	t.Say(strconv.Itoa(c.changes), " ", strconv.Itoa(c.ticks), " ", strconv.Itoa(c.config), "\n")
	c.store.Put(&t)
	for _, p := range c.nodes {
		m := p.Memory
		t.Say(m.name, m.former.String(), m.kept.String(), strconv.Itoa(m.pick))
		if m.renew != (renewal{}) {
			t.Say(m.renew.lease)
			t.Time(m.renew.at)
		}
		p.Put(&t, c.store)
	}
	return t.Key(c.store.Now, 2*exploredTTL)
}

// look sees whether two nodes that each found a lease to be its own, which both
// still have, have an address in common.
func (c *cell) look() {
	leases, _ := exploredPlugin.readLeases(c.store.Snapshot(exploredPlugin.Kinds()...))
	held := map[Subnet]string{}
	for _, p := range c.nodes {
		m := p.Memory
		if m.kept.IsZero() || !slices.ContainsFunc(leases, func(l *lease) bool { return l.subnet == m.kept && l.nodeName() == m.name }) {
			continue
		}
		for other, name := range held {
			if other.Overlaps(m.kept) {
				c.wrong = fmt.Errorf("%s has %s, and %s has %s", m.name, m.kept, name, other)
			}
		}
		held[m.kept] = m.name
	}
}

// believes sees whether a node that has just ended a round found another's lease to
// be its own.
func (c *cell) believes(p explore.Process[lessee]) {
	leases, _ := exploredPlugin.readLeases(c.store.Snapshot(exploredPlugin.Kinds()...))
	for _, l := range leases {
		if m := p.Memory; p.Idle() && l.subnet == m.kept && l.nodeName() != m.name {
			c.wrong = fmt.Errorf("%s takes %s for its own, which is %s's", m.name, m.kept, l.nodeName())
		}
	}
}

func (sc scope) next(c *cell, yield func(string, *cell)) {
	quiet := func(verb string, k *registry.Kind) bool {
		return k == nil || verb == "list" && k != LeaseKind || verb == "see" && k != LeaseKind
	}
	for i, p := range c.nodes {
		picks := 1
		if p.Idle() {
			picks = sc.picks
		}
		for pick := range picks {
			n := c.follow()
			q := p
			if p.Idle() {
				q.Memory.pick = pick
			}
			var event string
			n.nodes[i], event = q.Step(n.store, quiet, act)
			n.look()
			n.believes(n.nodes[i])
			if event != "" {
				yield(fmt.Sprintf("%s: %s (pick %d)", p.Memory.name, event, n.nodes[i].Memory.pick), n)
			}
		}
		if !p.Idle() || p.Memory.renew != (renewal{}) {
			n := c.follow()
			m := p.Memory
			m.renew, m.pick = renewal{}, 0
			n.nodes[i] = explore.Process[lessee]{Memory: m}
			yield(m.name+"'s agent is killed, and another starts", n)
		}
	}
	if c.changes < sc.changes {
		if len(sc.configs) > 1 {
			n := c.follow()
			n.changes++
			n.config = (c.config + 1) % len(sc.configs)
			must(configure(n.store, sc.configs[n.config]))
			yield("the configuration becomes "+sc.configs[n.config], n)
		}
		for _, o := range c.store.List(LeaseKind) {
			n := c.follow()
			n.changes++
			must(n.store.Delete(LeaseKind, registry.KeyOf(o), ""))
			// One of the same name that its node makes is another, which it has to find first.
			for i := range n.nodes {
				if m := &n.nodes[i].Memory; m.kept.String() == o.GetName() {
					m.kept = Subnet{}
				}
			}
			n.look()
			yield("somebody deletes lease "+o.GetName(), n)
		}
	}
	if c.ticks < sc.ticks {
		n := c.follow()
		n.ticks++
		n.store.Advance(exploredTTL / 2)
		n.look()
		yield(fmt.Sprintf("%s pass", exploredTTL/2), n)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func configure(s *explore.Store, spec string) error {
	o, err := s.Get(ConfigKind, registry.Key{Name: ConfigName})
	if errors.Is(err, registry.ErrNotFound) {
		_, err = s.Create(ConfigKind, &Config{ObjectMeta: metav1.ObjectMeta{Name: ConfigName}, Spec: json.RawMessage(spec)})
		return err
	}
	if err == nil {
		c := o.(*Config)
		c.Spec = json.RawMessage(spec)
		_, err = s.Update(ConfigKind, c)
	}
	return err
}

func (sc scope) world() *cell {
	c := &cell{store: &explore.Store{Now: time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)}}
	must(configure(c.store, sc.configs[0]))
	if sc.flanneld != "" {
		_, err := c.store.Create(LeaseKind, &Lease{ObjectMeta: metav1.ObjectMeta{Name: sc.flanneld},
			Spec: json.RawMessage(`{"PublicIP":"192.168.7.9","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:09"}}`)})
		must(err)
	}
	for i := range sc.nodes {
		m := lessee{name: fmt.Sprintf("node%d", i+1), number: byte(i + 1)}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
		for _, a := range m.addresses() {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		_, err := c.store.Create(api.Node, n)
		must(err)
		c.nodes = append(c.nodes, explore.Process[lessee]{Memory: m})
	}
	return c
}

// ends says what is wrong with what becomes of a registry if the nodes' agents all
// start anew there and go on, one after the other: each gets a lease, and no two
// have an address in common.
func (sc scope) ends(s *explore.Store) error {
	s = s.Clone()
	kept := map[string]Subnet{}
	for range 3 {
		for _, p := range sc.world().nodes {
			for range 5 { // what it follows shows it what it wrote
				m := p.Memory
				for begun := false; !begun || !p.Idle(); begun = true {
					p, _ = p.Step(s, nil, act)
				}
				if p.Memory.kept == m.kept && !m.kept.IsZero() {
					break
				}
			}
			kept[p.Memory.name] = p.Memory.kept
		}
		s.Advance(exploredTTL / 4)
	}
	names := slices.Sorted(maps.Keys(kept))
	for i, a := range names {
		if kept[a].IsZero() {
			return fmt.Errorf("in the end %s has no lease", a)
		}
		for _, b := range names[:i] {
			if kept[a].Overlaps(kept[b]) {
				return fmt.Errorf("in the end %s has %s, and %s has %s", a, kept[a], b, kept[b])
			}
		}
	}
	return nil
}

func (sc scope) explore() explore.Report {
	ends := explore.PerContent(2*exploredTTL, sc.ends)
	return explore.Model[*cell]{
		Start: sc.world(),
		Next:  sc.next,
		Key:   (*cell).key,
		Limit: sc.limit,
		Check: func(c *cell) error {
			if c.wrong != nil {
				return c.wrong
			}
			return ends(c.store)
		},
	}.Run()
}

// TestAllInterleavings visits the states that small clusters can get into, all of them
// or the millions that are the fewest events away, as many as there is memory for: by
// any order of the calls by which nodes take, keep, renew and give back leases, of the
// agents' ends at any call, of leases that are deleted, of configurations that
// change, and of time. No address is in the leases of two, and each node comes to
// have one from there.
func TestAllInterleavings(t *testing.T) {
	const (
		millions = 3_000_000

		three = `{"Network":"10.5.0.0/22","SubnetLen":24,"Backend":{"Type":"vxlan"}}`
		wide  = `{"Network":"10.5.0.0/21","SubnetLen":23,"Backend":{"Type":"vxlan"}}`
		other = `{"Network":"10.5.0.0/21","SubnetLen":24,"Backend":{"Type":"vxlan"}}`
		dual  = `{"Network":"10.5.0.0/22","SubnetLen":24,"Backend":{"Type":"vxlan"},"EnableIPv6":true,"IPv6Network":"fd05::/62"}`
		large = `{"Network":"10.5.0.0/21","SubnetLen":24,"Backend":{"Type":"vxlan"},"EnableIPv6":true,"IPv6Network":"fd05::/61"}`
	)
	for _, sc := range []scope{
		{nodes: 2, configs: []string{three}, picks: 2},
		{nodes: 2, configs: []string{other, wide}, changes: 1, picks: 2, limit: 10_000},
		{nodes: 2, configs: []string{dual}, picks: 2, limit: 10_000},
		// With a lease of one family nodes count the free subnets of the other differently,
		// once it is gone: they pick pairs that have one in common.
		{nodes: 2, configs: []string{large}, changes: 1, picks: 2, flanneld: "10.5.1.0-24", limit: 10_000},
		{nodes: 2, configs: []string{three}, ticks: 1, picks: 1, long: true},
		{nodes: 2, configs: []string{three}, changes: 1, ticks: 1, picks: 2, limit: millions, long: true},
		{nodes: 2, configs: []string{other, wide}, changes: 2, ticks: 1, picks: 2, limit: millions, long: true},
		{nodes: 2, configs: []string{dual, three}, changes: 1, ticks: 1, picks: 2, limit: millions, long: true},
		{nodes: 2, configs: []string{large}, changes: 2, ticks: 1, picks: 2, flanneld: "10.5.1.0-24", limit: millions, long: true},
		{nodes: 3, configs: []string{three}, picks: 2, limit: millions, long: true},
	} {
		t.Run(sc.String(), func(t *testing.T) {
			if sc.long && !explore.Long() {
				t.Skip("WEFT_EXPLORE is not long")
			}
			r := sc.explore()
			if !r.Complete && (r.Wrong != nil || sc.limit == 0) {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}
