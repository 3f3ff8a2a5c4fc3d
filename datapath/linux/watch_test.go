package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// watch has the data plane watched until the test ends.
func (b *bench) watch() <-chan datapath.Disturbance {
	b.t.Helper()
	found, _ := b.watchUntil()
	return found
}

// watchUntil has the data plane watched until end is called, or the test ends.
func (b *bench) watchUntil() (found <-chan datapath.Disturbance, end func()) {
	b.t.Helper()
	told, watching := make(chan datapath.Disturbance, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(b.t.Context())
	following := make(chan struct{})
	go func() {
		watching <- b.Watch(ctx, func() { close(following) }, func(d datapath.Disturbance) { told <- d })
	}()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-watching; err != nil {
			b.t.Errorf("watch: %v", err)
		}
	})
	b.t.Cleanup(end)
	select {
	case <-following:
	case <-time.After(10 * time.Second):
		b.t.Fatal("nothing is followed")
	}
	return told, end
}

// followOthers has f called when others change what is theirs, until end is called, or the test ends.
func (b *bench) followOthers(f func()) (end func()) {
	b.t.Helper()
	done, following := make(chan error, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(b.t.Context())
	go func() { done <- b.Others(ctx, func() { close(following) }, f) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("follow others: %v", err)
		}
	})
	b.t.Cleanup(end)
	select {
	case <-following:
	case <-time.After(30 * time.Second):
		b.t.Fatal("others are not followed")
	}
	return end
}

// TestWatch has others change what is Weft's, and nothing else: what the data
// plane itself does, and what goes with a pod, is not told.
func TestWatch(t *testing.T) {
	for _, tool := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	b := newBench(t)
	near := "route default 172.30.0.3/32 tunnel node2 endpoints-only\n"
	limited := strings.Replace(policedPlan, "anti-spoof", "ingress-rate 8000000 egress-rate 8000000 anti-spoof", 1)
	p := mustParse(t, limited+near)
	q := mustParse(t, limited+near+secondEndpoint+"route default 10.1.4.0/24 tunnel node2\n")
	b.mustApply(p)
	found := b.watch()
	run := func(command string) func() error {
		return func() error {
			if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
				return errors.New(string(out))
			}
			return nil
		}
	}
	const limitGone = "limit of the bandwidth of weftaaa"
	type change struct {
		what, told, by string
		do             func() error
	}
	changes := []change{
		{"the ruleset goes", "nftables table inet weft", "nft (process ", run("nft flush ruleset")},
		{"a table goes", "nftables table inet weft-policy", "nft (process ", run("nft delete table inet weft-policy")},
		{"a table sleeps", "nftables table inet weft-policy", "nft (process ", run("nft add table inet weft-policy '{ flags dormant; }'")},
		{"an element goes", "nftables table inet weft", "nft (process ", run("nft flush set inet weft own-4")},
		{"a route goes", "route 10.1.2.0/24", "", run("ip route del 10.1.2.0/24")},
		{"a route is another's", "route 10.1.1.2/32", "", run("ip route replace 10.1.1.2/32 dev eth0 scope link proto 87")},
		{"a pod's link goes down", "interface weftaaa", "", run("ip link set weftaaa down")},
		{"a pod's link changes its group", "interface weftaaa", "", run("ip link set weftaaa group 0")},
		{"a pod's link is renamed", "interface weftaaa, which is stray now", "", run("ip link set weftaaa down; ip link set weftaaa name stray; ip link set stray up")},
		{"a pod's link is put into a bridge", "interface weftaaa, which is in a bridge now", "", run("ip link add br9 type bridge; ip link set weftaaa master br9")},
		{"the tunnel is renamed", "interface weft-vxlan, which is stray now", "", run("ip link set weft-vxlan down; ip link set weft-vxlan name stray; ip link set stray up")},
		{"the tunnel is put into a bridge", "interface weft-vxlan, which is in a bridge now", "", run("ip link set weft-vxlan master br9")},
		{"the tunnel goes down", "interface weft-vxlan", "", run("ip link set weft-vxlan down")},
		{"the tunnel goes", "interface weft-vxlan", "", run("ip link del weft-vxlan")},
		{"the bridge goes", "interface weft0", "", run("ip link del weft0")},
		{"the tunnel's MTU changes", "interface weft-vxlan", "", run("ip link set weft-vxlan mtu 1300")},
		{"the underlay's MTU changes", "MTU of eth0", "", run("ip link set eth0 mtu 1400")},
		{"a neighbour goes", "neighbour 10.1.2.0", "", run("ip neigh del 10.1.2.0 dev weft-vxlan")},
		{"a pod's neighbour changes", "neighbour 10.1.1.2", "", run("ip neigh replace 10.1.1.2 dev weftaaa lladdr 02:00:00:00:00:01 nud permanent")},
		{"a forwarding entry goes", "forwarding of 0a:58:ac:1e:00:03", "", run("bridge fdb del 0a:58:ac:1e:00:03 dev weft-vxlan dst 172.30.0.3 self")},
		{"the gateway's address goes", "address 10.1.1.1/32 of weft0", "", run("ip addr flush dev weft0")},
		{"a rule goes", "rule 8700 from 10.1.1.0/24 to 172.30.0.3/32 lookup 87", "", run("ip rule del priority 8700")},
		{"a route has another source", "route 10.1.2.0/24", "", run("ip route replace 10.1.2.0/24 via 10.1.2.0 dev weft-vxlan onlink proto 87 src 172.30.0.2")},
		{"a route has another type", "route 10.1.2.0/24", "", run("ip route replace unreachable 10.1.2.0/24 proto 87")},
		{"a route comes", "route 10.9.0.0/16", "", run("ip route add 10.9.0.0/16 dev eth0 proto 87")},
		{"a pod's neighbour comes", "neighbour 10.1.1.9", "", run("ip neigh add 10.1.1.9 dev weftaaa lladdr 02:00:00:00:00:01 nud permanent protocol 87")},
		{"a tunnel's neighbour comes", "neighbour 10.1.9.0", "", run("ip neigh add 10.1.9.0 dev weft-vxlan lladdr 02:00:00:00:00:01 nud permanent")},
		{"a forwarding entry comes", "forwarding of 02:00:00:00:00:01", "", run("bridge fdb add 02:00:00:00:00:01 dev weft-vxlan dst 172.30.0.9 self")},
		{"a rule comes", "rule 8700 from 10.1.1.0/24 to 192.0.2.0/24 lookup 87", "", run("ip rule add priority 8700 from 10.1.1.0/24 to 192.0.2.0/24 lookup 87 protocol 87")},
		{"the limit of what goes to it goes", limitGone, "", run("tc qdisc del dev weft^$(ip -o link show weftaaa | cut -d: -f1) root")},
		{"the limit of what goes to it is another's", limitGone, "", run("tc qdisc replace dev weft^$(ip -o link show weftaaa | cut -d: -f1) root handle 1: tbf rate 8mbit burst 64k limit 128k")},
		{"the limit of what goes to it changes", limitGone, "", run("tc qdisc change dev weft^$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 9mbit burst 64k limit 128k")},
		{"the burst of what goes to it changes", limitGone, "", run("tc qdisc change dev weft^$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 8mbit burst 70k limit 128k")},
		{"the peak of what goes to it changes", limitGone, "", run("tc qdisc change dev weft^$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 8mbit burst 64k limit 128k peakrate 8001kbit mtu 1500")},
		{"what goes to it has no room", limitGone, "", run("tc qdisc add dev weft^$(ip -o link show weftaaa | cut -d: -f1) parent 7765:1 handle 1: pfifo limit 1")},
		{"the detour to it ends", limitGone, "", run("tc filter del dev weftaaa egress")},
		{"the detour to it leads elsewhere", limitGone, "", run("ip link add stray type ifb; tc filter del dev weftaaa egress; tc filter add dev weftaaa egress pref 30565 protocol all u32 match u32 0 0 action mirred egress redirect dev stray")},
		{"the detour to it is for some", limitGone, "", run("tc filter del dev weftaaa egress; tc filter add dev weftaaa egress pref 30565 protocol all u32 match ip src 9.9.9.9/32 action mirred egress redirect dev weft^$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour to it is for one protocol", limitGone, "", run("tc filter del dev weftaaa egress; tc filter add dev weftaaa egress pref 30565 protocol ipv6 u32 match u32 0 0 action mirred egress redirect dev weft^$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour to it is for copies", limitGone, "", run("tc filter del dev weftaaa egress; tc filter add dev weftaaa egress pref 30565 protocol all u32 match u32 0 0 action mirred egress mirror dev weft^$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour to it is down", limitGone, "", run("ip link set weft^$(ip -o link show weftaaa | cut -d: -f1) down")},
		{"the detour to it is gone", limitGone, "", run("ip link del weft^$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour to it is renamed", limitGone, "", run("ip link set weft^$(ip -o link show weftaaa | cut -d: -f1) down name stray2")},
		{"the limit of what goes from it goes", limitGone, "", run("tc qdisc del dev weft~$(ip -o link show weftaaa | cut -d: -f1) root")},
		{"the limit of what goes from it is another's", limitGone, "", run("tc qdisc replace dev weft~$(ip -o link show weftaaa | cut -d: -f1) root handle 1: tbf rate 8mbit burst 64k limit 128k")},
		{"the limit of what goes from it changes", limitGone, "", run("tc qdisc change dev weft~$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 9mbit burst 64k limit 128k")},
		{"the burst of what goes from it changes", limitGone, "", run("tc qdisc change dev weft~$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 8mbit burst 70k limit 128k")},
		{"the peak of what goes from it changes", limitGone, "", run("tc qdisc change dev weft~$(ip -o link show weftaaa | cut -d: -f1) root handle 7765: tbf rate 8mbit burst 64k limit 128k peakrate 8001kbit mtu 1500")},
		{"what goes from it has no room", limitGone, "", run("tc qdisc add dev weft~$(ip -o link show weftaaa | cut -d: -f1) parent 7765:1 handle 1: pfifo limit 1")},
		{"the detour from it ends", limitGone, "", run("tc filter del dev weftaaa ingress")},
		{"the detour from it leads elsewhere", limitGone, "", run("ip link add stray3 type ifb; tc filter del dev weftaaa ingress; tc filter add dev weftaaa ingress pref 30565 protocol all u32 match u32 0 0 action mirred egress redirect dev stray3")},
		{"the detour from it is for some", limitGone, "", run("tc filter del dev weftaaa ingress; tc filter add dev weftaaa ingress pref 30565 protocol all u32 match ip src 9.9.9.9/32 action mirred egress redirect dev weft~$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour from it is for one protocol", limitGone, "", run("tc filter del dev weftaaa ingress; tc filter add dev weftaaa ingress pref 30565 protocol ipv6 u32 match u32 0 0 action mirred egress redirect dev weft~$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour from it is for copies", limitGone, "", run("tc filter del dev weftaaa ingress; tc filter add dev weftaaa ingress pref 30565 protocol all u32 match u32 0 0 action mirred egress mirror dev weft~$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour from it is down", limitGone, "", run("ip link set weft~$(ip -o link show weftaaa | cut -d: -f1) down")},
		{"the detour from it is gone", limitGone, "", run("ip link del weft~$(ip -o link show weftaaa | cut -d: -f1)")},
		{"the detour from it is renamed", limitGone, "", run("ip link set weft~$(ip -o link show weftaaa | cut -d: -f1) down name stray4")},
		{"the detours have no beginning", limitGone, "", run("tc qdisc del dev weftaaa clsact")},
		{"forwarding is turned off", "forwarding of all interfaces", "", run("sysctl -qw net.ipv4.ip_forward=0")},
		{"forwarding from the tunnel is turned off", "forwarding of weft-vxlan", "", run("sysctl -qw net.ipv4.conf.weft-vxlan.forwarding=0")},
	}
	b.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		for _, table := range []string{stamps.Default.Table, stamps.Default.PolicyTable} {
			sets, err := conn.GetSets(nft.InetTable(table))
			if err != nil {
				return err
			}
			for _, s := range sets {
				elements, err := conn.GetSetElements(s)
				if err != nil {
					return err
				}
				if len(elements) == 0 || s.Anonymous || s.Dynamic {
					continue
				}
				kind := "set"
				if s.IsMap {
					kind = "map"
				}
				changes = append(changes, change{"all of " + s.Name + " goes", "nftables table inet " + table, "nft (process ", run(fmt.Sprintf("nft flush %s inet %s %s", kind, table, s.Name))})
			}
		}
		return nil
	})
	for _, c := range changes {
		t.Run(c.what, func(t *testing.T) {
			// What is not to be told comes first.
			b.do(func() error { return b.down("weftbbb", "pod2") })
			b.mustApply(q)
			b.do(func() error {
				err := netlink.LinkDel(mustLink(t, "weftbbb"))
				conn, failure := nftables.New()
				if failure != nil {
					return failure
				}
				// Another's table, by another.
				other := conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
				conn.AddSet(&nftables.Set{Table: other, Name: "own-4", KeyType: nftables.TypeIPAddr}, nil)
				return errors.Join(err, conn.Flush(), netlink.RouteReplace(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.99.0.0/16")),
					LinkIndex: mustLink(t, "eth0").Attrs().Index, Scope: netlink.SCOPE_LINK}))
			})
			b.mustApply(p)
			b.do(c.do)
			timeout := time.After(10 * time.Second)
			for done := false; !done; {
				select {
				case d := <-found:
					for _, own := range []string{"weftbbb", "10.1.1.3", "10.1.4.0", "other"} {
						if strings.Contains(d.What, own) {
							t.Errorf("it is told of %s, which nobody but the data plane changed", d.What)
						}
					}
					// Some changes bring others with them.
					done = d.What == c.told && strings.HasPrefix(d.By, c.by) && (c.by == "") == (d.By == "")
				case <-timeout:
					t.Fatalf("it is not told of %q by %q", c.told, c.by)
				}
			}
			if lines, err := b.Repair(t.Context()); err != nil || len(lines) == 0 {
				t.Errorf("repair: %q, %v", lines, err)
			}
			b.do(func() error { return netlink.LinkSetMTU(mustLink(t, "eth0"), 1500) })
			if _, err := b.Repair(t.Context()); err != nil {
				t.Error(err)
			}
			b.nothingToRepair()
		})
	}
}

// TestNothingIsMissedWhileUnheard has another program change the packet filter
// while the data plane writes so much that it does not listen.
func TestNothingIsMissedWhileUnheard(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	b.mustApply(p)
	found := b.watch()
	unheard := func(write func() ([][]string, error)) {
		b.do(func() error {
			b.state.Lock()
			defer b.state.Unlock()
			_, err := b.unheard(write)
			return err
		})
	}
	unheard(func() ([][]string, error) { return nil, nil })
	unheard(func() ([][]string, error) {
		conn, err := nftables.New()
		if err != nil {
			return nil, err
		}
		conn.DelTable(nft.InetTable(stamps.Default.PolicyTable))
		return nil, conn.Flush()
	})
	told := func() {
		t.Helper()
		select {
		case d := <-found:
			if d.What != overlooked {
				t.Errorf("it is told of %q", d.What)
			}
		case <-time.After(10 * time.Second):
			t.Error("nothing is told")
		}
	}
	told()
	// One that was under way when the data plane left.
	b.state.Lock()
	b.watcher.news.generation--
	b.state.Unlock()
	unheard(func() ([][]string, error) { return nil, nil })
	told()
}

// TestOthersHearOfWhatIsDoneUnheard has others change what is theirs, or nothing, while the data plane
// is told nothing of the packet filter. Others tells of what they changed, then and later.
func TestOthersHearOfWhatIsDoneUnheard(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan))
	b.watch()
	told := make(chan struct{}, 1000)
	end := b.followOthers(func() { told <- struct{}{} })
	unheard := func(write func() error) {
		b.do(func() error {
			b.state.Lock()
			defer b.state.Unlock()
			_, err := b.unheard(func() ([][]string, error) { return nil, write() })
			return err
		})
	}
	const theirs = "wefts"
	add := func() error {
		return nft.Transaction(theirs, func(conn *nftables.Conn) error { conn.AddTable(nft.InetTable(theirs)); return nil })
	}
	isTold := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(30 * time.Second):
			t.Errorf("%s: it is not told that others changed something", what)
		}
	}
	unheard(func() error { return nil })
	select {
	case <-told:
		t.Error("others changed nothing, and it is told that they did")
	case <-time.After(500 * time.Millisecond):
	}
	unheard(add)
	isTold("a table that came unheard")
	b.do(func() error { return nft.Delete(theirs) })
	isTold("a table that went since")
	end()
	// And when nobody follows any more.
	unheard(add)
}

// A transaction of somebody else's that is told in two parts is one.
func TestTransactionInParts(t *testing.T) {
	header := func(kind uint16) unix.NlMsghdr {
		return unix.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Pid: 4711}
	}
	family := (&nl.Nfgenmsg{NfgenFamily: uint8(nftables.TableFamilyINet)}).Serialize()
	n := newNews(stamps.Default)
	n.filter(header(unix.NFT_MSG_DELTABLE), append(family, nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(stamps.Default.Table)).Serialize()...))
	if n = n.next(); len(n.tables) > 0 {
		t.Fatalf("it is told before its end: %v", n.tables)
	}
	n.filter(header(unix.NFT_MSG_NEWGEN), append(family, nl.NewRtAttr(unix.NFTA_GEN_PROC_NAME, nl.ZeroTerminated("nft")).Serialize()...))
	if by, ok := n.tables[stamps.Default.Table]; !ok || by != "nft" {
		t.Errorf("told of are %v", n.tables)
	}
	n.overlooked = true
	if n = n.next(); len(n.pending) > 0 || len(n.tables) > 0 {
		t.Error("what was lost is kept")
	}
}

// TestAnothersOwnRouteChanges has another program change its own route, which is in the way
// of one of Weft's. That is nothing of Weft's, and is not told.
func TestAnothersOwnRouteChanges(t *testing.T) {
	b := newBench(t)
	foreign := func(via string) error {
		return netlink.RouteReplace(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.2.0/24")), Gw: ip(netip.MustParseAddr(via)), Protocol: unix.RTPROT_STATIC})
	}
	b.do(func() error { return foreign("172.30.0.9") })
	p := mustParse(t, tunnelPlan)
	if err := b.Apply(t.Context(), p); err == nil {
		t.Fatal("no error")
	}
	found := b.watch()
	b.do(func() error { return foreign("172.30.0.8") })
	// What is told of comes after.
	b.do(func() error {
		return netlink.AddrDel(mustLink(t, "weft0"), &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("10.1.1.1/32"))})
	})
	for d := range found {
		if strings.HasPrefix(d.What, "address ") {
			break
		}
		if d.What == "route 10.1.2.0/24" {
			t.Errorf("it is told that somebody changed what is Weft's: %+v", d)
		}
	}
}

// TestInterfaceMadeAnew has the interface of an endpoint made anew, under the same name, while
// the plan stays. It is told, and put right.
func TestInterfaceMadeAnew(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, tunnelPlan))
	found := b.watch()
	b.do(func() error { return netlink.LinkDel(mustLink(t, "weftaaa")) })
	b.do(func() error { return b.down("weftaaa", "podnew") })
	for d := range found {
		if d.What == "interface weftaaa, which is another now" {
			break
		}
		t.Logf("it is told: %+v", d)
	}
	if lines, err := b.Repair(t.Context()); err != nil || len(lines) == 0 {
		t.Errorf("repair: %q, %v", lines, err)
	}
	b.loaded(map[string]int{"10.1.1.2/32": unix.RTN_UNICAST})
	b.nothingToRepair()
}

// tablesRead counts the tables that are read until the test ends.
func tablesRead(t *testing.T) *int {
	n, was := 0, reading
	reading = func(name string) (nft.Content, error) { n++; return was(name) }
	t.Cleanup(func() { reading = was })
	return &n
}

// repairs returns how many tables a repair read, and what it put right.
func (b *bench) repairs(read *int) (tables int, lines []string) {
	b.t.Helper()
	*read = 0
	lines, err := b.Repair(b.t.Context())
	if err != nil {
		b.t.Errorf("repair: %v", err)
	}
	return *read, lines
}

var allTables = len(stamps.Default.Tables())

// TestRepairGoesByWhatWasHeard checks that a repair reads no table while Watch
// has heard of all that happened since it was read, but once in a while; and that
// it does whenever Watch may not have.
func TestRepairGoesByWhatWasHeard(t *testing.T) {
	b := newBench(t)
	read := tablesRead(t)
	p := mustParse(t, policedPlan)
	q := mustParse(t, policedPlan+secondEndpoint)
	b.mustApply(p)
	expect := func(when string, want int) {
		t.Helper()
		if tables, lines := b.repairs(read); tables != want || len(lines) > 0 {
			t.Errorf("%s, a repair reads %d tables, not %d, and puts right %q", when, tables, want, lines)
		}
	}
	expect("while nobody watches", allTables)
	expect("while nobody watches", allTables)
	found, end := b.watchUntil()
	expect("as Watch begins", allTables)
	for range 2 {
		for range looksInARow {
			expect("while all is heard", 0)
		}
		expect("after many by what was heard", allTables)
	}

	// What the data plane itself does is heard, too, and pods come and go.
	b.do(func() error { return b.down("weftbbb", "pod2") })
	b.mustApply(q)
	expect("after an endpoint came", 0)
	b.do(func() error { return netlink.LinkDel(mustLink(t, "weftbbb")) })
	b.mustApply(p)
	expect("after an endpoint went", 0)
	b.do(func() error {
		b.state.Lock()
		defer b.state.Unlock()
		_, err := b.unheard(func() ([][]string, error) { return nil, nil })
		return err
	})
	expect("after nothing happened unheard", 0)
	b.do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
		return conn.Flush()
	})
	expect("after others changed what is theirs", 0)

	withState := func(f func()) {
		b.state.Lock()
		defer b.state.Unlock()
		f()
	}
	withState(func() { b.most++ })
	expect("after others changed how many connections are tracked", allTables)
	expect("after that", 0)

	for when, forget := range map[string]func(){
		"after something was overlooked":      func() { b.watcher.news.overlooked = true },
		"while a transaction is not told yet": func() { b.watcher.news.generation-- },
	} {
		withState(forget)
		expect(when, allTables)
		select {
		case d := <-found:
			if d.What != overlooked {
				t.Errorf("%s, it is told of %q", when, d.What)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s, a repair found that, and it is not told", when)
		}
		b.nothingToRepair()
		expect("after that", 0)
	}

	end()
	expect("after Watch ended", allTables)
	expect("after Watch ended", allTables)
	b.watch()
	expect("as Watch begins again", allTables)
	expect("while all is heard again", 0)
}

// TestRepairPutsRightWhatIsNotTold has others change what the kernel does not tell,
// or not in full, while all else is followed.
func TestRepairPutsRightWhatIsNotTold(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip")
	}
	b := newBench(t)
	read := tablesRead(t)
	b.mustApply(mustParse(t, policedPlan+"peer 172.30.0.9 addresses 172.30.0.9\nroute default 10.1.9.0/24 nexthop 172.30.0.9\n"))
	b.watch()
	set := func(name, value string) string { return "echo " + value + " > /proc/sys/net/" + name }
	for _, c := range []struct {
		what, do, repair string
		tables           int
	}{
		{"an endpoint may advertise routers", set("ipv6/conf/weftaaa/accept_ra", "2"), "set ipv6/conf/weftaaa/accept_ra to 0, it was 2", 0},
		{"the kernel checks sources", set("ipv4/conf/weftaaa/rp_filter", "1"), "set ipv4/conf/weftaaa/rp_filter to 0, it was 1", 0},
		{"the node's own addresses come from nowhere", set("ipv4/conf/weftaaa/accept_local", "0"), "set ipv4/conf/weftaaa/accept_local to 1, it was 0", 0},
		{"the node speaks for others", set("ipv4/conf/weftaaa/proxy_arp", "1"), "set ipv4/conf/weftaaa/proxy_arp to 0, it was 1", 0},
		{"the node answers for all its addresses", set("ipv4/conf/weftaaa/arp_ignore", "0"), "set ipv4/conf/weftaaa/arp_ignore to 8, it was 0", 0},
		{"an endpoint's interface speaks IPv6", set("ipv6/conf/weftaaa/disable_ipv6", "0"), "set ipv6/conf/weftaaa/disable_ipv6 to 1, it was 0", 0},
		{"the tunnel redirects", set("ipv4/conf/weft-vxlan/accept_redirects", "1"), "set ipv4/conf/weft-vxlan/accept_redirects to 0, it was 1", allTables},
		{"the tunnel leads to loopback addresses", set("ipv4/conf/weft-vxlan/route_localnet", "1"), "set ipv4/conf/weft-vxlan/route_localnet to 0, it was 1", allTables},
		{"nothing goes on from the tunnel", set("ipv4/conf/weft-vxlan/forwarding", "0"), "set ipv4/conf/weft-vxlan/forwarding to 1, it was 0", allTables},
		{"an endpoint's interface has no neighbours", "ip link set weftaaa arp off", "neighbour 10.1.1.2 at", allTables},
		{"the tunnel has no neighbours", "ip link set weft-vxlan arp off", "neighbour 10.1.2.0 at", allTables},
		{"the tunnel learns", "ip link set weft-vxlan type vxlan learning", "add VXLAN device weft-vxlan", allTables},
		{"a stranger is stamped", fmt.Sprintf("ip link add other type bridge; ip link set other group %d", stamps.Default.Group), "group 0 of interface", allTables},
		{"the node's own interface was down", "ip link set eth0 down; ip link set eth0 up", "route 10.1.9.0/24 via 172.30.0.9", allTables},
		{"the tunnel was without address", "a=$(ip -o -4 addr show dev weft-vxlan | awk '{print $4}'); ip addr del $a dev weft-vxlan; ip addr add $a dev weft-vxlan", "route 10.1.2.0/24 via", allTables},
		{"the node has another address", "ip link add more type bridge; ip link set more up; ip addr add 172.30.0.8/29 dev more", "replace route 10.1.9.0/24", allTables},
	} {
		if _, lines := b.repairs(read); len(lines) > 0 {
			t.Errorf("before %s: %q", c.what, lines)
		}
		b.do(func() error {
			out, err := exec.Command("sh", "-ec", c.do).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s", c.what, out)
			}
			return err
		})
		tables, lines := b.repairs(read)
		if !strings.Contains(strings.Join(lines, "\n"), c.repair) || tables != c.tables {
			t.Errorf("%s: the repair is %q, with %d tables read; expected %q among it, with %d", c.what, lines, tables, c.repair, c.tables)
		}
		b.nothingToRepair()
	}
}

// TestOwnChangesAreFollowed has the data plane make objects of every kind while it
// is watched. None of them is taken for somebody else's doing, which a repair that
// reads tables would show.
func TestOwnChangesAreFollowed(t *testing.T) {
	b := newBench(t)
	read := tablesRead(t)
	p := mustParse(t, tunnelPlan)
	q := mustParse(t, dualPlan+`route default 172.30.0.3/32 tunnel node2 endpoints-only
route default fd00:9::9/128 tunnel node2 endpoints-only
route default 10.1.8.0/24 drop
route default fd00:8::/64 drop
peer 172.30.0.9 addresses 172.30.0.9
route default 10.1.9.0/24 nexthop 172.30.0.9
`)
	r := mustParse(t, q.String()+strings.Replace(secondEndpoint, "addresses 10.1.1.3 ", "addresses 10.1.1.3,fd00:1::3 ", 1)+"route default fd00:1::3/128 endpoint weftbbb\n")
	b.mustApply(p)
	b.watch()
	b.nothingToRepair()
	b.do(func() error { return b.down("weftbbb", "pod2") })
	for range 2 {
		for i, plan := range []*plan.Plan{q, r, q, p} {
			b.mustApply(plan)
			if tables, lines := b.repairs(read); tables > 0 || len(lines) > 0 {
				t.Errorf("after plan %d, a repair reads %d tables and puts right %q", i, tables, lines)
			}
		}
	}
}

// What others did just before many elements were written, of which the kernel then need
// not tell each, wakes Watch all the same.
func TestWhatWasReadBesideAWriteWakesWatch(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan))
	var w *watcher
	b.do(func() (err error) { w, err = openWatcher(stamps.Default); return err })
	defer w.close()
	b.setWatcher(w)
	defer b.setWatcher(nil)
	b.do(func() error {
		out, err := exec.Command("nft", "delete", "table", "inet", stamps.Default.PolicyTable).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		_, err = b.unheard(func() ([][]string, error) { return nil, nil })
		return err
	})
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.wakeRead.Fd()), Events: unix.POLLIN}}, 0)
	if found := b.disturbed(w); n == 0 || err != nil || len(found) == 0 {
		t.Errorf("%d wake (%v) for %v", n, err, found)
	}
}
