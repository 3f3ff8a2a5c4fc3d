package policy

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// class is what the node's policies can tell of an address: pods' profile and
// addresses' zone, either nil. Its number is what the plan calls it.
type class struct {
	of     classKey
	number plan.Class
	// in are the ids of the peers that contain the class, sum that of their
	// hashes; ports are the named ports that its pods have as destinations.
	in    bitset
	sum   uint64
	ports []NamedPort
	// entries counts the memberships of it, of a wide class those within it.
	entries int
	// wider is the class of what is left of the peers without those that only few
	// have, nil where it is no other, or none. A wide class itself has a key.
	wider *class
	key   string
	// gone says that no membership needs it any more, and that it was forgotten. It may
	// have handed its number on to an heir.
	gone bool
	heir *class
}

type classKey struct {
	*profile
	*zone
}

// classes are those that memberships need.
type classes struct {
	all      map[classKey]*class
	byNumber map[plan.Class]*class
	wide     map[string]*class
	// fresh came, idle lost their last membership, since the last sweep.
	fresh, idle []*class
	// passed says of classes which one has the entries that left them since numbers were
	// last handed on.
	passed map[*class]passage
}

// passage is of so many entries to one class, nil where they went to several or where
// some went to none.
type passage struct {
	to      *class
	entries int
}

func (x *classes) get(p *profile, z *zone) *class {
	of := classKey{p, z}
	if c := x.all[of]; c != nil {
		return c
	}
	c := &class{of: of}
	if p != nil {
		c.in, c.sum, c.ports = p.in, p.sum, p.ports
	}
	if z != nil {
		c.in, c.sum = z.in.union(c.in), c.sum+z.sum
	}
	x.all[of] = c
	x.add(c)
	return c
}

func (x *classes) add(c *class) {
	for c.number = c.preferredNumber(); x.byNumber[c.number] != nil; c.number = nextClass(c.number) {
	}
	x.byNumber[c.number] = c
	x.fresh = append(x.fresh, c)
}

// widen gives a class the wide class that it is within.
func (x *classes) widen(c *class, peers *peers) {
	w := &class{ports: c.ports}
	for id := range c.in.common(peers.wide) {
		w.in = w.in.with(id)
		w.sum += peers.byID[id].hash
	}
	if c.in.distance(w.in) == 0 || len(w.in) == 0 && len(w.ports) == 0 {
		w = nil
	} else {
		w.key = string(appendPorts(w.in.append(nil), w.ports))
		if known := x.wide[w.key]; known != nil {
			w = known
		} else {
			x.wide[w.key] = w
			x.add(w)
		}
		w.entries++
	}
	if c.wider != nil {
		x.release(c.wider)
	}
	x.pass(c.wider, w)
	c.wider = w
}

// release takes an entry from a class.
func (x *classes) release(c *class) {
	if c.entries--; c.entries == 0 {
		x.idle = append(x.idle, c)
	}
}

// pass notes that entries pass from one class to another, either nil for none.
func (x *classes) pass(from, to *class) {
	if from == nil || from == to {
		return
	}
	p, known := x.passed[from]
	if known && p.to != to {
		to = nil
	}
	if x.passed == nil {
		x.passed = map[*class]passage{}
	}
	x.passed[from] = passage{to, p.entries + 1}
}

// handOn gives classes that came the numbers of those that went whose entries all passed
// to them; of several, that of the one which had the most. So where a rule is added that
// is about many addresses, their classes are others, and yet they keep their numbers.
//
// Where an address goes to another class than the number does, the number is not handed
// on. The kernel looks the class of a packet's address up first and what may be done with it
// next, and a change can come in between: the address would be given what the heir may.
func (x *classes) handOn(came, gone []*class) {
	heirs := map[*class]bool{}
	for _, c := range came {
		heirs[c] = !c.gone
	}
	for _, wide := range []bool{false, true} {
		var from []*class
		for _, c := range gone {
			if (c.key != "") != wide {
				continue
			}
			to := x.passed[c].to
			if to == nil {
				x.pass(c.wider, nil)
				continue
			}
			x.pass(c.wider, to.wider)
			if heirs[to] {
				from = append(from, c)
			}
		}
		slices.SortFunc(from, func(a, b *class) int {
			return cmp.Or(x.passed[b].entries-x.passed[a].entries, cmp.Compare(a.number, b.number))
		})
		for _, c := range from {
			to := x.passed[c].to
			if !heirs[to] || x.byNumber[c.number] != nil {
				continue
			}
			delete(x.byNumber, to.number)
			to.number, heirs[to] = c.number, false
			x.byNumber[to.number] = to
			c.heir = to
		}
	}
	x.passed = nil
}

// classNumbers is how many numbers there are for classes: the lower half of those that
// a node has for itself. The others are for rows, which no address is of.
const classNumbers = uint32(plan.MaxClass-plan.FirstOwnClass+1) / 2

// preferredNumber is made from what the class is, so that it mostly gets the same one
// when the agent starts anew: unless another has taken it, or it has that of one
// before it.
func (c *class) preferredNumber() plan.Class {
	var kind []byte
	if c.key != "" {
		kind = []byte("wide")
	}
	return plan.FirstOwnClass + plan.Class(mixed(c.sum+hashOf(appendPorts(kind, c.ports)))%uint64(classNumbers))
}

// hashOf is the same whenever it is asked.
func hashOf(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return mixed(h.Sum64())
}

// mixed has each bit of a number depend on all of another, as the last steps of
// SplitMix64 do: hashes of FNV-1a whose texts differ in little do so in few bits, and
// the sums of some are those of others.
func mixed(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func nextClass(c plan.Class) plan.Class {
	return plan.FirstOwnClass + plan.Class((uint32(c-plan.FirstOwnClass)+1)%classNumbers)
}

// sweep forgets the classes that no membership needs, and returns what came and
// went since the last call; what did both is in both.
func (x *classes) sweep() (came, gone []*class) {
	for i := 0; i < len(x.idle); i++ {
		c := x.idle[i]
		if c.entries > 0 || c.gone {
			continue
		}
		c.gone = true
		delete(x.byNumber, c.number)
		if c.key != "" {
			delete(x.wide, c.key)
		} else {
			delete(x.all, c.of)
		}
		if c.wider != nil {
			x.release(c.wider)
		}
		gone = append(gone, c)
	}
	came, x.fresh, x.idle = x.fresh, nil, nil
	return came, gone
}

// classOf returns the class that a prefix needs an entry for, nil where what is
// around it says enough, and where that is known from.
func (s *state) classOf(p netip.Prefix) (*class, string) {
	if p.IsSingleIP() {
		if m, origin := s.ownerOf(p.Addr()); m != nil && m.profile != nil {
			return s.classes.get(m.profile, s.prefixes.zoneOf(p)), origin
		}
	}
	at := s.prefixes.places.at[p]
	if at == nil || at.zone == s.prefixes.zoneAround(p) {
		return nil, ""
	}
	return s.classes.get(nil, at.zone), at.origin()
}

// ownerOf returns whose an address is, if it is a pod's that is known.
func (s *state) ownerOf(a netip.Addr) (*member, string) {
	if o, ok := s.owners.local[a]; ok {
		return o.member, "Pod " + o.pod.Name
	}
	if c, ok := s.owners.claims[a]; ok {
		return s.members.groups[c.tag], c.node.Origin
	}
	return nil, ""
}

// reclassing is of which class a prefix must be; of no class where it must have no
// entry.
type reclassing struct {
	key    plan.ClassKey
	class  *class
	origin string
}

// reclass finds the classes of prefixes anew, and returns what is to be
// entered when it is known which numbers they have.
func (s *state) reclass(affected []netip.Prefix) (all []reclassing) {
	done := make(map[netip.Prefix]bool, len(affected))
	for _, p := range affected {
		if done[p] {
			continue
		}
		done[p] = true
		r := reclassing{key: plan.ClassKey{Network: s.world.Network, Prefix: p}}
		r.class, r.origin = s.classOf(p)
		old, was := s.tables.Classes.Get(r.key)
		if r.class == nil && !was || r.class != nil && was && old == (plan.Membership{Class: r.class.number, Origin: r.origin}) {
			continue
		}
		all = append(all, r)
		if r.class != nil {
			r.class.entries++
		}
		if was {
			before := s.classes.byNumber[old.Class]
			s.classes.release(before)
			s.classes.pass(before, r.class)
		}
	}
	return all
}

// enter makes memberships what they must be.
func (s *state) enter(all []reclassing) {
	for _, r := range all {
		if r.class != nil {
			s.tables.Classes = s.tables.Classes.Set(r.key, plan.Membership{Class: r.class.number, Origin: r.origin})
		} else {
			s.tables.Classes = s.tables.Classes.Delete(r.key)
		}
	}
}

// classChanges are the classes that came and went, and those of the others that are
// within another wide one than before. What did both came and went.
type classChanges struct {
	came, gone []*class
	rewidened  []rewidening
}

// rewidening is of a class that was within another, nil for none.
type rewidening struct{ class, before *class }

// settleClasses forgets the classes that no membership needs, says which wide class
// each is within and which number it has, and returns what changed.
func (s *state) settleClasses() (changes classChanges) {
	all := s.peers.rewidened && (s.rewidens || !s.queue.gradual)
	if s.peers.rewidened && !all {
		s.queue.add(debt{rewiden: true})
	}
	s.rewidens = false
	fresh := map[*class]bool{}
	for _, c := range slices.Clone(s.classes.fresh) {
		fresh[c] = true
		s.classes.widen(c, &s.peers)
	}
	if all {
		s.peers.rewidened = false
		for _, c := range s.classes.all {
			// What sets have of a class that goes they have of it as it was.
			if fresh[c] || c.entries == 0 {
				continue
			}
			before := c.wider
			if s.classes.widen(c, &s.peers); c.wider != before {
				changes.rewidened = append(changes.rewidened, rewidening{c, before})
			}
		}
	}
	came, gone := s.classes.sweep()
	s.classes.handOn(came, gone)
	// What is said of a class depends on what is said of the wider one.
	slices.SortStableFunc(came, func(a, b *class) int { return strings.Compare(b.key, a.key) })
	for _, c := range gone {
		s.tables.Within = s.tables.Within.Delete(plan.WithinKey{Class: c.number})
	}
	changes.came, changes.gone = came, gone
	changed := slices.Clone(came)
	for _, r := range changes.rewidened {
		changed = append(changed, r.class)
	}
	for _, c := range changed {
		switch {
		case c.gone:
		case c.wider != nil:
			s.tables.Within = s.tables.Within.Set(plan.WithinKey{Class: c.number}, plan.Within{Class: c.wider.number})
		default:
			s.tables.Within = s.tables.Within.Delete(plan.WithinKey{Class: c.number})
		}
	}
	return changes
}
