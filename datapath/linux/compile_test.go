package linux

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// testNode is a node on which every endpoint's interface is there, and eth0
// has the node's addresses.
func testNode(p *plan.Plan) *rtnl.Node {
	n := &rtnl.Node{Stamps: stamps.Default, Links: map[string]int{}, Bridge: 3, Tunnels: map[string]rtnl.Device{}}
	for i, t := range p.Local.Tunnels {
		n.Tunnels[t.Name] = rtnl.Device{Index: 4 + i, MTU: 1450}
	}
	for k := range p.Endpoints.All() {
		n.Links[k.Interface] = linkIndex(k.Interface)
	}
	var connected []rtnl.Connection
	for _, a := range p.Local.Addresses {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		connected = append(connected, rtnl.Connection{Addr: netip.PrefixFrom(a, bits), Link: 2})
	}
	n.Connected = rtnl.NewConnections(connected)
	return n
}

// vxlanDevice is that of the tunnel that most plans of tests have.
var vxlanDevice = stamps.Default.TunnelPrefix + "vxlan"

// linkIndex gives each name an index of its own.
func linkIndex(name string) int {
	index := 10
	for _, c := range []byte(name) {
		index = index*31%100003 + int(c)
	}
	return index
}

func compileFor(t interface{ Fatalf(string, ...any) }, p *plan.Plan) *compiler {
	c := newCompiler(testNode(p), p, &rtnl.Wanted{})
	if err := c.compile(); err != nil {
		t.Fatalf("compile: %v\n%s", err, p)
	}
	return c
}

// TestCompile shows what the kernel gets for plans: each file of testdata
// holds a plan, the objects and the nftables rules that it becomes, and those
// of its policies. What is a digest there is one word for a policy or a profile.
func TestCompile(t *testing.T) {
	golden.Archives(t, "testdata/compile-*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		p, err := plan.Parse(string(files[0].Data))
		if err != nil {
			t.Fatal(err)
		}
		c := compileFor(t, p)
		out := []txtar.File{files[0],
			{Name: "objects", Data: []byte(describe(p, c))},
			{Name: "rules", Data: []byte(describeRules(compileRuleset(stamps.Default, p, c.sourcesOf(), usualConnections, true)))}}
		if _, r := compilePolicies(stamps.Default, p, true, counting{}); !r.Empty() {
			out = append(out, txtar.File{Name: "policies", Data: []byte(describeRules(r))})
		}
		return out
	})
}

// describe writes objects as ip would be told.
func describe(p *plan.Plan, c *compiler) string {
	names := map[int]string{2: "eth0", 3: stamps.Default.Bridge, 4: vxlanDevice}
	for _, t := range p.Local.Tunnels {
		names[c.node.Tunnels[t.Name].Index] = stamps.Default.TunnelPrefix + t.Name
	}
	for name, index := range c.node.Links {
		names[index] = name
	}
	var b strings.Builder
	w := c.want.Against(&rtnl.Objects{})
	for _, x := range w.Addresses {
		fmt.Fprintf(&b, "address %s dev %s\n", x.Key.Prefix, names[x.Key.Link])
	}
	for _, x := range w.Groups {
		fmt.Fprintf(&b, "group weft dev %s\n", names[x.Key])
	}
	for _, x := range w.Neighbours {
		fmt.Fprintf(&b, "neighbour %s lladdr %s dev %s\n", x.Key.Addr, x.New, names[x.Key.Link])
	}
	for _, x := range w.FDB {
		fmt.Fprintf(&b, "fdb %s dst %s dev %s\n", x.Key.MAC, x.New, names[x.Key.Link])
	}
	for _, x := range w.Rules {
		fmt.Fprintln(&b, x.Key)
	}
	for _, x := range w.Routes {
		kinds := map[int]string{unix.RTN_UNICAST: "route", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_THROW: "throw"}
		fmt.Fprintf(&b, "%s %s", kinds[x.New.Kind], x.Key.Prefix)
		if x.New.Via.IsValid() {
			fmt.Fprintf(&b, " via %s", x.New.Via)
		}
		if x.New.Link != 0 {
			fmt.Fprintf(&b, " dev %s", names[x.New.Link])
		}
		if x.New.Onlink {
			b.WriteString(" onlink")
		}
		if x.New.Scope == unix.RT_SCOPE_LINK {
			b.WriteString(" scope link")
		}
		if x.New.Source.IsValid() {
			fmt.Fprintf(&b, " src %s", x.New.Source)
		}
		if x.Key.Table != unix.RT_TABLE_MAIN {
			fmt.Fprintf(&b, " table %d", x.Key.Table)
		}
		b.WriteByte('\n')
	}
	for _, err := range c.problems {
		fmt.Fprintf(&b, "problem: %v\n", err)
	}
	return b.String()
}

// describeRules writes chains by their comments, and sets by their elements.
func describeRules(r *ruleset) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Chains)) {
		if _, another, _ := strings.Cut(name, "generation-"); another != "" && another[0] > '0' {
			continue // TestGenerations
		}
		c := r.Chains[name]
		fmt.Fprintf(&b, "chain %s", name)
		if c.Hook != nil {
			fmt.Fprintf(&b, " %s hook %d priority %d", c.Hook.Kind, c.Hook.Number, c.Hook.Priority)
		}
		b.WriteByte('\n')
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t%s%s\n", rule.Comment, describeEnd(rule.Exprs))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Sets)) {
		fmt.Fprintf(&b, "set %s %s\n", name, r.Sets[name].Key.Name)
		for _, e := range r.Sets[name].Elements.Keys() {
			end := ""
			if e.End {
				end = " end"
			}
			fmt.Fprintf(&b, "\t%s%s", describeKey(r.Sets[name], []byte(e.Key)), end)
			v := r.Sets[name].Elements[e]
			if v.Verdict != (nft.Verdict{}) {
				b.WriteString(describeVerdict(&expr.Verdict{Kind: v.Verdict.Kind, Chain: v.Verdict.Chain}))
			}
			if v.Data != "" {
				fmt.Fprintf(&b, ": %x", v.Data)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func describeEnd(exprs []expr.Any) string {
	switch e := exprs[len(exprs)-1].(type) {
	case *expr.Verdict:
		if asked, ok := exprs[max(0, len(exprs)-2)].(*expr.Lookup); ok && asked.IsDestRegSet && asked.DestRegister == unix.NFT_REG_VERDICT {
			return ": map " + asked.SetName + ", or" + strings.TrimPrefix(describeVerdict(e), ":")
		}
		return describeVerdict(e)
	case *expr.Lookup:
		return ": map " + e.SetName
	case *expr.Masq:
		return ": masquerade"
	case *expr.NAT:
		return ": source NAT"
	default:
		return fmt.Sprintf(": %T", e)
	}
}

func describeVerdict(v *expr.Verdict) string {
	kinds := map[expr.VerdictKind]string{expr.VerdictAccept: "accept", expr.VerdictDrop: "drop", expr.VerdictReturn: "return", expr.VerdictContinue: "continue", expr.VerdictJump: "jump", expr.VerdictGoto: "goto"}
	return strings.TrimSuffix(": "+kinds[v.Kind]+" "+v.Chain, " ")
}

func describeKey(s *nft.Set, key []byte) string {
	var words []string
	if strings.HasPrefix(s.Key.Name, "ifname") {
		words = append(words, strings.TrimRight(string(key[:unix.IFNAMSIZ]), "\x00"))
		key = key[unix.IFNAMSIZ:]
	}
	if a, ok := netip.AddrFromSlice(key); ok && (s.Key != typeProfile || !s.Counts) {
		words = append(words, a.String())
	} else if len(key) > 0 {
		words = append(words, fmt.Sprintf("%x", key))
	}
	return strings.Join(words, " . ")
}

// TestAdvance checks that compiling a change gives what compiling the whole
// plan gives.
func TestAdvance(t *testing.T) {
	took := 0
	rapid.Check(t, func(t *rapid.T) {
		// Two clusters of one shape but for a few things, as they follow one
		// another in life.
		first := plantest.Shapes().Draw(t, "first")
		second := first
		switch rapid.IntRange(0, 4).Draw(t, "change") {
		case 0, 1:
			second.Endpoints = slices.Clone(first.Endpoints)
			second.Endpoints[0] = rapid.IntRange(0, 3).Draw(t, "endpoints")
		case 2:
			second.Banned, second.Strangers = nil, nil
		case 3:
			second.Endpoints = append(slices.Clone(first.Endpoints), 1)
		case 4:
			second = plantest.Shapes().Draw(t, "second")
		}
		p, q := first.Plans()["node1"], second.Plans()["node1"]
		if p == nil || q == nil {
			return
		}
		old := compileFor(t, p)
		old.want.Changes()
		before := clone(old.want)
		next, ok := old.advance(q, p.Diff(q), linkIndex)
		if !ok {
			return
		}
		took++
		fresh := compileFor(t, q)
		if d := fresh.want.Against(asObjects(next.want)); size(d) > 0 {
			t.Fatalf("differs from what the whole plan gives by %+v\nfrom:\n%s\nto:\n%s", d, p, q)
		}
		if diff := cmp.Diff(next.want.Changes(), fresh.want.Against(before), cmp.AllowUnexported(rtnl.Delta{}, rtnl.RouteKey{}, rtnl.Route{}, rtnl.NeighbourKey{}, rtnl.FDBKey{}, rtnl.Rule{}),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Fatalf("the changes differ from those between both wholes:\n%s", diff)
		}
	})
	if took == 0 {
		t.Error("no change was compiled on its own")
	}
}

// TestAdvanceByNode checks that nodes that join and leave are compiled on their
// own, with the routes to their own addresses, which only endpoints take: every
// agent of a cluster hears of each of them. The second node's address is so far
// from the first's that the rule about such addresses becomes wider.
func TestAdvanceByNode(t *testing.T) {
	parse := func(peers string) *plan.Plan {
		p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 4789 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 0
route default 0.0.0.0/0 gateway
` + peers)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	const node2 = `peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
route default 172.30.0.3/32 tunnel node2 endpoints-only
`
	const node3 = `peer node3 ends vxlan@172.30.9.4@0a:58:ac:1e:09:04
route default 10.1.3.0/24 tunnel node3
route default 172.30.9.4/32 tunnel node3 endpoints-only
`
	p := parse("")
	c := compileFor(t, p)
	for _, peers := range []string{node2, node2 + node3, node3, ""} {
		q := parse(peers)
		c.want.Changes()
		next, ok := c.advance(q, p.Diff(q), linkIndex)
		if !ok {
			t.Fatalf("all is compiled anew for the peers\n%s", peers)
		}
		if d := compileFor(t, q).want.Against(asObjects(next.want)); size(d) > 0 {
			t.Fatalf("differs from what the whole plan gives by %+v\nto:\n%s", d, q)
		}
		p, c = q, next
	}
	// Of a peer that has another end of the tunnel, the routes are as they were.
	p, q := parse(node2), parse(strings.Replace(node2, "0a:58:ac:1e:00:03", "0a:58:ac:1e:00:33", 1))
	if _, ok := compileFor(t, p).advance(q, p.Diff(q), linkIndex); ok {
		t.Error("the other end of the tunnel moves, and only what differs is compiled")
	}
	q = parse(strings.Replace(node2, "ends", "addresses 172.30.0.99,172.30.0.3 ends", 1))
	if _, ok := compileFor(t, p).advance(q, p.Diff(q), linkIndex); ok {
		t.Error("the next hop moves, and only what differs is compiled")
	}
	q = parse(strings.Replace(node2, "03\n", "03 # HostSubnet node2\n", 1))
	if _, ok := compileFor(t, p).advance(q, p.Diff(q), linkIndex); !ok {
		t.Error("all is compiled anew for the origin of a peer")
	}
}

func size(d rtnl.Delta) int {
	return len(d.Addresses) + len(d.Routes) + len(d.Neighbours) + len(d.FDB) + len(d.Rules) + len(d.Groups)
}

// asObjects returns what is wanted as if the kernel held it.
func asObjects(w *rtnl.Wanted) *rtnl.Objects {
	return &rtnl.Objects{Addresses: w.Addresses.Now, Routes: w.Routes.Now, Neighbours: w.Neighbours.Now, FDB: w.FDB.Now, Rules: w.Rules.Now, Groups: w.Groups.Now}
}

func clone(w *rtnl.Wanted) *rtnl.Objects {
	o := asObjects(w)
	return &rtnl.Objects{Addresses: maps.Clone(o.Addresses), Routes: maps.Clone(o.Routes), Neighbours: maps.Clone(o.Neighbours), FDB: maps.Clone(o.FDB), Rules: maps.Clone(o.Rules), Groups: maps.Clone(o.Groups)}
}
