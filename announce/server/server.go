// Package server has a node answer for addresses, for as long as it runs: on each link by an
// election among the nodes there, and of VirtualAddresses it has the node have them.
//
// It knows no registry. What the node is a candidate for it is told, and goes by it until it is
// told otherwise.
package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weftnet/weft/announce"
	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/announce/hold"
	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/printable"
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

// perLine is of how many addresses one line of the log speaks.
const perLine = 100

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
	heard   chan heard
	said    string
	// dirty says that the node owns something else than it did, or may.
	dirty bool
	// looked says that the interfaces were looked at just now. It is said then, and not sooner, what is wrong: to put that in words takes
	// the longer the more addresses it is about, and others could make it change with each frame.
	looked bool
	// notes are what is to be logged.
	notes []func()
	// again says that what the node has is to be looked at, though it is to have nothing else.
	again bool
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
	stop  func()
	// peers are the nodes that were heard there of late, by their Ethernet addresses, strangers who
	// had an address last that is refused, or of late, and unable why the node cannot answer for one.
	peers     map[wire.MAC]peer
	strangers map[netip.Addr]wire.MAC
	unable    map[netip.Addr]string
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

// peer is a node that was heard at a moment.
type peer struct {
	node string
	at   time.Duration
}

// sighting is an Ethernet address that was heard last at a moment.
type sighting struct {
	mac wire.MAC
	at  time.Duration
}

// lately is how many times Silence ago a node of another cluster was heard last that counts as there: who
// answers for addresses says so much more often.
const lately = 3

// maxHeard is up to how many Ethernet addresses are remembered for each peer: what comes with
// more of them no node sends.
const maxHeard = 4

// peer returns which node has an Ethernet address, of those that were heard of late: a node that owns nothing any
// more, or was still for a while, says nothing meanwhile, and is no stranger.
func (l *elected) peer(now time.Duration, mac wire.MAC, t election.Timing) (node string, is bool) {
	p, is := l.peers[mac]
	if !is || now-p.at > t.Calm {
		return "", false
	}
	return p.node, true
}

// host returns who has an Ethernet address, as the election is to know it.
func (l *elected) host(now time.Duration, mac wire.MAC, t election.Timing) election.Host {
	node, _ := l.peer(now, mac, t)
	return election.Host{Node: node, Behind: bytes.Compare(mac[:], l.state.MAC[:]) > 0}
}

// down says that there is the interface, and that nothing is sent and heard by it.
func (l *elected) down() bool { return l.port != nil && !l.state.Up }

// namesakeFor is for how long somebody is told of who was heard by this node's name, or as no node of the cluster. Meanwhile
// nobody else is, however many say so.
const namesakeFor = time.Minute

// forget forgets the peers that were not heard of late, who was long ago by this node's name or as no node of the cluster, and what was
// found out about addresses that are refused no more.
func (l *elected) forget(now time.Duration, t election.Timing) {
	for mac := range l.peers {
		if _, is := l.peer(now, mac, t); !is {
			delete(l.peers, mac)
		}
	}
	l.named = l.named && now-l.namedAt < namesakeFor
	maps.DeleteFunc(l.foreign, func(a netip.Addr, f sighting) bool { return now-f.at >= namesakeFor || !l.concerns(a) })
	maps.DeleteFunc(l.strangers, func(a netip.Addr, _ wire.MAC) bool { return !l.machine.Refuses(a) && !l.machine.HasMet(now, a) })
	maps.DeleteFunc(l.unable, func(a netip.Addr, _ string) bool { return !l.machine.Refuses(a) && !l.machine.IsUnable(now, a) })
}

// lookAgain has the node ask again for addresses that a node had which is none of the cluster's, and which is not heard any
// more. Where it is of another cluster, that one's other nodes come first, as they take over within less time.
func (l *elected) lookAgain(now time.Duration, t election.Timing) {
	maps.DeleteFunc(l.foreign, func(a netip.Addr, f sighting) bool {
		silent := now-f.at > lately*t.Silence && l.machine.Refuses(a) && l.strangers[a] == f.mac
		if silent {
			l.machine.Again(now, a)
		}
		return silent
	})
}

// concerns reports whether the node owns an address, or leaves it alone as somebody else has it.
func (l *elected) concerns(a netip.Addr) bool { return l.machine.Owns(a) || l.machine.Refuses(a) }

// heard is an event with the link on which it was.
type heard struct {
	on *elected
	link.Event
}

// New returns a server of a node.
func New(node string, log *slog.Logger) *Server {
	s := &Server{Node: node, Timing: election.Default, Log: log, kick: make(chan struct{}, 1), links: make(map[string]*elected),
		sent: make(map[wire.MAC]time.Duration), kept: make(map[netip.Addr]bool), held: make(map[netip.Addr]bool), heard: make(chan heard),
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
		case e := <-s.heard:
			s.tick()
			s.hearConflicts(e.on)
			s.hear(e)
		case <-look.C:
			s.tick()
			s.look()
			// What is refused may be no more, and what the node has others may have taken away.
			s.dirty, s.again, s.looked = true, s.again || len(s.held) > 0, true
		case <-timer.C:
			s.tick()
			for _, l := range s.links {
				s.hearConflicts(l) // before the node takes what others have
				s.do(l, l.machine.Tick(s.now))
			}
		}
		if s.dirty {
			s.hold()
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
				peers: make(map[wire.MAC]peer), strangers: make(map[netip.Addr]wire.MAC), unable: make(map[netip.Addr]string), foreign: make(map[netip.Addr]sighting)}
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
	port, err := link.Open(l.name, s.Log)
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
	ended := make(chan struct{})
	var forwarder sync.WaitGroup
	forwarder.Go(func() {
		for {
			select {
			case e := <-port.Events():
				select {
				case s.heard <- heard{l, e}:
				case <-ended:
					return
				}
			case <-ended:
				return
			}
		}
	})
	l.stop = func() {
		close(ended)
		forwarder.Wait()
		port.Close()
	}
}

func (s *Server) close(l *elected) {
	if l.port != nil {
		l.stop()
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
				s.do(l, l.machine.Refresh(s.now))
			}
		}
	}
	if changed {
		s.stand()
	}
}

// hear takes note of what was heard on a link.
func (s *Server) hear(e heard) {
	l := e.on
	switch {
	case s.links[l.name] != l:
	case e.Heartbeat == nil:
		s.do(l, s.conflict(l, e.Event))
	case s.is.isForeign(s.Node, e.Heartbeat):
		s.hearForeign(l, e.From, e.Heartbeat.Claims)
	case e.Heartbeat.Node == s.Node:
		s.hearName(l, e.From)
	case s.is.Peers[e.Heartbeat.Node]:
		if len(l.peers) >= maxHeard*len(s.is.Peers) {
			clear(l.peers)
		}
		l.peers[e.From] = peer{e.Heartbeat.Node, s.now}
		s.do(l, l.machine.Hear(s.now, *e.Heartbeat))
		s.yield(l, e.Heartbeat.Claims)
	}
}

// hearConflicts takes note of all at once that was heard of addresses on a link: of many it would take long to do for each what is to be
// done, and meanwhile it would be time to take others of them.
func (s *Server) hearConflicts(l *elected) {
	if l.port == nil {
		return
	}
	var d election.Do
	for _, e := range l.port.Conflicts() {
		d.Add(s.conflict(l, e))
	}
	s.do(l, d)
}

// conflict takes note of what was heard of an address, and returns what is to be done.
func (s *Server) conflict(l *elected, e link.Event) (d election.Do) {
	host := l.host(s.now, e.From, s.Timing)
	if e.Asks {
		l.machine.Asked(s.now, e.Conflict, host)
		return d
	}
	l.strangers[e.Conflict] = e.From
	return l.machine.Conflict(s.now, e.Conflict, host)
}

// hearForeign takes note of what a node owns that is none of the cluster's. It is no rival: it goes by no order of this cluster's,
// and so what ARP and neighbour discovery say of the address decides, as with any host. It is told of.
func (s *Server) hearForeign(l *elected, from wire.MAC, claims []wire.Claim) {
	for _, c := range claims {
		if c.State != wire.Owns || !l.concerns(c.Address) {
			continue
		}
		f, known := l.foreign[c.Address]
		if !known || f.mac == from {
			l.foreign[c.Address] = sighting{from, s.now}
		}
		s.dirty = s.dirty || !known
	}
}

// yield has the node keep nothing any more of what it had when the server started that another node has by now.
func (s *Server) yield(l *elected, claims []wire.Claim) {
	for _, c := range claims {
		if s.kept[c.Address] && l.machine.IsElsewhere(c.Address) {
			delete(s.kept, c.Address)
			s.dirty = true
		}
	}
}

// hearName takes note of a heartbeat with this node's own name. Where two interfaces of the node are on one link,
// it hears itself: that is nobody else, also where the one that said it is given up by then, or has another
// Ethernet address.
func (s *Server) hearName(l *elected, from wire.MAC) {
	if _, own := s.sent[from]; own {
		return
	}
	if !l.named {
		l.named, l.namesake, s.dirty = true, from, true
	}
	if l.namesake == from {
		l.namedAt = s.now
	}
}

// do carries out what an election asks for.
func (s *Server) do(l *elected, d election.Do) { s.send(l, s.apply(l, d)) }

// note has something be logged of addresses, behind what there is to do: who reads the log may have the node wait.
func (s *Server) note(what string, l *elected, addresses []netip.Addr) {
	for some := range slices.Chunk(addresses, perLine) {
		s.notes = append(s.notes, func() { s.Log.Info(what, "addresses", some, "link", l.name) })
	}
}

// log logs what is to be.
func (s *Server) log() {
	for _, note := range s.notes {
		note()
	}
	s.notes = nil
}

// apply has the node answer for what it is to answer for, and returns what is to be said of that.
func (s *Server) apply(l *elected, d election.Do) election.Do {
	if len(d.Withdraw)+len(d.Answer)+len(d.Probe) > 0 {
		s.dirty = true
		s.note("this node does not answer for addresses any more", l, d.Withdraw)
		s.note("this node answers for addresses", l, d.Answer)
		if len(d.Answer) > 0 {
			s.Took(len(d.Answer))
			s.hold() // before anybody sends to it
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

// hold has the node have the VirtualAddresses that it owns. What it cannot have it leaves to
// others. Where it cannot be listed what it has, that counts which it was known to have, until it is looked at again.
func (s *Server) hold() {
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
	if maps.Equal(wanted, s.held) && s.holdErr == nil && !s.again {
		return
	}
	s.again = false
	s.holdErr = s.holder.Set(wanted)
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

// tell tells what the node answers for.
func (s *Server) tell() {
	var owned []netip.Addr
	refused := 0
	for _, l := range s.links {
		owned = append(owned, l.machine.Owned()...)
		refused += len(l.machine.Refused())
	}
	slices.SortFunc(owned, netip.Addr.Compare)
	s.mu.Lock()
	same := slices.Equal(s.state, owned)
	s.state, s.refused = owned, refused
	s.mu.Unlock()
	if !same {
		s.Changed()
	}
}

// complain tells what is wrong.
func (s *Server) complain() {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		l := s.links[name]
		if l.err != nil && l.port == nil {
			words = append(words, l.err.Error())
		}
		if l.down() {
			words = append(words, fmt.Sprintf("interface %s is down, and this node answers for no address on its link: see its cable and its switch, or what has set it down", l.name))
		}
		words = append(words, s.trouble(l)...)
	}
	if s.holdErr != nil {
		words = append(words, s.holdErr.Error())
	}
	if text := strings.Join(words, "; "); text != s.said {
		s.said = text
		s.Problem(text)
	}
}

// trouble is what keeps the node from answering on a link as it should.
func (s *Server) trouble(l *elected) (words []string) {
	if l.named {
		words = append(words, fmt.Sprintf("on the link of %s another machine, %s, says under this node's name what it answers for: give each node a name of its own", l.name, l.namesake))
	}
	// One that is lost now and then is made up for by the next.
	if l.unsaid != nil && s.now-l.unsaidAt >= s.Timing.Silence && len(l.machine.Owned()) > 0 {
		words = append(words, fmt.Sprintf("other nodes do not hear for which addresses this node answers, and may take them over: %v: see that the interface has an MTU of 576 at least, and that nothing on the node forbids such frames", l.unsaid))
	}
	var refused, met, both []string
	unable := make(map[string][]string)
	for _, a := range l.machine.Refused() {
		if why, is := l.unable[a]; is {
			unable[why] = append(unable[why], a.String())
		} else if mac, is := l.strangers[a]; is {
			refused = append(refused, fmt.Sprintf("%s (%s)", a, s.who(l, a, mac)))
		}
	}
	for _, a := range l.machine.Met(s.now) {
		if mac, is := l.strangers[a]; is {
			met = append(met, fmt.Sprintf("%s (%s)", a, s.who(l, a, mac)))
		}
	}
	if len(met) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s somebody else has said within a minute that it has %s, for which nodes answer: take the address from that machine, or out of the cluster", l.name, printable.Few(met, 0)))
	}
	if len(refused) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s somebody else has %s, and this node leaves it alone: take the address from that machine, or out of the cluster; where it is a node that answers for it, have the switches pass frames of EtherType %#04x", l.name, printable.Few(refused, 0), wire.EtherHeartbeat))
	}
	for _, a := range slices.SortedFunc(maps.Keys(l.foreign), netip.Addr.Compare) {
		if l.machine.Owns(a) {
			both = append(both, fmt.Sprintf("%s (%s)", a, l.foreign[a].mac))
		}
	}
	if len(both) > 0 {
		words = append(words, fmt.Sprintf("on the link of %s a node of another cluster, or one that was deleted, says that it has %s, for which this node answers: give each cluster addresses of its own, and end the agent of a deleted node", l.name, printable.Few(both, 0)))
	}
	for _, why := range slices.Sorted(maps.Keys(unable)) {
		words = append(words, fmt.Sprintf("on the link of %s this node cannot answer for %s and leaves it to others: %s", l.name, printable.Few(unable[why], 0), why))
	}
	for _, d := range l.machine.Discords(s.now) {
		var all []string
		for _, a := range d.Addresses {
			all = append(all, a.String())
		}
		what := ""
		switch {
		case d.Node == "":
			what = "nodes take " + printable.Few(all, 0) + " from each other again and again"
		case d.Deaf:
			what = fmt.Sprintf("%s does not hear this node, which says that it has %s", d.Node, printable.Few(all, 0))
		default:
			what = fmt.Sprintf("this node does not hear %s, which has %s, as %s says", d.Node, printable.Few(all, 0), d.By)
		}
		words = append(words, fmt.Sprintf("on the link of %s %s: see that its switches pass all frames of EtherType %#04x, also those to groups, between all nodes", l.name, what, wire.EtherHeartbeat))
	}
	return words
}

// who says who has an address, as far as that is known.
func (s *Server) who(l *elected, a netip.Addr, mac wire.MAC) string {
	if node, is := l.peer(s.now, mac, s.Timing); is {
		return node + ", " + mac.String()
	}
	if f, is := l.foreign[a]; is && f.mac == mac {
		return "a node of another cluster or a deleted one, " + mac.String()
	}
	return mac.String()
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
