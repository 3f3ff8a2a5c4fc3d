package service

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// queue holds the Services of which not all is in the tables that is to be, as it would take so
// long that others would notice. Each is owed to its namespace, and has what it had before until
// its turn, less what is gone; see retire. Namespaces take turns, and of one namespace the Services
// are served in the order in which they came. First are those that have more in the tables than they may have by now. Else one Service after
// the other could get much, and then may have little, and the tables would have all of it at once.
type queue struct {
	owed map[string]*debts // by namespace
	// served is by namespace the turn at which something was taken last, or at which it came.
	served map[string]uint64
	turn   uint64
}

// debts are what is owed to a namespace.
type debts struct {
	// came are all Services that wait. ahead are those of them that had too much in the tables when they last changed.
	came, ahead line
	// since is the turn at which the first came.
	since uint64
}

// line is some Services in the order in which they came, each once.
type line struct {
	// keys are also those that are not in it any more, which are passed over.
	keys []registry.Key
	in   map[registry.Key]bool
}

// add adds a Service, which keeps its place where it is in it already.
func (l *line) add(key registry.Key) {
	if l.in[key] {
		return
	}
	if l.in == nil {
		l.in = make(map[registry.Key]bool)
	}
	l.in[key], l.keys = true, append(l.keys, key)
}

// remove takes a Service out.
func (l *line) remove(key registry.Key) {
	if !l.in[key] {
		return
	}
	if delete(l.in, key); len(l.keys) > 2*len(l.in)+64 {
		seen := make(map[registry.Key]bool, len(l.in))
		l.keys = slices.DeleteFunc(l.keys, func(k registry.Key) bool {
			passed := seen[k] || !l.in[k]
			seen[k] = true
			return passed
		})
	}
}

// first returns the one that came first, if there is any.
func (l *line) first() (key registry.Key, ok bool) {
	for len(l.keys) > 0 && !l.in[l.keys[0]] {
		l.keys = l.keys[1:]
	}
	if len(l.keys) == 0 {
		return key, false
	}
	return l.keys[0], true
}

// How much of one namespace a call of Compile does, in entries of tables that change. To compile
// without a change costs a fraction of that. Only tests set them.
var (
	// roomAtOnce is for what follows a change at once, and as much for what is gone.
	roomAtOnce = 1024
	// roomOfTurn is for a turn of what was left for later.
	roomOfTurn = 2048
)

// partForBackends is for how large a part of a turn backends have at least, whatever else comes: a Service that changes between
// any two of its turns would never have any else.
const partForBackends = 4

// lateAfter is after how many turns, of all namespaces, what still waits is worth a word: they take some
// seconds, and whoever goes by what is said would have more to do with it than with them.
const lateAfter = 30

// perEntry is how many entries are compiled in the time that one takes to be loaded, about.
const perEntry = 64

// waits reports whether a Service does.
func (q *queue) waits(key registry.Key) bool {
	of := q.owed[key.Namespace]
	return of != nil && of.came.in[key]
}

// all yields the Services that wait.
func (q *queue) all() iter.Seq[registry.Key] {
	return func(yield func(registry.Key) bool) {
		for _, of := range q.owed {
			for key := range of.came.in {
				if !yield(key) {
					return
				}
			}
		}
	}
}

// add adds a Service. One that waits already keeps its place.
func (q *queue) add(key registry.Key) {
	if q.owed == nil {
		q.owed, q.served = make(map[string]*debts), make(map[string]uint64)
	}
	of := q.owed[key.Namespace]
	if of == nil {
		of = &debts{since: q.turn}
		q.owed[key.Namespace], q.served[key.Namespace] = of, q.turn // after those that wait already
	}
	of.came.add(key)
}

// remove takes a Service out.
func (q *queue) remove(key registry.Key) {
	of := q.owed[key.Namespace]
	if of == nil {
		return
	}
	of.ahead.remove(key)
	if of.came.remove(key); len(of.came.in) == 0 {
		delete(q.owed, key.Namespace)
		delete(q.served, key.Namespace)
	}
}

// owe has a Service wait of which not all is there that is to be.
func (c *Compiler) owe(key registry.Key) {
	if c.queue.add(key); c.hasTooMuch(key) {
		c.queue.owed[key.Namespace].ahead.add(key)
	}
}

// first returns the Service of a namespace whose turn it is.
func (c *Compiler) first(namespace string) (key registry.Key, ok bool) {
	of := c.queue.owed[namespace]
	if of == nil {
		return key, false
	}
	for {
		key, ok := of.ahead.first()
		if !ok {
			return of.came.first()
		}
		if c.hasTooMuch(key) {
			return key, true
		}
		of.ahead.remove(key) // and has its own place
	}
}

// owners returns the namespaces to whom something is owed, in the order of their turns.
func (q *queue) owners() []string {
	return slices.SortedFunc(maps.Keys(q.owed), func(a, b string) int {
		return cmp.Or(cmp.Compare(q.served[a], q.served[b]), strings.Compare(a, b))
	})
}

// Waiting returns the namespaces to whom something is owed that the tables that Compile returned last do
// not have of what objects mean. The first is whose turn it is.
func (c *Compiler) Waiting() []string { return c.queue.owners() }

// Late returns the namespaces to whom something is owed for so long that it is worth a word, in order.
func (c *Compiler) Late() (late []string) {
	for namespace, of := range c.queue.owed {
		if c.queue.turn-of.since >= lateAfter {
			late = append(late, namespace)
		}
	}
	slices.Sort(late)
	return late
}

// Rest has what changes of Services of some namespaces wait for its turn from the next call of
// Compile on, however small they are. What is gone does not wait for that.
func (c *Compiler) Rest(namespaces map[string]bool) { c.resting = namespaces }

// Hasty returns the namespaces of which much was followed at once in the last call of Compile.
func (c *Compiler) Hasty() (hasty []string) {
	for namespace, r := range c.rooms {
		if min(r.changes, r.removals, r.rules) < roomAtOnce-roomAtOnce/16 {
			hasty = append(hasty, namespace)
		}
	}
	return hasty
}

// Advance has the next call of Compile, for the same objects or others, work off some of what is owed to a
// namespace, if there is anything.
func (c *Compiler) Advance(namespace string) { c.advancing, c.owner = true, namespace }

// room is what is left of what a namespace may do at once. Rules that come have as much for themselves, so that no backends
// that come before their frontends keep these out.
type room struct{ changes, removals, rules int }

// roomOf returns what is left of what a namespace may do at once.
func (c *Compiler) roomOf(namespace string) *room {
	r := c.rooms[namespace]
	if r == nil {
		r = &room{roomAtOnce, roomAtOnce, roomAtOnce}
		c.rooms[namespace] = r
	}
	return r
}

// follow follows changes of Services, and leaves for later what takes long. Some were written themselves, or what is behind them was.
// What is gone of these is taken out at once, all frontends and as many backends as there is room for. Of others more is beyond the budget
// of their namespace than before, or less, as one that was written makes more or less. These may be very many for one write. So they are
// followed at once only where those that were written leave them room, and else only take their places in the queue.
func (c *Compiler) follow(written map[registry.Key]bool, others []registry.Key) {
	for _, key := range slices.SortedFunc(maps.Keys(written), registry.Key.Compare) {
		if c.isAPIServer(key) {
			c.replaceAll(key) // no tenant's, and others' claims wait for it
			continue
		}
		if n, ok := c.atOnce(key, true); ok {
			c.followNow(&n)
			continue
		}
		r := c.roomOf(key.Namespace)
		c.retire(c.service(key), &r.removals, &r.rules)
		c.settleTables(nobodys, nil, nil)
		c.owe(key)
	}
	for _, key := range others {
		if n, ok := c.atOnce(key, false); ok {
			c.followNow(&n)
		} else {
			c.owe(key)
		}
	}
}

// atOnce returns what a Service is next, and reports whether it is to be that at once. Then it takes the room for it: to compile
// it, and for what comes and goes. Where what goes must go, there need be no room for that, and a Service that is gone itself never waits.
func (c *Compiler) atOnce(key registry.Key, mustGo bool) (n next, ok bool) {
	r := c.roomOf(key.Namespace)
	waits := r.changes <= 0 || c.resting[key.Namespace] || c.queue.waits(key)
	if waits && !mustGo {
		return n, false
	}
	if s := c.service(key); s != nil {
		cost := c.costOf(s)
		if waits || cost > r.changes {
			return n, false
		}
		r.changes -= cost
	}
	n = c.next(key)
	p := c.priceOf(&n)
	if p.comes > max(0, r.changes) || !mustGo && p.goes > r.removals {
		return n, false
	}
	r.removals -= p.goes
	n.reserve(&r.changes, p.comes)
	return n, true
}

// followNow has a Service be what it is next, as far as there is room for its backends, and wait for the rest.
func (c *Compiler) followNow(n *next) {
	if r := c.roomOf(n.key.Namespace); c.replace(n, &r.changes, &r.removals, &r.rules) {
		c.queue.remove(n.key)
	} else {
		c.owe(n.key)
	}
}

// advance does a turn of a namespace. A Service of which much is left keeps its place. The first is done whatever else
// than backends comes of it: the namespace pays for what is more than a turn, as it rests.
func (c *Compiler) advance(namespace string) {
	q, left, rules := &c.queue, roomOfTurn, roomOfTurn
	if q.owed[namespace] == nil {
		return
	}
	q.turn++
	q.served[namespace] = q.turn
	for begun := false; ; begun = true {
		key, ok := c.first(namespace)
		if !ok || begun && left <= 0 {
			return
		}
		if s := c.service(key); s != nil {
			cost := c.costOf(s)
			if begun && cost > left {
				return
			}
			left -= cost
		}
		n := c.next(key)
		p := c.priceOf(&n)
		if begun && p.comes+p.goes > left {
			return
		}
		if !begun {
			n.least = roomOfTurn / partForBackends
		}
		n.reserve(&left, p.comes+p.goes)
		if !c.replace(&n, &left, &left, &rules) {
			return
		}
		q.remove(key)
	}
}

// retire takes out what is gone of a Service that waits, and may not be served any more, and leaves
// the rest as it was: frontends that it has no more, or not by the same right, and backends
// that are no endpoints any more. Endpoints that are not ready any more get no connections, where they end and
// still serve only if somebody else gets some who is ready; and of UDP those that do not serve go. Who may not come any more to a load balancer's address does not, either.
func (c *Compiler) retire(s *service, room, rules *int) {
	was := c.compiled[s.key]
	if was == nil {
		return
	}
	if len(was.claims) > 0 {
		var made edits
		due := compile(s, nil, c.spaces[s.key.Namespace].over[s.key], c.granted(s), c.standings(s), c.node, &made)
		left, kept := due.claims, make([]*claim, 0, len(was.claims))
		for _, one := range was.claims {
			for len(left) > 0 && left[0].key.Compare(one.key) < 0 {
				left = left[1:]
			}
			if len(left) > 0 && left[0].key == one.key && left[0].keeps(one) {
				kept = append(kept, one)
			}
		}
		if *room -= len(was.claims) / perEntry; len(kept) < len(was.claims) {
			*room -= len(was.claims) - len(kept)
			c.contend(was, &compiled{claims: kept})
			was.claims = kept
		}
		has := c.admit(s, was.sources, made.sources, false)
		*room -= was.priceOfList(was.sources, has)
		was.sources = has
	}
	o, edits := c.oldersOf(was, c.behind(s.key)), changing{Compiler: c, rules: rules}
	was.backends = slices.DeleteFunc(slices.Clone(was.backends), func(k plan.BackendKey) bool {
		is := o.of(k)
		if *room <= 0 || is == stays || !edits.may(k) {
			return false
		}
		switch is {
		case leaves:
			*room--
			edits.remove(k)
		case drained:
			edits.drain(k, room)
		}
		return is == leaves
	})
	edits.done()
}

// admit puts those who may come to balanced addresses of a Service that has older claims in the place of
// others, and returns who these are then. Unless all may who are new, it is only those who could before, by the same range or by a larger one.
// Of a family of which all may come it leaves those who could before: an older claim lets in nobody else.
func (c *Compiler) admit(s *service, before []plan.SourceKey, made []plan.Edit[plan.SourceKey, plan.Source], all bool) (has []plan.SourceKey) {
	var guarded []plan.SourceKey
	for _, k := range before {
		if s.guards(plan.FamilyOf(k.Prefix.Addr())) {
			guarded = append(guarded, k)
		} else {
			has = append(has, k)
		}
	}
	could := letsIn(guarded)
	due := slices.DeleteFunc(made, func(e plan.Edit[plan.SourceKey, plan.Source]) bool {
		return !s.guards(plan.FamilyOf(e.Key.Prefix.Addr())) || !all && !could(e.Key.Prefix)
	})
	c.edits.sources = instead(c.edits.sources, guarded, due)
	has = append(has, keysOf(due)...)
	slices.SortFunc(has, plan.SourceKey.Compare)
	return has
}

// keeps reports whether what is due to a Service is what an older claim of it says, or more: by the
// same right, which a Service made anew has not, and for no fewer clients.
func (c *claim) keeps(older *claim) bool {
	family := plan.FamilyOf(c.key.Address)
	open := c.rank != rankBalanced || !c.by.guards(family) || older.by.guards(family)
	return c.rank == older.rank && c.by.uid == older.by.uid && c.by.created.Equal(older.by.created) && (c.granted || !older.granted) && open
}

// within adds those edits that put backends in the place of others that there is room for, first those
// that take out who is gone, and has the claims that are to wait for the rest stay as they were. What is only replaced goes as others
// come: see replacing. What only moves to another set goes last: see moving. It reports whether all is done.
func (c *Compiler) within(n *next, room, removable, rules *int) (whole bool) {
	before, now, made := n.before, n.now, n.made.backends
	lacking, older := c.lacking(made), sync.OnceValue(func() olders { return c.oldersOf(before, n.behind) })
	var held map[string]bool
	isGone := func(k plan.BackendKey) bool { return !held[k.Set] || older().of(k) == leaves }
	moves, crowded, scarce := c.moving(now, made), false, false
	isReplaced := func(k plan.BackendKey) bool { return scarce && older().of(k) == stays && c.getsNow(k) }
	reserved := 0
	if before.held {
		reserved = len(lacking) // or those that come now and then would hold it for ever
	}
	take := func() (removals, replacements int) {
		gone, most := goneOf(before.backends, made, isGone), *removable
		// What comes and what goes may have one room. Where that is not enough for both, half of it is for what comes.
		share := 0
		if room == removable {
			share = len(lacking)
		}
		scarce = len(lacking) > *room || gone > *removable-share
		if crowded = gone > MaxBackends; !crowded { // or it would have more and more
			replacements = goneOf(before.backends, made, func(k plan.BackendKey) bool { return isGone(k) && !moves(k) && isReplaced(k) })
			gone = goneOf(before.backends, made, func(k plan.BackendKey) bool { return isGone(k) && !moves(k) && !isReplaced(k) })
			most -= reserved
		}
		removals = max(0, min(most, gone))
		*removable -= removals
		replacements = max(0, min(*removable-min(share, *room/2), replacements))
		*removable -= replacements
		return removals, replacements
	}
	removals, replacements := take()
	if held = c.hold(n, lacking, older, *room, *rules); len(held) > 0 {
		*removable += removals + replacements
		p := c.priceOf(n)
		n.reserve(room, p.comes+p.goes) // as these frontends stay
		moves = c.moving(now, made)     // claims are others by now
		removals, replacements = take()
		now.held = true
	}
	edits := changing{Compiler: c, rules: rules}
	replaced := replacing{edits: &edits, room: replacements}
	has, left := make([]plan.BackendKey, 0, len(made)), before.backends
	var last []plan.BackendKey
	lacks := false
	whole = !now.held
	remove := func(k plan.BackendKey) {
		replaced.to(k)
		switch gone := isGone(k); {
		case gone && !crowded && moves(k):
			last, has = append(last, k), append(has, k)
			return
		case gone && !crowded && isReplaced(k):
			replaced.put(k)
			has = append(has, k)
			return
		case gone && removals > 0 && edits.may(k):
			removals--
			edits.remove(k)
			return
		case !gone && older().of(k) == drained && *room > 0 && edits.may(k):
			edits.drain(k, room)
		}
		has, whole = append(has, k), false
	}
	for _, e := range made {
		for ; len(left) > 0 && left[0].Compare(e.Key) <= 0; left = left[1:] {
			if left[0] != e.Key {
				remove(left[0])
			}
		}
		replaced.to(e.Key)
		is, there := c.tables.Backends.Get(e.Key)
		switch {
		case there && is.Equal(e.Value):
		case *room > 0 && edits.may(e.Key):
			*room--
			edits.edit(e)
			there = true
			if is.Weight == 0 && e.Value.Weight > 0 {
				replaced.came()
			}
		default:
			lacks, replaced.lacks = true, true
		}
		if there {
			has = append(has, e.Key)
		}
	}
	for _, k := range left {
		remove(k)
	}
	replaced.done()
	edits.done()
	*removable += removals + replaced.room // what is left of them
	if goes := min(max(0, *removable), len(last)); !lacks && goes > 0 {
		*removable -= goes
		for _, k := range last[:goes] {
			replaced.take(k)
		}
		last = last[goes:]
		edits.done()
	}
	now.backends = slices.DeleteFunc(has, func(k plan.BackendKey) bool { return replaced.gone[k] })
	return whole && !lacks && len(last) == 0 && replaced.left == 0
}

// moving returns what reports of a backend of a Service that is not made any more whether it moves to another set:
// its endpoint is made there, and nobody is given it in this one, as it has weight 0, or as no frontend names
// the set. Such a backend harms nobody, and it goes after those that come are loaded: they come sooner so, and
// streams that it has find it until then, where a frontend names its set.
func (c *Compiler) moving(now *compiled, made []plan.Edit[plan.BackendKey, plan.Backend]) func(plan.BackendKey) bool {
	var endpoints map[netip.AddrPort]bool
	var named map[string]bool
	return func(k plan.BackendKey) bool {
		if endpoints == nil {
			endpoints = make(map[netip.AddrPort]bool, len(made))
			for _, e := range made {
				endpoints[netip.AddrPortFrom(e.Key.Address, e.Key.Port)] = true
			}
		}
		if !endpoints[netip.AddrPortFrom(k.Address, k.Port)] {
			return false
		}
		if !c.getsNow(k) {
			return true
		}
		if named == nil {
			named = make(map[string]bool)
			for _, one := range now.claims {
				for _, set := range one.sets() {
					named[set] = true
				}
			}
		}
		return !named[k.Set]
	}
}

// goneOf is how many that are gone there were that are not made again.
func goneOf(before []plan.BackendKey, made []plan.Edit[plan.BackendKey, plan.Backend], isGone func(plan.BackendKey) bool) (n int) {
	for _, k := range before {
		for len(made) > 0 && made[0].Key.Compare(k) < 0 {
			made = made[1:]
		}
		if (len(made) == 0 || made[0].Key != k) && isGone(k) {
			n++
		}
	}
	return n
}
