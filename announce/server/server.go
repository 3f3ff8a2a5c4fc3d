// Package server has a node answer for addresses, for as long as it runs: on each link by an
// election among the nodes there, and of VirtualAddresses it has the node have them.
//
// It knows no registry. What the node is a candidate for it is told, and goes by it until it is
// told otherwise.
//
// Start reading at Server.Run; hear.go has what others say and who they are, tell.go what is said of all
// this, in the log and as problems.
package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/announce/hold"
	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/wire"
)

// Standing is what a node is a candidate for.
type Standing struct {
	Candidates map[netip.Addr]announce.Candidate
	// Peers are the nodes that are heard.
	Peers map[string]bool
	// Marks tell peers and the node itself from nodes of the same names in other clusters. Who has none here, or says
	// none, is told from nobody.
	Marks map[string]wire.Mark
	// Leaving says that the node, when the server ends, is not to be expected back.
	Leaving bool
}

// isForeign reports whether a heartbeat is of no node of the cluster, though it may have the name of one, as a node sees it.
func (s Standing) isForeign(node string, h *wire.Heartbeat) bool {
	if h.Node != node && !s.Peers[h.Node] {
		return true
	}
	mark := s.Marks[h.Node]
	return mark != (wire.Mark{}) && h.Mark != (wire.Mark{}) && mark != h.Mark
}

// heeds reports whether a heartbeat is of use to a node: one that is none of the cluster's is where it says that somebody owns
// what the node may answer for.
func (s Standing) heeds(node string, h *wire.Heartbeat) bool {
	return !s.isForeign(node, h) || slices.ContainsFunc(h.Claims, func(c wire.Claim) bool {
		_, is := s.Candidates[c.Address]
		return is && c.State == wire.Owns
	})
}

// lookEvery is how often the interfaces are looked at.
const lookEvery = time.Second

// keepFor is for how long, from when a server is first told what the node is a candidate for, it has the node
// keep the VirtualAddresses that it had before: until the node may own them again. It does so for Timing.Hold after
// the start at most. Others have them by then, and sooner where the former server said some time ago that it
// pauses, or nothing at all: one that another node is heard to have is kept no longer.
const keepFor = 3 * time.Second

// Server answers for a node's addresses. Its fields are set before Run.
type Server struct {
	Node   string
	Timing election.Timing
	Log    *slog.Logger
	// Problem is told what keeps the node from answering, "" for nothing. Changed is called when
	// State changed, Took when the node began to answer for some addresses.
	Problem func(string)
	Changed func()
	Took    func(addresses int)

	mu       sync.Mutex
	standing Standing
	kick     chan struct{}
	state    []netip.Addr
	refused  int

	// What follows is Run's own.
	start time.Time
	// clock is how long ago start was, and now what it said when it was asked last.
	clock func() time.Duration
	now   time.Duration
	is    Standing
	links map[string]*elected
	// sent says when the node itself said something last from an Ethernet address.
	sent   map[wire.MAC]time.Duration
	holder holder
	// kept are VirtualAddresses that the node had when the server started, and held those that
	// it was given.
	kept, held map[netip.Addr]bool
	// stood says that the server was told what the node is a candidate for, and stoodAt when first.
	stood   bool
	stoodAt time.Duration
	holdErr error
	// heard has an element when something was heard on a link.
	heard chan struct{}
	said  string
	// dirty says that the node owns something else than it did, or may.
	dirty bool
	// looked says that the interfaces were looked at just now. It is said then, and not sooner, what is wrong: to put that in words takes
	// the longer the more addresses it is about, and others could make it change with each frame.
	looked bool
	// notes are what is to be logged.
	notes []func()
	// again says that what the node has is to be looked at, though it is to have nothing else, and surplus that it has what is still to be
	// taken from it.
	again, surplus bool
}

// holder gives the node addresses, as a hold.Holder does.
type holder interface {
	Set(wanted map[netip.Addr]bool) error
	Held() (map[netip.Addr]bool, error)
}

// elected is a link with its election.
type elected struct {
	name    string
	machine *election.Machine
	// port is nil while the interface cannot be used, as err says.
	port  *link.Port
	state link.State
	err   error
	// peers are the nodes that were heard there of late, by their Ethernet addresses, strangers who
	// had an address last that is refused, or of late, and unable why the node cannot answer for one.
	peers     map[wire.MAC]peer
	strangers map[netip.Addr]wire.MAC
	unable    map[netip.Addr]string
	// askers are who asked last for addresses from which that kept the node for some time.
	askers map[netip.Addr]wire.MAC
	// asks says that the port is told to hear of addresses that the node only asks for.
	asks bool
	// foreign are nodes of other clusters, or deleted ones, that say they own an address which the node owns or leaves alone, by that.
	foreign map[netip.Addr]sighting
	// unsaid is why the node could not say what it owns, each time since unsaidAt, and nil where it could last.
	unsaid   error
	unsaidAt time.Duration
	// namesake is who else was heard by this node's name, and namedAt when last. While named it is told of.
	namesake wire.MAC
	namedAt  time.Duration
	named    bool
}

// down says that there is the interface, and that nothing is sent and heard by it.
func (l *elected) down() bool { return l.port != nil && !l.state.Up }

// New returns a server of a node.
func New(node string, log *slog.Logger) *Server {
	s := &Server{Node: node, Timing: election.Default, Log: log, kick: make(chan struct{}, 1), links: make(map[string]*elected),
		sent: make(map[wire.MAC]time.Duration), kept: make(map[netip.Addr]bool), held: make(map[netip.Addr]bool), heard: make(chan struct{}, 1),
		Problem: func(string) {}, Changed: func() {}, Took: func(int) {}}
	s.clock = func() time.Duration { return time.Since(s.start) }
	return s
}

// Stand has the node be a candidate for something else. Nothing of it is changed afterwards.
func (s *Server) Stand(now Standing) {
	s.change(func(was *Standing) bool { *was = now; return true })
}

// Keep has the node be a candidate no more for what keep does not say.
func (s *Server) Keep(keep func(netip.Addr, announce.Candidate) bool) {
	s.change(func(now *Standing) bool {
		kept := maps.Clone(now.Candidates)
		maps.DeleteFunc(kept, func(a netip.Addr, c announce.Candidate) bool { return !keep(a, c) })
		lost := len(kept) < len(now.Candidates)
		now.Candidates = kept
		return lost
	})
}

// change changes what the node is a candidate for. to reports whether it did.
func (s *Server) change(to func(*Standing) bool) {
	s.mu.Lock()
	changed := to(&s.standing)
	s.mu.Unlock()
	if !changed {
		return
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Answered are the addresses that the node answers for, in order.
func (s *Server) Answered() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Counts are for how many addresses the node may answer, and how many of these it leaves alone as somebody else has
// them, or as it cannot answer for them.
func (s *Server) Counts() (candidates, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.standing.Candidates), s.refused
}

// Run works until ctx ends, in the network namespace that it is called in. Other nodes then take
// over, at once where the node is leaving, and else if no server runs in a while.
func (s *Server) Run(ctx context.Context) error {
	holder, err := hold.Open()
	if err != nil {
		return err
	}
	defer holder.Close()
	s.holder, s.start = holder, time.Now()
	if s.kept, err = holder.Held(); err != nil {
		return err
	}
	s.held, s.stood = maps.Clone(s.kept), false
	s.again = true // one that was killed may have left what keeps the kernel from answering
	clear(s.sent)
	s.Problem(s.said) // and no more that it cannot run
	defer s.end()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.next())
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
			s.tick()
			if !s.stood {
				s.stood, s.stoodAt = true, s.now
			}
			s.stand()
			s.dirty = true
		case <-look.C:
			s.tick()
			s.look()
			// What is refused may be no more, and what the node has others may have taken away.
			s.dirty, s.again, s.looked = true, s.again || len(s.held) > 0, true
		case <-s.heard:
		case <-timer.C:
		}
		s.step()
		if s.dirty || s.surplus {
			s.hold(mostTaken)
			s.tell()
			s.dirty = false
		}
		if s.looked {
			s.complain()
			s.looked = false
		}
		s.vouch()
		s.log()
	}
}

// step takes note of all that was heard on each link and then of the time, and only then does what is to be done. So a node takes no
// address that others have said before to have, each link is heard however much is said on another, and of many heartbeats it is found
// out once what follows from them.
func (s *Server) step() {
	s.tick()
	for _, l := range s.links {
		var all []link.Event
		if l.port != nil {
			all = l.port.Take()
		}
		d := s.hear(l, all)
		d.Add(l.machine.Tick(s.now))
		s.do(l, d)
	}
}

// vouch has ports go on to answer, for as long as the elections do not doubt what the node owns. A server that is
// still, as its process or its machine is stopped, vouches for nothing, and so nothing answers what was asked meanwhile.
func (s *Server) vouch() {
	for _, l := range s.links {
		if l.port != nil && !l.machine.Doubts(s.now) {
			l.port.Vouch(s.start.Add(s.now + s.Timing.Silence))
		}
	}
}

func (s *Server) tick() { s.now = s.clock() }

// next is in how long something is to be done.
func (s *Server) next() time.Duration {
	s.tick()
	if s.surplus {
		return 0
	}
	next := s.now + lookEvery
	for _, l := range s.links {
		next = min(next, l.machine.Next(s.now))
	}
	return max(next-s.now, 0)
}

// stand has each link's election know what the node is a candidate for there.
func (s *Server) stand() {
	s.mu.Lock()
	s.is = s.standing
	s.mu.Unlock()
	on := make(map[string]map[netip.Addr]election.Candidacy)
	for a, c := range s.is.Candidates {
		if on[c.Link] == nil {
			on[c.Link] = make(map[netip.Addr]election.Candidacy)
		}
		on[c.Link][a] = c.Candidacy
		if s.links[c.Link] == nil {
			l := &elected{name: c.Link, machine: election.New(s.now, s.Node, s.Timing),
				peers: make(map[wire.MAC]peer), strangers: make(map[netip.Addr]wire.MAC), unable: make(map[netip.Addr]string), askers: make(map[netip.Addr]wire.MAC), foreign: make(map[netip.Addr]sighting)}
			s.links[c.Link] = l
			s.open(l)
		}
	}
	is, node := s.is, s.Node
	heeds := func(h wire.Heartbeat) bool { return is.heeds(node, &h) }
	for name, l := range s.links {
		if l.port != nil {
			l.port.Heed(heeds)
		}
		candidacies := on[name]
		if l.port == nil || l.down() {
			candidacies = nil // nobody hears it
		}
		s.do(l, l.machine.Stand(s.now, s.is.Peers, candidacies))
		if on[name] == nil {
			s.close(l)
			delete(s.links, name)
		}
	}
}

// open opens the port of a link, if it has none.
func (s *Server) open(l *elected) {
	port, err := link.Open(l.name, s.Log, s.heard)
	if err == nil {
		l.state, err = port.Look()
		if err != nil {
			port.Close()
		}
	}
	if l.err = err; err != nil {
		return
	}
	l.port = port
}

func (s *Server) close(l *elected) {
	if l.port != nil {
		l.port.Close()
		l.port = nil
	}
}

// look follows the interfaces: one that is gone, came back, is another, or has another Ethernet
// address.
func (s *Server) look() {
	changed := false
	maps.DeleteFunc(s.sent, func(_ wire.MAC, at time.Duration) bool { return s.now-at >= namesakeFor })
	for _, l := range s.links {
		l.forget(s.now, s.Timing)
		l.lookAgain(s.now, s.Timing)
		if l.port == nil {
			if s.open(l); l.port != nil {
				changed = true
			}
			continue
		}
		if l.asks {
			s.answer(l) // some may be others' by now
		}
		before := l.state
		now, err := l.port.Look()
		switch {
		case err != nil || now.Index != l.port.Index():
			s.do(l, l.machine.Stand(s.now, s.is.Peers, nil))
			s.close(l)
			if err == nil {
				s.open(l)
			} else {
				l.err = err
			}
			changed = true
		default:
			l.state = now
			changed = changed || now.Up != before.Up
			if now.MAC != before.MAC {
				l.machine.Refresh(s.now)
			}
		}
	}
	if changed {
		s.stand()
	}
}

// do carries out what an election asks for.
func (s *Server) do(l *elected, d election.Do) { s.send(l, s.apply(l, d)) }

// apply has the node answer for what it is to answer for, and returns what is to be said of that.
func (s *Server) apply(l *elected, d election.Do) election.Do {
	if len(d.Withdraw)+len(d.Answer)+len(d.Probe) > 0 {
		s.dirty = true
		s.note("this node does not answer for addresses any more", l, d.Withdraw)
		s.note("this node answers for addresses", l, d.Answer)
		if len(d.Answer) > 0 {
			s.Took(len(d.Answer))
			s.hold(0) // before anybody sends to it
		}
		s.answer(l)
		if len(d.Answer) > 0 {
			d = stillOwned(d, l.machine.Owned())
		}
	}
	// What went before may have taken long, as while the kernel was busy. Others may have by then what the node says it has.
	if s.tick(); l.machine.Doubts(s.now) {
		d = givesUp(d)
	}
	return d
}

// send says on a link what an election asks for.
func (s *Server) send(l *elected, d election.Do) {
	if l.port == nil {
		return
	}
	var errs []error
	mark := s.is.Marks[s.Node]
	if len(d.Say)+len(d.Repeat) > 0 {
		s.sent[l.state.MAC] = s.now
	}
	if len(d.Say) > 0 {
		err := l.port.Say(wire.Heartbeat{Node: s.Node, Claims: d.Say, Mark: mark})
		if l.unsaid == nil {
			l.unsaidAt = s.now
		}
		l.unsaid = err
		errs = append(errs, err)
	}
	for _, h := range d.Repeat {
		h.Mark = mark
		errs = append(errs, l.port.Say(h))
	}
	for _, a := range d.Probe {
		errs = append(errs, l.port.Probe(a))
	}
	withdrawn := make(map[netip.Addr]bool)
	for _, a := range d.Withdraw {
		withdrawn[a] = true
	}
	for _, a := range d.Announce {
		if withdrawn[a] {
			continue
		}
		errs = append(errs, l.port.Announce(a))
	}
	if err := errors.Join(errs...); err != nil {
		s.Log.Debug("cannot send on a link", "link", l.name, "error", err)
	}
}

// stillOwned leaves out of what was asked for all that only an owner says, of addresses that
// the node owns no more: it could not have them, and has said by now that it leaves them.
func stillOwned(d election.Do, owned []netip.Addr) election.Do {
	lost := func(a netip.Addr) bool { _, is := slices.BinarySearchFunc(owned, a, netip.Addr.Compare); return !is }
	d.Say = slices.DeleteFunc(slices.Clone(d.Say), func(c wire.Claim) bool { return c.State == wire.Owns && lost(c.Address) })
	d.Announce = slices.DeleteFunc(slices.Clone(d.Announce), lost)
	return d
}

// givesUp leaves out of what was asked for all by which the node, or one of which it speaks, would keep or take an address. What it asks
// for it asks for.
func givesUp(d election.Do) election.Do {
	left := election.Do{Withdraw: d.Withdraw, Answer: d.Answer, Probe: d.Probe}
	for _, c := range d.Say {
		if c.State == wire.Leaves || c.State == wire.Pauses {
			left.Say = append(left.Say, c)
		}
	}
	return left
}

// answer has the port answer for what the node owns. What it cannot answer for it leaves to others.
func (s *Server) answer(l *elected) {
	if l.port == nil {
		return
	}
	answer, watch := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	for _, a := range l.machine.Owned() {
		answer[a] = true
	}
	for _, a := range l.machine.Watched() {
		watch[a] = true
	}
	l.asks = len(watch) > len(answer)
	unable, err := l.port.Answer(answer, watch)
	if err != nil {
		s.Log.Warn("cannot answer for addresses as it should be", "link", l.name, "error", err)
	}
	if len(unable) == 0 {
		return
	}
	left := slices.SortedFunc(maps.Keys(unable), netip.Addr.Compare)
	for _, a := range left {
		l.unable[a] = unable[a].Error()
	}
	s.refuse(l, left)
}

// refuse has the node leave addresses to others that it cannot serve, all at once.
func (s *Server) refuse(l *elected, all []netip.Addr) {
	var left election.Do
	for _, a := range all {
		d := l.machine.Refuse(s.now, a)
		left.Withdraw, left.Say = append(left.Withdraw, d.Withdraw...), append(left.Say, d.Say...)
	}
	s.do(l, left)
}

// keeps reports whether the node keeps the VirtualAddresses that it had when the server started.
func (s *Server) keeps() bool {
	return s.now < s.Timing.Hold && !(s.stood && s.now >= s.stoodAt+keepFor)
}

// mostTaken is how many addresses are taken from the node at a time. The kernel takes milliseconds for one of thousands of IPv6, and
// meanwhile the node hears nobody, and others do not hear it. What it does not own any more it does not answer for, though it has it.
const mostTaken = 64

// hold has the node have the VirtualAddresses that it owns, and no others in the end: of these as many are taken from it as most says.
// What it cannot have it leaves to others. Where it cannot be listed what it has, that counts which it was known to have,
// until it is looked at again.
func (s *Server) hold(most int) {
	wanted := make(map[netip.Addr]bool)
	for _, l := range s.links {
		for _, a := range l.machine.Owned() {
			if s.is.Candidates[a].Virtual {
				wanted[a] = true
			}
		}
	}
	if s.keeps() {
		maps.Copy(wanted, s.kept)
	}
	taken := 0
	for a := range s.held { // in no order, so that one which cannot be taken keeps no others
		if wanted[a] {
			continue
		}
		if taken++; taken > most {
			wanted[a] = true
		}
	}
	s.surplus = taken > most
	if maps.Equal(wanted, s.held) && s.holdErr == nil && !s.again {
		return
	}
	s.again = false
	s.holdErr = s.holder.Set(wanted)
	s.surplus = s.surplus && s.holdErr == nil // else once it is looked at again
	held, err := s.holder.Held()
	if err != nil {
		s.holdErr = errors.Join(s.holdErr, err)
		held = s.held
	}
	s.held = held
	for _, l := range s.links {
		var unable []netip.Addr
		for _, a := range l.machine.Owned() {
			if wanted[a] && !held[a] {
				unable = append(unable, a)
			}
		}
		if len(unable) > 0 {
			s.refuse(l, unable)
		}
	}
}

// end tells others that the node does not answer any more.
func (s *Server) end() {
	s.mu.Lock()
	leaving := s.standing.Leaving
	s.mu.Unlock()
	for _, l := range s.links {
		s.do(l, l.machine.End(!leaving))
		s.close(l)
	}
	defer s.log()
	if leaving {
		if err := s.holder.Set(nil); err != nil {
			s.Log.Warn("cannot take VirtualAddresses from the node", "error", err)
		}
	}
}
