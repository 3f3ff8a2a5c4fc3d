package judge

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/profile"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// connection is a flow as a jury gets it.
func (f flow) connection() Connection {
	return Connection{Network: f.network, Protocol: f.protocol, Source: f.source, Destination: f.destination}
}

// flow is who has connected to whom.
type flow struct {
	network             string
	protocol            plan.Protocol
	source, destination netip.AddrPort
}

func parse(t *testing.T, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestJury(t *testing.T) {
	p := parse(t, `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weftaaa network default addresses 10.1.1.2,fd00::2 tag 10 ingress-policy web
endpoint weftbbb network default addresses 10.1.1.3 tag 11 egress-policy out
endpoint weftccc network default addresses 10.1.1.4 tag 12
pool blue 10.1.1.0/24 gateway 10.1.1.9
endpoint blueaaa network blue addresses 10.1.1.2 ingress-policy blue-web
endpoint bluebbb network blue addresses 10.1.1.3 tag 13
endpoint blueccc network blue addresses 10.1.1.4 tag 14 egress-policy nothing
tag blue 10.1.2.0/24 6
verdict blue-web ingress from 6 tcp 81 allow
verdict blue-web ingress from 13 tcp 81 allow
tag default 10.1.2.0/24 5
tag default fd00:2::/64 5
verdict out egress to 10 tcp allow
verdict out egress to 5 icmp allow
verdict web ingress from 5 tcp 80 allow
verdict web ingress from 11 tcp 80 allow
verdict web ingress from 12 tcp 80 deny
`)
	j := NewJury(p, []plan.Address{{Network: plan.DefaultNetwork, IP: netip.MustParseAddr("192.0.2.1")}})
	for _, c := range []struct {
		protocol    plan.Protocol
		source      string
		destination string
		forbidden   bool
		because     string
	}{
		{plan.TCP, "10.1.2.9:4711", "10.1.1.2:80", false, "the prefix's tag may"},
		{plan.TCP, "10.1.2.9:80", "10.1.1.2:81", true, "the source port does not matter"},
		{plan.TCP, "[fd00:2::9]:4711", "[fd00::2]:80", false, "so may it with IPv6"},
		{plan.TCP, "[fd00:3::9]:4711", "[fd00::2]:80", true, "nobody knows it"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.2:80", false, "both policies allow the endpoints' own tags"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.2:81", true, "egress does, ingress does not"},
		{plan.TCP, "10.1.1.3:4711", "10.1.1.4:80", true, "ingress does, egress does not"},
		{plan.TCP, "10.1.1.4:4711", "10.1.1.2:80", true, "a verdict denies it"},
		{plan.ICMP, "10.1.1.3:0", "10.1.2.1:0", false, "a verdict without ports"},
		{plan.UDP, "10.1.1.3:53", "10.1.2.1:53", true, "another protocol"},
		{plan.TCP, "172.30.0.2:4711", "10.1.1.2:22", false, "the node's own address"},
		{plan.TCP, "10.1.1.1:4711", "10.1.1.2:22", false, "the gateway is the node's own"},
		{plan.TCP, "192.0.2.1:4711", "10.1.1.2:22", false, "so is what only its interfaces know"},
		{plan.TCP, "10.1.1.3:4711", "172.30.0.2:22", true, "egress to the node"},
		{plan.TCP, "10.1.1.2:4711", "10.1.1.2:22", false, "an endpoint to itself"},
		{plan.TCP, "10.1.1.4:4711", "10.1.2.1:22", false, "no policy"},
		{plan.TCP, "10.9.9.9:1", "10.1.2.1:22", false, "no endpoint"},
	} {
		got := j.Forbids(Connection{Network: plan.DefaultNetwork, Protocol: c.protocol, Source: netip.MustParseAddrPort(c.source), Destination: netip.MustParseAddrPort(c.destination)})
		if got != c.forbidden {
			t.Errorf("%s from %s to %s: forbidden is %t (%s)", c.protocol, c.source, c.destination, got, c.because)
		}
	}
	for _, c := range []struct {
		source, destination  string
		inDefault, forbidden bool
		because              string
	}{
		{"10.1.2.9:4711", "10.1.1.2:80", false, true, "the policies are those of the network's endpoint"},
		{"10.1.2.9:4711", "10.1.1.2:81", true, false, "the tag is the network's"},
		{"10.1.1.3:4711", "10.1.1.2:81", true, false, "so is the tag of an endpoint"},
		{"10.1.1.4:4711", "10.1.1.3:80", false, true, "so is who sends"},
		{"192.0.2.1:4711", "10.1.1.2:22", false, true, "the node has the address in another network"},
		{"172.30.0.2:4711", "10.1.1.2:22", false, true, "so it has its own"},
		{"10.1.1.9:4711", "10.1.1.2:22", true, false, "the gateway of the network"},
	} {
		for network, want := range map[string]bool{plan.DefaultNetwork: c.inDefault, "blue": c.forbidden} {
			got := j.Forbids(Connection{Network: network, Protocol: plan.TCP, Source: netip.MustParseAddrPort(c.source), Destination: netip.MustParseAddrPort(c.destination)})
			if got != want {
				t.Errorf("from %s to %s in network %s: forbidden is %t (%s)", c.source, c.destination, network, got, c.because)
			}
		}
	}
}

// TestJuryOfEgress judges by egress rules that drop: what leaves the node, by who began it.
func TestJuryOfEgress(t *testing.T) {
	p := parse(t, `node node1 addresses 172.30.0.2
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint weftaaa network default addresses 10.1.1.2,fd00::2
endpoint weftbbb network default addresses 10.1.1.3 tag 11
endpoint weftccc network default addresses 10.1.1.4 tag 11
egress default any 0.0.0.0/0 drop
egress default any 203.0.113.0/24 masquerade
egress default tag 11 203.0.113.7/32 drop
egress default endpoint weftccc 203.0.113.7/32 direct
`)
	j := NewJury(p, []plan.Address{{Network: plan.DefaultNetwork, IP: netip.MustParseAddr("192.0.2.1")}})
	for _, c := range []struct {
		source, destination string
		forbidden           bool
		because             string
	}{
		{"10.1.1.2:4711", "198.51.100.7:80", true, "the network's rule drops it"},
		{"[fd00::2]:4711", "[fd00:9::7]:80", false, "no rule of the family"},
		{"10.1.1.2:4711", "203.0.113.7:80", false, "a longer prefix lets it out"},
		{"10.1.1.3:4711", "203.0.113.7:80", true, "the tag's rule drops it"},
		{"10.1.1.3:4711", "203.0.113.8:80", false, "the tag has no rule for it"},
		{"10.1.1.4:4711", "203.0.113.7:80", false, "the endpoint's own rule lets it out"},
		{"198.51.100.7:4711", "10.1.1.2:80", false, "it came from there"},
		{"10.1.1.2:4711", "10.1.1.3:80", false, "it stays on the node"},
		{"10.1.1.2:4711", "172.30.0.2:80", false, "it is for the node"},
		{"10.1.1.2:4711", "192.0.2.1:80", false, "it is for another of the node's addresses"},
		{"10.9.9.9:4711", "198.51.100.7:80", false, "no endpoint of the node began it"},
	} {
		got := j.Forbids(Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Source: netip.MustParseAddrPort(c.source), Destination: netip.MustParseAddrPort(c.destination)})
		if got != c.forbidden {
			t.Errorf("from %s to %s: forbidden is %t (%s)", c.source, c.destination, got, c.because)
		}
	}
}

// TestJuryOfUntagged judges connections that began before tags were kept: where the tag is
// believed, those are forbidden of which each packet is judged as the first.
func TestJuryOfUntagged(t *testing.T) {
	j := NewJury(parse(t, `node node1 addresses 172.30.0.2
tunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 0-100
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 carries-tags
peer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04
endpoint weftaaa network default addresses 10.1.1.2 ingress-policy p
endpoint weftbbb network default addresses 10.1.1.3
route default 10.1.2.0/24 tunnel node2
route default 10.1.3.0/24 tunnel node3
class default 10.1.2.9/32 c1
verdict p ingress from any any allow
`), nil)
	for _, c := range []struct {
		source             string
		tagged, unanswered bool
		forbidden          bool
	}{
		{"10.1.2.2:1", false, true, true},
		{"10.1.2.2:1", false, false, false},
		{"10.1.2.2:1", true, true, false},
		{"10.1.2.9:1", false, true, false}, // a table knows it
		{"10.1.3.2:1", false, true, false}, // its peer is not believed
		{"10.1.1.3:1", false, true, false}, // it is of this node
	} {
		got := j.Forbids(Connection{Network: plan.DefaultNetwork, Protocol: plan.UDP, Source: netip.MustParseAddrPort(c.source), Destination: netip.MustParseAddrPort("10.1.1.2:53"), Tagged: c.tagged, Unanswered: c.unanswered})
		if got != c.forbidden {
			t.Errorf("%+v: forbidden is %t", c, got)
		}
	}
}

// TestMayDrop holds what changes tell against all that a jury says before and after.
func TestMayDrop(t *testing.T) {
	outcomes := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *plan.Plan {
			text := "node node1 addresses 172.30.0.2\nendpoint weftaaa network default addresses 10.1.1.2" + rapid.SampledFrom([]string{"", " tag 11"}).Draw(t, "tag") + "\n"
			for _, scope := range []string{"any", "tag 11", "endpoint weftaaa"} {
				for _, prefix := range []string{"0.0.0.0/0", "203.0.113.0/24", "203.0.113.7/32"} {
					if e := rapid.SampledFrom([]string{"", "", "direct", "drop"}).Draw(t, name); e != "" {
						text += "egress default " + scope + " " + prefix + " " + e + "\n"
					}
				}
			}
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p, q := draw("before"), draw("after")
		may := MayDrop(p, q, p.Diff(q))
		for _, to := range []string{"203.0.113.7:1", "203.0.113.8:1", "198.51.100.7:1"} {
			c := Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Source: netip.MustParseAddrPort("10.1.1.2:4711"), Destination: netip.MustParseAddrPort(to)}
			drops := !NewJury(p, nil).Forbids(c) && NewJury(q, nil).Forbids(c)
			if outcomes[drops]++; drops && !may {
				t.Fatalf("to %s is dropped from now on, and nothing may be:\n%s\n%s", to, p, q)
			}
		}
		if MayDrop(p, p, p.Diff(p)) {
			t.Fatalf("nothing changes, and something may be dropped:\n%s", p)
		}
	})
	if outcomes[true] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}

func TestMayForbid(t *testing.T) {
	const text = `node node1 addresses 172.30.0.2
endpoint weftaaa network default addresses 10.1.1.2,10.1.1.9 ingress-policy web egress-policy out
endpoint weftbbb network default addresses 10.1.1.3
class default 10.1.2.5/32 c4
class default 10.1.2.7/32 c0
class default 10.1.2.8/32 c1
class default 10.1.3.0/24 7
verdict other ingress from c0 tcp 80 allow
verdict out egress to c4 any allow
verdict out egress to any tcp 25 deny
verdict out egress otherwise allow
verdict web ingress from c5 any deny
verdict web ingress from c0 tcp 80 allow
verdict web ingress from c1 tcp 80-81 allow
verdict web ingress from 7 tcp 443 deny
verdict web ingress from any tcp 443 allow
`
	p := parse(t, text)
	for _, c := range []struct {
		what        string
		replace, by string
		may         bool
	}{
		{"an address comes that may more than any", "verdict other", "class default 10.1.2.9/32 c0\nverdict other", false},
		{"an address comes that may what any may", "verdict other", "class default 10.1.2.9/32 c92\nverdict other", false},
		{"an address comes that may less than any", "verdict other", "class default 10.1.2.9/32 7\nverdict other", true},
		{"an address goes that might more", "class default 10.1.2.7/32 c0\n", "", true},
		{"an address gets a tag that may no more than any", "10.1.2.7/32 c0", "10.1.2.7/32 c3", true},
		{"an address gets the tag of who may less", "10.1.2.8/32 c1", "10.1.2.8/32 c0", true},
		{"an address leaves its prefix for a tag that may as little", "verdict other", "class default 10.1.3.9/32 7\nverdict other", false},
		{"an address comes that may nothing", "verdict other", "class default 10.1.2.9/32 c5\nverdict other", true},
		{"an address goes that might what any may not", "class default 10.1.2.5/32 c4\n", "", true},
		{"a prefix", "class default 10.1.3.0/24", "class default 10.1.3.0/25", true},
		{"a verdict allows", "verdict other", "verdict web ingress from c3 udp allow\nverdict other", false},
		{"a verdict denies what was denied", "verdict other", "verdict web ingress from c3 udp deny\nverdict other", false},
		{"a verdict denies what any may", "verdict other", "verdict web ingress from c3 tcp 443 deny\nverdict other", true},
		{"a verdict denies that allowed", "tcp 80-81 allow", "tcp 80-81 deny", true},
		{"a verdict goes", "verdict web ingress from c1 tcp 80-81 allow\n", "", true},
		{"a verdict that denied goes", "verdict web ingress from 7 tcp 443 deny\n", "", false},
		{"a verdict for fewer ports", "tcp 80-81", "tcp 81", true},
		{"a verdict for more ports", "tcp 80-81", "tcp 79-81", false},
		{"a verdict is cut in two", "tcp 80-81 allow", "tcp 80 allow\nverdict web ingress from c1 tcp 81 allow", false},
		{"a verdict for any peer goes", "verdict web ingress from any tcp 443 allow\n", "", true},
		{"a verdict for any peer comes", "from any tcp 443 allow", "from any tcp 443 allow\nverdict web ingress from any udp allow", false},
		{"a verdict has another origin", "tcp 80-81 allow", "tcp 80-81 allow # rule", false},
		{"a policy that no endpoint has", "verdict other ingress from c0 tcp 80 allow\n", "", false},
		{"an endpoint gets a policy", "addresses 10.1.1.3", "addresses 10.1.1.3 egress-policy out", true},
		{"an endpoint gets another policy", "ingress-policy web", "ingress-policy other", true},
		{"an endpoint with a policy gets another address", "10.1.1.2,", "10.1.1.4,", true},
		{"an endpoint with a policy has an address less", ",10.1.1.9", "", true},
		{"an endpoint comes without a policy", "endpoint weftbbb", "endpoint weftccc network default addresses 10.1.1.4\nendpoint weftbbb", false},
		{"an endpoint comes with a policy", "endpoint weftbbb", "endpoint weftccc network default addresses 10.1.1.4 ingress-policy web\nendpoint weftbbb", true},
		{"an endpoint without a policy goes", "endpoint weftbbb network default addresses 10.1.1.3\n", "", false},
		{"an endpoint wears what may less", "addresses 10.1.1.3", "addresses 10.1.1.3 tag 7", true},
		{"an address leaves a tag for one that may do what it might, when the tag may do more", "class default 10.1.2.7/32 c0\n", "class default 10.1.2.7/32 c6\nverdict web ingress from c6 tcp 80 allow\nverdict web ingress from c0 udp allow\n", true},
		{"the last policy goes", " ingress-policy web egress-policy out", "", false},
	} {
		changed := strings.Replace(text, c.replace, c.by, 1)
		if changed == text {
			t.Fatalf("%s: nothing to replace", c.what)
		}
		q := parse(t, changed)
		if got := MayForbid(p, q, p.Diff(q)); got != c.may {
			t.Errorf("%s: it may forbid is %t; expected %t", c.what, got, c.may)
		}
	}
}

// TestMayForbidMissesNothing checks that whatever connection a change forbids,
// or lets by while it is made, it is known to be one that may.
func TestMayForbidMissesNothing(t *testing.T) {
	outcomes := map[bool]int{}
	forbid, slip := 0, 0
	in := map[string]int{}
	property := func(t *rapid.T) {
		p := plantest.Policed(plantest.Shapes()).Draw(t, "shape").Plans()["node1"]
		if p == nil || !profile.Policed(p) {
			return
		}
		p = withTwins(t, p)
		q := fewChanges(t, p)
		if q.Validate() != nil {
			return // what others are like has gone
		}
		may := MayForbid(p, q, p.Diff(q))
		outcomes[may]++
		before, after := NewJury(p, nil), NewJury(q, nil)
		changed := map[profile.PeerKey]bool{}
		for _, c := range p.Diff(q).Verdicts {
			changed[profile.PeerOf(c.Key)] = true
		}
		// passes reports whether a packet may pass in one direction while the change is
		// made, when it may be taken for what its address was, for one around that, or for
		// any peer. Where nothing changes of what is said of it, it is what it is.
		passes := func(e plan.Endpoint, policy profile.PolicyKey, other plan.Address, c flow) bool {
			if !slices.Contains(profile.PoliciesOf(e), policy) {
				return true
			}
			around := func(in *plan.Plan, c plan.Class) []plan.Class {
				w, ok := in.Within.Get(plan.WithinKey{Class: c})
				if of := (profile.PeerKey{PolicyKey: policy, Peer: c}); !ok || len(profile.Entries(p, of)) > 0 && len(profile.Entries(q, of)) > 0 {
					return []plan.Class{c}
				}
				return []plan.Class{c, w.Class}
			}
			was, is := around(p, before.classOf(other)), around(q, after.classOf(other))
			all := append(slices.Clone(was), is...)
			if slices.Equal(was, is) && !slices.ContainsFunc(all, func(t plan.Class) bool { return changed[profile.PeerKey{PolicyKey: policy, Peer: t}] }) {
				all = is[:1]
			} else {
				all = append(all, plan.AnyPeer)
			}
			return slices.ContainsFunc(all, func(t plan.Class) bool {
				_, v, _ := q.Verdict(policy.Name, policy.Direction, t, c.protocol, c.destination.Port())
				return v.Allow
			})
		}
		slips := func(c flow) bool {
			source, destination := plan.Address{Network: c.network, IP: c.source.Addr()}, plan.Address{Network: c.network, IP: c.destination.Addr()}
			from, to := after.endpoints[source], after.endpoints[destination]
			return passes(from, profile.PolicyKey{Name: from.EgressPolicy, Direction: plan.Outgoing}, destination, c) &&
				(after.owns(source) || passes(to, profile.PolicyKey{Name: to.IngressPolicy, Direction: plan.Incoming}, source, c))
		}
		for c := range connectionsOf(p, q) {
			if !after.Forbids(c.connection()) {
				continue
			}
			forbidden := !before.Forbids(c.connection())
			if forbidden {
				forbid++
				in[c.network]++
			}
			if slips(c) {
				slip++
				forbidden = true
			}
			if forbidden {
				if !may {
					t.Fatalf("%s in network %s from %s to %s is forbidden now, and was or may have been allowed, though nothing may be\nfrom:\n%s\nto:\n%s", c.protocol, c.network, c.source, c.destination, p, q)
				}
				if forbid > 0 && slip > 0 && in[plan.DefaultNetwork] > 0 && in["blue"] > 0 {
					return
				}
			}
		}
	}
	all := func() bool {
		return forbid > 0 && slip > 0 && outcomes[true] > 0 && outcomes[false] > 0 && in[plan.DefaultNetwork] > 0 && in["blue"] > 0
	}
	// What is rare may come in none of a hundred cases.
	for range 10 {
		if rapid.Check(t, property); all() {
			break
		}
	}
	if in[plan.DefaultNetwork] == 0 || in["blue"] == 0 {
		t.Errorf("what is forbidden by networks: %v; both are to be tried", in)
	}
	if forbid == 0 || slip == 0 || outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("outcomes %v, %d changes that forbid, %d that let by: something was not tried", outcomes, forbid, slip)
	}
}

// withTwins draws a plan whose endpoints have twins in another network, with the same
// addresses, tags and policies of their own.
func withTwins(t *rapid.T, p *plan.Plan) *plan.Plan {
	q := *p
	for k, e := range p.Endpoints.All() {
		e.Network = "blue"
		e.Tag = rapid.SampledFrom([]plan.Tag{0, 10, 11}).Draw(t, "twin's tag")
		policy := rapid.SampledFrom([]string{"", "p1", "p2"})
		e.IngressPolicy, e.EgressPolicy = policy.Draw(t, "twin's ingress"), policy.Draw(t, "twin's egress")
		q.Endpoints = q.Endpoints.Set(plan.EndpointKey{Interface: "twin-" + k.Interface}, e)
		for _, a := range e.Addresses {
			if rapid.Bool().Draw(t, "twin has a class") {
				q.Classes = q.Classes.Set(plan.ClassKey{Network: e.Network, Prefix: interval.Single(a)}, plan.Membership{Class: plan.FirstOwnClass})
			}
		}
	}
	return &q
}

// fewChanges draws a plan in which little differs.
func fewChanges(t *rapid.T, p *plan.Plan) *plan.Plan {
	q := *p
	tag := rapid.SampledFrom([]plan.Tag{0, 10, 11})
	class := rapid.SampledFrom([]plan.Class{0, 10, 11, plan.FirstOwnClass, plan.FirstOwnClass + 1})
	policy := rapid.SampledFrom([]string{"", "p1", "p2"})
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		tags, classes, verdicts, endpoints := keysOf(q.Tags), keysOf(q.Classes), keysOf(q.Verdicts), keysOf(p.Endpoints)
		kind := rapid.SampledFrom([]string{"address", "tag", "class", "verdict", "new verdict", "endpoint", "within", "heir", "heir"}).Draw(t, "kind")
		gone := rapid.Bool().Draw(t, "gone")
		switch {
		case kind == "address":
			byNetwork := func(a, b plan.Address) int { return cmp.Or(strings.Compare(a.Network, b.Network), a.IP.Compare(b.IP)) }
			a := rapid.SampledFrom(slices.SortedFunc(maps.Keys(NewJury(p, nil).endpoints), byNetwork)).Draw(t, "address")
			if rapid.Bool().Draw(t, "gets a class") {
				q.Classes = q.Classes.Set(plan.ClassKey{Network: a.Network, Prefix: interval.Single(a.IP)}, plan.Membership{Class: class.Draw(t, "class")})
			} else {
				q.Tags = q.Tags.Set(plan.TagKey{Network: a.Network, Prefix: interval.Single(a.IP)}, plan.Tagging{Tag: tag.Draw(t, "tag")})
			}
		case kind == "tag" && len(tags) > 0:
			k := rapid.SampledFrom(tags).Draw(t, "prefix")
			if q.Tags = q.Tags.Delete(k); !gone {
				q.Tags = q.Tags.Set(k, plan.Tagging{Tag: tag.Draw(t, "tag")})
			}
		case kind == "class" && len(classes) > 0:
			k := rapid.SampledFrom(classes).Draw(t, "prefix")
			if q.Classes = q.Classes.Delete(k); !gone {
				q.Classes = q.Classes.Set(k, plan.Membership{Class: class.Draw(t, "class")})
			}
		case kind == "heir" && len(classes) > 0:
			// Another may do more, with the class that an address was of.
			k := rapid.SampledFrom(classes).Draw(t, "prefix")
			was, _ := q.Classes.Get(k)
			q.Classes = q.Classes.Set(k, plan.Membership{Class: class.Draw(t, "class")})
			more := plan.Otherwise(rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "policy"), rapid.SampledFrom([]plan.Direction{plan.Outgoing, plan.Incoming}).Draw(t, "direction"))
			more.Peer = was.Class
			q.Verdicts = q.Verdicts.Set(more, plan.Verdict{Allow: true})
		case kind == "verdict" && len(verdicts) > 0:
			k := rapid.SampledFrom(verdicts).Draw(t, "verdict")
			v, _ := q.Verdicts.Get(k)
			if q.Verdicts = q.Verdicts.Delete(k); !gone {
				q.Verdicts = q.Verdicts.Set(k, plan.Verdict{Allow: !v.Allow})
			}
		case kind == "new verdict":
			k := plan.Otherwise(rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "policy"), rapid.SampledFrom([]plan.Direction{plan.Outgoing, plan.Incoming}).Draw(t, "direction"))
			k.Peer = rapid.SampledFrom([]plan.Class{plan.AnyPeer, 0, 10, plan.FirstOwnClass}).Draw(t, "peer")
			k.Protocol = rapid.SampledFrom([]plan.Protocol{plan.AnyProtocol, 99}).Draw(t, "protocol")
			q.Verdicts = q.Verdicts.Set(k, plan.Verdict{Allow: rapid.Bool().Draw(t, "allow")})
		case kind == "within":
			k := plan.WithinKey{Class: class.Draw(t, "class")}
			if q.Within = q.Within.Delete(k); !gone {
				q.Within = q.Within.Set(k, plan.Within{Class: rapid.SampledFrom([]plan.Class{plan.FirstOwnClass + 1, plan.FirstOwnClass + 2}).Draw(t, "wider")})
			}
		case kind == "endpoint":
			k := rapid.SampledFrom(endpoints).Draw(t, "endpoint")
			e, _ := p.Endpoints.Get(k)
			e.Tag, e.IngressPolicy, e.EgressPolicy = tag.Draw(t, "tag"), policy.Draw(t, "ingress"), policy.Draw(t, "egress")
			if rapid.Bool().Draw(t, "fewer addresses") {
				e.Addresses = e.Addresses[:1]
			}
			if q.Endpoints = q.Endpoints.Delete(k); !gone {
				q.Endpoints = q.Endpoints.Set(k, e)
			}
		}
	}
	return &q
}

func keysOf[K plan.TableKey[K], V plan.TableValue[V]](t plan.Table[K, V]) []K {
	var keys []K
	for k := range t.All() {
		keys = append(keys, k)
	}
	return keys
}

// connectionsOf yields connections between all whom plans tell apart.
func connectionsOf(plans ...*plan.Plan) func(yield func(flow) bool) {
	addresses := map[netip.Addr]bool{netip.MustParseAddr("198.18.0.1"): true}
	for _, p := range plans {
		for k := range p.Tags.All() {
			addresses[k.Prefix.Addr().Next()] = true
			addresses[k.Prefix.Addr()] = true
		}
		for _, e := range p.Endpoints.All() {
			for _, a := range e.Addresses {
				addresses[a] = true
			}
		}
	}
	return func(yield func(flow) bool) {
		for from := range addresses {
			for to := range addresses {
				for _, protocol := range []plan.Protocol{plan.TCP, plan.UDP, plan.ICMP, plan.ICMPv6, 99} {
					for _, port := range []uint16{0, 8079, 8080, 8081, 8082, 65535} {
						if from.Is4() != to.Is4() || !protocol.HasPorts() && port != 0 {
							continue
						}
						for _, network := range []string{plan.DefaultNetwork, "blue"} {
							if !yield(flow{network: network, protocol: protocol, source: netip.AddrPortFrom(from, 0), destination: netip.AddrPortFrom(to, port)}) {
								return
							}
						}
					}
				}
			}
		}
	}
}
