package linux

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// Metrics that routes have when nobody says otherwise; the kernel's IPv6
// default is IP6_RT_PRIO_USER.
const (
	metric4 = 0
	metric6 = 1024
)

// compiler turns plan entries into kernel objects. Most entries turn into the
// same objects whatever the rest of the plan is. The exceptions, in which a
// kernel's routing tables differ from one plan table, are collected when the
// compiler is made.
type compiler struct {
	node *rtnl.Node
	plan *plan.Plan
	// peers are those that routes speak of: another plan's while what it asked
	// for is taken back.
	peers plan.Table[plan.PeerKey, plan.Peer]
	want  *rtnl.Wanted
	erase bool // take objects back instead of asking for them

	implied []impliedRoute

	// gateways and endpointsOnly are the prefixes of such routes.
	gateways, endpointsOnly []netip.Prefix
	// bases are IPv4 next hops that are not their prefix's first address,
	// because a nested prefix of another node begins with the same one.
	bases map[netip.Prefix]netip.Addr
	// exceptional says that some entry needed an exception, so that single
	// entries must not be compiled on their own.
	exceptional bool

	// sources is what sourcesOf returns, once it was asked for.
	sources *sources

	missing  map[string]bool // endpoints' interfaces that are not there; nothing on them is asked for
	problems []error         // what could not be done, but keeps nothing else from being done
	conflict error           // two entries ask for different things under one key
}

func newCompiler(n *rtnl.Node, p *plan.Plan, w *rtnl.Wanted) *compiler {
	c := &compiler{node: n, plan: p, peers: p.Peers, want: w,
		bases: map[netip.Prefix]netip.Addr{}, missing: map[string]bool{}}
	c.implied = impliedRoutes(p)
	for k, r := range c.routes() {
		switch {
		case r.Way == plan.ToGateway:
			c.gateways = append(c.gateways, k.Prefix)
		case r.EndpointsOnly:
			c.endpointsOnly = append(c.endpointsOnly, k.Prefix)
		}
	}
	return c
}

// impliedRoutes returns what a plan means without saying it: what is in a pool
// and has no route is nowhere, and what an endpoint sends and no route covers
// is dropped. A kernel would send both out by its default route.
func impliedRoutes(p *plan.Plan) []impliedRoute {
	var implied []impliedRoute
	for _, pool := range p.Local.Pools {
		k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: pool.Prefix.Masked()}
		if r, ok := p.Routes.Get(k); !ok || r.EndpointsOnly {
			implied = append(implied, impliedRoute{k, plan.Route{Way: plan.ToDrop}})
		}
	}
	for _, is4 := range interval.Families {
		k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: interval.Everything(is4)}
		if _, ok := p.Routes.Get(k); !ok && len(endpointSources(p, is4)) > 0 {
			implied = append(implied, impliedRoute{k, plan.Route{Way: plan.ToDrop, EndpointsOnly: true}})
		}
	}
	return implied
}

type impliedRoute struct {
	key   plan.RouteKey
	route plan.Route
}

// routes yields the plan's routes and the implied ones.
func (c *compiler) routes() iter.Seq2[plan.RouteKey, plan.Route] {
	return func(yield func(plan.RouteKey, plan.Route) bool) {
		for k, r := range c.plan.Routes.All() {
			if !yield(k, r) {
				return
			}
		}
		for _, i := range c.implied {
			if !yield(i.key, i.route) {
				return
			}
		}
	}
}

// compile asks for all that the plan needs.
func (c *compiler) compile() error {
	c.assignBases()
	ends := map[string]bool{}
	for _, pool := range c.plan.Local.Pools {
		if !pool.Gateway.IsValid() {
			continue
		}
		if c.node.Bridge != 0 {
			put(c, &c.want.Addresses, rtnl.AddressKey{Link: c.node.Bridge, Prefix: interval.Single(pool.Gateway)}, struct{}{})
		}
		// Without an address on this device, others' masquerade takes any of the
		// node's. The gateway's on two devices would fail programs that listen at
		// each address of each.
		if a := pool.TunnelAddress(); a.IsValid() && c.carries(pool.Tunnel, pool.Prefix) {
			put(c, &c.want.Addresses, rtnl.AddressKey{Link: c.node.Tunnels[pool.Tunnel].Index, Prefix: interval.Single(a)}, struct{}{})
			ends[pool.Tunnel] = ends[pool.Tunnel] || a.Is4()
		}
	}
	ipv4, ipv6 := rtnl.Routed(c.plan)
	for _, t := range rtnl.Overlays(c.node.Stamps, c.plan) {
		if d, ok := c.node.Tunnels[t.Name]; ok && ipv4 && t.Carries(netip.IPv4Unspecified()) && !ends[t.Name] {
			put(c, &c.want.Addresses, rtnl.AddressKey{Link: d.Index, Prefix: rtnl.PlaceHolder}, struct{}{})
		}
		if d, ok := c.node.Tunnels[t.Name]; ok && ipv6 && t.Carries(netip.IPv6Unspecified()) && d.MTU < leastMTU6 {
			c.problems = append(c.problems, fmt.Errorf("no IPv6 to other nodes: the MTU of %s is %d, and IPv6 needs %d; raise the MTU of the node's interface by %d",
				t.Device, d.MTU, leastMTU6, leastMTU6-d.MTU))
		}
	}
	c.compileRules()
	for k, e := range c.plan.Endpoints.All() {
		c.endpoint(k, e)
	}
	for k, r := range c.routes() {
		c.route(k, r)
	}
	for k, s := range c.plan.Services.All() {
		c.frontend(k, s)
	}
	return c.conflict
}

// frontend makes a way out of the node to a frontend in a prefix that is dropped. What
// becomes of the node's own packets there is decided once they have one, and would be
// nothing: they go to a backend, or are refused. And it makes what delivers packets to one
// that the node itself answers.
func (c *compiler) frontend(k plan.ServiceKey, s plan.Service) {
	c.here(k, s)
	if c.node.Bridge == 0 || k.Address.IsLoopback() || !drops(c.plan, k.Address) {
		return
	}
	// From an address of a pool they would take the endpoints' routes to the backend.
	var source netip.Addr
	if i := slices.IndexFunc(c.plan.Local.Addresses, func(a netip.Addr) bool { return a.Is4() == k.Address.Is4() }); i >= 0 && c.node.Holding(c.plan.Local.Addresses[i]) != 0 {
		source = c.plan.Local.Addresses[i]
	}
	prefix := interval.Single(k.Address)
	c.putRoute(unix.RT_TABLE_MAIN, prefix, rtnl.Route{Kind: unix.RTN_UNICAST, Link: c.node.Bridge, Source: source, Scope: linkScope(prefix)})
}

// drops reports whether a plan drops what goes to an address that is no endpoint's and not
// the node's.
func drops(p *plan.Plan, a netip.Addr) bool {
	if p.Owns(plan.DefaultNetwork, a) {
		return false
	}
	k, r, routed := p.Route(plan.DefaultNetwork, a, false)
	if pool, ok := p.PoolOf(plan.DefaultNetwork, a); ok && (!routed || k.Prefix.Bits() < pool.Prefix.Bits()) {
		return true
	}
	return routed && r.Way == plan.ToDrop
}

// frontendIn reports whether a plan has a frontend whose address is in a prefix.
func frontendIn(p *plan.Plan, prefix netip.Prefix) bool {
	for k := range p.Services.From(plan.ServiceKey{Network: plan.DefaultNetwork, Address: prefix.Addr()}) {
		return k.Network == plan.DefaultNetwork && prefix.Contains(k.Address)
	}
	return false
}

// compileRules sends what endpoints send through the table of the routes that
// are only theirs, if there are such routes, and only towards where they lead:
// all other packets are spared the search.
func (c *compiler) compileRules() {
	for _, is4 := range interval.Families {
		to, ok := interval.Common(c.endpointsOnly, is4)
		if !ok {
			continue
		}
		priority := c.node.Stamps.Priority
		if to.Bits() == 0 {
			// Asked for a rule to everywhere, the kernel takes any of the
			// same priority for it.
			priority++
		}
		for _, from := range endpointSources(c.plan, is4) {
			put(c, &c.want.Rules, rtnl.Rule{Priority: priority, From: from, To: to, Table: c.node.Stamps.RoutingTable}, struct{}{})
		}
	}
}

// endpointSources returns the pools, and the addresses of endpoints outside of
// them, of one family.
func endpointSources(p *plan.Plan, is4 bool) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, pool := range p.Local.Pools {
		if pool.Prefix.Addr().Is4() == is4 {
			prefixes = append(prefixes, pool.Prefix.Masked())
		}
	}
	pools := len(prefixes)
	for _, e := range p.Endpoints.All() {
		for _, a := range e.Addresses {
			if a.Is4() == is4 && !slices.ContainsFunc(prefixes[:pools], func(p netip.Prefix) bool { return p.Contains(a) }) {
				prefixes = append(prefixes, interval.Single(a))
			}
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

func (c *compiler) endpoint(k plan.EndpointKey, e plan.Endpoint) {
	link, ok := c.node.Links[k.Interface]
	if !ok {
		if !c.erase {
			c.missing[k.Interface] = true
		}
		return
	}
	put(c, &c.want.Groups, link, struct{}{})
	if s := (rtnl.Shaping{To: bytesPerSecond(e.IngressRate), From: bytesPerSecond(e.EgressRate)}); s != (rtnl.Shaping{}) {
		put(c, &c.want.Shaping, link, s)
	}
	if e.MAC.IsZero() {
		return
	}
	for _, a := range e.Addresses {
		put(c, &c.want.Neighbours, rtnl.NeighbourKey{Link: link, Addr: a}, e.MAC)
	}
}

// bytesPerSecond is a rate in bits per second as a kernel has it, 0 for no limit. Less than
// leastRate no packet of usual size would ever get through.
func bytesPerSecond(bits uint64) uint64 {
	if bits == 0 {
		return 0
	}
	return max(bits/8, leastRate)
}

// leastRate is the least to which packets are limited, in bytes per second: 1 kbit/s, the least
// that Kubernetes takes.
const leastRate = 125

func (c *compiler) route(k plan.RouteKey, r plan.Route) {
	if !r.EndpointsOnly && slices.ContainsFunc(c.endpointsOnly, func(o netip.Prefix) bool { return interval.Covers(o, k.Prefix) }) {
		// The endpoints' table is asked first, so it must say where it does
		// not know best.
		c.exceptional = true
		c.putRoute(c.node.Stamps.RoutingTable, k.Prefix, rtnl.Route{Kind: unix.RTN_THROW})
	}
	table := unix.RT_TABLE_MAIN
	if r.EndpointsOnly {
		table = c.node.Stamps.RoutingTable
	}
	switch r.Way {
	case plan.ToGateway:
		return
	case plan.ToHost:
		if k.Prefix.IsSingleIP() && c.node.Holding(k.Prefix.Addr()) == 0 && !c.ownGateway(k.Prefix.Addr()) {
			c.problem(k, r, "no interface of the node has this address")
		}
		return
	}
	prefixes := []netip.Prefix{k.Prefix}
	if table == unix.RT_TABLE_MAIN {
		prefixes = c.carve(k.Prefix)
	}
	for _, prefix := range prefixes {
		c.piece(table, prefix, k, r)
	}
}

// piece compiles one prefix of a route.
func (c *compiler) piece(table int, prefix netip.Prefix, k plan.RouteKey, r plan.Route) {
	to := rtnl.Route{Kind: unix.RTN_UNICAST}
	switch r.Way {
	case plan.ToDrop:
		to.Kind = unix.RTN_UNREACHABLE
	case plan.ToNextHop:
		peer, _ := c.peers.Get(plan.PeerKey{Name: r.Peer()})
		to.Via = peer.NextHop(prefix.Addr())
		to.Link, to.Onlink = c.node.LinkTo(to.Via, c.plan.Local.Addresses)
		if to.Link == 0 {
			// A shorter prefix must not take its packets elsewhere.
			c.problem(k, r, "the next hop is on no interface of the node: what is sent there is dropped")
			to = rtnl.Route{Kind: unix.RTN_UNREACHABLE}
		}
	case plan.ToEndpoint:
		link, ok := c.node.Links[r.Interface]
		if !ok {
			return // the endpoint is missing, and is said to be
		}
		to.Link, to.Source = link, c.source(prefix)
		if prefix.IsSingleIP() {
			to.Scope = linkScope(prefix)
			break
		}
		c.exceptional = true
		e, _ := c.plan.Endpoints.Get(plan.EndpointKey{Interface: r.Interface})
		i := slices.IndexFunc(e.Addresses, func(a netip.Addr) bool { return a.Is4() == prefix.Addr().Is4() })
		if i < 0 {
			c.problem(k, r, "the endpoint has no address of this family")
			return
		}
		to.Via, to.Onlink = e.Addresses[i], true
	case plan.ToTunnel:
		end := c.end(r, prefix)
		if !c.carries(end.Tunnel, prefix) {
			to.Kind = unix.RTN_UNREACHABLE
			break
		}
		link := c.node.Tunnels[end.Tunnel].Index
		to.Link, to.Source = link, c.source(prefix)
		hop := prefix.Addr()
		switch other, ok := c.bases[prefix]; {
		case prefix.IsSingleIP():
			to.Scope = linkScope(prefix)
		case prefix.Addr().Is6():
			hop = linkLocal(end.MAC)
			to.Via = hop
		case ok:
			hop = other
			fallthrough
		default:
			to.Via, to.Onlink = hop, true
		}
		put(c, &c.want.Neighbours, rtnl.NeighbourKey{Link: link, Addr: hop}, end.MAC)
		put(c, &c.want.FDB, rtnl.FDBKey{Link: link, MAC: end.MAC}, end.VTEP)
	}
	c.putRoute(table, prefix, to)
}

// end is the other end of the tunnel of a route to a prefix.
func (c *compiler) end(r plan.Route, prefix netip.Prefix) plan.TunnelEnd {
	peer, _ := c.peers.Get(plan.PeerKey{Name: r.Peer()})
	end, _, _ := c.plan.Local.EndOf(peer, prefix.Addr())
	return end
}

// carries reports whether a tunnel can carry packets to a prefix here.
func (c *compiler) carries(tunnel string, prefix netip.Prefix) bool {
	d, ok := c.node.Tunnels[tunnel]
	return ok && (prefix.Addr().Is4() || d.MTU >= leastMTU6)
}

// leastMTU6 is the least MTU of a link with IPv6, in bytes (RFC 8200, section
// 5). The kernel does no IPv6 on one with less.
const leastMTU6 = 1280

// source is what the node sends from to a prefix, where it has that address.
func (c *compiler) source(prefix netip.Prefix) netip.Addr {
	if c.node.Bridge == 0 {
		return netip.Addr{}
	}
	return sourceTowards(c.plan, prefix.Addr())
}

func (c *compiler) problem(k plan.RouteKey, r plan.Route, what string) {
	c.problems = append(c.problems, fmt.Errorf("%s: %s", k.Line(r), what))
}

// blame makes an error one of the endpoint that an interface leads to, if it
// leads to one.
func (c *compiler) blame(link int, err error) error {
	if err == nil {
		return nil
	}
	for name, i := range c.node.Links {
		if k := (plan.EndpointKey{Interface: name}); i == link {
			e, _ := c.plan.Endpoints.Get(k)
			return &datapath.EndpointError{Interface: name, Name: e.Name, Origin: e.Origin, Err: err}
		}
	}
	return err
}

// originOf returns the origin of the entry that a route of the kernel is there for.
func (c *compiler) originOf(k rtnl.RouteKey) string {
	_, r, _ := c.plan.RouteAround(plan.DefaultNetwork, k.Prefix, k.Table == c.node.Stamps.RoutingTable)
	return r.Origin
}

func (c *compiler) putRoute(table int, prefix netip.Prefix, r rtnl.Route) {
	metric := c.node.Stamps.Metric + metric4
	if prefix.Addr().Is6() {
		metric = c.node.Stamps.Metric + metric6
	}
	put(c, &c.want.Routes, rtnl.RouteKey{Table: table, Prefix: prefix, Metric: metric}, r)
}

// sourceTowards is what the node sends from to a pod's address, on the node or
// behind a tunnel: the gateway of the pool that the address is of, or else of
// the first pool of its family.
func sourceTowards(p *plan.Plan, a netip.Addr) netip.Addr {
	var first netip.Addr
	for _, pool := range p.Local.Pools {
		if pool.Prefix.Contains(a) {
			return pool.Gateway
		}
		if !first.IsValid() && pool.Gateway.Is4() == a.Is4() {
			first = pool.Gateway
		}
	}
	return first
}

func (c *compiler) ownGateway(a netip.Addr) bool {
	return slices.ContainsFunc(c.plan.Local.Pools, func(p plan.Pool) bool { return p.Gateway == a })
}

// carve returns a route's prefix, or, where destinations in it must follow the
// node's own routing table, the prefixes that remain without those. What remains may
// be within a longer prefix that has a route of its own, and is that route's then.
func (c *compiler) carve(p netip.Prefix) []netip.Prefix {
	rest := []netip.Prefix{p}
	for _, g := range c.gateways {
		if !interval.Covers(p, g) {
			continue
		}
		c.exceptional = true
		var next []netip.Prefix
		for _, r := range rest {
			next = append(next, interval.Subtract(r, g)...)
		}
		rest = next
	}
	return slices.DeleteFunc(rest, func(piece netip.Prefix) bool { return c.routedWithin(p, piece) })
}

// routedWithin reports whether a route to less than p leads to all of a part of p.
func (c *compiler) routedWithin(p, part netip.Prefix) bool {
	for bits := p.Bits() + 1; bits <= part.Bits(); bits++ {
		k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(part.Addr(), bits).Masked()}
		r, ok := c.plan.Routes.Get(k)
		if ok && !r.EndpointsOnly && r.Way != plan.ToHost {
			return true
		}
		if slices.ContainsFunc(c.implied, func(i impliedRoute) bool { return i.key == k && !i.route.EndpointsOnly }) {
			return true
		}
	}
	return false
}

// assignBases finds the IPv4 tunnel routes whose first address is already the
// next hop to another node, and gives them another of their addresses.
func (c *compiler) assignBases() {
	type hop struct {
		prefix netip.Prefix
		end    plan.TunnelEnd
	}
	type address struct {
		tunnel string
		netip.Addr
	}
	var hops []hop
	for k, r := range c.routes() {
		if r.Way != plan.ToTunnel || k.Prefix.Addr().Is6() {
			continue
		}
		pieces := []netip.Prefix{k.Prefix}
		if !r.EndpointsOnly {
			pieces = c.carve(k.Prefix)
		}
		for _, p := range pieces {
			hops = append(hops, hop{p, c.end(r, p)})
		}
	}
	slices.SortStableFunc(hops, func(a, b hop) int { return b.prefix.Bits() - a.prefix.Bits() })
	taken := make(map[address]plan.MAC, len(hops))
	for _, h := range hops {
		base := h.prefix.Addr()
		for base.IsValid() && h.prefix.Contains(base) {
			if mac, ok := taken[address{h.end.Tunnel, base}]; !ok || mac == h.end.MAC {
				break
			}
			base = base.Next()
		}
		if base != h.prefix.Addr() {
			c.exceptional = true
			c.bases[h.prefix] = base
		}
		taken[address{h.end.Tunnel, base}] = h.end.MAC
	}
}

// put asks for an object, or takes it back.
func put[K, V comparable](c *compiler, l *reconcile.Ledger[K, V], k K, v V) {
	ok := true
	if c.erase {
		ok = l.Remove(k, v)
	} else {
		ok = l.Add(k, v)
	}
	if !ok && c.conflict == nil {
		c.conflict = fmt.Errorf("%w: %v is asked to be %v and something else as well", errConflict, k, v)
	}
}

var errConflict = errors.New("two entries of the plan contradict each other")

// linkLocal is the IPv6 address that an interface of that MAC address makes
// for itself (RFC 4291, appendix A). As a next hop it says on its own what link
// it is on, where any other address is first looked up among the routes that
// may just be about to change.
func linkLocal(m plan.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// linkScope is the scope of a route without next hop. IPv6 has no scopes.
func linkScope(p netip.Prefix) int {
	if p.Addr().Is4() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}
