package survey

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/subnet"
)

// astray says which rules and routes of others have what pods send and get, or
// the tunnel packets that carry it, go another way than Weft's, or nowhere. It
// follows both as the kernel would for packets without a mark, an address of each
// route for each kind of sender. What concerns some of the packets to an address
// alone, as by their ports, it leaves to whoever wanted that.
func (r *routing) astray(t *travel) []string {
	found := &strays{decider: newDecider(r), travel: t, needed: r.needed(), endpoints: map[int]bool{}, told: map[any]bool{}}
	for _, link := range t.node.Links {
		found.endpoints[link] = true
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, r.stamps.RoutingTable} {
		own := r.own(table)
		senders := found.senders(own, table == r.stamps.RoutingTable)
		ask := func(to netip.Addr, want *rtnl.FoundRoute) {
			if want == nil || want.Kind != unix.RTN_UNICAST || !t.isPods(to, table == r.stamps.RoutingTable) {
				return
			}
			found.towards(to)
			for i := range senders {
				s := &senders[i]
				if s.incoming && !found.endpoints[want.Link] || table == r.stamps.RoutingTable && !found.sends(s, table) {
					continue
				}
				rule, route := found.decide(s)
				found.judge(&s.sender, to, want, rule, route)
			}
		}
		for _, want := range own.all() {
			ask(want.Prefix.Addr(), want)
		}
		// What is for others than the first address of a route as well.
		for _, p := range r.prefixes() {
			if want := own.find(p.Addr(), netip.Addr{}, nil); want != nil && want.Prefix.Bits() < p.Bits() {
				ask(p.Addr(), want)
			}
		}
	}
	for _, tunnel := range t.tunnels {
		from := found.asker(sender{in: "lo", from: tunnel.vtep, protocol: unix.IPPROTO_UDP, what: "the tunnel packets to %s"})
		for _, peer := range tunnel.peers {
			found.towards(peer)
			rule, route := found.decide(&from)
			found.judgePeer(&from.sender, peer, rule, route)
		}
	}
	return found.lines()
}

// travel is what the survey of a family's routing needs to know of a node.
type travel struct {
	plan *plan.Plan
	node *rtnl.Node
	// tunnels are where tunnel packets of the family come from and go to.
	tunnels []outer
	// name returns that of an interface, and addresses its own.
	name      func(link int) string
	addresses func(link int) []netip.Prefix
	is4       bool
}

// outer is where tunnel packets come from, and where they go to.
type outer struct {
	vtep  netip.Addr
	peers []netip.Addr
}

// outers are those of a family. Tunnels that begin at one address are one.
func (s *Subject) outers(is4 bool) []outer {
	peers := map[netip.Addr]map[netip.Addr]bool{}
	for _, t := range s.Plan.Local.Tunnels {
		if t.VTEP.Is4() != is4 {
			continue
		}
		if peers[t.VTEP] == nil {
			peers[t.VTEP] = map[netip.Addr]bool{}
		}
		maps.Copy(peers[t.VTEP], s.Peers[t.Name])
	}
	var all []outer
	for _, vtep := range slices.SortedFunc(maps.Keys(peers), netip.Addr.Compare) {
		all = append(all, outer{vtep, slices.SortedFunc(maps.Keys(peers[vtep]), netip.Addr.Compare)})
	}
	return all
}

// concerns are the addresses that packets may be followed to: those of the pods
// and nodes that the plan leads to, and the peers.
func (t *travel) concerns() *subnet.Set {
	all := &subnet.Set{}
	for k, r := range t.plan.Routes.All() {
		switch r.Way {
		case plan.ToEndpoint, plan.ToTunnel, plan.ToNextHop:
			if k.Prefix.Addr().Is4() == t.is4 {
				all.Add(k.Prefix)
			}
		}
	}
	for _, tunnel := range t.tunnels {
		for _, a := range tunnel.peers {
			all.Add(interval.Single(a))
		}
	}
	return all
}

// isPods reports whether the plan leads to an endpoint, on this node or another,
// or by the way that only endpoints take.
func (t *travel) isPods(a netip.Addr, endpointsOnly bool) bool {
	_, r, ok := t.plan.Route(plan.DefaultNetwork, a, endpointsOnly)
	return ok && (r.Way == plan.ToEndpoint || r.Way == plan.ToTunnel || r.Way == plan.ToNextHop)
}

// strays collects what leads packets astray.
type strays struct {
	*decider
	*travel
	// needed are the rules that nobody must delete.
	needed map[*rtnl.FoundRule]bool
	// endpoints are the interfaces that lead to endpoints.
	endpoints map[int]bool
	// told are the culprits of what was found: the words for them, and the rules and
	// routes, as words take long.
	told  map[any]bool
	found []string
}

// senders are those that may send to routes of Weft's, one of those that no rule
// tells apart.
func (s *strays) senders(own *routingTable, endpointsOnly bool) []asker {
	var all []sender
	for k, e := range s.plan.Endpoints.All() {
		if s.node.Links[k.Interface] == 0 {
			continue
		}
		for _, a := range e.Addresses {
			if a.Is4() == s.is4 {
				all = append(all, sender{in: k.Interface, from: a, what: "what pods send to %s"})
			}
		}
	}
	if !endpointsOnly {
		sources, within := map[netip.Addr]bool{}, s.sourcesWithin()
		for _, r := range own.all() {
			if r.Kind != unix.RTN_UNICAST || s.endpoints[r.Link] {
				sources[r.Source] = true
				continue
			}
			incoming := sender{in: s.name(r.Link), from: r.Prefix.Addr(), incoming: true, what: "what comes to %s from other nodes"}
			all = append(all, incoming)
			for _, from := range within(r.Prefix) {
				incoming.from = from
				all = append(all, incoming)
			}
			sources[r.Source] = true
		}
		for _, a := range slices.SortedFunc(maps.Keys(sources), netip.Addr.Compare) {
			all = append(all, sender{in: "lo", from: a, what: "what the node sends to %s"})
		}
	}
	return s.distinct(all)
}

// distinct returns the first of those senders that are alike to all rules and
// routes, once for each protocol that these tell apart.
func (s *strays) distinct(all []sender) []asker {
	seen := map[string]bool{}
	var some []asker
	for _, one := range all {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			one.protocol = protocol
			a := s.asker(one)
			if key := one.what + a.key(); !seen[key] {
				seen[key] = true
				some = append(some, a)
			}
		}
	}
	return some
}

// judge takes note of what leads a packet another way than a route of Weft's: a
// rule and a route that have decided about it.
func (s *strays) judge(from *sender, to netip.Addr, want *rtnl.FoundRoute, rule *rtnl.FoundRule, route *rtnl.FoundRoute) {
	switch {
	case rule == nil, rule.Protocol == unix.RTPROT_KERNEL && rule.Table == unix.RT_TABLE_DEFAULT:
		// The kernel asks the table default after main.
		if want.Table == unix.RT_TABLE_MAIN && !s.told[""] {
			s.tell("", fmt.Sprintf("no routing rule has the table main asked for %s; add one: ip%s rule add priority 32766 lookup main", fmt.Sprintf(from.what, to), s.version()))
		}
	case route == nil:
		s.tellRule(rule, nil, from, to)
	case route.Protocol == s.stamps.Protocol || route.LeadsLike(want):
	case route.Protocol == unix.RTPROT_KERNEL && (route.Kind == unix.RTN_BROADCAST || want.Table == s.stamps.RoutingTable && route.Kind != unix.RTN_UNICAST && route.Prefix.IsSingleIP()):
		// The node's own addresses, whose networks other nodes' are of.
	case route.Table == unix.RT_TABLE_LOCAL:
		// That is asked before all others, whatever is behind it.
		s.tellRoute(rule, route, from, to)
	case route.Prefix.Bits() >= want.Prefix.Bits() && !s.isNetwork(route, want):
		s.tellRoute(rule, route, from, to)
	case rule.Protocol != unix.RTPROT_KERNEL:
		s.tellRule(rule, route, from, to)
	}
}

// isNetwork reports whether a route is to a network of the node's, and in a table
// that is right not to know what another's route says.
func (s *strays) isNetwork(r, other *rtnl.FoundRoute) bool {
	return r.Protocol == unix.RTPROT_KERNEL && r.Kind == unix.RTN_UNICAST && r.Table != other.Table
}

// judgePeer takes note of what drops tunnel packets to another node.
func (s *strays) judgePeer(from *sender, peer netip.Addr, rule *rtnl.FoundRule, route *rtnl.FoundRoute) {
	switch {
	case rule == nil:
		s.tell("", fmt.Sprintf("no route leads to another node, %s; add one, or set up the interface that has one", peer))
	case route == nil:
		s.tellRule(rule, nil, from, peer)
	case s.carries(route):
	case route.Table == unix.RT_TABLE_LOCAL:
		s.tellRoute(rule, route, from, peer)
	case !s.reaches(from, peer):
		// Without that there would be no way either.
		verb := "leads them astray"
		if route.Rejects() {
			verb = "drops them"
		}
		s.tell("", fmt.Sprintf("%s have no route but %s, which %s; add one, or set up the interface that has one", fmt.Sprintf(from.what, peer), s.describe(route), verb))
	case route.Prefix.Bits() > 0 || s.needed[rule]:
		s.tellRoute(rule, route, from, peer)
	default:
		s.tellRule(rule, route, from, peer)
	}
}

// carries reports whether a route may lead tunnel packets to another node.
func (s *strays) carries(r *rtnl.FoundRoute) bool {
	return r.Protocol == s.stamps.Protocol ||
		r.Kind == unix.RTN_UNICAST && r.Link != loopbackLink && !s.node.IsTunnel(r.Link) && r.Link != s.node.Bridge
}

// reaches reports whether a packet would get to another node without the routes
// that do not carry it there.
func (s *strays) reaches(from *sender, peer netip.Addr) bool {
	_, route := s.routing.decide(*from, peer, s.carries)
	return route != nil
}

// loopbackLink is the index of the interface lo in each network namespace
// (LOOPBACK_IFINDEX of linux/net_namespace.h).
const loopbackLink = 1

// tellRule takes note of a rule that drops a packet, or leads it to a route.
func (s *strays) tellRule(rule *rtnl.FoundRule, route *rtnl.FoundRoute, from *sender, to netip.Addr) {
	if s.told[rule] {
		return
	}
	s.told[rule] = true
	verb, how := "leads astray", ""
	if route != nil {
		how = ", by the route " + s.describe(route)
	}
	if rule.Action != nl.FR_ACT_TO_TBL {
		verb = "drops"
	}
	what := from.what
	if rule.To.Bits() <= 0 && (route == nil || route.Prefix.Bits() == 0) {
		// Whatever the destination: this one is of many.
		what = strings.Replace(what, " to %s", ", also to %s,", 1)
	}
	what = strings.TrimSuffix(fmt.Sprintf(what, to), ",")
	text := s.describeRule(rule)
	mend := "delete it:"
	if s.needed[rule] && rule.ForAll() {
		mend = fmt.Sprintf("put it where the kernel had it: ip%s rule add priority 32766 lookup main;", s.version())
	}
	s.tell("rule "+text, fmt.Sprintf("routing rule %d %s %s%s; %s ip%s rule del %s", rule.Priority, verb, what, how, mend, s.version(), text))
}

// tellRoute takes note of a route that a rule has led a packet to.
func (s *strays) tellRoute(rule *rtnl.FoundRule, route *rtnl.FoundRoute, from *sender, to netip.Addr) {
	if s.told[route] {
		return
	}
	s.told[route] = true
	verb, asked := "leads astray", ""
	if route.Rejects() {
		verb = "drops"
	}
	if route.Table != unix.RT_TABLE_MAIN && route.Table != unix.RT_TABLE_LOCAL {
		asked = fmt.Sprintf(", as routing rule %d has its table asked", rule.Priority)
	}
	text := s.describe(route)
	mend := fmt.Sprintf("delete it: ip%s route del %s", s.version(), text)
	if held := s.held(route); held.IsValid() {
		mend = fmt.Sprintf("take the address away: ip%s addr del %s dev %s", s.version(), held, s.name(route.Link))
	}
	s.tell("route "+text, fmt.Sprintf("the route to %s %s %s%s; %s", route.Prefix, verb, fmt.Sprintf(from.what, to), asked, mend))
}

// held returns the address of the node's for which the kernel has made a route.
func (s *strays) held(r *rtnl.FoundRoute) netip.Prefix {
	if r.Kind != unix.RTN_LOCAL || r.Protocol != unix.RTPROT_KERNEL {
		return netip.Prefix{}
	}
	for _, p := range s.addresses(r.Link) {
		// One of lo's has its whole network be the node's.
		if p.Addr() == r.Prefix.Addr() || !r.Prefix.IsSingleIP() && p.Masked() == r.Prefix {
			return p
		}
	}
	return netip.Prefix{}
}

// tell takes note of a culprit, once.
func (s *strays) tell(culprit, line string) {
	if !s.told[culprit] {
		s.told[culprit] = true
		s.found = append(s.found, line)
	}
}

// toldStrays is how many rules and routes of a family are told each.
const toldStrays = 10

func (s *strays) lines() []string {
	slices.Sort(s.found)
	if n := len(s.found) - toldStrays; n > 0 {
		return append(s.found[:toldStrays], fmt.Sprintf("%d more routing rules and routes of IP%s are like these", n, map[bool]string{true: "v4", false: "v6"}[s.is4]))
	}
	return s.found
}

// version is the option by which ip(8) knows the family.
func (s *strays) version() string {
	if s.is4 {
		return ""
	}
	return " -6"
}

// describeRule returns a rule as ip-rule(8) takes it.
func (s *strays) describeRule(r *rtnl.FoundRule) string {
	text := fmt.Sprintf("priority %d", r.Priority)
	add := func(format string, args ...any) { text += " " + fmt.Sprintf(format, args...) }
	if r.Inverted {
		add("not")
	}
	if r.From.Bits() > 0 {
		add("from %s", r.From)
	} else {
		add("from all")
	}
	if r.To.Bits() > 0 {
		add("to %s", r.To)
	}
	if r.In != "" {
		add("iif %s", r.In)
	}
	if r.Out != "" {
		add("oif %s", r.Out)
	}
	if r.Mask != 0 {
		add("fwmark %#x/%#x", r.Mark, r.Mask)
	}
	if r.IP != 0 {
		add("ipproto %d", r.IP)
	}
	switch r.Action {
	case nl.FR_ACT_TO_TBL:
		add("lookup %s", tableNameOf(r.Table))
	case nl.FR_ACT_PROHIBIT:
		add("prohibit")
	case nl.FR_ACT_UNREACHABLE:
		add("unreachable")
	case nl.FR_ACT_BLACKHOLE:
		add("blackhole")
	}
	return text
}

// describe returns a route as ip-route(8) takes it.
func (s *strays) describe(r *rtnl.FoundRoute) string {
	text := ""
	if kind := kindNames[r.Kind]; kind != "" && r.NextHopID == 0 {
		text = kind + " "
	}
	if r.Prefix.Bits() > 0 {
		text += r.Prefix.String()
	} else {
		text += "default"
	}
	if r.From.Bits() > 0 {
		text += " from " + r.From.String()
	}
	switch {
	case r.NextHopID != 0:
		text += fmt.Sprintf(" nhid %d", r.NextHopID)
	case r.Rejects(), r.Multipath:
	default:
		if r.Via.IsValid() {
			text += " via " + r.Via.String()
		}
		if r.Link != 0 {
			text += " dev " + s.name(r.Link)
		}
	}
	text += " table " + tableNameOf(r.Table)
	if r.Metric != 0 {
		text += fmt.Sprintf(" metric %d", r.Metric)
	}
	return text
}

var kindNames = map[int]string{unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast",
	unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

// tableNameOf returns the name that ip(8) knows a table by on every machine.
func tableNameOf(table int) string {
	switch table {
	case unix.RT_TABLE_MAIN:
		return "main"
	case unix.RT_TABLE_LOCAL:
		return "local"
	}
	return fmt.Sprint(table)
}

// travels are those of the families that the plan in force routes.
func (s *Subject) travels() []*travel {
	ipv4, ipv6 := rtnl.Routed(s.Plan)
	names := map[int]string{} // to ask the kernel costs as much as to list all
	name := func(link int) string {
		if names[link] == "" {
			names[link] = linkName(link)
		}
		return names[link]
	}
	var all []*travel
	for _, is4 := range interval.Families {
		tunnels := s.outers(is4)
		if !(is4 && ipv4 || !is4 && ipv6 || len(tunnels) > 0) {
			continue
		}
		t := &travel{plan: s.Plan, node: s.Node, is4: is4, name: name, addresses: linkAddresses, tunnels: tunnels}
		all = append(all, t)
	}
	return all
}

func linkName(link int) string {
	i, err := net.InterfaceByIndex(link)
	if err != nil {
		return fmt.Sprintf("if%d", link) // as ip(8) has it
	}
	return i.Name
}

func linkAddresses(link int) (prefixes []netip.Prefix) {
	i, err := net.InterfaceByIndex(link)
	if err != nil {
		return nil
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			prefixes = append(prefixes, rtnl.PrefixOf(n))
		}
	}
	return prefixes
}
