package server

import (
	"bytes"
	"maps"
	"net/netip"
	"time"

	"github.com/weftnet/weft/announce/election"
	"github.com/weftnet/weft/announce/link"
	"github.com/weftnet/weft/announce/wire"
)

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
	maps.DeleteFunc(l.askers, func(a netip.Addr, _ wire.MAC) bool { return !l.machine.HasYielded(now, a) })
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

// hear takes note of what was heard on a link, and returns what is to be done.
func (s *Server) hear(l *elected, all []link.Event) (d election.Do) {
	for _, e := range all {
		switch {
		case e.Heartbeat == nil:
			d.Add(s.conflict(l, e))
		case s.is.isForeign(s.Node, e.Heartbeat):
			s.hearForeign(l, e.From, e.Heartbeat.Claims)
		case e.Heartbeat.Node == s.Node:
			s.hearName(l, e.From)
		case s.is.Peers[e.Heartbeat.Node]:
			if len(l.peers) >= maxHeard*len(s.is.Peers) {
				clear(l.peers)
			}
			l.peers[e.From] = peer{e.Heartbeat.Node, s.now}
			d.Add(l.machine.Hear(s.now, *e.Heartbeat))
			l.unmeet(e.From, e.Heartbeat)
			s.yield(l, e.Heartbeat.Claims)
		}
	}
	return d
}

// conflict takes note of what was heard of an address, and returns what is to be done.
func (s *Server) conflict(l *elected, e link.Event) (d election.Do) {
	host := l.host(s.now, e.From, s.Timing)
	if e.Asks {
		if l.machine.Asked(s.now, e.Conflict, host) && l.machine.HasYielded(s.now, e.Conflict) {
			l.askers[e.Conflict] = e.From
		}
		return d
	}
	l.strangers[e.Conflict] = e.From
	return l.machine.Conflict(s.now, e.Conflict, host)
}

// hearForeign takes note of what a node owns that is none of the cluster's. It is no rival: it goes by no order of this cluster's,
// and so what ARP and neighbour discovery say of the address decides, as with any host; the node says it there. It is told of.
func (s *Server) hearForeign(l *elected, from wire.MAC, claims []wire.Claim) {
	for _, c := range claims {
		if c.State != wire.Owns || !l.concerns(c.Address) {
			continue
		}
		f, known := l.foreign[c.Address]
		if !known || f.mac == from {
			l.foreign[c.Address] = sighting{from, s.now}
		}
		if !known {
			l.machine.Announce(s.now, c.Address)
			s.dirty = true
		}
	}
}

// unmeet has a peer be no stranger any more that said on the link before that it has what it says by a heartbeat that it owns: as where
// a cut link became whole again while it told that of its addresses.
func (l *elected) unmeet(from wire.MAC, h *wire.Heartbeat) {
	if h.Of != "" || len(l.strangers) == 0 {
		return
	}
	for _, c := range h.Claims {
		if c.State == wire.Owns && l.strangers[c.Address] == from {
			l.machine.Unmeet(c.Address)
		}
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
