package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/wire"
)

// made returns a server whose time passes as a test says.
func made() *Server {
	s := New("node1", slog.New(slog.DiscardHandler))
	s.clock = func() time.Duration { return s.now }
	return s
}

// What a node had it keeps until it may own it again, also where it takes long to find out what it is a candidate
// for, but not for longer than others wait for it at most.
func TestKeeps(t *testing.T) {
	for _, c := range []struct {
		stood        bool
		stoodAt, now int // in seconds since the start
		want         bool
	}{
		{false, 0, 4, true},
		{false, 0, 5, false},
		{true, 0, 2, true},
		{true, 0, 3, false},
		{true, 2, 4, true},
		{true, 4, 5, false},
	} {
		s := made()
		s.stood, s.stoodAt, s.now = c.stood, time.Duration(c.stoodAt)*time.Second, time.Duration(c.now)*time.Second
		if got := s.keeps(); got != c.want {
			t.Errorf("%+v: it keeps what it had is %t", c, got)
		}
	}
}

// A node that has said nothing for some seconds, as it was still, is no stranger: by what it says of an address on the
// link it does not take it.
func TestAPeerThatWasStill(t *testing.T) {
	a, mac := netip.MustParseAddr("192.0.2.100"), wire.MAC{2, 0, 0, 0, 0, 2}
	s := made()
	s.is.Peers = map[string]bool{"node2": true}
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing), peers: make(map[wire.MAC]peer), strangers: make(map[netip.Addr]wire.MAC)}
	s.links[l.name] = l
	l.machine.Stand(0, s.is.Peers, map[netip.Addr]election.Candidacy{a: {}})
	s.do(l, s.hear(l, []link.Event{{From: mac, Heartbeat: &wire.Heartbeat{Node: "node2", Claims: []wire.Claim{{Address: a, State: wire.Owns}}}}}))
	for ; s.now < 10*time.Second; s.now += 10 * time.Millisecond {
		s.do(l, l.machine.Tick(s.now))
		l.forget(s.now, s.Timing)
	}
	for range 2 { // as a question, and as a reply
		s.do(l, s.hear(l, []link.Event{{From: mac, Conflict: a}}))
	}
	if !l.machine.Owns(a) {
		t.Error("the node has given up the address")
	}
}

// Who had an address on the link is told of for a minute, also when a node answers for it again.
func TestAStrangerIsToldOf(t *testing.T) {
	a, mac := netip.MustParseAddr("192.0.2.100"), wire.MAC{2, 0, 0, 0, 0, 9}
	s := made()
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing), peers: make(map[wire.MAC]peer), strangers: make(map[netip.Addr]wire.MAC)}
	s.links[l.name] = l
	l.machine.Stand(0, nil, map[netip.Addr]election.Candidacy{a: {}})
	own := func() {
		for ; !l.machine.Owns(a); s.now += 10 * time.Millisecond {
			s.do(l, l.machine.Tick(s.now))
			l.forget(s.now, s.Timing)
		}
	}
	own()
	for range 2 {
		s.do(l, s.hear(l, []link.Event{{From: mac, Conflict: a}}))
		if said := strings.Join(s.trouble(l), "; "); !strings.Contains(said, "192.0.2.100 (02:00:00:00:00:09)") {
			t.Errorf("of the stranger the node says %q", said)
		}
	}
	own()
	if said := strings.Join(s.trouble(l), "; "); !strings.Contains(said, "somebody else has said within a minute that it has 192.0.2.100 (02:00:00:00:00:09)") {
		t.Errorf("when it answers again the node says %q", said)
	}
	s.now += time.Minute
	l.forget(s.now, s.Timing)
	if said := s.trouble(l); len(said)+len(l.strangers) > 0 {
		t.Errorf("a minute later it says %q, and remembers %v", said, l.strangers)
	}
}

// A peer that is heard on the link before its first heartbeat is told of as a stranger until that comes, and not behind it. Another one's
// heartbeat, and one in which it does not say that it owns the address, changes nothing.
func TestAPeerThatIsHeardLater(t *testing.T) {
	a, mac, other := netip.MustParseAddr("192.0.2.100"), wire.MAC{2, 0, 0, 0, 0, 9}, wire.MAC{2, 0, 0, 0, 0, 8}
	s := made()
	s.is.Peers = map[string]bool{"node2": true, "node3": true}
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing), peers: make(map[wire.MAC]peer), strangers: make(map[netip.Addr]wire.MAC)}
	s.links[l.name] = l
	l.machine.Stand(0, s.is.Peers, map[netip.Addr]election.Candidacy{a: {}})
	for ; !l.machine.Owns(a); s.now += 10 * time.Millisecond {
		s.do(l, l.machine.Tick(s.now))
	}
	s.do(l, s.hear(l, []link.Event{{From: mac, Conflict: a}}))
	for _, c := range []struct {
		from  wire.MAC
		node  string
		state wire.State
		told  bool
	}{{mac, "node2", wire.Claims, true}, {other, "node3", wire.Owns, true}, {mac, "node2", wire.Owns, false}} {
		h := &wire.Heartbeat{Node: c.node, Claims: []wire.Claim{{Address: a, State: c.state, Grade: 9}}}
		s.do(l, s.hear(l, []link.Event{{From: c.from, Heartbeat: h}}))
		if told := len(s.trouble(l)) > 0; told != c.told {
			t.Errorf("behind a heartbeat of %s that says %s the node tells %q", c.node, c.state, s.trouble(l))
		}
	}
}

// Who keeps asking for an address, and never has it, keeps the node from that for some seconds, and is told of for a minute.
func TestWhoOnlyAsksIsToldOf(t *testing.T) {
	a, mac := netip.MustParseAddr("192.0.2.100"), wire.MAC{2, 0, 0, 0, 0, 1}
	s := made()
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing), askers: make(map[netip.Addr]wire.MAC), state: link.State{MAC: wire.MAC{2, 0, 0, 0, 0, 2}}}
	s.links[l.name] = l
	l.machine.Stand(0, nil, map[netip.Addr]election.Candidacy{a: {}})
	for ; s.now < 10*time.Second; s.now += 10 * time.Millisecond {
		var d election.Do
		if s.now%(150*time.Millisecond) == 0 && !l.machine.Owns(a) { // an owner answers
			d = s.hear(l, []link.Event{{From: mac, Conflict: a, Asks: true}})
		}
		d.Add(l.machine.Tick(s.now))
		s.do(l, d)
		l.forget(s.now, s.Timing)
	}
	if said := strings.Join(s.trouble(l), "; "); !l.machine.Owns(a) || !strings.Contains(said, "whether anybody has 192.0.2.100 (02:00:00:00:00:01)") {
		t.Errorf("it owns %v, and says %q", l.machine.Owned(), said)
	}
	s.now += time.Minute
	l.forget(s.now, s.Timing)
	if said := s.trouble(l); len(said)+len(l.askers) > 0 {
		t.Errorf("a minute later it says %q, and remembers %v", said, l.askers)
	}
}

// fake is a holder that gives the node all that it is to have, and fails to list that where err says why. sets is what
// else happens when it gives.
type fake struct {
	has  map[netip.Addr]bool
	err  error
	sets func()
}

func (f *fake) Set(wanted map[netip.Addr]bool) error {
	f.has = maps.Clone(wanted)
	if f.sets != nil {
		f.sets()
	}
	return f.err
}

func (f *fake) Held() (map[netip.Addr]bool, error) { return f.has, f.err }

// Where the node's addresses cannot be listed for a while, it keeps what it had, says so, and looks again. What it is to
// have anew it leaves to others.
func TestWhatIsHeldIsNotKnown(t *testing.T) {
	a, later := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")
	s := made()
	f := &fake{}
	s.holder = f
	s.is.Candidates = map[netip.Addr]announce.Candidate{a: {Link: "eth0", Virtual: true}, later: {Link: "eth0", Virtual: true}}
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing)}
	s.links[l.name] = l
	own := func(all map[netip.Addr]election.Candidacy) {
		l.machine.Stand(s.now, nil, all)
		for end := s.now + 2*time.Second; s.now < end; s.now += 10 * time.Millisecond {
			s.do(l, l.machine.Tick(s.now))
		}
	}
	own(map[netip.Addr]election.Candidacy{a: {}})
	s.again, f.err = true, errors.New("the list is interrupted")
	s.hold(mostTaken)
	if !l.machine.Owns(a) || !s.held[a] || s.holdErr == nil {
		t.Errorf("the node owns %v and has %v, and the error is %v", l.machine.Owned(), s.held, s.holdErr)
	}
	own(map[netip.Addr]election.Candidacy{a: {}, later: {}})
	if !l.machine.Owns(a) || l.machine.Owns(later) {
		t.Errorf("when it is to have another one, it owns %v", l.machine.Owned())
	}
	f.err, f.has = nil, nil
	s.hold(mostTaken)
	if !l.machine.Owns(a) || !f.has[a] || s.holdErr != nil {
		t.Errorf("then it owns %v and has %v, and the error is %v", l.machine.Owned(), f.has, s.holdErr)
	}
}

// A node that owns many addresses no more is given new ones before any of those is taken from it, and those in parts. One that the kernel
// does not take keeps no others.
func TestManyAreTakenFromANode(t *testing.T) {
	first := netip.MustParseAddr("192.0.2.1")
	s := made()
	had, sets := make(map[netip.Addr]bool), 0
	for a := first; len(had) < 3*mostTaken; a = a.Next() {
		had[a] = true
	}
	next := netip.MustParseAddr("198.51.100.1")
	f := &fake{has: maps.Clone(had)}
	f.sets = func() { f.has[first] = true; sets++ }
	s.holder, s.held = f, maps.Clone(had)
	s.is.Candidates = map[netip.Addr]announce.Candidate{next: {Link: "eth0", Virtual: true}}
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing)}
	s.links[l.name] = l
	l.machine.Stand(0, nil, map[netip.Addr]election.Candidacy{next: {}})
	for ; !l.machine.Owns(next); s.now += 10 * time.Millisecond {
		s.do(l, l.machine.Tick(s.now))
	}
	if !f.has[next] || len(f.has) != len(had)+1 || !s.surplus || s.next() > 0 {
		t.Errorf("when it is to have another one it has %d, and is to have fewer: %t", len(f.has), s.surplus)
	}
	for sets = 0; s.surplus; {
		before := len(f.has)
		s.hold(mostTaken)
		if taken := before - len(f.has); taken > mostTaken || taken < mostTaken-1 && s.surplus {
			t.Fatalf("at a time %d are taken", taken)
		}
	}
	if len(f.has) != 2 || sets > 5 {
		t.Errorf("then it has %v, in %d steps", f.has, sets)
	}
	f.err = errors.New("the kernel does not")
	for a := range had {
		s.held[a] = true
	}
	if s.hold(mostTaken); s.surplus || s.next() == 0 {
		t.Error("where it fails it is tried again at once")
	}
}

// lines are what is logged, of each line the message and of how many addresses it is.
type lines struct {
	slog.Handler
	all []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if addresses, is := a.Value.Any().([]netip.Addr); is {
			l.all = append(l.all, fmt.Sprint(r.Message, ": ", len(addresses)))
		}
		return true
	})
	return nil
}

// A node that can have none of many addresses leaves them all at once, and says so of all in one line, behind what it does.
func TestManyThatANodeCannotHave(t *testing.T) {
	s := made()
	log := &lines{}
	s.Log = slog.New(log)
	sets := 0
	f := &fake{err: errors.New("there are no tables")}
	f.sets = func() { f.has = nil; sets++ }
	s.holder = f
	s.is.Candidates = make(map[netip.Addr]announce.Candidate)
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing)}
	s.links[l.name] = l
	all := make(map[netip.Addr]election.Candidacy)
	for a := netip.MustParseAddr("192.0.2.100"); len(all) < perLine; a = a.Next() {
		all[a], s.is.Candidates[a] = election.Candidacy{}, announce.Candidate{Link: "eth0", Virtual: true}
	}
	l.machine.Stand(0, nil, all)
	for ; sets == 0; s.now += 10 * time.Millisecond {
		s.do(l, l.machine.Tick(s.now))
	}
	if refused := len(l.machine.Refused()); refused != len(all) || len(log.all) > 0 {
		t.Errorf("of %d it leaves %d, and has logged %q", len(all), refused, log.all)
	}
	s.log()
	s.log()
	if want := []string{"this node answers for addresses: 100", "this node does not answer for addresses any more: 100"}; !slices.Equal(log.all, want) {
		t.Errorf("it logs %q, want %q", log.all, want)
	}
}

// A node that takes long to have one address has been silent about the others meanwhile. Where others may have those by
// then it does not say any more that it owns any, and looks first who has them.
func TestItTakesLongToHaveAnAddress(t *testing.T) {
	has, later := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")
	for _, takes := range []time.Duration{0, election.Default.Silence, election.Default.Silence + 10*time.Millisecond} {
		s := made()
		f := &fake{}
		s.holder = f
		s.is.Candidates = map[netip.Addr]announce.Candidate{later: {Link: "eth0", Virtual: true}}
		l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing)}
		s.links[l.name] = l
		l.machine.Stand(0, nil, map[netip.Addr]election.Candidacy{has: {}})
		for ; !l.machine.Owns(has); s.now += 10 * time.Millisecond {
			s.do(l, l.machine.Tick(s.now))
		}
		all := map[netip.Addr]election.Candidacy{has: {}, later: {}}
		s.do(l, l.machine.Stand(s.now, nil, all))
		f.sets = func() { s.now += takes }
		var said election.Do
		for ; !l.machine.Owns(later); s.now += 10 * time.Millisecond {
			said = s.apply(l, l.machine.Tick(s.now))
		}
		s.now -= 10 * time.Millisecond // which are of the loop
		if long := takes > s.Timing.Silence; (len(said.Say) == 0) != long || (len(said.Announce) == 0) != long {
			t.Errorf("when it has taken %s it says %v, and announces %v", takes, said.Say, said.Announce)
		} else if d := l.machine.Tick(s.now); long && len(d.Say)+len(d.Announce) > 0 {
			t.Errorf("then it says %v, and announces %v", d.Say, d.Announce)
		}
		if takes > s.Timing.Silence {
			left := s.apply(l, l.machine.End(false))
			if len(left.Say) != 2 {
				t.Errorf("when it leaves meanwhile it says %v", left.Say)
			}
		}
	}
}

// What is none of the cluster's is heeded where it says that it owns what the node may answer for, and what has the name of
// a peer or of the node always is.
func TestWhoIsHeeded(t *testing.T) {
	a, other := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")
	is := Standing{Candidates: map[netip.Addr]announce.Candidate{a: {}}, Peers: map[string]bool{"node2": true},
		Marks: map[string]wire.Mark{"node2": wire.MarkOf("node2")}}
	for _, c := range []struct {
		node  string
		mark  wire.Mark
		claim wire.Claim
		want  bool
	}{
		{"node1", wire.Mark{}, wire.Claim{Address: other}, true},
		{"node2", wire.Mark{}, wire.Claim{Address: other, State: wire.Owns}, true},
		{"node2", wire.MarkOf("node2"), wire.Claim{Address: other, State: wire.Owns}, true},
		{"node2", wire.MarkOf("another cluster's"), wire.Claim{Address: other, State: wire.Owns}, false},
		{"node2", wire.MarkOf("another cluster's"), wire.Claim{Address: a, State: wire.Owns}, true},
		{"node3", wire.Mark{}, wire.Claim{Address: other, State: wire.Owns}, false},
		{"node3", wire.Mark{}, wire.Claim{Address: a, State: wire.Claims}, false},
		{"node3", wire.Mark{}, wire.Claim{Address: a, State: wire.Owns}, true},
	} {
		if got := is.heeds("node1", &wire.Heartbeat{Node: c.node, Mark: c.mark, Claims: []wire.Claim{c.claim}}); got != c.want {
			t.Errorf("%+v is heeded: %t", c, got)
		}
	}
}

// What another node says that it owns is kept no longer. What it only claims, or pauses with, is.
func TestKeepsNothingOfOthers(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.100")
	s := made()
	s.kept[a], s.is.Peers = true, map[string]bool{"node2": true}
	l := &elected{name: "eth0", machine: election.New(0, "node1", s.Timing), peers: make(map[wire.MAC]peer)}
	s.links[l.name] = l
	l.machine.Stand(0, s.is.Peers, map[netip.Addr]election.Candidacy{a: {}})
	for _, c := range []struct {
		node  string
		state wire.State
		kept  bool
	}{{"node2", wire.Claims, true}, {"node2", wire.Pauses, true}, {"node3", wire.Owns, true}, {"node2", wire.Owns, false}} {
		s.dirty = false
		s.do(l, s.hear(l, []link.Event{{Heartbeat: &wire.Heartbeat{Node: c.node, Claims: []wire.Claim{{Address: a, State: c.state}}}}}))
		if s.kept[a] != c.kept || s.dirty == c.kept {
			t.Errorf("%s says %v: it is kept is %t, and there is something to do is %t", c.node, c.state, s.kept[a], s.dirty)
		}
	}
}
