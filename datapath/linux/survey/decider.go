package survey

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
)

// decider says what routing.decide does, of many senders and destinations. A node
// may have a routing rule for each of its pods, and a route to each other node. So
// a sender asks those rules alone that may know it, and what is the same for all
// senders is found once for each destination.
type decider struct {
	*routing
	// The rules, by their places among all: those about a source, those about all
	// senders by where these send to, those about an interface, and others about some
	// senders.
	bySource, byDestination ruleIndex
	byInterface             map[string][]int
	others                  []int
	// targets are the priorities to which rules have those between passed over, by
	// whether there is a rule of that priority. Few nodes have any.
	targets map[int]bool
	// tables are those that rules have asked, and tableOf has their places there.
	tables  []*routingTable
	tableOf []int
	// sources are what routes choose packets by, and classes the kinds of senders
	// that these tell apart.
	sources []netip.Prefix
	classes map[string]int

	// to is the destination that is asked about, and about are the rules about all
	// senders that choose what goes there.
	to    netip.Addr
	about []int
	// lookups are what each table has for each class, and decisions what the rules
	// about all senders decide for one, if they are of this round.
	lookups   []lookup
	decisions []decision
	round     int
}

// lookup is the route that a table has to the destination of a round.
type lookup struct {
	round int
	route *rtnl.FoundRoute
}

// decision is what the rule at a place decided in a round; none is behind all.
type decision struct {
	round, place int
	rule         *rtnl.FoundRule
	route        *rtnl.FoundRoute
}

// ruleIndex has the places of rules by a prefix that chooses packets.
type ruleIndex struct {
	all     []int // of rules that choose by none
	at      map[netip.Prefix][]int
	lengths []int
}

func (p *ruleIndex) add(prefix netip.Prefix, place int) {
	if prefix.Bits() <= 0 {
		p.all = append(p.all, place)
		return
	}
	if p.at == nil {
		p.at = map[netip.Prefix][]int{}
	}
	p.at[prefix.Masked()] = append(p.at[prefix.Masked()], place)
	if !slices.Contains(p.lengths, prefix.Bits()) {
		p.lengths = append(p.lengths, prefix.Bits())
	}
}

// appendTo appends those of the rules that choose an address.
func (p *ruleIndex) appendTo(some []int, a netip.Addr) []int {
	some = append(some, p.all...)
	for _, bits := range p.lengths {
		if prefix, err := a.Prefix(bits); err == nil {
			some = append(some, p.at[prefix]...)
		}
	}
	return some
}

func newDecider(r *routing) *decider {
	d := &decider{routing: r, byInterface: map[string][]int{}, targets: map[int]bool{}, tableOf: make([]int, len(r.rules)), classes: map[string]int{}}
	at := map[int]int{} // the places of tables
	for i := range r.rules {
		rule := &r.rules[i]
		if rule.Action == nl.FR_ACT_GOTO {
			d.targets[rule.Target] = r.has(rule.Target)
		}
		place, ok := at[rule.Table]
		if !ok {
			place = len(d.tables)
			at[rule.Table], d.tables = place, append(d.tables, r.tables[rule.Table])
		}
		d.tableOf[i] = place
		switch {
		case rule.Inverted:
			d.others = append(d.others, i)
		case rule.Elsewhere():
		case rule.From.Bits() > 0:
			d.bySource.add(rule.From, i)
		case rule.In != "":
			d.byInterface[rule.In] = append(d.byInterface[rule.In], i)
		case rule.IP != 0:
			d.others = append(d.others, i)
		default:
			d.byDestination.add(rule.To, i)
		}
	}
	for _, t := range r.tables {
		for _, same := range t.routes {
			for _, route := range same {
				if route.From.Bits() > 0 {
					d.sources = append(d.sources, route.From)
				}
			}
		}
	}
	slices.SortFunc(d.sources, netip.Prefix.Compare)
	d.sources = slices.Compact(d.sources)
	return d
}

// asker is a sender, with the rules about some senders that may be asked for what
// it sends.
type asker struct {
	sender
	rules []askable
	// class is the kind of those that no route tells apart.
	class int
}

// askable is the place of a rule, which may know the sender.
type askable struct {
	place int
	known bool
}

func (d *decider) asker(s sender) asker {
	a := asker{sender: s}
	some := d.bySource.appendTo(nil, s.from)
	some = append(append(some, d.byInterface[s.in]...), d.others...)
	slices.Sort(some)
	for _, i := range some {
		if known := knows(&d.rules[i], s); known || d.rules[i].Inverted {
			a.rules = append(a.rules, askable{i, known})
		}
	}
	class := make([]byte, len(d.sources))
	for i, p := range d.sources {
		if holds(p, s.from) {
			class[i] = 1
		}
	}
	number, ok := d.classes[string(class)]
	if !ok {
		number = len(d.classes)
		d.classes[string(class)] = number
	}
	a.class = number
	return a
}

// key is the same for askers that are alike to all rules and routes.
func (a *asker) key() string {
	key := binary.AppendUvarint(nil, uint64(a.class))
	for _, r := range a.rules {
		known := uint64(0)
		if r.known {
			known = 1
		}
		key = binary.AppendUvarint(key, uint64(r.place)<<1|known)
	}
	return string(key)
}

// towards has the next questions be about a destination.
func (d *decider) towards(to netip.Addr) {
	d.to, d.about = to, d.byDestination.appendTo(d.about[:0], to)
	slices.Sort(d.about)
	d.round++
	if n := len(d.classes); len(d.decisions) != n {
		d.lookups, d.decisions = make([]lookup, n*len(d.tables)), make([]decision, n)
	}
}

// fits reports whether a rule about some senders is asked.
func (d *decider) fits(r askable) bool {
	rule := &d.rules[r.place]
	return (r.known && holds(rule.To, d.to)) != rule.Inverted
}

// sends reports whether a rule of Weft's has a table asked.
func (d *decider) sends(a *asker, table int) bool {
	is := func(place int) bool {
		return d.rules[place].Protocol == d.stamps.Protocol && d.rules[place].Table == table
	}
	return slices.ContainsFunc(a.rules, func(r askable) bool { return is(r.place) && d.fits(r) }) || slices.ContainsFunc(d.about, is)
}

// decide returns what decides where a packet goes, as routing.decide does.
func (d *decider) decide(a *asker) (*rtnl.FoundRule, *rtnl.FoundRoute) {
	if len(d.targets) > 0 {
		return d.jump(a)
	}
	all := d.common(a)
	for _, r := range a.rules {
		if r.place > all.place {
			break
		}
		if d.fits(r) {
			if rule, route, ok := d.apply(r.place, a); ok {
				return rule, route
			}
		}
	}
	return all.rule, all.route
}

// jump is decide where a rule may have others passed over.
func (d *decider) jump(a *asker) (*rtnl.FoundRule, *rtnl.FoundRoute) {
	after := 0 // the priority below which no rule is asked any more
	some, about := a.rules, d.about
	for len(some) > 0 || len(about) > 0 {
		var place int
		if len(about) == 0 || len(some) > 0 && some[0].place < about[0] {
			next := some[0]
			if some = some[1:]; !d.fits(next) {
				continue
			}
			place = next.place
		} else {
			place, about = about[0], about[1:]
		}
		switch rule := &d.rules[place]; {
		case rule.Priority < after:
		case rule.Action == nl.FR_ACT_GOTO:
			if d.targets[rule.Target] {
				after = rule.Target
			}
		default:
			if rule, route, ok := d.apply(place, a); ok {
				return rule, route
			}
		}
	}
	return nil, nil
}

// common returns what the rules about all senders decide.
func (d *decider) common(a *asker) *decision {
	known := &d.decisions[a.class]
	if known.round != d.round {
		*known = decision{round: d.round, place: len(d.rules)}
		for _, place := range d.about {
			if rule, route, ok := d.apply(place, a); ok {
				known.place, known.rule, known.route = place, rule, route
				break
			}
		}
	}
	return known
}

// apply returns what a rule decides that is asked; false if the next one is.
func (d *decider) apply(place int, a *asker) (*rtnl.FoundRule, *rtnl.FoundRoute, bool) {
	rule := &d.rules[place]
	switch rule.Action {
	case nl.FR_ACT_TO_TBL:
		route := d.find(d.tableOf[place], a)
		return rule, route, rule.Takes(route)
	case nl.FR_ACT_NOP:
		return nil, nil, false
	}
	return rule, nil, true
}

func (d *decider) find(table int, a *asker) *rtnl.FoundRoute {
	known := &d.lookups[table*len(d.decisions)+a.class]
	if known.round != d.round {
		*known = lookup{d.round, d.tables[table].find(d.to, a.from, nil)}
	}
	return known.route
}

// sourcesWithin returns what finds the addresses in a prefix, and not those of the
// whole of it, that rules speak of as sources, in the order of the rules.
func (d *decider) sourcesWithin() func(netip.Prefix) []netip.Addr {
	var sorted []int
	for i := range d.rules {
		if d.rules[i].From.Bits() > 0 {
			sorted = append(sorted, i)
		}
	}
	slices.SortFunc(sorted, func(a, b int) int { return d.rules[a].From.Compare(d.rules[b].From) })
	return func(p netip.Prefix) (all []netip.Addr) {
		first, _ := slices.BinarySearchFunc(sorted, p.Masked().Addr(), func(place int, a netip.Addr) int { return d.rules[place].From.Addr().Compare(a) })
		var places []int
		for _, place := range sorted[first:] {
			if !p.Contains(d.rules[place].From.Addr()) {
				break
			}
			if interval.Covers(p, d.rules[place].From) {
				places = append(places, place)
			}
		}
		slices.Sort(places)
		for _, place := range places {
			all = append(all, d.rules[place].From.Addr())
		}
		return all
	}
}
