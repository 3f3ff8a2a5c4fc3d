package rtnl

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
