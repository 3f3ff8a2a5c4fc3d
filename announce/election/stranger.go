package election

import (
	"net/netip"
	"time"

	"github.com/weftnet/weft/announce/wire"
)

// mostAnswered is how often in a row a peer may answer that it has an address of which its
// heartbeats do not speak. Behind that its kernel answers, or its heartbeats do not arrive.
const mostAnswered = 2

// Host is who says something on the link that is no heartbeat.
type Host struct {
	// Node is which node that is, by what was heard of late, "" for none.
	Node string
	// Behind says that its Ethernet address comes behind the node's own. Of two owners that do not hear each other's heartbeats
	// so one knows that it is to stay.
	Behind bool
}

// Conflict takes note that somebody says on the link, not by a heartbeat, that an address is its own. Between nodes heartbeats decide.
// One whose heartbeats do not speak of the address, as a switch drops them, its kernel has the address, or it is none
// and says what nodes say, is no better than a stranger, so that the address has one owner there, too.
func (m *Machine) Conflict(now time.Duration, a netip.Addr, host Host) (d Do) {
	m.wake(now)
	s := m.seats[a]
	if s == nil {
		return d
	}
	switch {
	case s.phase == probing && host.Node != "" && s.answered < mostAnswered:
		s.answered++
		m.wait(now, s, m.timing.Silence) // its heartbeat is still to be read
	case s.phase == probing:
		m.meet(now, a, s, &d)
	case s.phase != owning:
	case now < m.doubt:
		// Whoever says so may have taken it over while the node was still.
		d.Withdraw = append(d.Withdraw, a)
		m.wait(now, s, m.timing.Silence)
	case host.Node != "" && s.spares(now, host.Node, m.timing):
	case s.defends(now, host, m.timing):
		// The link is told as often as when the node took the address over: of two owners neither may hear the first time.
		s.metAt, s.hasMet = now, true
		s.told, s.since = 1, now
		d.Announce = append(d.Announce, a)
	case now-s.defended >= m.timing.Burst:
		m.meet(now, a, s, &d)
	}
	return d
}

// defends reports whether the node defends an address that it owns, and takes note that it does. It does so once within
// Defend, and twice where the other one is to give way: that may be an owner, too, which then meets this one twice.
func (s *seat) defends(now time.Duration, host Host, t Timing) bool {
	most := 1
	if host.Behind {
		most = 2
	}
	switch {
	case s.defences == 0 || now-s.defended >= t.Defend:
		s.defences = 0
	case now-s.defended < t.Burst || s.defences >= most:
		return false
	}
	s.defences, s.defended = s.defences+1, now
	return true
}

// mostYields is how often within Calm a node that asks for an address waits anew as a host asks for it, too. Who asks in order to take
// the address has it by then, and answers when the node asks again. Who goes on to ask, as a switch that looks for
// hosts or a host that is stuck does, would keep all nodes from the address for as long as he likes.
const mostYields = 2

// Asked takes note that somebody asks on the link whether anybody has an address, as who is about to take it does (RFC 5227,
// section 2.1.1), and reports whether that concerns the node. Of two that ask at a time one goes on, by their Ethernet addresses; the other
// one waits, and asks again, mostYields times. Nodes that hear each other have said before that they claim it.
func (m *Machine) Asked(now time.Duration, a netip.Addr, host Host) bool {
	m.wake(now)
	s := m.seats[a]
	if s == nil || s.phase != probing || host.Node != "" || host.Behind {
		return false
	}
	if now-s.yieldedAt >= m.timing.Calm {
		s.yields = 0
	}
	if s.yields < mostYields {
		s.yields, s.yieldedAt = s.yields+1, now
		m.wait(now, s, m.timing.Silence)
	}
	return true
}

// HasYielded reports whether somebody has kept the node from an address within Calm for as long as anybody can who only asks for it.
func (m *Machine) HasYielded(now time.Duration, a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && s.yields == mostYields && now-s.yieldedAt < m.timing.Calm
}

// meet has the node leave alone an address that a stranger has, and say so.
func (m *Machine) meet(now time.Duration, a netip.Addr, s *seat, d *Do) {
	if s.phase == owning {
		d.Withdraw = append(d.Withdraw, a)
	}
	d.leave(a, wire.Stranger)
	m.leaveAlone(now, s, true)
	s.metAt, s.hasMet = now, true
}

// leaveAlone has the node leave alone an address that a stranger has, and tell others so or not.
func (m *Machine) leaveAlone(now time.Duration, s *seat, tells bool) {
	s.alone, s.tells = now+m.timing.Refused, tells
	s.refuse(s.alone)
}

// refuse has the node leave an address to others until a time.
func (s *seat) refuse(until time.Duration) {
	s.phase, s.due, s.defences, s.refused = refusing, until, 0, true
	s.owner, s.owned, s.answered = "", false, 0
}

// Refuse has the node leave an address to others for a while that it cannot serve.
func (m *Machine) Refuse(now time.Duration, a netip.Addr) (d Do) {
	s := m.seats[a]
	if s == nil || s.phase == refusing {
		return d
	}
	if s.phase == owning {
		d.Withdraw = append(d.Withdraw, a)
	}
	if s.phase != waiting {
		d.say(a, s, wire.Leaves)
	}
	s.unable = now + m.timing.Refused
	s.refuse(s.unable)
	return d
}

// IsUnable reports whether the node could not serve an address of late, and does not claim it therefore.
func (m *Machine) IsUnable(now time.Duration, a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && now < s.unable
}

// Met are the addresses that a stranger had within Calm, as the node met it itself, and that the node does not leave alone, in
// order: it or another one owns them, or looks whether the stranger is gone.
func (m *Machine) Met(now time.Duration) (met []netip.Addr) {
	for _, a := range m.order {
		if m.HasMet(now, a) {
			met = append(met, a)
		}
	}
	return met
}

// HasMet reports whether an address is among those.
func (m *Machine) HasMet(now time.Duration, a netip.Addr) bool {
	s := m.seats[a]
	return s != nil && s.hasMet && now-s.metAt < m.timing.Calm && !m.Refuses(a)
}

// Unmeet takes note that whom the node met last as a stranger that has an address is none: it is a node, whose heartbeat came later.
func (m *Machine) Unmeet(a netip.Addr) {
	if s := m.seats[a]; s != nil {
		s.hasMet = false
	}
}

// Again has the node look now, and not only when Refused is over, whether somebody else still has an address that it leaves
// alone.
func (m *Machine) Again(now time.Duration, a netip.Addr) {
	if s := m.seats[a]; s != nil && s.phase == refusing {
		s.due, s.alone = min(s.due, now), 0
	}
}
