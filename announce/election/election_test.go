package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/announce/wire"
)

// link is nodes on a link whose time is counted in steps.
type link struct {
	t         rapid.TB
	now       time.Duration
	addresses []netip.Addr
	nodes     []*member
	// flying are heartbeats and announcements on the way.
	flying []flight
	// delay is how long one takes at most, and at the least a step, lost how many of a hundred do not arrive.
	delay time.Duration
	lost  int
	// mute says that nobody's answer to a question comes to who asked.
	mute bool
	draw func(below int) int
}

type member struct {
	name    string
	machine *Machine // nil while it is dead
	// side is where it is while the link is cut.
	side int
	// deaf are the nodes whose heartbeats do not come to it.
	deaf map[string]bool
	// still is until when it gets no processor.
	still time.Duration
	// heard says when it heard which node last.
	heard map[string]time.Duration
	// stands are the addresses that it is a candidate for, with a grade, and unable says that it can serve none of them.
	stands map[netip.Addr]bool
	grade  uint8
	unable bool
	// answers are those that it answers for, as it was asked to do.
	answers map[netip.Addr]bool
}

type flight struct {
	to, from *member
	at       time.Duration
	what     wire.Heartbeat
	// announced is the address that is told of, not by a heartbeat.
	announced netip.Addr
}

// chance draws numbers as often as one likes.
func chance(t *rapid.T) func(below int) int {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "chance"), 0)).IntN
}

const step = 10 * time.Millisecond

// usual is the delay of a link without trouble. What two nodes hear of one heartbeat differs by more than the least
// time that one takes, so that who heard it first may be heard by the other one as if that had heard it since.
const usual = 3 * step

func newLink(t rapid.TB, nodes, addresses int, draw func(int) int) *link {
	l := &link{t: t, draw: draw, delay: usual}
	for i := range addresses {
		l.addresses = append(l.addresses, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
	}
	for i := range nodes {
		m := &member{name: fmt.Sprint("node", i+1), stands: make(map[netip.Addr]bool), heard: make(map[string]time.Duration)}
		for _, a := range l.addresses {
			m.stands[a] = true
		}
		l.nodes = append(l.nodes, m)
	}
	for _, m := range l.nodes {
		l.start(m)
	}
	return l
}

func (l *link) start(m *member) {
	m.machine, m.answers = New(l.now, m.name, Default), make(map[netip.Addr]bool)
	l.stand(m)
}

// stand tells a node what it is a candidate for, by what all nodes stand for.
func (l *link) stand(m *member) {
	all, peers := make(map[netip.Addr]Candidacy), make(map[string]bool)
	for _, n := range l.nodes {
		peers[n.name] = true
	}
	for a := range m.stands {
		c := Candidacy{Grade: m.grade}
		for _, n := range l.nodes {
			if n != m && n.stands[a] && before(a, n.name, n.grade, m.name, m.grade) && len(c.Before) < MaxBefore {
				c.Before = append(c.Before, n.name)
			}
		}
		all[a] = c
	}
	l.do(m, m.machine.Stand(l.now, peers, all))
}

// refuse has a node find that it cannot serve an address.
func (l *link) refuse(m *member, a netip.Addr) { l.do(m, m.machine.Refuse(l.now, a)) }

func (l *link) do(m *member, d Do) {
	for _, a := range d.Withdraw {
		delete(m.answers, a)
	}
	for _, a := range d.Answer {
		if m.unable {
			l.refuse(m, a)
			d.Say = slices.DeleteFunc(d.Say, func(c wire.Claim) bool { return c.Address == a && c.State == wire.Owns })
			d.Announce = slices.DeleteFunc(d.Announce, func(announced netip.Addr) bool { return announced == a })
			continue
		}
		m.answers[a] = true
	}
	for _, h := range said(m.name, d) {
		for _, n := range l.nodes {
			if n != m && n.side == m.side && !n.deaf[m.name] && l.draw(100) >= l.lost {
				f := flight{to: n, from: m, at: l.now + time.Duration(l.draw(int(l.delay/step)+1))*step, what: h}
				for _, before := range l.flying { // no link brings a frame before an earlier one
					if before.to == n && before.from == m && before.announced == f.announced {
						f.at = max(f.at, before.at)
					}
				}
				l.flying = append(l.flying, f)
			}
		}
	}
	for _, a := range d.Announce {
		for _, n := range l.nodes {
			for range 2 { // as a question, and as a reply
				if n != m && n.side == m.side && !l.mute && l.draw(100) >= l.lost {
					l.flying = append(l.flying, flight{to: n, from: m, at: l.now + time.Duration(l.draw(int(l.delay/step)+1))*step, announced: a})
				}
			}
		}
	}
	for _, a := range d.Probe {
		for _, n := range l.nodes {
			if n != m && n.side == m.side && n.machine != nil && n.answers[a] && n.still <= l.now && !n.machine.Doubts(l.now) && !l.mute {
				l.do(m, m.machine.Conflict(l.now, a, m.sees(n)))
			} else if n != m && n.side == m.side && n.machine != nil && n.still <= l.now && !l.mute {
				n.machine.Asked(l.now, a, n.sees(m))
			}
		}
	}
}

// knows returns another node as a host, with its name if it was heard of late.
func (m *member) knows(now time.Duration, other *member) Host {
	at, heard := m.heard[other.name]
	return m.host(other, heard && now-at <= Default.Calm)
}

// sees returns another node as a host, with its name if its heartbeats come.
func (m *member) sees(other *member) Host { return m.host(other, !m.deaf[other.name]) }

// host returns another node as a host. Its Ethernet address goes by its name.
func (m *member) host(other *member, heard bool) Host {
	h := Host{Behind: other.name > m.name}
	if heard {
		h.Node = other.name
	}
	return h
}

// run lets a time pass.
func (l *link) run(d time.Duration, each func()) {
	for end := l.now + d; l.now < end; {
		l.now += step
		late := l.flying[:0]
		var due []flight
		for _, f := range l.flying {
			if f.at <= l.now && f.to.still <= l.now {
				due = append(due, f)
			} else {
				late = append(late, f)
			}
		}
		l.flying = late
		// What is heard in different ways comes in any order.
		if l.draw(2) == 0 {
			slices.SortStableFunc(due, func(a, b flight) int { return b.announced.Compare(a.announced) })
		}
		for _, f := range due {
			switch {
			case f.to.machine == nil:
			case f.announced.IsValid():
				l.do(f.to, f.to.machine.Conflict(l.now, f.announced, f.to.knows(l.now, f.from)))
			default:
				f.to.heard[f.from.name] = l.now
				l.do(f.to, f.to.machine.Hear(l.now, f.what))
			}
		}
		for _, n := range l.nodes {
			if n.machine != nil && n.still <= l.now {
				l.do(n, n.machine.Tick(l.now))
				if !slices.Equal(slices.SortedFunc(maps.Keys(n.answers), netip.Addr.Compare), n.machine.Owned()) {
					l.t.Fatalf("%s was asked to answer for %v and owns %v", n.name, n.answers, n.machine.Owned())
				}
			}
		}
		if each != nil {
			each()
		}
	}
}

// owners are the living nodes of a side that answer for an address, and able those that could.
func (l *link) owners(a netip.Addr, side int) (owners, able []string) {
	for _, n := range l.nodes {
		if n.machine == nil || n.side != side || !n.stands[a] {
			continue
		}
		if !n.unable {
			able = append(able, n.name)
		}
		if n.answers[a] {
			owners = append(owners, n.name)
		}
	}
	return owners, able
}

func (l *link) whole(said string) {
	for _, a := range l.addresses {
		for side := range 2 {
			if owners, able := l.owners(a, side); len(owners) != min(len(able), 1) {
				l.t.Fatalf("%s: at %s on side %d %v answer for %s, and %v could", said, l.now, side, owners, a, able)
			}
		}
	}
}

// TestOneOwnerBehindAnyTrouble has nodes die, start, pause, leave, be still and cut off from each other,
// heartbeats be lost and late, candidates come and go, become better and worse, and be unable to serve their addresses. Behind
// all that, each side of the link has one owner of each address.
func TestOneOwnerBehindAnyTrouble(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, rapid.IntRange(1, 5).Draw(t, "nodes"), rapid.IntRange(1, 8).Draw(t, "addresses"), chance(t))
		for range rapid.IntRange(1, 12).Draw(t, "troubles") {
			n := l.nodes[rapid.IntRange(0, len(l.nodes)-1).Draw(t, "node")]
			alive := n.machine != nil
			switch what := rapid.IntRange(0, 10).Draw(t, "trouble"); {
			case what == 0 && alive:
				n.machine, n.answers = nil, nil
			case what == 1 && !alive:
				l.start(n)
			case what == 2 && alive:
				l.do(n, n.machine.End(rapid.Bool().Draw(t, "pause")))
				n.machine, n.answers = nil, nil
			case what == 3:
				n.side = 1 - n.side
			case what == 4:
				n.still = l.now + time.Duration(rapid.IntRange(1, 300).Draw(t, "still"))*step
			case what == 5:
				l.lost = rapid.SampledFrom([]int{0, 10, 50}).Draw(t, "lost")
			case what == 6:
				l.delay = time.Duration(rapid.IntRange(0, 20).Draw(t, "delay")) * step
			case what == 7 && alive:
				a := l.addresses[rapid.IntRange(0, len(l.addresses)-1).Draw(t, "address")]
				if n.stands[a] = !n.stands[a]; !n.stands[a] {
					delete(n.stands, a)
				}
				l.stand(n)
			case what == 8 && alive:
				n.grade = uint8(rapid.IntRange(0, 2).Draw(t, "grade"))
				l.stand(n)
			case what == 9:
				if n.unable = !n.unable; n.unable && alive {
					for _, a := range n.machine.Owned() {
						l.refuse(n, a)
					}
				}
			}
			l.run(time.Duration(rapid.IntRange(0, 150).Draw(t, "pass"))*step, nil)
		}
		l.lost, l.delay = 0, usual
		// One that cannot serve an address, and is better, tries to take it over again and again.
		for _, n := range l.nodes {
			if n.unable {
				n.grade = 255
			}
		}
		for _, n := range l.nodes {
			if n.machine != nil {
				l.stand(n)
			}
		}
		l.run(Default.Refused+Default.Hold+3*Default.Silence+2*time.Second+300*step, nil)
		// From here on nothing may change any more, but for a side that has no owner.
		l.run(2*time.Second, func() { l.whole("behind the trouble") })
	})
}

// TestADeadOwnerIsReplaced has owners die, alone or together with others, at any moment between two heartbeats, on links that
// are faster and slower. Others own their addresses as soon as is promised from when the last heartbeats came.
func TestADeadOwnerIsReplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, rapid.IntRange(2, 12).Draw(t, "nodes"), 10, chance(t))
		l.delay = time.Duration(rapid.IntRange(0, 5).Draw(t, "delay")) * step
		l.run(4*time.Second+time.Duration(rapid.IntRange(0, int(Default.Heartbeat/step)).Draw(t, "phase"))*step, nil)
		l.whole("at first")
		deaths := rapid.IntRange(1, len(l.nodes)-1).Draw(t, "deaths")
		for i := range deaths {
			l.nodes[i].machine, l.nodes[i].answers = nil, nil
		}
		most := Default.Silence + Default.Skew*time.Duration(min(deaths-1, MaxBefore)) + Default.Probe*time.Duration(1+Default.Probes)
		if most > 2*time.Second {
			t.Fatalf("an address has no owner for %s", most)
		}
		l.run(max(l.delay, step)+most, nil)
		l.whole("behind the death")
	})
}

// TestAStillOwnerTakesNothingBack has an owner be still until others have its addresses, and go on: those keep them, in
// whatever order it hears what it missed.
func TestAStillOwnerTakesNothingBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, rapid.IntRange(2, 5).Draw(t, "nodes"), rapid.IntRange(1, 8).Draw(t, "addresses"), chance(t))
		l.run(4*time.Second, nil)
		l.whole("at first")
		n := l.nodes[rapid.IntRange(0, len(l.nodes)-1).Draw(t, "node")]
		had := n.machine.Owned()
		pass := time.Duration(rapid.IntRange(200, 1000).Draw(t, "still")) * step
		n.still = l.now + pass
		l.run(pass-step, nil)
		has := make(map[netip.Addr]*member)
		for _, a := range had {
			for _, other := range l.nodes {
				if other != n && other.answers[a] {
					has[a] = other
				}
			}
			if has[a] == nil {
				t.Fatalf("nobody has taken %s from %s, which is still", a, n.name)
			}
		}
		l.run(10*time.Second, func() {
			for a, other := range has {
				if !other.answers[a] {
					t.Fatalf("%s has lost %s to %s, which was still", other.name, a, n.name)
				}
			}
		})
		l.whole("behind that")
	})
}

// TestAPauseKeepsAddresses has an owner end for less than Hold.
func TestAPauseKeepsAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, 3, 6, chance(t))
		l.run(3*time.Second, nil)
		n := l.nodes[rapid.IntRange(0, 2).Draw(t, "node")]
		before := n.machine.Owned()
		l.do(n, n.machine.End(true))
		n.machine, n.answers = nil, nil
		l.run(time.Duration(rapid.IntRange(0, 300).Draw(t, "pause"))*step, nil)
		l.start(n)
		l.run(3*time.Second, func() {
			for _, other := range l.nodes {
				for _, a := range before {
					if other != n && other.answers[a] {
						t.Fatalf("%s took %s from %s, which paused", other.name, a, n.name)
					}
				}
			}
		})
		l.whole("behind the pause")
	})
}

// TestAGradeThatChanges has the grade of a candidate change while it waits for an owner, which pauses, or is silent: it waits
// neither shorter nor longer for it.
func TestAGradeThatChanges(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.7")
	for _, state := range []wire.State{wire.Owns, wire.Pauses} {
		var took [2]time.Duration
		for i := range took {
			m := New(0, "node1", Default)
			peers := map[string]bool{"node1": true, "node2": true}
			m.Stand(0, peers, map[netip.Addr]Candidacy{a: {}})
			m.Hear(0, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: state}}})
			for ; !m.Owns(a) && took[i] < time.Minute; took[i] += step {
				if grade := uint8(took[i] / (300 * time.Millisecond) % 3); i > 0 {
					m.Stand(took[i], peers, map[netip.Addr]Candidacy{a: {Grade: grade}})
				}
				m.Tick(took[i])
			}
		}
		if took[0] != took[1] {
			t.Errorf("behind state %d it owns the address after %s, and after %s where its grade changes", state, took[0], took[1])
		}
	}
}

// TestALeaverIsReplacedAtOnce has an owner say that it leaves.
func TestALeaverIsReplacedAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, 4, 6, chance(t))
		l.run(3*time.Second, nil)
		n := l.nodes[rapid.IntRange(0, 3).Draw(t, "node")]
		l.do(n, n.machine.End(false))
		n.machine, n.answers = nil, nil
		l.run(3*Default.Skew+4*Default.Probe, nil)
		l.whole("behind the farewell")
	})
}

// TestNobodyMovesWhatNeedNot has a node come back: what others have they keep.
func TestNobodyMovesWhatNeedNot(t *testing.T) {
	l := newLink(t, 3, 12, func(int) int { return 0 })
	l.run(3*time.Second, nil)
	dead := l.nodes[0]
	if len(dead.answers) == 0 || len(dead.answers) == 12 {
		t.Fatalf("addresses are not spread: %s has %d of 12", dead.name, len(dead.answers))
	}
	dead.machine, dead.answers = nil, nil
	l.run(3*time.Second, nil)
	l.whole("behind its death")
	l.start(dead)
	l.run(10*time.Second, nil)
	if len(dead.answers) != 0 {
		t.Errorf("%s came back and took %v", dead.name, dead.answers)
	}
}

// TestSpread has the addresses shared out evenly.
func TestSpread(t *testing.T) {
	count := make(map[string]int)
	for i := range 10000 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		best := ""
		for j := range 10 {
			if name := fmt.Sprint("node", j); best == "" || Score(a, name) < Score(a, best) {
				best = name
			}
		}
		count[best]++
	}
	for name, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%s is the first for %d of 10000 addresses", name, n)
		}
	}
	if len(count) != 10 {
		t.Errorf("%d nodes are first for any", len(count))
	}
}

// alone is a node without others, that owns an address.
func alone(t *testing.T) (*Machine, netip.Addr, time.Duration) {
	a := netip.MustParseAddr("192.0.2.7")
	m := New(0, "node1", Default)
	m.Stand(0, map[string]bool{"node1": true, "node2": true}, map[netip.Addr]Candidacy{a: {}})
	now := time.Duration(0)
	for len(m.Owned()) == 0 {
		if now += step; now > 5*time.Second {
			t.Fatal("it owns nothing")
		}
		m.Tick(now)
	}
	return m, a, now
}

// TestAnOwnerInDoubt has an owner that was still hear that another claims the address, to
// whose question it has answered, and one that has it by now.
func TestAnOwnerInDoubt(t *testing.T) {
	for state, stops := range map[wire.State]bool{wire.Claims: false, wire.Owns: true} {
		m, a, now := alone(t)
		now += 2 * Default.Silence
		d := m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: state}}})
		if len(d.Say) > 0 || slices.Equal(d.Withdraw, []netip.Addr{a}) != stops {
			t.Errorf("on state %d it does %+v", state, d)
		}
	}
}

// TestADoubterTellsNobody has a node that took an address over be still, and then hear that somebody has it: it stops,
// without a word, and without telling the link of the address meanwhile.
func TestADoubterTellsNobody(t *testing.T) {
	for _, peer := range []string{"", "node2"} {
		m, a, now := alone(t)
		if m.Doubts(now) {
			t.Error("it doubts what it owns")
		}
		now += 2 * Default.Silence
		if !m.Doubts(now) {
			t.Error("it does not doubt what it owned")
		}
		if d := m.Tick(now); len(d.Say)+len(d.Announce)+len(d.Withdraw) > 0 || m.Next(now) <= now {
			t.Errorf("first it does %+v, and more at %s", d, m.Next(now)-now)
		}
		if d := m.Conflict(now, a, Host{Node: peer}); len(d.Say)+len(d.Announce) > 0 || len(d.Withdraw) != 1 {
			t.Errorf("then it does %+v", d)
		}
		if m.Refuses(a) || len(m.Owned()) > 0 {
			t.Errorf("it refuses %v and owns %v", m.Refused(), m.Owned())
		}
	}
	m, _, now := alone(t)
	now += 2 * Default.Silence
	m.Tick(now)
	for d := (Do{}); len(d.Say)+len(d.Announce) == 0; d = m.Tick(now) {
		if now += step; now > 10*time.Second {
			t.Fatal("it doubts for ever")
		}
	}
	if m.Doubts(now) || len(m.Owned()) != 1 {
		t.Errorf("nobody else has the address, and it owns %v", m.Owned())
	}
}

func TestAStrangerHasTheAddress(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.7")
	m := New(0, "node1", Default)
	m.Stand(0, nil, map[netip.Addr]Candidacy{a: {}})
	now := time.Duration(0)
	for d := (Do{}); len(d.Probe) == 0; d = m.Tick(now) {
		now += step
	}
	if d := m.Conflict(now, a, Host{}); !slices.ContainsFunc(d.Say, func(c wire.Claim) bool { return c.State == wire.Leaves }) || !slices.Equal(m.Refused(), []netip.Addr{a}) {
		t.Errorf("it does %+v, and refuses %v", d, m.Refused())
	}
	for end := now + Default.Refused - step; now < end; now += step {
		if d := m.Tick(now); len(d.Probe)+len(d.Answer)+len(d.Announce)+len(d.Say) > 0 {
			t.Fatalf("at %s it does %+v", now, d)
		}
	}
	for end := now + time.Second; now < end; now += step {
		m.Tick(now)
	}
	if len(m.Owned()) != 1 {
		t.Error("it does not own the address that the stranger has left")
	}
}

// TestAStrangersAddressIsLeftAlone has a stranger say again and again that it has the address that nodes answer for, which
// answers questions or does not, and is heard by all or by the owner alone. Some nodes, not all, start anew meanwhile. Once an owner
// has given it up, no node has it until Refused has passed; once the stranger is gone, one has it again.
func TestAStrangersAddressIsLeftAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, rapid.IntRange(1, 5).Draw(t, "nodes"), 1, chance(t))
		a := l.addresses[0]
		l.run(3*time.Second, nil)
		every := time.Duration(rapid.IntRange(1, 300).Draw(t, "every")) * step
		answers, toAll := rapid.Bool().Draw(t, "answers"), rapid.Bool().Draw(t, "to all")
		stranger := Host{Behind: rapid.Bool().Draw(t, "behind")}
		restarts := rapid.IntRange(0, len(l.nodes)-1).Draw(t, "restarts")
		const pass = 45 * time.Second
		gone, next, left, met := l.now+pass, l.now, -Default.Refused, false
		meet := func(n *member) {
			owned := n.machine.Owns(a)
			l.do(n, n.machine.Conflict(l.now, a, stranger))
			if met = met || n.machine.Refuses(a); owned && n.machine.Refuses(a) {
				left = l.now
			}
		}
		l.run(pass+Default.Refused+5*time.Second, func() {
			if l.now < gone && l.now >= next {
				next = l.now + every
				for _, n := range l.nodes {
					if toAll || n.machine.Owns(a) {
						meet(n)
					}
				}
			}
			for _, n := range l.nodes {
				if l.now < gone && answers && n.machine.seats[a].phase == probing {
					meet(n)
				}
				if n.answers[a] && l.now < left+Default.Refused-2*l.delay {
					t.Fatalf("%s has the address %s after another has left it alone", n.name, l.now-left)
				}
			}
			if n := l.nodes[l.draw(len(l.nodes))]; restarts > 0 && l.draw(500) == 0 {
				restarts--
				l.start(n)
			}
		})
		if !met {
			t.Fatal("no node leaves the address alone")
		}
		l.whole("behind the stranger")
	})
}

// TestAStrangerIsRemembered has a node that has met a stranger hear of an owner that leaves the address soon, of one that is
// silent soon, and of one that keeps it for longer than it would beside the stranger.
func TestAStrangerIsRemembered(t *testing.T) {
	for name, test := range map[string]struct {
		keeps  time.Duration
		leaves bool
		waits  bool
	}{
		"who leaves it":                  {0, true, true},
		"who is silent":                  {Default.Silence, false, true},
		"who keeps it":                   {Default.Defend + Default.Heartbeat, false, false},
		"who keeps it, and leaves later": {Default.Defend + Default.Heartbeat, true, false},
	} {
		m, a, now := alone(t)
		m.Conflict(now, a, Host{})
		now += Default.Burst
		m.Conflict(now, a, Host{})
		met := now
		say := func(state wire.State) {
			m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: state}}})
		}
		for end := now + test.keeps; now <= end; now += Default.Heartbeat {
			say(wire.Owns)
		}
		if m.Refuses(a) || !m.HasMet(now, a) {
			t.Errorf("%s: another one has it, and this one leaves it alone: %v, has met the stranger: %v", name, m.Refused(), m.Met(now))
		}
		if test.leaves {
			say(wire.Leaves)
		}
		for ; !m.Owns(a); now += step {
			m.Tick(now)
		}
		if waited := now-met >= Default.Refused; waited != test.waits {
			t.Errorf("%s: the node has it again %s after it met the stranger", name, now-met)
		}
	}
}

// TestAWorseOwnerBesideAStranger has a node that has met a stranger hear of an owner of its grade, and of a worse one, from then on: it
// waits until that has kept the address for as long as it would not beside the stranger, and takes it over then where that is worse.
func TestAWorseOwnerBesideAStranger(t *testing.T) {
	for _, grade := range []uint8{0, 1} {
		m, a, now := alone(t)
		m.Conflict(now, a, Host{})
		now += Default.Burst
		m.Conflict(now, a, Host{})
		began, changes, refuses := now, 0, true
		for now += time.Second; now-began < Default.Refused && !m.Owns(a); now += step {
			if now%Default.Heartbeat == 0 {
				m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Owns, Grade: grade}}})
			}
			m.Tick(now)
			if m.Refuses(a) != refuses {
				refuses = !refuses
				changes++
			}
		}
		soon := now-began < time.Second+Default.Defend+2*Default.Silence+time.Second
		// It is left alone also while the node asks whether the stranger is gone.
		if changes != 1+2*int(grade) || m.Owns(a) != (grade > 0) || m.Owns(a) && !soon {
			t.Errorf("beside an owner of grade %d it begins or ends to leave the address alone %d times, and after %s owns %v", grade, changes, now-began, m.Owned())
		}
	}
}

// TestWhoIsToldOfAStranger has nodes say that a stranger has an address. That is believed of the owner, and where no
// owner is known, and does not concern who owns it.
func TestWhoIsToldOfAStranger(t *testing.T) {
	a, peers := netip.MustParseAddr("192.0.2.7"), map[string]bool{"node1": true, "node2": true, "node3": true}
	of := func(node string, state wire.State, grade uint8) wire.Heartbeat {
		return wire.Heartbeat{Node: node, Claims: []wire.Claim{{Address: a, State: state, Grade: grade}}}
	}
	for name, test := range map[string]struct {
		heard        []wire.Heartbeat
		alone, tells bool
	}{
		"the owner says so":              {[]wire.Heartbeat{of("node2", wire.Owns, 0), of("node2", wire.Leaves, wire.Stranger)}, true, true},
		"no owner is known":              {[]wire.Heartbeat{of("node2", wire.Leaves, wire.Stranger)}, true, false},
		"who claims it is told":          {[]wire.Heartbeat{of("node2", wire.Claims, 0), of("node3", wire.Leaves, wire.Stranger)}, true, false},
		"another one says so":            {[]wire.Heartbeat{of("node2", wire.Owns, 0), of("node3", wire.Leaves, wire.Stranger)}, false, false},
		"the owner leaves it":            {[]wire.Heartbeat{of("node2", wire.Owns, 0), of("node2", wire.Leaves, 0)}, false, false},
		"another has it behind that one": {[]wire.Heartbeat{of("node2", wire.Leaves, wire.Stranger), of("node3", wire.Owns, 0)}, false, false},
	} {
		m := New(0, "node1", Default)
		m.Stand(0, peers, map[netip.Addr]Candidacy{a: {}})
		for _, h := range test.heard {
			m.Hear(0, h)
		}
		if m.Refuses(a) != test.alone {
			t.Errorf("%s: it leaves it alone: %v", name, m.Refuses(a))
		}
		d := m.Hear(time.Second, of("node3", wire.Claims, 0))
		if told := slices.Contains(d.Say, wire.Claim{Address: a, State: wire.Leaves, Grade: wire.Stranger}); told != test.tells {
			t.Errorf("%s: on a claim it says %+v", name, d.Say)
		}
		if d := m.Hear(time.Second, of("node3", wire.Claims, 0)); len(d.Say) > 0 {
			t.Errorf("%s: and at once again %+v", name, d.Say)
		}
	}
	m, a, now := alone(t)
	if d := m.Hear(now, of("node2", wire.Leaves, wire.Stranger)); len(d.Withdraw) > 0 || !m.Owns(a) {
		t.Errorf("an owner that hears so does %+v", d)
	}
}

// TestWhoCannotServe has a node be the best for an address that it cannot serve. It takes that from a worse one once in
// Refused, and where that is as good not at all, also when it is silent.
func TestWhoCannotServe(t *testing.T) {
	for _, grade := range []uint8{0, 1} {
		l := newLink(t, 2, 1, func(int) int { return 0 })
		a := l.addresses[0]
		worse, unable := l.nodes[0], l.nodes[1]
		if before(a, worse.name, 0, unable.name, 0) {
			worse, unable = unable, worse
		}
		worse.grade, unable.unable = grade, true
		l.stand(worse)
		l.stand(unable)
		const refuses = 4
		tries, told := 0, 0
		var couldNot, refused bool
		l.run(refuses*Default.Refused, func() {
			if now := unable.machine.IsUnable(l.now, a); now != couldNot {
				couldNot = now
				if now {
					tries++
				}
			}
			if now := unable.machine.Refuses(a); now != refused {
				refused = now
				if now {
					told++
				}
			}
		})
		if grade == 0 && tries != 1 || tries == 0 || tries > refuses || told != tries {
			t.Errorf("it tries %d times to take the address from one of grade %d, and leaves it alone %d times", tries, grade, told)
		}
		l.whole("beside the one that cannot serve it")
	}
	m, a, now := alone(t)
	now += step
	if d := m.Refuse(now, a); len(d.Withdraw) != 1 || len(d.Say) != 1 || d.Say[0].State != wire.Leaves {
		t.Errorf("when it cannot serve the address it does %+v", d)
	}
	began := now
	for _, state := range []wire.State{wire.Owns, wire.Leaves} {
		now += step
		m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: state}}})
	}
	for ; !m.Owns(a); now += step {
		if d := m.Tick(now); len(d.Say)+len(d.Probe) > 0 && now-began < Default.Refused {
			t.Fatalf("%s after it could not serve the address it does %+v", now-began, d)
		}
		if m.IsUnable(now, a) && now-began > 2*step && !m.Refuses(a) {
			t.Fatalf("it does not say that it leaves the address alone")
		}
	}
}

func TestAnOwnerDefendsOnce(t *testing.T) {
	m, a, now := alone(t)
	if d := m.Conflict(now, a, Host{Node: "node2"}); len(d.Announce)+len(d.Withdraw) > 0 {
		t.Errorf("with a node it does %+v", d)
	}
	if d := m.Conflict(now, a, Host{}); len(d.Announce) != 1 || len(d.Withdraw) > 0 {
		t.Errorf("first it does %+v", d)
	}
	for end := now + Default.Defend; now < end; now += step {
		m.Tick(now)
	}
	if d := m.Conflict(now, a, Host{}); len(d.Announce) != 1 || len(d.Withdraw) > 0 {
		t.Errorf("much later it does %+v", d)
	}
	if d := m.Conflict(now+Default.Defend/2, a, Host{}); len(d.Announce) > 0 || len(d.Withdraw) != 1 {
		t.Errorf("soon after it does %+v", d)
	}
}

// TestAnAnnouncementOfManyFrames has who is no node announce an address once, in several frames, and go on later.
func TestAnAnnouncementOfManyFrames(t *testing.T) {
	for _, host := range []Host{{}, {Behind: true}} {
		m, a, now := alone(t)
		var defended []time.Duration
		began := now
		for _, after := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond, time.Second, 1001 * time.Millisecond, 3 * time.Second} {
			now = began + after
			m.Tick(now)
			d := m.Conflict(now, a, host)
			if len(d.Announce) > 0 {
				defended = append(defended, after)
			}
			if !m.Owns(a) {
				break
			}
		}
		want, left := []time.Duration{0}, time.Second
		if host.Behind {
			want, left = append(want, time.Second), 3*time.Second
		}
		if !slices.Equal(defended, want) || m.Owns(a) || now-began != left {
			t.Errorf("beside %+v it defends the address after %v, and gives it up after %s", host, defended, now-began)
		}
	}
}

// strangers makes two nodes that do not hear each other's heartbeats, and are in no order.
func strangers(t *rapid.T) *link {
	l := newLink(t, 2, 1, chance(t))
	l.deafen(0, 1)
	l.deafen(1, 0)
	for _, n := range l.nodes {
		n.machine = New(l.now, n.name, Default)
		n.machine.Stand(l.now, nil, map[netip.Addr]Candidacy{l.addresses[0]: {}})
	}
	return l
}

// TestTwoOwnersMeetByAnnouncements has two nodes own an address that do not hear each other's heartbeats, and one of them
// announce it: one keeps it, and it is never without an owner.
func TestTwoOwnersMeetByAnnouncements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := strangers(t)
		l.mute = true
		l.run(20*time.Second, nil)
		l.mute = false
		l.delay = time.Duration(rapid.IntRange(0, 10).Draw(t, "delay")) * step
		for _, n := range l.nodes[:rapid.IntRange(1, 2).Draw(t, "announce")] {
			l.do(n, n.machine.Refresh(l.now))
			l.run(time.Duration(rapid.IntRange(0, 100).Draw(t, "pass"))*step, nil)
		}
		w := l.watch(10 * time.Second)
		if w.bare > 0 {
			t.Fatalf("nobody has the address for %s", w.bare)
		}
		l.run(2*Default.Refused, func() { l.whole("when they have met") })
	})
}

// TestTwoAskAtATime has two nodes that do not hear each other's heartbeats begin to ask for an address at a time: one has it.
func TestTwoAskAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := strangers(t)
		l.nodes[1].still = l.now + time.Duration(rapid.IntRange(0, 50).Draw(t, "later"))*step
		l.run(5*time.Second, func() {
			if owners, _ := l.owners(l.addresses[0], 0); len(owners) > 1 {
				t.Fatalf("%v have the address", owners)
			}
		})
		l.run(2*Default.Refused, func() { l.whole("when they have asked") })
	})
}

// TestANodeThatIsAStranger has who is taken for a node say on the link that it has what another one owns. Without a
// heartbeat about it, or with claims alone, it is soon as good as a stranger. Beside one that says it owns the
// address, heartbeats decide, and soon.
func TestANodeThatIsAStranger(t *testing.T) {
	for state, says := range map[wire.State]string{wire.Leaves: "nothing", wire.Claims: "that it claims it", wire.Owns: "that it owns it"} {
		m, a, now := alone(t)
		began, met := now, time.Duration(0)
		for ; m.Owns(a) && now < began+Default.Refused; now += 100 * time.Millisecond {
			if state != wire.Leaves {
				m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: state, Grade: 255}}})
			}
			if m.Owns(a) {
				m.Conflict(now, a, Host{Node: "node2"})
			}
			if met == 0 && m.HasMet(now, a) {
				met = now - began
			}
			m.Tick(now)
		}
		took := now - began
		if took > Default.Deaf+time.Second || state == wire.Owns && (m.Refuses(a) || len(m.Discords(now)) != 1) || state != wire.Owns && (!m.Refuses(a) || met == 0 || met > time.Second) {
			t.Errorf("one that says %s: it owns the address %s, has met a stranger behind %s, refuses %v and has discords %v", says, took, met, m.Refused(), m.Discords(now))
		}
	}
}

// TestStrangersAreNotHeard has who is no node of the cluster, and who has the node's own name,
// claim an address.
func TestStrangersAreNotHeard(t *testing.T) {
	m, a, now := alone(t)
	for _, name := range []string{"node1", "node3", ""} {
		if d := m.Hear(now, wire.Heartbeat{Node: name, Claims: []wire.Claim{{Address: a}}}); len(d.Withdraw)+len(d.Say) > 0 {
			t.Errorf("on what %q says it does %+v", name, d)
		}
	}
}

// TestAnOwnerTellsTheLinkAgain has an owner, however long it has been one, hear of a worse one, as when a cut link is whole
// again: it tells the link of the address at once, and not again and again.
func TestAnOwnerTellsTheLinkAgain(t *testing.T) {
	for pass := time.Duration(0); pass < 5*time.Second; pass += 100 * time.Millisecond {
		m, a, now := alone(t)
		last := now
		for end := now + pass; now < end; {
			now += step
			if d := m.Tick(now); len(d.Announce) > 0 {
				last = now
			}
		}
		told := 0
		for range 10 {
			m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Owns, Grade: 9}}})
			if d := m.Tick(now); len(d.Announce) > 0 {
				last, told = now, told+1
			}
			now += step
		}
		if now-last > Default.Heartbeat || told > 1 {
			t.Errorf("%s after it has become the owner it tells the link %d times, the last time %s before", pass, told, now-last)
		}
	}
}

// TestAnEchoIsBounded has a node claim what is another's as often as it can.
func TestAnEchoIsBounded(t *testing.T) {
	m, a, now := alone(t)
	worse := "node2"
	if Score(a, worse) < Score(a, "node1") {
		t.Skip("the other one is better")
	}
	said := 0
	for end := now + time.Second; now < end; now += time.Millisecond {
		if d := m.Hear(now, wire.Heartbeat{Node: worse, Claims: []wire.Claim{{Address: a, State: wire.Claims}}}); len(d.Say) > 0 {
			said++
		}
	}
	if said == 0 || said > int(time.Second/Default.Echo)+1 {
		t.Errorf("it answered %d times in a second", said)
	}
}

// TestAThousandAddresses has all that a node owns said at once.
func TestAThousandAddresses(t *testing.T) {
	m := New(0, "node1", Default)
	all := make(map[netip.Addr]Candidacy)
	for i := range 1000 {
		all[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = Candidacy{}
	}
	m.Stand(0, nil, all)
	heartbeats := 0
	for now := step; now < 11*time.Second; now += step {
		if d := m.Tick(now); len(d.Say) > 0 && now > time.Second+500*time.Millisecond {
			if heartbeats++; len(d.Say) != 1000 {
				t.Fatalf("it says %d", len(d.Say))
			}
		}
	}
	if heartbeats < 25 || heartbeats > 35 {
		t.Errorf("it said so %d times in ten seconds", heartbeats)
	}
}

// TestQuestionsComeInPortions has a node claim many addresses at a time: it asks for few of them at once, for each as often and as
// long before it owns it as for one alone, and owns all together.
func TestQuestionsComeInPortions(t *testing.T) {
	for _, n := range []int{1, 63, 64, 200, 1000, 4096} {
		m := New(0, "node1", Default)
		all := make(map[netip.Addr]Candidacy)
		for i := range n {
			all[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = Candidacy{}
		}
		m.Stand(0, nil, all)
		asked, last := make(map[netip.Addr]int), make(map[netip.Addr]time.Duration)
		most := 0
		for now := time.Duration(0); len(m.Owned()) < n; now = m.Next(now) {
			d := m.Tick(now)
			most = max(most, len(d.Probe))
			for _, a := range d.Probe {
				if asked[a] > 0 && now-last[a] != Default.Probe {
					t.Errorf("of %d it asks for %s again after %s", n, a, now-last[a])
				}
				asked[a]++
				last[a] = now
			}
			if len(d.Answer) > 0 && (len(d.Answer) < n || now != Default.Silence+time.Duration(Default.Probes+1)*Default.Probe) {
				t.Errorf("of %d it owns %d at %s", n, len(d.Answer), now)
			}
			for _, a := range d.Answer {
				if asked[a] != Default.Probes || now-last[a] < Default.Probe {
					t.Errorf("of %d it owns %s, for which it asked %d times, the last %s before", n, a, asked[a], now-last[a])
				}
			}
		}
		if most > max(2*leastPortion, n/mostPortions+1) {
			t.Errorf("of %d it asks for %d at once", n, most)
		}
	}
}

func BenchmarkHear(b *testing.B) {
	m := New(0, "node1", Default)
	all, h := make(map[netip.Addr]Candidacy), wire.Heartbeat{Node: "node2"}
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		all[a] = Candidacy{}
		h.Claims = append(h.Claims, wire.Claim{Address: a})
	}
	m.Stand(0, map[string]bool{"node2": true}, all)
	for b.Loop() {
		m.Hear(0, h)
	}
}
