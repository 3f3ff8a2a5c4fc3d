package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/internal/rtnetlink"
)

// inNamespace is inNetNS where the loopback interface is up.
func inNamespace(t *testing.T, f func(k *Kernel) error) {
	t.Helper()
	inNetNS(t, func(k *Kernel) error {
		if err := k.LinkSetUp(linkAt(LoopbackLink)); err != nil {
			return err
		}
		return f(k)
	})
}

// manyRoutes are those to so many addresses, of one link.
func manyRoutes(n, link int) (all []reconcile.Change[RouteKey, Route]) {
	for i := range n {
		to := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 32)
		all = append(all, reconcile.Change[RouteKey, Route]{Key: RouteKey{Table: 1000, Prefix: to}, New: &Route{Kind: unix.RTN_UNICAST, Link: link, Scope: unix.RT_SCOPE_LINK}})
	}
	return all
}

// TestEachIsAnswered has the kernel add routes of which it refuses some, the last of all among them,
// all, or none, and then delete them, of which some have gone. It is told of each what became of it.
func TestEachIsAnswered(t *testing.T) {
	const all = 3*requestsTogether + 5
	nowhere := func(i int) bool { return i%3 == 1 || i == all-1 }
	for name, refused := range map[string]func(i int) bool{
		"some": nowhere,
		"all":  func(int) bool { return true },
		"none": func(int) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func(k *Kernel) error {
				routes := manyRoutes(all, LoopbackLink)
				for i := range routes {
					if refused(i) {
						routes[i].New.Link = 4711
					}
				}
				for i, err := range k.executeTogether(all, func(i int) *nl.NetlinkRequest {
					return k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, routes[i].Key, *routes[i].New)
				}) {
					if refused(i) != errors.Is(err, unix.ENODEV) || !refused(i) && err != nil {
						t.Errorf("of route %d it is said: %v", i, err)
					}
				}
				// Which do not make what is asked next another's.
				if err := k.execute(k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, RouteKey{Table: 1001, Prefix: routes[0].Key.Prefix}, Route{Kind: unix.RTN_UNREACHABLE})); err != nil {
					t.Errorf("of another request it is said: %v", err)
				}
				told := map[RouteKey]error{}
				for i := range routes {
					routes[i].Old, routes[i].New = routes[i].New, nil
				}
				k.deleteRoutes(Delta{Routes: routes}, func(c reconcile.Change[RouteKey, Route], err error) { told[c.Key] = err })
				for i, c := range routes {
					if err, ok := told[c.Key]; ok == refused(i) || err != nil {
						t.Errorf("of route %d, which goes, it is told: %t, %v", i, ok, err)
					}
				}
				have, err := k.Read(nil, nil, nil)
				if err == nil && len(have.Routes) != 1 {
					err = fmt.Errorf("the kernel has %d routes; expected 1", len(have.Routes))
				}
				return err
			})
		})
	}
}

// TestTheKernelsWords has the kernel say in words why it refuses a route.
func TestTheKernelsWords(t *testing.T) {
	inNamespace(t, func(k *Kernel) error {
		via := Route{Kind: unix.RTN_UNICAST, Link: LoopbackLink, Via: netip.MustParseAddr("198.51.100.1")}
		said := k.executeTogether(2, func(i int) *nl.NetlinkRequest {
			return k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, manyRoutes(2, 0)[i].Key, via)
		})
		for _, err := range said {
			if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "gateway") {
				t.Errorf("it is said: %v", err)
			}
		}
		return nil
	})
}

// TestNothingIsAnswered has the kernel's answers get lost: that is said of each request.
func TestNothingIsAnswered(t *testing.T) {
	inNamespace(t, func(k *Kernel) error {
		if err := (rtnetlink.Filter{rtnetlink.None}).Attach(k.raw.Socket); err != nil {
			return err
		}
		said := k.executeTogether(requestsTogether+1, func(i int) *nl.NetlinkRequest {
			return k.routeRequest(unix.RTM_DELROUTE, 0, RouteKey{Prefix: netip.MustParsePrefix("10.96.0.1/32")}, Route{})
		})
		for i, err := range said {
			if !errors.Is(err, errUnanswered) {
				t.Errorf("of request %d it is said: %v", i, err)
			}
		}
		if len(said) != requestsTogether+1 {
			t.Errorf("something is said of %d requests", len(said))
		}
		return nil
	})
}

// TestRoutesOfOthersAreFoundAmongMany has another program's routes in the way of some of many: those
// are refused, in order, and all others added.
func TestRoutesOfOthersAreFoundAmongMany(t *testing.T) {
	inNamespace(t, func(k *Kernel) error {
		routes := manyRoutes(2*requestsTogether, LoopbackLink)
		others := *k
		others.stamps.Protocol = unix.RTPROT_STATIC
		for _, i := range []int{3, 7, requestsTogether, 2*requestsTogether - 1} {
			if err := others.execute(others.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, routes[i].Key, *routes[i].New)); err != nil {
				return err
			}
		}
		refused, err := k.Apply(Delta{Routes: routes}, func(map[int]bool) error { return nil }, func(_ int, err error) error { return err })
		if err != nil {
			return err
		}
		var keys []string
		for _, r := range refused {
			keys = append(keys, r.Key.Prefix.String())
		}
		if got := strings.Join(keys, " "); got != "10.96.0.3/32 10.96.0.7/32 10.96.0.64/32 10.96.0.127/32" {
			t.Errorf("refused are %s", got)
		}
		have, err := k.Read(nil, nil, nil)
		if err == nil && len(have.Routes) != len(routes)-4 {
			err = fmt.Errorf("the kernel has %d routes of %d", len(have.Routes), len(routes)-4)
		}
		return err
	})
}
