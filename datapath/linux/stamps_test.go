package linux

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/stamps"
)

var OtherStamps = Stamps{Bridge: "weftx0", TunnelPrefix: "weftx-", Table: "weftx", PolicyTable: "weftx-policy", ServiceTable: "weftx-services", Protocol: 88, RoutingTable: 88,
	Metric: 10, Priority: 8710, Group: 0x77656678, LogGroup: 88}

// TestStampsApart checks that two data planes of different stamps stand in one
// namespace, each with routes to what is behind the other's, too, and that each
// sees and removes its own alone.
func TestStampsApart(t *testing.T) {
	b := newBench(t)
	b.do(func() error {
		return b.link(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftbbb"}, PeerName: "pod2"})
	})
	d, err := NewAt(b.path, Config{Stamps: OtherStamps})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	other := &bench{t: t, path: b.path, DataPlane: d}
	alone := policedPlan + "route default 172.30.0.3/32 tunnel node2 endpoints-only\n"
	beside := strings.NewReplacer("weftaaa", "weftbbb", "10.1.1.", "10.2.1.", "0a:58:0a:01:01:02", "0a:58:0a:02:01:02", "port 8472", "port 8473").Replace(alone)
	both := []*bench{b, other}
	unharmed := func() {
		t.Helper()
		for _, one := range both {
			one.nothingToRepair()
		}
	}
	b.mustApply(mustParse(t, alone))
	before := b.stamped(stamps.Default)
	other.mustApply(mustParse(t, beside))
	unharmed()
	if is := b.stamped(stamps.Default); !slices.Equal(is, before) {
		t.Errorf("the first has %q since there is another; it had %q", is, before)
	}
	if is := b.stamped(OtherStamps); len(is) != len(before) {
		t.Errorf("the other has %q; the first has %q", is, before)
	}
	after := b.stamped(OtherStamps)
	for range 2 {
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is := b.stamped(stamps.Default); len(is) > 0 {
			t.Errorf("the first has left %q", is)
		}
		if is := b.stamped(OtherStamps); !slices.Equal(is, after) {
			t.Errorf("the other has %q since the first is gone; it had %q", is, after)
		}
		b.mustApply(mustParse(t, alone))
		unharmed()
	}
	if err := other.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is := b.stamped(OtherStamps); len(is) > 0 {
		t.Errorf("the other has left %q", is)
	}
	b.nothingToRepair()
}

// stamped are the things in the namespace that wear stamps.
func (b *bench) stamped(s Stamps) (all []string) {
	b.t.Helper()
	add := func(kind string, of any) { all = append(all, fmt.Sprint(kind, " ", of)) }
	b.do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if name := l.Attrs().Name; name == s.Bridge || strings.HasPrefix(name, s.TunnelPrefix) || l.Attrs().Group == s.Group {
				add("interface", name)
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: netlink.RouteProtocol(s.Protocol), Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			add("route", r.Dst)
		}
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Protocol == s.Protocol || r.Table == s.RoutingTable || r.Priority == s.Priority {
				add("rule", r.Src)
			}
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		for _, t := range tables {
			if t.Name == s.Table || t.Name == s.PolicyTable || t.Name == s.ServiceTable {
				add("table", t.Name)
			}
		}
		return err
	})
	slices.Sort(all)
	return all
}

func TestStampsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*Stamps){
		"br0":                func(s *Stamps) { s.Bridge = "br0" },
		"tun-":               func(s *Stamps) { s.TunnelPrefix = "tun-" },
		"weft-0 would":       func(s *Stamps) { s.Bridge = "weft-0" },
		"name of its own":    func(s *Stamps) { s.PolicyTable = s.Table },
		"protocol 4":         func(s *Stamps) { s.Protocol = unix.RTPROT_STATIC },
		"254 is no":          func(s *Stamps) { s.RoutingTable = unix.RT_TABLE_MAIN },
		"metric -1":          func(s *Stamps) { s.Metric = -1 },
		"priority is 32766;": func(s *Stamps) { s.Priority = 32766 },
		"group 0":            func(s *Stamps) { s.Group = 0 },
	} {
		s := stamps.Default
		change(&s)
		if d, err := New(Config{Stamps: s}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: the error is %v; expected one about %s", s, err, want)
			if err == nil {
				d.Close()
			}
		}
	}
	for _, s := range []Stamps{stamps.Default, OtherStamps} {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}
