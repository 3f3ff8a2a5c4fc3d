package survey

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/subnet"
)

// TestAstrayStories shows what is said of others' rules and routes: testdata has a
// plan, and then some of them with what the survey says.
func TestAstrayStories(t *testing.T) {
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: stamps.Default.Bridge, 4: vxlanDevice}
	var p *plan.Plan
	golden.Answers(t, "testdata/astray.txtar", func(t *testing.T, name, question string) string {
		if name == "plan" {
			p = parse(t, question)
			for k := range p.Endpoints.All() {
				names[linkIndex(k.Interface)] = k.Interface
			}
			return ""
		}
		var said []string
		for _, is4 := range interval.Families {
			r, journey := surveyed(p, is4, names)
			for line := range strings.Lines(question) {
				foreign(t, r, is4, names, strings.Fields(line))
			}
			sortRules(r)
			said = append(said, r.astray(journey)...)
		}
		return strings.Join(append(said, ""), "\n")
	})
}

// surveyed returns the routing of a node that is as a plan wants it, of a family,
// and what the survey of it begins with.
func surveyed(p *plan.Plan, is4 bool, names map[int]string) (*routing, *travel) {
	r := &routing{stamps: stamps.Default}
	n := loaded(r, p, is4)
	all := interval.Everything(is4)
	for priority, table := range map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN} {
		r.rules = append(r.rules, rtnl.FoundRule{Rule: rtnl.Rule{Priority: priority, From: all, To: all, Table: table}, Protocol: unix.RTPROT_KERNEL, Action: nl.FR_ACT_TO_TBL, Suppressed: -1})
	}
	sortRules(r)
	s := &Subject{Plan: p, Node: n, Peers: map[string]map[netip.Addr]bool{}}
	for _, t := range p.Local.Tunnels {
		s.Peers[t.Name] = map[netip.Addr]bool{}
		for _, peer := range p.Peers.All() {
			if end, ok := peer.End(t.Name); ok {
				s.Peers[t.Name][end.VTEP] = true
			}
		}
	}
	return r, &travel{plan: p, node: n, is4: is4, name: func(link int) string { return names[link] },
		addresses: func(int) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.1.1.2/31")} }, tunnels: s.outers(is4)}
}

// loaded adds the routes and rules of a family that the data plane has for a plan
// whose prefixes are not within each other, and returns the node.
func loaded(r *routing, p *plan.Plan, is4 bool) *rtnl.Node {
	n := &rtnl.Node{Stamps: stamps.Default, Links: map[string]int{}, Bridge: 3, Tunnels: map[string]rtnl.Device{}}
	for i, t := range p.Local.Tunnels {
		n.Tunnels[t.Name] = rtnl.Device{Index: 4 + i, MTU: 1450}
	}
	for k := range p.Endpoints.All() {
		n.Links[k.Interface] = linkIndex(k.Interface)
	}
	add := func(table int, prefix netip.Prefix, to rtnl.Route) {
		r.add(&rtnl.FoundRoute{RouteKey: rtnl.RouteKey{Table: table, Prefix: prefix}, Route: to, Protocol: stamps.Default.Protocol})
	}
	var source netip.Addr
	var pools, apart []netip.Prefix
	for _, pool := range p.Local.Pools {
		if pool.Prefix.Addr().Is4() == is4 {
			source, pools = pool.Gateway, append(pools, pool.Prefix)
			add(unix.RT_TABLE_MAIN, pool.Prefix, rtnl.Route{Kind: unix.RTN_UNREACHABLE})
		}
	}
	for k, to := range p.Routes.All() {
		if to.EndpointsOnly && k.Prefix.Addr().Is4() == is4 {
			apart = append(apart, k.Prefix)
		}
	}
	for k, to := range p.Routes.All() {
		if k.Prefix.Addr().Is4() != is4 {
			continue
		}
		table := unix.RT_TABLE_MAIN
		if to.EndpointsOnly {
			table = stamps.Default.RoutingTable
		} else if slices.ContainsFunc(apart, func(only netip.Prefix) bool { return interval.Covers(only, k.Prefix) }) {
			add(stamps.Default.RoutingTable, k.Prefix, rtnl.Route{Kind: unix.RTN_THROW})
		}
		switch peer := p.Peer(to.Peer()); to.Way {
		case plan.ToEndpoint:
			add(table, k.Prefix, rtnl.Route{Kind: unix.RTN_UNICAST, Link: n.Links[to.Interface], Source: source})
		case plan.ToTunnel:
			end, _, _ := p.Local.EndOf(peer, k.Prefix.Addr())
			add(table, k.Prefix, rtnl.Route{Kind: unix.RTN_UNICAST, Link: n.Tunnels[end.Tunnel].Index, Via: k.Prefix.Addr(), Source: source})
		case plan.ToNextHop:
			add(table, k.Prefix, rtnl.Route{Kind: unix.RTN_UNICAST, Link: 2, Via: peer.NextHop(k.Prefix.Addr())})
		case plan.ToDrop:
			add(table, k.Prefix, rtnl.Route{Kind: unix.RTN_UNREACHABLE})
		}
	}
	if to, ok := interval.Common(apart, is4); ok {
		for _, from := range pools {
			r.rules = append(r.rules, rtnl.FoundRule{Rule: rtnl.Rule{Priority: stamps.Default.Priority, From: from, To: to, Table: stamps.Default.RoutingTable},
				Protocol: stamps.Default.Protocol, Action: nl.FR_ACT_TO_TBL, Suppressed: -1})
		}
	}
	return n
}

// linkIndex gives each name an index of its own.
func linkIndex(name string) int {
	index := 10
	for _, c := range []byte(name) {
		index = index*31%100003 + int(c)
	}
	return index
}

var vxlanDevice = stamps.Default.TunnelPrefix + "vxlan"

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// namespace returns the path of a new network namespace.
func namespace(t testing.TB) string {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var ns *os.File
	err := netns.Thread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
}

func do(t testing.TB, path string, f func() error) {
	t.Helper()
	if err := netns.Do(path, f); err != nil {
		t.Fatal(err)
	}
}

func sortRules(r *routing) {
	slices.SortStableFunc(r.rules, func(a, b rtnl.FoundRule) int { return a.Priority - b.Priority })
}

// plainly says what astray does, by asking each rule about each packet.
func (r *routing) plainly(t *travel) []string {
	found := &strays{decider: newDecider(r), travel: t, needed: r.needed(), endpoints: map[int]bool{}, told: map[any]bool{}}
	for _, link := range t.node.Links {
		found.endpoints[link] = true
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, stamps.Default.RoutingTable} {
		own := r.own(table)
		var senders []sender
		for k, e := range t.plan.Endpoints.All() {
			for _, a := range e.Addresses {
				if a.Is4() == t.is4 {
					senders = append(senders, sender{in: k.Interface, from: a, what: "what pods send to %s"})
				}
			}
		}
		sources := map[netip.Addr]bool{}
		for _, route := range own.all() {
			if table == stamps.Default.RoutingTable {
				break
			}
			sources[route.Source] = true
			if route.Kind == unix.RTN_UNICAST && !found.endpoints[route.Link] {
				from := []netip.Addr{route.Prefix.Addr()}
				for _, rule := range r.rules {
					if interval.Covers(route.Prefix, rule.From) {
						from = append(from, rule.From.Addr())
					}
				}
				for _, a := range from {
					senders = append(senders, sender{in: t.name(route.Link), from: a, incoming: true, what: "what comes to %s from other nodes"})
				}
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(sources), netip.Addr.Compare) {
			senders = append(senders, sender{in: "lo", from: a, what: "what the node sends to %s"})
		}
		ask := func(to netip.Addr, want *rtnl.FoundRoute) {
			if want == nil || want.Kind != unix.RTN_UNICAST || !t.isPods(to, table == stamps.Default.RoutingTable) {
				return
			}
			for _, s := range senders {
				if s.incoming && !found.endpoints[want.Link] {
					continue
				}
				for _, s.protocol = range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
					if table == stamps.Default.RoutingTable && !slices.ContainsFunc(r.rules, func(rule rtnl.FoundRule) bool {
						return rule.Protocol == stamps.Default.Protocol && rule.Table == table && fits(&rule, s, to)
					}) {
						continue
					}
					rule, route := r.decide(s, to, nil)
					found.judge(&s, to, want, rule, route)
				}
			}
		}
		for _, want := range own.all() {
			ask(want.Prefix.Addr(), want)
		}
		for _, p := range r.prefixes() {
			if want := own.find(p.Addr(), netip.Addr{}, nil); want != nil && want.Prefix.Bits() < p.Bits() {
				ask(p.Addr(), want)
			}
		}
	}
	for _, tunnel := range t.tunnels {
		for _, peer := range tunnel.peers {
			s := sender{in: "lo", from: tunnel.vtep, protocol: unix.IPPROTO_UDP, what: "the tunnel packets to %s"}
			rule, route := r.decide(s, peer, nil)
			found.judgePeer(&s, peer, rule, route)
		}
	}
	return found.lines()
}

// TestAstrayIsPlain checks that the survey finds what it would if it asked each
// rule and each table about each packet.
func TestAstrayIsPlain(t *testing.T) {
	p := parse(t, `node node1 addresses 172.30.0.2,fd01::2 mtu 1500
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
pool default fd00:1::/64 gateway fd00:1::1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
endpoint weftaaa network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 anti-spoof
endpoint weftbbb network default addresses 10.1.1.3,fd00:1::3 mac 0a:58:0a:01:01:03 anti-spoof
route default 10.1.1.2/32 endpoint weftaaa
route default 10.1.1.3/32 endpoint weftbbb
route default fd00:1::2/128 endpoint weftaaa
route default fd00:1::3/128 endpoint weftbbb
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
peer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04
route default 10.1.3.0/24 tunnel node3
route default fd00:2::/64 tunnel node2
route default 172.30.0.0/24 tunnel node2 endpoints-only
route default fd01::/64 tunnel node2 endpoints-only
`)
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: stamps.Default.Bridge, 4: vxlanDevice}
	for k := range p.Endpoints.All() {
		names[linkIndex(k.Interface)] = k.Interface
	}
	prefixes := map[bool][]netip.Prefix{}
	for _, text := range strings.Fields("0.0.0.0/0 10.0.0.0/8 10.1.0.0/16 10.1.1.0/24 10.1.1.2/31 10.1.1.2/32 10.1.1.3/32 10.1.2.0/24 10.1.2.0/25 10.1.2.7/32 10.1.2.8/32 10.1.3.0/24 172.30.0.0/16 172.30.0.0/24 172.30.0.2/32 172.30.0.3/32 172.30.0.4/31 " +
		"::/0 fd00::/16 fd00:1::/64 fd00:1::2/128 fd00:1::3/128 fd00:2::/64 fd00:2::7/128 fd01::/64 fd01::3/128") {
		p := netip.MustParsePrefix(text)
		prefixes[p.Addr().Is4()] = append(prefixes[p.Addr().Is4()], p)
	}
	worlds, found := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		is4 := rapid.Bool().Draw(t, "IPv4")
		r, journey := surveyed(p, is4, names)
		prefix := rapid.OneOf(rapid.Just(interval.Everything(is4)), rapid.SampledFrom(prefixes[is4]))
		table := rapid.SampledFrom([]int{unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL, unix.RT_TABLE_DEFAULT, stamps.Default.RoutingTable, 100, 101})
		priority := rapid.SampledFrom([]int{0, 1, 100, 200, 200, 8700, 9000, 32766, 40000})
		device := rapid.SampledFrom([]string{"", "", "", "weftaaa", vxlanDevice, "lo", "eth0"})
		protocol := rapid.SampledFrom([]uint8{unix.RTPROT_BOOT, unix.RTPROT_BOOT, unix.RTPROT_KERNEL, stamps.Default.Protocol})
		rarely := rapid.Map(rapid.IntRange(0, 9), func(n int) bool { return n == 0 })
		if rarely.Draw(t, "without the kernel's") {
			r.rules = slices.Delete(r.rules, 0, 1)
		}
		actions := []uint8{nl.FR_ACT_TO_TBL, nl.FR_ACT_TO_TBL, nl.FR_ACT_TO_TBL, nl.FR_ACT_NOP, nl.FR_ACT_BLACKHOLE}
		if rapid.Bool().Draw(t, "with jumps") {
			actions = append(actions, nl.FR_ACT_GOTO, nl.FR_ACT_GOTO, nl.FR_ACT_GOTO)
		}
		for range rapid.IntRange(0, 8).Draw(t, "rules") {
			one := rtnl.FoundRule{Rule: rtnl.Rule{Priority: priority.Draw(t, "priority"), From: prefix.Draw(t, "from"), To: prefix.Draw(t, "to"), Table: table.Draw(t, "table")},
				Protocol: uint8(protocol.Draw(t, "protocol")), In: device.Draw(t, "in"), Target: priority.Draw(t, "target"),
				Inverted: rarely.Draw(t, "inverted"), Narrow: rarely.Draw(t, "narrow"),
				Action:     rapid.SampledFrom(actions).Draw(t, "action"),
				IP:         rapid.SampledFrom([]uint8{0, 0, 0, unix.IPPROTO_UDP}).Draw(t, "ip"),
				Suppressed: rapid.SampledFrom([]int{-1, -1, 0, 24}).Draw(t, "suppressed")}
			if rarely.Draw(t, "marked") {
				one.Mark, one.Mask = 7, uint32(rapid.SampledFrom([]int{7, 8}).Draw(t, "mask"))
			}
			r.rules = append(r.rules, one)
		}
		sortRules(r)
		for range rapid.IntRange(0, 8).Draw(t, "routes") {
			one := &rtnl.FoundRoute{RouteKey: rtnl.RouteKey{Table: table.Draw(t, "table"), Prefix: prefix.Draw(t, "prefix"), Metric: rapid.IntRange(0, 2).Draw(t, "metric")},
				Route:    rtnl.Route{Kind: rapid.SampledFrom([]int{unix.RTN_UNICAST, unix.RTN_UNICAST, unix.RTN_LOCAL, unix.RTN_BLACKHOLE, unix.RTN_THROW}).Draw(t, "kind"), Link: rapid.IntRange(1, 4).Draw(t, "link")},
				Protocol: protocol.Draw(t, "protocol"), From: interval.Everything(is4)}
			if !is4 {
				one.From = prefix.Draw(t, "source")
			}
			r.add(one)
		}
		got, want := r.astray(journey), r.plainly(journey)
		if !slices.Equal(got, want) {
			t.Fatalf("the survey says\n%s\nand asked plainly\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		worlds, found = worlds+1, found+len(want)
	})
	if found < worlds/10 {
		t.Errorf("in %d worlds there were only %d obstacles", worlds, found)
	}
}

// BenchmarkAstray measures the survey of a node with 250 pods, a routing rule for
// each, and 5,000 other nodes; in a table of each pod's own, or one of all.
func BenchmarkAstray(b *testing.B) {
	text := &strings.Builder{}
	text.WriteString("node node1 addresses 172.30.0.1 mtu 1500\npool default 10.0.0.0/24 gateway 10.0.0.1\ntunnel vxlan port 8472 vtep 172.30.0.1 mac 0a:58:ac:1e:00:01\nnetwork default vni 1\n")
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: stamps.Default.Bridge, 4: vxlanDevice}
	for i := range 250 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 2)})
		fmt.Fprintf(text, "endpoint weft%d network default addresses %s mac %s anti-spoof\nroute default %s/32 endpoint weft%[1]d\n", i, a, plan.MACOf(a), a)
	}
	for i := range 5000 {
		n := i + 256
		a := netip.AddrFrom4([4]byte{172, 30, byte(n >> 8), byte(n)})
		fmt.Fprintf(text, "peer node%d ends %s@%s\nroute default 10.%d.%d.0/24 tunnel node%[1]d\n", n, a, plan.MACOf(a), n>>8, n&255)
		fmt.Fprintf(text, "route default %s/32 tunnel node%d endpoints-only\n", a, n)
	}
	p := parse(b, text.String())
	for k := range p.Endpoints.All() {
		names[linkIndex(k.Interface)] = k.Interface
	}
	for _, c := range []struct {
		name     string
		priority int
		table    func(pod int) int
		throws   bool
	}{
		{"behind Weft's", 9000, func(int) int { return 100 }, false},
		{"astray", 100, func(int) int { return 100 }, false},
		{"that know no way", 100, func(int) int { return 100 }, true},
		{"of tables that know no way", 100, func(pod int) int { return 100 + pod }, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, journey := surveyed(p, true, names)
			for i := range 250 {
				r.rules = append(r.rules, rtnl.FoundRule{Rule: rtnl.Rule{Priority: c.priority, From: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 2)}), 32), To: interval.Everything(true), Table: c.table(i)},
					Action: nl.FR_ACT_TO_TBL, Suppressed: -1})
				other := &rtnl.FoundRoute{RouteKey: rtnl.RouteKey{Table: c.table(i), Prefix: interval.Everything(true)}, Route: rtnl.Route{Kind: unix.RTN_UNICAST, Link: 2}, From: interval.Everything(true)}
				if c.throws {
					other.Kind = unix.RTN_THROW
				}
				if r.tables[other.Table] == nil {
					r.add(other)
				}
			}
			sortRules(r)
			for b.Loop() {
				r.astray(journey)
			}
		})
	}
}

// TestMatter checks that those routes are kept, and no others, that lead to an
// address that is asked about, or are Weft's: some nodes have the routes of the
// whole Internet.
func TestMatter(t *testing.T) {
	of := func(p *plan.Plan, peers []netip.Addr, is4 bool) (*subnet.Set, []netip.Prefix) {
		var all []netip.Prefix
		for k, r := range p.Routes.All() {
			if r.Way != plan.ToHost && r.Way != plan.ToGateway && r.Way != plan.ToDrop && k.Prefix.Addr().Is4() == is4 {
				all = append(all, k.Prefix)
			}
		}
		for _, a := range peers {
			all = append(all, interval.Single(a))
		}
		return (&travel{plan: p, tunnels: []outer{{peers: peers}}, is4: is4}).concerns(), all
	}
	concerns, _ := of(parse(t, "peer 10.0.0.5 addresses 10.0.0.5\nroute default 10.1.2.0/24 nexthop 10.0.0.5\nroute default 172.16.0.0/24 nexthop 10.0.0.5\n"),
		[]netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("192.168.0.5")}, true)
	for p, want := range map[string]bool{"0.0.0.0/0": true, "10.0.0.0/30": false, "10.0.0.0/29": true, "10.1.2.77/32": true, "10.1.3.0/24": false, "11.0.0.0/8": false,
		"172.16.0.0/12": true, "172.16.1.0/24": false, "192.168.0.5/32": true, "192.168.0.0/30": false} {
		if r := (rtnl.FoundRoute{RouteKey: rtnl.RouteKey{Prefix: netip.MustParsePrefix(p)}}); matter(stamps.Default, r, concerns) != want {
			t.Fatalf("a route to %s: %t", p, !want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p, is4 := &plan.Plan{}, rapid.Bool().Draw(t, "IPv4")
		for _, to := range rapid.SliceOf(plantest.Prefix()).Draw(t, "prefixes") {
			way := rapid.SampledFrom([]plan.Way{plan.ToEndpoint, plan.ToTunnel, plan.ToNextHop, plan.ToHost, plan.ToGateway, plan.ToDrop}).Draw(t, "way")
			p.Routes = p.Routes.Set(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: to}, plan.Route{Way: way, EndpointsOnly: rapid.Bool().Draw(t, "endpoints only")})
		}
		peers := rapid.SliceOf(plantest.Addr().Filter(func(a netip.Addr) bool { return a.Is4() == is4 })).Draw(t, "peers")
		concerns, plain := of(p, peers, is4)
		prefix := plantest.Prefix().Filter(func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }).Draw(t, "route")
		for _, protocol := range []uint8{stamps.Default.Protocol, unix.RTPROT_STATIC} {
			r := &rtnl.FoundRoute{RouteKey: rtnl.RouteKey{Prefix: prefix}, Protocol: protocol}
			if want := protocol == stamps.Default.Protocol || slices.ContainsFunc(plain, prefix.Overlaps); matter(stamps.Default, *r, concerns) != want {
				t.Fatalf("a route of protocol %d to %s, beside %v: %t", protocol, prefix, plain, !want)
			}
		}
	})
}

// foreign adds the rule or route that words describe, if it is of the family.
func foreign(t *testing.T, r *routing, is4 bool, names map[int]string, words []string) {
	t.Helper()
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	all := interval.Everything(is4)
	kind, words := words[0], words[1:]
	a, b := rtnl.FoundRule{Rule: rtnl.Rule{From: all, To: all}, Action: nl.FR_ACT_TO_TBL, Suppressed: -1}, rtnl.FoundRoute{Route: rtnl.Route{Kind: unix.RTN_UNICAST}, From: all}
	b.Table = unix.RT_TABLE_MAIN
	if kind == "rule" {
		a.Priority, words = number(words[0]), words[1:]
	}
	kinds := map[string]int{"throw": unix.RTN_THROW}
	for k, name := range kindNames {
		kinds[name] = k
	}
	actions := map[string]uint8{"blackhole": nl.FR_ACT_BLACKHOLE, "unreachable": nl.FR_ACT_UNREACHABLE, "prohibit": nl.FR_ACT_PROHIBIT, "nop": nl.FR_ACT_NOP}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		next := func() string { w := words[0]; words = words[1:]; return w }
		switch {
		case word == "from" && kind == "rule":
			a.From = netip.MustParsePrefix(next())
		case word == "from":
			b.From = netip.MustParsePrefix(next())
		case word == "to":
			a.To = netip.MustParsePrefix(next())
		case word == "iif":
			a.In = next()
		case word == "oif":
			a.Out = next()
		case word == "not":
			a.Inverted = true
		case word == "narrow":
			a.Narrow = true
		case word == "lookup":
			a.Table = number(next())
		case word == "suppress":
			a.Suppressed = number(next())
		case word == "goto":
			a.Action, a.Target = nl.FR_ACT_GOTO, number(next())
		case word == "via":
			b.Via = netip.MustParseAddr(next())
		case word == "dev":
			device := next()
			for link, name := range names {
				if name == device {
					b.Link = link
				}
			}
		case word == "table":
			b.Table = number(next())
		case word == "metric":
			b.Metric = number(next())
		case word == "proto":
			b.Protocol = uint8(number(next()))
		case kind == "rule" && actions[word] != 0:
			a.Action = actions[word]
		case kind == "route" && kinds[word] != 0:
			b.Kind = kinds[word]
		case word == "default":
			b.Prefix = interval.Everything(true)
		default:
			b.Prefix = netip.MustParsePrefix(word)
		}
	}
	of4 := func(some ...netip.Prefix) bool {
		return !slices.ContainsFunc(some, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Addr().Is4() != is4 })
	}
	switch {
	case kind == "rule" && of4(a.From, a.To):
		r.rules = append(r.rules, a)
	case kind == "route" && b.Prefix.Addr().Is4() == is4:
		r.add(&b)
	}
}
