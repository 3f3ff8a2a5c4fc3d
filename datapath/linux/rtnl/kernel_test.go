package rtnl

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/netns"
)

// TestLocalOnceTheKernelSaysSo has the kernel tell of routes, or stop before it has told
// of the one that shows that an address is local: then it is asked until it has that.
func TestLocalOnceTheKernelSaysSo(t *testing.T) {
	address := netip.MustParsePrefix("fd00:5::1/128")
	told := func(what uint16, kind int, to netip.Prefix) netlink.RouteUpdate {
		return netlink.RouteUpdate{Type: what, Route: netlink.Route{Type: kind, Dst: ipNet(to)}}
	}
	others := []netlink.RouteUpdate{
		{Type: unix.RTM_NEWROUTE, Route: netlink.Route{Type: unix.RTN_LOCAL}},
		told(unix.RTM_NEWROUTE, unix.RTN_UNICAST, address),
		told(unix.RTM_NEWROUTE, unix.RTN_LOCAL, netip.MustParsePrefix("fd00:5::2/128")),
		told(unix.RTM_DELROUTE, unix.RTN_LOCAL, address),
	}
	for name, test := range map[string]struct {
		last []netlink.RouteUpdate
		late bool
		fail error
		asks int    // how often it is asked
		says string // "" where it is local
	}{
		"it says so":                   {last: []netlink.RouteUpdate{told(unix.RTM_NEWROUTE, unix.RTN_LOCAL, address)}},
		"it stops":                     {asks: 3},
		"it stops, and cannot be read": {fail: unix.EPERM, asks: 1, says: unix.EPERM.Error()},
		"it says other things":         {late: true, says: "did not make it local within"},
	} {
		t.Run(name, func(t *testing.T) {
			routes, timeout := make(chan netlink.RouteUpdate), make(chan time.Time)
			go func() {
				for _, r := range append(others[:len(others):len(others)], test.last...) {
					routes <- r
				}
				if test.late {
					close(timeout)
				} else {
					close(routes)
				}
			}()
			asked := 0
			err := seenLocal(routes, address, func() (bool, error) { asked++; return asked == 3, test.fail }, timeout)
			if asked != test.asks {
				t.Errorf("it is asked %d times, want %d", asked, test.asks)
			}
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("it says %v, want %q", err, test.says)
			}
		})
	}
}

// TestAskedEverLessOften has a kernel that tells nothing, and that does not make the address
// local: until the time is over it is asked a few times.
func TestAskedEverLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		routes, asked := make(chan netlink.RouteUpdate), 0
		close(routes)
		err := seenLocal(routes, netip.MustParsePrefix("fd00:5::1/128"), func() (bool, error) { asked++; return false, nil }, time.After(localTimeout))
		if err == nil || asked < 5 || asked > 20 {
			t.Errorf("it is asked %d times in %s, and then it says %v", asked, localTimeout, err)
		}
	})
}

// TestTheKernelSaysWhatIsLocal asks a kernel of an address of its own, of one behind a
// route, of one to which there is none, and of one that is refused.
func TestTheKernelSaysWhatIsLocal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		k, err := Open(stamps.Stamps{}, func(string, ...any) {})
		if err != nil {
			return err
		}
		defer k.Close()
		lo, err := k.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := k.LinkSetUp(lo); err != nil {
			return err
		}
		if err := k.addAddress(AddressKey{Link: lo.Attrs().Index, Prefix: netip.MustParsePrefix("fd00:5::1/128")}); err != nil {
			return err
		}
		for prefix, kind := range map[string]int{"fd00:6::/64": unix.RTN_UNICAST, "fd00:7::/64": unix.RTN_UNREACHABLE, "fd00:8::/64": unix.RTN_PROHIBIT, "fd00:9::/64": unix.RTN_BLACKHOLE} {
			if err := k.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(prefix)), Type: kind}); err != nil {
				return err
			}
		}
		for address, want := range map[string]bool{"fd00:5::1": true, "fd00:5::2": false, "fd00:6::1": false, "fd00:7::1": false, "fd00:8::1": false, "fd00:9::1": false} {
			if is, err := k.isLocal(netip.MustParseAddr(address)); is != want || err != nil {
				t.Errorf("%s is local: %t, %v", address, is, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
