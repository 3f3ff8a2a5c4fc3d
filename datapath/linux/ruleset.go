package linux

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// ruleset is what the table of all but policies should hold, or that of these.
type ruleset struct {
	*nft.Table
	stamps Stamps
	// connections is how many the node tracks at most; 0 where it has no endpoint
	// to limit.
	connections int
}

func newRuleset(stamps Stamps, table string) *ruleset {
	return &ruleset{Table: nft.NewTable(table), stamps: stamps}
}

// reading reads a table. Only tests set it.
var reading = nft.Read

// compileRuleset returns the rules for a plan's Egress table, and those that
// judge where packets come from, and what passes: see arrivals, guard and
// crossing. Where there is nothing to judge there are no rules. most is how many
// connections the node tracks at most, and labels says whether the kernel labels them.
func compileRuleset(stamps Stamps, p *plan.Plan, s *sources, most int, labels bool) *ruleset {
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
		r.tags(p, labels)
		r.crossing(p, s)
	}
	local := r.isToEndpoint()
	if translates {
		c := r.Chain("nat")
		c.Hook = &nft.Hook{Kind: nftables.ChainTypeNAT, Number: *nftables.ChainHookPostrouting, Priority: *nftables.ChainPriorityNATSource}
		c.Add("what stays on the node keeps its source", local, nft.Decide(nft.Accept))
		r.egress("nat", p, func(e plan.Egress) nft.Verdict { return r.translation(p, e) })
	}
	if discards {
		c := r.Chain("discard")
		c.Hook = forwarding(byEgress)
		c.Add("what stays on the node is not discarded", local, nft.Decide(nft.Accept))
		c.Add("nor are replies", nft.Established(), nft.Decide(nft.Accept))
		r.egress("discard", p, func(e plan.Egress) nft.Verdict {
			if e.Action != plan.Discard {
				return nft.Accept
			}
			return nft.GoTo("discarded")
		})
		r.Chain("discarded").Add("no way out (Egress table)", r.drop(datapath.NoEgress))
	}
	return r
}

// translation is where the nat chain goes for an egress rule.
func (r *ruleset) translation(p *plan.Plan, e plan.Egress) nft.Verdict {
	switch e.Action {
	case plan.Masquerade:
		if _, ok := r.Chains["masquerade"]; !ok {
			r.masquerade(p)
		}
		return nft.GoTo("masquerade")
	case plan.SourceNAT:
		name := "source-" + identifier(e.Source.String())
		if _, ok := r.Chains[name]; !ok {
			r.Chain(name).Add(e.Source.String()+" becomes the source", nft.SourceNAT(e.Source))
		}
		return nft.GoTo(name)
	}
	return nft.Accept
}

// masquerade makes the node's address the source. Tunnels' devices have none
// for it, so there it is what the node itself uses towards other nodes' pods.
func (r *ruleset) masquerade(p *plan.Plan) {
	c := r.Chain("masquerade")
	for _, is4 := range interval.Families {
		if source := sourceTowards(p, interval.Everything(is4).Addr()); source.IsValid() && len(p.Local.Tunnels) > 0 {
			c.Add("the node's address towards tunnels", nft.IsFamily(is4), nft.MetaEqual(expr.MetaKeyOIFNAME, []byte(r.stamps.TunnelPrefix)), nft.Masquerade(source))
		}
	}
	c.Add("the node's address becomes the source", []expr.Any{&expr.Masq{FullyRandom: true}})
}

// egress adds, to the chain of that name, the way from the interface that a
// packet came from to its endpoint's own rules, from there to its tag's, and
// from there to the network's; each is a chain that looks up the destination.
func (r *ruleset) egress(name string, p *plan.Plan, decision func(plan.Egress) nft.Verdict) {
	scopes := egressScopes(p)
	chainOf := func(s scope) string { return name + "-" + s.name() }
	for s, rules := range scopes {
		c := r.Chain(chainOf(s))
		verdicts := map[netip.Prefix]nft.Value{}
		for destination, e := range rules {
			verdicts[destination] = nft.Value{Verdict: decision(e)}
		}
		for _, is4 := range interval.Families {
			intervals := interval.FlattenFamily(verdicts, is4)
			if len(intervals) == 0 {
				continue
			}
			destinations := chainOf(s) + suffix(is4)
			m := r.Set(destinations, nft.Set{Key: nft.AddressType(is4), Interval: true, Verdicts: true})
			m.Elements.AddIntervals(intervals)
			c.Add("longest destination prefix", nft.IsFamily(is4), nft.Address(is4, false), nft.VerdictOf(destinations))
		}
	}
	_, general := scopes[scope{}]
	for s := range scopes {
		if s.tagged && general {
			r.Chain(chainOf(s)).Add("then the network's rules", nft.Decide(nft.GoTo(chainOf(scope{}))))
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
			r.Chain(chainOf(way[0])).Add("then the rules of its tag or network", nft.Decide(nft.GoTo(chainOf(way[1]))))
		}
		if len(way) > 0 && way[0] != (scope{}) {
			m := r.Set(own, nft.Set{Key: nftables.TypeIFName, Verdicts: true})
			m.Elements[nft.Element{Key: nft.InterfaceKey(k.Interface)}] = nft.Value{Verdict: nft.GoTo(chainOf(way[0]))}
		}
	}
	c := r.Chain(name)
	if _, ok := r.Sets[own]; ok {
		c.Add("endpoints with rules of their own", nft.InterfaceName(), nft.VerdictOf(own))
	}
	if general {
		c.Add("all other endpoints", r.isFromEndpoint(), nft.Decide(nft.GoTo(chainOf(scope{}))))
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

func suffix(is4 bool) string {
	if is4 {
		return "-4"
	}
	return "-6"
}

// isFromEndpoint and isToEndpoint match packets by whether an endpoint's interface is
// where they came from, or go to.
func (r *ruleset) isFromEndpoint() []expr.Any {
	return nft.MetaEqual(expr.MetaKeyIIFGROUP, nft.HostEndian(r.stamps.Group))
}

func (r *ruleset) isToEndpoint() []expr.Any {
	return nft.MetaEqual(expr.MetaKeyOIFGROUP, nft.HostEndian(r.stamps.Group))
}

// fromOwnDevice matches where the interface that a packet came from is one of
// Weft's, an endpoint's included.
func fromOwnDevice() []expr.Any {
	return nft.MetaEqual(expr.MetaKeyIIFNAME, []byte(datapath.InterfacePrefix))
}
