package linux

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/datapath"
)

const limits = " ingress-rate 8000000 egress-rate 8000000 anti-spoof"

// disciplines are the lines of tc about all interfaces, and those of ip about detours.
func (b *bench) disciplines() (all []string) {
	b.t.Helper()
	b.do(func() error {
		for _, command := range []string{"tc qdisc show", "ip -br link show type ifb"} {
			out, err := exec.Command("sh", "-ec", command).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "noqueue") {
					all = append(all, line)
				}
			}
		}
		return nil
	})
	return all
}

// TestLimitInTheWay has another's device where an endpoint's packets are to make their detour:
// the endpoint gets no packets, as it would without a limit, and others do.
func TestLimitInTheWay(t *testing.T) {
	b := newBench(t)
	b.do(func() error { return b.down("weftbbb", "pod2") })
	isUp := func(name string) (up bool) {
		b.do(func() error {
			up = mustLink(t, name).Attrs().Flags&net.FlagUp != 0
			return nil
		})
		return up
	}
	var stray string
	b.do(func() error {
		stray = fmt.Sprintf("weft~%d", mustLink(t, "weftbbb").Attrs().Index)
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: stray}})
	})
	p := mustParse(t, tunnelPlan+strings.Replace(secondEndpoint, " anti-spoof", limits, 1))
	for range 2 {
		err := b.Apply(t.Context(), p)
		about := datapath.Concerning(err, "weftbbb")
		if about == nil || !strings.Contains(about.Error(), "interface "+stray+" is in the way") || datapath.Concerning(err, "weftaaa") != nil {
			t.Fatalf("the error is %v", err)
		}
	}
	if isUp("weftbbb") || !isUp("weftaaa") {
		t.Errorf("the endpoint without a limit is up: %t, the other one: %t", isUp("weftbbb"), isUp("weftaaa"))
	}
	b.do(func() error { return netlink.LinkDel(mustLink(t, stray)) })
	b.mustApply(p)
	if !isUp("weftbbb") {
		t.Error("nothing is in the way, and the endpoint is down")
	}
	b.nothingToRepair()
}

// TestLimitsLeaveNothing ends limits in each way in which they may end.
func TestLimitsLeaveNothing(t *testing.T) {
	limited := strings.Replace(tunnelPlan, " anti-spoof", limits, 1)
	for what, end := range map[string]func(b *bench){
		"another plan": func(b *bench) { b.mustApply(mustParse(t, tunnelPlan)) },
		"no endpoint": func(b *bench) {
			b.mustApply(mustParse(t, strings.Replace(strings.Replace(limited, "endpoint weftaaa", "# ", 1), "route default 10.1.1.2/32 endpoint weftaaa", "", 1)))
		},
		"the interface is gone": func(b *bench) {
			b.do(func() error { return netlink.LinkDel(mustLink(t, "weftaaa")) })
			b.state.Lock()
			b.follows = nil
			b.state.Unlock()
			if _, err := b.Repair(t.Context()); err == nil {
				t.Error("an interface is missing, and nothing is said")
			}
		},
		"an agent that begins anew": func(b *bench) {
			b.do(func() error { return netlink.LinkDel(mustLink(t, "weftaaa")) })
			next, err := NewAt(b.path, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			if err := next.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"removal": func(b *bench) {
			if err := b.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			before := b.disciplines()
			b.mustApply(mustParse(t, limited))
			if there := b.disciplines(); len(there) != len(before)+5 {
				t.Errorf("limits are %q", there)
			}
			end(b)
			if left := b.disciplines(); len(left) != len(before) {
				t.Errorf("left of them is %q", left)
			}
		})
	}
}

// TestAnothersFilterStays has others look at what comes in at an endpoint's interface before
// there is a limit, and after.
func TestAnothersFilterStays(t *testing.T) {
	b := newBench(t)
	tc := func(arguments string) string {
		var out []byte
		b.do(func() (err error) {
			out, err = exec.Command("sh", "-ec", "tc "+arguments).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("tc %s: %w: %s", arguments, err, out)
			}
			return err
		})
		return string(out)
	}
	for _, side := range []string{"ingress", "egress"} {
		tc("qdisc add dev weftaaa clsact")
		tc("filter add dev weftaaa " + side + " pref 5 protocol ip u32 match ip protocol 99 0xff classid 1:1")
		for range 2 {
			b.mustApply(mustParse(t, strings.Replace(tunnelPlan, " anti-spoof", limits, 1)))
			b.nothingToRepair()
			if filters := tc("filter show dev weftaaa " + side); !strings.Contains(filters, "pref 5 ") || !strings.Contains(filters, "pref 30565 ") {
				t.Errorf("%s: with a limit the filters are %s", side, filters)
			}
			b.mustApply(mustParse(t, tunnelPlan))
			if filters := tc("filter show dev weftaaa " + side); !strings.Contains(filters, "pref 5 ") || strings.Contains(filters, "pref 30565 ") {
				t.Errorf("%s: without one they are %s", side, filters)
			}
			b.nothingToRepair()
		}
		tc("qdisc del dev weftaaa clsact")
	}
}

// TestWhatIsInTheWayOfALimit has what others have left where a limit is to be.
func TestWhatIsInTheWayOfALimit(t *testing.T) {
	limited := strings.Replace(tunnelPlan, " anti-spoof", limits, 1)
	for what, c := range map[string]struct{ before, plan, gone string }{
		"another's bucket with the same number": {"ip link add weft~N type ifb; tc qdisc add dev weft~N root handle 7765: htb", limited, "qdisc htb"},
		"what the plug-in bandwidth made": {"ip link add bwp123 type ifb; ip link set bwp123 up; tc qdisc add dev weftaaa ingress; " +
			"tc filter add dev weftaaa ingress pref 1 protocol all u32 match u32 0 0 action mirred egress redirect dev bwp123", limited, "pref 1 "},
		"a detour to nowhere, where no limit is": {"ip link add weft~9 type ifb; tc qdisc add dev weftaaa clsact; " +
			"tc filter add dev weftaaa ingress pref 30565 protocol all u32 match u32 0 0 action mirred egress redirect dev weft~9; ip link del weft~9", tunnelPlan, "pref 30565 "},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			// The data plane has had the interface before.
			b.mustApply(mustParse(t, tunnelPlan))
			shell := func(command string) string {
				var out []byte
				b.do(func() (err error) {
					command = strings.ReplaceAll(command, "weft~N", fmt.Sprintf("weft~%d", mustLink(t, "weftaaa").Attrs().Index))
					if out, err = exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
						err = fmt.Errorf("%s: %w: %s", command, err, out)
					}
					return err
				})
				return string(out)
			}
			shell(c.before)
			const show = "tc qdisc show; tc filter show dev weftaaa ingress"
			if there := shell(show); !strings.Contains(there, c.gone) {
				t.Fatalf("there is %s", there)
			}
			next, err := NewAt(b.path, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			if err := next.Apply(t.Context(), mustParse(t, c.plan)); err != nil {
				t.Fatal(err)
			}
			if there := shell(show); strings.Contains(there, c.gone) {
				t.Errorf("there still is %s", there)
			}
			if lines, err := next.Repair(t.Context()); err != nil || len(lines) > 0 {
				t.Errorf("repair: %q, %v", lines, err)
			}
		})
	}
}
