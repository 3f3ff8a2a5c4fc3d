package agent

import (
	"context"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/server"
	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// announcer has the node answer on its links for addresses that Services have, as long as its
// data plane hands on what comes for them, and for VirtualAddresses. It works for the life of
// the agent, whichever plug-ins and data planes come and go; while there is no registry the
// node stays a candidate for what it was. A nil announcer has it answer for nothing.
type announcer struct {
	agent  *agent
	server *server.Server
	// objects are AddressPools, AddressGrants and VirtualAddresses; nil where the registry has
	// none. Services, their endpoints and Nodes are those of the plan in force.
	objects *registry.Cache
	// absent is how many of these kinds the registry did not know in the last round.
	absent int
	kick   chan struct{}
	checks portChecks

	announced prometheus.Gauge
	takeovers prometheus.Counter

	mu sync.Mutex
	// applied is what is in the data plane; nil while nothing is known to be.
	applied *plugin.Applied
	// coming is the plan that it is to load, or has loaded, last.
	coming *plan.Plan
	// links are the node's interfaces, and own the addresses that its kernel has, with the names
	// of theirs, once they were seen.
	links []link
	own   map[netip.Addr]string
	seen  bool
	// found are the objects of which something cannot be done, trouble is what keeps the server
	// from having the node answer, and blind why what the node is cannot be read.
	found          []announce.Problem
	trouble, blind string
}

func newAnnouncer(a *agent) *announcer {
	n := &announcer{agent: a, server: server.New(a.Node, a.Log), kick: make(chan struct{}, 1),
		announced: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_announced_addresses", Help: "Addresses that the node answers for on its links."}),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{Name: "weft_address_takeovers_total", Help: "How often the node began to answer for an address on its links."})}
	candidates := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_announce_candidates", Help: "Addresses for which the node may answer on its links."}, func() float64 {
		candidates, _ := n.server.Counts()
		return float64(candidates)
	})
	refused := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_announce_refused_addresses",
		Help: "Addresses for which the node may answer and which it leaves alone, as somebody else has them or as it cannot answer for them."}, func() float64 {
		_, refused := n.server.Counts()
		return float64(refused)
	})
	a.metrics.registry.MustRegister(n.announced, n.takeovers, candidates, refused)
	n.checks.changed = func() { notify(n.kick) }
	kinds := slices.DeleteFunc([]*registry.Kind{api.AddressPoolKind, api.AddressGrantKind, api.VirtualAddressKind},
		func(k *registry.Kind) bool { return !a.Registry.Serves(k) })
	if len(kinds) > 0 {
		n.objects = registry.NewCache(a.Registry, kinds, a.Log)
	}
	n.server.Took = func(addresses int) { n.takeovers.Add(float64(addresses)) }
	n.server.Changed = func() {
		n.announced.Set(float64(len(n.server.Answered())))
		a.node.Kick()
	}
	n.server.Problem = func(text string) { n.say(&n.trouble, text) }
	return n
}

// say takes note of what keeps the node from answering, in one of the announcer's fields.
func (n *announcer) say(in *string, text string) {
	n.mu.Lock()
	changed := *in != text
	*in = text
	n.mu.Unlock()
	if !changed {
		return
	}
	if text != "" {
		n.agent.Log.Warn("this node does not answer for all addresses", "problem", text)
	}
	n.agent.node.Kick()
}

// see takes note of the node's interfaces and addresses, or of why they could not be read. Then
// what was read before holds.
func (n *announcer) see(links []link, own map[netip.Addr]string, err error) {
	if n == nil {
		return
	}
	if err != nil {
		n.say(&n.blind, err.Error())
		return
	}
	n.say(&n.blind, "")
	n.mu.Lock()
	same := n.seen && slices.EqualFunc(n.links, links, link.equal) && maps.Equal(n.own, own)
	n.links, n.own, n.seen = links, own, true
	n.mu.Unlock()
	if !same {
		notify(n.kick)
	}
}

// run works until ctx ends.
func (n *announcer) run(ctx context.Context) {
	if n.objects == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	changes, cancel := n.objects.Subscribe()
	defer cancel()
	wg.Go(func() { n.agent.follow(ctx, n.objects) })
	wg.Go(func() { n.checks.run(ctx) })
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := n.server.Run(ctx); err != nil {
				n.server.Problem("cannot answer for addresses: " + err.Error())
			}
			retry.Sleep(ctx, time.Second)
		}
	})
	if n.objects.WaitSynced(ctx) != nil {
		return
	}
	n.rounds(ctx, changes, n.stand, retry.Sleep)
}

// A round reads all that there is, however little changed. So it takes one part in roundShare of
// the time, changes gather for roundRest, and no change waits for longer than roundLongest.
const (
	roundShare   = 6
	roundRest    = 50 * time.Millisecond
	roundLongest = time.Second
)

// rounds finds out, again whenever something changed, what the node is a candidate for, until
// ctx ends.
func (n *announcer) rounds(ctx context.Context, changes <-chan struct{}, round func(), sleep func(context.Context, time.Duration) bool) {
	for {
		began := time.Now()
		round()
		if !sleep(ctx, min(max(roundRest, (roundShare-1)*time.Since(began)), roundLongest)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-n.kick:
		}
	}
}

// loaded takes note of what the data plane has in force.
func (n *announcer) loaded(done plugin.Applied) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.applied = &done
	n.mu.Unlock()
	notify(n.kick)
}

// loading has the node answer no more, before the data plane loads a plan, for what that does
// not serve.
func (n *announcer) loading(p *plan.Plan) {
	if n == nil {
		return
	}
	n.mu.Lock()
	n.coming = p
	n.server.Keep(func(a netip.Addr, c announce.Candidate) bool { return c.Virtual || serves(p, a, "") })
	n.mu.Unlock()
	notify(n.kick)
}

// settle tells the server what the node is a candidate for, as was found out while a plan was
// coming. It does not where another is by now: what that does not serve would come back.
func (n *announcer) settle(coming *plan.Plan, now server.Standing) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.coming != coming {
		return false
	}
	n.server.Stand(now)
	return true
}

// stand tells the server what the node is a candidate for.
func (n *announcer) stand() {
	n.mu.Lock()
	applied, coming, links, own, seen := n.applied, n.coming, n.links, n.own, n.seen
	n.mu.Unlock()
	if applied == nil || coming == nil || !seen {
		return // until all are
	}
	objects := merged{n.objects.Snapshot(), applied.Input.Objects}
	has := maps.Clone(own)
	for v := range registry.Each[*api.VirtualAddress](objects, api.VirtualAddressKind) {
		delete(has, v.Address())
	}
	self := announce.Self{Node: n.agent.Node, Answers: n.checks.answers, Has: has,
		Serves: func(a netip.Addr, by registry.Key) bool {
			origin := "Service " + by.String()
			return serves(applied.Plan, a, origin) && serves(coming, a, origin)
		},
		Inside: func(a netip.Addr) string { return plugin.Inside(applied.Plan, a) },
	}
	for _, l := range links {
		at := announce.Link{Name: l.Name, Metrics: l.Metrics}
		for _, p := range l.Addresses {
			at.Prefixes = append(at.Prefixes, p.Masked())
		}
		self.Links = append(self.Links, at)
	}
	n.checks.set(objects)
	now := among(objects, n.agent.Node)
	var problems []announce.Problem
	now.Candidates, problems = announce.Candidates(objects, self)
	n.told(n.objects.Absent())
	if !n.settle(coming, now) {
		return // whoever has another plan come has kicked
	}
	n.mu.Lock()
	changed := !slices.Equal(n.found, problems)
	n.found = problems
	n.mu.Unlock()
	if changed {
		n.agent.node.Kick()
	}
}

// among is what the server is told of nodes, without that for which this one is a candidate.
func among(objects registry.Objects, self string) server.Standing {
	now := server.Standing{Peers: make(map[string]bool), Marks: make(map[string]wire.Mark)}
	for node := range registry.Each[*corev1.Node](objects, api.Node) {
		now.Peers[node.Name] = true
		now.Marks[node.Name] = wire.MarkOf(string(node.UID))
		if node.Name == self {
			now.Leaving = api.IsLeaving(node) || node.Spec.Unschedulable || !announce.MayAnnounce(node)
		}
	}
	return now
}

// told has it be told when the node goes on without other kinds than it did.
func (n *announcer) told(absent []*registry.Outage) {
	if len(absent) != n.absent {
		n.absent = len(absent)
		n.agent.node.Kick()
	}
}

// merged are the announcer's own objects, and beside them those of the plan in force.
type merged struct{ own, applied registry.Objects }

func (m merged) of(k *registry.Kind) registry.Objects {
	if k == api.Service || k == api.EndpointSlice || k == api.Node {
		return m.applied
	}
	return m.own
}

// All implements registry.Objects.
func (m merged) All(k *registry.Kind) iter.Seq[registry.Object] { return m.of(k).All(k) }

// Get implements registry.Objects.
func (m merged) Get(k *registry.Kind, key registry.Key) registry.Object { return m.of(k).Get(k, key) }

// serves reports whether a plan hands on what comes from outside for an address, by an origin
// if that is not empty.
func serves(p *plan.Plan, a netip.Addr, origin string) bool {
	if p.Local.ServicesLeft {
		return false
	}
	for k, svc := range p.Services.From(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a}) {
		if k.Network != plan.DefaultNetwork || k.Address != a {
			return false
		}
		if k.From != plan.Inside && svc.Set != "" && (origin == "" || svc.Origin == origin) {
			return true
		}
	}
	return false
}

// announces is what the Node says of it, in the form of api.AnnouncesAnnotation.
func (n *announcer) announces() string {
	if n == nil {
		return ""
	}
	return api.AnnouncesText(n.server.Answered())
}

// problems are what keeps the node from answering, and what of objects cannot be done.
func (n *announcer) problems() (all []api.Problem) {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range []string{n.trouble, n.blind} {
		if text != "" {
			all = append(all, n.agent.own(text))
		}
	}
	for _, p := range n.found {
		all = append(all, api.Problem{Kind: p.Kind.Kind, Name: p.Key.Name, Message: p.Message})
	}
	return all
}

// portChecks are the ports at which programs on the node must accept connections for it to have
// VirtualAddresses. The zero portChecks has none.
type portChecks struct {
	changed func()

	mu    sync.Mutex
	ports map[uint16]*portCheck
}

// portCheck is one of those: whether it was answered, and how often it was not since.
type portCheck struct {
	answers bool
	failed  int
}

// How often a port is tried, for how long, and after how many failures it counts as silent.
const (
	checkEvery = time.Second
	checkFor   = 500 * time.Millisecond
	checkFails = 2
)

// set has the ports tried that VirtualAddresses name.
func (c *portChecks) set(objects registry.Objects) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ports := make(map[uint16]*portCheck)
	for port := range announce.Checks(objects) {
		if ports[port] = c.ports[port]; ports[port] == nil {
			ports[port] = &portCheck{}
		}
	}
	c.ports = ports
}

// answers reports whether a program on the node accepts connections at a port.
func (c *portChecks) answers(port uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	check := c.ports[port]
	return check != nil && check.answers
}

// run tries the ports until ctx ends.
func (c *portChecks) run(ctx context.Context) {
	for ; ctx.Err() == nil; retry.Sleep(ctx, checkEvery) {
		c.mu.Lock()
		var ports []uint16
		for port := range c.ports {
			ports = append(ports, port)
		}
		c.mu.Unlock()
		var wg sync.WaitGroup
		for _, port := range ports {
			wg.Go(func() { c.note(port, accepts(ctx, port)) })
		}
		wg.Wait()
	}
}

// note takes note of whether a port was answered.
func (c *portChecks) note(port uint16, answered bool) {
	c.mu.Lock()
	check, changed := c.ports[port], false
	switch {
	case check == nil:
	case answered:
		changed = !check.answers
		check.answers, check.failed = true, 0
	default:
		if check.failed++; check.failed >= checkFails {
			changed = check.answers
			check.answers = false
		}
	}
	c.mu.Unlock()
	if changed {
		c.changed()
	}
}

// accepts reports whether something accepts connections at a port of a loopback address.
func accepts(ctx context.Context, port uint16) bool {
	dialer := net.Dialer{Timeout: checkFor}
	for _, host := range []string{"127.0.0.1", "::1"} {
		c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			c.Close()
			return true
		}
	}
	return false
}
