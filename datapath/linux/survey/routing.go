package survey

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/subnet"
)

// routing is how a kernel routes packets of one family.
type routing struct {
	stamps stamps.Stamps
	// rules are in the order in which the kernel asks them.
	rules  []rtnl.FoundRule
	tables map[int]*routingTable
}

// readRouting reads the rules of a family, and of its routes the data plane's and those to
// some of the addresses that it is about.
func readRouting(stamps stamps.Stamps, is4 bool, concerns *subnet.Set) (*routing, error) {
	family := uint8(unix.AF_INET6)
	if is4 {
		family = unix.AF_INET
	}
	rules, err := rtnl.ListRules(family)
	if err != nil {
		return nil, err
	}
	routes, err := rtnl.ListRoutes(family, func(r rtnl.FoundRoute) bool { return r.TOS == 0 && !r.Dead && matter(stamps, r, concerns) })
	if err != nil {
		return nil, err
	}
	r := &routing{stamps: stamps, rules: rules}
	for _, route := range routes {
		r.add(route)
	}
	return r, nil
}

// matter reports whether a route says something of packets to some addresses, or
// is Weft's.
func matter(s stamps.Stamps, r rtnl.FoundRoute, concerns *subnet.Set) bool {
	_, overlaps := concerns.Overlap(r.Prefix)
	return overlaps || r.Protocol == s.Protocol
}

// routingTable has routes by the length of their prefixes.
type routingTable struct {
	routes  map[netip.Prefix][]*rtnl.FoundRoute
	lengths []int // from the longest
}

func (r *routing) add(route *rtnl.FoundRoute) {
	if r.tables == nil {
		r.tables = map[int]*routingTable{}
	}
	t := r.tables[route.Table]
	if t == nil {
		t = &routingTable{}
		r.tables[route.Table] = t
	}
	t.add(route)
}

// add adds a route behind those that the kernel prefers or has told before.
func (t *routingTable) add(r *rtnl.FoundRoute) {
	if t.routes == nil {
		t.routes = map[netip.Prefix][]*rtnl.FoundRoute{}
	}
	if i, ok := slices.BinarySearchFunc(t.lengths, r.Prefix.Bits(), func(a, b int) int { return b - a }); !ok {
		t.lengths = slices.Insert(t.lengths, i, r.Prefix.Bits())
	}
	same := append(t.routes[r.Prefix], r)
	slices.SortStableFunc(same, func(a, b *rtnl.FoundRoute) int {
		return cmp.Or(b.From.Bits()-a.From.Bits(), a.Metric-b.Metric)
	})
	t.routes[r.Prefix] = same
}

// find returns the route that a packet takes, or nil, as if there were only some
// of the routes; where it does not matter which, some is nil. A source that is not
// valid is one of those of which no route speaks.
func (t *routingTable) find(to, from netip.Addr, some func(*rtnl.FoundRoute) bool) *rtnl.FoundRoute {
	if t == nil {
		return nil
	}
	for _, bits := range t.lengths {
		p, err := to.Prefix(bits)
		if err != nil {
			continue
		}
		for _, r := range t.routes[p] {
			if holds(r.From, from) && (some == nil || some(r)) {
				return r
			}
		}
	}
	return nil
}

// all returns the routes in an order that depends on them alone.
func (t *routingTable) all() []*rtnl.FoundRoute {
	var all []*rtnl.FoundRoute
	for _, p := range slices.SortedFunc(maps.Keys(t.routes), netip.Prefix.Compare) {
		all = append(all, t.routes[p]...)
	}
	return all
}

// own returns Weft's routes in a table.
func (r *routing) own(table int) *routingTable {
	own := &routingTable{}
	if t := r.tables[table]; t != nil {
		for _, same := range t.routes {
			for _, route := range same {
				if route.Protocol == r.stamps.Protocol {
					own.add(route)
				}
			}
		}
	}
	return own
}

// prefixes are those that others speak of.
func (r *routing) prefixes() []netip.Prefix {
	var all []netip.Prefix
	for _, t := range r.tables {
		for p, same := range t.routes {
			if slices.ContainsFunc(same, func(route *rtnl.FoundRoute) bool { return route.Protocol != r.stamps.Protocol }) {
				all = append(all, p)
			}
		}
	}
	for _, rule := range r.rules {
		if rule.Protocol != r.stamps.Protocol {
			all = append(all, rule.From, rule.To)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// sender is who sends a packet: from an interface, under an address, by a
// protocol. An address that is not valid is one of which no rule speaks.
type sender struct {
	in       string
	from     netip.Addr
	protocol uint8
	// incoming says that it is another node's pod, and what is the kind of sender
	// for people, with a %s for the destination.
	incoming bool
	what     string
}

// holds reports whether a prefix that chooses packets holds an address.
func holds(p netip.Prefix, a netip.Addr) bool { return p.Bits() <= 0 || p.Contains(a) }

// fits reports whether a rule is asked for packets to an address.
func fits(r *rtnl.FoundRule, s sender, to netip.Addr) bool {
	return (knows(r, s) && holds(r.To, to)) != r.Inverted
}

// knows reports whether a rule chooses the packets of a sender, before it looks
// where they go to.
func knows(r *rtnl.FoundRule, s sender) bool {
	return !r.Elsewhere() && (r.In == "" || r.In == s.in) && holds(r.From, s.from) && (r.IP == 0 || r.IP == s.protocol)
}

// needed returns the rules without which the node loses its own addresses or its
// networks: the kernel's, and what somebody has put in their place.
func (r *routing) needed() map[*rtnl.FoundRule]bool {
	all := map[*rtnl.FoundRule]bool{}
	for _, table := range []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN} {
		var asking []*rtnl.FoundRule
		for i := range r.rules {
			if rule := &r.rules[i]; rule.Table == table && rule.ForAll() {
				asking = append(asking, rule)
			}
		}
		if len(asking) == 1 {
			all[asking[0]] = true
		}
	}
	for i := range r.rules {
		if rule := &r.rules[i]; rule.Protocol == unix.RTPROT_KERNEL {
			all[rule] = true
		}
	}
	return all
}

// decide returns what decides where a packet goes: a rule and, unless that rule
// drops it, a route; nothing where no rule finds any. It is as if there were only
// some of the routes, as for find.
func (r *routing) decide(s sender, to netip.Addr, some func(*rtnl.FoundRoute) bool) (*rtnl.FoundRule, *rtnl.FoundRoute) {
	after := 0 // the priority below which no rule is asked any more
	for i := range r.rules {
		rule := &r.rules[i]
		if rule.Priority < after || !fits(rule, s, to) {
			continue
		}
		switch rule.Action {
		case nl.FR_ACT_TO_TBL:
			if route := r.tables[rule.Table].find(to, s.from, some); rule.Takes(route) {
				return rule, route
			}
		case nl.FR_ACT_GOTO:
			if r.has(rule.Target) {
				after = rule.Target
			}
		case nl.FR_ACT_NOP:
		default:
			return rule, nil
		}
	}
	return nil, nil
}

// has reports whether there is a rule of a priority.
func (r *routing) has(priority int) bool {
	return slices.ContainsFunc(r.rules, func(rule rtnl.FoundRule) bool { return rule.Priority == priority })
}
