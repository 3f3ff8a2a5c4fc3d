package linux

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// setKey is a set of backends, of one family.
type setKey struct {
	name string
	is4  bool
}

// usage is how frontends use a set: from a side, remembering clients for some time, where 0 means not at
// all, and guarded, where they are for some clients alone.
type usage struct {
	side     plan.Scope
	remember time.Duration
	guarded  bool
}

func (u usage) compare(o usage) int {
	guarded := func(u usage) int {
		if u.guarded {
			return 1
		}
		return 0
	}
	return cmp.Or(strings.Compare(string(u.side), string(o.side)), cmp.Compare(u.remember, o.remember), cmp.Compare(guarded(u), guarded(o)))
}

// served is what the service table has of a set.
type served struct {
	slots []netip.AddrPort
	// uses counts the frontends that use the set, by how they do, in order. They are few, and
	// never changed in place: most sets are used alike, and share them.
	uses []used
}

// used is a way in which a set is used, and how many frontends use it so.
type used struct {
	usage
	frontends int
}

// services compiles the service table, and knows of what is in it what is not a value of
// the plan alone.
type services struct {
	stamps  Stamps
	present bool
	// empty is the table with its sets, which are empty.
	empty *ruleset
	sets  map[setKey]*served
	// alike are the uses of sets that one frontend uses in each of one or two ways, each once.
	alike map[[2]used][]used
	// draws are the chains that sets need and the usual ones, and selves all backends: those that are
	// drained, too, as they keep the connections that they have.
	draws reconcile.Ledger[draw, struct{}]
	// ways are the chains by how long clients are remembered.
	ways   reconcile.Ledger[way, struct{}]
	selves reconcile.Ledger[netip.AddrPort, struct{}]
	// guarded are the frontends that are for some clients alone, by the names of the lists of these.
	guarded map[string]map[plan.ServiceKey]bool
	// herePorts are those of what the node itself answers.
	herePorts reconcile.Ledger[uint16, struct{}]
	// peers are the addresses from where a route leads to a peer, by what was from.
	peers [2]nft.Elements
	from  *sources
	// shutNow are the elements of what keeps out all else than what the node itself answers, by
	// set. They are more than the plan has while what leads there goes; see here.go.
	shutNow map[string]nft.Elements
	// gone are counts that end once what was compiled is written, and strays says that there may
	// be others of what is not in the plan.
	gone   goneCounts
	strays bool
}

// digestOfName is what the table calls a set, or those whom a frontend is for.
func digestOfName(name string) string {
	d := sha256.Sum256([]byte(name))
	return string(d[:16])
}

// lastWord is that of a digest.
func lastWord(digest string) string { return digest[len(digest)-4:] }

// word is a number as registers have it.
func word(n uint32) string { return string(nft.HostEndian(n)) }

// blank is a word that is not used.
const blank = "\x00\x00\x00\x00"

// portWord is a port as a part of a key or of data.
func portWord(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

func atKey(at netip.AddrPort) string { return string(at.Addr().AsSlice()) + portWord(at.Port()) }

// usualDurations are those for which clients are remembered to the second, in seconds.
var usualDurations = []int{60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 5400, 7200, 10800, 14400, 21600, 28800, 43200, 64800, 86400}

// durationBits is how many bits others have between their first and their last one. There is a chain for each duration that
// is in use, and users write any number of them: so others are rounded up, by a sixteenth at most.
const durationBits = 5

// remembered is for how long a frontend's clients are remembered.
func remembered(s plan.Service) time.Duration {
	seconds := int((s.Affinity + time.Second - 1) / time.Second)
	step := 1 << max(bits.Len(uint(seconds))-durationBits, 0)
	rounded := (seconds + step - 1) / step * step
	if i, _ := slices.BinarySearch(usualDurations, seconds); i < len(usualDurations) {
		rounded = min(rounded, usualDurations[i])
	}
	return min(time.Duration(rounded)*time.Second, maxRemembered)
}

// kindOf is what a frontend's element says of it.
func kindOf(k plan.ServiceKey, s plan.Service) uint32 {
	kind := uint32(remembered(s)/time.Second) << kindBits
	if s.Otherwise == plan.Silence || s.Here {
		kind |= kindSilent
	}
	if s.Masquerade&plan.FromEndpoints != 0 {
		kind |= kindMasqueradesEndpoints
	}
	if s.Masquerade&plan.FromStrangers != 0 {
		kind |= kindMasqueradesStrangers
	}
	if s.Sources != "" {
		kind |= kindGuarded
	}
	if k.Address.IsLoopback() {
		kind |= kindLoopback
	}
	if kind >= 1<<kindBits {
		kind |= kindRemembers
	}
	return kind
}

// sidesOf are the sides for which a frontend holds.
func sidesOf(k plan.ServiceKey) []plan.Scope {
	if k.From == plan.Anywhere {
		return bothSides
	}
	return []plan.Scope{k.From}
}

// servedAtLoopback returns whether an address is a backend of a frontend at one of the node's
// loopback addresses.
func servedAtLoopback(p *plan.Plan) func(netip.Addr) bool {
	served := make(map[netip.Addr]bool)
	for k, s := range p.Services.From(plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.AddrFrom4([4]byte{127})}) {
		if k.Network != plan.DefaultNetwork || !k.Address.IsLoopback() {
			break
		}
		for b := range p.BackendsOf(k.Network, s.Set) {
			served[b.Address] = true
		}
	}
	return func(a netip.Addr) bool { return served[a] }
}

// answering yields the endpoints of a plan that are served at a loopback address, where one
// has come to be.
func answering(p *plan.Plan, changes plan.Diff) iter.Seq2[plan.EndpointKey, plan.Endpoint] {
	return func(yield func(plan.EndpointKey, plan.Endpoint) bool) {
		if !slices.ContainsFunc(changes.Services, func(c plan.Change[plan.ServiceKey, plan.Service]) bool {
			return c.New != nil && c.Key.Address.IsLoopback()
		}) {
			return
		}
		served := servedAtLoopback(p)
		for k, e := range p.Endpoints.All() {
			if slices.ContainsFunc(e.Addresses, served) && !yield(k, e) {
				return
			}
		}
	}
}

// frontendElements puts what the table has of a frontend, which is for those of some lists.
func frontendElements(k plan.ServiceKey, s plan.Service, of lists, put func(set string, e nft.Element, v nft.Value)) {
	is4 := k.Address.Is4()
	address := string(k.Address.AsSlice())
	for _, side := range sidesOf(k) {
		if k.Protocol == plan.AnyProtocol {
			put(sideOf(restPrefix, side, is4), nft.Element{Key: address}, nft.Value{Data: ownerOf(s) + word(kindOf(k, s))})
			continue
		}
		put(sideOf(frontendsPrefix, side, is4), nft.Element{Key: frontendKey(k)}, nft.Value{Data: ownerOf(s) + word(kindOf(k, s)) + digestOfName(s.Set)})
	}
	guardElements(k, s, of, put)
	if s.Here {
		hereElements(k, put)
	}
}

// ownerOf is a word by which who reads the table tells whose frontend an element is, so that counts end
// that are another's.
func ownerOf(s plan.Service) string { return digestOfName(s.Origin)[:4] }

// ownerIn is that of an element of frontends or of rest; empty where it says none.
func ownerIn(v nft.Value) string { return v.Data[:min(len(v.Data), 4)] }

// frontendKey is a frontend with a port as an element.
func frontendKey(k plan.ServiceKey) string {
	return string(k.Address.AsSlice()) + string([]byte{byte(k.Protocol), 0, 0, 0}) + portWord(k.Port)
}

// putElement is what to do with an element of a set.
type putElement func(set string, e nft.Element, v nft.Value)

// becomes tells what the table has of a set, and has no more once it is another: what is
// the same is in neither.
func (s *served) becomes(k setKey, next *served, remove, add putElement) {
	digest := digestOfName(k.name)
	of := func(prefix string) string { return prefix + suffix(k.is4) }
	size := func(n int, put putElement) {
		if n > 0 {
			put(of(sizesPrefix), nft.Element{Key: digest}, nft.Value{Data: blank + word(uint32(n))})
		}
	}
	if len(s.slots) != len(next.slots) {
		size(len(s.slots), remove)
		size(len(next.slots), add)
	}
	slot := func(i int, at netip.AddrPort, put putElement) {
		put(of(slotsPrefix), nft.Element{Key: digest + word(uint32(i))}, nft.Value{Data: blank + lastWord(digest) + atKey(at)})
	}
	for i := range max(len(s.slots), len(next.slots)) {
		if i < len(s.slots) && i < len(next.slots) && s.slots[i] == next.slots[i] {
			continue
		}
		if i < len(s.slots) {
			slot(i, s.slots[i], remove)
		}
		if i < len(next.slots) {
			slot(i, next.slots[i], add)
		}
	}
}

// draws are the chains that the set needs.
func (s *served) draws(is4 bool) (all []draw) {
	if len(s.slots) > 0 {
		for _, u := range s.uses {
			all = append(all, draw{u.side, u.remember > 0, u.guarded, is4, uint32(len(s.slots))})
		}
	}
	return all
}

// ways are the chains that remember clients of the set. They are there whether it has slots or not, as they cost
// much when they come: who has frontends that name a new duration pays for that, and endpoints, which come and go as often as
// a pod likes, change nothing of it.
func (s *served) ways(is4 bool) (all []way) {
	for _, u := range s.uses {
		if u.remember > 0 {
			all = append(all, way{u.side, u.remember, is4})
		}
	}
	return all
}

// set returns what is known of a set, which begins here.
func (s *services) set(k setKey) *served {
	if s.sets[k] == nil {
		s.sets[k] = &served{}
	}
	return s.sets[k]
}

// use counts a frontend among those that use its set.
func (s *services) use(k plan.ServiceKey, of plan.Service, by int) {
	if of.Set == "" {
		return
	}
	set := s.set(setKey{of.Set, k.Address.Is4()})
	uses := slices.Clone(set.uses)
	for _, side := range sidesOf(k) {
		u := usage{side, remembered(of), of.Sources != ""}
		i, there := slices.BinarySearchFunc(uses, u, func(a used, b usage) int { return a.compare(b) })
		if !there {
			uses = slices.Insert(uses, i, used{usage: u})
		}
		if uses[i].frontends += by; uses[i].frontends == 0 {
			uses = slices.Delete(uses, i, i+1)
		}
	}
	set.uses = s.shared(uses)
}

// shared returns the uses that other sets have, where these are the same.
func (s *services) shared(uses []used) []used {
	var key [2]used
	if len(uses) == 0 || len(uses) > len(key) || slices.ContainsFunc(uses, func(u used) bool { return u.frontends != 1 }) {
		return uses // seldom, and there are any number of others
	}
	copy(key[:], uses)
	if s.alike[key] == nil {
		s.alike[key] = uses
	}
	return s.alike[key]
}

// ask has the ledgers hold the chains that a set needs that becomes another, and no more those that it needed.
func (s *services) ask(k setKey, before, now *served) {
	for _, d := range before.draws(k.is4) {
		s.draws.Remove(d, struct{}{})
	}
	for _, d := range now.draws(k.is4) {
		s.draws.Add(d, struct{}{})
	}
	for _, w := range before.ways(k.is4) {
		s.ways.Remove(w, struct{}{})
	}
	for _, w := range now.ways(k.is4) {
		s.ways.Add(w, struct{}{})
	}
}

// compare orders draws.
func (d draw) compare(o draw) int { return strings.Compare(d.name(), o.name()) }

// compare orders ways.
func (w way) compare(o way) int { return strings.Compare(w.name(), o.name()) }

// addressOf is where a backend is.
func addressOf(k plan.BackendKey) netip.AddrPort { return netip.AddrPortFrom(k.Address, k.Port) }

// isRemembered reports whether clients may be remembered to have a backend; nil is none.
func isRemembered(b *plan.Backend) bool { return b != nil && b.Affinity && b.Weight > 0 }

func servesElement(k plan.BackendKey) (set string, e nft.Element, v nft.Value) {
	return servesPrefix + suffix(k.Address.Is4()), nft.Element{Key: digestOfName(k.Set) + atKey(addressOf(k))}, nft.Value{}
}

func selfElement(at netip.AddrPort) (set string, e nft.Element, v nft.Value) {
	return selvesPrefix + suffix(at.Addr().Is4()), nft.Element{Key: string(at.Addr().AsSlice()) + atKey(at)}, nft.Value{}
}

// setsOf are all sets of which a plan speaks.
func setsOf(p *plan.Plan) map[setKey]bool {
	all := map[setKey]bool{}
	for k := range p.Backends.All() {
		all[setKey{k.Set, k.Address.Is4()}] = true
	}
	return all
}

// compileServices returns all of the table for a plan; nothing where it has no frontend.
// have is what the kernel holds of it, whose slots stay whose they are.
func compileServices(stamps Stamps, p *plan.Plan, from *sources, have nft.Content) (services, *ruleset) {
	s := services{stamps: stamps, sets: map[setKey]*served{}, alike: map[[2]used][]used{}, guarded: map[string]map[plan.ServiceKey]bool{}, gone: goneCounts{}}
	if p.Services.Len() == 0 {
		return s, newRuleset(stamps, stamps.ServiceTable)
	}
	s.present = true
	r := serviceRules(stamps, p)
	s.empty = newRuleset(stamps, r.Name)
	for name, set := range r.Sets {
		s.empty.Set(name, *set)
	}
	r.makeRoom(p)
	put := func(set string, e nft.Element, v nft.Value) { r.Sets[set].Elements[e] = v }
	of := listsOf(p)
	for k, one := range p.Services.All() {
		frontendElements(k, one, of, put)
		s.guard(k, one, true)
		s.use(k, one, 1)
		if one.Here {
			s.herePorts.Add(k.Port, struct{}{})
		}
	}
	// What others have put there goes with the next letIn.
	s.shutNow = shutBy(answeredBy(p))
	for set, elements := range s.shutNow {
		maps.Copy(elements, have.Elements[set])
		r.Sets[set].Elements = maps.Clone(elements)
	}
	names := map[string]bool{}
	for k := range p.Sources.All() {
		names[k.Name] = true
	}
	for name := range names {
		for _, is4 := range interval.Families {
			for e := range of.get(name, is4).elements {
				put(admittedPrefix+suffix(is4), e, nft.Value{})
			}
		}
	}
	before := slotsIn(have)
	for k := range setsOf(p) {
		s.set(k)
	}
	for k, one := range s.sets {
		one.slots = assignSlots(before[setKey{digestOfName(k.name), k.is4}], backendsOf(p, k))
		none := &served{}
		none.becomes(k, one, nil, put)
		s.ask(k, none, one)
	}
	for _, d := range usualDraws() {
		s.draws.Add(d, struct{}{})
	}
	for w := range s.ways.Now {
		r.Chains[w.name()] = w.chain()
		w.elements(put)
	}
	for d := range s.draws.Now {
		r.Chains[d.name()], r.Chains[d.asNodeName()] = d.chain(), d.asNodeChain()
		d.elements(put)
	}
	for k, b := range p.Backends.All() {
		s.selves.Add(addressOf(k), struct{}{})
		if isRemembered(&b) {
			put(servesElement(k))
		}
	}
	for a := range s.selves.Now {
		put(selfElement(a))
	}
	for port := range s.herePorts.Now {
		put(herePort(port))
	}
	s.draws.Begin()
	s.ways.Begin()
	s.selves.Begin()
	s.herePorts.Begin()
	s.from = from
	for i, is4 := range interval.Families {
		s.peers[i] = peersElements(from, is4)
		maps.Copy(r.Sets[toPeersPrefix+suffix(is4)].Elements, s.peers[i])
	}
	s.gone.disowned(have, r.Table)
	return s, r
}

// makeRoom makes room in the sets that have most of what there is of Services, so that they need
// not grow.
func (r *ruleset) makeRoom(p *plan.Plan) {
	sizes := map[string]int{}
	for k := range p.Services.All() {
		if is4 := k.Address.Is4(); k.Protocol == plan.AnyProtocol {
			sizes[restPrefix+suffix(is4)]++
		} else {
			sizes[frontendsPrefix+suffix(is4)]++
		}
	}
	for k := range p.Backends.All() {
		sizes[slotsPrefix+suffix(k.Address.Is4())]++
	}
	for _, is4 := range interval.Families {
		for _, side := range bothSides {
			for _, prefix := range []string{frontendsPrefix, restPrefix} {
				r.Sets[sideOf(prefix, side, is4)].Elements = make(nft.Elements, sizes[prefix+suffix(is4)])
			}
		}
		r.Sets[slotsPrefix+suffix(is4)].Elements = make(nft.Elements, sizes[slotsPrefix+suffix(is4)])
	}
}

// peersElements are the ranges of addresses from where a route leads to a peer.
func peersElements(from *sources, is4 bool) nft.Elements {
	e := nft.Elements{}
	for _, i := range from.leads[is4] {
		if i.Value {
			e.AddIntervals([]interval.Range[nft.Value]{{First: i.First, Last: i.Last}})
		}
	}
	return e
}

// mostSlots is how many of a set's are read. What others put there may say any number.
const mostSlots = 1 << 20

// slotsIn reads, from what the kernel holds, whose the slots of sets are, which are called
// by their digests here.
func slotsIn(have nft.Content) map[setKey][]netip.AddrPort {
	all := map[setKey][]netip.AddrPort{}
	for _, is4 := range interval.Families {
		width := int(4 * words4(is4))
		for _, e := range have.Elements[slotsPrefix+suffix(is4)].Keys() {
			data := have.Elements[slotsPrefix+suffix(is4)][e].Data
			if len(e.Key) != 20 || len(data) < 8+width+2 {
				continue
			}
			k, slot := setKey{e.Key[:16], is4}, binary.NativeEndian.Uint32([]byte(e.Key[16:]))
			a, _ := netip.AddrFromSlice([]byte(data[8 : 8+width]))
			if slot < mostSlots {
				if lacks := int(slot) + 1 - len(all[k]); lacks > 0 {
					all[k] = append(all[k], make([]netip.AddrPort, lacks)...)
				}
				all[k][slot] = netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(data[8+width:])))
			}
		}
	}
	return all
}

// steps lead from what the table has of one plan to what it has of another.
type steps struct {
	// before changes nothing for packets, and noticed is for the transaction that changes policies.
	before, noticed nft.Edit
	// behind are for one behind that.
	behind []nft.Edit
}

// elements is how many there are that come, go or change.
func (s steps) elements() (n int) {
	for _, e := range append([]nft.Edit{s.before, s.noticed}, s.behind...) {
		for _, c := range e.Changes {
			n += len(c.Elements)
		}
	}
	return n
}

// advance compiles what leads from one plan to the next, of which the table has the first:
// changes of elements, and the chains that come and go. It costs in proportion to the
// changes, and to the sets and lists that these are about.
func (s *services) advance(p, q *plan.Plan, changes plan.Diff, from *sources) steps {
	edit, was, is := setEdits{}, listsOf(p), listsOf(q)
	touched := map[setKey]bool{}
	touch := func(k plan.ServiceKey, of plan.Service) {
		if of.Set != "" {
			touched[setKey{of.Set, k.Address.Is4()}] = true
		}
	}
	for _, c := range changes.Services {
		if c.Old != nil {
			frontendElements(c.Key, *c.Old, was, edit.remove)
			touch(c.Key, *c.Old)
		}
	}
	for _, c := range changes.Services {
		if c.New != nil {
			frontendElements(c.Key, *c.New, is, edit.add)
			touch(c.Key, *c.New)
		}
	}
	come, gone := s.relist(was, is, changes.Sources, edit)
	for _, c := range changes.Backends {
		touched[setKey{c.Key.Set, c.Key.Address.Is4()}] = true
	}
	for _, c := range changes.Services {
		if c.Old != nil && (c.New == nil || c.New.Origin != c.Old.Origin) {
			s.gone.frontend(c.Key)
		}
	}
	for _, c := range changes.Backends {
		if c.New == nil {
			s.gone.backend(c.Key)
			s.selves.Remove(addressOf(c.Key), struct{}{})
		}
		if c.Old == nil {
			s.selves.Add(addressOf(c.Key), struct{}{})
		}
		if is := isRemembered(c.New); is != isRemembered(c.Old) {
			edit.put(is)(servesElement(c.Key))
		}
	}
	before := make(map[setKey]*served, len(touched))
	for k := range touched {
		was := *s.set(k)
		before[k] = &was
	}
	for _, c := range changes.Services {
		if c.Old != nil {
			s.use(c.Key, *c.Old, -1)
			s.guard(c.Key, *c.Old, false)
			if c.Old.Here {
				s.herePorts.Remove(c.Key.Port, struct{}{})
			}
		}
	}
	for _, c := range changes.Services {
		if c.New != nil {
			s.use(c.Key, *c.New, 1)
			s.guard(c.Key, *c.New, true)
			if c.New.Here {
				s.herePorts.Add(c.Key.Port, struct{}{})
			}
		}
	}
	for k, was := range before {
		one := s.set(k)
		one.slots = assignSlots(was.slots, backendsOf(q, k))
		was.becomes(k, one, edit.remove, edit.add)
		s.ask(k, was, one)
	}
	for k := range touched {
		if one := s.sets[k]; len(one.slots)+len(one.uses) == 0 {
			delete(s.sets, k)
		}
	}
	r := &nft.Table{Name: s.empty.Name, Sets: s.empty.Sets, Chains: map[string]*nft.Chain{}}
	done := nft.Edit{Table: r, Changes: map[string]nft.Change{}}
	for _, c := range s.ways.Changes(way.compare) {
		w := c.Key
		w.elements(edit.put(c.New != nil))
		if c.New != nil {
			r.Chains[w.name()] = w.chain()
			done.Come = append(done.Come, w.name())
		} else {
			done.Go = append(done.Go, w.name())
		}
	}
	for _, c := range s.draws.Changes(draw.compare) {
		d := c.Key
		d.elements(edit.put(c.New != nil))
		if c.New != nil {
			r.Chains[d.name()], r.Chains[d.asNodeName()] = d.chain(), d.asNodeChain()
			done.Come = append(done.Come, d.name(), d.asNodeName())
		} else {
			done.Go = append(done.Go, d.asNodeName(), d.name())
		}
	}
	for _, c := range s.selves.Changes(netip.AddrPort.Compare) {
		edit.put(c.New != nil)(selfElement(c.Key))
	}
	for _, c := range s.herePorts.Changes(cmp.Compare) {
		edit.put(c.New != nil)(herePort(c.Key))
	}
	maps.Copy(done.Changes, edit.changes())
	if s.from != from {
		s.from = from
		for i, is4 := range interval.Families {
			if next := peersElements(from, is4); !maps.Equal(s.peers[i], next) {
				s.peers[i] = next
				done.Changes[toPeersPrefix+suffix(is4)] = nft.Change{Whole: next}
			}
		}
	}
	return steps{nft.Edit{Table: r, Changes: come}, done, []nft.Edit{{Table: r, Changes: gone}}}
}

// sync reads the table, and writes where it differs from what a plan needs, with edits of other tables
// in the transaction that packets notice. It returns what each of its transactions changed.
func (s *services) sync(p *plan.Plan, from *sources, also ...nft.Edit) (done [][]string, err error) {
	have, err := reading(s.stamps.ServiceTable)
	if err != nil {
		return nil, err
	}
	state, want := compileServices(s.stamps, p, from, have)
	if !have.Exists() && !want.Empty() {
		done = [][]string{{"write table inet " + want.Name}, {"have packets meet table inet " + want.Name}}
		err = nft.Replace(want.Table, false, nil, also...)
	} else {
		var lines []string
		_, lines, err = nft.Write(have, want.Table, also...)
		done = transactions(lines)
	}
	if err != nil {
		return nil, err
	}
	state.gone.add(s.gone)
	state.strays = have.Exists()
	*s = state
	return done, nil
}

// ended returns which counts end with what is written now, each once.
func (s *services) ended() (gone goneCounts, strays bool) {
	gone, strays = s.gone, s.strays
	s.gone, s.strays = goneCounts{}, false
	return gone, strays
}

// concerns reports whether a change may have to do with the service table.
func (s *services) concerns(changes plan.Diff) bool {
	return len(changes.Services)+len(changes.Backends)+len(changes.Sources) > 0 || s.present && len(changes.Routes)+len(changes.Peers) > 0
}

// update returns what leads from one plan to the next. It returns false where the table is to be read
// instead.
func (s *services) update(p, q *plan.Plan, changes plan.Diff, from *sources) (next steps, ok bool) {
	switch {
	case (q.Services.Len() > 0) != s.present:
		return next, false
	case !s.present || !s.concerns(changes):
		return next, true
	case !movesHere(changes):
		return s.advance(p, q, changes, from), true
	}
	m := meanwhile(p, q, changes)
	next = s.advance(p, m, p.Diff(m), from)
	next.behind = append(next.behind, s.advance(m, q, m.Diff(q), from).noticed) // of lists it has the same
	return next, true
}
