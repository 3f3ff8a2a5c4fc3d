package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/judge"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// TestSweepsWhereNeeded checks that connections are judged by the newest plan
// always, and after changes only that may forbid some.
func TestSweepsWhereNeeded(t *testing.T) {
	b := newBench(t)
	idle := &sweeper{wake: make(chan struct{}, 1)}
	b.sweeper, idle = idle, b.sweeper
	t.Cleanup(func() { b.sweeper = idle })
	more := strings.Replace(policedPlan, "tcp 80 allow", "tcp 80-81 allow", 1)
	for _, c := range []struct {
		what, plan string
		sweeps     bool
	}{
		{"what was there is not known", policedPlan, true},
		{"more is allowed", more, false},
		{"a route comes", more + "route default 10.9.0.0/16 drop\n", false},
		{"less is allowed", policedPlan, true},
		{"an egress rule drops", policedPlan + "egress default any 203.0.113.0/24 drop\n", true},
		{"another lets some of it out", policedPlan + "egress default any 203.0.113.0/24 drop\negress default any 203.0.113.7/32 direct\n", false},
		{"it goes", policedPlan + "egress default any 203.0.113.0/24 drop\n", true},
		{"all may leave", policedPlan, false},
		{"a route and a policy forbid at once", strings.Replace(policedPlan, "tcp 80 allow", "tcp 81 allow", 1) + "egress default any 203.0.113.0/24 drop\n", true},
		{"no endpoint has a policy", strings.Replace(policedPlan, " ingress-policy web", "", 1) + "egress default any 203.0.113.0/24 drop\n", false},
		{"nor does anything drop", strings.Replace(policedPlan, " ingress-policy web", "", 1), false},
		{"an egress rule drops, and there are no policies", strings.Replace(policedPlan, " ingress-policy web", "", 1) + "egress default any 203.0.113.0/24 drop\n", true},
	} {
		p := mustParse(t, c.plan)
		b.mustApply(p)
		if got := len(b.sweeper.wake) > 0; got != c.sweeps {
			t.Errorf("%s: connections are judged is %t; expected %t", c.what, got, c.sweeps)
		}
		if diff := b.sweeper.plan.Load().Diff(p); len(diff.Endpoints)+len(diff.Tags)+len(diff.Verdicts)+len(diff.Egress) > 0 {
			t.Errorf("%s: connections would be judged by another plan", c.what)
		}
		b.sweeper.wake = make(chan struct{}, 1)
	}
}

// TestWhatIsEndedAgainIsRefusedAsLongAgain ends a connection, an exchange of datagrams,
// and more than can be remembered, and then the same again: each time what is left of them
// is refused for all of its time.
func TestWhatIsEndedAgainIsRefusedAsLongAgain(t *testing.T) {
	defer SetMaxEnded(1)()
	b := newBench(t)
	b.mustApply(mustParse(t, policedPlan))
	sets := map[string]nft.Set{endedPrefix + suffix(true): setOfEnded(true), latePrefix + suffix(true): setOfEnded(true), endedAll: setOfAllEnded}
	// left returns how long what is refused still is, by the names of the sets.
	left := func() map[string]time.Duration {
		all := map[string]time.Duration{}
		b.do(func() error {
			conn, err := nft.Open()
			if err != nil {
				return err
			}
			for name, like := range sets {
				there, err := conn.GetSetElements(like.In(b.stamps.PolicyTable, name))
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				for _, e := range there {
					all[name] = e.Expires
				}
			}
			return nil
		})
		return all
	}
	of := func(p plan.Protocol, first, last int) nft.Elements {
		all := nft.Elements{}
		for port := first; port <= last; port++ {
			all[nft.Element{Key: endedKey(netip.MustParseAddrPort("10.1.1.2:80"), netip.AddrPortFrom(netip.MustParseAddr("10.1.2.2"), uint16(port)), p)}] = nft.Value{}
		}
		return all
	}
	end := func() {
		b.do(func() error {
			return errors.Join(b.sweeper.refuse(true, of(plan.TCP, 1, 1), of(plan.UDP, 1, 1)), b.sweeper.refuse(true, of(plan.TCP, 2, int(maxEnded)+2), nil))
		})
	}
	end()
	if n := len(left()); n != len(sets) {
		t.Fatalf("what is ended is in %d sets, want %d", n, len(sets))
	}
	for name := range sets {
		// Of what is not renewed there is ever less left.
		renewed := false
		for range 50 {
			before := left()[name]
			for left()[name] == before {
			}
			end()
			if renewed = left()[name] >= before; renewed {
				break
			}
		}
		if !renewed {
			t.Errorf("what is in %s stays there as long as if it had not been ended again: for %s", name, left()[name])
		}
	}
}

// BenchmarkSweep measures what it costs to judge connections: first that the
// kernel's table is looked through at all, then with many in it.
func BenchmarkSweep(b *testing.B) {
	for _, connections := range []int{1, 10_000} {
		b.Run(fmt.Sprint(connections), func(b *testing.B) {
			bench := newBench(b)
			p := mustParse(b, policedPlan)
			bench.mustApply(p)
			bench.do(func() error {
				lo, err := netlink.LinkByName("lo")
				if err != nil {
					return err
				}
				if err := netlink.LinkSetUp(lo); err != nil {
					return err
				}
				c, err := net.ListenPacket("udp4", "127.0.0.1:0")
				if err != nil {
					return err
				}
				defer c.Close()
				for i := range connections {
					if _, err := c.WriteTo([]byte{0}, &net.UDPAddr{IP: net.IPv4(127, 1, byte(i>>8), byte(i)), Port: 9}); err != nil {
						return err
					}
				}
				b.ResetTimer()
				for range b.N {
					if err := bench.sweeper.sweep(p); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// BenchmarkMayForbid measures what it costs to know that a new address needs
// no sweep, on a node with 250 endpoints that all have policies.
func BenchmarkMayForbid(b *testing.B) {
	p := bigPlan(b, 100_000, 10_000)
	for i := range 250 {
		a := netip.AddrFrom4([4]byte{10, 1, 1, byte(i + 3)})
		p.Endpoints = p.Endpoints.Set(plan.EndpointKey{Interface: fmt.Sprintf("weft%d", i)},
			plan.Endpoint{Network: plan.DefaultNetwork, Addresses: []netip.Addr{a}, IngressPolicy: fmt.Sprintf("p%d", i)})
	}
	q := *p
	q.Classes = p.Classes.Set(plan.ClassKey{Network: plan.DefaultNetwork, Prefix: interval.Single(netip.MustParseAddr("172.16.0.1"))}, plan.Membership{Class: plan.FirstOwnClass + 7})
	changes := p.Diff(&q)
	for b.Loop() {
		if judge.MayForbid(p, &q, changes) {
			b.Fatal("it may forbid")
		}
	}
}

// TestStill has plans change while connections are looked at. What an egress rule has come to
// drop ends, though the tables of policies are for the plan before; what a later plan allows,
// or what has a backend by the tables, does not.
func TestStill(t *testing.T) {
	const dropping = "egress default any 203.0.113.0/24 drop\n"
	const front = "service default 10.3.0.1 tcp 80 to web\n"
	open, dropped := mustParse(t, policedPlan), mustParse(t, policedPlan+dropping)
	without, served := mustParse(t, policedPlan+front), mustParse(t, policedPlan+front+"backend default web 10.1.2.2:8080\n")
	at := netip.MustParseAddrPort
	leaving := condemned{denied: true, of: judge.Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP,
		Source: at("10.1.1.2:4000"), Destination: at("203.0.113.9:80"), Dialled: at("203.0.113.9:80")}}
	to := condemned{of: judge.Connection{Network: plan.DefaultNetwork, Protocol: plan.TCP, Served: true,
		Source: at("10.1.1.2:4000"), Destination: at("10.1.2.2:8080"), Dialled: at("10.3.0.1:80")}}
	for _, c := range []struct {
		what            string
		p, last, tables *plan.Plan
		doomed          condemned
		ends            bool
	}{
		{"nothing changes", dropped, dropped, dropped, leaving, true},
		{"the tables are for the plan before", dropped, dropped, open, leaving, true},
		{"no tables were written yet", dropped, dropped, nil, leaving, true},
		{"a later plan allows it", dropped, open, open, leaving, false},
		{"its backend is gone", without, without, without, to, true},
		{"a later plan has it", without, served, served, to, false},
		{"the tables have it already", without, without, served, to, false},
	} {
		s := &sweeper{enforced: &atomic.Pointer[plan.Plan]{}}
		s.plan.Store(c.last)
		s.enforced.Store(c.tables)
		if left := s.still([]condemned{c.doomed}, c.p, nil); (len(left) > 0) != c.ends {
			t.Errorf("%s: it ends is %t", c.what, len(left) > 0)
		}
	}
}

// A sweep that takes long is not followed by the next one at once, however much there is to judge.
func TestSweepsRest(t *testing.T) {
	began := time.Now()
	for took, rests := range map[time.Duration]time.Duration{
		0:                          spacing,
		spacing / 4:                spacing * 3 / 4,
		spacing / 2:                spacing / 2,
		spacing:                    spacing,
		3 * spacing:                3 * spacing,
		spacing + time.Millisecond: spacing + time.Millisecond,
	} {
		ended := began.Add(took)
		if got := nextSweep(began, ended).Sub(ended); got != rests {
			t.Errorf("a sweep that took %v is followed by the next one %v later; expected %v", took, got, rests)
		}
	}
}
