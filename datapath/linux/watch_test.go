package linux

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
)

// watch has the data plane watched until the test ends.
func (b *bench) watch() <-chan datapath.Disturbance {
	b.t.Helper()
	found, watching := make(chan datapath.Disturbance, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(b.t.Context())
	following := make(chan struct{})
	go func() {
		watching <- b.Watch(ctx, func() { close(following) }, func(d datapath.Disturbance) { found <- d })
	}()
	b.t.Cleanup(func() {
		cancel()
		if err := <-watching; err != nil {
			b.t.Errorf("watch: %v", err)
		}
	})
	select {
	case <-following:
	case <-time.After(10 * time.Second):
		b.t.Fatal("nothing is followed")
	}
	return found
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
	near := "route default 172.30.0.3/32 tunnel node2 via 172.30.0.3 mac 0a:58:ac:1e:00:03 endpoints-only\n"
	p := mustParse(t, policedPlan+near)
	q := mustParse(t, policedPlan+near+secondEndpoint+"route default 10.1.4.0/24 tunnel node2 via 172.30.0.3 mac 0a:58:ac:1e:00:03\n")
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
	for _, c := range []struct {
		what, told, by string
		do             func() error
	}{
		{"the ruleset goes", "nftables table inet weft", "nft (process ", run("nft flush ruleset")},
		{"a table goes", "nftables table inet weft-policy", "nft (process ", run("nft delete table inet weft-policy")},
		{"an element goes", "nftables table inet weft", "nft (process ", run("nft flush set inet weft own-4")},
		{"a route goes", "route 10.1.2.0/24", "", run("ip route del 10.1.2.0/24")},
		{"a route is another's", "route 10.1.1.2/32", "", run("ip route replace 10.1.1.2/32 dev eth0 scope link proto 87")},
		{"a pod's link goes down", "interface weftaaa", "", run("ip link set weftaaa down")},
		{"a pod's link changes its group", "interface weftaaa", "", run("ip link set weftaaa group 0")},
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
		{"forwarding is turned off", "forwarding of all interfaces", "", run("sysctl -qw net.ipv4.ip_forward=0")},
	} {
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
	unheard := func(write func() ([]string, error)) {
		b.do(func() error {
			b.state.Lock()
			defer b.state.Unlock()
			_, err := b.unheard(write)
			return err
		})
	}
	unheard(func() ([]string, error) { return nil, nil })
	unheard(func() ([]string, error) {
		conn, err := nftables.New()
		if err != nil {
			return nil, err
		}
		conn.DelTable(table(policyTableName))
		return nil, conn.Flush()
	})
	select {
	case d := <-found:
		if d.What != overlooked {
			t.Errorf("it is told of %q", d.What)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing is told")
	}
}

// A transaction of somebody else's that is told in two parts is one.
func TestTransactionInParts(t *testing.T) {
	header := func(kind uint16) unix.NlMsghdr {
		return unix.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Pid: 4711}
	}
	family := (&nl.Nfgenmsg{NfgenFamily: uint8(nftables.TableFamilyINet)}).Serialize()
	n := newNews()
	n.filter(header(unix.NFT_MSG_DELTABLE), append(family, nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(tableName)).Serialize()...))
	if n = n.next(); len(n.tables) > 0 {
		t.Fatalf("it is told before its end: %v", n.tables)
	}
	n.filter(header(unix.NFT_MSG_NEWGEN), append(family, nl.NewRtAttr(unix.NFTA_GEN_PROC_NAME, nl.ZeroTerminated("nft")).Serialize()...))
	if by, ok := n.tables[tableName]; !ok || by != "nft" {
		t.Errorf("told of are %v", n.tables)
	}
	n.overlooked = true
	if n = n.next(); len(n.pending) > 0 || len(n.tables) > 0 {
		t.Error("what was lost is kept")
	}
}
