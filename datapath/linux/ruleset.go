package linux

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// ruleset is what one of Weft's nftables tables should hold. Chains, rules and
// sets are its structure, which changes rarely; elements come and go with pods.
type ruleset struct {
	table  string
	chains map[string]*chain
	sets   map[string]*set
}

func newRuleset(table string) *ruleset {
	return &ruleset{table: table, chains: map[string]*chain{}, sets: map[string]*set{}}
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
	timeout  bool
	elements elements
}

// elements are those of one set.
type elements map[element]value

// element is one key. An interval is two: its first address, and, marked as
// end, the address after its last.
type element struct {
	key string
	end bool
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

// compileRuleset returns the rules for a plan's Egress table, for endpoints
// with AntiSpoof, and against strangers' packets in the tunnel; peers are the
// VTEPs of the other nodes. Where there is none of these there are no rules,
// and without Egress rules the node does not even track connections.
func compileRuleset(p *plan.Plan, peers []netip.Addr) *ruleset {
	r := newRuleset(tableName)
	r.antiSpoof(p)
	r.guardTunnel(p.Local.Tunnel, peers)
	var translates, discards bool
	for _, e := range p.Egress.All() {
		translates = translates || e.Action == plan.Masquerade || e.Action == plan.SourceNAT
		discards = discards || e.Action == plan.Discard
	}
	local := metaEqual(expr.MetaKeyOIFGROUP, hostEndian(endpointGroup))
	if translates {
		c := r.chain("nat")
		c.hook = &hook{nftables.ChainTypeNAT, *nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource}
		c.add("what stays on the node keeps its source", local, decide(accept))
		r.egress("nat", p, func(e plan.Egress) verdict { return r.translation(p, e) })
	}
	if discards {
		c := r.chain("discard")
		c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookForward, *nftables.ChainPriorityFilter}
		c.add("what stays on the node is not discarded", local, decide(accept))
		c.add("nor are replies", established(), decide(accept))
		r.egress("discard", p, func(e plan.Egress) verdict {
			if e.Action != plan.Discard {
				return accept
			}
			return goTo("discarded")
		})
		r.chain("discarded").add("no way out (Egress table)", count(), decide(verdict{kind: expr.VerdictDrop}))
	}
	return r
}

// guardTunnel drops what comes to the VTEP from anyone but the nodes that the
// plan knows, a pod on this node not least. Other networks that use the same
// UDP port are left alone. What the tunnel is for is let through first.
func (r *ruleset) guardTunnel(t plan.Tunnel, peers []netip.Addr) {
	if t.IsZero() {
		return
	}
	is4 := t.VTEP.Is4()
	known := r.set("peers"+suffix(is4), set{key: addressType(is4)})
	for _, a := range peers {
		known.elements[element{key: string(a.AsSlice())}] = value{}
	}
	c := r.chain("tunnel")
	c.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookInput, *nftables.ChainPriorityRaw}
	c.add("what is no UDP", metaNotEqual(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_UDP}), decide(accept))
	c.add("known peers", isFamily(is4), address(is4, true), []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "peers" + suffix(is4)}}, decide(accept))
	c.add("VXLAN from unknown peers", isFamily(is4), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(t.Port >> 8), byte(t.Port)}},
		// The VNI follows UDP's 8 bytes and 4 bytes of flags.
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(t.VNI >> 16), byte(t.VNI >> 8), byte(t.VNI)}},
	}, count(), decide(verdict{kind: expr.VerdictDrop}))
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

// masquerade makes the node's address the source. The tunnel device has none,
// so there it is what the node itself uses towards other nodes' pods.
func (r *ruleset) masquerade(p *plan.Plan) {
	c := r.chain("masquerade")
	for _, is4 := range families {
		if source := sourceTowards(p, everything(is4).Addr()); source.IsValid() && !p.Local.Tunnel.IsZero() {
			c.add("the node's address towards tunnels", isFamily(is4), metaEqual(expr.MetaKeyOIFNAME, []byte(interfaceKey(vxlanName))), sourceNAT(source))
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
		c.add("all other endpoints", metaEqual(expr.MetaKeyIIFGROUP, hostEndian(endpointGroup)), decide(goTo(chainOf(scope{}))))
	}
}

// antiSpoof drops what comes from endpoints with another source than theirs.
// Link-local sources are for neighbour and router discovery only, the
// unspecified one for duplicate address detection and for joining groups
// (RFC 4861, section 4; RFC 3810, section 5.2.13).
//
// Every packet on the node passes the chain, so what is usual comes first: an
// endpoint's packet costs one lookup, and any other packet none.
func (r *ruleset) antiSpoof(p *plan.Plan) {
	for k, e := range p.Endpoints.All() {
		if !e.AntiSpoof {
			continue
		}
		r.set("guarded", set{key: nftables.TypeIFName}).elements[element{key: interfaceKey(k.Interface)}] = value{}
		for _, a := range e.Addresses {
			key := nftables.MustConcatSetType(nftables.TypeIFName, addressType(a.Is4()))
			s := r.set("own"+suffix(a.Is4()), set{key: key, concat: true})
			s.elements[element{key: interfaceKey(k.Interface) + string(a.AsSlice())}] = value{}
		}
	}
	if _, ok := r.sets["guarded"]; !ok {
		return
	}
	spoof := r.chain("spoof")
	spoof.hook = &hook{nftables.ChainTypeFilter, *nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw}
	spoof.add("what no endpoint sent", metaNotEqual(expr.MetaKeyIIFGROUP, hostEndian(endpointGroup)), decide(accept))
	for _, is4 := range families {
		if _, ok := r.sets["own"+suffix(is4)]; ok {
			spoof.add("an endpoint's own address", isFamily(is4), interfaceName(), addressInto(is4, true, 2),
				[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "own" + suffix(is4)}}, decide(accept))
		}
	}
	spoof.add("endpoints that must use their own addresses", interfaceName(),
		[]expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "guarded"}}, decide(goTo("foreign")))
	foreign := r.chain("foreign")
	foreign.add("neighbour and router discovery", isFamily(false), address(false, true), []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: append([]byte{0xff, 0xc0}, make([]byte, 14)...), Xor: make([]byte, 16)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte{0xfe, 0x80}, make([]byte, 14)...)},
	}, icmpv6Type(), []expr.Any{
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{133}, ToData: []byte{136}},
	}, decide(accept))
	for _, kind := range []struct {
		icmp    byte
		comment string
	}{{135, "duplicate address detection"}, {143, "multicast listeners"}} {
		foreign.add(kind.comment, isFamily(false), address(false, true), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 16)},
		}, icmpv6Type(), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{kind.icmp}}}, decide(accept))
	}
	foreign.add("somebody else's source", count(), decide(verdict{kind: expr.VerdictDrop}))
}

func (e elements) addIntervals(intervals []interval[value]) {
	for _, i := range intervals {
		e[element{key: string(i.first.AsSlice())}] = i.value
		if after := i.last.Next(); after.IsValid() {
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
