// Package service compiles Services and what is behind them, as Kubernetes has both, to
// the tables Services, Backends and Sources of a node's plan. It is pure, and knows neither
// who loads the tables nor what else is in the plan, but for the node itself.
//
// Of each port of a Service it makes a set of backends, and frontends that name it: at the
// cluster's addresses, at ports of the node, and at addresses outside. Where the Service
// says that only the node's own endpoints are to be used, that is a second set. All
// endpoints that are still there are in the set; those that get no connections any more
// have weight 0 and keep the ones that they have. Where what is sent to the cluster's addresses stays on
// the node and no frontend names the first set, that is left out, and all endpoints are in the second
// one, for streams that were there before. Else such a stream has its backend in the first set, so
// that no endpoint of another node is in both.
//
// Start reading at Compiler; read.go has what is read of a Service, endpoints.go who may be
// chosen and at which addresses, claims.go who gets what several Services claim, budget.go
// how much a namespace may make, queue.go what waits, price.go what a change costs, rules.go what is few entries and costs many,
// moves.go which frontends wait for their backends, and concern.go which others one Service has to do with.
package service

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Kinds are the kinds that are read, beside GrantKind where a registry serves it.
var Kinds = []*registry.Kind{api.Service, api.EndpointSlice, api.Node, api.AddressPoolKind, api.AddressGrantKind}

// Tables are those of a plan that Services make.
type Tables struct {
	Services plan.Table[plan.ServiceKey, plan.Service]
	Backends plan.Table[plan.BackendKey, plan.Backend]
	Sources  plan.Table[plan.SourceKey, plan.Source]
}

// Problem is what of a Service cannot be done.
type Problem struct {
	// Service is the one that it is about, Kind and Key the object to blame.
	Service registry.Key
	Kind    *registry.Kind
	Key     registry.Key
	// Endpoint is the address, as the EndpointSlice Key has it, that is to blame; empty where it is none.
	Endpoint string
	// Message names the value and says what to do.
	Message string
}

// Compiler compiles the tables of one node, one after the other. It is not safe for
// concurrent use. The zero Compiler knows nothing yet.
type Compiler struct {
	// Whose names who has addresses of the node, where that is not the node itself. It is
	// replaced between two calls, and never changed.
	Whose map[netip.Addr]string
	// Names are name servers, which no Service has. It is replaced between two calls, and never
	// changed.
	Names NameServers
	// Grants says that the registry keeps Grants: an address of the cluster, and a port of nodes,
	// is a Service's that has the Grant of it, and else nobody's. Who has none is told so where
	// Grants are given.
	Grants bool
	// Gradual has what takes long wait until Advance is called, so that what changes meanwhile need
	// not wait for it; see Waiting. What is compiled first, or after the node changed, is compiled whole.
	Gradual bool

	advancing bool
	owner     string
	resting   map[string]bool
	queue     queue
	// rooms are by namespace what is left of what the last call of Compile did at once; nil where it did all.
	rooms map[string]*room

	services derived.List[*service]
	slices   derived.List[*slice]
	grants   derived.List[*grant]
	pools    derived.List[*poolRanges]
	// addressGrants are in the order of their addresses.
	addressGrants derived.List[*addressGrant]

	// spaces are those namespaces that have Services with ports, and sizes what these may make.
	spaces map[string]space
	sizes  map[registry.Key]size
	// counts are what the tables have of what takes rules in data planes.
	counts counts

	node     view
	compiled map[registry.Key]*compiled
	claims   map[plan.ServiceKey]contest
	// contested are the claims that several Services have, troubled the Services of which,
	// or of whose endpoints, something cannot be done.
	contested map[plan.ServiceKey]bool
	troubled  map[registry.Key]bool
	tables    Tables
	// settled are the claims of which something changed since tables were made, and edits what
	// else leads from these to what was compiled since.
	settled []plan.ServiceKey
	edits   edits
}

// edits are those of tables.
type edits struct {
	backends []plan.Edit[plan.BackendKey, plan.Backend]
	sources  []plan.Edit[plan.SourceKey, plan.Source]
}

// view is the node as Services see it.
type view struct {
	plan.Local
	zone   string
	whose  map[netip.Addr]string
	grants bool
	// pooled are the ranges of all AddressPools, in ascending order, none of which overlap.
	pooled []api.AddressRange
	names  NameServers
}

// equal reports whether all that Services ask of the node is the same.
func (v view) equal(o view) bool {
	return v.Node == o.Node && v.zone == o.zone && v.grants == o.grants && slices.Equal(v.Addresses, o.Addresses) && slices.Equal(v.Pools, o.Pools) && maps.Equal(v.whose, o.whose) && slices.Equal(v.pooled, o.pooled) && v.names.equal(o.names)
}

// Compile returns the tables that follow from objects, for a plan of the node.
//
// A Service is compiled anew where it, one of its slices or one of its Grants changed since the
// last call, or the node did. That costs in proportion to the number of its frontends and to that of its
// backends, which are all endpoints for each port. Objects that did not change, where these
// are the same pointers, cost no more than to find that.
func (c *Compiler) Compile(objects registry.Objects, node plan.Local) Tables {
	gradual, advancing := c.Gradual, c.advancing
	c.advancing, c.rooms = false, nil
	if c.compiled == nil {
		gradual = false
		c.compiled, c.claims = make(map[registry.Key]*compiled), make(map[plan.ServiceKey]contest)
		c.spaces, c.sizes = make(map[string]space), make(map[registry.Key]size)
		c.contested, c.troubled = make(map[plan.ServiceKey]bool), make(map[registry.Key]bool)
	}
	now := view{Local: node, whose: c.Whose, grants: c.Grants, names: c.Names}
	if n := registry.GetAs[*corev1.Node](objects, api.Node, registry.Key{Name: node.Node}); n != nil {
		now.zone = n.Labels[corev1.LabelTopologyZone]
	}
	changed := make(map[registry.Key]bool)
	gone, came := c.services.Update(objects.All(api.Service), readService, compareServices)
	for _, s := range slices.Concat(gone, came) {
		changed[s.key] = true
	}
	left, arrived := c.slices.Update(objects.All(api.EndpointSlice), readSlice, compareSlices)
	for _, s := range slices.Concat(left, arrived) {
		changed[s.of] = true
	}
	taken, given := c.grants.Update(objects.All(GrantKind), readGrant, compareGrants)
	for _, g := range slices.Concat(taken, given) {
		changed[g.of] = true
	}
	c.pools.Update(objects.All(api.AddressPoolKind), readPool, comparePools)
	now.pooled = merged(c.pools.All())
	refused, allowed := c.addressGrants.Update(objects.All(api.AddressGrantKind), readAddressGrant, compareAddressGrants)
	if regranted := slices.Concat(refused, allowed); len(regranted) > 0 {
		at := make(map[netip.Addr]bool)
		for _, g := range regranted {
			at[g.address] = true
		}
		for _, s := range c.services.All() {
			if slices.ContainsFunc(s.pooledAt(c.Grants), func(a netip.Addr) bool { return at[a] }) {
				changed[s.key] = true
			}
		}
	}
	others := c.account(changed)
	if !now.equal(c.node) {
		c.node, gradual = now, false
		for _, s := range c.services.All() {
			changed[s.key] = true
		}
		changed[nobodys] = true
	}
	if gradual {
		c.rooms = make(map[string]*room)
		c.follow(changed, others)
	} else {
		for _, key := range others {
			changed[key] = true
		}
		for key := range c.queue.all() {
			changed[key] = true
		}
		for key := range changed {
			c.replaceAll(key)
		}
		c.queue = queue{}
	}
	c.settleTables(nobodys, nil, nil)
	if advancing {
		c.advance(c.owner)
		c.settleTables(nobodys, nil, nil)
	}
	c.counts.forget()
	return c.tables
}

// settleTables has the tables follow what was compiled since they were made, as far as there is room for rules, which is that
// of a Service for what it needs, first for those of its claims that leave a set. It reports whether all of the Service's is there.
func (c *Compiler) settleTables(of registry.Key, leaving map[*claim]bool, rules *int) (whole bool) {
	c.loadBackends() // first, as frontends need rules for how many they are
	whole = c.give(of, leaving, rules)
	c.tables.Sources = c.tables.Sources.With(c.edits.sources)
	c.edits = edits{}
	return whole
}

// behind returns the slices of a Service, in the order of their names.
func (c *Compiler) behind(key registry.Key) []*slice {
	all := c.slices.All()
	first, _ := slices.BinarySearchFunc(all, key, func(s *slice, k registry.Key) int { return s.of.Compare(k) })
	end := first
	for end < len(all) && all[end].of == key {
		end++
	}
	return all[first:end]
}

// replace has what a Service is next be in the place of what it was, as far as there is room, which it takes from what
// there is: some for what comes, and some for backends that go, which may be the same, and some for rules. Frontends of which
// the backends are not all there stay with those that they had; see moves.go. Where room is nil
// all is done. It reports whether all is.
func (c *Compiler) replace(n *next, room, removals, rules *int) (whole bool) {
	key, before, now := n.key, n.before, n.now
	delete(c.compiled, key)
	delete(c.troubled, key)
	if n.found {
		c.compiled[key] = now
		if len(now.problems) > 0 || slices.ContainsFunc(n.behind, func(s *slice) bool { return len(s.refused) > 0 }) {
			c.troubled[key] = true
		}
	}
	if whole = true; room == nil {
		c.edits.backends = instead(c.edits.backends, before.backends, n.made.backends)
		now.backends = keysOf(n.made.backends)
	} else {
		whole = c.within(n, room, removals, rules)
	}
	c.contend(before, now)
	waits := now.held
	if room != nil {
		had := *rules
		if !c.settleTables(key, n.leaving, rules) {
			waits, whole = true, false
		}
		*room -= had - *rules
	}
	if waits {
		now.sources = c.admit(now.service, before.sources, n.made.sources, true)
		before.claims, before.backends, before.sources = nil, nil, nil // claims keep the rest of it
	} else {
		c.edits.sources = instead(c.edits.sources, before.sources, n.made.sources)
		now.sources = keysOf(n.made.sources)
	}
	if !n.found && !whole {
		c.compiled[key] = now // it has some still
	}
	return whole
}

// replaceAll has a Service be all that it is next.
func (c *Compiler) replaceAll(key registry.Key) {
	n := c.next(key)
	c.replace(&n, nil, nil, nil)
}

// instead adds edits that put entries in the place of others. Both are in the order of their keys.
func instead[K plan.TableKey[K], V any](edits []plan.Edit[K, V], before []K, now []plan.Edit[K, V]) []plan.Edit[K, V] {
	edits = withRoom(edits, len(before)+len(now))
	for _, e := range now {
		for ; len(before) > 0 && before[0].Compare(e.Key) <= 0; before = before[1:] {
			if before[0] != e.Key {
				edits = append(edits, plan.Edit[K, V]{Key: before[0], Gone: true})
			}
		}
		edits = append(edits, e)
	}
	for _, k := range before {
		edits = append(edits, plan.Edit[K, V]{Key: k, Gone: true})
	}
	return edits
}

// withRoom returns a list with room for n more. One that grows to many grows twofold, so that
// little is copied.
func withRoom[T any](list []T, n int) []T {
	if cap(list)-len(list) < n {
		return slices.Grow(list, max(n, len(list)))
	}
	return list
}

func keysOf[K, V any](edits []plan.Edit[K, V]) []K {
	if len(edits) == 0 {
		return nil
	}
	keys := make([]K, len(edits))
	for i, e := range edits {
		keys[i] = e.Key
	}
	return keys
}

// Problems returns what cannot be done of what was compiled last, in the order of the
// Services. It takes time in proportion to how many of them something is wrong with, and to how
// many claim what they have not got, but of the many that one has not got only the first are told,
// and how many there are.
func (c *Compiler) Problems() (all []Problem) {
	about := maps.Clone(c.troubled)
	lost := make(map[registry.Key]losses)
	for key := range c.contested {
		for _, loser := range c.claims[key].losers() {
			if loser.by.key == nobodys {
				continue
			}
			about[loser.by.key] = true
			lost[loser.by.key] = lost[loser.by.key].with(loser)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(about), registry.Key.Compare) {
		for _, text := range c.compiled[key].problems {
			all = append(all, Problem{Service: key, Kind: api.Service, Key: key, Message: text})
		}
		of := lost[key]
		for i, one := range of.first[:min(of.many, maxLost)] {
			text := one.lostTo(c.claims[one.key].first())
			if more := of.many - i; i == maxLost-1 && more > 1 {
				text = fmt.Sprintf("%d more of its addresses and ports are others': choose other addresses or ports", more)
			}
			all = append(all, Problem{Service: key, Kind: api.Service, Key: key, Message: text})
		}
		for _, b := range c.behind(key) {
			for _, address := range b.refused {
				all = append(all, Problem{Service: key, Kind: api.EndpointSlice, Key: b.key, Endpoint: address,
					Message: fmt.Sprintf("endpoint %q is not the address of one machine that others reach, and gets nothing: take it out", address)})
			}
		}
	}
	return all
}

// What one Service may make, and all of a namespace: users write it in far fewer bytes, and others wait for what it
// takes.
const (
	// MaxBackends is how many backends it may have, which are its endpoints for each port.
	MaxBackends = 20000
	// MaxFrontends is at how many addresses and ports it may be reached on a node, where a port of nodes
	// counts once for each family of the Service.
	MaxFrontends = 5000
	// MaxBackendsOfNamespace is how many backends the Services of a namespace may have together. That
	// is room for 30,000 Services with two endpoints for one port, and for twenty with 5,000.
	MaxBackendsOfNamespace = 100_000
	// MaxFrontendsOfNamespace is at how many addresses and ports they may be reached together, where
	// the ports of nodes count as if a node had one address of each family.
	MaxFrontendsOfNamespace = 200_000
	// MaxRanges is from how many ranges of addresses clients may come to those of its load balancers. Each of
	// these addresses counts as one, as a node that has it may send from there.
	MaxRanges = 5000
	// MaxRangesOfNamespace is from how many they may come to the Services of a namespace together.
	MaxRangesOfNamespace = 50_000
)

// limit leaves out what is more than one Service may make, and what is more than the Services of
// its namespace may, and returns what is behind the ports that are left. Without endpoints it refuses
// connections, and without ports it has nothing but its address.
func (c *compiled) limit(behind []*slice, over excess) ends {
	at := len(c.clusterIPs) + len(c.balanced) + len(c.external)
	if c.nodePorts {
		// A node has one address of each family at most. Who tells what is wrong has none, or those of several
		// nodes, and finds the same.
		at += len(c.families)
	}
	if n := at * len(c.ports); n > MaxFrontends {
		c.ports = nil
		c.problems = append(c.problems, fmt.Sprintf("its ports at all of its addresses are %d, more than %d, and none is served: make several Services of it, or give it fewer externalIPs", n, MaxFrontends))
		return nil // before what is behind each of them is looked for
	}
	if over.frontends {
		c.ports = nil
		c.problems = append(c.problems, fmt.Sprintf("its ports at all of its addresses and those of older Services are more than %d in namespace %s, and none of its is served: "+
			"remove Services or externalIPs there, or put it into another namespace", budget.frontends, c.key.Namespace))
		return nil
	}
	found := endsOf(c.service, behind)
	some := slices.ContainsFunc(behind, func(s *slice) bool { return len(s.endpoints) > 0 })
	for _, p := range c.ports {
		if some && !found[p.portName].named {
			called := ""
			if p.name != "" {
				called = fmt.Sprintf(", called %q,", p.name)
			}
			c.problems = append(c.problems, fmt.Sprintf("spec.ports: port %d/%s%s is in none of its EndpointSlices, though these have endpoints, and is refused: see whether its pods have the targetPort, and a slice that somebody wrote calls its port so",
				p.port, strings.ToUpper(p.protocol.String()), called))
		}
	}
	switch backends := found.backends(c.ports); {
	case backends > MaxBackends:
		c.problems = append(c.problems, fmt.Sprintf("its endpoints are %d backends for all of its ports together, more than %d, and none gets connections: make several Services of it", backends, MaxBackends))
	case over.backends:
		c.problems = append(c.problems, fmt.Sprintf("its endpoints for all of its ports and those of older Services are more than %d in namespace %s, and none of its gets connections: "+
			"remove Services or endpoints there, or put it into another namespace", budget.backends, c.key.Namespace))
	default:
		return found
	}
	c.tooMany = true
	return nil
}

// compiled is what a Service makes.
type compiled struct {
	*service
	// ports are those of the Service that are served. tooMany says that none of them has its backends, as these
	// are more than may be.
	ports   []port
	tooMany bool
	// pooled is what AddressPools and AddressGrants say of its addresses.
	pooled standings
	// served is what is behind each of the ports.
	served []served
	// claims are in the order of their keys, of each one. held says that some are of what was compiled
	// before, until there are all backends of the sets that others would name.
	claims []*claim
	held   bool
	// backends and sources are what it has in these tables, in order.
	backends []plan.BackendKey
	sources  []plan.SourceKey
	// problems are those of the Service, and what it cannot have on the node.
	problems []string
}

// compile compiles a Service, and puts what it has in the tables Backends and Sources into edits
// that have nothing yet.
func compile(s *service, behind []*slice, over excess, granted granted, pooled standings, node view, into *edits) *compiled {
	c := &compiled{service: s, ports: s.ports, pooled: pooled, problems: slices.Clone(s.problems)}
	c.refuseOthers()
	found := c.limit(behind, over)
	for _, p := range c.ports {
		c.port(p, found[p.portName].endpoints(node), granted, node, into)
	}
	for _, a := range s.clusterIPs {
		if slices.Contains(c.pooled.taken, a) {
			continue
		}
		if has := granted.has(what{address: a}); has || !node.grants || node.Owns(plan.DefaultNetwork, a) {
			c.refuseRest(rankClusterIP, has, "spec.clusterIPs", a, node)
		}
	}
	for _, a := range s.balanced {
		// What nobody serves there would be routed on, and come back.
		if c.pooled.outside[a] == pooledOwn {
			c.refuseRest(rankBalanced, true, "status.loadBalancer.ingress", a, node)
		}
	}
	c.order()
	slices.SortFunc(into.backends, func(a, b plan.Edit[plan.BackendKey, plan.Backend]) int { return a.Key.Compare(b.Key) })
	if s.guarded {
		c.letIn(over.ranges, node, into)
	}
	return c
}

// letIn puts those into edits who may come to guarded frontends of the Service, where it has any. Where they are
// more than may be it is nobody: such a frontend lets in who is named alone.
func (c *compiled) letIn(over bool, node view, into *edits) {
	guarded := make(map[plan.Family]bool)
	for _, one := range c.claims {
		if f := plan.FamilyOf(one.key.Address); one.rank == rankBalanced && one.port != theRest && c.guards(f) {
			guarded[f] = true
		}
	}
	if len(guarded) == 0 {
		return
	}
	if n := c.mostAdmitted(); n > MaxRanges {
		c.problems = append(c.problems, fmt.Sprintf("spec.loadBalancerSourceRanges: with one for each address of its load balancers they are %d, more than %d, and nobody is let in at these addresses: name fewer and larger ranges", n, MaxRanges))
		return
	}
	if over {
		c.problems = append(c.problems, fmt.Sprintf("spec.loadBalancerSourceRanges: with those of older Services they are more than %d in namespace %s, and nobody is let in at the addresses of its load balancers: "+
			"name fewer and larger ranges there, or put it into another namespace", budget.ranges, c.key.Namespace))
		return
	}
	for _, p := range c.admitted(node.Addresses) {
		if guarded[plan.FamilyOf(p.Addr())] {
			into.sources = append(into.sources, plan.Edit[plan.SourceKey, plan.Source]{
				Key: plan.SourceKey{Network: plan.DefaultNetwork, Name: c.name, Prefix: p}, Value: plan.Source{Origin: c.origin}})
		}
	}
	slices.SortFunc(into.sources, func(a, b plan.Edit[plan.SourceKey, plan.Source]) int { return a.Key.Compare(b.Key) })
}

// refuseRest refuses what is no port of the Service at an address that is its alone.
func (c *compiled) refuseRest(r rank, granted bool, field string, a netip.Addr, node view) {
	// Of an address of its own the node keeps what is no port of the Service.
	if node.Owns(plan.DefaultNetwork, a) {
		c.problems = append(c.problems, fmt.Sprintf("%s: %s is an address of %s itself, which keeps what is no port of the Service: "+
			"give the Service an address that no node has", field, a, cmp.Or(node.whose[a], node.Node)))
		return
	}
	c.claims = append(c.claims, &claim{by: c, rank: r, granted: granted, key: plan.ServiceKey{Network: plan.DefaultNetwork, Address: a},
		port: theRest})
}

// port adds what a port of the Service makes.
func (c *compiled) port(p port, all []endpoint, granted granted, node view, into *edits) {
	set, frontends := setName(c.name, p), c.frontends(p, granted, node)
	everywhere := choose(all, node.hinted)
	named := !c.internalLocal || slices.ContainsFunc(frontends, func(f frontend) bool { return f.rank != rankClusterIP })
	if named {
		into.putBackends(set, p, c.affinity > 0, all, everywhere)
	}
	localSet, otherwise := "", [2]plan.Refusal{}
	if c.internalLocal || c.externalLocal {
		localSet = setName(LocalSet(c.key), p)
		keep := onNode(all, node.Node)
		here := choose(keep, every)
		if !named && p.protocol != plan.UDP {
			keep = all // streams go on
		}
		into.putBackends(localSet, p, c.affinity > 0, keep, here)
		// Where nobody is here and somebody elsewhere, others may come to know of it.
		for i, f := range bothFamilies {
			if !anyOf(here, f) && anyOf(everywhere, f) {
				otherwise[i] = plan.Silence
			}
		}
	}
	c.served = append(c.served, served{set, localSet, otherwise})
	for _, at := range frontends {
		key := plan.ServiceKey{Network: plan.DefaultNetwork, Address: at.address, Protocol: p.protocol, Port: at.port}
		c.claims = append(c.claims, &claim{by: c, rank: at.rank, names: node.names.has(c.key, key), granted: at.granted, port: int32(len(c.served) - 1), key: key})
	}
}

// LocalSet is what the sets are called in which a Service's endpoints on the node itself get connections,
// those of its ports with : and the port's name behind it.
func LocalSet(k registry.Key) string { return k.String() + LocalSuffix }

// LocalSuffix ends the names of such sets, but for the ports.
const LocalSuffix = "/local"

// setName is what the set of a port is called. All behind the first colon is the port's name,
// so that no port of one has the name of another's.
func setName(of string, p port) string {
	if p.name == "" {
		return of
	}
	return of + ":" + p.name
}

// putBackends adds those of a set. Both lists are in the order of their addresses.
func (e *edits) putBackends(set string, p port, affinity bool, all, chosen []endpoint) {
	for _, one := range all {
		var weight uint16
		if len(chosen) > 0 && chosen[0].at == one.at {
			weight, chosen = 1, chosen[1:]
		}
		// Who speaks UDP cannot tell that nobody answers any more, as one of TCP can.
		if weight == 0 && p.protocol == plan.UDP && !one.serving {
			continue
		}
		e.backends = append(e.backends, plan.Edit[plan.BackendKey, plan.Backend]{
			Key:   plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: one.at.Addr(), Port: one.at.Port()},
			Value: plan.Backend{Node: one.node, Weight: weight, Affinity: affinity, Origin: one.origin}})
	}
}

func compareServices(a, b *service) int { return a.key.Compare(b.key) }

func compareSlices(a, b *slice) int {
	return cmp.Or(a.of.Compare(b.of), a.key.Compare(b.key))
}
