package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

const tunnelPlan = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
endpoint weftaaa network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 anti-spoof
route default 0.0.0.0/0 gateway
route default 10.1.1.2/32 endpoint weftaaa
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
peer node3 ends vxlan@172.30.0.4@0a:58:ac:1e:00:04
route default 10.1.3.0/24 tunnel node3
egress default any 0.0.0.0/0 masquerade
egress default any 10.1.0.0/16 direct
`

// bench is a namespace with an underlay device, eth0, and the interface of one
// endpoint, weftaaa.
type bench struct {
	t    testing.TB
	path string
	*DataPlane
}

func newBench(t testing.TB) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var ns *os.File
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	b := &bench{t: t, path: fmt.Sprintf("/proc/self/fd/%d", ns.Fd())}
	b.do(func() error {
		if err := b.link(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 1500}}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("172.30.0.2/24"))}); err != nil {
			return err
		}
		return b.link(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftaaa"}, PeerName: "pod"})
	})
	var err error
	if b.DataPlane, err = NewAt(b.path, Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func (b *bench) do(f func() error) {
	b.t.Helper()
	if err := netns.Do(b.path, f); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) link(l netlink.Link) error {
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func ip(a netip.Addr) net.IP { return a.AsSlice() }

func mustParse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (b *bench) mustApply(p *plan.Plan) {
	b.t.Helper()
	if err := b.Apply(b.t.Context(), p); err != nil {
		b.t.Fatal(err)
	}
}

// nothingToRepair checks that the kernel holds what was applied, to the letter,
// whatever Watch has heard.
func (b *bench) nothingToRepair() {
	b.t.Helper()
	b.state.Lock()
	b.follows = nil
	b.state.Unlock()
	if lines, err := b.Repair(b.t.Context()); err != nil || len(lines) > 0 {
		b.t.Errorf("repair: %q, %v", lines, err)
	}
}

// policyLines put tunnelPlan's endpoint under a policy.
const policyLines = `class default 10.1.2.7/32 c0
class default 10.1.3.0/24 c1
verdict web ingress from c0 tcp 80 allow
verdict web ingress from c1 any deny
`

var policedPlan = strings.Replace(tunnelPlan, "anti-spoof", "ingress-policy web anti-spoof", 1) + policyLines

// TestInTheWay checks that what others made is named, left alone, and keeps
// nothing else from being done.
func TestInTheWay(t *testing.T) {
	t.Run("route", func(t *testing.T) {
		b := newBench(t)
		foreign := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.2.0/24")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}
		b.do(func() error { return netlink.RouteAdd(foreign) })
		p := mustParse(t, tunnelPlan)
		if err := b.Apply(t.Context(), p); err == nil || !strings.Contains(err.Error(), "10.1.2.0/24") || !strings.Contains(err.Error(), "in the way") {
			t.Errorf("the error is %v; expected one that names the route in the way", err)
		}
		var first error
		found := b.watch()
		for range 3 {
			// All else is watched and repaired meanwhile, and the same is said.
			b.do(func() error {
				return netlink.RouteDel(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.3.0/24"))})
			})
			if d := <-found; d.What != "route 10.1.3.0/24" {
				t.Errorf("it is told of %+v", d)
			}
			lines, err := b.Repair(t.Context())
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "add route 10.1.3.0/24") }) {
				t.Errorf("a repair did %q", lines)
			}
			var entry *datapath.EntryError
			if !errors.As(err, &entry) || !strings.Contains(entry.Entry, "route 10.1.2.0/24") || datapath.Concerning(err, "weftaaa") != nil || datapath.Concerning(err) == nil {
				t.Errorf("the error is %v; expected one of that route alone", err)
			}
			if first == nil {
				first = err
			} else if err == nil || err.Error() != first.Error() {
				t.Errorf("the error is %v now; it was %v", err, first)
			}
		}
		b.do(func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			protocols := map[string]netlink.RouteProtocol{}
			for _, r := range routes {
				protocols[r.Dst.String()] = r.Protocol
			}
			if protocols["10.1.2.0/24"] != unix.RTPROT_STATIC || protocols["10.1.3.0/24"] != netlink.RouteProtocol(stamps.Default.Protocol) {
				t.Errorf("routes by protocol: %v", protocols)
			}
			return netlink.RouteDel(foreign)
		})
		b.mustApply(p)
		b.nothingToRepair()
	})
	t.Run("VXLAN device", func(t *testing.T) {
		b := newBench(t)
		b.do(func() error {
			return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1"}, VxlanId: 1, Port: 8472})
		})
		if err := b.Apply(t.Context(), mustParse(t, tunnelPlan)); err == nil || !strings.Contains(err.Error(), "flannel.1") {
			t.Errorf("the error is %v; expected one that names flannel.1", err)
		}
		b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNREACHABLE, "10.1.3.0/24": unix.RTN_UNREACHABLE})
		b.do(func() error {
			l, err := netlink.LinkByName("flannel.1")
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		})
		b.mustApply(mustParse(t, tunnelPlan))
		b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNICAST, "10.1.3.0/24": unix.RTN_UNICAST})
		b.nothingToRepair()
	})
	t.Run("name", func(t *testing.T) {
		b := newBench(t)
		b.do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: stamps.Default.Bridge}, PeerName: "other"})
		})
		if err := b.Apply(t.Context(), mustParse(t, tunnelPlan)); err == nil || !strings.Contains(err.Error(), stamps.Default.Bridge) {
			t.Errorf("the error is %v; expected one that names %s", err, stamps.Default.Bridge)
		}
		b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNICAST})
		if err := b.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		b.do(func() error {
			l, err := netlink.LinkByName(stamps.Default.Bridge)
			if err == nil && (l.Type() != "veth" || l.Attrs().Flags&net.FlagUp != 0) {
				err = fmt.Errorf("another's interface was changed: %v", l)
			}
			return err
		})
	})
	t.Run("VTEP elsewhere", func(t *testing.T) {
		b := newBench(t)
		text := strings.ReplaceAll(tunnelPlan, "vtep 172.30.0.2", "vtep 172.30.0.7")
		if err := b.Apply(t.Context(), mustParse(t, text)); err == nil || !strings.Contains(err.Error(), "172.30.0.7") {
			t.Errorf("the error is %v; expected one that names the VTEP", err)
		}
		b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST, "10.1.2.0/24": unix.RTN_UNREACHABLE})
	})
}

// loaded checks of what type Weft's routes to some prefixes are.
func (b *bench) loaded(want map[string]int) {
	b.t.Helper()
	b.do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: netlink.RouteProtocol(stamps.Default.Protocol)}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return err
		}
		got := map[string]int{}
		for _, r := range routes {
			got[r.Dst.String()] = r.Type
		}
		for prefix, kind := range want {
			if got[prefix] != kind {
				b.t.Errorf("the route to %s is of type %d; expected %d", prefix, got[prefix], kind)
			}
		}
		return nil
	})
}

// TestForeignStays checks that Remove leaves what is not Weft's.
func TestForeignStays(t *testing.T) {
	b := newBench(t)
	other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
	prefix := netip.MustParsePrefix("10.77.0.0/16")
	b.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(other)
		r := netlink.NewRule()
		r.Family, r.Priority, r.Table, r.Src = unix.AF_INET, stamps.Default.Priority, stamps.Default.RoutingTable, ipNet(prefix)
		return errors.Join(conn.Flush(), netlink.RuleAdd(r), netlink.RouteAdd(&netlink.Route{Dst: ipNet(prefix), Gw: ip(netip.MustParseAddr("172.30.0.9"))}),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(prefix), Gw: ip(netip.MustParseAddr("172.30.0.9")), Table: stamps.Default.RoutingTable}))
	})
	b.mustApply(mustParse(t, tunnelPlan))
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		if tables, err := conn.ListTables(); err != nil || len(tables) != 1 || tables[0].Name != "other" {
			t.Errorf("tables: %v, %v", tables, err)
		}
		rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Priority: stamps.Default.Priority}, netlink.RT_FILTER_PRIORITY)
		if err != nil || len(rules) != 1 {
			t.Errorf("rules: %v, %v", rules, err)
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: ipNet(prefix)}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil || len(routes) != 2 {
			t.Errorf("routes: %v, %v", routes, err)
		}
		for _, name := range []string{stamps.Default.Bridge, vxlanDevice} {
			if _, err := netlink.LinkByName(name); err == nil {
				t.Errorf("%s is still there", name)
			}
		}
		return nil
	})
}

// TestTampering checks that changes to what is Weft's are found in detail.
func TestTampering(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan))
	b.nothingToRepair()
	policy := nft.InetTable(stamps.Default.PolicyTable)
	eth0 := func() (netlink.Link, error) { return netlink.LinkByName("eth0") }
	vxlan := func() (netlink.Link, error) { return netlink.LinkByName(vxlanDevice) }
	edit := func(f func(*nftables.Conn) error) func() error {
		return func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			return errors.Join(f(conn), conn.Flush())
		}
	}
	on := func(link func() (netlink.Link, error), f func(netlink.Link) error) func() error {
		return func() error {
			l, err := link()
			if err != nil {
				return err
			}
			return f(l)
		}
	}
	for _, c := range []struct {
		what, repair string
		do           func() error
	}{
		{"a rule is added to a chain", "changed chain nat", edit(func(c *nftables.Conn) error {
			c.InsertRule(&nftables.Rule{Table: nft.InetTable(stamps.Default.Table), Chain: &nftables.Chain{Name: "nat"}, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
			return nil
		})},
		{"an element goes", "set own-4: 1 elements come, 0 go", edit(func(c *nftables.Conn) error {
			c.FlushSet((&nft.Set{}).In(stamps.Default.Table, "own-4"))
			return nil
		})},
		{"an element comes", "set peers-vxlan-4: 0 elements come, 1 go", edit(func(c *nftables.Conn) error {
			return c.SetAddElements((&nft.Set{}).In(stamps.Default.Table, "peers-vxlan-4"), []nftables.SetElement{{Key: []byte{192, 0, 2, 1}}})
		})},
		{"a set comes", "no set more", edit(func(c *nftables.Conn) error {
			return c.AddSet((&nft.Set{Key: nftables.TypeIPAddr}).In(stamps.Default.Table, "more"), nil)
		})},
		{"a rule of policies goes", "changed chain through-node", edit(func(c *nftables.Conn) error {
			c.FlushChain(&nftables.Chain{Table: policy, Name: throughNode})
			return nil
		})},
		{"verdicts go", "set verdicts: ", edit(func(c *nftables.Conn) error {
			c.FlushSet(policyRules(stamps.Default, true).Sets[profileVerdicts].In(stamps.Default.PolicyTable, profileVerdicts))
			return nil
		})},
		{"a class changes", "set addresses-4: 1 elements come, 1 go", edit(func(c *nftables.Conn) error {
			s, key := policyRules(stamps.Default, true).Sets[classesOfAddresses+"-4"].In(stamps.Default.PolicyTable, classesOfAddresses+"-4"), []byte{10, 1, 2, 7}
			return errors.Join(c.SetDeleteElements(s, []nftables.SetElement{{Key: key}}),
				c.SetAddElements(s, []nftables.SetElement{{Key: key, Val: []byte(classKey(5))}}))
		})},
		{"the table of policies goes", "write table inet weft-policy", edit(func(c *nftables.Conn) error {
			c.DelTable(policy)
			return nil
		})},
		{"the underlay's MTU changes", "set MTU 1350 of weft-vxlan, it was 1450", on(eth0, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) })},
		{"the tunnel's MAC changes", "set MAC 0a:58:ac:1e:00:02 of weft-vxlan", on(vxlan, func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 1})
		})},
		{"a neighbour changes", "replace neighbour 10.1.2.0 at 0a:58:ac:1e:00:03", on(vxlan, func(l netlink.Link) error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: ip(netip.MustParseAddr("10.1.2.0")), HardwareAddr: []byte{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT})
		})},
		{"a route changes", "replace route 10.1.2.0/24", func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.2.0/24")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: netlink.RouteProtocol(stamps.Default.Protocol)})
		}},
		{"forwarding is turned off", "set ipv4/ip_forward to 1", func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) }},
		{"the kernel checks sources again", "set ipv4/conf/weftaaa/accept_local to 1", func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/weftaaa/accept_local", []byte("0"), 0)
		}},
		{"the device is another one", "add VXLAN device weft-vxlan", on(vxlan, func(l netlink.Link) error {
			return errors.Join(netlink.LinkDel(l), netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: vxlanDevice}, VxlanId: 9, Port: 8472}))
		})},
	} {
		b.do(c.do)
		lines, err := b.Repair(t.Context())
		if err != nil || !strings.Contains(strings.Join(lines, "\n"), c.repair) {
			t.Errorf("%s: the repair is %q, %v; expected %q among it", c.what, lines, err, c.repair)
		}
		b.nothingToRepair()
	}
}

// TestRefilledBeforeInterfacesAreRead checks that the packet filter is as it should be again, where
// somebody has flushed it, also while nobody learns what interfaces there are.
func TestRefilledBeforeInterfacesAreRead(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan+"service default 10.3.0.1 tcp 80\n"))
	tables := func() (names []string) {
		b.do(func() error {
			c, err := nft.Open()
			if err != nil {
				return err
			}
			all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
			for _, table := range all {
				names = append(names, table.Name)
			}
			slices.Sort(names)
			return err
		})
		return names
	}
	want := tables()
	if len(want) != 3 {
		t.Fatalf("there are the tables %s; expected three", want)
	}
	for i, gone := range [][]string{want, want, want[:1], want[1:2], want[2:]} {
		b.do(func() error {
			c, err := nft.Open()
			if err != nil {
				return err
			}
			for _, name := range gone {
				c.DelTable(nft.InetTable(name))
			}
			return c.Flush()
		})
		was, busy := listing, errors.New("busy")
		listing = func(*rtnl.Kernel) (*rtnl.Links, error) { return nil, busy }
		lines, err := b.Repair(t.Context())
		if listing = was; !errors.Is(err, busy) {
			t.Errorf("repair without interfaces: %v", err)
		}
		if got := tables(); !slices.Equal(got, want) {
			t.Errorf("%s were deleted, and there are %s; %q", gone, got, lines)
		}
		if i == 0 {
			continue // and so a second time before all could be read
		}
		if _, err := b.Repair(t.Context()); err != nil {
			t.Error(err)
		}
		b.nothingToRepair()
	}
}

// TestHalfClosed checks that a node with Services knows connections for an hour of which one side
// sends no more, and no shorter than somebody wants.
func TestHalfClosed(t *testing.T) {
	b := newBench(t)
	const name = "netfilter/nf_conntrack_tcp_timeout_close_wait"
	is := func(wanted string) {
		t.Helper()
		b.do(func() error {
			got, err := sysctl.Get(name)
			if err == nil && got != wanted {
				t.Errorf("%s is %s; expected %s", name, got, wanted)
			}
			return err
		})
	}
	set := func(value string) { b.do(func() error { return sysctl.Set(name, value) }) }
	set("61")
	b.mustApply(mustParse(t, tunnelPlan))
	is("61")
	b.mustApply(mustParse(t, tunnelPlan+"service default 10.3.0.1 tcp 80\n"))
	is("3600")
	set("62")
	if _, err := b.Repair(t.Context()); err != nil {
		t.Error(err)
	}
	is("3600")
	set("7200")
	if _, err := b.Repair(t.Context()); err != nil {
		t.Error(err)
	}
	is("7200")
}

// TestRulesFollowRoutes checks that what endpoints send is looked up apart as
// far as there are routes for it alone, however far that was before.
func TestRulesFollowRoutes(t *testing.T) {
	b := newBench(t)
	near := mustParse(t, tunnelPlan+"route default 172.30.0.3/32 tunnel node2 endpoints-only\n")
	far := mustParse(t, near.String()+"route default 172.30.0.4/32 tunnel node3 endpoints-only\n")
	everywhere := mustParse(t, strings.Replace(near.String(), "route default 0.0.0.0/0 gateway\n", "", 1))
	for _, c := range []struct {
		plan *plan.Plan
		to   string
	}{{near, "172.30.0.3/32"}, {everywhere, "<nil>"}, {near, "172.30.0.3/32"}, {far, "172.30.0.0/29"}, {everywhere, "<nil>"}, {far, "172.30.0.0/29"}, {near, "172.30.0.3/32"}} {
		b.mustApply(c.plan)
		b.nothingToRepair()
		b.do(func() error {
			rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, &netlink.Rule{Table: stamps.Default.RoutingTable}, netlink.RT_FILTER_TABLE)
			if err == nil && (len(rules) != 1 || fmt.Sprint(rules[0].Dst) != c.to) {
				t.Errorf("the rules are %v; expected one to %s", rules, c.to)
			}
			return err
		})
	}
}

// TestTunnelsOutlastPools checks that routes through a tunnel and their neighbours stay, and are there
// all the time, while the node gives up the pool of which it had an address at the tunnel's end, as a
// node does that other nodes' pods keep addresses of after it has changed its plug-in.
func TestTunnelsOutlastPools(t *testing.T) {
	b := newBench(t)
	first := mustParse(t, tunnelPlan+"pool default 10.1.9.0/24 gateway 10.1.9.1\n")
	then := mustParse(t, strings.Replace(first.String(), "pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan\n", "", 1))
	for _, p := range []*plan.Plan{first, then, first, then} {
		b.mustApply(p)
		b.nothingToRepair()
		b.do(func() error {
			found, err := netlink.RouteGet(netip.MustParseAddr("10.1.2.9").AsSlice())
			if err == nil && !found[0].Gw.Equal(netip.MustParseAddr("10.1.2.0").AsSlice()) {
				t.Errorf("the way to node2's pods is %v", found)
			}
			if err == nil && p == then && !found[0].Src.Equal(netip.MustParseAddr("10.1.9.1").AsSlice()) {
				t.Errorf("what is sent to node2's pods comes from %s, and not from the gateway of the pool that is left", found[0].Src)
			}
			return err
		})
	}
}

// TestOneEndpointCostsItsOwn checks that an endpoint that comes or goes
// touches nothing but what is its own.
func TestOneEndpointCostsItsOwn(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, tunnelPlan)
	b.do(func() error {
		return b.link(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftbbb"}, PeerName: "pod2"})
	})
	b.mustApply(p)
	q := mustParse(t, tunnelPlan+"endpoint weftbbb network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 anti-spoof\nroute default 10.1.1.3/32 endpoint weftbbb\n")
	b.mustApply(q)
	if got := len(b.writes); got != 15 { // group, ten settings, neighbour, two sets, route
		t.Errorf("it came with %q", b.writes)
	}
	b.nothingToRepair()
	b.mustApply(p)
	if got := len(b.writes); got != 4 { // group, setting, two sets; the rest goes with the interface
		t.Errorf("it went with %q", b.writes)
	}
	b.nothingToRepair()
	b.mustApply(q)
	b.do(func() error {
		l, err := netlink.LinkByName("weftbbb")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	b.mustApply(p) // with the interface gone before, as when a pod ends
	b.nothingToRepair()
}

// TestNftShowsTables checks that nft, of whatever age, can show the tables:
// some end with a failure at keys that maps gave parts of.
func TestNftShowsTables(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan+servedEntries))
	b.do(func() error {
		for table, line := range map[string]string{stamps.Default.PolicyTable: "10.1.2.7 : ", stamps.Default.ServiceTable: "update @clients-4", stamps.Default.Table: "update @dropped-spoofed-source { iifname"} {
			shown, err := exec.Command("nft", "list", "table", "inet", table).CombinedOutput()
			if err != nil || !strings.Contains(string(shown), line) {
				t.Errorf("nft list: %v\n%s", err, shown)
			}
		}
		return nil
	})
}

// TestOneVerdictCostsItsOwn checks that a change of policies touches nothing
// but what is its own, and no more than that in the kernel.
func TestOneVerdictCostsItsOwn(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan))
	const another = "fill set generation anew: 1 elements"
	for _, c := range []struct {
		what, replace, by string
		want              []string
	}{
		{"a verdict comes", "tcp 80 allow\n", "tcp 80 allow\nverdict web ingress from c0 udp allow\n",
			[]string{"change set verdicts: 4 elements come, 0 go", another, "change set peers: 1 elements come, 1 go", "change set verdicts: 0 elements come, 2 go"}},
		{"its origin changes", "tcp 80 allow", "tcp 80 allow # rule", nil},
		{"a class changes", "10.1.2.7/32 c0", "10.1.2.7/32 c2", []string{"change set addresses-4: 1 elements come, 1 go", another}},
		{"a prefix comes", "class default 10.1.3.0/24", "class default 10.1.4.0/24 c1\nclass default 10.1.3.0/24", []string{"fill set prefixes-4-1 anew: 2 elements", another, "fill set prefixes-4-0 anew: 0 elements", "fill set sides anew: 4 elements"}},
		{"all allowed of any", "c1 any deny", "c1 any allow",
			[]string{"change set verdicts: 2 elements come, 0 go", another, "change set peers: 1 elements come, 1 go", "change set verdicts: 0 elements come, 2 go"}},
	} {
		text := strings.Replace(policedPlan, c.replace, c.by, 1)
		if text == policedPlan {
			t.Fatalf("%s: nothing to replace", c.what)
		}
		b.mustApply(mustParse(t, text))
		if !slices.Equal(b.writes, c.want) {
			t.Errorf("%s: it took %q; expected %q", c.what, b.writes, c.want)
		}
		b.nothingToRepair()
		b.mustApply(mustParse(t, policedPlan))
		b.nothingToRepair()
	}
	b.mustApply(mustParse(t, tunnelPlan))
	if want := []string{"write table inet weft-policy"}; len(b.writes) != 1 || !strings.HasPrefix(b.writes[0], want[0]) {
		t.Errorf("when the policies go, it takes %q", b.writes)
	}
	b.nothingToRepair()
}

// BenchmarkApplyEndpoint measures an endpoint that comes and goes on a node
// that knows a thousand others.
func BenchmarkApplyEndpoint(b *testing.B) {
	bench := newBench(b)
	text := strings.Builder{}
	text.WriteString(tunnelPlan)
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{172, 31, byte(i >> 8), byte(i)})
		fmt.Fprintf(&text, "peer n%d ends vxlan@%s@%s\nroute default 10.%d.%d.0/24 tunnel n%[1]d\n", i, a, plan.MACOf(a), 8+i>>8, i&255)
	}
	p := mustParse(b, text.String())
	q := *p
	key, addr := plan.EndpointKey{Interface: "weftbbb"}, netip.MustParseAddr("10.1.1.3")
	q.Endpoints = p.Endpoints.Set(key, plan.Endpoint{Network: plan.DefaultNetwork, Addresses: []netip.Addr{addr}, MAC: plan.MACOf(addr)})
	q.Routes = p.Routes.Set(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: interval.Single(addr)}, plan.Route{Way: plan.ToEndpoint, Interface: key.Interface})
	bench.do(func() error {
		return bench.link(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: key.Interface}, PeerName: "pod2"})
	})
	bench.mustApply(p)
	for b.Loop() {
		bench.mustApply(&q)
		bench.mustApply(p)
	}
}
