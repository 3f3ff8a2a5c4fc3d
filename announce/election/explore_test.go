package election

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weftnet/weft/announce/wire"
	"github.com/weftnet/weft/internal/explore"
)

// coarse has few moments, so that all that can happen between nodes can be tried.
var coarse = Timing{Heartbeat: 2, Silence: 6, Skew: 1, Probe: 1, Probes: 1, Hold: 9, Defend: 10, Refused: 12, Deaf: 9, Calm: 30, Echo: 1}

var only = netip.MustParseAddr("192.0.2.7")

// world is some nodes on a link, at a moment. It is never changed, but copied.
type world struct {
	now   time.Duration
	nodes []node
	// apart says that the first node and the others do not hear each other.
	apart bool
	// What may still happen.
	losses, crashes, stalls, parts, ends, strangers int
	// alone is until when nobody may own the address, as a node has met a stranger that has it, and met since when.
	alone, met time.Duration
	// early is who owned it all the same, and again who owned it soon after it could not serve it.
	early, again string
	// dual is for how long two nodes that hear each other have both owned the address, and bare
	// for how long nobody has owned it where somebody could, without anything having gone wrong.
	dual, bare time.Duration
}

type node struct {
	name  string
	grade uint8
	// unable says that it cannot serve the address, as it finds out when it owns that, and tried is when it did last.
	unable bool
	tried  time.Duration
	// machine is nil while the node is dead.
	machine *Machine
	// inbox is what it has not heard yet.
	inbox []wire.Heartbeat
}

func (w world) clone() world {
	w.nodes = slices.Clone(w.nodes)
	for i := range w.nodes {
		if m := w.nodes[i].machine; m != nil {
			w.nodes[i].machine = m.Clone()
		}
		w.nodes[i].inbox = slices.Clone(w.nodes[i].inbox)
	}
	return w
}

// candidacy is that of a node among all, by score, as all nodes have it.
func (w world) candidacy(i int) map[netip.Addr]Candidacy {
	c := Candidacy{Grade: w.nodes[i].grade}
	for j, other := range w.nodes {
		if j != i && (other.grade < c.Grade || other.grade == c.Grade && Score(only, other.name) < Score(only, w.nodes[i].name)) {
			c.Before = append(c.Before, other.name)
		}
	}
	return map[netip.Addr]Candidacy{only: c}
}

func (w *world) peers() map[string]bool {
	peers := make(map[string]bool)
	for _, n := range w.nodes {
		peers[n.name] = true
	}
	return peers
}

func (w *world) start(i int) {
	w.nodes[i].machine = New(w.now, w.nodes[i].name, coarse)
	w.nodes[i].inbox, w.nodes[i].tried = nil, 0
	w.do(i, w.nodes[i].machine.Stand(w.now, w.peers(), w.candidacy(i)), -1)
}

func (w *world) hears(i, j int) bool { return !w.apart || (i == 0) == (j == 0) }

// do carries out what a node asks for. What it says is lost on the way to one node.
func (w *world) do(i int, d Do, lost int) {
	if n := &w.nodes[i]; n.unable && len(d.Answer) > 0 {
		if n.tried > 0 && w.now-n.tried < coarse.Refused {
			w.again = n.name
		}
		n.tried = w.now
		w.do(i, n.machine.Refuse(w.now, only), lost)
		d.Say = slices.DeleteFunc(d.Say, func(c wire.Claim) bool { return c.State == wire.Owns })
	}
	for _, h := range said(w.nodes[i].name, d) {
		for j := range w.nodes {
			if j != i && j != lost && w.hears(i, j) && w.nodes[j].machine != nil {
				w.nodes[j].inbox = append(w.nodes[j].inbox, h)
			}
		}
	}
	// A question is answered by who owns the address.
}

// said is what a node sends.
func said(node string, d Do) (all []wire.Heartbeat) {
	if len(d.Say) > 0 {
		all = append(all, wire.Heartbeat{Node: node, Claims: d.Say})
	}
	return append(all, d.Repeat...)
}

// run has a node hear what there is and take note of the time.
func (w *world) run(i, lost int) {
	n := &w.nodes[i]
	inbox := n.inbox
	n.inbox = nil
	for _, h := range inbox {
		w.do(i, n.machine.Hear(w.now, h), lost)
	}
	d := n.machine.Tick(w.now)
	w.do(i, d, lost)
	for _, a := range d.Probe {
		for j, other := range w.nodes {
			if j != i && w.hears(i, j) && other.machine != nil && len(other.machine.Owned()) > 0 && !other.machine.Doubts(w.now) {
				w.do(i, n.machine.Conflict(w.now, a, Host{Node: other.name}), lost)
			}
		}
	}
}

// judge counts for how long what should not be has been.
func (w *world) judge(fault bool) {
	var owners, able []int
	for i, n := range w.nodes {
		if n.machine == nil {
			continue
		}
		if !n.unable {
			able = append(able, i)
		}
		if len(n.machine.Owned()) > 0 {
			owners = append(owners, i)
		}
	}
	dual, bare := false, false
	for _, i := range able {
		owned := 0
		for _, j := range owners {
			if w.hears(i, j) {
				owned++
			}
		}
		bare = bare || owned == 0
		dual = dual || owned > 1
	}
	if n := len(owners); n > 0 && w.now > w.met+1 && w.now < w.alone {
		w.early = w.nodes[owners[0]].name
	}
	w.dual, w.bare = w.dual+1, w.bare+1
	if !dual || fault {
		w.dual = 0
	}
	if !bare || fault || w.now < w.alone {
		w.bare = 0
	}
}

func orders(n int) [][]int {
	if n == 2 {
		return [][]int{{0, 1}, {1, 0}}
	}
	return [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
}

// next yields all that can follow within a moment: nodes run in any order, and something goes
// wrong or not.
func (w world) next(yield func(string, world)) {
	step := func(event string, fault bool, order []int, still, lost int, before func(*world)) {
		to := w.clone()
		to.now++
		if before != nil {
			before(&to)
		}
		for _, i := range order {
			if i != still && to.nodes[i].machine != nil {
				to.run(i, lost)
			}
		}
		to.judge(fault)
		yield(event, to)
	}
	for _, order := range orders(len(w.nodes)) {
		step(fmt.Sprint("nodes run in the order ", order), false, order, -1, -1, nil)
	}
	order := orders(len(w.nodes))[0]
	for i, n := range w.nodes {
		alive := n.machine != nil
		if w.losses > 0 && alive {
			step("what is sent to "+n.name+" is lost", true, order, -1, i, func(to *world) { to.losses-- })
		}
		if w.strangers > 0 && alive && len(n.machine.Watched()) > 0 {
			step("a stranger says twice to "+n.name+" that it has it", true, order, -1, -1, func(to *world) {
				to.strangers--
				for range 2 {
					to.do(i, to.nodes[i].machine.Conflict(to.now, only, Host{}), -1)
				}
				if to.nodes[i].machine.Refuses(only) {
					to.met, to.alone = to.now, to.now+coarse.Refused
				}
			})
		}
		if w.stalls > 0 && alive {
			step(n.name+" is still", true, order, i, -1, func(to *world) { to.stalls-- })
		}
		if w.crashes > 0 && alive {
			step(n.name+" dies", true, order, -1, -1, func(to *world) { to.crashes--; to.nodes[i].machine, to.nodes[i].inbox = nil, nil })
		}
		if !alive {
			step(n.name+" starts", true, order, -1, -1, func(to *world) { to.start(i) })
		}
		if w.ends > 0 && alive {
			for _, pause := range []bool{false, true} {
				step(fmt.Sprint(n.name, " ends, to go on in a moment: ", pause), true, order, -1, -1, func(to *world) {
					to.ends--
					to.do(i, to.nodes[i].machine.End(pause), -1)
					to.nodes[i].machine, to.nodes[i].inbox = nil, nil
				})
			}
		}
	}
	if w.parts > 0 || w.apart {
		event := "the link is cut behind " + w.nodes[0].name
		if w.apart {
			event = "the link is whole again"
		}
		step(event, true, order, -1, -1, func(to *world) {
			if to.apart = !to.apart; to.apart {
				to.parts--
			}
		})
	}
}

// key tells worlds apart that have different futures: all times count by how long ago they are.
func (w world) key() []byte {
	var b []byte
	add := func(all ...any) { b = fmt.Append(b, all...); b = append(b, ';') }
	add(w.apart, " ", w.losses, " ", w.crashes, " ", w.stalls, " ", w.parts, " ", w.ends, " ", w.strangers, " ", max(w.alone-w.now, 0), " ", w.now-w.met > 1, " ", w.dual, " ", w.bare)
	ago := func(t time.Duration) time.Duration { return max(t-w.now, -20) }
	for _, n := range w.nodes {
		add(n.name, " ", n.inbox, " ", n.tried > 0, " ", max(ago(n.tried), -coarse.Refused))
		if m := n.machine; m != nil {
			add(ago(m.beat), " ", ago(m.said), " ", ago(m.ran), " ", max(0, m.doubt-w.now))
			for _, s := range m.seats {
				due := time.Duration(0)
				if s.phase != owning {
					due = max(s.due-w.now, -1)
				}
				// What was told of announcements changes no node's future.
				add(s.phase, " ", due, " ", s.probes, " ", s.owner, " ", s.worse, " ", s.answered)
				add(s.owned, " ", s.grade, " ", max(ago(s.heard), -coarse.Silence), " ", s.beside, " ", ago(s.besideSince), " ", max(ago(s.last), -coarse.Silence-1))
				add(s.lost, " ", max(s.lostAt-w.now, -coarse.Calm), " ", s.hasRepeated && s.repeated == w.now)
				add(max(s.unable-w.now, 0))
				if alone := s.alone - w.now; alone > 0 {
					add(alone, " ", s.tells, " ", max(ago(s.from), -coarse.Defend))
				}
			}
		}
	}
	return b
}

// The least times after which, if nothing goes wrong meanwhile, there is one owner.
var (
	mostDual = coarse.Heartbeat + 2
	mostBare = coarse.Hold + coarse.Silence + 3*coarse.Skew + (1+time.Duration(coarse.Probes))*coarse.Probe + 2*coarse.Heartbeat
)

func (w world) check() error {
	switch {
	case w.early != "":
		return fmt.Errorf("%s owns the address, which is to be left alone for %d moments more", w.early, w.alone-w.now)
	case w.again != "":
		return fmt.Errorf("%s owns the address less than %d moments after it could not serve it", w.again, coarse.Refused)
	case w.dual > mostDual:
		return fmt.Errorf("two nodes that hear each other have owned the address for %d moments", w.dual)
	case w.bare > mostBare:
		return fmt.Errorf("nobody has owned the address for %d moments", w.bare)
	}
	return nil
}

// TestEveryOrder visits all that can happen between nodes of which some die, start, end, are
// still or do not hear what is sent, whose link is cut, on which a stranger has the address, or of which one cannot
// serve it.
func TestEveryOrder(t *testing.T) {
	for name, w := range map[string]world{
		"two that die":               {nodes: make([]node, 2), crashes: 2},
		"two that end":               {nodes: make([]node, 2), ends: 2},
		"two that do not hear":       {nodes: make([]node, 2), losses: 3},
		"two that are still":         {nodes: make([]node, 2), stalls: 8},
		"two that are cut off":       {nodes: make([]node, 2), parts: 1},
		"two, of which one is worse": {nodes: []node{{grade: 1}, {}}, crashes: 1, losses: 1},
		"two, of which one cannot":   {nodes: []node{{grade: 1}, {unable: true}}, crashes: 1, losses: 1, ends: 1},
		"three, of which one cannot": {nodes: []node{{}, {grade: 1}, {unable: true}}, crashes: 1, losses: 1},
		"two, and a stranger":        {nodes: make([]node, 2), strangers: 2},
		"three, and a stranger":      {nodes: make([]node, 3), strangers: 1},
		"three that die":             {nodes: make([]node, 3), crashes: 1},
		"three, of all":              {nodes: []node{{}, {}, {grade: 1}}, crashes: 1, losses: 1, parts: 1, stalls: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range w.nodes {
				w.nodes[i].name = fmt.Sprint("node", i+1)
			}
			for i := range w.nodes {
				w.start(i)
			}
			limit := 30_000
			if explore.Long() {
				limit = 0
				if len(w.nodes) > 2 {
					limit = 3_000_000
				}
			}
			report := explore.Model[world]{Start: w, Next: func(w world, yield func(string, world)) { w.next(yield) }, Key: world.key, Check: world.check, Limit: limit}.Run()
			if report.Wrong != nil {
				t.Fatal(report)
			}
			t.Log(report)
		})
	}
}
