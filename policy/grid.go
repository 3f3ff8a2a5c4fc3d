package policy

import (
	"cmp"
	"slices"

	"github.com/weftnet/weft/plan"
)

// grid is all that a set's rules can tell of packets but for who the other side
// is: cells, which are ranges of ports of a protocol that no rule tells apart.
// What a peer makes of the rules are the atoms that are active for it.
type grid struct {
	rules []Applied
	atoms []atom
	// first is the first atom of each rule, and after the last how many there
	// are.
	first []int
	// cells are in the order of protocols and ports. Behind the last is that
	// of all other protocols.
	cells []Decision
	// covers are, words for each cell, the atoms that match in it.
	covers bitset
	words  int
	// work is how many words of covers were looked at so far, or so.
	work int
}

// atom is a part of a rule that is active or not as a whole: its ports that have
// numbers, or a number that one of its names stands for.
type atom struct {
	rule int
	// named is what the destination must have, nil for what goes by numbers.
	named *NamedPort
	// next is the first atom of the next tier.
	next int
	// spans are the cells in which it matches, and whether those are all.
	spans []span
	all   bool
}

// span are cells from one to before another.
type span struct{ from, to int }

// nobody is what no rule decides.
const nobody = -1

// newGrid returns the grid of rules for destinations that have these named ports.
func newGrid(rules []Applied, named []NamedPort) *grid {
	g := &grid{rules: rules, first: make([]int, 0, len(rules)+1)}
	cuts := map[plan.Protocol][]int{}
	var ports [][]Port
	add := func(a atom, of []Port) {
		g.atoms, ports = append(g.atoms, a), append(ports, of)
		for _, p := range of {
			cuts[p.Protocol] = append(cuts[p.Protocol], int(p.Range.First), int(p.Range.Last)+1)
		}
	}
	for i, r := range rules {
		g.first = append(g.first, len(g.atoms))
		all, numbered := r.Ports == nil, []Port(nil)
		seen := map[NamedPort]bool{}
		for _, p := range r.Ports {
			switch {
			case p.Name != "":
				for _, n := range named {
					if n.Name == p.Name && (p.Protocol == plan.AnyProtocol || p.Protocol == n.Protocol) && !seen[n] {
						seen[n] = true
						add(atom{rule: i, named: &n}, []Port{{Protocol: n.Protocol, Range: plan.PortRange{First: n.Port, Last: n.Port}}})
					}
				}
			case p.Protocol == plan.AnyProtocol:
				all = true
			case !p.Protocol.HasPorts():
				numbered = append(numbered, Port{Protocol: p.Protocol, Range: plan.AllPorts})
			default:
				numbered = append(numbered, p)
			}
		}
		if all {
			add(atom{rule: i, all: true}, nil)
		} else if len(numbered) > 0 {
			add(atom{rule: i}, numbered)
		}
	}
	g.first = append(g.first, len(g.atoms))
	for i := len(g.atoms) - 1; i >= 0; i-- {
		g.atoms[i].next = i + 1
		if i+1 < len(g.atoms) && g.tier(i) == g.tier(i+1) {
			g.atoms[i].next = g.atoms[i+1].next
		}
	}
	for protocol, at := range cuts {
		at = append(at, 0)
		slices.Sort(at)
		at = slices.Compact(at)
		for i, from := range at {
			to := 65535
			if i+1 < len(at) {
				to = at[i+1] - 1
			}
			if from <= 65535 {
				g.cells = append(g.cells, Decision{Protocol: protocol, Ports: plan.PortRange{First: uint16(from), Last: uint16(to)}})
			}
		}
	}
	slices.SortFunc(g.cells, compareCells)
	g.words = (len(g.atoms) + 63) / 64
	g.covers = make(bitset, (len(g.cells)+1)*g.words)
	for i := range g.atoms {
		a := &g.atoms[i]
		if a.all {
			a.spans = []span{{0, len(g.cells) + 1}}
		}
		for _, p := range ports[i] {
			from, _ := slices.BinarySearchFunc(g.cells, Decision{Protocol: p.Protocol, Ports: plan.PortRange{First: p.Range.First}}, compareCells)
			to := from
			for to < len(g.cells) && g.cells[to].Protocol == p.Protocol && g.cells[to].Ports.First <= p.Range.Last {
				to++
			}
			a.spans = append(a.spans, span{from, to})
		}
		for _, s := range a.spans {
			for cell := s.from; cell < s.to; cell++ {
				g.covers[cell*g.words+i/64] |= 1 << (i % 64)
			}
		}
	}
	return g
}

func compareCells(a, b Decision) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Ports.First, b.Ports.First))
}

func (g *grid) tier(atom int) Tier { return g.rules[g.atoms[atom].rule].Tier }

// rest is the cell of what no other is about.
func (g *grid) rest() int { return len(g.cells) }

// decide returns the rule that decides in a cell, nobody if there is none.
func (g *grid) decide(active bitset, cell int) int {
	covers := g.covers[cell*g.words : (cell+1)*g.words]
	for n := 0; ; {
		a := covers.firstOfBoth(active, n)
		if a < 0 {
			return nobody
		}
		rule := g.atoms[a].rule
		if g.rules[rule].Action != Pass {
			return rule
		}
		n = g.atoms[a].next
	}
}

// all returns the rules that decide in all cells.
func (g *grid) all(active bitset) []int {
	g.work += len(g.covers)
	decided := make([]int, len(g.cells)+1)
	for cell := range decided {
		decided[cell] = g.decide(active, cell)
	}
	return decided
}

// piece is what a rule decides, in cells of one protocol.
type piece struct{ from, to, rule int }

// pieces joins what is said of cells, one by one and in order, where one rule
// says it, and where what is left out between says the same.
type pieces struct {
	grid *grid
	// instead decides in a cell of which nothing is said.
	instead func(cell int) int
	list    []piece
}

func (p *pieces) add(cell, rule int) {
	if n := len(p.list); n > 0 {
		last := &p.list[n-1]
		same := last.rule == rule && cell < p.grid.rest() && p.grid.cells[last.from].Protocol == p.grid.cells[cell].Protocol
		for between := last.to; same && between < cell; between++ {
			same = p.instead(between) == rule
		}
		if same {
			last.to = cell + 1
			return
		}
	}
	p.list = append(p.list, piece{cell, cell + 1, rule})
}

// difference returns what must be said of one peer where all that is said of
// another holds otherwise: active are the atoms of the first, others those of the
// second and decided its decisions. It returns false where these are more than
// most pieces.
func (g *grid) difference(active, others bitset, decided []int, most int) ([]piece, bool) {
	var cells bitset
	for a := range active.differing(others) {
		for _, s := range g.atoms[a].spans {
			g.work += (s.to - s.from) / 64
			cells = cells.withSpan(s)
		}
	}
	p := pieces{grid: g, instead: func(cell int) int { return decided[cell] }}
	for cell := range cells.common(cells) {
		g.work += g.words
		if rule := g.decide(active, int(cell)); rule != decided[cell] {
			if p.add(int(cell), rule); len(p.list) > most {
				return nil, false
			}
		}
	}
	return p.list, true
}

// whole returns what must be said of a peer of which nothing else holds, what is
// left for last. It returns false where these are more than most pieces.
func (g *grid) whole(active bitset, most int) ([]piece, bool) {
	rest := g.decide(active, g.rest())
	p := pieces{grid: g, instead: func(cell int) int { return g.decide(active, cell) }}
	for cell := range g.cells {
		g.work += g.words
		if rule := g.decide(active, cell); rule != rest {
			if p.add(cell, rule); len(p.list) >= most {
				return nil, false
			}
		}
	}
	return append(p.list, piece{g.rest(), g.rest() + 1, rest}), true
}

// write adds pieces to the verdicts about a peer.
func (g *grid) write(list []piece, k plan.VerdictKey, verdicts map[plan.VerdictKey]plan.Verdict) {
	for _, p := range list {
		k.Protocol, k.Ports = plan.AnyProtocol, plan.AllPorts
		if p.from < g.rest() {
			k.Protocol = g.cells[p.from].Protocol
			k.Ports = plan.PortRange{First: g.cells[p.from].Ports.First, Last: g.cells[p.to-1].Ports.Last}
		}
		v := plan.Verdict{Allow: true, Origin: Unrestricted}
		if p.rule != nobody {
			v = plan.Verdict{Allow: g.rules[p.rule].Action == Allow, Origin: g.rules[p.rule].Origin}
		}
		verdicts[k] = v
	}
}
