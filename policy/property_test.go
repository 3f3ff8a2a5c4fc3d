package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// Small worldMaker, in which everything meets everything else: few names, few
// labels, prefixes and addresses that lie in one another.
var (
	someNamespaces = []string{"a", "b", "c"}
	someLabels     = []string{"", "x=1", "x=2", "y=1", "x=1,y=1"}
	someSelectors  = []string{"", "x=1", "x=2", "y", "!x", "x in (1,2),y=1", "x notin (2)", "nothing"}
	somePrefixes   = []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.4/30", "10.1.2.5/32", "192.0.2.0/24", "192.0.2.1/32", "::/0", "fd00::/8", "fd00::5/128"}
	someAddresses  = []string{"10.1.1.2", "10.1.1.3", "10.1.2.4", "10.1.2.5", "10.1.2.9", "10.9.0.1", "192.0.2.1", "fd00::5", "fd00::6"}
	otherAddresses = []string{"0.0.0.0", "9.255.255.255", "10.0.0.0", "10.255.255.255", "10.1.2.255", "10.1.3.0", "10.1.2.7", "10.1.2.8", "192.0.2.0", "192.0.2.2", "198.51.100.7", "fcff::1", "fe00::1", "2001:db8::1"}
	someNamedPorts = []string{"http=tcp/80", "http=tcp/8080", "dns=tcp/53", "dns=udp/53"}
	somePorts      = []string{"tcp", "tcp/80", "tcp/53-80", "tcp/81-8080", "tcp/8000-65535", "tcp/0", "udp/53", "udp", "sctp/7", "icmp", "any", "tcp/http", "any/http", "any/dns", "udp/dns", "tcp/none"}
	someTags       = []string{"1", "2", "3", "4"}
	someNodes      = []string{"n2", "n3"}
	someMachines   = []string{"m1", "m2"}
	someDomains    = []string{"example.com", "*.example.com"}
	someInterfaces = []string{"weft1", "weft2", "weft3"}
	probedPorts    = []uint16{0, 7, 52, 53, 54, 79, 80, 81, 7999, 8000, 8080, 8081, 65535}
	probed         = []plan.Protocol{plan.TCP, plan.UDP, plan.SCTP, plan.ICMP, 47}
)

func some(t *rapid.T, label string, of []string, most int) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(of), 0, min(most, len(of)), rapid.ID[string]).Draw(t, label)
}

func maybe[T any](g *rapid.Generator[T]) *rapid.Generator[*T] { return rapid.Ptr(g, true) }

func identities() *rapid.Generator[identitySpec] {
	return rapid.Custom(func(t *rapid.T) identitySpec {
		return identitySpec{rapid.SampledFrom(someNamespaces).Draw(t, "namespace"), rapid.SampledFrom(someLabels).Draw(t, "labels"),
			slices.Sorted(slices.Values(some(t, "ports", someNamedPorts, 2)))}
	})
}

func selectors() *rapid.Generator[selectorSpec] {
	return rapid.Custom(func(t *rapid.T) selectorSpec {
		var s selectorSpec
		if rapid.Bool().Draw(t, "namespaced") {
			s.Namespace = rapid.SampledFrom(someNamespaces).Draw(t, "namespace")
		} else {
			s.Namespaces = maybe(rapid.SampledFrom(someSelectors)).Draw(t, "namespaces")
		}
		s.Pods = maybe(rapid.SampledFrom(someSelectors)).Draw(t, "pods")
		return s
	})
}

func peerSpecs() *rapid.Generator[peerSpec] {
	return rapid.Custom(func(t *rapid.T) peerSpec {
		switch rapid.SampledFrom([]string{"pods", "pods", "block", "block", "nodes", "domain", "nothing"}).Draw(t, "peer") {
		case "pods":
			s := selectors().Draw(t, "selector")
			return peerSpec{Pods: &s}
		case "block":
			return peerSpec{Block: rapid.SampledFrom(somePrefixes).Draw(t, "block"), Except: some(t, "except", somePrefixes, 2)}
		case "nodes":
			s := rapid.SampledFrom(someSelectors).Draw(t, "nodes")
			return peerSpec{Nodes: &s}
		case "domain":
			return peerSpec{Domain: rapid.SampledFrom(someDomains).Draw(t, "domain")}
		}
		return peerSpec{}
	})
}

func ruleSpecs(actions ...string) *rapid.Generator[ruleSpec] {
	return rapid.Custom(func(t *rapid.T) ruleSpec {
		r := ruleSpec{Action: rapid.SampledFrom(actions).Draw(t, "action")}
		r.Peers = maybe(rapid.SliceOfN(peerSpecs(), 0, 3)).Draw(t, "peers")
		r.Ports = maybe(rapid.SliceOfN(rapid.SampledFrom(somePorts), 0, 3)).Draw(t, "ports")
		return r
	})
}

func policySpecs() *rapid.Generator[policySpec] {
	return rapid.Custom(func(t *rapid.T) policySpec {
		p := policySpec{
			Tier:    rapid.SampledFrom([]string{"", "", "admin", "baseline"}).Draw(t, "tier"),
			Subject: selectors().Draw(t, "subject"),
		}
		actions := []string{"allow"}
		if p.Tier == "" {
			p.Isolates = some(t, "isolates", []string{"ingress", "egress"}, 2)
		} else {
			p.Priority = rapid.IntRange(0, 2).Draw(t, "priority")
			actions = []string{"allow", "deny", "pass"}
		}
		p.Ingress = rapid.SliceOfN(ruleSpecs(actions...), 0, 3).Draw(t, "ingress")
		p.Egress = rapid.SliceOfN(ruleSpecs(actions...), 0, 3).Draw(t, "egress")
		return p
	})
}

// edit puts another of its kind, or none, in the place of what a world has of a
// name.
func edit[S any](t *rapid.T, of *map[string]S, names []string, g *rapid.Generator[S]) {
	name := rapid.SampledFrom(names).Draw(t, "name")
	m := maps.Clone(*of)
	if m == nil {
		m = map[string]S{}
	}
	if s := maybe(g).Draw(t, "is"); s != nil {
		m[name] = *s
	} else {
		delete(m, name)
	}
	*of = m
}

var addressSpecs = rapid.Custom(func(t *rapid.T) []string { return some(t, "addresses", someAddresses, 3) })

func (s *worldSpec) edit(t *rapid.T, kind string) {
	switch kind {
	case "namespace":
		edit(t, &s.Namespaces, someNamespaces, rapid.SampledFrom(someLabels))
	case "group":
		edit(t, &s.Groups, someTags, identities())
	case "node":
		edit(t, &s.Nodes, someNodes, rapid.MapOfN(rapid.SampledFrom(someTags), addressSpecs, 0, 3))
	case "machine":
		edit(t, &s.Machines, someMachines, rapid.Custom(func(t *rapid.T) machineSpec {
			return machineSpec{rapid.SampledFrom(someLabels).Draw(t, "labels"), addressSpecs.Draw(t, "addresses")}
		}))
	case "domain":
		edit(t, &s.Domains, someDomains, addressSpecs)
	case "local":
		edit(t, &s.Local, someInterfaces, rapid.Custom(func(t *rapid.T) localSpec {
			one := func(label string) bool { return rapid.IntRange(0, 5).Draw(t, label) == 5 }
			id := identities()
			if names := slices.Sorted(maps.Keys(s.Local)); len(names) > 0 && rapid.Bool().Draw(t, "alike") {
				id = rapid.Just(s.Local[rapid.SampledFrom(names).Draw(t, "as")].identitySpec)
			}
			return localSpec{id.Draw(t, "identity"), "pod", addressSpecs.Draw(t, "addresses"), one("unknown"), one("unidentified"), one("ended")}
		}))
	case "policy":
		edit(t, &s.Policies, []string{"p", "q", "r", "s"}, policySpecs())
	case "peer":
		s.editPeer(t)
	}
}

// editPeer changes one peer of a rule, if there is one: a block's exceptions, or
// all of it.
func (s *worldSpec) editPeer(t *rapid.T) {
	if len(s.Policies) == 0 {
		return
	}
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(s.Policies))).Draw(t, "name")
	p := s.Policies[name]
	rules := &p.Ingress
	if rapid.Bool().Draw(t, "egress") {
		rules = &p.Egress
	}
	*rules = slices.Clone(*rules)
	for i, r := range *rules {
		if r.Peers == nil || len(*r.Peers) == 0 {
			continue
		}
		peers := slices.Clone(*r.Peers)
		if j := rapid.IntRange(0, len(peers)-1).Draw(t, "peer"); peers[j].Block != "" {
			peers[j].Except = some(t, "except", somePrefixes, 2)
		} else {
			peers[j] = peerSpecs().Draw(t, "peer")
		}
		(*rules)[i].Peers = &peers
		break
	}
	s.Policies = maps.Clone(s.Policies)
	s.Policies[name] = p
}

// editKinds are what a change is of; peers more often than the rest.
var editKinds = rapid.SampledFrom([]string{"namespace", "group", "node", "machine", "domain", "local", "policy", "peer", "peer"})

func drawWorld(t *rapid.T) worldSpec {
	var s worldSpec
	for _, kind := range []string{"local", "local", "policy", "policy", "policy", "namespace", "namespace", "group", "group", "node", "node"} {
		s.edit(t, kind)
	}
	for range rapid.IntRange(0, 12).Draw(t, "edits") {
		s.edit(t, editKinds.Draw(t, "kind"))
	}
	return s
}

// check holds tables against what Resolve says of each pair of parties.
func check(t *rapid.T, w *World, tables Tables) {
	p := &plan.Plan{Local: plan.Local{Node: "node1"}, Classes: tables.Classes, Within: tables.Within, Verdicts: tables.Verdicts}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	checkLeast(t, p)
	for _, l := range w.Local {
		policies := tables.Endpoints[l.Interface]
		for _, d := range directions {
			set := policies.Ingress
			if d == plan.Outgoing {
				set = policies.Egress
			}
			if l.Identity == nil {
				checkUnknown(t, w, l, d, p, set)
				continue
			}
			rules := Applicable(w.Policies, l.Identity, w.labelsOf(l.Namespace), d)
			if (set == "") != (len(rules) == 0) {
				t.Fatalf("%s %s: policy %q for %d rules", l.Interface, d, set, len(rules))
			}
			if set == "" {
				continue
			}
			if _, ok := p.Verdicts.Get(plan.Otherwise(set, d)); !ok {
				t.Fatalf("policy %s %s has no entry for what no other matches", set, d)
			}
			for _, text := range slices.Concat(someAddresses, otherAddresses) {
				a := netip.MustParseAddr(text)
				peer := w.partyAt(a)
				destination := l.Identity
				if d == plan.Outgoing {
					destination = peer.Identity
				}
				decisions := Resolve(rules, peer, destination)
				class, _ := p.ClassAt(w.Network, a)
				for _, protocol := range probed {
					for _, port := range probedPorts {
						if !protocol.HasPorts() {
							port = 0
						}
						want := readDecision(decisions, protocol, port)
						_, got, ok := p.Verdict(set, d, class, protocol, port)
						if !ok || got.Allow != want.Allow || got.Origin != want.Origin {
							t.Fatalf("%s %s, peer %s (class %s), %s port %d: %v (%v), want %v\n%s", l.Interface, d, a, class, protocol, port, got, ok, want, p)
						}
					}
				}
			}
		}
	}
}

// checkLeast fails if something stays as it is without some entry.
func checkLeast(t *rapid.T, p *plan.Plan) {
	for k, v := range p.Verdicts.All() {
		if k == plan.Otherwise(k.Policy, k.Direction) || k.Protocol == plan.AnyProtocol && k.Peer >= firstRow {
			continue // what others fall back to must decide
		}
		without := plan.Plan{Verdicts: p.Verdicts.Delete(k)}
		if _, within := p.Within.Get(plan.WithinKey{Class: k.Peer}); within {
			continue // without its last entry, it would be looked up as another
		}
		protocol := k.Protocol
		if protocol == plan.AnyProtocol {
			protocol = 47
		}
		for _, port := range []uint16{k.Ports.First, k.Ports.Last} {
			if _, instead, _ := without.Verdict(k.Policy, k.Direction, k.Peer, protocol, port); instead == v {
				t.Fatalf("needless at port %d: %s\n%s", port, k.Line(v), p)
			}
		}
	}
	for k, v := range p.Classes.All() {
		around, longest := plan.Class(0), -1
		for o, m := range p.Classes.All() {
			if o != k && contains(o.Prefix, k.Prefix) && o.Prefix.Bits() > longest {
				around, longest = m.Class, o.Prefix.Bits()
			}
		}
		if around == v.Class {
			t.Fatalf("needless: %s\n%s", k.Line(v), p)
		}
	}
}

func checkUnknown(t *rapid.T, w *World, l *Local, d plan.Direction, p *plan.Plan, set string) {
	concerned := slices.ContainsFunc(w.Policies, func(p *Policy) bool {
		rules, isolates := p.side(d)
		return (l.Unidentified || p.Subject.SelectsNamespace(l.Namespace, w.labelsOf(l.Namespace))) && (len(rules) > 0 || isolates)
	})
	if !concerned {
		if set != "" {
			t.Fatalf("%s %s has policy %s, but nothing could concern it", l.Interface, d, set)
		}
		return
	}
	why := "namespace " + l.Namespace + ": the labels of a pod are not known yet"
	if l.Unidentified {
		why = "the node has lost which pod this is, so any policy may be about it"
	}
	if _, v, ok := p.Verdict(set, d, 0, plan.TCP, 80); !ok || v.Allow || v.Origin != why {
		t.Fatalf("%s %s: policy %q does %v (%v)", l.Interface, d, set, v, ok)
	}
	n := 0
	for k := range p.Verdicts.From(plan.VerdictKey{Policy: set, Direction: d}) {
		if k.Policy == set && k.Direction == d {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%s %s has %d entries, want one", set, d, n)
	}
}

// readDecision reads what Resolve returns, from its comment.
func readDecision(decisions []Decision, protocol plan.Protocol, port uint16) Decision {
	for _, d := range decisions {
		if d.Protocol == protocol && d.Ports.Contains(port) {
			return d
		}
	}
	return decisions[len(decisions)-1]
}

// directly draws how many entries are said of a class before rows are shared,
// and how many namespaces make a peer wide: few enough for small worlds.
func directly(t *rapid.T) (reset func()) {
	usual, many := direct, manyOwners
	direct = rapid.SampledFrom([]int{usual, 2, 1, 0}).Draw(t, "direct")
	manyOwners = rapid.SampledFrom([]int{many, 2, 1}).Draw(t, "many owners")
	return func() { direct, manyOwners = usual, many }
}

func TestTablesDoWhatResolveSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		defer directly(t)()
		spec := drawWorld(t)
		t.Logf("world:\n%s", spec)
		w := worldMaker{}.of(spec)
		var c Compiler
		check(t, w, c.Compile(w))
	})
}

// Compiling one world after the other comes to what compiling the last one
// comes to, and what went before costs nothing.
func TestCompilingChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		defer directly(t)()
		known := worldMaker{}
		spec := drawWorld(t)
		var c Compiler
		c.Compile(known.of(spec))
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			for range rapid.IntRange(1, 3).Draw(t, "edits") {
				spec.edit(t, editKinds.Draw(t, "kind"))
			}
			t.Logf("world:\n%s", spec)
			w := known.of(spec)
			tables := c.Compile(w)
			check(t, w, tables)

			var fresh Compiler
			same := fresh.Compile(w)
			if got, want := c.renumbered(tables), fresh.renumbered(same); !got.Equal(want) {
				t.Fatalf("the tables differ from those compiled anew:\n%s", want.Diff(got))
			}
			if got, want := c.state.size(), fresh.state.size(); got != want {
				t.Fatalf("the compiler holds\n%s, one that never saw another world\n%s", got, want)
			}
			again := c.Compile(known.of(spec))
			if again.Classes != tables.Classes || again.Within != tables.Within || again.Verdicts != tables.Verdicts {
				t.Fatal("the tables of an unchanged world are others")
			}
		}
	})
}

// The kernel looks up the tag of an address first, and next what a policy says of the
// tag. A change can come in between: then it says of the tag of before what holds now.
// Where that tag is another's now, this must be no more than the address might do before
// or may do now.
func TestATagIsHandedOnWithAllThatWoreIt(t *testing.T) {
	handed := 0
	rapid.Check(t, func(t *rapid.T) {
		defer directly(t)()
		spec := worldSpec{
			Groups: map[string]identitySpec{}, Nodes: map[string]map[string][]string{"node2": {}},
			Local: map[string]localSpec{"weft1": {identitySpec: identitySpec{Namespace: "shop", Labels: "app=web"}}},
		}
		for i, tag := range someTags {
			spec.Groups[tag] = identitySpec{Namespace: "shop", Labels: "tier=" + string("xyz"[i%3])}
		}
		for _, a := range someAddresses {
			tag := rapid.SampledFrom(someTags).Draw(t, "tag")
			spec.Nodes["node2"][tag] = append(spec.Nodes["node2"][tag], a)
		}
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ruleSpec {
			tiers, all := rapid.SampledFrom([]string{"tier=x", "tier=y", "tier=z", "tier in (x,y)", "tier in (y,z)"}).Draw(t, "tiers"), ""
			peer := peerSpec{Pods: &selectorSpec{Namespaces: &all, Pods: &tiers}}
			if rapid.IntRange(0, 3).Draw(t, "of") == 0 {
				peer = peerSpec{Block: rapid.SampledFrom(somePrefixes).Draw(t, "block")}
			}
			ports := rapid.SampledFrom([][]string{{"tcp/80"}, {"tcp/443"}, {"tcp"}}).Draw(t, "ports")
			return ruleSpec{Action: "allow", Peers: &[]peerSpec{peer}, Ports: &ports}
		}), 1, 3)
		known := worldMaker{}
		var c Compiler
		var was Tables
		var before map[plan.Class]*class
		for range 4 {
			spec.Policies = map[string]policySpec{"p": {Subject: selectorSpec{Namespace: "shop"}, Isolates: []string{"ingress"}, Ingress: rules.Draw(t, "rules")}}
			t.Logf("world:\n%s", spec)
			is := c.Compile(known.of(spec))
			for number, class := range c.state.classes.byNumber {
				if old := before[number]; old != nil && old != class {
					handed++
					checkWhoWas(t, number, was, is)
				}
			}
			was, before = is, maps.Clone(c.state.classes.byNumber)
		}
	})
	if handed == 0 {
		t.Error("no number was handed on")
	}
}

// checkWhoWas holds what tables say of a class against what they and those before them
// say of each address that was of it then, itself or in the class that it was within.
func checkWhoWas(t *rapid.T, class plan.Class, was, is Tables) {
	p, q := was.planOf(), is.planOf()
	for _, text := range slices.Concat(someAddresses, otherAddresses) {
		a := netip.MustParseAddr(text)
		c0, _ := p.ClassAt(plan.DefaultNetwork, a)
		c1, _ := q.ClassAt(plan.DefaultNetwork, a)
		if within, _ := p.Within.Get(plan.WithinKey{Class: c0}); c0 != class && within.Class != class {
			continue
		}
		for name, e := range is.Endpoints {
			for d, set := range map[plan.Direction]string{plan.Incoming: e.Ingress, plan.Outgoing: e.Egress} {
				if set == "" || was.Endpoints[name] != e {
					continue
				}
				for _, protocol := range probed {
					for _, port := range probedPorts {
						if !protocol.HasPorts() {
							port = 0
						}
						_, before, _ := p.Verdict(set, d, c0, protocol, port)
						_, between, _ := q.Verdict(set, d, class, protocol, port)
						if _, now, _ := q.Verdict(set, d, c1, protocol, port); between.Allow && !before.Allow && !now.Allow {
							t.Fatalf("%s %s of %s: %s port %d of %s is allowed while its class %s goes to another, and neither before nor now (class %s)\n%s\n%s",
								set, d, name, protocol, port, a, class, c1, p, q)
						}
					}
				}
			}
		}
	}
}

// size is how many of everything the compiler holds.
func (s *state) size() string {
	links := 0
	for _, p := range s.peers.byKey {
		links += len(p.sets)
	}
	rows := 0
	for _, set := range s.sets.byKey {
		rows += len(set.rows.byKey) + len(set.rows.of)
	}
	marks := 0
	for _, at := range s.prefixes.places.at {
		marks += len(at.marks)
	}
	members := 0
	for _, m := range s.members.members {
		members += len(m)
	}
	return fmt.Sprintf("subjects %d sets %d %d wild %d names %d %d peers %d links %d groups %d namespaces %d members %d in %d selectors %d profiles %d places %d marks %d lengths %d %d zones %d nodes %d domains %d claims %d contested %d local %d classes %d %d rows %d stale %d %d %d %d",
		len(s.subjects), len(s.sets.byKey), len(s.sets.byName), len(s.sets.wild), len(s.names.selected), len(s.names.everywhere),
		len(s.peers.byKey), links, len(s.members.groups), len(s.members.namespaces), members, len(s.members.members), len(s.members.selectors), len(s.members.profiles),
		len(s.prefixes.places.at), marks, len(s.prefixes.places.lengths[0]), len(s.prefixes.places.lengths[1]), len(s.prefixes.zones), len(s.prefixes.nodes), len(s.prefixes.domains),
		len(s.owners.claims), len(s.owners.contested), len(s.owners.local), len(s.classes.all), len(s.classes.byNumber)+len(s.classes.wide), rows,
		len(s.staleSets), len(s.members.fresh), len(s.members.changed), len(s.prefixes.stale.at))
}
