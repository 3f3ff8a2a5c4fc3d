package service

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/plan"
)

// A frontend may come to name another set: the port has another name, or another policy. Where backends
// are loaded in turns, the frontend goes over when the other set is whole. Until then it has the set
// that it had, or who connects would find few there, and connections would end whose backends
// are not gone.

// said is what the slices of a Service say of an address, one or another of them.
type said struct {
	// ready says that it gets new connections, last that it does where nobody is ready, as it serves while it
	// ends, and serves that it answers.
	ready, last, serves bool
}

// saidOf returns what slices say of the addresses of all endpoints.
func saidOf(behind []*slice) map[netip.Addr]said {
	all := make(map[netip.Addr]said)
	for _, b := range behind {
		for _, m := range b.endpoints {
			is := all[m.address]
			is.ready = is.ready || m.ready
			is.last = is.last || m.serving && m.terminating
			is.serves = is.serves || m.serving
			all[m.address] = is
		}
	}
	return all
}

// older is what becomes of a backend that a Service had, and that is not made anew, or not yet.
type older int

const (
	leaves  older = iota
	drained       // It gets no connections, and keeps those that it has.
	stays
)

// olders says what becomes of the backends of a Service.
type olders struct {
	all map[netip.Addr]said
	// datagrams are the sets to which all frontends that name them are of UDP.
	datagrams map[string]bool
	// ready are the sets that have somebody who is ready, and gets connections already.
	ready map[setOf]bool
}

// setOf is the part of a set that is of a family.
type setOf struct {
	family plan.Family
	set    string
}

// oldersOf returns what becomes of the backends that a Service has, by its slices.
func (c *Compiler) oldersOf(has *compiled, behind []*slice) olders {
	o := olders{saidOf(behind), make(map[string]bool), make(map[setOf]bool)}
	for _, one := range has.claims {
		for _, set := range one.sets() {
			is, known := o.datagrams[set]
			o.datagrams[set] = one.key.Protocol == plan.UDP && (is || !known)
		}
	}
	for _, k := range has.backends {
		if of := (setOf{plan.FamilyOf(k.Address), k.Set}); o.all[k.Address].ready && !o.ready[of] {
			o.ready[of] = c.getsNow(k)
		}
	}
	return o
}

// getsNow reports whether a backend gets connections by the tables that there are.
func (c *Compiler) getsNow(k plan.BackendKey) bool {
	is, _ := c.tables.Backends.Get(k)
	return is.Weight > 0
}

// of returns what becomes of a backend, as putBackends has it.
func (o olders) of(k plan.BackendKey) older {
	is, there := o.all[k.Address]
	gets := is.ready || is.last && !o.ready[setOf{plan.FamilyOf(k.Address), k.Set}]
	switch {
	case !there, !gets && !is.serves && o.datagrams[k.Set]:
		return leaves
	case gets:
		return stays
	}
	return drained
}

// sets returns the sets that the frontends of a claim name.
func (c *claim) sets() (all []string) {
	for _, s := range c.sides() {
		if s.is.Set != "" {
			all = append(all, s.is.Set)
		}
	}
	return all
}

// lack is an entry that is to be loaded. comes says that there is none of its key yet.
type lack struct {
	set   string
	comes bool
}

// lacking returns what is to be loaded of what is made, in order.
func (c *Compiler) lacking(made []plan.Edit[plan.BackendKey, plan.Backend]) (all []lack) {
	for _, e := range made {
		if is, there := c.tables.Backends.Get(e.Key); !there || !is.Equal(e.Value) {
			all = append(all, lack{e.Key.Set, !there})
		}
	}
	return all
}

// short returns the sets that would still lack some who come with so much room.
func short(all []lack, room int) map[string]bool {
	sets := make(map[string]bool)
	for _, one := range all[min(max(0, room), len(all)):] {
		if one.comes {
			sets[one.set] = true
		}
	}
	return sets
}

// hold has those claims of a Service be as they were that would name another set for which, or for whose rules, there is not
// room enough, and returns the sets that they name. It does so only
// where these sets have somebody who gets connections, and where what a claim says is still due.
func (c *Compiler) hold(n *next, lacking []lack, older func() olders, room, rules int) (held map[string]bool) {
	before, now, made := n.before, n.now, n.made.backends
	if len(before.claims) == 0 {
		return nil
	}
	lacks := short(lacking, room)
	var unpaid map[*claim]bool
	n.leaving, unpaid = c.leaving(before, now, made, rules)
	if len(lacks) == 0 && len(unpaid) == 0 {
		return nil
	}
	o := older()
	// A backend of a set that stays is loaded with weight 0 where it gets no connections any more. That takes room,
	// for as many as these at most.
	drains := 0
	for _, k := range before.backends {
		if o.of(k) == drained && c.getsNow(k) {
			drains++
		}
	}
	if drains > 0 {
		lacks = short(lacking, room-drains)
	}
	has := make(map[string]bool)
	for _, k := range before.backends {
		if !has[k.Set] && o.of(k) == stays && c.getsNow(k) {
			has[k.Set] = true
		}
	}
	held = make(map[string]bool)
	for i, older := range now.kept(before) {
		is, was := now.claims[i], older.sets()
		waits := unpaid[is] || slices.ContainsFunc(is.sets(), func(set string) bool { return lacks[set] && !slices.Contains(was, set) })
		if waits && slices.ContainsFunc(was, func(set string) bool { return has[set] }) {
			now.claims[i] = older
			for _, set := range was {
				held[set] = true
			}
		}
	}
	return held
}

// kept yields the older claims of which what they say is still due, and the number of the one that there is now.
func (c *compiled) kept(before *compiled) iter.Seq2[int, *claim] {
	return func(yield func(int, *claim) bool) {
		left := before.claims
		for i, is := range c.claims {
			for len(left) > 0 && left[0].key.Compare(is.key) < 0 {
				left = left[1:]
			}
			if len(left) > 0 && left[0].key == is.key && is.keeps(left[0]) && !yield(i, left[0]) {
				return
			}
		}
	}
}

// leaving returns those claims that come to name another set than older ones, and for the rules of which there is room
// enough, and those for which there is not.
func (c *Compiler) leaving(before, now *compiled, made []plan.Edit[plan.BackendKey, plan.Backend], room int) (paid, unpaid map[*claim]bool) {
	var numbers map[setOf]int
	there := make(map[rule]bool)
	for i, older := range now.kept(before) {
		is := now.claims[i]
		if slices.Equal(is.sets(), older.sets()) {
			continue
		}
		if numbers == nil {
			paid, unpaid = make(map[*claim]bool), make(map[*claim]bool)
			numbers = numbersOf(made)
			for k, n := range numbers {
				for _, r := range c.missingFor(k, n) {
					there[r] = true
				}
			}
			room -= c.priceOfRules(slices.Collect(maps.Keys(there)))
		}
		rules := slices.DeleteFunc(c.missing(is.key, is.sides(), numbers), func(r rule) bool { return there[r] })
		if price := c.priceOfRules(rules); len(rules) > 0 && !suffices(room, price) {
			unpaid[is] = true
		} else {
			room -= price
			for _, r := range rules {
				there[r] = true
			}
			paid[is] = true
		}
	}
	return paid, unpaid
}

// replacing takes out those backends of a Service that others take the place of: the endpoint is there still, and gets connections, but by
// another number, as where the targetPort is another. In a set that lacks some of those that come, one goes for each that does, so
// that whoever connects finds about as many as before. Once the set lacks none the others go, too.
type replacing struct {
	edits *changing
	// room is for how many may go.
	room int
	// part is that of a set that is looked at, olders are those of it that may go, more is how many came to it for whom none of them
	// went, and lacks says that it lacks some.
	part   setOf
	olders []plan.BackendKey
	more   int
	lacks  bool
	// gone are those that went, and left is how many did not.
	gone map[plan.BackendKey]bool
	left int
}

// to goes on to the part of a backend.
func (r *replacing) to(k plan.BackendKey) {
	if part := (setOf{plan.FamilyOf(k.Address), k.Set}); part != r.part {
		r.done()
		r.part = part
	}
}

// put takes note of one that is replaced.
func (r *replacing) put(k plan.BackendKey) {
	r.olders = append(r.olders, k)
	r.goOn()
}

// came takes note of one that comes to get connections.
func (r *replacing) came() {
	r.more++
	r.goOn()
}

// goOn has as many go as came.
func (r *replacing) goOn() {
	for ; r.more > 0 && len(r.olders) > 0 && r.room > 0 && r.edits.may(r.olders[0]); r.more-- {
		r.take(r.olders[0])
		r.olders = r.olders[1:]
		r.room--
	}
}

// take takes one out.
func (r *replacing) take(k plan.BackendKey) {
	if r.gone == nil {
		r.gone = make(map[plan.BackendKey]bool)
	}
	r.gone[k] = true
	r.edits.remove(k)
}

// done is called when all of a part is known.
func (r *replacing) done() {
	if !r.lacks {
		r.more = len(r.olders)
		r.goOn()
	}
	r.left += len(r.olders)
	r.olders, r.more, r.lacks = nil, 0, false
}
