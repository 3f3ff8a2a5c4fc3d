package plugin

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Mix returns a plug-in that gives pods addresses as one does, and keeps reachable all
// that others give addresses to: a node's while the cluster changes from one plug-in to
// another. What any of them adds to its base is added to all of them, by the first that
// does: those on standby come last.
//
// Each compiles for itself, and the plan has what all say. Where two say something of the
// same, the one that is used is right, and then the first of the others.
func Mix(used Plugin, others ...Plugin) Plugin {
	m := &mix{name: used.Name()}
	var layers []Layer // the highest first
	for _, p := range append([]Plugin{used}, others...) {
		above := 0 // where in layers the next of this plug-in's may stand
		for {
			layer, ok := p.(Layer)
			if !ok {
				break
			}
			there := slices.IndexFunc(layers, func(l Layer) bool { return l.Adds() == layer.Adds() })
			if there < 0 {
				there = above
				layers = slices.Insert(layers, there, layer)
			}
			above = max(above, there+1)
			p = layer.Base()
		}
		if !slices.ContainsFunc(m.bases, func(b Plugin) bool { return b.Name() == p.Name() }) {
			m.bases = append(m.bases, p)
		}
	}
	var all Plugin = m
	if len(m.bases) == 1 {
		all = m.bases[0]
	}
	for _, layer := range slices.Backward(layers) {
		all = layer.On(all, m.name)
	}
	return all
}

// Services is what the layer adds that has Services.
const Services = "services"

// Choice is what a node compiles.
type Choice struct {
	// Used names the plug-in that gives pods addresses, and Mix all, it among them. Of these
	// the ones in Loading are but on standby.
	Used         string
	Mix, Loading []string
	// Without is what layers add that the configuration does not ask for.
	Without []string
}

// ChoiceOf returns the choice of a cluster's configuration for nodes that use a plug-in.
func ChoiceOf(used string, config *api.ClusterConfig) Choice {
	c := Choice{Used: used, Mix: api.PluginMix(config), Loading: config.Status.LoadingPlugins}
	if config.Spec.ServiceProxy == api.KubeProxy {
		c.Without = []string{Services}
	}
	return c.Using(used)
}

// Leave returns a plan with what it says where Services are left to others.
func (c Choice) Leave(p *plan.Plan) *plan.Plan {
	if !slices.Contains(c.Without, Services) {
		return p
	}
	left := *p
	left.Local.ServicesLeft = true
	return &left
}

// Using returns the choice with another plug-in that is used.
func (c Choice) Using(used string) Choice {
	c.Used = used
	if !slices.Contains(c.Mix, used) {
		c.Mix = append(slices.Clone(c.Mix), used)
	}
	return c
}

// Equal reports whether two choices are the same.
func (c Choice) Equal(o Choice) bool {
	return c.Used == o.Used && slices.Equal(c.Mix, o.Mix) && slices.Equal(c.Loading, o.Loading) && slices.Equal(c.Without, o.Without)
}

// Beyond returns what a choice has in the mix, or adds to it, and another does not.
func (c Choice) Beyond(o Choice) []string {
	beyond := slices.DeleteFunc(slices.Clone(c.Mix), func(name string) bool { return slices.Contains(o.Mix, name) })
	for _, name := range o.Without {
		if !slices.Contains(c.Without, name) {
			beyond = append(beyond, name)
		}
	}
	return beyond
}

// Find returns the plug-ins of a choice, the one that is used first, those on standby last. It
// fails where there is none of the first name; unknown has the errors of others that there are
// not.
func (c Choice) Find(named func(string) (Plugin, error)) (all []Plugin, unknown []error, err error) {
	p, err := named(c.Used)
	if err != nil {
		return nil, nil, err
	}
	all = []Plugin{Without(p, c.Without...)}
	var last []Plugin
	for _, name := range c.Mix {
		if name == c.Used {
			continue
		}
		p, err := named(name)
		if err != nil {
			unknown = append(unknown, err)
			continue
		}
		p = Without(p, c.Without...)
		if slices.Contains(c.Loading, name) {
			last = append(last, Standby(p))
		} else {
			all = append(all, p)
		}
	}
	return append(all, last...), unknown, nil
}

// Without returns a plug-in without those of its layers that add some things. It keeps its
// name, as all that asks for it does.
func Without(p Plugin, adds ...string) Plugin {
	layer, ok := p.(Layer)
	if !ok {
		return p
	}
	base := Without(layer.Base(), adds...)
	if slices.Contains(adds, layer.Adds()) {
		return base
	}
	return layer.On(base, p.Name())
}

// MixOf returns what the plan of a node is compiled with that uses the plug-in of a name,
// by a cluster's configuration. Of the rest of the mix it takes those that there are; it
// fails where there is not the first.
func MixOf(used string, config *api.ClusterConfig, named func(string) (Plugin, error)) (Plugin, error) {
	all, _, err := ChoiceOf(used, config).Find(named)
	if err != nil {
		return nil, err
	}
	return Mix(all[0], all[1:]...), nil
}

// mix are several plug-ins without layers, of which the first is used.
type mix struct {
	name  string
	bases []Plugin
}

var (
	_ NodeRunner  = (*mix)(nil)
	_ Incremental = (*mix)(nil)
)

// Name implements Plugin.
func (m *mix) Name() string { return m.name }

// Kinds implements Plugin.
func (m *mix) Kinds() []*registry.Kind {
	var kinds []*registry.Kind
	for _, b := range m.bases {
		for _, k := range b.Kinds() {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

// Compile implements Plugin.
func (m *mix) Compile(in Input) (*plan.Plan, []Problem) { return m.NewCompiler().Compile(in) }

// NewCompiler implements Incremental.
func (m *mix) NewCompiler() Compiler { return &mixCompiler{bases: m.bases} }

// mixCompiler compiles the plans of a mix for one node, each with what is shared with the
// one before.
type mixCompiler struct {
	bases []Plugin
	// apart are the plans that each made last without regard to others, final those with.
	apart, final []*plan.Plan
	// valid is the last plan of all that was.
	valid *plan.Plan
}

// Compile implements Compiler.
func (c *mixCompiler) Compile(in Input) (*plan.Plan, []Problem) {
	problems := c.compile(in)
	merged, more := merge(in.Previous, c.final)
	if merged.ValidateAfter(c.valid) == nil {
		c.valid = merged
		return merged, append(problems, more...)
	}
	merged, more = c.mergeValid(in.Previous)
	return merged, append(problems, more...)
}

// mergeValid returns the plan that has what as many of the plug-ins have as go together,
// where all do not: a node that loads another plug-in goes on with its own whatever comes
// of it.
func (c *mixCompiler) mergeValid(previous *plan.Plan) (*plan.Plan, []Problem) {
	kept := c.final[:1:1]
	var problems []Problem
	for i, p := range c.final[1:] {
		with, _ := merge(nil, append(kept, p))
		if err := with.Validate(); err != nil {
			problems = append(problems, Problem{Message: fmt.Sprintf("%s is left out on this node, as its plan would be invalid with it: %s; put that right, or take the change back (weft plugin change --abort)",
				c.bases[i+1].Name(), printable.Brief(err.Error()))})
			continue
		}
		kept = append(kept, p)
	}
	merged, more := merge(previous, kept)
	return merged, append(problems, more...)
}

// compile makes the final plans, each with what the node and others have by the rest.
func (c *mixCompiler) compile(in Input) (problems []Problem) {
	if c.apart == nil {
		c.apart, c.final = make([]*plan.Plan, len(c.bases)), make([]*plan.Plan, len(c.bases))
	}
	for i, b := range c.bases {
		in.Previous = c.apart[i]
		c.apart[i], _ = b.Compile(in)
	}
	for i, b := range c.bases {
		with := among(in, c.apart, i)
		with.Previous = c.final[i]
		var said []Problem
		c.final[i], said = b.Compile(with)
		for _, p := range said {
			if i > 0 {
				p.Message = b.Name() + ": " + p.Message
			}
			problems = append(problems, p)
		}
	}
	return problems
}

// among returns what one of several is compiled from that have these plans.
func among(in Input, plans []*plan.Plan, one int) Input {
	in.Node.Beside, in.Node.Kept, in.Node.Taken, in.Node.Ranges = one > 0, nil, Holdings{}, nil
	for i, p := range plans {
		if i == one {
			continue
		}
		own := make(map[netip.Prefix]bool)
		for _, pool := range p.Local.Pools {
			if pool.Network == plan.DefaultNetwork {
				in.Node.Kept, own[pool.Prefix] = append(in.Node.Kept, pool.Prefix), true
			}
		}
		for k, r := range p.Routes.All() {
			switch {
			case k.Network != plan.DefaultNetwork:
			case len(r.Peers) > 0 && !r.EndpointsOnly:
				in.Node.Taken[k.Prefix] = cmp.Or(in.Node.Taken[k.Prefix], r.Peer())
			case r.Way == plan.ToDrop && !own[k.Prefix]:
				in.Node.Ranges = append(in.Node.Ranges, k.Prefix)
			}
		}
	}
	return in
}

// RunNode implements NodeRunner.
func (m *mix) RunNode(ctx context.Context, env NodeEnv) error {
	var works []NodeWork
	for i, b := range m.bases {
		runner, ok := b.(NodeRunner)
		if !ok {
			continue
		}
		works = append(works, func(ctx context.Context, share NodeEnv) error {
			input := share.Input
			share.Log = share.Log.With("of", b.Name())
			share.Input = func() (Input, bool) {
				in, complete := input()
				plans := make([]*plan.Plan, len(m.bases))
				for j, other := range m.bases {
					plans[j] = &plan.Plan{}
					if j != i && complete {
						plans[j], _ = other.Compile(in)
					}
				}
				return among(in, plans, i), complete
			}
			return runner.RunNode(ctx, share)
		})
	}
	if len(works) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	return RunTogether(ctx, env, works...)
}

// merge returns the plan that has what all of some plans have, built from a previous one.
// The first is that of the plug-in that is used.
func merge(previous *plan.Plan, plans []*plan.Plan) (*plan.Plan, []Problem) {
	b := plan.NewBuilder(previous)
	b.Local = plans[0].Local
	b.Local.Pools, b.Local.Tunnels = slices.Clone(b.Local.Pools), slices.Clone(b.Local.Tunnels)
	var problems []Problem
	problem := func(format string, args ...any) {
		problems = append(problems, Problem{Message: fmt.Sprintf(format, args...)})
	}
	for i, p := range plans {
		if i > 0 {
			mergeLocal(b, plans[:i], p, problem)
		}
		for k, n := range p.Networks.All() {
			if _, ok := b.Local.Tunnel(k.Tunnel); ok {
				b.PutNetwork(k, n)
			}
		}
	}
	if b.Local.MTU > 0 && b.Local.MTU < leastIPv6 && slices.ContainsFunc(b.Local.Pools, func(p plan.Pool) bool { return p.Prefix.Addr().Is6() }) {
		problem("MTU %d of one plug-in is below %d, the least that IPv6 has, which another gives pods: they have %d, and larger packets are fragmented or lost where no more than %d get through; give both an MTU of at least %d",
			b.Local.MTU, leastIPv6, leastIPv6, b.Local.MTU, leastIPv6)
		b.Local.MTU = leastIPv6
	}
	peers := mergePeers(plans, problem)
	for name, peer := range peers {
		b.PutPeer(plan.PeerKey{Name: name}, peer)
	}
	beside := besideNode(b.Local, plans)
	for _, p := range plans {
		for k, e := range p.Endpoints.All() {
			if !beside[k.Interface] {
				b.PutEndpoint(k, e)
			}
		}
		for k, t := range p.Tags.All() {
			b.PutTag(k, t)
		}
		for k, e := range p.Egress.All() {
			if !beside[k.Interface] {
				b.PutEgress(k, e)
			}
		}
	}
	putRoutes(b, plans, peers, beside, problem)
	return b.Build(), problems
}

// leastIPv6 is the least MTU of a link of IPv6, in bytes (RFC 8200, section 5).
const leastIPv6 = 1280

// besideNode returns the interfaces of endpoints with an address that the node itself has
// by one of the plug-ins: the gateway's of a subnet, or that of a tunnel's end. That one
// has left it out, and said so.
func besideNode(l plan.Local, plans []*plan.Plan) map[string]bool {
	own := make(map[plan.Address]bool)
	for _, a := range l.Addresses {
		own[plan.Address{Network: plan.DefaultNetwork, IP: a}] = true
	}
	for _, p := range l.Pools {
		own[plan.Address{Network: p.Network, IP: p.Gateway}] = true
		own[plan.Address{Network: p.Network, IP: p.TunnelAddress()}] = true
	}
	beside := make(map[string]bool)
	for _, p := range plans {
		for k, e := range p.Endpoints.All() {
			if slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return own[plan.Address{Network: e.Network, IP: a}] }) {
				beside[k.Interface] = true
			}
		}
	}
	return beside
}

// mergeLocal adds to the description of the node what another plan says of it. The
// other's pools give no addresses any more, or not yet.
func mergeLocal(b *plan.Builder, before []*plan.Plan, p *plan.Plan, problem func(string, ...any)) {
	if b.Local.MTU == 0 || p.Local.MTU != 0 && p.Local.MTU < b.Local.MTU {
		b.Local.MTU = p.Local.MTU
	}
	b.Local.ReachedAt = slices.DeleteFunc(slices.Clone(b.Local.ReachedAt), func(a netip.Addr) bool { return !slices.Contains(p.Local.ReachedAt, a) })
	for _, t := range p.Local.Tunnels {
		if other, ok := sharing(b.Local.Tunnels, before, t, p); ok {
			problem("tunnels %s and %s of node %s have the same UDP port %d and VXLAN network identifier, so what takes the first is out of reach: give one of the plug-ins another port",
				t.Name, other, b.Local.Node, t.Port)
			continue
		}
		b.Local.Tunnels = append(b.Local.Tunnels, t)
	}
	for _, pool := range p.Local.Pools {
		if slices.ContainsFunc(b.Local.Pools, func(o plan.Pool) bool { return o.Network == pool.Network && o.Prefix == pool.Prefix }) {
			continue
		}
		if i := slices.IndexFunc(b.Local.Pools, func(o plan.Pool) bool { return o.Network == pool.Network && o.Prefix.Overlaps(pool.Prefix) }); i >= 0 {
			problem("subnets %s and %s of node %s overlap: pods of the second alone are sure to be reached; configure the plug-ins alike", pool.Prefix, b.Local.Pools[i].Prefix, b.Local.Node)
			continue
		}
		if _, ok := b.Local.Tunnel(pool.Tunnel); !ok {
			pool.Tunnel = ""
		}
		pool.Closed = true
		b.Local.Pools = append(b.Local.Pools, pool)
	}
}

// sharing returns the name of a tunnel in which the node would take what is another's.
func sharing(tunnels []plan.Tunnel, plans []*plan.Plan, t plan.Tunnel, p *plan.Plan) (name string, ok bool) {
	for _, other := range tunnels {
		if other.Name == t.Name {
			return other.Name, true
		}
		if other.Port != t.Port || other.VTEP.Is4() != t.VTEP.Is4() {
			continue
		}
		for k, n := range p.Networks.All() {
			for _, o := range plans {
				for l, m := range o.Networks.All() {
					if k.Tunnel == t.Name && l.Tunnel == other.Name && n.FirstVNI <= m.LastVNI && m.FirstVNI <= n.LastVNI {
						return other.Name, true
					}
				}
			}
		}
	}
	return "", false
}

// mergePeers returns the peers of all plans by name. What plug-ins call alike is one
// machine, as names of nodes are proven; what has but the same address may be somebody
// else's word for it. A peer is a next hop by its first address of a family: that is the
// one of the plug-in which has such routes.
func mergePeers(plans []*plan.Plan, problem func(string, ...any)) map[string]plan.Peer {
	peers := map[string]plan.Peer{}
	hops := nextHops(plans, problem)
	for _, p := range plans {
		for k, peer := range p.Peers.All() {
			all, there := peers[k.Name]
			if !there {
				all = plan.Peer{Addresses: hops[k.Name], CarriesTags: peer.CarriesTags, Origin: peer.Origin}
				for _, a := range hops[k.Name] {
					// A node that uses another plug-in than this one may send plainly from
					// where this one has a tunnel to.
					all.Plain = append(all.Plain, plan.FamilyOf(a))
				}
				slices.Sort(all.Plain)
			}
			all.CarriesTags = all.CarriesTags && peer.CarriesTags
			for _, a := range peer.Addresses {
				if !slices.Contains(all.Addresses, a) {
					all.Addresses = append(slices.Clone(all.Addresses), a)
				}
			}
			for _, e := range peer.Ends {
				if _, ok := all.End(e.Tunnel); !ok {
					all.Ends = append(slices.Clone(all.Ends), e)
				}
			}
			peers[k.Name] = all
		}
	}
	return peers
}

// nextHops returns the addresses by which plans have peers as next hops, at most one of
// each family.
func nextHops(plans []*plan.Plan, problem func(string, ...any)) map[string][]netip.Addr {
	hops := make(map[string][]netip.Addr)
	said := make(map[string]bool)
	for _, p := range plans {
		for k, r := range p.Routes.All() {
			if r.Way != plan.ToNextHop {
				continue
			}
			for _, name := range r.Peers {
				a := p.Peer(name).NextHop(k.Prefix.Addr())
				i := slices.IndexFunc(hops[name], func(o netip.Addr) bool { return o.Is4() == a.Is4() })
				switch {
				case i < 0:
					hops[name] = append(hops[name], a)
				case hops[name][i] != a && !said[name]:
					said[name] = true
					problem("%s is handed packets at %s by one plug-in and at %s by another: it gets those of the second at the first; give both one address", name, hops[name][i], a)
				}
			}
		}
	}
	return hops
}

// putRoutes states the routes of all plans, but those that lead nowhere with the tunnels
// that the node has, or to endpoints that are left out.
func putRoutes(b *plan.Builder, plans []*plan.Plan, peers map[string]plan.Peer, leftOut map[string]bool, problem func(string, ...any)) {
	plainly := hopsOf(plans[0])
	for _, p := range plans {
		for k, r := range p.Routes.All() {
			if r.Way == plan.ToEndpoint && leftOut[r.Interface] {
				continue
			}
			if r.EndpointsOnly && r.Way == plan.ToTunnel && plainly[hop{r.Peer(), plan.FamilyOf(k.Prefix.Addr())}] {
				// Pods get to a peer's own addresses the way they get to its pods. A tunnel of
				// another plug-in the peer may not have yet, or no more.
				r.Way = plan.ToNextHop
			}
			if r.Way == plan.ToTunnel && slices.ContainsFunc(r.Peers, func(name string) bool {
				_, _, ok := b.Local.EndOf(peers[name], k.Prefix.Addr())
				return !ok
			}) {
				continue // mergeLocal has said which tunnel is missing
			}
			if b.PutRoute(k, r) {
				continue
			}
			if first := routeOf(plans, k); first.Peer() != r.Peer() && !r.EndpointsOnly && (first.Way == plan.ToTunnel || first.Way == plan.ToNextHop) && len(r.Peers) > 0 {
				problem("%s is %s's by one plug-in and %s's by another: what the second has there is out of reach", k.Prefix, first.Peer(), r.Peer())
			}
		}
	}
}

// hop is a peer to whom packets of a family are handed without a tunnel.
type hop struct {
	peer   string
	family plan.Family
}

// hopsOf returns those of a plan.
func hopsOf(p *plan.Plan) map[hop]bool {
	all := make(map[hop]bool)
	for k, r := range p.Routes.All() {
		if r.Way == plan.ToNextHop {
			for _, peer := range r.Peers {
				all[hop{peer, plan.FamilyOf(k.Prefix.Addr())}] = true
			}
		}
	}
	return all
}

// routeOf returns the first route to a prefix.
func routeOf(plans []*plan.Plan, k plan.RouteKey) plan.Route {
	for _, p := range plans {
		if r, ok := p.Routes.Get(k); ok {
			return r
		}
	}
	return plan.Route{}
}

// BasesOf returns what some plug-ins stand on, each once, in their order.
func BasesOf(plugins []Plugin) (bases []Plugin) {
	for _, p := range plugins {
		p = BaseOf(p)
		if !slices.ContainsFunc(bases, func(b Plugin) bool { return b.Name() == p.Name() }) {
			bases = append(bases, p)
		}
	}
	return bases
}

// Parts returns a function that says what each of some plug-ins states of a node, by the
// names of their bases. It is not safe for concurrent use, and costs less where it is called
// again.
func Parts(plugins ...Plugin) func(in Input) map[string]*plan.Plan {
	c := &mixCompiler{bases: BasesOf(plugins)}
	return func(in Input) map[string]*plan.Plan {
		c.compile(in)
		all := make(map[string]*plan.Plan, len(c.final))
		for i, p := range c.final {
			all[c.bases[i].Name()] = p
		}
		return all
	}
}

// UnknownNodes returns the other nodes to which a plan does not lead, in order. One of them
// that changes to the plan's plug-in before this node has heard of it would send what is
// not expected from it.
func UnknownNodes(p *plan.Plan, in Input) (names []string) {
	known := make(map[netip.Addr]bool)
	peers := make(map[string]bool)
	for _, r := range p.Routes.All() {
		for _, name := range r.Peers {
			peer := p.Peer(name)
			peers[name] = true
			for _, a := range peer.Addresses {
				known[a] = true
			}
			for _, e := range peer.Ends {
				known[e.VTEP] = true
			}
		}
	}
	for n := range registry.Each[*corev1.Node](in.Objects, api.Node) {
		if n.Name != in.Node.Name && !peers[n.Name] && !slices.ContainsFunc(api.NodeAddresses(n), func(a netip.Addr) bool { return known[a] }) {
			names = append(names, n.Name)
		}
	}
	return names
}
