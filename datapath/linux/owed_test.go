package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// owed is a plan of which the kernel lacks something, and what it takes for it to have all.
type owed struct {
	text string
	// begin makes it so that something is owed, and heal that it is not any more.
	begin, heal func(b *bench) error
	// owes reports whether an error says so.
	owes func(error) bool
	// has is the route that comes in the end.
	has string
	// told says that Watch tells when it may come. It is not told of others' routes.
	told bool
}

// eachOwed runs a test for each thing that may be owed.
func eachOwed(t *testing.T, test func(t *testing.T, b *bench, o owed)) {
	foreign := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.2.0/24")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}
	own := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.1.2/32")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}
	inTheWay := func(interfaces ...string) func(error) bool {
		return func(err error) bool {
			var entry *datapath.EntryError
			return errors.As(err, &entry) && datapath.Concerning(err, interfaces...) == nil
		}
	}
	for name, o := range map[string]owed{
		"a route in the way": {
			text:  policedPlan,
			begin: func(*bench) error { return netlink.RouteAdd(foreign) },
			heal:  func(*bench) error { return netlink.RouteDel(foreign) },
			owes:  inTheWay("weftaaa"), has: "10.1.2.0/24",
		},
		"a route in the way of an endpoint's": {
			text:  policedPlan,
			begin: func(*bench) error { return netlink.RouteAdd(own) },
			heal:  func(*bench) error { return netlink.RouteDel(own) },
			owes:  inTheWay("weftother"), has: "10.1.1.2/32",
		},
		"a missing interface": {
			text:  policedPlan + secondEndpoint,
			begin: func(*bench) error { return nil },
			heal:  func(b *bench) error { return b.down("weftbbb", "pod2") },
			owes:  func(err error) bool { return errors.Is(err, datapath.ErrMissing) }, has: "10.1.1.3/32", told: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.do(func() error { return o.begin(b) })
			if err := b.Apply(t.Context(), mustParse(t, o.text)); !o.owes(err) {
				t.Fatalf("the error is %v", err)
			}
			test(t, b, o)
		})
	}
}

// healed checks that the kernel has all of a plan.
func (b *bench) healed(o owed, p *plan.Plan) {
	b.t.Helper()
	b.mustApply(p)
	b.loaded(map[string]int{o.has: unix.RTN_UNICAST})
	b.nothingToRepair()
}

// TestWhatIsOwedCostsItsOwn has endpoints come and go, and the same plan applied again,
// while the kernel lacks something. What is there is not read for that, what is lacking is
// said each time, and it comes with the Apply that follows what heals it.
func TestWhatIsOwedCostsItsOwn(t *testing.T) {
	eachOwed(t, func(t *testing.T, b *bench, o owed) {
		read, text := tablesRead(t), o.text
		expect := func(when string) {
			t.Helper()
			if err := b.Apply(t.Context(), mustParse(t, text)); !o.owes(err) {
				t.Errorf("%s, the error is %v", when, err)
			}
			if *read > 0 {
				t.Errorf("%s, %d tables are read", when, *read)
			}
			*read = 0
		}
		for i := range 10 {
			name, a := fmt.Sprintf("weftc%d", i), fmt.Sprintf("10.1.1.%d", 20+i)
			b.do(func() error { return b.down(name, fmt.Sprintf("podc%d", i)) })
			text += fmt.Sprintf("endpoint %s network default addresses %s mac 0a:58:0a:01:01:%02x anti-spoof\nroute default %s/32 endpoint %[1]s\n", name, a, 20+i, a)
			expect("as an endpoint comes")
			b.loaded(map[string]int{a + "/32": unix.RTN_UNICAST})
			expect("as nothing changes")
		}
		text = o.text
		expect("as endpoints go")
		b.do(func() error { return o.heal(b) })
		b.mustApply(mustParse(t, text))
		if *read > 0 {
			t.Errorf("as what was owed comes, %d tables are read", *read)
		}
		b.healed(o, mustParse(t, text))
	})
}

// TestWhatIsOwedComesWithARepair checks that a repair says what is owed, whether or not
// somebody watches, and that what was owed comes with one.
func TestWhatIsOwedComesWithARepair(t *testing.T) {
	eachOwed(t, func(t *testing.T, b *bench, o owed) {
		for range 2 {
			if _, err := b.Repair(t.Context()); !o.owes(err) {
				t.Errorf("while nobody watches, the error is %v", err)
			}
		}
		found := b.watch()
		for range 3 {
			if _, err := b.Repair(t.Context()); !o.owes(err) {
				t.Errorf("while somebody watches, the error is %v", err)
			}
		}
		b.do(func() error { return o.heal(b) })
		if o.told {
			<-found
		}
		if _, err := b.Repair(t.Context()); err != nil {
			t.Errorf("once nothing is in the way, the error is %v", err)
		}
		b.loaded(map[string]int{o.has: unix.RTN_UNICAST})
		b.nothingToRepair()
		b.healed(o, mustParse(t, o.text))
	})
}

// TestManyRoutesInTheWay has another program, as a network plug-in of before, have a route
// to the subnet of each node. However many they are, what there is is read once for each
// Apply, and none of them is tried that is still there.
func TestManyRoutesInTheWay(t *testing.T) {
	b := newBench(t)
	text := policedPlan
	routes := func(change func(*netlink.Route) error) {
		b.do(func() error {
			for i := range 200 {
				if err := change(&netlink.Route{Dst: ipNet(netip.MustParsePrefix(fmt.Sprintf("10.7.%d.0/24", i))), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range 200 {
		text += fmt.Sprintf("route default 10.7.%d.0/24 tunnel node2\n", i)
	}
	routes(netlink.RouteAdd)
	for i, when := range []string{"first", "again", "again"} {
		before := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0).Seq
		err := b.Apply(t.Context(), mustParse(t, text))
		if err == nil || strings.Count(err.Error(), "another program's route is in the way; delete that: ip route del 10.7.") != 200 {
			t.Errorf("%s, the error is %v", when, err)
		}
		// Requests have numbers in a row.
		if made := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0).Seq - before; i > 0 && made > 10 {
			t.Errorf("%s, %d requests are made", when, made)
		}
	}
	routes(netlink.RouteDel)
	b.mustApply(mustParse(t, text))
	b.loaded(map[string]int{"10.7.0.0/24": unix.RTN_UNICAST, "10.7.199.0/24": unix.RTN_UNICAST})
	b.nothingToRepair()
}

// TestAnothersRouteStays has another program take the place of a route of Weft's, and the plan
// change what that says before anybody looks. The other's stays, and is in the way.
func TestAnothersRouteStays(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, tunnelPlan))
	foreign := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.1.3.0/24")), Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}
	b.do(func() error { return netlink.RouteReplace(foreign) })
	p := mustParse(t, strings.Replace(tunnelPlan, "10.1.3.0/24 tunnel node3", "10.1.3.0/24 drop", 1))
	var entry *datapath.EntryError
	if err := b.Apply(t.Context(), p); !errors.As(err, &entry) {
		t.Errorf("the error is %v", err)
	}
	b.do(func() error { return netlink.RouteDel(foreign) }) // fails where it is gone
	b.mustApply(p)
	b.nothingToRepair()
}

// TestOnlyWhatIsInTheWayIsNamed has two routes of others to one prefix, of which one is in the
// way, and the other, of another metric, is not.
func TestOnlyWhatIsInTheWayIsNamed(t *testing.T) {
	b := newBench(t)
	to := ipNet(netip.MustParsePrefix("10.1.3.0/24"))
	b.do(func() error {
		return errors.Join(netlink.RouteAdd(&netlink.Route{Dst: to, Gw: ip(netip.MustParseAddr("172.30.0.8")), Priority: 700, Protocol: unix.RTPROT_STATIC}),
			netlink.RouteAdd(&netlink.Route{Dst: to, Gw: ip(netip.MustParseAddr("172.30.0.9")), Protocol: unix.RTPROT_STATIC}))
	})
	const want = "add route 10.1.3.0/24: another program's route is in the way; delete that: ip route del 10.1.3.0/24 via 172.30.0.9 dev eth0"
	if err := b.Apply(t.Context(), mustParse(t, tunnelPlan)); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("the error is %v", err)
	}
}

// TestTablesGoBeforeApply has others delete the packet filter's tables before an endpoint
// comes, and nobody who watches. The endpoint gets all that it needs all the same.
func TestTablesGoBeforeApply(t *testing.T) {
	for _, table := range []string{stamps.Default.Table, stamps.Default.PolicyTable} {
		b := newBench(t)
		b.mustApply(mustParse(t, policedPlan))
		b.do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.DelTable(nft.InetTable(table))
			return errors.Join(conn.Flush(), b.down("weftbbb", "pod2"))
		})
		p := mustParse(t, strings.Replace(policedPlan+secondEndpoint, "mac 0a:58:0a:01:01:03 anti-spoof", "mac 0a:58:0a:01:01:03 anti-spoof ingress-policy web", 1))
		b.mustApply(p)
		b.nothingToRepair()
	}
}

// TestWhatIsOwedMayGo checks that what the kernel lacks is owed no longer, and that nothing
// of others' is taken away, when a plan comes without it.
func TestWhatIsOwedMayGo(t *testing.T) {
	eachOwed(t, func(t *testing.T, b *bench, o owed) {
		p := mustParse(t, o.text)
		b.mustApply(mustParse(t, withoutLines(o.text, o.has, "weftbbb")))
		if err := b.Apply(t.Context(), p); !o.owes(err) {
			t.Errorf("as it is asked for again, the error is %v", err)
		}
		b.do(func() error { return o.heal(b) }) // which fails where somebody's route was taken away
		b.healed(o, p)
	})
}

func withoutLines(text string, with ...string) string {
	var rest strings.Builder
lines:
	for line := range strings.Lines(text) {
		for _, w := range with {
			if strings.Contains(line, w) {
				continue lines
			}
		}
		rest.WriteString(line)
	}
	return rest.String()
}

// TestAnInterfaceThatGoesIsOwed has the interface of an endpoint go and come back while its
// plan stays. That it is gone is found by the next repair, and costs others nothing.
func TestAnInterfaceThatGoesIsOwed(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan+secondEndpoint)
	b.do(func() error { return b.down("weftbbb", "pod2") })
	b.mustApply(p)
	b.do(func() error { return netlink.LinkDel(mustLink(t, "weftbbb")) })
	if _, err := b.Repair(t.Context()); !errors.Is(err, datapath.ErrMissing) {
		t.Errorf("the error is %v", err)
	}
	read := tablesRead(t)
	b.do(func() error { return b.down("weftccc", "pod3") })
	third := strings.NewReplacer("weftbbb", "weftccc", "10.1.1.3", "10.1.1.4", "01:03", "01:04").Replace(secondEndpoint)
	if err := b.Apply(t.Context(), mustParse(t, policedPlan+secondEndpoint+third)); !errors.Is(err, datapath.ErrMissing) || datapath.Concerning(err, "weftccc") != nil || *read > 0 {
		t.Errorf("another comes, and the error is %v; %d tables are read", err, *read)
	}
	// It comes with another MAC address, and in the same moment the third goes.
	b.do(func() error { return b.down("weftbbb", "pod2") })
	b.mustApply(mustParse(t, policedPlan+strings.Replace(secondEndpoint, "01:03", "01:33", 1)))
	if *read > 0 {
		t.Errorf("as it comes back, %d tables are read", *read)
	}
	b.nothingToRepair()
}
