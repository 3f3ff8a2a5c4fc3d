package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/conntrack"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/internal/netns"
)

// TestNothingIsAllowedBeforeItIsDropped has a plan that drops by its routes what its
// policies allow from now on, and a kernel that does not tell what it has. The policies
// stay as they are then, and the next call goes the same way.
func TestNothingIsAllowedBeforeItIsDropped(t *testing.T) {
	b := newBench(t)
	p := mustParse(t, policedPlan)
	q := mustParse(t, strings.NewReplacer("c1 any deny", "c1 any allow", "10.1.3.0/24 tunnel node3", "10.1.3.0/24 drop").Replace(policedPlan))
	b.mustApply(p)
	b.current = nil // what there is has to be read
	failure := errors.New("not now")
	hear(t, func(table string) error {
		if table != stamps.Default.Table {
			return nil
		}
		err := failure
		failure = nil // once
		return err
	})
	if err := b.Apply(t.Context(), q); err == nil {
		t.Error("it is not said that the kernel could not be read")
	}
	if now := b.enforced.Load(); now != p {
		t.Errorf("policies in force are those of\n%s", now)
	}
	if b.previous != p {
		t.Errorf("the next way begins at\n%s", b.previous)
	}
	b.mustApply(q)
	b.loaded(map[string]int{"10.1.3.0/24": unix.RTN_UNREACHABLE})
	b.nothingToRepair()
}

// TestAddressesLeaveNothingBehind has many IPv6 addresses come while others change routes
// all the time. Whoever waits until an address can be used ends with that.
func TestAddressesLeaveNothingBehind(t *testing.T) {
	b := newBench(t)
	b.mustApply(mustParse(t, tunnelPlan))
	var text strings.Builder
	text.WriteString(tunnelPlan)
	for i := range 40 {
		fmt.Fprintf(&text, "pool default fd00:%x::/64 gateway fd00:%[1]x::1\n", i+1)
	}
	busy, stop := make(chan error), make(chan struct{})
	go func() {
		r := &netlink.Route{Dst: ipNet(netip.MustParsePrefix("fd77::/64")), Type: unix.RTN_UNREACHABLE}
		busy <- netns.Do(b.path, func() error {
			for {
				if err := errors.Join(netlink.RouteAdd(r), netlink.RouteDel(r)); err != nil {
					return err
				}
				select {
				case <-stop:
					return nil
				default:
				}
			}
		})
	}()
	before := runtime.NumGoroutine()
	b.mustApply(mustParse(t, text.String()))
	close(stop)
	if err := <-busy; err != nil {
		t.Fatal(err)
	}
	if after := runtime.NumGoroutine(); after > before+1 { // who is about to end
		t.Errorf("there are %d goroutines more", after-before)
	}
}

// TestSCTPIsAskedForAgain has a kernel that came to track SCTP after the data plane began.
func TestSCTPIsAskedForAgain(t *testing.T) {
	b := newBench(t)
	b.sctp = false
	able := false
	b.do(func() error { able = conntrack.SCTPTracked(); return nil })
	if is := b.Capabilities().SCTP; is != able {
		t.Errorf("it is said to be tracked: %t, and is: %t", is, able)
	}
}
