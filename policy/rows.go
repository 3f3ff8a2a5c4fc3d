package policy

import (
	"maps"
	"math/bits"
	"slices"

	"github.com/weftnet/weft/plan"
)

// rows are what a set says of classes. Classes for which the same atoms of its
// rules are active have one row.
//
// What differs little from what is said of any peer is said directly. Of other
// rows some are written down whole, and the rest refers to one of these
// (plan.Verdict.Like) and says only what differs. So what is said grows with the
// rules and with the classes, where many classes that differ in little each
// need many ports, and not with the product of both.
//
// How rows are written follows from which there are, and from which have one
// class and which more, so that who compiles step by step comes to the same.
type rows struct {
	set  *set
	grid *grid
	// byPeer are the rules of each peer, by its id, always those for all peers.
	byPeer [][]int
	always []int
	// otherwise is what is said of any peer, decided its decisions.
	otherwise bitset
	decided   []int

	byKey map[string]*row
	of    map[*class]*row
	// named are the rows that have a number, crowded says that not each of them has the
	// one that it would have alone.
	named   map[plan.Class]*row
	crowded bool
	// ports are the named ports that atoms may be about.
	ports []NamedPort
	// work is what it takes to say all rows, in words of the grid's covers; see MaxWork.
	work int
	// empty counts the rows that have no class any more, loose says that there may be
	// atoms or numbers that new rows would not have.
	empty int
	loose bool
	// denies says that some class is denied everything until the set is judged anew.
	denies bool
}

// row is what is said of some classes.
type row struct {
	key     string
	active  bitset
	classes map[*class]struct{}
	// said are what is said beside what any peer's, or like's, entries say.
	said []piece
	// like is the row that it refers to, whole says that others may refer to this
	// one. With neither, it is said directly, for each class.
	like  *row
	whole bool
	// likes counts the rows that refer to it, number is what it is called where its
	// entries are not those of one class, or else 0.
	likes  int
	number plan.Class
	// decided are its decisions, while others are compared with it.
	decided []int
	// work is what it took to find out how it is said.
	work int
}

// direct is how many entries are said of each class of a row, at most, before
// another way is looked for. Only tests set it.
var direct = 8

const (
	// An entry of what a row differs by may come on so many atoms that are active
	// for it.
	sharing = 4
	// tried is how many rows one is compared with before it is written down whole.
	tried = 4
)

// newRows returns the rows of a set about those classes.
func newRows(set *set, classes []*class) *rows {
	x := &rows{set: set, byKey: map[string]*row{}, of: map[*class]*row{}, named: map[plan.Class]*row{}}
	if set.destination != nil {
		x.ports = set.destination.Ports
	} else if set.direction == plan.Outgoing && len(set.names) > 0 {
		seen := map[NamedPort]bool{}
		for _, c := range classes {
			for _, p := range c.ports {
				if set.names[p.Name] && !seen[p] {
					seen[p] = true
					x.ports = append(x.ports, p)
				}
			}
		}
		slices.SortFunc(x.ports, compareNamedPorts)
	}
	x.grid = newGrid(set.rules, x.ports)
	x.byPeer = make([][]int, 64*len(set.mask))
	for p, rules := range set.uses {
		x.byPeer[p.id] = rules
	}
	for i, r := range set.rules {
		if r.Peers == nil {
			x.always = append(x.always, i)
		}
	}
	x.otherwise = x.active(nil)
	x.decided = x.grid.all(x.otherwise)
	x.work = x.grid.work
	for _, c := range classes {
		x.put(c, x.active(c))
	}
	x.shape() // as far as MaxWork lets it come
	return x
}

// active returns the atoms that are active for a class, nil for what is none.
func (x *rows) active(c *class) bitset {
	var active bitset
	add := func(rules []int) {
		for _, i := range rules {
			for a := x.grid.first[i]; a < x.grid.first[i+1]; a++ {
				if n := x.grid.atoms[a].named; n == nil || x.set.direction == plan.Incoming || c != nil && slices.Contains(c.ports, *n) {
					active = active.with(uint32(a))
				}
			}
		}
	}
	add(x.always)
	if c != nil {
		for id := range x.set.mask.common(c.in) {
			add(x.byPeer[id])
		}
	}
	return active
}

// put notes the row of a class for which these atoms are active, which may be a new
// one that has no shape yet.
func (x *rows) put(c *class, active bitset) *row {
	key := string(active.append(nil))
	r := x.byKey[key]
	if r == nil {
		r = &row{key: key, active: active, classes: map[*class]struct{}{}}
		x.byKey[key] = r
	}
	r.classes[c], x.of[c] = struct{}{}, r
	return r
}

// shape decides how each row is said.
func (x *rows) shape() {
	var whole []*row
	for _, key := range slices.Sorted(maps.Keys(x.byKey)) {
		r, before := x.byKey[key], x.grid.work
		if !x.sayDirectly(r, direct) && !x.sayLike(r, whole) {
			r.whole, r.decided = true, x.grid.all(r.active)
			whole = append(whole, r)
		}
		if x.charge(r, before); x.work > maxWork {
			return
		}
	}
	for _, r := range whole {
		r.decided = nil
	}
	// Names are of rows that are said for more than one class, in the same order.
	for _, key := range slices.Sorted(maps.Keys(x.byKey)) {
		if r := x.byKey[key]; r.gathers(0) {
			for r.number = r.preferredNumber(); x.named[r.number] != nil; r.number = nextRow(r.number) {
				x.crowded = true
			}
			x.named[r.number] = r
		}
	}
}

// charge notes the work that was done for a row since the grid had done so much.
func (x *rows) charge(r *row, since int) {
	r.work = x.grid.work - since
	x.work += r.work
}

// firstRow begins the classes that stand for rows.
const firstRow = plan.FirstOwnClass + plan.Class(classNumbers)

func (r *row) preferredNumber() plan.Class {
	return firstRow + plan.Class(hashOf([]byte(r.key))%uint64(classNumbers))
}

func nextRow(c plan.Class) plan.Class {
	return firstRow + plan.Class((uint32(c-firstRow)+1)%classNumbers)
}

// shared reports whether a row is said under a number of its own, and of its classes
// only that they are like it.
func (r *row) shared() bool { return r.number != 0 }

// gathers reports whether a row with so many more classes is to be shared.
func (r *row) gathers(more int) bool { return !r.direct() && len(r.classes)+more+r.likes > 1 }

// direct reports whether a row is said directly, silent whether nothing is then.
func (r *row) direct() bool { return !r.whole && r.like == nil }
func (r *row) silent() bool { return r.direct() && len(r.said) == 0 }

// sayDirectly says a row for each class anew, if that takes few entries.
func (x *rows) sayDirectly(r *row, most int) (ok bool) {
	if x.grid.decide(r.active, x.grid.rest()) == x.decided[x.grid.rest()] {
		r.said, ok = x.grid.difference(r.active, x.otherwise, x.decided, most)
	} else {
		r.said, ok = x.grid.whole(r.active, most)
	}
	return ok
}

// sayLike says what a row differs by from one that is written down whole, if
// that is little.
func (x *rows) sayLike(r *row, whole []*row) bool {
	rest := x.grid.decide(r.active, x.grid.rest())
	active := 0
	for _, w := range r.active {
		active += bits.OnesCount64(w)
	}
	type candidate struct {
		*row
		distance int
	}
	var candidates []candidate
	for _, o := range whole {
		if o.decided[x.grid.rest()] == rest {
			candidates = append(candidates, candidate{o, r.active.distance(o.active)})
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.distance - b.distance })
	most := max(direct, active/sharing)
	for _, c := range candidates[:min(len(candidates), tried)] {
		if said, ok := x.grid.difference(r.active, c.active, c.decided, most); ok {
			r.said, r.like, most = said, c.row, len(said)-1
		}
		if most < 0 {
			break
		}
	}
	if r.like == nil {
		return false
	}
	r.like.likes++
	return true
}

// write adds all of the set's verdicts.
func (x *rows) write(verdicts map[plan.VerdictKey]plan.Verdict) {
	all := make([]piece, 0, len(x.grid.cells)+1)
	list, _ := x.grid.whole(x.otherwise, len(x.grid.cells)+1)
	x.grid.write(append(all, list...), x.key(plan.AnyPeer), verdicts)
	for _, r := range x.byKey {
		if r.shared() {
			x.writeRow(r, r.number, verdicts)
		}
		for c := range r.classes {
			x.writeClass(c, r, verdicts)
		}
	}
}

func (x *rows) key(peer plan.Class) plan.VerdictKey {
	return plan.VerdictKey{Policy: x.set.name, Direction: x.set.direction, Peer: peer}
}

// writeClass adds what is said of a class itself: nothing where the wider one that
// it is within says it.
func (x *rows) writeClass(c *class, r *row, verdicts map[plan.VerdictKey]plan.Verdict) {
	if c.wider != nil {
		switch wider := x.of[c.wider]; {
		case wider == r, r.silent() && (wider == nil || wider.silent()), r.direct() && wider != nil && wider.direct() && slices.Equal(r.said, wider.said):
			return
		case r.silent():
			verdicts[plan.Rest(x.set.name, x.set.direction, c.number)] = plan.Verdict{Like: plan.AnyPeer}
			return
		}
	}
	if r.shared() {
		verdicts[plan.Rest(x.set.name, x.set.direction, c.number)] = plan.Verdict{Like: r.number}
	} else {
		x.writeRow(r, c.number, verdicts)
	}
}

// writeRow adds what is said of a row as that of a peer.
func (x *rows) writeRow(r *row, peer plan.Class, verdicts map[plan.VerdictKey]plan.Verdict) {
	said := r.said
	if r.whole {
		if r.shared() {
			said, _ = x.grid.whole(r.active, len(x.grid.cells)+1)
		} else {
			x.sayDirectly(r, len(x.grid.cells)+1)
			said = r.said
		}
	}
	x.grid.write(said, x.key(peer), verdicts)
	if r.like != nil {
		verdicts[plan.Rest(x.set.name, x.set.direction, peer)] = plan.Verdict{Like: r.like.number}
	}
}

// statements are what a set says of some peers, by their numbers, instead of what it said.
type statements map[plan.Class]map[plan.VerdictKey]plan.Verdict

// enter adds a class to those that something is said of. It returns false, and has
// done nothing, where what is said of others might have to follow from this one.
func (x *rows) enter(c *class, e statements) bool {
	if x.set.tells(c, x.ports) {
		return false
	}
	active := x.active(c)
	r := x.byKey[string(active.append(nil))]
	switch {
	case r == nil:
		r = x.put(c, active)
		before := x.grid.work
		if !x.sayDirectly(r, direct) {
			delete(x.byKey, r.key)
			delete(x.of, c)
			return false
		}
		x.charge(r, before)
	case !r.shared() && r.gathers(1):
		number := r.preferredNumber()
		if x.named[number] != nil {
			return false
		}
		r.number, x.named[number] = number, r
		x.put(c, active)
		x.say(r, e)
	default:
		if len(r.classes) == 0 {
			x.empty--
		}
		x.put(c, active)
	}
	x.sayClass(c, e)
	return true
}

// sayClass puts what is said of a class that has a row into statements.
func (x *rows) sayClass(c *class, e statements) {
	e[c.number] = map[plan.VerdictKey]plan.Verdict{}
	x.writeClass(c, x.of[c], e[c.number])
}

// inherit puts a class in the place of the one whose number it has, which is the same to
// the set.
func (x *rows) inherit(from, to *class) {
	if r := x.of[from]; r != nil {
		delete(x.of, from)
		delete(r.classes, from)
		x.of[to], r.classes[to] = r, struct{}{}
	}
}

// leave takes a class from those that something is said of. Its row stays where others
// may be like it.
func (x *rows) leave(c *class, e statements) {
	e[c.number] = nil
	r := x.of[c]
	if r == nil {
		return // nothing is said of it, or that it must wait
	}
	x.loose = x.loose || x.set.tells(c, nil)
	delete(x.of, c)
	delete(r.classes, c)
	switch {
	case r.direct():
		if len(r.classes) == 0 {
			delete(x.byKey, r.key)
			x.work -= r.work
		}
	case len(r.classes) == 0:
		x.empty++
	case r.shared() && !r.gathers(0):
		x.loose = x.loose || x.crowded
		delete(x.named, r.number)
		e[r.number] = nil
		r.number = 0
		x.say(r, e)
	}
}

// say puts what is said of a row and of its classes into statements.
func (x *rows) say(r *row, e statements) {
	if r.shared() {
		e[r.number] = map[plan.VerdictKey]plan.Verdict{}
		x.writeRow(r, r.number, e[r.number])
	}
	for c := range r.classes {
		x.sayClass(c, e)
	}
}

// exact reports whether what is said is what new rows would say, which may be less.
func (x *rows) exact() bool { return x.empty == 0 && !x.loose }
