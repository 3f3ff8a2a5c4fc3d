package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Explain follows a flow's first packet through the plans of a cluster's
// nodes, by the nodes' names, and says what becomes of it. Replies follow
// connection tracking and are not asked about.
//
// On each node the packet meets, in this order: the anti-spoof check of the
// endpoint that sends it, or whether its source would be answered by the way on
// which it came (see TakesFromPeer and TakesPlainly), Services, Routes, the egress
// policy of the endpoint, Egress (where it leaves the node), and the ingress
// policy of the endpoint that gets it. Policies see the destination that
// Services chose, and the class that the Classes table gives the other side, or else
// that of its tag: the one that the Tags table gives, or, where it has none, that of
// the local endpoint or the one that came through the tunnel. They are
// not asked about what the node sends to its own endpoints, nor about what an
// endpoint sends to itself. Where Services say that the node itself answers, they see the
// frontend as the destination, and are asked of each packet: there is no connection.
//
// The node itself sends from the address that its kernel would choose: its
// pool's gateway towards what is in its own pool or behind a tunnel, its
// underlay address towards all else. Masquerade makes that the source, too. What it sends to
// a Service has the source that the kernel chose by where the Service is, if the frontend says
// so (see Service.Masquerade).
// What every kernel treats in a way of its own it does here, too: loopback
// addresses stay with who sends, and nothing is forwarded to broadcast,
// multicast and link-local ones, to which IPv6 endpoints send from link-local
// addresses.
//
// An address in a node's own pool that no longer route covers is unreachable.
// What an endpoint sends and no route covers is dropped, on its own node and on
// others: there it is what comes out of a tunnel, or plainly from where a route
// leads to a peer. All else that no route covers goes out as the node's own routing
// table says: what the node itself sends, and what comes from others, whose
// router it may be.
//
// A packet handed to a node or a next hop of which plans has nothing is
// allowed, as far as is known: the reason says so, and SeenSource and
// SeenDestination are what that node gets. So is a packet that leaves the
// cluster, unless its destination is in the cluster after all. Of a route's peers the
// first is followed, of a Service's backends each that may be chosen, up to MaxFollowed
// in all. Where there are more, and none of these denies the flow, it is Unknown.
func Explain(plans map[string]*Plan, f Flow) Explanation {
	plans = maps.Clone(plans)
	maps.DeleteFunc(plans, func(_ string, p *Plan) bool { return p == nil })
	x := &explainer{
		plans: plans, names: slices.Sorted(maps.Keys(plans)),
		network: f.Network, src: f.Source.Unmap(), dst: f.Destination.Unmap(), protocol: f.Protocol, port: f.Port,
		visited: map[visit]bool{}, followed: new(int),
	}
	if x.network == "" {
		x.network = DefaultNetwork
	}
	return x.run(x.begin(f))
}

// run goes from stage to stage to the end.
func (x *explainer) run(next stage) Explanation {
	for next != nil {
		next = next()
	}
	return x.result
}

// explainer is the packet on its way, and the explanation so far. Its methods
// of type stage return what happens next, or nil once result is complete.
type explainer struct {
	plans map[string]*Plan
	names []string // sorted

	network  string
	src, dst netip.Addr
	protocol Protocol
	port     uint16
	tag      Tag // of the endpoint that sent it, as far as where it is now can tell

	// masquerade says that a Service of the node where it is now gives it the node's
	// address as its source.
	masquerade bool
	// translated says that a Service of the node where it is now gave it its destination.
	translated bool
	// kept says that the source of the node's own packet stays what it was when a Service
	// gave it its destination.
	kept    bool
	visited map[visit]bool
	// followed is how many backends have been, by all who share it.
	followed *int
	result   Explanation
}

type stage func() stage

// sender says what a node gets a packet from.
type sender int

const (
	fromOutside  sender = iota // another machine, without a tunnel
	fromTunnel                 // a peer, through a tunnel
	fromHost                   // the node itself
	fromEndpoint               // an endpoint of the node
	fromPeer                   // another node's endpoint, to leave the cluster here
)

// visit is a packet at a node; the same again is a loop.
type visit struct {
	node     string
	src, dst netip.Addr
	port     uint16
	from     sender
}

func (x *explainer) note(p *Plan, table, format string, args ...any) {
	x.result.Steps = append(x.result.Steps, Step{Node: p.Local.Node, Table: table, Decision: fmt.Sprintf(format, args...)})
}

func noteEntry[K entryKey[V], V any](x *explainer, p *Plan, table string, k K, v V, format string, args ...any) {
	x.note(p, table, format, args...)
	last := &x.result.Steps[len(x.result.Steps)-1]
	last.Entry, last.Origin = entry(k, v), k.origin(v)
}

func (x *explainer) deny(format string, args ...any) stage {
	x.result.Reason = fmt.Sprintf(format, args...)
	return nil
}

// arrive ends with the packet at a node or, if iface is not empty, its endpoint.
func (x *explainer) arrive(p *Plan, iface, format string, args ...any) stage {
	x.result.Node, x.result.Interface = p.Local.Node, iface
	return x.allow(format, args...)
}

// allow ends with the packet where plans do not reach, as it is now.
func (x *explainer) allow(format string, args ...any) stage {
	x.result.Allowed = true
	x.result.Reason = fmt.Sprintf(format, args...)
	x.result.SeenSource, x.result.SeenDestination, x.result.SeenPort = x.src, x.dst, x.port
	return nil
}

// begin finds where the flow's source is.
func (x *explainer) begin(f Flow) stage {
	switch {
	case !x.src.IsValid() || !x.dst.IsValid():
		return x.deny("the flow needs a source and a destination address")
	case !sameFamily(x.src, x.dst):
		return x.deny("source %s and destination %s are of different IP families", x.src, x.dst)
	}
	among := x.names
	if f.Node != "" {
		if x.plans[f.Node] == nil {
			return x.deny("no plan of %s is known", f.Node)
		}
		among = []string{f.Node}
	}
	for _, name := range among {
		p := x.plans[name]
		if f.Interface != "" {
			k := EndpointKey{f.Interface}
			if e, ok := p.Endpoints.Get(k); ok {
				return x.sends(p, k, e)
			}
			continue
		}
		if k, e, ok := p.endpointOf(x.network, x.src); ok {
			return x.sends(p, k, e)
		}
	}
	if f.Interface != "" {
		return x.deny("no plan has endpoint %s", f.Interface)
	}
	for _, name := range among {
		p := x.plans[name]
		if p.Owns(x.network, x.src) || x.src.IsLoopback() && f.Node != "" {
			x.note(p, "node", "%s is an address of the node itself", x.src)
			x.specify(p)
			return x.at(p, fromHost, EndpointKey{}, Endpoint{})
		}
	}
	for _, name := range among {
		p := x.plans[name]
		if pool, ok := p.PoolOf(x.network, x.src); ok {
			x.note(p, "node", "%s is in the node's pool %s, but no endpoint has it", x.src, pool.Prefix)
			return x.deny("no endpoint has the source address %s", x.src)
		}
	}
	for _, name := range among {
		p := x.plans[name]
		switch {
		case f.Enters != "" && f.Enters != name:
		case f.Node != "" || f.Enters != "" || x.entersAt(p):
			x.note(p, "node", "the packet comes in from outside the cluster")
			return x.plainly(p)
		}
	}
	return x.deny("neither %s nor %s belongs to a node or endpoint of which a plan is known", x.src, x.dst)
}

// entersAt reports whether what comes from outside for the packet's
// destination would be sent to this node.
func (x *explainer) entersAt(p *Plan) bool {
	_, _, ok := p.Service(x.network, x.dst, x.protocol, x.port, Outside)
	return ok || p.has(x.network, x.dst)
}

// sends is the stage of an endpoint that sends.
func (x *explainer) sends(p *Plan, k EndpointKey, e Endpoint) stage {
	x.network, x.tag = e.Network, e.Tag
	who := calledBy(e.Name, k.Interface)
	switch {
	case slices.Contains(e.Addresses, x.src):
		noteEntry(x, p, "endpoints", k, e, "%s sends from its own address", who)
	case e.AntiSpoof, p.AnswersAt(x.network, x.src):
		noteEntry(x, p, "endpoints", k, e, "%s sends from %s, which is not its own: dropped", who, x.src)
		return x.deny("%s may not send from %s", who, x.src)
	default:
		noteEntry(x, p, "endpoints", k, e, "%s sends from %s, which is not its own, and may", who, x.src)
	}
	x.specify(p)
	switch {
	case slices.Contains(e.Addresses, x.dst):
		return x.arrive(p, k.Interface, "%s reaches itself without leaving it", who)
	case StaysHome(x.dst):
		return x.stay(p, k.Interface, who)
	}
	return x.at(p, fromEndpoint, k, e)
}

func calledBy(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

// at is the stage of a node that has the packet and must decide where it goes.
// k and e are the endpoint that sends, for fromEndpoint.
func (x *explainer) at(p *Plan, from sender, k EndpointKey, e Endpoint) stage {
	here := visit{p.Local.Node, x.src, x.dst, x.port, from}
	if x.visited[here] {
		x.note(p, "node", "the packet was here before")
		return x.deny("a routing loop: the packet comes to %s again", p.Local.Node)
	}
	x.visited[here] = true

	x.masquerade, x.translated, x.kept = false, false, false
	if key, svc, ok := x.frontend(p, from); ok {
		return x.serve(p, from, k, e, key, svc)
	}
	return x.onward(p, from, k, e)
}

// onward is the stage of a node at which Services have been asked.
func (x *explainer) onward(p *Plan, from sender, k EndpointKey, e Endpoint) stage {
	if from == fromHost && StaysHome(x.dst) {
		return x.stay(p, "", p.Local.Node)
	}
	if next, ok := x.special(p, from, e); ok {
		return next
	}
	if p.AnswersAt(x.network, x.dst) {
		x.note(p, "services", "%s answers at %s itself, and nobody else does: dropped", p.Local.Node, x.dst)
		return x.deny("%s has nothing else at %s than what it answers itself", p.Local.Node, x.dst)
	}
	routeKey, route, routed := p.Route(x.network, x.dst, from == fromEndpoint)
	toItself := from == fromEndpoint && slices.Contains(e.Addresses, x.dst)
	if from == fromEndpoint && !toItself {
		if why := x.intoTunnel(p); why != "" {
			x.note(p, "node", "%s", why)
			return x.deny("%s", why)
		}
		if !x.mayLeave(p, e, routed, route) {
			return nil
		}
	}
	own := p.Owns(x.network, x.dst)
	if next, ok := x.answeredPast(p); ok && own {
		return next
	}
	if own && (!routed || route.Way != ToHost) {
		x.note(p, "node", "%s is the node's own address", x.dst)
		return x.atHost(p, from)
	}
	if pool, ok := p.PoolOf(x.network, x.dst); ok && !own && (!routed || routeKey.Prefix.Bits() < pool.Prefix.Bits()) {
		x.note(p, "node", "%s is in the node's pool %s, but no endpoint has it: dropped", x.dst, pool.Prefix)
		return x.deny("no endpoint has %s, which is in the pool of %s", x.dst, p.Local.Node)
	}
	switch {
	case !routed && (from == fromHost || from == fromOutside && !p.LeadsToPeer(x.network, x.src)):
		x.note(p, "node", "no route covers %s: out as the node's own routing table says", x.dst)
		route = Route{Way: ToGateway}
	case !routed:
		x.note(p, "routes", "no route covers %s: dropped", x.dst)
		return x.deny("%s has no route to %s", p.Local.Node, x.dst)
	default:
		noteEntry(x, p, "routes", routeKey, route, "%s", p.decisionOf(route, x.dst))
	}
	switch route.Way {
	case ToEndpoint:
		return x.deliver(p, from, toItself, EndpointKey{route.Interface})
	case ToHost:
		return x.atHost(p, from)
	case ToTunnel, ToNextHop, ToGateway:
		return x.leave(p, from, k, e, route)
	default:
		return x.deny("%s drops what goes to %s", p.Local.Node, routeKey.Prefix)
	}
}

// mayLeave asks the egress policy of the endpoint that sends.
func (x *explainer) mayLeave(p *Plan, e Endpoint, routed bool, route Route) bool {
	class, ok := p.ClassAt(x.network, x.dst)
	if !ok && routed && route.Way == ToEndpoint {
		to, _ := p.Endpoints.Get(EndpointKey{route.Interface})
		class = ClassOf(to.Tag)
	}
	return x.verdict(p, e.EgressPolicy, Outgoing, class)
}

// seenAs names a peer, and the one that it goes like, if another decided.
func seenAs(peer, decided Class) string {
	if decided == peer || decided == AnyPeer {
		return peer.name()
	}
	return fmt.Sprintf("%s, which goes like %s", peer.name(), decided.name())
}

// verdict asks a policy, and returns false when it denies.
func (x *explainer) verdict(p *Plan, policy string, d Direction, peer Class) bool {
	if policy == "" {
		return true
	}
	k, v, ok := p.Verdict(policy, d, peer, x.protocol, x.port)
	switch {
	case !ok:
		x.note(p, "verdicts", "%s policy %s has no entry for %s: denied", d, policy, peer.name())
	case v.Allow:
		noteEntry(x, p, "verdicts", k, v, "%s policy allows %s", d, seenAs(peer, k.Peer))
		return true
	default:
		noteEntry(x, p, "verdicts", k, v, "%s policy denies %s", d, seenAs(peer, k.Peer))
	}
	reason := ""
	if v.Origin != "" {
		reason = ", by " + v.Origin
	}
	x.deny("%s policy %s denies it%s", d, policy, reason)
	return false
}

// atHost ends at the node itself.
func (x *explainer) atHost(p *Plan, from sender) stage {
	if from == fromHost && !x.kept && p.Owns(x.network, x.dst) {
		x.src = x.dst // the kernel's choice towards its own addresses
	}
	return x.arrive(p, "", "delivered to %s itself", p.Local.Node)
}

// deliver ends at an endpoint, if its policy allows that.
func (x *explainer) deliver(p *Plan, from sender, toItself bool, k EndpointKey) stage {
	e, ok := p.Endpoints.Get(k)
	if !ok {
		return x.deny("%s has a route to endpoint %s, but not the endpoint", p.Local.Node, k.Interface)
	}
	if from == fromHost && !x.kept {
		if x.src = p.gatewayAddress(x.network, x.dst); !x.src.IsValid() {
			return x.deny("%s has no pool with a gateway to reach %s from", p.Local.Node, x.dst)
		}
	}
	if from != fromHost && !toItself && e.IngressPolicy != "" && !x.verdict(p, e.IngressPolicy, Incoming, x.sourceClass(p)) {
		return nil
	}
	if (x.masquerade || toItself) && from != fromHost {
		if next, ok := x.masqueraded(p, p.gatewayAddress(x.network, x.dst)); !ok {
			return next
		}
	}
	who := calledBy(e.Name, k.Interface)
	noteEntry(x, p, "endpoints", k, e, "delivered to %s", who)
	return x.arrive(p, k.Interface, "delivered to %s on %s", who, p.Local.Node)
}

// sourceClass is the class of the packet's source as a node sees it: what tables
// say of the address, or that of the tag that the packet carries where they say
// nothing.
func (x *explainer) sourceClass(p *Plan) Class {
	if c, ok := p.ClassAt(x.network, x.src); ok {
		return c
	}
	return ClassOf(x.tag)
}

// leave applies Egress and sends the packet off the node.
func (x *explainer) leave(p *Plan, from sender, k EndpointKey, e Endpoint, route Route) stage {
	own := func() netip.Addr {
		if route.Way == ToTunnel {
			if a := p.gatewayAddress(x.network, x.dst); a.IsValid() {
				return a
			}
		}
		return p.underlayAddress(x.dst)
	}
	sent := x.src
	switch from {
	case fromHost:
		if !x.kept {
			x.src = own()
		}
	case fromEndpoint, fromPeer:
		rule, egress, ok := p.EgressOf(x.network, k.Interface, x.tag, x.dst)
		if !ok {
			break // Direct, without an entry to show
		}
		switch egress.Action {
		case Masquerade:
			x.src = own()
			noteEntry(x, p, "egress", rule, egress, "the source becomes the node's own address")
		case SourceNAT:
			x.src = egress.Source
			noteEntry(x, p, "egress", rule, egress, "the source becomes %s", x.src)
		case ViaNode:
			noteEntry(x, p, "egress", rule, egress, "leaves the cluster through %s", egress.Node)
			return x.handOver(p, from, egress.Node)
		case Discard:
			noteEntry(x, p, "egress", rule, egress, "dropped")
			return x.deny("%s lets nothing out to %s", p.Local.Node, rule.Destination)
		default:
			noteEntry(x, p, "egress", rule, egress, SourceStays+" %s", x.src)
		}
	}
	if x.masquerade && x.src == sent {
		if next, ok := x.masqueraded(p, own()); !ok {
			return next
		}
	}
	if !x.src.IsValid() {
		return x.deny("%s has no address of its own to reach %s from", p.Local.Node, x.dst)
	}
	switch route.Way {
	case ToTunnel:
		return x.tunnel(p, from, route, fromTunnel)
	case ToNextHop:
		x.tag = 0 // nothing carries it
		via := p.Peer(route.Peer()).NextHop(x.dst)
		if next := x.nodeAt(via); next != nil {
			return x.plainly(next)
		}
		if next := x.plans[route.Peer()]; next != nil {
			return x.deny("%s sends to %s at %s, which is not an address of that node", p.Local.Node, route.Peer(), via)
		}
		x.result.Peer = route.Peer()
		if route.Peer() == via.String() {
			return x.allow("left to next hop %s", via)
		}
		return x.allow("left to %s at %s, of which no plan is known", route.Peer(), via)
	default:
		x.tag = 0
		// Nodes know each other's addresses through the underlay, in which
		// there is one network.
		if next := x.nodeAt(x.dst); next != nil && next != p {
			x.network = DefaultNetwork
			return x.plainly(next)
		}
		for _, name := range x.names {
			if x.plans[name].has(x.network, x.dst) {
				x.note(p, "node", "%s is on %s, to which no route leads: lost outside the cluster", x.dst, name)
				return x.deny("%s has no route to %s, and lets it leave the cluster", p.Local.Node, x.dst)
			}
		}
		return x.allow("leaves the cluster at %s", p.Local.Node)
	}
}

// nodeAt returns the plan of the node with an address in the underlay.
func (x *explainer) nodeAt(a netip.Addr) *Plan {
	for _, name := range x.names {
		if slices.Contains(x.plans[name].Local.Addresses, a) {
			return x.plans[name]
		}
	}
	return nil
}

// handOver sends the packet to the node where it is to leave the cluster.
func (x *explainer) handOver(p *Plan, from sender, node string) stage {
	for k, r := range p.Routes.All() {
		if r.Way == ToTunnel && r.Peer() == node && sameFamily(k.Prefix.Addr(), x.dst) {
			return x.tunnel(p, from, r, fromPeer)
		}
	}
	return x.deny("%s has no tunnel to %s, through which the packet would leave", p.Local.Node, node)
}

// tunnel sends the packet, which is from from, through the tunnel of a route. The
// receiver treats it as what comes from as. It has the tag of an endpoint of the node that
// sent it: what came from elsewhere, and is on its way through the node, has that of nobody.
func (x *explainer) tunnel(p *Plan, from sender, route Route, as sender) stage {
	end, own, _ := p.Local.EndOf(p.Peer(route.Peer()), x.dst)
	if !own.CarriesTags || from != fromEndpoint {
		x.tag = 0
	}
	vni, _ := p.Encode(own.Name, x.network, x.tag)
	for _, name := range x.names {
		next := x.plans[name]
		peer, heard := next.hears(end.VTEP, own.Port, vni)
		if !heard {
			continue
		}
		sender, known := next.peerAt(peer.Name, own.VTEP)
		network, tag, decoded := next.Decode(peer.Name, vni)
		switch {
		case own.Port != peer.Port:
			x.note(next, "node", "listens for VXLAN on port %d, not %d: dropped", peer.Port, own.Port)
		case !decoded:
			x.note(next, "networks", "no network has VNI %d: dropped", vni)
		case end.MAC != peer.MAC:
			x.note(next, "node", "has VTEP MAC %s, not %s: dropped", peer.MAC, end.MAC)
		case !known:
			x.note(next, "peers", "no peer has VTEP %s: an unknown one, dropped", own.VTEP)
			return x.deny("%s does not know %s as a peer", name, p.Local.Node)
		default:
			if x.network, x.tag = network, tag; !sender.CarriesTags {
				x.tag = 0
			}
			return x.throughTunnel(next, peer.Name, own.VTEP, as)
		}
		return x.deny("%s does not take what %s sends through the tunnel", name, p.Local.Node)
	}
	if x.plans[route.Peer()] != nil {
		return x.deny("%s sends to %s at VTEP %s, which is not that node's", p.Local.Node, route.Peer(), end.VTEP)
	}
	x.result.Peer = route.Peer()
	return x.allow("left to %s at VTEP %s, of which no plan is known", route.Peer(), end.VTEP)
}

// hears returns the node's end of a tunnel that gets what is sent to a VTEP and a port
// with a VXLAN network identifier. Where none does, it is the one at that VTEP that
// comes closest; false where the node has none there.
func (p *Plan) hears(vtep netip.Addr, port uint16, vni uint32) (Tunnel, bool) {
	var best Tunnel
	closest := -1
	for _, t := range p.Local.Tunnels {
		if t.VTEP != vtep {
			continue
		}
		near := 0
		if t.Port == port {
			near++
			if _, _, ok := p.Decode(t.Name, vni); ok {
				near++
			}
		}
		if near > closest {
			best, closest = t, near
		}
	}
	return best, closest >= 0
}
