// Package election decides which of several nodes on a link answers for an address, by what
// they say to each other there. It is a pure state machine: what it is told are candidacies,
// heartbeats, conflicts and the time, and what it asks for are frames to send and addresses to
// answer for. No registry is in it, so a node takes over from a dead one while API server and
// etcd are away.
//
// It goes as VRRP does (RFC 5798), for each address by itself:
//
//   - The owner of an address says so Heartbeat by Heartbeat, for all of its addresses at once.
//     Nobody else says anything.
//   - A candidate that has not heard of an owner for Silence waits as much longer as there are
//     candidates before it, says that it claims the address, asks on the link whether somebody
//     else has it (RFC 5227), and owns it. Who hears of an earlier claim waits anew.
//   - Of two owners that hear each other the better stays, by grade, then by a hash of node and
//     address, then by name, and the other one stops at once. That is so for claims, too.
//   - An owner stays owner when a better hash comes (back): moving an address costs connections.
//     A better grade takes it over, as a worse one is about to lose it.
//   - Who was still for longer than Silence itself, as it got no processor, listens first, and neither
//     answers for its addresses nor tells the link of them: whoever has one by now keeps it.
//   - An owner that ends for a moment says that it pauses. Others then wait for Hold.
//   - Of two owners of which one alone hears the other, that one stops after Deaf, as the other
//     cannot know that it is to. Where neither does, who hears both tells them of the better.
//   - A stranger, who is no node, may have an address all the same. Who meets it, as one that owns the address or is
//     about to, leaves the address alone for Refused, and says so: those that know of no other owner leave it alone, too. Who
//     claims it meanwhile, as it was not there, is told. An owner that keeps it for Defend shows that the stranger is gone.
//   - Two owners that do not hear each other's heartbeats are strangers to each other. The one with the lower Ethernet address
//     defends the address for longer, and of two that ask for it at a time the other one waits anew, so that one has it. They meet
//     within Repeat, also where both were cut off from each other before: each tells the link of its addresses again and again.
//     Who has waited so twice within Calm goes on: who takes an address has it by then, and answers; who only asks gets an answer.
//   - Who cannot serve an address that it owns leaves it, and does not claim it for Refused, whoever has it meanwhile.
//   - Who lost an address again and again within Calm waits longer each time before it takes it
//     over, Refused at most.
//
// Start reading at Machine; stranger.go has what becomes of an address that somebody else has, or that the node cannot serve.
package election

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weftnet/weft/announce/wire"
)

// Timing is how long things take.
type Timing struct {
	// Heartbeat is how often an owner says that it is one.
	Heartbeat time.Duration
	// Silence is how long a candidate hears nothing of an owner before it takes that for gone,
	// and Skew how much longer it waits for each candidate before it, of whom MaxBefore count.
	Silence, Skew time.Duration
	// Probe is between two questions whether somebody else has an address, of which Probes are
	// asked, and behind the last one.
	Probe  time.Duration
	Probes int
	// Hold is how long an owner may pause.
	Hold time.Duration
	// Defend is in how long a second conflict with somebody who is no node has an owner stop
	// (RFC 5227, section 2.4 (b)), and Refused how long it leaves the address alone then. What comes within Burst of when the
	// address was defended counts as the same conflict: who announces an address does so in several frames, and has not heard
	// the defence yet.
	Defend, Refused, Burst time.Duration
	// Deaf is for how long another owner goes on that is to stop before it counts as one that
	// does not hear the node.
	Deaf time.Duration
	// Calm is behind what time it is forgotten that nodes did not agree.
	Calm time.Duration
	// Echo is the least time between two heartbeats beside those that are due.
	Echo time.Duration
	// Repeat is how often an owner tells the link again of an address, 0 for never. RFC 5227 asks for no more than is told at first; but
	// where heartbeats do not pass, two owners that were cut off from each other hear nothing else of each other.
	// keepalived has it for the same reason (garp_master_refresh).
	Repeat time.Duration
}

// MaxBefore is how many candidates a candidate waits for, at most.
const MaxBefore = 8

// Default is the Timing of nodes. An owner that dies is replaced after 0.9 s and 0.3 s for the
// questions, and 0.1 s more for each candidate that died with it. They all must have the same:
// an owner whose Heartbeat were longer than others' Silence would be taken for dead.
var Default = Timing{
	Heartbeat: 300 * time.Millisecond, Silence: 900 * time.Millisecond, Skew: 100 * time.Millisecond,
	Probe: 100 * time.Millisecond, Probes: 2, Hold: 5 * time.Second,
	Defend: 10 * time.Second, Refused: 30 * time.Second, Burst: 500 * time.Millisecond, Deaf: 1800 * time.Millisecond, Calm: time.Minute, Echo: 50 * time.Millisecond,
	Repeat: 30 * time.Second,
}

// A node that begins to ask for many addresses at a time does so in portions, which it spreads over the time between two questions, so
// that neither it nor who answers loses any. There are mostPortions at most, and each has leastPortion addresses at least.
const (
	leastPortion = 64
	mostPortions = 20
)

// announcements are when an owner tells the link of an address, from when it took it over: some
// that should hear it miss the first.
var announcements = [...]time.Duration{0, 300 * time.Millisecond, time.Second, 3 * time.Second}

// Candidacy is that a node may answer for an address.
type Candidacy struct {
	// Grade is how well it can, 0 best.
	Grade uint8
	// Before are the first MaxBefore of the candidates that come before the node.
	Before []string
}

// Equal reports whether they are the same.
func (c Candidacy) Equal(o Candidacy) bool {
	return c.Grade == o.Grade && slices.Equal(c.Before, o.Before)
}

// Score orders the candidates of an address that have the same grade, the least first. Each
// node is the first for its share of addresses, and the others' do not change when one comes or
// goes (rendezvous hashing).
func Score(address netip.Addr, node string) uint64 {
	// FNV-1a, whose last bytes alone leave what it says close together, and so mixed.
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	x := uint64(offset)
	for _, c := range address.As16() {
		x = (x ^ uint64(c)) * prime
	}
	for i := range len(node) {
		x = (x ^ uint64(node[i])) * prime
	}
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// phase is what a candidate does about an address.
type phase uint8

const (
	waiting phase = iota // for an owner to be silent
	probing              // whether somebody else has it
	owning
	refusing // as somebody else has it who is no node
)

// seat is what a candidate knows of an address. All times are since some moment before.
type seat struct {
	Candidacy
	phase phase
	// due is when the phase comes to its next step.
	due time.Duration
	// probes are how many questions were asked. early is how much sooner each is asked than for the last of the addresses that
	// began at the same time.
	probes int
	early  time.Duration
	// owner is who said last that it owns or claims the address, "" for nobody, and worse says
	// that its grade is worse than the node's own.
	owner string
	worse bool
	// grade is the owner's, heard when it said last that it owns the address, and owned whether
	// it did, without another word since the moment from.
	grade       uint8
	heard, from time.Duration
	owned       bool
	// answered is how often a peer said, as the node asked, that it has the address, since a
	// heartbeat spoke of it.
	answered int
	// refused says that somebody else had it when the node was about to own it last.
	refused bool
	// alone is until when the node does not claim the address, as a stranger has it: whoever else owned it meanwhile,
	// unless one kept it for Defend. tells says that it tells who claims it meanwhile.
	alone time.Duration
	tells bool
	// unable is until when the node does not claim the address as it could not serve it, whoever owned it meanwhile.
	unable time.Duration
	// yields are how often the node waited anew, within Calm, as a host asked for the address, the last time at yieldedAt.
	yields    int
	yieldedAt time.Duration
	// metAt is when the node itself met a stranger last, and hasMet whether it ever did.
	metAt  time.Duration
	hasMet bool
	// told is how many announcements were made, and since is when the first was.
	told  int
	since time.Duration
	// turn is when, within each Repeat, the link is told of it again.
	turn time.Duration
	// defences are how often the address was defended, each time within Defend of the one before, of which the last was at defended.
	defences int
	defended time.Duration
	discord
}

// Machine is what one node does on one link. It is a value: Clone makes another.
type Machine struct {
	node   string
	timing Timing
	seats  map[netip.Addr]*seat
	// order are the addresses of the seats, in order. It is replaced, and never changed.
	order []netip.Addr
	// peers are the nodes that are heard.
	peers map[string]bool
	// beat is when the next heartbeat is due, said when the last was sent, and ran when the
	// machine last ran.
	beat, said, ran time.Duration
	// doubt is until when the node listens because it was still itself; 0 where it does not.
	doubt time.Duration
	// news says that others are to be told at the next Tick what the node owns and claims, as one of them does not know it.
	news bool
}

// New returns the machine of a node, at a moment.
func New(now time.Duration, node string, timing Timing) *Machine {
	return &Machine{node: node, timing: timing, seats: make(map[netip.Addr]*seat), beat: now, said: now - timing.Echo, ran: now}
}

// Clone returns a copy.
func (m *Machine) Clone() *Machine {
	out := *m
	out.seats = make(map[netip.Addr]*seat, len(m.seats))
	for a, s := range m.seats {
		copied := *s
		out.seats[a] = &copied
	}
	return &out
}

// Do is what is to be done, in this order.
type Do struct {
	// Withdraw are addresses that the node must not answer for any more, Answer those that it
	// is to answer for from now on.
	Withdraw, Answer []netip.Addr
	// Say is what to say to other nodes, and Repeat what to say to them of others.
	Say    []wire.Claim
	Repeat []wire.Heartbeat
	// Probe are addresses to ask for on the link, Announce those to tell it of.
	Probe, Announce []netip.Addr
}

// Add adds what is to be done as well, of other addresses.
func (d *Do) Add(other Do) {
	d.Withdraw, d.Answer = append(d.Withdraw, other.Withdraw...), append(d.Answer, other.Answer...)
	d.Say, d.Repeat = append(d.Say, other.Say...), append(d.Repeat, other.Repeat...)
	d.Probe, d.Announce = append(d.Probe, other.Probe...), append(d.Announce, other.Announce...)
}

func (d *Do) say(a netip.Addr, s *seat, state wire.State) {
	d.Say = append(d.Say, wire.Claim{Address: a, State: state, Grade: s.Grade})
}

// leave adds that the node leaves an address, with a grade.
func (d *Do) leave(a netip.Addr, grade uint8) {
	d.Say = append(d.Say, wire.Claim{Address: a, State: wire.Leaves, Grade: grade})
}

// Stand has the node be a candidate for these addresses and no others, and hear these nodes
// and no others. None of either is changed afterwards.
func (m *Machine) Stand(now time.Duration, peers map[string]bool, all map[netip.Addr]Candidacy) (d Do) {
	m.wake(now)
	m.peers = peers
	for _, a := range m.order {
		if _, stays := all[a]; stays {
			continue
		}
		s := m.seats[a]
		if s.phase == owning || s.phase == probing {
			d.say(a, s, wire.Leaves)
		}
		if s.phase == owning {
			d.Withdraw = append(d.Withdraw, a)
		}
		delete(m.seats, a)
	}
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		c := all[a]
		s, there := m.seats[a]
		switch {
		case !there:
			s = &seat{Candidacy: c}
			if m.timing.Repeat > 0 {
				s.turn = time.Duration(Score(a, m.node) % uint64(m.timing.Repeat))
			}
			m.seats[a] = s
			m.wait(now, s, m.timing.Silence)
		case !s.Equal(c):
			graded := s.Grade != c.Grade
			s.Candidacy = c
			if s.phase == waiting && graded && s.worse {
				s.worse = false // the next heartbeat tells
				m.wait(now, s, m.timing.Silence)
			}
		}
	}
	m.order = slices.SortedFunc(maps.Keys(m.seats), netip.Addr.Compare)
	m.beats(now, &d, false)
	return d
}

// wake takes note that the machine runs, and whether it did not for too long.
func (m *Machine) wake(now time.Duration) {
	still := now - m.ran
	m.ran = now
	if still <= m.timing.Silence {
		return
	}
	for _, s := range m.seats {
		switch s.phase {
		case owning:
			m.doubt = now + m.timing.Heartbeat + m.timing.Heartbeat/2
		case waiting, probing:
			// Nobody was heard as nobody listened.
			m.wait(now, s, m.timing.Silence)
		}
	}
}

// Doubts reports whether the node does not know whether what it owns is still its own, as it was still for too long.
func (m *Machine) Doubts(now time.Duration) bool {
	return now < m.doubt || now-m.ran > m.timing.Silence
}

// wait has a seat wait for an owner to be silent, for as long as its turn says.
func (m *Machine) wait(now time.Duration, s *seat, silence time.Duration) {
	before := 0
	for _, node := range s.Before[:min(len(s.Before), MaxBefore)] {
		if node != s.owner {
			before++
		}
	}
	s.phase, s.probes = waiting, 0
	// Who says that it leaves is believed, but not to have the address come and go for ever.
	s.due = now + silence + s.penalty(now, m.timing) + time.Duration(before)*m.timing.Skew
}

// better reports whether another node is to have an address rather than this one.
func (m *Machine) better(node string, grade uint8, a netip.Addr, s *seat) bool {
	return before(a, node, grade, m.node, s.Grade)
}

// before reports whether one node is to have an address rather than another.
func before(a netip.Addr, one string, grade uint8, other string, otherGrade uint8) bool {
	return cmp.Or(cmp.Compare(grade, otherGrade), cmp.Compare(Score(a, one), Score(a, other)), cmp.Compare(one, other)) < 0
}

// Hear takes note of what another node says. What the node itself owns and claims it says at the next Tick, however many have been
// heard by then.
func (m *Machine) Hear(now time.Duration, h wire.Heartbeat) (d Do) {
	if h.Node == m.node || !m.peers[h.Node] {
		return d
	}
	m.wake(now)
	if h.Of != "" {
		m.hearOf(now, h, &d)
		return d
	}
	for _, c := range h.Claims {
		s := m.seats[c.Address]
		if s == nil {
			continue
		}
		switch c.State {
		case wire.Owns, wire.Claims:
			m.news = m.rival(now, h.Node, c, s, &d) || m.news
		case wire.Pauses:
			if s.phase == waiting {
				s.owner, s.worse, s.owned = h.Node, false, false
				m.wait(now, s, m.timing.Hold)
			}
		case wire.Leaves:
			if c.Grade == wire.Stranger && (s.phase == waiting || s.phase == probing) && (s.owner == h.Node || !s.owned) {
				// Who hears it from the one that met the stranger tells others. Who hears it from those does not: else
				// some would always know of it, and nobody look again. Of many candidates the first are enough.
				m.leaveAlone(now, s, s.phase == waiting && s.owner == h.Node && len(s.Before) < MaxBefore)
			}
			if s.phase == waiting && (s.owner == h.Node || s.owner == "") {
				s.owner, s.worse = h.Node, false // it is not waited for
				m.wait(now, s, 0)
				s.owner, s.owned = "", false
			}
		}
	}
	return d
}

// rival takes note that another node owns or claims an address that this one is a candidate
// for, and reports whether the other is to be told that it is this one's.
func (m *Machine) rival(now time.Duration, node string, c wire.Claim, s *seat, d *Do) bool {
	s.answered = 0
	switch s.phase {
	case refusing:
		if c.State != wire.Owns {
			// It is left alone until it is time to look again. Who begins to look just before that does not have it sooner.
			if s.tells && s.alone-now > time.Duration(m.timing.Probes)*m.timing.Probe && s.mayRepeat(now, m.timing) {
				d.leave(c.Address, wire.Stranger)
			}
			return false
		}
	case owning:
		yields := m.better(node, c.Grade, c.Address, s)
		switch {
		case c.State == wire.Claims:
			// In doubt, too: whoever claims it asks on the link, and is answered there, and where
			// both stopped nobody would have it.
			yields = c.Grade < s.Grade
		case now < m.doubt:
			yields = true
		case !yields && s.goesOn(now, node, m.timing):
			yields = true
			s.note(now, discordant{node: node, deaf: true}, m.timing)
		}
		if !yields {
			if now < m.doubt {
				return false
			}
			if s.besideSince == now && s.told > 0 && now-s.since-announcements[s.told-1] >= m.timing.Heartbeat {
				s.told, s.since = 0, now // who heard the other one has its Ethernet address
			}
			return true
		}
		d.Withdraw = append(d.Withdraw, c.Address)
		if c.Grade >= s.Grade {
			s.lose(now, m.timing)
		}
	case probing:
		// It stays with an owner, unless that has a worse grade, and of claims with the better.
		yields := m.better(node, c.Grade, c.Address, s)
		if c.State == wire.Owns {
			yields = c.Grade <= s.Grade
		}
		if !yields {
			return true
		}
	case waiting:
		if m.overheard(now, node, c, s, d) {
			m.wait(now, s, m.timing.Silence)
			return false
		}
		if s.worse = c.Grade > s.Grade && now >= max(s.alone, s.unable); s.worse && s.owner == node {
			s.took(now, node, c, m.timing)
			return false // it is waited no longer than from when that was seen first
		}
	}
	s.took(now, node, c, m.timing)
	m.wait(now, s, m.timing.Silence)
	return false
}

// took takes note of what another node said, which is the owner or about to be.
func (s *seat) took(now time.Duration, node string, c wire.Claim, t Timing) {
	if !s.owned || s.owner != node {
		s.from = now
	}
	s.owner, s.grade, s.owned = node, c.Grade, c.State == wire.Owns
	if !s.owned {
		return
	}
	s.heard = now
	if now-s.from >= t.Defend {
		s.alone = 0
	}
}

// announced reports whether the link was told of an address often enough.
func (m *Machine) announced(s *seat) bool { return s.told == len(announcements) }

// Refresh has all that the node owns be told to the link again from the next Tick on, as after its Ethernet address changed.
func (m *Machine) Refresh(now time.Duration) {
	for _, s := range m.seats {
		s.told, s.since = 0, now
	}
}

// Announce has an address that the node owns be told to the link from the next Tick on as when the node took it over, if that is over. Who
// goes by no heartbeats of this node, and owns the address, too, so meets it now, and not when it is its turn.
func (m *Machine) Announce(now time.Duration, a netip.Addr) {
	if s := m.seats[a]; s != nil && s.phase == owning && m.announced(s) {
		s.told, s.since = 0, now
	}
}

// Tick takes note of the time. It is to be called when Next says, or soon after.
func (m *Machine) Tick(now time.Duration) (d Do) {
	m.wake(now)
	news := m.news
	m.news = false
	var begin []*seat
	for _, a := range m.order {
		s := m.seats[a]
		if s.phase == owning {
			news = news || !m.announced(s) && now >= s.since+announcements[s.told]
			continue
		}
		if now < s.due {
			continue
		}
		switch {
		case s.phase != probing && now < max(s.alone, s.unable):
			s.refuse(max(s.alone, s.unable)) // who owned it meanwhile is silent
		case s.phase != probing:
			begin = append(begin, s)
			news = true
		case s.probes < m.timing.Probes:
			s.probes++
			s.due = now + m.timing.Probe
			if s.probes == m.timing.Probes {
				s.due += s.early // who begin together own together
			}
			d.Probe = append(d.Probe, a)
		default:
			s.phase, s.owner, s.told, s.since, s.defences = owning, "", 0, now, 0
			s.owned, s.answered, s.refused, s.alone = false, 0, false, 0
			d.Answer = append(d.Answer, a)
			if now >= m.doubt {
				s.told = 1
				d.Announce = append(d.Announce, a)
			}
			news = true
		}
	}
	portions := min(max(len(begin)/leastPortion, 1), mostPortions)
	for i, s := range begin {
		s.early = m.timing.Probe * time.Duration(portions-1-i*portions/len(begin)) / time.Duration(portions)
		s.phase, s.probes, s.due = probing, 0, now+m.timing.Probe-s.early
	}
	m.beats(now, &d, news)
	return d
}

// beats adds a heartbeat if it is due, or if there is news. Behind it the link is told of what is due, so that who hears heartbeats knows
// by then of which node that is.
func (m *Machine) beats(now time.Duration, d *Do, news bool) {
	if now < m.doubt {
		return
	}
	m.doubt = 0
	if news && now-m.said < m.timing.Echo {
		m.beat, news = min(m.beat, m.said+m.timing.Echo), false
	}
	if !news && now < m.beat {
		return
	}
	any := false
	for _, a := range m.order {
		switch s := m.seats[a]; s.phase {
		case owning:
			d.say(a, s, wire.Owns)
			switch {
			case !m.announced(s) && now >= s.since+announcements[s.told]:
				s.told++
				d.Announce = append(d.Announce, a)
			case m.announced(s) && m.hasTurn(now, s):
				d.Announce = append(d.Announce, a)
			}
			any = true
		case probing:
			d.say(a, s, wire.Claims)
			any = true
		}
	}
	if any {
		m.said, m.beat = now, now+m.timing.Heartbeat
	}
}

// hasTurn reports whether the link is to be told again of an address that the node owns: its turn was since the last heartbeat. Turns are
// spread over Repeat, so that of many addresses few have theirs at a time.
func (m *Machine) hasTurn(now time.Duration, s *seat) bool {
	every, last := m.timing.Repeat, max(m.said, now-m.timing.Silence)
	return every > 0 && (now-s.turn+every)/every > (last-s.turn+every)/every
}

// End has the node stop. pause says that it is to go on in a moment, and that the packets that
// come for its addresses are handled meanwhile.
func (m *Machine) End(pause bool) (d Do) {
	state := wire.Leaves
	if pause {
		state = wire.Pauses
	}
	for _, a := range m.order {
		if s := m.seats[a]; s.phase == owning {
			d.say(a, s, state)
			d.Withdraw = append(d.Withdraw, a)
		}
	}
	clear(m.seats)
	m.order = nil
	return d
}

// Next is when Tick is to be called, if nothing else happens before; never more than a
// Heartbeat from now.
func (m *Machine) Next(now time.Duration) time.Duration {
	next := now + m.timing.Heartbeat
	if m.news {
		next = now
	}
	for _, s := range m.seats {
		switch {
		case s.phase != owning:
			next = min(next, s.due)
		case !m.announced(s):
			next = min(next, max(s.since+announcements[s.told], m.said+m.timing.Echo, m.doubt), max(m.beat, m.doubt))
		default:
			next = min(next, max(m.beat, m.doubt))
		}
		if s.phase == probing {
			next = min(next, max(m.beat, m.doubt))
		}
	}
	return max(next, now)
}

// Owned are the addresses that the node answers for, in order.
func (m *Machine) Owned() (owned []netip.Addr) {
	for _, a := range m.order {
		if m.seats[a].phase == owning {
			owned = append(owned, a)
		}
	}
	return owned
}

// Owns reports whether the node answers for an address.
func (m *Machine) Owns(a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && s.phase == owning
}

// IsElsewhere reports whether the last that was heard of an address for which the node is a candidate is that
// another one owns it.
func (m *Machine) IsElsewhere(a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && s.owned
}

// Refused are the addresses that the node leaves alone as somebody else answers for them who
// is no node, or as it cannot serve them, in order: also while it looks whether that is still so.
func (m *Machine) Refused() (refused []netip.Addr) {
	for _, a := range m.order {
		if m.Refuses(a) {
			refused = append(refused, a)
		}
	}
	return refused
}

// Refuses reports whether an address is among those.
func (m *Machine) Refuses(a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && s.refused && (s.phase == refusing || s.phase == probing)
}

// Watched are the addresses that the node owns or is about to, in order.
func (m *Machine) Watched() (watched []netip.Addr) {
	for _, a := range m.order {
		if p := m.seats[a].phase; p == owning || p == probing {
			watched = append(watched, a)
		}
	}
	return watched
}
