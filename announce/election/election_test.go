package election

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/announce/wire"
)

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
		d.Add(m.Tick(now))
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

// TestTheLinkIsToldBehindAHeartbeat has an owner hear, at any moment between two heartbeats, of a worse owner, which goes on for a while, as a
// slow one does. It tells the link of the address as often as when it took it over, each time together with a heartbeat.
func TestTheLinkIsToldBehindAHeartbeat(t *testing.T) {
	for pass := 4 * time.Second; pass < 4*time.Second+Default.Heartbeat; pass += step {
		m, a, now := alone(t)
		told, began := 0, now
		for ; now-began < pass+5*time.Second; now += step {
			if heard := now - began - pass; heard >= 0 && heard < Default.Deaf && heard%Default.Heartbeat == 0 {
				m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Owns, Grade: 9}}})
			}
			d := m.Tick(now)
			if told += len(d.Announce); len(d.Announce) > 0 && len(d.Say) == 0 {
				t.Fatalf("%s after it took the address over it tells the link first", now-began)
			}
		}
		if want := 2*len(announcements) - 1; told != want { // the first came before
			t.Errorf("%s after it took the address over it tells the link %d times, want %d", pass, told, want)
		}
	}
}

// TestAnEchoIsBounded has a node claim what is another's as often as it can.
func TestAnEchoIsBounded(t *testing.T) {
	m, a, now := alone(t)
	said := 0
	for end := now + time.Second; now < end; now += time.Millisecond {
		for range 3 {
			if d := m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Claims, Grade: 9}}}); len(d.Say) > 0 {
				t.Fatalf("it answers before all is heard: %+v", d.Say)
			}
		}
		if m.Next(now) == now && len(m.Tick(now).Say) > 0 {
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

// TestTheLinkIsToldAgain has a node own as many addresses as it may: it tells the link of each once in Repeat, of few at a time, each time
// behind a heartbeat, also where others have it say more of these than are due, and where it was still for a while.
func TestTheLinkIsToldAgain(t *testing.T) {
	const n, repeats = 4096, 3
	m := New(0, "node1", Default)
	all := make(map[netip.Addr]Candidacy)
	for i := range n {
		all[netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})] = Candidacy{}
	}
	m.Stand(0, map[string]bool{"node2": true}, all)
	now := time.Duration(0)
	for end := 5 * time.Second; now < end; now = max(now+1, m.Next(now)) {
		m.Tick(now)
	}
	most := 4 * n * int(Default.Heartbeat) / int(Default.Repeat)
	told := make(map[netip.Addr]int)
	began := now
	for now-began < repeats*Default.Repeat {
		if now += step; m.Next(now) > now {
			continue
		}
		if (now-began)/time.Second%2 == 0 {
			m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: m.order[0], State: wire.Claims, Grade: 9}}})
		}
		d := m.Tick(now)
		for _, a := range d.Announce {
			told[a]++
		}
		if len(d.Announce) > most || len(d.Announce) > 0 && len(d.Say) == 0 {
			t.Fatalf("at a time it tells the link of %d addresses, and says %d", len(d.Announce), len(d.Say))
		}
	}
	for a := range all {
		if told[a] < repeats-1 || told[a] > repeats+1 {
			t.Errorf("of %s it tells the link %d times", a, told[a])
		}
	}
	for now += time.Hour; m.Doubts(now) || now < m.beat; now += step {
		if d := m.Tick(now); len(d.Announce) > most {
			t.Fatalf("when it was still it tells the link of %d", len(d.Announce))
		}
	}
	if d := m.Tick(now); len(d.Say) == 0 || len(d.Announce) > most {
		t.Errorf("then it says %d, and tells the link of %d", len(d.Say), len(d.Announce))
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
