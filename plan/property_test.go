package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"pgregory.net/rapid"
)

func TestParseIsTheInverseOfString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Plan().Draw(t, "plan")
		text := p.String()
		back, err := plan.Parse(text)
		if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if d := p.Diff(back); !d.Empty() {
			t.Fatalf("read back, it differs:\n%s", d)
		}
		if again := back.String(); again != text {
			t.Fatalf("written again, it differs:\n%s", cmp.Diff(text, again))
		}
	})
}

// The text of a plan is the node's lines and then each entry's.
func TestStringIsALineForEachEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plantest.Plan().Draw(t, "plan")
		text := p.Local.String()
		for k, v := range p.Networks.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Peers.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Endpoints.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Routes.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Tags.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Classes.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Within.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Verdicts.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Services.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Backends.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Sources.All() {
			text += k.Line(v) + "\n"
		}
		for k, v := range p.Egress.All() {
			text += k.Line(v) + "\n"
		}
		if diff := cmp.Diff(p.String(), text); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDiffLeadsToTheOtherPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := plantest.Plan().Draw(t, "a"), plantest.Plan().Draw(t, "b")
		if d := a.Diff(a); !d.Empty() || !a.Equal(a) {
			t.Fatalf("a plan differs from itself:\n%s", d)
		}
		d := a.Diff(b)
		if d.Empty() != (a.String() == b.String()) || a.Equal(b) != d.Empty() {
			t.Fatalf("texts and diff disagree:\n%s", d)
		}
		// The lines that go and come turn one text into the other.
		set := map[string]bool{}
		for l := range strings.Lines(a.String()) {
			set[l] = true
		}
		for l := range strings.Lines(d.String()) {
			sign, entry := l[:2], l[2:]
			if set[entry] == (sign == "+ ") && !isLocal(entry) {
				t.Fatalf("%q is wrong for:\n%s", l, a)
			}
			if sign == "+ " {
				set[entry] = true
			} else {
				delete(set, entry)
			}
		}
		for l := range strings.Lines(b.String()) {
			if !set[l] {
				t.Fatalf("%q is missing after the diff", l)
			}
			delete(set, l)
		}
		if len(set) > 0 {
			t.Fatalf("left over after the diff: %v", set)
		}
	})
}

// isLocal reports whether a line describes the node, which a diff states
// whole even where one line of several changed.
func isLocal(l string) bool {
	return strings.HasPrefix(l, "node ") || strings.HasPrefix(l, "pool ") || strings.HasPrefix(l, "tunnel ")
}

// A plan built from another is the plan that was stated, and no other.
func TestBuilderForgetsWhatIsNotStated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		previous, want := plantest.Plan().Draw(t, "previous"), plantest.Plan().Draw(t, "want")
		b := plan.NewBuilder(previous)
		b.Local = want.Local
		for k, v := range want.Networks.All() {
			b.PutNetwork(k, v)
		}
		for k, v := range want.Peers.All() {
			b.PutPeer(k, v)
		}
		for k, v := range want.Endpoints.All() {
			b.PutEndpoint(k, v)
			if b.PutEndpoint(k, plan.Endpoint{Name: "second"}) {
				t.Fatalf("stated twice: %s", k.Line(v))
			}
		}
		for k, v := range want.Routes.All() {
			b.PutRoute(k, v)
		}
		for k, v := range want.Tags.All() {
			b.PutTag(k, v)
		}
		for k, v := range want.Classes.All() {
			b.PutClass(k, v)
		}
		for k, v := range want.Within.All() {
			b.PutWithin(k, v)
		}
		for k, v := range want.Verdicts.All() {
			b.PutVerdict(k, v)
		}
		for k, v := range want.Services.All() {
			b.PutService(k, v)
		}
		for k, v := range want.Backends.All() {
			b.PutBackend(k, v)
		}
		for k, v := range want.Sources.All() {
			b.PutSource(k, v)
		}
		for k, v := range want.Egress.All() {
			b.PutEgress(k, v)
		}
		if d := want.Diff(b.Build()); !d.Empty() {
			t.Fatalf("it is not what was stated:\n%s", d)
		}
	})
}

// The route found is the one that a search through all of them finds.
func TestRouteIsTheLongestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := plan.NewBuilder(nil)
		for range rapid.IntRange(0, 12).Draw(t, "routes") {
			b.PutRoute(plan.RouteKey{Network: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "network"), Prefix: plantest.Prefix().Draw(t, "prefix")},
				plan.Route{Way: plan.ToDrop, EndpointsOnly: rapid.Bool().Draw(t, "endpoints only")})
		}
		p := b.Build()
		a := plantest.Addr().Draw(t, "address")
		fromEndpoint := rapid.Bool().Draw(t, "from endpoint")
		want := plan.RouteKey{}
		for k, r := range p.Routes.All() {
			if k.Network == "b" && k.Prefix.Contains(a) && (fromEndpoint || !r.EndpointsOnly) &&
				(!want.Prefix.IsValid() || k.Prefix.Bits() > want.Prefix.Bits()) {
				want = k
			}
		}
		got, _, ok := p.Route("b", a, fromEndpoint)
		if got != want || ok != want.Prefix.IsValid() {
			t.Fatalf("%s goes by %v, want %v, in:\n%s", a, got.Prefix, want.Prefix, p)
		}
	})
}

// The tag found is that of the prefix that a search through all of them finds,
// whatever routes there are.
func TestTagIsThatOfTheLongestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := plan.NewBuilder(nil)
		for i := range rapid.IntRange(0, 12).Draw(t, "tags") {
			b.PutTag(plan.TagKey{Network: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "network"), Prefix: plantest.Prefix().Draw(t, "prefix")},
				plan.Tagging{Tag: plan.Tag(i)})
		}
		for range rapid.IntRange(0, 3).Draw(t, "routes") {
			b.PutRoute(plan.RouteKey{Network: "b", Prefix: plantest.Prefix().Draw(t, "prefix")}, plan.Route{Way: plan.ToDrop})
		}
		p := b.Build()
		a := plantest.Addr().Draw(t, "address")
		want := plan.TagKey{}
		for k := range p.Tags.All() {
			if k.Network == "b" && k.Prefix.Contains(a) && (!want.Prefix.IsValid() || k.Prefix.Bits() > want.Prefix.Bits()) {
				want = k
			}
		}
		tagging, _ := p.Tags.Get(want)
		got, found, ok := p.TagAround("b", netip.PrefixFrom(a, a.BitLen()))
		if got != want || found != tagging || ok != want.Prefix.IsValid() {
			t.Fatalf("%s wears that of %v, want %v, in:\n%s", a, got.Prefix, want.Prefix, p)
		}
	})
}

// verdictKeys generates keys of few policies, peers, protocols and ports, so
// that many match one packet.
func verdictKeys() *rapid.Generator[plan.VerdictKey] {
	return rapid.Custom(func(t *rapid.T) plan.VerdictKey {
		k := plan.Otherwise(rapid.SampledFrom([]string{"p", "q"}).Draw(t, "policy"),
			rapid.SampledFrom([]plan.Direction{plan.Incoming, plan.Outgoing}).Draw(t, "direction"))
		k.Peer = rapid.SampledFrom([]plan.Class{0, 5, 6, plan.ClassOf(plan.MaxTag), plan.FirstOwnClass, plan.MaxClass, plan.AnyPeer}).Draw(t, "peer")
		k.Protocol = rapid.SampledFrom([]plan.Protocol{plan.AnyProtocol, plan.ICMP, plan.TCP, plan.UDP}).Draw(t, "protocol")
		if k.Protocol.HasPorts() && rapid.Bool().Draw(t, "some ports") {
			k.Ports.First = rapid.SampledFrom([]uint16{0, 1, 79, 80, 81, 65535}).Draw(t, "first")
			k.Ports.Last = rapid.SampledFrom([]uint16{0, 1, 79, 80, 81, 65535}).Filter(func(last uint16) bool { return last >= k.Ports.First }).Draw(t, "last")
		}
		return k
	})
}

// The verdict found is the most specific of those that a search through all
// of them finds.
func TestVerdictIsTheMostSpecific(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &plan.Plan{Local: plan.Local{Node: "node1"}}
		for _, k := range rapid.SliceOfN(verdictKeys(), 0, 24).Draw(t, "keys") {
			more := *p
			v := plan.Verdict{Allow: rapid.Bool().Draw(t, "allow")}
			if k == plan.Rest(k.Policy, k.Direction, k.Peer) && rapid.Bool().Draw(t, "like another") {
				v = plan.Verdict{Like: rapid.SampledFrom([]plan.Class{5, 6, plan.ClassOf(plan.MaxTag), plan.FirstOwnClass, plan.AnyPeer}).Draw(t, "like")}
			}
			more.Verdicts = p.Verdicts.Set(k, v)
			if more.Validate() == nil { // else it overlaps, or is like what does not decide
				p = &more
			}
		}
		q := verdictKeys().Draw(t, "packet")
		port := q.Ports.First
		if q.Peer == plan.AnyPeer {
			q.Peer = 7 // one that no entry is about
		}
		// Those of a peer that match, for the protocol before any; then those of
		// whom the peer is like, or else of any.
		var matching []plan.VerdictKey
		peer := q.Peer
		if rapid.Bool().Draw(t, "within") {
			p.Within = p.Within.Set(plan.WithinKey{Class: peer}, plan.Within{Class: 5})
			spoken := false
			for k := range p.Verdicts.All() {
				spoken = spoken || k.Policy == q.Policy && k.Direction == q.Direction && k.Peer == peer
			}
			if !spoken {
				peer = 5
			}
		}
		for {
			next := plan.AnyPeer
			for _, protocol := range [...]plan.Protocol{q.Protocol, plan.AnyProtocol} {
				for k, v := range p.Verdicts.All() {
					switch {
					case k.Policy != q.Policy || k.Direction != q.Direction || k.Peer != peer || k.Protocol != protocol || !k.Ports.Contains(port):
					case v.Like != 0:
						next = v.Like
					default:
						matching = append(matching, k)
					}
				}
			}
			if peer == plan.AnyPeer {
				break
			}
			peer = next
		}
		k, v, ok := p.Verdict(q.Policy, q.Direction, q.Peer, q.Protocol, port)
		if want, _ := p.Verdicts.Get(k); ok != (len(matching) > 0) || ok && matching[0] != k || v != want {
			t.Fatalf("port %d of %s is decided by %s (%v), in:\n%s", port, q.Line(v), k.Line(v), ok, p)
		}
	})
}

func TestEgressOfPrefersEndpointThenTagThenNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := plan.NewBuilder(nil)
		for range rapid.IntRange(0, 12).Draw(t, "rules") {
			k := plan.EgressKey{Network: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "network"), Destination: plantest.Prefix().Draw(t, "destination")}
			switch rapid.IntRange(0, 2).Draw(t, "sources") {
			case 1:
				k.Tagged, k.Tag = true, plan.Tag(rapid.IntRange(0, 2).Draw(t, "tag"))
			case 2:
				k.Interface = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "interface")
			}
			b.PutEgress(k, plan.Egress{Action: plan.Direct})
		}
		p := b.Build()
		a := plantest.Addr().Draw(t, "address")
		rank := func(k plan.EgressKey) int {
			switch {
			case k.Network != "a" || !k.Destination.Contains(a):
				return -1
			case k.Interface == "x":
				return 400 + k.Destination.Bits()
			case k.Tagged && k.Tag == 1:
				return 200 + k.Destination.Bits()
			case k.Interface == "" && !k.Tagged:
				return k.Destination.Bits()
			default:
				return -1
			}
		}
		best := -1
		for k := range p.Egress.All() {
			best = max(best, rank(k))
		}
		k, _, ok := p.EgressOf("a", "x", 1, a)
		if ok != (best >= 0) || ok && rank(k) != best {
			t.Fatalf("%s leaves by %+v, in:\n%s", a, k, p)
		}
	})
}

// Generated clusters are valid, survive the text form, and every flow in them
// has an answer that says what the receiver sees exactly when it is allowed.
func TestExplainAnswersEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plans := plantest.Cluster().Draw(t, "cluster")
		for _, p := range plans {
			if err := p.Validate(); err != nil {
				t.Fatalf("%v, in:\n%s", err, p)
			}
		}
		if len(plans) == 0 {
			return
		}
		f := plantest.Flows(plans).Draw(t, "flow")
		e := plan.Explain(plans, f)
		if e.Reason == "" || e.Allowed != e.SeenSource.IsValid() || e.Allowed != e.SeenDestination.IsValid() || !e.Allowed && e.Node != "" {
			t.Fatalf("%s: incomplete: %s", f, e)
		}
		parsed, err := plan.ParseFlow(f.String())
		if err != nil || parsed != f {
			t.Fatalf("flow %s read back is %s (%v)", f, parsed, err)
		}
		back, err := plan.ParseAll(plan.FormatAll(plans))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, plan.Explain(back, f), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("%s: another answer for the same text: %s", f, diff)
		}
	})
}

// The flat network's promise: in a whole cluster every endpoint reaches every
// other under the address that each sees itself, and every node reaches every
// endpoint.
func TestWholeClusterIsFlat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := plantest.Shapes().Filter(plantest.Shape.Complete).Draw(t, "shape")
		plans := shape.Plans()
		var pods, nodes []netip.Addr
		for _, p := range plans {
			for _, e := range p.Endpoints.All() {
				pods = append(pods, e.Addresses...)
			}
			nodes = append(nodes, p.Local.Addresses...)
		}
		for _, to := range pods {
			for _, from := range slices.Concat(pods, nodes) {
				if from.Is4() != to.Is4() {
					continue
				}
				e := plan.Explain(plans, plan.Flow{Source: from, Destination: to, Protocol: plan.TCP, Port: 80})
				if e.Node == "" {
					t.Fatalf("%s to %s does not arrive: %s", from, to, e)
				}
				at, _ := plans[e.Node].Endpoints.Get(plan.EndpointKey{Interface: e.Interface})
				if !e.Allowed || !slices.Contains(at.Addresses, to) || e.SeenDestination != to || slices.Contains(pods, from) && e.SeenSource != from {
					t.Fatalf("%s to %s: %s", from, to, e)
				}
			}
		}
	})
}

// Whatever plans say, Explain comes to an end.
func TestExplainSurvivesNonsense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plans := map[string]*plan.Plan{"nil": nil}
		for range rapid.IntRange(0, 3).Draw(t, "plans") {
			p := plantest.Plan().Draw(t, "plan")
			plans[p.Local.Node] = p
		}
		f := plan.Flow{Network: plantest.Name().Draw(t, "network"), Protocol: plan.TCP, Port: 80}
		for name, p := range plans {
			if p == nil {
				continue
			}
			for k, e := range p.Endpoints.All() {
				f.Node, f.Interface, f.Network = name, k.Interface, e.Network
			}
		}
		if rapid.Bool().Draw(t, "valid") {
			f.Source, f.Destination = plantest.Addr().Draw(t, "source"), plantest.Addr().Draw(t, "destination")
		}
		if e := plan.Explain(plans, f); e.Reason == "" {
			t.Fatalf("no reason: %s", e)
		}
	})
}

// The class of an address is that of the longest prefix among all classes, or else
// that of its tag; and what changes between two plans is what differs in that.
func TestAllClasses(t *testing.T) {
	small := rapid.Custom(func(t *rapid.T) netip.Prefix {
		p, _ := netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(0, 15).Draw(t, "host"))}).Prefix(rapid.SampledFrom([]int{0, 24, 28, 30, 31, 32}).Draw(t, "length"))
		return p
	})
	draw := func(t *rapid.T, p plan.Plan) *plan.Plan {
		for range rapid.IntRange(0, 6).Draw(t, "entries") {
			network, prefix := rapid.SampledFrom([]string{"", plan.DefaultNetwork, "other"}).Draw(t, "network"), small.Draw(t, "prefix")
			gone := rapid.Bool().Draw(t, "gone")
			if rapid.Bool().Draw(t, "a class") {
				k := plan.ClassKey{Network: network, Prefix: prefix}
				if p.Classes = p.Classes.Delete(k); !gone {
					p.Classes = p.Classes.Set(k, plan.Membership{Class: plan.FirstOwnClass + plan.Class(rapid.IntRange(0, 2).Draw(t, "class"))})
				}
				continue
			}
			k := plan.TagKey{Network: network, Prefix: prefix}
			if p.Tags = p.Tags.Delete(k); !gone {
				p.Tags = p.Tags.Set(k, plan.Tagging{Tag: plan.Tag(rapid.IntRange(0, 2).Draw(t, "tag"))})
			}
		}
		return &p
	}
	rapid.Check(t, func(t *rapid.T) {
		p := draw(t, plan.Plan{})
		q := draw(t, *p)
		all := func(p *plan.Plan) map[plan.ClassKey]plan.Class { return maps.Collect(p.AllClasses()) }
		for _, p := range []*plan.Plan{p, q} {
			for host := range byte(16) {
				a, want, longest := netip.AddrFrom4([4]byte{10, 1, 0, host}), plan.Class(0), -1
				for k, c := range all(p) {
					if k.Network == plan.DefaultNetwork && k.Prefix.Contains(a) && k.Prefix.Bits() > longest {
						want, longest = c, k.Prefix.Bits()
					}
				}
				got, ok := p.ClassAt(plan.DefaultNetwork, a)
				if got != want || ok != (longest >= 0) {
					t.Fatalf("%s is of class %s (%v), want %s\n%s", a, got, ok, want, p)
				}
				if _, m, ok := ownClassOf(p, a); ok && got != m {
					t.Fatalf("%s is of class %s, and the Classes table says %s\n%s", a, got, m, p)
				}
			}
		}
		patched := all(p)
		for _, c := range p.ClassChanges(q, p.Diff(q)) {
			if old, ok := patched[c.Key]; ok != (c.Old != nil) || ok && old != *c.Old {
				t.Fatalf("%v was %s (%v), and %v is said", c.Key, old, ok, c.Old)
			}
			if delete(patched, c.Key); c.New != nil {
				patched[c.Key] = *c.New
			}
		}
		if want := all(q); !maps.Equal(patched, want) {
			t.Fatalf("the changes lead to %v, want %v\nfrom:\n%s\nto:\n%s", patched, want, p, q)
		}
	})
}

// ownClassOf returns what the Classes table alone says of an address.
func ownClassOf(p *plan.Plan, a netip.Addr) (key plan.ClassKey, class plan.Class, ok bool) {
	for k, m := range p.Classes.All() {
		if k.Network == plan.DefaultNetwork && k.Prefix.Contains(a) && (!ok || k.Prefix.Bits() > key.Prefix.Bits()) {
			key, class, ok = k, m.Class, true
		}
	}
	return key, class, ok
}

// In a valid plan, what has an identifier of a network in the tunnel is of that
// network, and of the tag that it was sent with or, where there is no room for it, of
// tag 0; and no other identifier is anybody's.
func TestDecodeUndoesEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := plan.NewBuilder(nil)
		b.Local.Node = "node1"
		for _, tunnel := range []string{"vxlan", "flannel"} {
			next := uint32(0)
			for _, name := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "names") {
				first := next + rapid.Uint32Range(0, 5).Draw(t, "gap")
				last := first + rapid.Uint32Range(0, 9).Draw(t, "room")
				b.PutNetwork(plan.NetworkKey{Name: name, Tunnel: tunnel}, plan.Network{FirstVNI: first, LastVNI: last})
				next = last + 1
			}
		}
		p := b.Build()
		if err := p.Validate(); err != nil {
			t.Fatalf("%v, in:\n%s", err, p)
		}
		type identifier struct {
			tunnel string
			vni    uint32
		}
		taken := map[identifier]bool{}
		for k, n := range p.Networks.All() {
			for tag := range plan.Tag(50) {
				v, ok := p.Encode(k.Tunnel, k.Name, tag)
				network, got, known := p.Decode(k.Tunnel, v)
				want := tag
				if uint32(tag) > n.LastVNI-n.FirstVNI {
					want = 0
				}
				if taken[identifier{k.Tunnel, v}] = true; !ok || !known || network != k.Name || got != want {
					t.Fatalf("tag %d of %s travels as %d, which is tag %d of %s, in:\n%s", tag, k.Name, v, got, network, p)
				}
			}
		}
		for v := range uint32(60) {
			for _, tunnel := range []string{"vxlan", "flannel"} {
				if network, _, known := p.Decode(tunnel, v); known != taken[identifier{tunnel, v}] {
					t.Fatalf("VNI %d is of network %q in %s, in:\n%s", v, network, tunnel, p)
				}
			}
		}
	})
}

// Networks that are alike do not know of one another: what one pod sends to another becomes
// of it in either, with the same addresses, and it ends in the network where it began.
func TestNetworksAreApart(t *testing.T) {
	outcomes := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		plans := plantest.Networked().Draw(t, "plans")
		var pods []netip.Addr
		for name, p := range plans {
			if err := p.Validate(); err != nil {
				t.Fatalf("plan of %s: %v", name, err)
			}
			for _, e := range p.Endpoints.All() {
				pods = append(pods, e.Addresses...)
			}
		}
		slices.SortFunc(pods, netip.Addr.Compare)
		if len(pods) == 0 {
			return
		}
		f := plantest.Flows(plans).Draw(t, "flow")
		f.Source = rapid.SampledFrom(pods).Draw(t, "source")
		f.Destination = rapid.SampledFrom(pods).Filter(func(a netip.Addr) bool { return a.Is4() == f.Source.Is4() }).Draw(t, "destination")
		one := plan.Explain(plans, f)
		f.Network = plantest.OtherNetwork
		other := plan.Explain(plans, f)
		want := ""
		if one.Interface != "" {
			want = plantest.Twin(one.Interface)
		}
		if want != other.Interface || one.Interface != "" && (one.SeenSource != other.SeenSource || one.Node != other.Node) || !one.Allowed && other.Allowed {
			t.Fatalf("%s\n%s\nand in the default network\n%s\nin:\n%s", f, other, one, plan.FormatAll(plans))
		}
		outcomes[other.Allowed]++
	})
	if outcomes[true] == 0 || outcomes[false] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}
