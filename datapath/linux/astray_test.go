package linux

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/subnet"
)

// TestAstray has others' routing rules and routes take what pods send and get.
// The kernel is asked whether they do; it is said which of them, and how to be
// rid of it; what is said is done, and the kernel routes as Weft wants.
func TestAstray(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip")
	}
	const (
		onward  = "ip route get 10.1.2.7 from 10.1.1.2 iif weftaaa"
		udp     = onward + " ipproto udp"
		peer    = "ip route get 10.1.2.0 from 10.1.1.2 iif weftaaa"
		direct  = "ip route get 10.1.3.9 from 10.1.1.2 iif weftaaa"
		near    = "ip route get 10.1.1.3 from 10.1.1.2 iif weftaaa"
		inward  = "ip route get 10.1.1.2 from 10.1.2.7 iif weft-vxlan"
		node    = "ip route get 172.30.0.3 from 10.1.1.2 iif weftaaa"
		local   = "ip route get 10.1.1.2"
		onward6 = "ip route get fd00:2::7 from fd00:1::2 iif weftaaa"
		inward6 = "ip route get fd00:1::2 from fd00:2::7 iif weft-vxlan"
		outer   = "ip route get 172.30.0.3 from 172.30.0.2 ipproto udp"
	)
	leads := map[string]string{onward: "weft-vxlan", udp: "weft-vxlan", peer: "weft-vxlan", direct: "eth0", near: "weftbbb", inward: "weftaaa", node: "weft-vxlan", local: "weftaaa",
		onward6: "weft-vxlan", inward6: "weftaaa", outer: "eth0"}
	for _, c := range []struct{ do, wrong, want string }{
		// Rules that drop.
		{"ip rule add priority 100 from 10.1.1.0/24 blackhole", onward, "ip rule del priority 100 from 10.1.1.0/24 blackhole"},
		{"ip rule add priority 100 to 10.1.1.0/24 unreachable", inward, "ip rule del priority 100 from all to 10.1.1.0/24 unreachable"},
		{"ip rule add priority 100 to 10.1.2.7 prohibit", onward, "ip rule del priority 100 from all to 10.1.2.7/32 prohibit"},
		{"ip rule add priority 100 from 10.1.2.7 blackhole", inward, "ip rule del priority 100 from 10.1.2.7/32 blackhole"},
		{"ip rule add priority 100 iif weftaaa blackhole", onward, "ip rule del priority 100 from all iif weftaaa blackhole"},
		{"ip rule add priority 100 iif lo to 10.1.1.2 blackhole", local, "ip rule del priority 100 from all to 10.1.1.2/32 iif lo blackhole"},
		{"ip rule add priority 100 not from 10.9.0.0/16 blackhole", onward, "ip rule del priority 100 not from 10.9.0.0/16 blackhole"},
		{"ip rule add priority 100 from 10.1.1.0/24 ipproto udp blackhole", udp, "ip rule del priority 100 from 10.1.1.0/24 ipproto 17 blackhole"},
		{"ip rule add priority 100 not fwmark 7 lookup 100; ip route add unreachable default table 100", onward, "ip rule del priority 100 not from all fwmark 0x7/0xffffffff lookup 100"},
		{"ip rule add priority 200 to 10.1.1.0/24 blackhole; ip rule add priority 100 goto 200", inward, "ip rule del priority 200 from all to 10.1.1.0/24 blackhole"},
		{"ip -6 rule add priority 100 from fd00:1::/64 unreachable", onward6, "ip -6 rule del priority 100 from fd00:1::/64 unreachable"},
		{"ip rule del priority 32766", onward, "ip rule add priority 32766 lookup main"},
		{"ip rule del priority 32766; ip route add default dev eth0 table default", onward, "ip rule add priority 32766 lookup main"},
		// Rules that have others' tables asked.
		{"ip rule add priority 100 from 10.1.1.0/24 lookup 100; ip route add default via 172.30.0.9 table 100", onward, "ip rule del priority 100 from 10.1.1.0/24 lookup 100"},
		{"ip rule add priority 100 lookup 100; ip route add blackhole 10.1.2.7 table 100", onward, "ip route del blackhole 10.1.2.7/32 table 100"},
		{"ip rule add priority 100 to 172.30.0.0/16 lookup main", node, "ip rule del priority 100 from all to 172.30.0.0/16 lookup main"},
		{"ip rule add priority 100 to 172.30.0.0/24 lookup main; ip route add 172.30.0.3 dev eth0 proto kernel", node, "ip rule del priority 100 from all to 172.30.0.0/24 lookup main"},
		{"ip rule add priority 100 lookup main; ip rule del priority 32766", node, "ip rule add priority 32766 lookup main; ip rule del priority 100 from all lookup main"},
		// Routes.
		{"ip route add blackhole 10.1.2.7", onward, "ip route del blackhole 10.1.2.7/32 table main"},
		{"ip route add unreachable 10.1.2.0/25", onward, "ip route del unreachable 10.1.2.0/25 table main"},
		{"ip route add prohibit 10.1.3.9", direct, "ip route del prohibit 10.1.3.9/32 table main"},
		{"ip route add 10.1.2.7 dev eth0", onward, "ip route del 10.1.2.7/32 dev eth0 table main"},
		{"ip route add 10.1.2.7 dev lo", onward, "ip route del 10.1.2.7/32 dev lo table main"},
		{"ip route add 10.1.2.7 via 172.30.0.9 metric 5", onward, "ip route del 10.1.2.7/32 via 172.30.0.9 dev eth0 table main metric 5"},
		{"ip nexthop add id 7 blackhole; ip route add 10.1.2.7 nhid 7", onward, "ip route del 10.1.2.7/32 nhid 7 table main"},
		{"ip nexthop add id 8 dev eth0; ip route add 10.1.2.7 nhid 8", onward, "ip route del 10.1.2.7/32 nhid 8 table main"},
		{"ip route prepend blackhole 10.1.2.0/24", peer, "ip route del blackhole 10.1.2.0/24 table main"},
		{"ip route prepend 10.1.1.3 dev eth0", near, "ip route del 10.1.1.3/32 dev eth0 table main"},
		{"ip route add local 10.1.2.7 dev lo table local", onward, "ip route del local 10.1.2.7/32 dev lo table local"},
		{"ip route add local 10.0.0.0/8 dev lo", onward, "ip route del local 10.0.0.0/8 dev lo table local"},
		{"ip route add local 10.1.0.0/16 dev lo; ip rule add priority 50 lookup local; ip rule del priority 0", onward, "ip route del local 10.1.0.0/16 dev lo table local"},
		{"ip -6 route add local fd00::/16 dev lo", inward6, "ip -6 route del local fd00::/16 dev lo table local metric 1024"},
		{"ip addr add 10.1.0.9/16 dev lo", inward, "ip addr del 10.1.0.9/16 dev lo"},
		{"ip addr add 172.30.0.3/32 dev lo", outer, "ip addr del 172.30.0.3/32 dev lo"},
		{"ip addr add 10.1.1.2/31 dev eth0", inward, "ip addr del 10.1.1.2/31 dev eth0"},
		{"ip -6 route add blackhole fd00:2::7", onward6, "ip -6 route del blackhole fd00:2::7/128 table main metric 1024"},
		{"ip -6 route add blackhole fd00:1::2 metric 1", inward6, "ip -6 route del blackhole fd00:1::2/128 table main metric 1"},
		{"ip -6 route add fd00:2::7 dev eth0", onward6, "ip -6 route del fd00:2::7/128 dev eth0 table main metric 1024"},
		{"ip route add blackhole 172.30.0.3", outer, "ip route del blackhole 172.30.0.3/32 table main"},
		{"ip rule add priority 100 from 172.30.0.2 to 172.30.0.3 prohibit", outer, "ip rule del priority 100 from 172.30.0.2/32 to 172.30.0.3/32 prohibit"},
		// What takes nothing.
		{"ip route add blackhole 10.7.0.0/16", "", ""},
		{"ip route add blackhole 10.1.2.7 table 100", "", ""},
		{"ip route add blackhole default metric 9", "", ""},
		{"ip route add blackhole 10.1.2.0/24 metric 9", "", ""},
		{"ip route add 10.1.2.7 via 10.1.2.0 dev weft-vxlan onlink", "", ""},
		{"ip rule add priority 100 fwmark 7 blackhole", "", ""},
		{"ip rule add priority 100 dport 25 ipproto tcp blackhole", "", ""},
		{"ip rule add priority 100 iif eth0 to 192.0.2.0/24 blackhole", "", ""},
		{"ip rule add priority 8900 lookup main suppress_prefixlength 0; ip rule add priority 9000 lookup 100; ip route add default dev eth0 table 100", "", ""},
		{"ip rule add priority 100 lookup 100; ip route add throw 10.1.0.0/16 table 100", "", ""},
		{"ip rule add priority 200 nop; ip rule add priority 100 goto 200; ip rule add priority 150 blackhole", "", ""},
		{"ip addr add 172.30.0.77/24 dev eth0", "", ""},
		{"ip addr add 172.30.0.50/32 dev lo; ip addr add 10.96.0.1/32 dev lo; ip route add local 192.0.2.0/24 dev lo", "", ""},
		{"ip rule add priority 50 lookup local; ip rule del priority 0", "", ""},
		{"ip route add unreachable default metric 9999", "", ""},
	} {
		t.Run(c.do, func(t *testing.T) {
			b := newBench(t)
			b.do(func() error {
				return errors.Join(sysctl.Set("ipv6/conf/all/disable_ipv6", "0"), b.down("weftbbb", "pod2"), netlink.LinkSetUp(mustLink(t, "lo")))
			})
			b.mustApply(mustParse(t, strings.Replace(dualPlan, "default ::/0 gateway\n", "default ::/0 gateway\nroute default 172.30.0.3/32 tunnel node2 endpoints-only\n", 1)+
				secondEndpoint+"peer 172.30.0.4 addresses 172.30.0.4\nroute default 10.1.3.0/24 nexthop 172.30.0.4\n"))
			run := func(command string) (out string, err error) {
				b.do(func() error {
					said, failure := exec.Command("sh", "-ec", command).CombinedOutput()
					out, err = string(said), failure
					return nil
				})
				return out, err
			}
			right := func(question string) bool {
				out, err := run(question)
				return err == nil && strings.Contains(out, " dev "+leads[question]+" ")
			}
			for question := range leads {
				if !right(question) {
					out, err := run(question)
					t.Fatalf("%s: %s, %v; expected that it leads to %s", question, out, err, leads[question])
				}
			}
			if found, err := b.Obstacles(); err != nil || len(found) > 0 {
				t.Fatalf("of a node of its own it is said %q, %v", found, err)
			}
			if out, err := run(c.do); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if c.wrong != "" && right(c.wrong) {
				t.Errorf("the kernel says that all is right: %s", c.wrong)
			}
			found, err := b.Obstacles()
			if err != nil || (len(found) > 0) != (c.want != "") || !strings.HasSuffix(strings.Join(found, "\n"), c.want) {
				t.Errorf("the obstacles are %q, %v; expected %q", found, err, c.want)
			}
			if len(found) > 0 {
				_, mend, _ := strings.Cut(found[0], ": ")
				if out, err := run(mend); err != nil {
					t.Errorf("%s: %v: %s", mend, err, out)
				}
				if found, err := b.Obstacles(); err != nil || len(found) > 0 {
					t.Errorf("after %s there is still %q, %v", mend, found, err)
				}
				if c.wrong != "" && !right(c.wrong) {
					t.Errorf("after %s the kernel still says that %s is wrong", mend, c.wrong)
				}
			}
		})
	}
}

// TestAstrayStories shows what is said of others' rules and routes: testdata has a
// plan, and then some of them with what the survey says.
func TestAstrayStories(t *testing.T) {
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: stamps.Default.Bridge, 4: vxlanDevice}
	var p *plan.Plan
	golden.Answers(t, "testdata/astray.txtar", func(t *testing.T, name, question string) string {
		if name == "plan" {
			p = mustParse(t, question)
			for k := range p.Endpoints.All() {
				names[linkIndex(k.Interface)] = k.Interface
			}
			return ""
		}
		var said []string
		for _, is4 := range interval.Families {
			r, journey := surveyed(t, p, is4, names)
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
func surveyed(t interface{ Fatalf(string, ...any) }, p *plan.Plan, is4 bool, names map[int]string) (*routing, *travel) {
	c := compileFor(t, p)
	r := &routing{stamps: stamps.Default}
	for key, own := range c.want.Routes.Now {
		if key.Prefix.Addr().Is4() == is4 {
			r.add(&rtnl.FoundRoute{RouteKey: key, Route: own, Protocol: stamps.Default.Protocol})
		}
	}
	all := interval.Everything(is4)
	for priority, table := range map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN} {
		r.rules = append(r.rules, rtnl.FoundRule{Rule: rtnl.Rule{Priority: priority, From: all, To: all, Table: table}, Protocol: unix.RTPROT_KERNEL, Action: nl.FR_ACT_TO_TBL, Suppressed: -1})
	}
	for own := range c.want.Rules.Now {
		if own.From.Addr().Is4() == is4 {
			r.rules = append(r.rules, rtnl.FoundRule{Rule: own, Protocol: stamps.Default.Protocol, Action: nl.FR_ACT_TO_TBL, Suppressed: -1})
		}
	}
	sortRules(r)
	journey := &travel{plan: p, node: c.node, is4: is4, name: func(link int) string { return names[link] },
		addresses: func(int) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.1.1.2/31")} }, tunnels: c.outers(is4)}
	return r, journey
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
	p := mustParse(t, `node node1 addresses 172.30.0.2,fd01::2 mtu 1500
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
		r, journey := surveyed(t, p, is4, names)
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
	p := mustParse(b, text.String())
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
			r, journey := surveyed(b, p, true, names)
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
	concerns, _ := of(mustParse(t, "peer 10.0.0.5 addresses 10.0.0.5\nroute default 10.1.2.0/24 nexthop 10.0.0.5\nroute default 172.16.0.0/24 nexthop 10.0.0.5\n"),
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
