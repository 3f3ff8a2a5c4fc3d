package linux

import (
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/stamps"
)

// answeredEntries are frontends that the node itself answers, at an address that is none of its
// own and at one that is; namedEntries have a backend answer in their place.
const (
	answeredEntries = `
service default 10.3.0.10 udp 53 from inside here
service default 10.3.0.10 tcp 53 from inside here sources few
service default 10.3.0.10 udp 53 from outside to names
service default 10.3.0.10 any
service default 172.30.0.2 udp 5300 from inside here
service default fd00:3::a udp 53 from inside here
source default few 10.1.1.0/24
backend default names 10.1.1.2:53
`
	namedEntries = `
service default 10.3.0.10 udp 53 to names
service default 10.3.0.10 any
service default fd00:3::a udp 53 to names
backend default names 10.1.1.2:53
`
)

// newAnswerBench is a node on which the loopback interface is up, and that has an IPv6 address.
func newAnswerBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix("fd01::2/64")), Flags: unix.IFA_F_NODAD})
	})
	return b
}

// localRoutes are the addresses that the kernel delivers to itself as Weft says.
func (b *bench) localRoutes() (all []string) {
	b.t.Helper()
	b.do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: netlink.RouteProtocol(stamps.Default.Protocol)},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			all = append(all, r.Dst.IP.String())
		}
		return err
	})
	slices.Sort(all)
	return all
}

// What keeps all else out comes before what delivers, and that before what has the node answer;
// they go the other way round, and before the table does.
func TestAnswersComeInOrder(t *testing.T) {
	b := newAnswerBench(t)
	named, answered := mustParse(t, policedPlan+namedEntries), mustParse(t, policedPlan+answeredEntries)
	inOrder := func(what string, want ...string) {
		t.Helper()
		i := 0
		for _, w := range b.writes {
			if i < len(want) && strings.Contains(w, want[i]) {
				i++
			}
		}
		if i < len(want) {
			t.Errorf("%s: %q does not come in its turn, in %q", what, want[i], b.writes)
		}
		b.nothingToRepair()
	}
	b.mustApply(named)
	b.mustApply(answered)
	inOrder("the node comes to answer", "set here-only-4: 1 elements come", "add route 10.3.0.10/32 of type 2", "set here-4: 3 elements come", "set frontends-inside-4")
	if got, want := b.localRoutes(), []string{"10.3.0.10", "fd00:3::a"}; !slices.Equal(got, want) {
		t.Errorf("the kernel delivers what is sent to %q; expected %q", got, want)
	}
	b.mustApply(named)
	inOrder("it ceases to", "set frontends-inside-4", "set here-4: 0 elements come, 3 go", "delete route 10.3.0.10/32", "set here-only-4: 0 elements come, 1 go")
	b.mustApply(answered)
	b.mustApply(mustParse(t, policedPlan))
	inOrder("all Services go", "delete route 10.3.0.10/32", "table inet "+stamps.Default.ServiceTable)
	if got := b.localRoutes(); len(got) > 0 {
		t.Errorf("the kernel still delivers what is sent to %q", got)
	}
}

// Whatever an instance had done of a change, the next one ends where the plan says.
func TestAnswersHalfDone(t *testing.T) {
	b := newAnswerBench(t)
	named, answered := mustParse(t, policedPlan+namedEntries), mustParse(t, policedPlan+answeredEntries)
	again := func() {
		t.Helper()
		b.Close()
		var err error
		if b.DataPlane, err = NewAt(b.path, Config{}); err != nil {
			t.Fatal(err)
		}
	}
	b.mustApply(named)
	for _, steps := range []int{1, 2} {
		b.do(func() error {
			if _, err := b.services.shut(shutBy(answeredBy(answered)), b.record); err != nil {
				return err
			}
			if steps < 2 {
				return nil
			}
			return netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.3.0.10/32")), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
				LinkIndex: 1, Scope: unix.RT_SCOPE_HOST, Protocol: netlink.RouteProtocol(stamps.Default.Protocol)})
		})
		again()
		b.mustApply(named)
		if got := b.localRoutes(); len(got) > 0 {
			t.Errorf("after %d steps the kernel still delivers what is sent to %q", steps, got)
		}
		b.do(func() error {
			for set, like := range setsOfShut() {
				left, _, err := nft.ReadElements(like.In(stamps.Default.ServiceTable, set))
				if err != nil {
					return err
				}
				if len(left) > 0 {
					t.Errorf("after %d steps set %s still has %d elements", steps, set, len(left))
				}
			}
			return nil
		})
		b.nothingToRepair()
	}
	b.mustApply(answered)
	again()
	b.mustApply(answered)
	if b.Writes() != 0 {
		t.Errorf("a new instance with the same plan wrote %q", b.writes)
	}
}

// What takes local routes away without a word of the kernel's is noticed all the same.
func TestAnswersAreWatched(t *testing.T) {
	for _, tool := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	for _, command := range []string{
		"ip route del local 10.3.0.10 table local",
		"ip -6 route del local fd00:3::a table local",
		"ip link set lo down; ip link set lo up",
		"ip address del fd01::2/64 dev eth0; ip address add fd01::2/64 dev eth0 nodad",
		"nft flush set inet " + stamps.Default.ServiceTable + " here-only-4",
	} {
		b := newAnswerBench(t)
		b.mustApply(mustParse(t, strings.Replace(policedPlan, "addresses 172.30.0.2", "addresses 172.30.0.2,fd01::2", 1)+answeredEntries))
		b.watch()
		b.do(func() error {
			out, err := exec.Command("sh", "-ec", command).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s", command, out)
			}
			return err
		})
		if lines, err := b.Repair(context.Background()); err != nil || len(lines) == 0 {
			t.Errorf("%s, and a repair does %q (%v)", command, lines, err)
		}
		if got := b.localRoutes(); len(got) != 2 {
			t.Errorf("%s, and then the kernel delivers what is sent to %q", command, got)
		}
		b.nothingToRepair()
	}
}

// Others' tools can show the rules.
func TestAnswersAreShown(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	b := newAnswerBench(t)
	b.mustApply(mustParse(t, policedPlan+answeredEntries))
	b.do(func() error {
		out, err := exec.Command("nft", "list", "table", "inet", stamps.Default.ServiceTable).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "chain here-leaving") {
			t.Errorf("nft shows %s (%v)", out, err)
		}
		return nil
	})
}
