package linux

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// routing is how a kernel routes packets of one family.
type routing struct {
	stamps Stamps
	// rules are in the order in which the kernel asks them.
	rules  []foundRule
	tables map[int]*routingTable
}

// foundRule is a routing rule that somebody made.
type foundRule struct {
	rule
	protocol uint8
	action   uint8
	in, out  string // names of interfaces
	inverted bool
	mark     uint32
	mask     uint32
	target   int
	ip       uint8 // the protocol that it is about, 0 for all
	// suppressed is the length of prefixes up to which what it finds is not taken;
	// -1 for none.
	suppressed int
	// narrow says that it chooses by more than is followed here.
	narrow bool
}

// foundRoute is a route that somebody made.
type foundRoute struct {
	routeKey
	route
	protocol  uint8
	from      netip.Prefix // IPv6 may choose by the source, too
	nextHopID int
	multipath bool
}

// routingTable has routes by the length of their prefixes.
type routingTable struct {
	routes  map[netip.Prefix][]*foundRoute
	lengths []int // from the longest
}

func (r *routing) add(route *foundRoute) {
	if r.tables == nil {
		r.tables = map[int]*routingTable{}
	}
	t := r.tables[route.table]
	if t == nil {
		t = &routingTable{}
		r.tables[route.table] = t
	}
	t.add(route)
}

// add adds a route behind those that the kernel prefers or has told before.
func (t *routingTable) add(r *foundRoute) {
	if t.routes == nil {
		t.routes = map[netip.Prefix][]*foundRoute{}
	}
	if i, ok := slices.BinarySearchFunc(t.lengths, r.prefix.Bits(), func(a, b int) int { return b - a }); !ok {
		t.lengths = slices.Insert(t.lengths, i, r.prefix.Bits())
	}
	same := append(t.routes[r.prefix], r)
	slices.SortStableFunc(same, func(a, b *foundRoute) int {
		return cmp.Or(b.from.Bits()-a.from.Bits(), a.metric-b.metric)
	})
	t.routes[r.prefix] = same
}

// find returns the route that a packet takes, or nil, as if there were only some
// of the routes; where it does not matter which, some is nil. A source that is not
// valid is one of those of which no route speaks.
func (t *routingTable) find(to, from netip.Addr, some func(*foundRoute) bool) *foundRoute {
	if t == nil {
		return nil
	}
	for _, bits := range t.lengths {
		p, err := to.Prefix(bits)
		if err != nil {
			continue
		}
		for _, r := range t.routes[p] {
			if holds(r.from, from) && (some == nil || some(r)) {
				return r
			}
		}
	}
	return nil
}

// all returns the routes in an order that depends on them alone.
func (t *routingTable) all() []*foundRoute {
	var all []*foundRoute
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
				if route.protocol == r.stamps.Protocol {
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
			if slices.ContainsFunc(same, func(route *foundRoute) bool { return route.protocol != r.stamps.Protocol }) {
				all = append(all, p)
			}
		}
	}
	for _, rule := range r.rules {
		if rule.protocol != r.stamps.Protocol {
			all = append(all, rule.from, rule.to)
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
func (r *foundRule) fits(s sender, to netip.Addr) bool {
	return (r.knows(s) && holds(r.to, to)) != r.inverted
}

// knows reports whether a rule chooses the packets of a sender, before it looks
// where they go to.
func (r *foundRule) knows(s sender) bool {
	return !r.elsewhere() && (r.in == "" || r.in == s.in) && holds(r.from, s.from) && (r.ip == 0 || r.ip == s.protocol)
}

// elsewhere reports whether a rule chooses none of the packets that are followed.
func (r *foundRule) elsewhere() bool { return r.narrow || r.out != "" || r.mark&r.mask != 0 }

// forAll reports whether a rule has its table asked for every packet.
func (r *foundRule) forAll() bool {
	return r.action == nl.FR_ACT_TO_TBL && r.suppressed < 0 && !r.inverted && !r.narrow &&
		r.from.Bits() <= 0 && r.to.Bits() <= 0 && r.in == "" && r.out == "" && r.mask == 0 && r.ip == 0
}

// needed returns the rules without which the node loses its own addresses or its
// networks: the kernel's, and what somebody has put in their place.
func (r *routing) needed() map[*foundRule]bool {
	all := map[*foundRule]bool{}
	for _, table := range []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN} {
		var asking []*foundRule
		for i := range r.rules {
			if rule := &r.rules[i]; rule.table == table && rule.forAll() {
				asking = append(asking, rule)
			}
		}
		if len(asking) == 1 {
			all[asking[0]] = true
		}
	}
	for i := range r.rules {
		if rule := &r.rules[i]; rule.protocol == unix.RTPROT_KERNEL {
			all[rule] = true
		}
	}
	return all
}

// decide returns what decides where a packet goes: a rule and, unless that rule
// drops it, a route; nothing where no rule finds any. It is as if there were only
// some of the routes, as for find.
func (r *routing) decide(s sender, to netip.Addr, some func(*foundRoute) bool) (*foundRule, *foundRoute) {
	after := 0 // the priority below which no rule is asked any more
	for i := range r.rules {
		rule := &r.rules[i]
		if rule.priority < after || !rule.fits(s, to) {
			continue
		}
		switch rule.action {
		case nl.FR_ACT_TO_TBL:
			if route := r.tables[rule.table].find(to, s.from, some); rule.takes(route) {
				return rule, route
			}
		case nl.FR_ACT_GOTO:
			if r.has(rule.target) {
				after = rule.target
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
	return slices.ContainsFunc(r.rules, func(rule foundRule) bool { return rule.priority == priority })
}

func (r *foundRoute) rejects() bool {
	return r.kind == unix.RTN_BLACKHOLE || r.kind == unix.RTN_UNREACHABLE || r.kind == unix.RTN_PROHIBIT
}

// leadsLike reports whether a route leads where another does.
func (r *foundRoute) leadsLike(other *foundRoute) bool {
	return r.kind == other.kind && r.link == other.link && r.via == other.via && !r.multipath
}
