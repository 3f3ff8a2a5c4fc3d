package election

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/announce/wire"
)

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

// TestTheDefenceOfAnAddress has an owner defend its address: it tells the link as often as when it took that over, and at other times than
// that and its turn does not.
func TestTheDefenceOfAnAddress(t *testing.T) {
	m, a, now := alone(t)
	for end := now + Default.Repeat; now < end; now += step {
		m.Tick(now)
	}
	for end := now + Default.Repeat; !slices.Contains(m.Tick(now).Announce, a); now += step { // until its turn
		if now > end {
			t.Fatal("its turn never comes")
		}
	}
	began, told := now+step, []time.Duration{0}
	m.Conflict(began, a, Host{})
	for now = began; now-began < Default.Repeat/2; now += step {
		if d := m.Tick(now); len(d.Announce) > 0 {
			told = append(told, now-began)
		}
	}
	close := func(told, due time.Duration) bool { return told >= due && told <= due+Default.Echo }
	if !slices.EqualFunc(told, announcements[:], close) || !m.Owns(a) {
		t.Errorf("it tells the link after %v", told)
	}
}

// TestAnAddressIsAnnouncedAgain has an owner, and one that is none, be asked again and again to announce an address: the owner does so as
// when it took the address over, and begins anew only once that is over.
func TestAnAddressIsAnnouncedAgain(t *testing.T) {
	m, a, now := alone(t)
	for end := now + 4*time.Second; now < end; now += step {
		m.Tick(now)
	}
	var told []time.Duration
	for began := now; now-began < announcements[len(announcements)-1]; now += step {
		m.Announce(now, a)
		if d := m.Tick(now); len(d.Announce) > 0 {
			told = append(told, now-began)
		}
	}
	if want := announcements[:len(announcements)-1]; !slices.Equal(told, want) {
		t.Errorf("it announces the address after %v, want %v", told, want)
	}
	other := New(0, "node2", Default)
	other.Stand(0, nil, map[netip.Addr]Candidacy{a: {}})
	other.Announce(0, a)
	if d := other.Tick(0); len(d.Announce) > 0 {
		t.Errorf("who does not own it does %+v", d)
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

// strangers makes nodes that do not hear each other's heartbeats, and are in no order.
func strangers(t *rapid.T, nodes, addresses int) *link {
	l := newLink(t, nodes, addresses, chance(t))
	for one := range l.nodes {
		for other := range l.nodes {
			if one != other {
				l.deafen(one, other)
			}
		}
	}
	for _, n := range l.nodes {
		l.start(n)
	}
	return l
}

// TestTwoOwnersMeetByAnnouncements has two nodes own an address that were cut off from each other, and do not hear each other's heartbeats:
// once it is their turn to tell the link of it, or one has another Ethernet address, one keeps it, and it is never without an owner.
func TestTwoOwnersMeetByAnnouncements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := strangers(t, 2, 1)
		l.mute = true
		l.run(time.Duration(rapid.IntRange(200, 6000).Draw(t, "cut"))*step, nil)
		l.mute = false
		l.delay = time.Duration(rapid.IntRange(0, 10).Draw(t, "delay")) * step
		for _, n := range l.nodes[:rapid.IntRange(0, 2).Draw(t, "announce")] {
			n.machine.Refresh(l.now)
			l.run(time.Duration(rapid.IntRange(0, 100).Draw(t, "pass"))*step, nil)
		}
		w := l.watch(Default.Repeat + 3*time.Second)
		if w.bare > 0 {
			t.Fatalf("nobody has the address for %s", w.bare)
		}
		l.run(2*Default.Refused, func() { l.whole("when they have met") })
	})
}

// TestOneOwnerWithoutHeartbeats has nodes that hear of each other by what they tell the link alone die, start, and be cut off from each
// other. Behind all that each side of the link has one owner of each address, and keeps it.
func TestOneOwnerWithoutHeartbeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := strangers(t, rapid.IntRange(2, 4).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "addresses"))
		for range rapid.IntRange(1, 8).Draw(t, "troubles") {
			n := l.nodes[rapid.IntRange(0, len(l.nodes)-1).Draw(t, "node")]
			switch what := rapid.IntRange(0, 4).Draw(t, "trouble"); {
			case what == 0:
				n.side = 1 - n.side
			case what == 1:
				l.mute = !l.mute
			case what == 2:
				l.lost = rapid.SampledFrom([]int{0, 10, 50}).Draw(t, "lost")
			case n.machine == nil:
				l.start(n)
			case what == 3:
				n.machine, n.answers = nil, nil
			}
			l.run(time.Duration(rapid.IntRange(0, 4000).Draw(t, "pass"))*step, nil)
		}
		l.lost, l.mute = 0, false
		l.run(Default.Repeat+2*Default.Refused+5*time.Second, nil)
		l.run(2*Default.Repeat, func() { l.whole("behind the trouble") })
	})
}

// TestTwoAskAtATime has two nodes that do not hear each other's heartbeats begin to ask for an address at a time: one has it.
func TestTwoAskAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := strangers(t, 2, 1)
		l.nodes[1].still = l.now + time.Duration(rapid.IntRange(0, 50).Draw(t, "later"))*step
		l.run(5*time.Second, func() {
			if owners, _ := l.owners(l.addresses[0], 0); len(owners) > 1 {
				t.Fatalf("%v have the address", owners)
			}
		})
		l.run(2*Default.Refused, func() { l.whole("when they have asked") })
	})
}

// TestWhoOnlyAsks has a host ask without end for an address that a node is to take, and never have it. A node that is to wait for the host
// waits for some rounds, and again only once a minute has passed. Beside any other host it does not wait.
func TestWhoOnlyAsks(t *testing.T) {
	round := Default.Silence + Default.Probe*time.Duration(1+Default.Probes)
	for _, behind := range []bool{false, true} {
		for _, every := range []time.Duration{step, 150 * time.Millisecond, 290 * time.Millisecond} {
			a := netip.MustParseAddr("192.0.2.7")
			m, now := New(0, "node1", Default), time.Duration(0)
			m.Stand(0, nil, map[netip.Addr]Candidacy{a: {}})
			for i, yields := range []int{mostYields, 0, mostYields} {
				if behind {
					yields = 0
				}
				began := now
				for ; !m.Owns(a) && now-began < Default.Calm; now += step {
					if now%every == 0 {
						m.Asked(now, a, Host{Behind: behind})
					}
					m.Tick(now)
				}
				if took := now - began; took > time.Duration(yields+1)*round+step || took < time.Duration(yields)*Default.Silence {
					t.Errorf("a host asks each %s, behind the node is %t: the %d. time it has the address after %s", every, behind, i+1, took)
				}
				if m.HasYielded(now, a) != !behind || m.HasYielded(now+Default.Calm, a) {
					t.Errorf("a host asks each %s, behind the node is %t: that it has kept the node from the address is %t", every, behind, !behind)
				}
				for end := now + time.Duration(i)*Default.Calm; now < end; now += step {
					m.Tick(now)
				}
				m.Conflict(now, a, Host{}) // so that it asks for the address again
				now += Default.Burst
				m.Conflict(now, a, Host{})
				m.Again(now, a)
			}
		}
	}
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
		d := m.Hear(now, wire.Heartbeat{Node: name, Claims: []wire.Claim{{Address: a}}})
		if d.Add(m.Tick(now)); len(d.Withdraw)+len(d.Say) > 0 {
			t.Errorf("on what %q says it does %+v", name, d)
		}
	}
}
