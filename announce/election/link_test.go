package election

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
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
