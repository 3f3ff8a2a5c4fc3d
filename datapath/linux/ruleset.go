package linux

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/plan"
)

// ruleset is what one of Weft's nftables tables should hold. Chains, rules and
// sets are its structure, which changes rarely; elements come and go with pods.
type ruleset struct {
	stamps Stamps
	table  string
	chains map[string]*chain
	sets   map[string]*set
	// connections is how many the node tracks at most; 0 where it has no endpoint
	// to limit.
	connections int
}

func newRuleset(stamps Stamps, table string) *ruleset {
	return &ruleset{stamps: stamps, table: table, chains: map[string]*chain{}, sets: map[string]*set{}}
}

type chain struct {
	// hook is nil for a chain that others jump to.
	hook  *hook
	rules []filterRule
}

type hook struct {
	kind     nftables.ChainType
	number   nftables.ChainHook
	priority nftables.ChainPriority
}

type filterRule struct {
	comment string // for people, at most 120 bytes
	exprs   []expr.Any
}

// set is a set, a map to verdicts, or a map to data.
type set struct {
	key      nftables.SetDatatype
	interval bool
	concat   bool
	verdicts bool
	// data is what a map to data maps to.
	data nftables.SetDatatype
	// counts makes every element count what it matches.
	counts bool
	// timeout makes elements end by themselves. They come while packets do,
	// and are not compared.
	timeout bool
	// dynamic makes rules add elements.
	dynamic bool
	// size is how many elements there may be; 0 is droppedSize where rules add
	// them, and else no bound.
	size     uint32
	elements elements
}

// elements are those of one set.
type elements map[element]value

// element is one key. An interval is two: its first address, and, marked as
// end, the address after its last. In a set of concatenations an interval is
// one, whose last key is given.
type element struct {
	key  string
	end  bool
	last string
}

// value is what a map has for an element, a verdict or data; the zero value in
// a set that is no map.
type value struct {
	verdict verdict
	data    string
}

type verdict struct {
	kind  expr.VerdictKind
	chain string
}

var accept = verdict{kind: expr.VerdictAccept}

func goTo(chain string) verdict { return verdict{expr.VerdictGoto, chain} }

func (r *ruleset) empty() bool { return len(r.chains) == 0 }

func (r *ruleset) chain(name string) *chain {
	c, ok := r.chains[name]
	if !ok {
		c = &chain{}
		r.chains[name] = c
	}
	return c
}

func (c *chain) add(comment string, exprs ...[]expr.Any) {
	c.rules = append(c.rules, filterRule{comment, slices.Concat(exprs...)})
}

func (r *ruleset) set(name string, like set) *set {
	s, ok := r.sets[name]
	if !ok {
		s = &like
		s.elements = elements{}
		r.sets[name] = s
	}
	return s
}

// compileRuleset returns the rules for a plan's Egress table, and those that
// judge where packets come from, and what passes: see arrivals, guard and
// crossing. Where there is nothing to judge there are no rules. most is how many
// connections the node tracks at most.
func compileRuleset(stamps Stamps, p *plan.Plan, s *sources, most int) *ruleset {
	r := newRuleset(stamps, stamps.Table)
	var translates, discards bool
	for _, e := range p.Egress.All() {
		translates = translates || e.Action == plan.Masquerade || e.Action == plan.SourceNAT
		discards = discards || e.Action == plan.Discard
	}
	if p.Endpoints.Len() > 0 {
		r.connections = most
	}
	if p.Endpoints.Len() > 0 || len(p.Local.Pools) > 0 || len(p.Local.Tunnels) > 0 || len(s.plain) > 0 {
		r.arrivals(p, s)
		r.guard(p, s)
		r.crossing(p)
	}
	local := r.isToEndpoint()
	if translates {
		c := r.chain("nat")
		c.hook = &hook{nftables.ChainTypeNAT, *nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource}
		c.add("what stays on the node keeps its source", local, decide(accept))
		r.egress("nat", p, func(e plan.Egress) verdict { return r.translation(p, e) })
	}
	if discards {
		c := r.chain("discard")
		c.hook = forwarding(bySender)
		c.add("what stays on the node is not discarded", local, decide(accept))
		c.add("nor are replies", established(), decide(accept))
		r.egress("discard", p, func(e plan.Egress) verdict {
			if e.Action != plan.Discard {
				return accept
			}
			return goTo("discarded")
		})
		r.chain("discarded").add("no way out (Egress table)", r.drop(datapath.NoEgress))
	}
	return r
}

// translation is where the nat chain goes for an egress rule.
func (r *ruleset) translation(p *plan.Plan, e plan.Egress) verdict {
	switch e.Action {
	case plan.Masquerade:
		if _, ok := r.chains["masquerade"]; !ok {
			r.masquerade(p)
		}
		return goTo("masquerade")
	case plan.SourceNAT:
		name := "source-" + identifier(e.Source.String())
		if _, ok := r.chains[name]; !ok {
			r.chain(name).add(e.Source.String()+" becomes the source", sourceNAT(e.Source))
		}
		return goTo(name)
	}
	return accept
}

// masquerade makes the node's address the source. Tunnels' devices have none
// for it, so there it is what the node itself uses towards other nodes' pods.
func (r *ruleset) masquerade(p *plan.Plan) {
	c := r.chain("masquerade")
	for _, is4 := range families {
		if source := sourceTowards(p, interval.Everything(is4).Addr()); source.IsValid() && len(p.Local.Tunnels) > 0 {
			c.add("the node's address towards tunnels", isFamily(is4), metaEqual(expr.MetaKeyOIFNAME, []byte(r.stamps.TunnelPrefix)), sourceNAT(source))
		}
	}
	c.add("the node's address becomes the source", []expr.Any{&expr.Masq{FullyRandom: true}})
}

// egress adds, to the chain of that name, the way from the interface that a
// packet came from to its endpoint's own rules, from there to its tag's, and
// from there to the network's; each is a chain that looks up the destination.
func (r *ruleset) egress(name string, p *plan.Plan, decision func(plan.Egress) verdict) {
	scopes := egressScopes(p)
	chainOf := func(s scope) string { return name + "-" + s.name() }
	for s, rules := range scopes {
		c := r.chain(chainOf(s))
		for _, is4 := range families {
			intervals := decisions(rules, is4, func(e plan.Egress) value { return value{verdict: decision(e)} })
			if len(intervals) == 0 {
				continue
			}
			destinations := chainOf(s) + suffix(is4)
			m := r.set(destinations, set{key: addressType(is4), interval: true, verdicts: true})
			m.elements.addIntervals(intervals)
			c.add("longest destination prefix", isFamily(is4), address(is4, false), verdictOf(destinations))
		}
	}
	_, general := scopes[scope{}]
	for s := range scopes {
		if s.tagged && general {
			r.chain(chainOf(s)).add("then the network's rules", decide(goTo(chainOf(scope{}))))
		}
	}
	own := name + "-endpoints"
	for k, e := range p.Endpoints.All() {
		var way []scope
		for _, s := range []scope{{endpoint: k.Interface}, {tagged: true, tag: e.Tag}, {}} {
			if _, ok := scopes[s]; ok {
				way = append(way, s)
			}
		}
		if len(way) > 1 && way[0].endpoint != "" {
			r.chain(chainOf(way[0])).add("then the rules of its tag or network", decide(goTo(chainOf(way[1]))))
		}
		if len(way) > 0 && way[0] != (scope{}) {
			m := r.set(own, set{key: nftables.TypeIFName, verdicts: true})
			m.elements[element{key: interfaceKey(k.Interface)}] = value{verdict: goTo(chainOf(way[0]))}
		}
	}
	c := r.chain(name)
	if _, ok := r.sets[own]; ok {
		c.add("endpoints with rules of their own", interfaceName(), verdictOf(own))
	}
	if general {
		c.add("all other endpoints", r.isFromEndpoint(), decide(goTo(chainOf(scope{}))))
	}
}

func (e elements) addIntervals(intervals []interval.Range[value]) {
	for _, i := range intervals {
		e[element{key: string(i.First.AsSlice())}] = i.Value
		if after := i.Last.Next(); after.IsValid() {
			e[element{key: string(after.AsSlice()), end: true}] = value{}
		}
	}
}

func (s scope) name() string {
	switch {
	case s.endpoint != "":
		return "interface-" + identifier(s.endpoint)
	case s.tagged:
		return fmt.Sprintf("tag-%d", s.tag)
	}
	return "network"
}

// identifier makes a string a part of a name that nft can read back.
func identifier(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

var families = []bool{true, false} // is it IPv4

func suffix(is4 bool) string {
	if is4 {
		return "-4"
	}
	return "-6"
}

func addressType(is4 bool) nftables.SetDatatype {
	if is4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}
