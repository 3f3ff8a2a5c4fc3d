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
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: DefaultStamps.Bridge, 4: vxlanDevice}
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
	r := &routing{stamps: DefaultStamps}
	for key, own := range c.want.routes.Now {
		if key.prefix.Addr().Is4() == is4 {
			r.add(&foundRoute{routeKey: key, route: own, protocol: DefaultStamps.Protocol})
		}
	}
	all := interval.Everything(is4)
	for priority, table := range map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN} {
		r.rules = append(r.rules, foundRule{rule: rule{priority, all, all, table}, protocol: unix.RTPROT_KERNEL, action: nl.FR_ACT_TO_TBL, suppressed: -1})
	}
	for own := range c.want.rules.Now {
		if own.from.Addr().Is4() == is4 {
			r.rules = append(r.rules, foundRule{rule: own, protocol: DefaultStamps.Protocol, action: nl.FR_ACT_TO_TBL, suppressed: -1})
		}
	}
	sortRules(r)
	journey := &travel{plan: p, node: c.node, is4: is4, name: func(link int) string { return names[link] },
		addresses: func(int) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.1.1.2/31")} }, tunnels: c.outers(is4)}
	return r, journey
}

func sortRules(r *routing) {
	slices.SortStableFunc(r.rules, func(a, b foundRule) int { return a.priority - b.priority })
}

// plainly says what astray does, by asking each rule about each packet.
func (r *routing) plainly(t *travel) []string {
	found := &strays{decider: newDecider(r), travel: t, needed: r.needed(), endpoints: map[int]bool{}, told: map[any]bool{}}
	for _, link := range t.node.links {
		found.endpoints[link] = true
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, DefaultStamps.RoutingTable} {
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
			if table == DefaultStamps.RoutingTable {
				break
			}
			sources[route.source] = true
			if route.kind == unix.RTN_UNICAST && !found.endpoints[route.link] {
				from := []netip.Addr{route.prefix.Addr()}
				for _, rule := range r.rules {
					if interval.Covers(route.prefix, rule.from) {
						from = append(from, rule.from.Addr())
					}
				}
				for _, a := range from {
					senders = append(senders, sender{in: t.name(route.link), from: a, incoming: true, what: "what comes to %s from other nodes"})
				}
			}
		}
		for _, a := range slices.SortedFunc(maps.Keys(sources), netip.Addr.Compare) {
			senders = append(senders, sender{in: "lo", from: a, what: "what the node sends to %s"})
		}
		ask := func(to netip.Addr, want *foundRoute) {
			if want == nil || want.kind != unix.RTN_UNICAST || !t.isPods(to, table == DefaultStamps.RoutingTable) {
				return
			}
			for _, s := range senders {
				if s.incoming && !found.endpoints[want.link] {
					continue
				}
				for _, s.protocol = range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
					if table == DefaultStamps.RoutingTable && !slices.ContainsFunc(r.rules, func(rule foundRule) bool {
						return rule.protocol == DefaultStamps.Protocol && rule.table == table && rule.fits(s, to)
					}) {
						continue
					}
					rule, route := r.decide(s, to, nil)
					found.judge(&s, to, want, rule, route)
				}
			}
		}
		for _, want := range own.all() {
			ask(want.prefix.Addr(), want)
		}
		for _, p := range r.prefixes() {
			if want := own.find(p.Addr(), netip.Addr{}, nil); want != nil && want.prefix.Bits() < p.Bits() {
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
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: DefaultStamps.Bridge, 4: vxlanDevice}
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
		table := rapid.SampledFrom([]int{unix.RT_TABLE_MAIN, unix.RT_TABLE_LOCAL, unix.RT_TABLE_DEFAULT, DefaultStamps.RoutingTable, 100, 101})
		priority := rapid.SampledFrom([]int{0, 1, 100, 200, 200, 8700, 9000, 32766, 40000})
		device := rapid.SampledFrom([]string{"", "", "", "weftaaa", vxlanDevice, "lo", "eth0"})
		protocol := rapid.SampledFrom([]uint8{unix.RTPROT_BOOT, unix.RTPROT_BOOT, unix.RTPROT_KERNEL, DefaultStamps.Protocol})
		rarely := rapid.Map(rapid.IntRange(0, 9), func(n int) bool { return n == 0 })
		if rarely.Draw(t, "without the kernel's") {
			r.rules = slices.Delete(r.rules, 0, 1)
		}
		actions := []uint8{nl.FR_ACT_TO_TBL, nl.FR_ACT_TO_TBL, nl.FR_ACT_TO_TBL, nl.FR_ACT_NOP, nl.FR_ACT_BLACKHOLE}
		if rapid.Bool().Draw(t, "with jumps") {
			actions = append(actions, nl.FR_ACT_GOTO, nl.FR_ACT_GOTO, nl.FR_ACT_GOTO)
		}
		for range rapid.IntRange(0, 8).Draw(t, "rules") {
			one := foundRule{rule: rule{priority.Draw(t, "priority"), prefix.Draw(t, "from"), prefix.Draw(t, "to"), table.Draw(t, "table")},
				protocol: uint8(protocol.Draw(t, "protocol")), in: device.Draw(t, "in"), target: priority.Draw(t, "target"),
				inverted: rarely.Draw(t, "inverted"), narrow: rarely.Draw(t, "narrow"),
				action:     rapid.SampledFrom(actions).Draw(t, "action"),
				ip:         rapid.SampledFrom([]uint8{0, 0, 0, unix.IPPROTO_UDP}).Draw(t, "ip"),
				suppressed: rapid.SampledFrom([]int{-1, -1, 0, 24}).Draw(t, "suppressed")}
			if rarely.Draw(t, "marked") {
				one.mark, one.mask = 7, uint32(rapid.SampledFrom([]int{7, 8}).Draw(t, "mask"))
			}
			r.rules = append(r.rules, one)
		}
		sortRules(r)
		for range rapid.IntRange(0, 8).Draw(t, "routes") {
			one := &foundRoute{routeKey: routeKey{table.Draw(t, "table"), prefix.Draw(t, "prefix"), rapid.IntRange(0, 2).Draw(t, "metric")},
				route:    route{kind: rapid.SampledFrom([]int{unix.RTN_UNICAST, unix.RTN_UNICAST, unix.RTN_LOCAL, unix.RTN_BLACKHOLE, unix.RTN_THROW}).Draw(t, "kind"), link: rapid.IntRange(1, 4).Draw(t, "link")},
				protocol: protocol.Draw(t, "protocol"), from: interval.Everything(is4)}
			if !is4 {
				one.from = prefix.Draw(t, "source")
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
	names := map[int]string{loopbackLink: "lo", 2: "eth0", 3: DefaultStamps.Bridge, 4: vxlanDevice}
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
				r.rules = append(r.rules, foundRule{rule: rule{c.priority, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 2)}), 32), interval.Everything(true), c.table(i)},
					action: nl.FR_ACT_TO_TBL, suppressed: -1})
				other := &foundRoute{routeKey: routeKey{table: c.table(i), prefix: interval.Everything(true)}, route: route{kind: unix.RTN_UNICAST, link: 2}, from: interval.Everything(true)}
				if c.throws {
					other.kind = unix.RTN_THROW
				}
				if r.tables[other.table] == nil {
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
		if r := (foundRoute{routeKey: routeKey{prefix: netip.MustParsePrefix(p)}}); DefaultStamps.matter(&r, concerns) != want {
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
		for _, protocol := range []uint8{DefaultStamps.Protocol, unix.RTPROT_STATIC} {
			r := &foundRoute{routeKey: routeKey{prefix: prefix}, protocol: protocol}
			if want := protocol == DefaultStamps.Protocol || slices.ContainsFunc(plain, prefix.Overlaps); DefaultStamps.matter(r, concerns) != want {
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
	a, b := foundRule{rule: rule{from: all, to: all}, action: nl.FR_ACT_TO_TBL, suppressed: -1}, foundRoute{route: route{kind: unix.RTN_UNICAST}, from: all}
	b.table = unix.RT_TABLE_MAIN
	if kind == "rule" {
		a.priority, words = number(words[0]), words[1:]
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
			a.from = netip.MustParsePrefix(next())
		case word == "from":
			b.from = netip.MustParsePrefix(next())
		case word == "to":
			a.to = netip.MustParsePrefix(next())
		case word == "iif":
			a.in = next()
		case word == "oif":
			a.out = next()
		case word == "not":
			a.inverted = true
		case word == "narrow":
			a.narrow = true
		case word == "lookup":
			a.table = number(next())
		case word == "suppress":
			a.suppressed = number(next())
		case word == "goto":
			a.action, a.target = nl.FR_ACT_GOTO, number(next())
		case word == "via":
			b.via = netip.MustParseAddr(next())
		case word == "dev":
			device := next()
			for link, name := range names {
				if name == device {
					b.link = link
				}
			}
		case word == "table":
			b.table = number(next())
		case word == "metric":
			b.metric = number(next())
		case word == "proto":
			b.protocol = uint8(number(next()))
		case kind == "rule" && actions[word] != 0:
			a.action = actions[word]
		case kind == "route" && kinds[word] != 0:
			b.kind = kinds[word]
		case word == "default":
			b.prefix = interval.Everything(true)
		default:
			b.prefix = netip.MustParsePrefix(word)
		}
	}
	of4 := func(some ...netip.Prefix) bool {
		return !slices.ContainsFunc(some, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Addr().Is4() != is4 })
	}
	switch {
	case kind == "rule" && of4(a.from, a.to):
		r.rules = append(r.rules, a)
	case kind == "route" && b.prefix.Addr().Is4() == is4:
		r.add(&b)
	}
}
