package rtnl

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// TestRenamesComeToRightNames has interfaces called anything that there is to be called: by
// their own names, each other's, and those of nobody, with others' interfaces among them.
// Whoever is stopped behind any step and starts again comes to the same names. No
// step gives a name that is taken. What stays without its name stays so because another's
// interface has that, and stands under nobody else's.
func TestRenamesComeToRightNames(t *testing.T) {
	right := map[int]string{1: "a", 2: "b", 3: "c", 4: "d"}
	const others = 2 // interfaces of others, 5 and 6
	names := []string{"a", "b", "c", "d", "e", "f", "x0"}
	cases := 0
	for called := range namings(len(right)+others, names) {
		cases++
		end := follow(t, called, right)
		for index, name := range right {
			holder, taken := end[name]
			if at := nameOf(end, index); at != name && (!taken || right[holder] != "") {
				t.Fatalf("%v: interface %d ends as %s, and %s is that of %d", called, index, at, name, holder)
			}
		}
		for index := len(right) + 1; index <= len(right)+others; index++ {
			if nameOf(end, index) != nameOf(called, index) {
				t.Fatalf("%v: another's interface %d is renamed to %s", called, index, nameOf(end, index))
			}
		}
	}
	if cases < 5000 {
		t.Errorf("only %d cases", cases)
	}
}

// TestOneThatCannotBeRenamedHoldsUpNoOthers has the kernel refuse each of the interfaces any
// other name, in all that they may be called. It is tried once. No interface is given a name
// that is taken. All others get their own names, but for one whose name the refused one has.
// Of those that do not have theirs in the end, and of no others, it is said that they were refused.
func TestOneThatCannotBeRenamedHoldsUpNoOthers(t *testing.T) {
	right := map[int]string{1: "a", 2: "b", 3: "c", 4: "d"}
	refusal := errors.New("refused")
	for called := range namings(len(right), []string{"a", "b", "c", "d", "e", "x0"}) {
		for refused := range right {
			named, end, tried := maps.Clone(called), maps.Clone(called), 0
			_, stuck, err := walk(named, right, func(int) string { return "x" }, func(step rename) error {
				if holder, taken := end[step.to]; taken {
					t.Fatalf("%v, and %d is refused: %d is to be called %s, as %d is", called, refused, step.index, step.to, holder)
				}
				if step.index == refused {
					tried++
					return refusal
				}
				delete(end, nameOf(end, step.index))
				end[step.to] = step.index
				return nil
			})
			if tried > 1 || errors.Is(err, refusal) != (tried > 0) || nameOf(end, refused) != nameOf(called, refused) {
				t.Fatalf("%v: %d is refused, tried %d times, and called %s; it is said %v", called, refused, tried, nameOf(end, refused), err)
			}
			if !maps.Equal(named, end) {
				t.Errorf("%v, and %d is refused: it ends as %v, and is held to end as %v", called, refused, end, named)
			}
			for index, name := range right {
				if at := nameOf(end, index); index != refused && at != name && end[name] != refused {
					t.Errorf("%v, and %d is refused: %d is called %s", called, refused, index, at)
				}
				if why, is := stuck[index]; is != (nameOf(end, index) != name) || is != errors.Is(why, refusal) {
					t.Errorf("%v, and %d is refused: %d is called %s, and of that is said: %t, %v", called, refused, index, nameOf(end, index), is, why)
				}
			}
		}
	}
}

// follow takes the steps, begins anew behind each, and returns what everything is called
// then.
func follow(t *testing.T, named map[string]int, right map[int]string) (end map[string]int) {
	t.Helper()
	end = maps.Clone(named)
	for n := 0; ; n++ {
		steps := renames(end, right, func(int) string { return "x" })
		if len(steps) == 0 {
			return end
		}
		if _, taken := end[steps[0].to]; taken || n > 20 {
			t.Fatalf("%v: step %d is %v", named, n, steps[0])
		}
		delete(end, nameOf(end, steps[0].index))
		end[steps[0].to] = steps[0].index
	}
}

// namings yields all ways to give n interfaces names.
func namings(n int, names []string) func(func(map[string]int) bool) {
	return func(yield func(map[string]int) bool) {
		called := map[string]int{}
		var name func(index int) bool
		name = func(index int) bool {
			if index > n {
				return yield(maps.Clone(called))
			}
			for _, s := range names {
				if called[s] != 0 {
					continue
				}
				called[s] = index
				if !name(index + 1) {
					return false
				}
				delete(called, s)
			}
			return true
		}
		name(1)
	}
}

func nameOf(named map[string]int, index int) string {
	for name, i := range named {
		if i == index {
			return name
		}
	}
	return fmt.Sprintf("none of %d", index)
}

// inNetNS runs f with what speaks with the kernel in a network namespace of its own.
func inNetNS(t *testing.T, f func(k *Kernel) error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	if err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		k, err := Open(stamps.Default, func(string, ...any) {})
		if err != nil {
			return err
		}
		defer k.Close()
		return f(k)
	}); err != nil {
		t.Error(err)
	}
}

// wellNamed are names that an interface can have, and illNamed are such that it cannot.
var (
	wellNamed = []string{"weft-vxlan", "weft-a-15-bytes", "w", "...", "weft-é", "weft-_0", "#$&*?"}
	illNamed  = []string{"weft-a-16-bytes-", "weft-a name", "weft-a\tname", "weft-\u00a0", "weft-à", "weft-a/b", "weft-a:b", "weft-%d", "weft-%%", "..", "."}
)

// TestWhatAnInterfaceCanBeCalled gives an interface each of the names. The kernel takes those, and
// those alone, that are taken for names.
func TestWhatAnInterfaceCanBeCalled(t *testing.T) {
	inNetNS(t, func(k *Kernel) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "one"}}
		if err := k.LinkAdd(bridge); err != nil {
			return err
		}
		for _, name := range slices.Concat(wellNamed, illNamed) {
			refused := k.LinkSetName(bridge, name)
			l, err := k.LinkByIndex(bridge.Index)
			if err != nil {
				return err
			}
			if can := l.Attrs().Name == name; can != canBeName(name) || can != slices.Contains(wellNamed, name) {
				t.Errorf("the interface that was to be called %q is called %q (%v), and whether it can is held to be %t", name, l.Attrs().Name, refused, canBeName(name))
			}
		}
		if canBeName("") || canBeName("weft-\x00") {
			t.Error("an empty name, or one with a zero byte, is held to be a name")
		}
		return nil
	})
}

// TestAnAliasThatNamesNothingHoldsUpNobody has another's device say in its alias that it is one of
// Weft's, of a name that no interface can have. It is left alone. A pod's interface that somebody
// renamed gets its name back all the same.
func TestAnAliasThatNamesNothingHoldsUpNobody(t *testing.T) {
	for _, name := range append(illNamed, "") {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			inNetNS(t, func(k *Kernel) error {
				foreign := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "foreign"}, VxlanId: 7, Port: 9999}
				pods := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "stray"}, PeerName: "peer"}
				if err := errors.Join(k.LinkAdd(foreign), k.LinkAdd(pods)); err != nil {
					return err
				}
				if err := errors.Join(k.LinkSetAlias(foreign, deviceAlias+name), k.LinkSetAlias(pods, "c1/eth0 10.1.0.2 weft -")); err != nil {
					return err
				}
				for _, changes := range []bool{true, false} {
					inv, err := k.List()
					if err != nil {
						return err
					}
					if changed, misnamed, err := k.PutBack(inv, nil); changed != changes || len(misnamed) > 0 || err != nil {
						return fmt.Errorf("it is changed: %t, misnamed are %v, %w", changed, misnamed, err)
					}
				}
				inv, err := k.List()
				if err != nil {
					return err
				}
				if right := podlink.HostName("c1", "eth0"); inv.Index(right) != pods.Index || inv.Index("foreign") != foreign.Index {
					t.Errorf("the pod's interface is called %s, and the other %s", inv.ByIndex(pods.Index).Attrs().Name, inv.ByIndex(foreign.Index).Attrs().Name)
				}
				return nil
			})
		})
	}
}

// TestATunnelWhoseRenamingIsRefusedIsNotInItsOwnWay has somebody rename the device of a tunnel, and
// give its name to another while a data plane is about to give it back. The kernel refuses that.
// The device is known as the tunnel's own all the same: it is set down, and nobody is told to
// delete it. It gets its name once it can.
func TestATunnelWhoseRenamingIsRefusedIsNotInItsOwnWay(t *testing.T) {
	tunnel := Overlay{Tunnel: plan.Tunnel{Name: "vxlan", Port: 4789}, VNI: 1, LastVNI: 100, Device: "weft-vxlan"}
	inNetNS(t, func(k *Kernel) error {
		device := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "stray"}, VxlanId: 50, Port: 4789}
		if err := errors.Join(k.LinkAdd(device), k.LinkSetAlias(device, deviceAlias+"weft-vxlan"), k.LinkSetUp(device)); err != nil {
			return err
		}
		inv, err := k.List()
		if err != nil {
			return err
		}
		other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "weft-vxlan"}}
		if err := k.LinkAdd(other); err != nil {
			return err
		}
		changed, misnamed, err := k.PutBack(inv, nil)
		if m := misnamed["weft-vxlan"]; !changed || !errors.Is(err, unix.EEXIST) || m.Index != device.Index || m.Name != "stray" || !errors.Is(m.Refused, unix.EEXIST) {
			t.Errorf("it is changed: %t, misnamed are %v, and it is said %v", changed, misnamed, err)
		}
		if err := CheckTunnel(inv, tunnel); err != nil {
			t.Errorf("it is in its own way: %v", err)
		}
		if err := CheckName(inv, "weft-vxlan", VXLANKind); err == nil || !strings.Contains(err.Error(), "refused to rename stray to weft-vxlan: ") || strings.Contains(err.Error(), "ip link del") {
			t.Errorf("of its name it is said %v", err)
		}
		if l, err := k.LinkByIndex(device.Index); err != nil || l.Attrs().Flags&net.FlagUp != 0 {
			t.Errorf("it is up without its name: %v", err)
		}
		if err := k.LinkDel(other); err != nil {
			return err
		}
		if inv, err = k.List(); err != nil {
			return err
		}
		if _, misnamed, err := k.PutBack(inv, nil); len(misnamed) > 0 || err != nil || inv.ByIndex(device.Index).Attrs().Name != "weft-vxlan" {
			t.Errorf("once the name is free, misnamed are %v, and it is said %v", misnamed, err)
		}
		return nil
	})
}

// TestWhatReceivesForATunnelIsInTheWay has another device receive what a tunnel should: one that
// is nobody's, one that claims to be the tunnel's, as a copy of its alias does, and the tunnel's
// own, which cannot have its name just now.
func TestWhatReceivesForATunnelIsInTheWay(t *testing.T) {
	tunnel := Overlay{Tunnel: plan.Tunnel{Name: "vxlan", Port: 4789, VTEP: netip.MustParseAddr("192.0.2.1")}, VNI: 1, LastVNI: 100, Device: "weft-vxlan"}
	other := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "other", Index: 7}, VxlanId: 50, Port: 4789}
	for what, c := range map[string]struct {
		misnamed map[string]Misnamed
		inTheWay bool
	}{
		"nobody's":         {nil, true},
		"a copy":           {map[string]Misnamed{"weft-vxlan": {Name: "other", Index: 7, Holder: 3, Copy: true}}, true},
		"the tunnel's own": {map[string]Misnamed{"weft-vxlan": {Name: "other", Index: 7, Holder: 3}}, false},
		"another's own":    {map[string]Misnamed{"weft-geneve": {Name: "other", Index: 7, Holder: 3}}, true},
	} {
		inv := &Links{stamps: stamps.Default, All: []netlink.Link{other}, Misnamed: c.misnamed}
		if err := CheckTunnel(inv, tunnel); (err != nil) != c.inTheWay || err != nil && !strings.Contains(err.Error(), "delete it (ip link del other)") {
			t.Errorf("of a device that is %s it is said %v", what, err)
		}
	}
}
