package election

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/weftnet/weft/announce/wire"
)

// discordant is a node with which one does not agree on an address, as one of them does not hear
// the other.
type discordant struct {
	node string
	// deaf says that the other one does not hear; else it is not heard, as by says who hears it.
	deaf bool
	by   string
}

// discord is what a candidate knows of nodes that do not agree on its address.
type discord struct {
	// beside is the last other owner that was heard and is to stop, since when the node hears it or others, and last
	// when it did last.
	beside            string
	besideSince, last time.Duration
	// spared is how often nodes said on the link that they have the address, since sparedAt, and were left to heartbeats.
	spared   int
	sparedAt time.Duration
	// lost is how often the node lost the address to another one as good, each time within Calm
	// of the one before, of which the last was at lostAt.
	lost   int
	lostAt time.Duration
	// with is the last one with which the node did not agree, how often in a row, and when last.
	with   discordant
	times  int
	withAt time.Duration
	// repeated is when the node told others last of an owner, and hasRepeated whether it ever did.
	repeated    time.Duration
	hasRepeated bool
}

// goesOn takes note that another node that is to stop owns the address beside this one, and
// reports whether it or others have gone on with that for so long that they do not hear this one.
func (s *discord) goesOn(now time.Duration, node string, t Timing) bool {
	if s.beside == "" || now-s.last > t.Silence {
		s.besideSince = now
	}
	s.beside, s.last = node, now
	if now-s.besideSince < t.Deaf {
		return false
	}
	s.beside = ""
	return true
}

// mostSpared is how often within Calm nodes may say on the link that they have an address that the node owns, without a
// heartbeat of theirs that says so: what they announce twice may come before that.
const mostSpared = 4

// spares takes note that another node says on the link that it has the address that this one owns, and reports whether
// that is left to heartbeats: where they say so, too, or are still to be read.
func (s *discord) spares(now time.Duration, node string, t Timing) bool {
	if s.beside == node && now-s.last <= t.Silence {
		return true
	}
	if now-s.sparedAt >= t.Calm {
		s.spared, s.sparedAt = 0, now
	}
	s.spared++
	return s.spared <= mostSpared
}

// mostLost is up to what losses of an address are counted: what is more changes nothing.
const mostLost = 10

// lose takes note that the node lost the address to another one that is as good.
func (s *discord) lose(now time.Duration, t Timing) {
	if now-s.lostAt >= t.Calm {
		s.lost = 0
	}
	s.lost, s.lostAt = min(s.lost+1, mostLost), now
}

// restless is from how many losses on an address counts as one that changes hands, and is told of. One happens
// when a link that was cut is whole again. From one less on the node waits longer before it takes it over.
const restless = 3

// penalty is how much longer the node waits before it takes over the address: Silence behind the second loss,
// and twice as long behind each other one.
func (s *discord) penalty(now time.Duration, t Timing) time.Duration {
	if s.lost < restless-1 || now-s.lostAt >= t.Calm {
		return 0
	}
	return min(t.Silence<<(s.lost-restless+1), t.Refused)
}

// note takes note that the node does not agree with another one.
func (s *discord) note(now time.Duration, with discordant, t Timing) {
	if s.with.node != with.node || s.with.deaf != with.deaf || now-s.withAt >= t.Calm {
		s.times = 0
	}
	s.with, s.times, s.withAt = with, min(s.times+1, mostLost), now
}

// overheard takes note that two nodes own or claim an address at a time, both of which a
// candidate hears, and has it tell the worse of the better: these two may not hear each other.
// It reports whether the one that it knew stays the owner for it.
func (m *Machine) overheard(now time.Duration, node string, c wire.Claim, s *seat, d *Do) bool {
	believed := m.timing.Silence
	if c.State == wire.Claims {
		// Who claims it has not heard the owner for Silence. Nor has this node, then, if that is dead, but it may have been
		// somewhat later that it heard it last. An owner that is alive was heard within a Heartbeat, or within two if one was lost.
		believed = 2 * m.timing.Heartbeat
	}
	if s.owner == "" || s.owner == node || !s.owned || now-s.heard >= believed {
		return false
	}
	owner, grade, stays := s.owner, s.grade, true
	if before(c.Address, node, c.Grade, owner, grade) {
		switch {
		case c.State == wire.Owns:
			owner, grade, stays = node, c.Grade, false
		case c.Grade < grade:
			return false // it may take it over
		}
	}
	// Where there are many candidates the first of them are enough.
	if len(s.Before) < MaxBefore && s.mayRepeat(now, m.timing) {
		d.repeat(m.node, owner, wire.Claim{Address: c.Address, State: wire.Owns, Grade: grade})
	}
	return stays
}

// mayRepeat reports whether the node may tell others what they do not know of the address, and takes note that it does.
func (s *discord) mayRepeat(now time.Duration, t Timing) bool {
	if s.hasRepeated && now-s.repeated < t.Echo {
		return false
	}
	s.repeated, s.hasRepeated = now, true
	return true
}

// repeat adds what a node says of another one.
func (d *Do) repeat(node, of string, c wire.Claim) {
	i, found := slices.BinarySearchFunc(d.Repeat, of, func(h wire.Heartbeat, of string) int { return cmp.Compare(h.Of, of) })
	if !found {
		d.Repeat = slices.Insert(d.Repeat, i, wire.Heartbeat{Node: node, Of: of})
	}
	d.Repeat[i].Claims = append(d.Repeat[i].Claims, c)
}

// hearOf takes note of what a node says that it hears from another one. That is believed of who
// has an address that the node owns or is about to, and is not said again.
func (m *Machine) hearOf(now time.Duration, h wire.Heartbeat, d *Do) {
	if h.Of == m.node || h.Of == h.Node || !m.peers[h.Of] {
		return
	}
	for _, c := range h.Claims {
		s := m.seats[c.Address]
		if s == nil || c.State != wire.Owns {
			continue
		}
		switch {
		case s.phase == owning && (now < m.doubt || m.better(h.Of, c.Grade, c.Address, s)):
			d.Withdraw = append(d.Withdraw, c.Address)
		case s.phase == probing && c.Grade <= s.Grade:
		default:
			continue
		}
		if c.Grade >= s.Grade {
			s.lose(now, m.timing)
		}
		s.note(now, discordant{node: h.Of, by: h.Node}, m.timing)
		s.owner, s.owned, s.answered = h.Of, false, 0
		m.wait(now, s, m.timing.Silence)
	}
}

// Discord is that nodes do not agree on addresses, as some do not hear others.
type Discord struct {
	// Node is another node, "" where it is not known which.
	Node string
	// Deaf says that it does not hear this one; else this one does not hear it, as By says.
	Deaf bool
	By   string
	// Addresses are those on which they do not agree, in order.
	Addresses []netip.Addr
}

// Discords are with whom the node does not agree, again and again of late, in order of their
// names.
func (m *Machine) Discords(now time.Duration) []Discord {
	found := make(map[discordant]*Discord)
	for _, a := range m.order {
		s := m.seats[a]
		with := discordant{}
		switch {
		case s.times > 0 && (s.with.deaf || s.times >= restless) && now-s.withAt < m.timing.Calm:
			with = s.with
		case s.lost < restless || now-s.lostAt >= m.timing.Calm:
			continue
		}
		group := discordant{node: with.node, deaf: with.deaf}
		if found[group] == nil {
			found[group] = &Discord{Node: with.node, Deaf: with.deaf, By: with.by}
		}
		found[group].Addresses = append(found[group].Addresses, a)
	}
	return slices.SortedFunc(func(yield func(Discord) bool) {
		for d := range maps.Values(found) {
			if !yield(*d) {
				return
			}
		}
	}, func(a, b Discord) int {
		deaf := func(d Discord) int {
			if d.Deaf {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(deaf(a), deaf(b)))
	})
}
