package election

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/announce/wire"
)

// watched is what became of addresses in a time: for how long several nodes owned one, for how
// long nobody did, and how often another node began to.
type watched struct {
	dual, bare time.Duration
	changes    int
}

// watch lets a time pass and sees who owns the first address.
func (l *link) watch(d time.Duration) (w watched) {
	last := ""
	l.run(d, func() {
		owners, _ := l.owners(l.addresses[0], 0)
		switch len(owners) {
		case 0:
			w.bare += step
		case 1:
			if last != "" && owners[0] != last {
				w.changes++
			}
			last = owners[0]
		default:
			w.dual += step
		}
	})
	return w
}

// deafen has a node not hear another one.
func (l *link) deafen(who, whom int) {
	m := l.nodes[who]
	if m.deaf == nil {
		m.deaf = make(map[string]bool)
	}
	m.deaf[l.nodes[whom].name] = true
}

// TestSomeDoNotHearEachOther has a switch drop all between two nodes, on the way of one or of both:
// where one of them or a third node hears of both, one owns the address, and keeps it.
func TestSomeDoNotHearEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, rapid.IntRange(2, 5).Draw(t, "nodes"), 1, chance(t))
		// What is asked is dropped as well, else it would keep the second from owning the address.
		l.mute = rapid.Bool().Draw(t, "mute")
		if rapid.Bool().Draw(t, "late") {
			l.run(3*time.Second, nil)
		}
		one := rapid.IntRange(0, len(l.nodes)-1).Draw(t, "one")
		other := (one + rapid.IntRange(1, len(l.nodes)-1).Draw(t, "other")) % len(l.nodes)
		l.deafen(one, other)
		if len(l.nodes) > 2 && rapid.Bool().Draw(t, "both") {
			l.deafen(other, one)
		}
		l.run(10*time.Second, nil)
		if w := l.watch(2 * time.Minute); w != (watched{}) {
			t.Fatalf("%s and %s: two nodes owned the address for %s, nobody for %s, and it changed %d times", l.nodes[one].name, l.nodes[other].name, w.dual, w.bare, w.changes)
		}
	})
}

// TestAnOwnerThatIsCutOffFromOne has the owner die where two nodes do not hear each other.
func TestAnOwnerThatIsCutOffFromOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLink(t, 4, 1, chance(t))
		l.mute = true
		l.deafen(0, 1)
		l.deafen(1, 0)
		l.run(time.Duration(rapid.IntRange(5, 60).Draw(t, "pass"))*time.Second, nil)
		owners, _ := l.owners(l.addresses[0], 0)
		if len(owners) != 1 {
			t.Fatalf("%v own the address", owners)
		}
		for _, n := range l.nodes {
			if n.name == owners[0] {
				n.machine, n.answers = nil, nil
			}
		}
		l.run(5*time.Second, nil)
		l.whole("behind the death")
	})
}

// TestTwoThatDoNotHear has two others own an address beside a better one, neither of which hears that: it stops as beside
// one, and says so.
func TestTwoThatDoNotHear(t *testing.T) {
	m, a, now := alone(t)
	m.peers = map[string]bool{"node2": true, "node3": true}
	began := now
	for i := 0; m.Owns(a) && now-began < 10*Default.Deaf; now += Default.Heartbeat / 2 {
		m.Hear(now, wire.Heartbeat{Node: []string{"node2", "node3"}[i%2], Claims: []wire.Claim{{Address: a, State: wire.Owns, Grade: 3}}})
		m.Tick(now)
		i++
	}
	if took := now - began; took > Default.Deaf+Default.Heartbeat || took < Default.Deaf || len(m.Discords(now)) != 1 {
		t.Errorf("beside two that go on it owns the address for %s, and says %+v", took, m.Discords(now))
	}
}

// TestHeartbeatsAreRationed has a switch let through three heartbeats of ten, and no questions. Now
// and then a node takes an owner for dead, and each that did so again and again waits ever longer.
func TestHeartbeatsAreRationed(t *testing.T) {
	for nodes := 2; nodes <= 4; nodes++ {
		const links, pass = 10, 5 * time.Minute
		var all watched
		for seed := range uint64(links) {
			l := newLink(t, nodes, 1, rand.New(rand.NewPCG(seed, 0)).IntN)
			l.mute, l.lost = true, 70
			l.run(30*time.Second, nil)
			w := l.watch(pass)
			all = watched{all.dual + w.dual, all.bare + w.bare, all.changes + w.changes}
			l.mute, l.lost = false, 0
			l.run(Default.Refused+10*time.Second, nil)
			l.whole("behind the trouble")
		}
		if all.dual > links*pass/10 || all.bare > links*pass/50 || all.changes > links*2 {
			t.Errorf("%d nodes, on %d links for %s each: %+v", nodes, links, pass, all)
		} else {
			t.Logf("%+v", all)
		}
	}
}

// TestDiscordIsTold has nodes not hear each other: each that sees so says with whom.
func TestDiscordIsTold(t *testing.T) {
	l := newLink(t, 3, 1, func(int) int { return 0 })
	a := l.addresses[0]
	l.mute = true
	// The better of the two must not be the one that is heard, so that it has to give way.
	first, second := 0, 1
	if Score(a, l.nodes[1].name) < Score(a, l.nodes[0].name) {
		first, second = 1, 0
	}
	l.nodes[2].side = 1
	l.deafen(second, first)
	l.run(20*time.Second, nil)
	want := []Discord{{Node: l.nodes[second].name, Deaf: true, Addresses: []netip.Addr{a}}}
	if got := l.nodes[first].machine.Discords(l.now); !slices.EqualFunc(got, want, same) {
		t.Errorf("%s says %+v, want %+v", l.nodes[first].name, got, want)
	}
	l.nodes[second].deaf = nil
	l.run(2*Default.Calm, nil)
	for _, n := range l.nodes {
		if got := n.machine.Discords(l.now); len(got) > 0 {
			t.Errorf("a minute after all hear each other %s says %+v", n.name, got)
		}
	}

	l = newLink(t, 3, 1, func(int) int { return 0 })
	l.mute = true
	l.deafen(0, 1)
	l.deafen(1, 0)
	l.nodes[2].stands = map[netip.Addr]bool{a: true}
	l.run(30*time.Second, nil)
	told := 0
	for _, n := range l.nodes {
		for _, d := range n.machine.Discords(l.now) {
			told++
			if d.Deaf || d.By != "node3" || d.Node == n.name || d.Node == "node3" {
				t.Errorf("%s says %+v", n.name, d)
			}
		}
	}
	if owners, _ := l.owners(a, 0); told == 0 && owners[0] != "node3" {
		t.Errorf("%v own it, and nobody says that some do not hear each other", owners)
	}
}

// TestWhoTakesAndLeavesIsNoWayAround has another one take an address and leave it again and again: the node waits longer
// each time, as where it is silent.
func TestWhoTakesAndLeavesIsNoWayAround(t *testing.T) {
	m, a, now := alone(t)
	for i := range 8 {
		for end := now + 4*Default.Deaf; m.Owns(a) && now < end; now += step {
			m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Owns}}})
		}
		m.Hear(now, wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Leaves}}})
		left := now
		for end := now + Default.Calm; !m.Owns(a) && now < end; now += step {
			m.Tick(now)
		}
		if least := Default.Silence << max(i-1, 0); i > 0 && now-left < min(least, Default.Refused) || !m.Owns(a) {
			t.Errorf("when it has lost it %d times it takes it again after %s", i+1, now-left)
		}
	}
}

func same(a, b Discord) bool {
	return a.Node == b.Node && a.Deaf == b.Deaf && a.By == b.By && slices.Equal(a.Addresses, b.Addresses)
}

// TestWhatIsRepeated has a candidate hear of two owners, of whom none may hear the other.
func TestWhatIsRepeated(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.7")
	good, bad := "node2", "node3"
	if Score(a, bad) < Score(a, good) {
		good, bad = bad, good
	}
	peers := map[string]bool{"node1": true, "node2": true, "node3": true}
	of := func(node string, state wire.State, grade uint8) wire.Heartbeat {
		return wire.Heartbeat{Node: node, Claims: []wire.Claim{{Address: a, State: state, Grade: grade}}}
	}
	for name, test := range map[string]struct {
		first, second wire.Heartbeat
		later         time.Duration
		want          string
	}{
		"two owners":                        {of(bad, wire.Owns, 0), of(good, wire.Owns, 0), step, good},
		"two owners the other way":          {of(good, wire.Owns, 0), of(bad, wire.Owns, 0), step, good},
		"an owner of a worse grade":         {of(good, wire.Owns, 1), of(bad, wire.Owns, 0), step, bad},
		"who claims what is owned":          {of(bad, wire.Owns, 0), of(good, wire.Claims, 0), step, bad},
		"who claims what is owned, for now": {of(bad, wire.Owns, 1), of(good, wire.Claims, 0), step, ""},
		"two that claim it":                 {of(bad, wire.Claims, 0), of(good, wire.Claims, 0), step, ""},
		"an owner that is silent":           {of(bad, wire.Owns, 0), of(good, wire.Owns, 0), Default.Silence, ""},
		"who claims what one owned":         {of(bad, wire.Owns, 0), of(good, wire.Claims, 0), 2 * Default.Heartbeat, ""},
		"one that pauses":                   {of(bad, wire.Pauses, 0), of(good, wire.Owns, 0), step, ""},
		"one owner":                         {of(bad, wire.Owns, 0), of(bad, wire.Owns, 0), step, ""},
	} {
		m := New(0, "node1", Default)
		m.Stand(0, peers, map[netip.Addr]Candidacy{a: {}})
		m.Hear(0, test.first)
		d := m.Hear(test.later, test.second)
		got := ""
		for _, h := range d.Repeat {
			got += h.Of
			if h.Node != "node1" || len(h.Claims) != 1 || h.Claims[0].State != wire.Owns {
				t.Errorf("%s: it repeats %+v", name, h)
			}
		}
		if got != test.want {
			t.Errorf("%s: it repeats what %q says, want %q", name, got, test.want)
		}
		if d := m.Hear(test.later+time.Millisecond, test.second); len(d.Repeat) > 0 {
			t.Errorf("%s: it repeats it again at once", name)
		}
	}
}

// TestWhatIsHeardOfOthers has who is no node, and nodes of themselves and of the node itself,
// repeat what would have an owner stop.
func TestWhatIsHeardOfOthers(t *testing.T) {
	m, a, now := alone(t)
	for _, h := range []wire.Heartbeat{{Node: "node3", Of: "node2"}, {Node: "node2", Of: "node3"}, {Node: "node2", Of: "node1"}, {Node: "node2", Of: "node2"}, {Node: "node1", Of: "node2"}} {
		h.Claims = []wire.Claim{{Address: a, State: wire.Owns}}
		d := m.Hear(now, h)
		if d.Add(m.Tick(now)); len(d.Withdraw)+len(d.Say)+len(d.Repeat) > 0 {
			t.Errorf("on %+v it does %+v", h, d)
		}
	}
}

// TestAPeerThatDoesNotSayThatItHasIt has the kernel of another node answer for an address that
// its heartbeats do not speak of: it is refused as a stranger's is, and told of also while the
// node looks again.
func TestAPeerThatDoesNotSayThatItHasIt(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.7")
	m := New(0, "node1", Default)
	m.Stand(0, nil, map[netip.Addr]Candidacy{a: {}})
	refused := 0
	for now := time.Duration(0); now < 3*Default.Refused; now += step {
		for range m.Tick(now).Probe {
			m.Conflict(now, a, Host{Node: "node2"})
		}
		if len(m.Owned()) > 0 {
			t.Fatal("it owns what another has")
		}
		if m.Refuses(a) {
			refused++
		} else if refused > 0 && m.seats[a].phase != waiting {
			t.Fatal("it is refused no more while the node looks again")
		}
	}
	if refused == 0 {
		t.Error("it is never refused")
	}
}
