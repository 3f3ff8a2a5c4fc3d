package service

import (
	"slices"
	"time"

	"github.com/weftnet/weft/plan"
)

// Some of what entries say takes rules of their own in data planes, which all entries share that say it. Such
// rules are few entries in the tables, and cost much more than these when they come. So who has an entry that is the first
// to need some pays for them out of the room of its namespace, and where there is too little left the entry waits. What there
// is of them is counted by the tables, and by nothing that Services merely ask for: what another
// took for there, and is not, nobody would pay for.

// rule is what data planes have rules of their own for: that clients of frontends of a family are remembered for some
// time; or that a backend is drawn among so many of that family, for frontends that use their sets in some way.
type rule struct {
	family plan.Family
	// lasts is for how long clients are remembered, 0 where the rule is for drawing one of a number of backends.
	lasts  time.Duration
	use    use
	number int
}

// use is a way in which a frontend uses its set, of a side: whether clients are remembered, and whether it is for some clients alone.
type use uint8

const (
	outside use = 1 << iota
	remembers
	guarded
	// allUses is how many ways there are.
	allUses
)

const (
	// perDuration is how large a part of all entries it costs as many more to load, that clients are
	// remembered for a time for which nobody else's are: kernels look at
	// all that the rules may lead to when they come.
	perDuration = 64
	// drawsOfTurn is how many rules fill a turn that draw one of a number of backends. What is for both sides takes
	// two. For fewBackends there are always some, or so few that they count for nothing.
	// Of numbers above largeNumber numbersAlike share them.
	drawsOfTurn, fewBackends, largeNumber, numbersAlike = 128, 3, 256, 64
)

// usesOf returns how a frontend uses its set.
func usesOf(k plan.ServiceKey, s plan.Service) []use {
	var u use
	if s.Affinity > 0 {
		u |= remembers
	}
	if s.Sources != "" {
		u |= guarded
	}
	switch k.From {
	case plan.Inside:
		return []use{u}
	case plan.Outside:
		return []use{u | outside}
	}
	return []use{u, u | outside}
}

// drawn is what the tables have of a part of a set that is of a family.
type drawn struct {
	// number is how many backends get connections.
	number int
	// large says that these were more than largeNumber, and have not become few since: a data plane may draw among
	// as many as there were.
	large bool
	// uses are how many frontends use it in each way.
	uses [allUses]int
}

// among returns by how many backends the rules go that draw one of a number.
func among(number int) int {
	if number > largeNumber {
		return (number + numbersAlike - 1) / numbersAlike * numbersAlike
	}
	return number
}

// ruleOf returns the rule by which one of a number of backends is drawn. It is none where these are few.
func ruleOf(f plan.Family, u use, number int) (r rule, needed bool) {
	return rule{family: f, use: u, number: among(number)}, number > fewBackends
}

// counts are what the tables have of what takes rules.
type counts struct {
	// rules are how many frontends, or sets, there are that need them.
	rules map[rule]int
	// gone are those rules that something needs no more. They are there until all that changed is loaded.
	gone []rule
	sets map[setOf]*drawn
}

func (c *counts) put(r rule, by int) {
	if by < 0 {
		c.gone = append(c.gone, r)
		return
	}
	if c.rules == nil {
		c.rules = make(map[rule]int)
	}
	c.rules[r]++
}

// forget takes out what is gone.
func (c *counts) forget() {
	for _, r := range c.gone {
		if c.rules[r]--; c.rules[r] == 0 {
			delete(c.rules, r)
		}
	}
	c.gone = nil
}

// of returns what is known of a set, which begins here.
func (c *counts) of(k setOf) *drawn {
	d := c.sets[k]
	if d == nil {
		if c.sets == nil {
			c.sets = make(map[setOf]*drawn)
		}
		d = &drawn{}
		c.sets[k] = d
	}
	return d
}

// put has what a set needs count for one use of it.
func (d *drawn) put(c *counts, k setOf, u use, by int) {
	if d.large && d.number <= largeNumber {
		return // nobody can tell which rules it has
	}
	if r, needed := ruleOf(k.family, u, d.number); needed {
		c.put(r, by)
	}
}

// frontend takes note that a frontend comes to the table, by 1, or leaves it, by -1.
func (c *counts) frontend(k plan.ServiceKey, s plan.Service, by int) {
	if s.Set == "" {
		return
	}
	key := setOf{plan.FamilyOf(k.Address), s.Set}
	if s.Affinity > 0 {
		c.put(rule{family: key.family, lasts: s.Affinity}, by)
	}
	d := c.of(key)
	for _, u := range usesOf(k, s) {
		if d.uses[u] += by; d.uses[u] == max(by, 0) {
			d.put(c, key, u, by)
		}
	}
	c.drop(key, d)
}

// backends takes note that a set has some more backends that get connections, or fewer.
func (c *counts) backends(k setOf, by int) {
	d := c.of(k)
	all := func(by int) {
		for u, n := range d.uses {
			if n > 0 {
				d.put(c, k, use(u), by)
			}
		}
	}
	all(-1)
	d.number += by
	d.large = d.number > largeNumber || d.large && d.number > largeNumber/4
	all(1)
	c.drop(k, d)
}

// drop forgets a set of which there is nothing.
func (c *counts) drop(k setOf, d *drawn) {
	if *d == (drawn{}) {
		delete(c.sets, k)
	}
}

// missing returns those rules that are not there, each once, of those that sides of an address and port need in the
// place of others. Of a set of which it is known how many backends it is to have it goes by that.
func (c *Compiler) missing(key plan.ServiceKey, sides []side, numbers map[setOf]int) (all []rule) {
	put := func(r rule) {
		if c.counts.rules[r] == 0 && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, one := range sides {
		key.From = one.from
		if is, there := c.tables.Services.Get(key); one.is.Set == "" || there && is == one.is {
			continue
		}
		of := setOf{plan.FamilyOf(key.Address), one.is.Set}
		if one.is.Affinity > 0 {
			put(rule{family: of.family, lasts: one.is.Affinity})
		}
		var has drawn
		if d := c.counts.sets[of]; d != nil {
			has = *d
		}
		number, known := numbers[of]
		if !known {
			number = has.number
		}
		for _, u := range usesOf(key, one.is) {
			if r, needed := ruleOf(of.family, u, number); needed && (has.uses[u] == 0 || number != has.number) {
				put(r)
			}
		}
	}
	return all
}

// missingFor returns those that are not there of those that a set needs to have another number of backends.
func (c *Compiler) missingFor(k setOf, number int) (all []rule) {
	d := c.counts.sets[k]
	if d == nil || among(number) == among(d.number) {
		return nil
	}
	for u, n := range d.uses {
		if r, needed := ruleOf(k.family, use(u), number); n > 0 && needed && c.counts.rules[r] == 0 {
			all = append(all, r)
		}
	}
	return all
}

// priceOfRules is what it takes to load rules that are not there, in entries.
func (c *Compiler) priceOfRules(rules []rule) (price int) {
	for _, r := range rules {
		if r.lasts > 0 {
			price += 1 + (c.tables.Services.Len()+c.tables.Backends.Len())/perDuration
		} else {
			price += max(1, roomOfTurn/drawsOfTurn)
		}
	}
	return price
}

// numbersOf returns how many backends get connections of what is made, by sets, of families.
func numbersOf(made []plan.Edit[plan.BackendKey, plan.Backend]) map[setOf]int {
	all := make(map[setOf]int)
	for _, e := range made {
		all[setOf{plan.FamilyOf(e.Key.Address), e.Key.Set}] += getting(e)
	}
	return all
}

// suffices reports whether there is room for rules: all that they take, or most of a turn, as some take more than one has.
func suffices(room, price int) bool { return price <= room || room > roomOfTurn/2 }

// changing adds edits of backends, and has the rules be paid for that new numbers of them take: set by set, once all of one is
// known. The edits must be in the order of the sets.
type changing struct {
	*Compiler
	// rules is the room for these.
	rules *int
	paid  []rule
	set   setOf
	by    int
}

// may reports whether there is room for more edits of the set of a backend. Of one that no frontend names there always is.
func (c *changing) may(k plan.BackendKey) bool {
	c.to(k)
	d := c.counts.sets[c.set]
	return *c.rules > 0 || d == nil || d.uses == [allUses]int{}
}

// to goes on to the set of a backend.
func (c *changing) to(k plan.BackendKey) {
	if set := (setOf{plan.FamilyOf(k.Address), k.Set}); set != c.set {
		c.done()
		c.set = set
	}
}

// edit adds an edit.
func (c *changing) edit(e plan.Edit[plan.BackendKey, plan.Backend]) {
	c.to(e.Key)
	was, _ := c.tables.Backends.Get(e.Key)
	c.by += getting(e) - min(int(was.Weight), 1)
	c.edits.backends = append(c.edits.backends, e)
}

// remove takes a backend out.
func (c *changing) remove(k plan.BackendKey) {
	c.edit(plan.Edit[plan.BackendKey, plan.Backend]{Key: k, Gone: true})
}

// getting is 1 where an edit leaves a backend that gets connections.
func getting(e plan.Edit[plan.BackendKey, plan.Backend]) int {
	if e.Gone {
		return 0
	}
	return min(int(e.Value.Weight), 1)
}

// done has the rules be paid for that the set needs, of which all edits are there.
func (c *changing) done() {
	if c.by != 0 {
		number := c.by
		if d := c.counts.sets[c.set]; d != nil {
			number += d.number
		}
		comes := slices.DeleteFunc(c.missingFor(c.set, number), func(r rule) bool { return slices.Contains(c.paid, r) })
		*c.rules -= c.priceOfRules(comes)
		c.paid = append(c.paid, comes...)
	}
	c.by = 0
}

// drain has a backend get no connections any more.
func (c *changing) drain(k plan.BackendKey, room *int) {
	if is, _ := c.tables.Backends.Get(k); is.Weight > 0 {
		is.Weight = 0
		*room--
		c.edit(plan.Edit[plan.BackendKey, plan.Backend]{Key: k, Value: is})
	}
}

// loadBackends has the table follow the edits, and counts what it has then.
func (c *Compiler) loadBackends() {
	before, edits := c.tables.Backends, c.edits.backends
	c.tables.Backends = before.With(edits) // in order, from here on
	var set setOf
	by := 0
	for i, e := range edits {
		if i+1 < len(edits) && edits[i+1].Key == e.Key {
			continue // the last counts
		}
		if next := (setOf{plan.FamilyOf(e.Key.Address), e.Key.Set}); next != set {
			if by != 0 {
				c.counts.backends(set, by)
			}
			set, by = next, 0
		}
		was, _ := before.Get(e.Key)
		by += getting(e) - min(int(was.Weight), 1)
	}
	if by != 0 {
		c.counts.backends(set, by)
	}
	c.edits.backends = nil
}
