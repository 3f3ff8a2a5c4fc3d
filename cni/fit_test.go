package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/cni/protocol"
	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/rtnetlink"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/podlink"
)

// unknown is a node between two networks: of its MTU nothing is known.
type unknown struct{ Node }

func (unknown) MTU() int { return 0 }

// TestMisfitStays has a node not know for a moment which MTU pods are to have: that some
// have another is said still.
func TestMisfitStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Config{Journal: openJournal(t), Node: unknown{}, Misfit: func(said string) { t.Errorf("it is said now: %q", said) }})
		s.misfits.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.fit(ctx)
		s.Fit()
		synctest.Wait()
		if !s.misfits.Load() {
			t.Error("it is forgotten")
		}
	})
}

// fitted is a node with a pod, whose server is told what the kernel tells when the test says so.
type fitted struct {
	*Server
	t      *testing.T
	plane  *hostRoutes
	socket *nl.NetlinkSocket
	pod    string
	key    ipam.Key
	// made is the interface as the ADD made it.
	made podlink.Spec
}

// newFitted makes one in the calling thread's network namespace.
func newFitted(t *testing.T) *fitted {
	f := newUnfitted(t)
	if failure := f.add(); failure != nil {
		t.Fatal(failure)
	}
	return f
}

// newUnfitted makes one that has no interface yet.
func newUnfitted(t *testing.T) *fitted {
	f := &fitted{t: t, pod: newNetNS(t), key: ipam.Key{ContainerID: "c1", IfName: "eth0"}}
	f.subscribe()
	f.plane = &hostRoutes{settings: settings{Dir: t.TempDir(), Pools: dualStack}}
	f.serve(openJournal(t))
	f.recovery.Do(func() {})
	return f
}

// subscribe has the kernel tell what happens from here on.
func (f *fitted) subscribe() {
	socket, err := rtnetlink.Subscribe(rtnetlink.Links(), unix.RTNLGRP_LINK)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(socket.Close)
	f.socket = socket
}

// serve starts another server in the place of the one before, and a data plane that knows
// nothing yet.
func (f *fitted) serve(journal *ipam.Journal) {
	f.plane.known = nil
	f.Server = NewServer(Config{Journal: journal, Node: f.plane, Log: slog.New(slog.DiscardHandler)})
	f.plane.server = f.Server
}

// add has the pod get its interface.
func (f *fitted) add() *protocol.Error {
	c := &call{id: "one", command: protocol.Add, version: "1.1.0", key: f.key, netns: f.pod, configuration: "weft", network: plan.DefaultNetwork}
	_, failure := f.do(f.t.Context(), c, func() bool { return false })
	a, _ := f.Journal.Get(f.key)
	f.made = linkSpec(a)
	return failure
}

// end returns the node's end of the pod's interface.
func (f *fitted) end() (netlink.Link, error) {
	return netlink.LinkByName(podlink.HostName(f.key.ContainerID, f.key.IfName))
}

// away moves an interface of the node to another network namespace. What it returns brings it
// back.
func (f *fitted) away(l netlink.Link) (back func() error, err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { home.Close() })
	elsewhere := makeNetNS(f.t)
	f.t.Cleanup(func() { elsewhere.Close() })
	return func() error {
		return netns.Do(nsPath(elsewhere), func() error { return netlink.LinkSetNsFd(l, int(home.Fd())) })
	}, netlink.LinkSetNsFd(l, int(elsewhere.Fd()))
}

// hear has the server hear what the kernel told so far, and reports whether it has to put
// something right.
func (f *fitted) hear() bool {
	if err := f.socket.SetReceiveTimeout(&unix.Timeval{Usec: 1000}); err != nil {
		f.t.Fatal(err)
	}
	f.takeUpdates(f.t.Context(), f.socket) // ends when there is no more
	select {
	case <-f.unfitted:
		return true
	default:
		return false
	}
}

// hearsItIsGone waits until the server has heard that the interface is elsewhere, of which the kernel
// tells a moment later. There is nothing to put right then.
func (f *fitted) hearsItIsGone() {
	f.t.Helper()
	eventually(f.t, "the server hears that it is elsewhere", func() bool {
		if f.hear() {
			f.t.Error("it is elsewhere, and there is something to put right")
		}
		return len(f.Endpoints()) == 0
	})
}

// right checks that the pod is an endpoint, and its interface as an ADD makes it.
func (f *fitted) right() error {
	if err := f.plane.Publish(f.t.Context()); err != nil {
		return err
	}
	if n := len(f.Endpoints()); n != 1 {
		return fmt.Errorf("there are %d endpoints", n)
	}
	l, err := f.end()
	if err != nil {
		return err
	}
	if index := f.link(f.key); l.Attrs().Index != index {
		return fmt.Errorf("it is interface %d, and %d is known", l.Attrs().Index, index)
	}
	return podlink.Check(f.made)
}

// fitsOnce checks that there is something to put right, and that all is right once that is done.
func (f *fitted) fitsOnce() {
	f.t.Helper()
	if restored, said := f.fitAll(f.t.Context(), f.Node.MTU()); !restored || said != "" {
		f.t.Errorf("it is restored: %t, and it is said %q", restored, said)
	}
	if err := f.right(); err != nil {
		f.t.Errorf("it is put right, and %v", err)
	}
	f.hear() // of the way back, on which not all was right yet
	if restored, said := f.fitAll(f.t.Context(), f.Node.MTU()); restored || said != "" || f.hear() {
		f.t.Errorf("after that it is restored: %t, and it is said %q", restored, said)
	}
}

// TestWhatOthersChangeOfAPodsInterfaceIsPutRight has somebody change the node's end of a pod's
// interface in what no data plane knows of. The server hears of it, and it is as it was. Then
// nothing more is to be put right. It is the same for a server that heard nothing, and for one
// that has lost its journal and took the interface up from its alias.
func TestWhatOthersChangeOfAPodsInterfaceIsPutRight(t *testing.T) {
	needRoot(t)
	away := func(f *fitted, l netlink.Link) error {
		back, err := f.away(l)
		if err != nil {
			return err
		}
		f.hearsItIsGone()
		return back()
	}
	mac := []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}
	for what, change := range map[string]func(*fitted, netlink.Link) error{
		"its MAC address": func(_ *fitted, l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) },
		"its MAC address and its name": func(_ *fitted, l netlink.Link) error {
			return errors.Join(netlink.LinkSetHardwareAddr(l, mac), netlink.LinkSetName(l, "stray"))
		},
		"it is elsewhere and comes back": away,
		"it is elsewhere and comes back under another name": func(f *fitted, l netlink.Link) error {
			return errors.Join(away(f, l), netlink.LinkSetName(l, "back0"))
		},
		"it is elsewhere, comes back and is set up": func(f *fitted, l netlink.Link) error {
			return errors.Join(away(f, l), netlink.LinkSetUp(l))
		},
		"it is elsewhere and comes back with another MAC address": func(f *fitted, l netlink.Link) error {
			return errors.Join(away(f, l), netlink.LinkSetHardwareAddr(l, mac))
		},
	} {
		for _, heard := range []bool{true, false} {
			for _, lost := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, heard: %t, the journal is lost: %t", what, heard, lost), func(t *testing.T) {
					if err := netns.Do(newNetNS(t), func() error {
						f := newFitted(t)
						if err := f.right(); err != nil || f.hear() {
							return fmt.Errorf("an ADD leaves something to put right: %w", err)
						}
						if lost {
							f.serve(openJournal(t))
							if err := f.right(); err != nil {
								return fmt.Errorf("the journal is lost, and %w", err)
							}
						}
						l, err := f.end()
						if err != nil {
							return err
						}
						if err := change(f, l); err != nil {
							return err
						}
						if heard && !f.hear() {
							t.Error("it is not heard")
						}
						f.fitsOnce()
						if failure := f.del(f.key); failure != nil {
							return failure
						}
						if f.hear() {
							t.Error("of an interface that DEL removes something is to be put right")
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// TestWhatNobodyHeardOfIsPutRight has the node's end of a pod's interface be elsewhere, and come
// back with the same index and MAC address, while no server runs, and while one runs that loses
// what it is told. It has lost the rest of what an ADD gives, and gets it back. It is the same
// where the journal is lost.
func TestWhatNobodyHeardOfIsPutRight(t *testing.T) {
	needRoot(t)
	for how, next := range map[string]func(f *fitted){
		"no server runs":          func(f *fitted) { f.serve(f.Journal) },
		"no server runs, nor any": func(f *fitted) { f.serve(openJournal(f.t)) },
		"it is told too much": func(f *fitted) {
			f.plane.known = nil // data planes hear for themselves
			f.compareLinks()
		},
	} {
		t.Run(how, func(t *testing.T) {
			if err := netns.Do(newNetNS(t), func() error {
				f := newFitted(t)
				if err := f.right(); err != nil {
					return err
				}
				l, err := f.end()
				if err != nil {
					return err
				}
				back, err := f.away(l)
				if err := errors.Join(err, back()); err != nil {
					return err
				}
				f.subscribe()
				next(f)
				f.Recover()
				f.fitsOnce()
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAReturnIsHeardWhileARequestIsUnderWay has an interface be elsewhere and come back while a
// request is about its container, which may be about another interface of that. It is taken up.
func TestAReturnIsHeardWhileARequestIsUnderWay(t *testing.T) {
	needRoot(t)
	if err := netns.Do(newNetNS(t), func() error {
		f := newFitted(t)
		f.hear()
		l, err := f.end()
		if err != nil {
			return err
		}
		release, err := f.locks.acquire(t.Context(), f.key.ContainerID)
		if err != nil {
			return err
		}
		back, err := f.away(l)
		if err != nil || f.hear() {
			return fmt.Errorf("it is elsewhere, and something is to be put right: %w", err)
		}
		if err := back(); err != nil || !f.hear() {
			t.Errorf("it is back, and that is not heard: %v", err)
		}
		release()
		f.fitsOnce()
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// meddling is a node on which something happens behind each plan that it has loaded.
type meddling struct {
	Node
	behind func() error
}

func (m meddling) Publish(ctx context.Context, interfaces ...string) error {
	return errors.Join(m.Node.Publish(ctx, interfaces...), m.behind())
}

// TestWhatHappensDuringAnADDIsPutRight has somebody change the node's end of a pod's interface
// while the ADD that makes it is under way, and the server hear of it before the ADD has ended.
// The pod gets what it ought to have all the same.
func TestWhatHappensDuringAnADDIsPutRight(t *testing.T) {
	needRoot(t)
	for what, change := range map[string]func(*fitted, netlink.Link) error{
		"its MAC address": func(_ *fitted, l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55})
		},
		"it is elsewhere and comes back": func(f *fitted, l netlink.Link) error {
			back, err := f.away(l)
			if err != nil {
				return err
			}
			f.hear()
			return errors.Join(back(), netlink.LinkSetUp(l))
		},
	} {
		t.Run(what, func(t *testing.T) {
			if err := netns.Do(newNetNS(t), func() error {
				f := newUnfitted(t)
				asked := false
				f.Node = meddling{f.plane, func() error {
					l, err := f.end()
					if err != nil {
						return err
					}
					err = change(f, l)
					asked = f.hear()
					return err
				}}
				if failure := f.add(); failure != nil {
					return failure
				}
				f.Node = f.plane
				select {
				case <-f.unfitted:
				default:
					if !asked {
						t.Error("the server does not put it right")
					}
				}
				f.fitsOnce()
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnADDOfWhatIsBackHasItsNextHop asks again for an interface that was elsewhere and is back, as
// weft-cni does whose agent was killed before it answered, and before anybody has put it right. The
// data plane has not let go of it yet, and what it lets go of it sets down, whereby an interface loses
// its IPv6 address. All is there when the ADD is answered.
func TestAnADDOfWhatIsBackHasItsNextHop(t *testing.T) {
	needRoot(t)
	if err := netns.Do(newNetNS(t), func() error {
		f := newFitted(t)
		l, err := f.end()
		if err != nil {
			return err
		}
		back, err := f.away(l)
		if err != nil {
			return err
		}
		f.hearsItIsGone()
		if err := errors.Join(back(), netlink.LinkSetUp(l)); err != nil {
			return err
		}
		if failure := f.add(); failure != nil {
			return failure
		}
		return f.right()
	}); err != nil {
		t.Error(err)
	}
}

// TestWhatAnADDIsAboutIsPutRightBehindIt has an interface have another MAC address while the
// request that makes it is under way. That is not overlooked: the server waits for the request.
func TestWhatAnADDIsAboutIsPutRightBehindIt(t *testing.T) {
	needRoot(t)
	if err := netns.Do(newNetNS(t), func() error {
		f := newUnfitted(t)
		release, err := f.locks.acquire(t.Context(), f.key.ContainerID)
		if err != nil {
			return err
		}
		a, err := f.Journal.Reserve(ipam.Request{Key: f.key, Network: plan.DefaultNetwork, NetNS: f.pod, HostInterface: podlink.HostName("c1", "eth0"), MTU: f.plane.MTU()}, f.plane.Pools, f.plane.Has)
		if err != nil {
			return err
		}
		f.made = linkSpec(a)
		index, err := podlink.Ensure(f.made)
		if err != nil {
			return err
		}
		impatient, cancel := context.WithCancel(t.Context())
		cancel()
		l, err := f.end()
		if err != nil {
			return err
		}
		leftAlone := func(when string) {
			if restored, said := f.fitAll(impatient, f.plane.MTU()); restored || said != "" {
				t.Errorf("%s, it is restored: %t, and it is said %q", when, restored, said)
			}
		}
		f.setLink(f.key, index)
		leftAlone("the interface is as it is made")
		if err := netlink.LinkSetHardwareAddr(l, []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}); err != nil {
			return err
		}
		f.setLink(f.key, 0)
		leftAlone("the interface may not be made to its end")
		f.setLink(f.key, index)
		if waits, said := f.fitAll(impatient, f.plane.MTU()); !waits || said == "" {
			t.Errorf("somebody has changed it, the server waits to restore it: %t, and it is said %q", waits, said)
		}
		release()
		if err := f.Journal.Commit(f.key); err != nil {
			return err
		}
		f.fitsOnce()
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestWhatCannotBePutRightIsTriedAgain has an interface come back to a node that loads no plans
// for a while. Nothing more is heard of it then. The server tries again until the pod is an
// endpoint, ever less often, and then no more.
func TestWhatCannotBePutRightIsTriedAgain(t *testing.T) {
	needRoot(t)
	node := newNetNS(t)
	var f *fitted
	if err := netns.Do(node, func() error {
		f = newFitted(t)
		l, err := f.end()
		if err != nil {
			return err
		}
		back, err := f.away(l)
		f.hear()
		return errors.Join(err, back())
	}); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const refused = 10
		var tried []time.Duration
		began := time.Now()
		f.Node = &refusing{Node: f.plane, refused: func(n int) bool {
			tried = append(tried, time.Since(began))
			return n <= refused
		}}
		f.unfitted = make(chan struct{}, 1) // what is awaited here is made here
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := netns.Do(node, func() error { f.fit(ctx); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(tried) != refused+1 {
			t.Fatalf("it is tried at %v, and is refused %d times", tried, refused)
		}
		for i, at := range tried[1:] {
			if pause := at - tried[i]; pause < fitRest || pause > fitRest+fitAtLatest || i > 0 && pause < tried[i]-tried[i-1] {
				t.Errorf("it is tried at %v", tried)
			}
		}
	})
	if err := netns.Do(node, f.right); err != nil {
		t.Error(err)
	}
}

// hanging is a node whose data plane takes no plan.
type hanging struct{ Node }

func (hanging) Publish(ctx context.Context, _ ...string) error {
	<-ctx.Done()
	return fmt.Errorf("nothing is taken: %w", context.Cause(ctx))
}

// TestOneThatTakesLongHoldsUpNoOthers has somebody change the interfaces of two pods, while the
// first cannot be put right: a request that does not end is about its container, or the data plane
// does not let go of it. The second is right after a few seconds, and of the first it is said what
// it waits for. Once nothing keeps it, it is put right as well.
func TestOneThatTakesLongHoldsUpNoOthers(t *testing.T) {
	needRoot(t)
	mac := func(_ *fitted, l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55})
	}
	away := func(f *fitted, l netlink.Link) error {
		back, err := f.away(l)
		f.hear()
		return errors.Join(err, back())
	}
	mtu := func(_ *fitted, l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }
	request := func(f *fitted) (end func()) {
		end, err := f.locks.acquire(f.t.Context(), f.key.ContainerID)
		if err != nil {
			f.t.Fatal(err)
		}
		return end
	}
	plane := func(f *fitted) (end func()) {
		f.Node = hanging{f.plane}
		return func() { f.Node = f.plane }
	}
	for what, c := range map[string]struct {
		change func(*fitted, netlink.Link) error
		keep   func(*fitted) (end func())
		said   string
	}{
		"its MAC address, and a request":     {mac, request, ": wait for the request that is about container c1: not within 3s, it is tried again"},
		"its MTU, and a request":             {mtu, request, "its MTU is 1400: wait for the request that is about container c1: not within 3s, it is tried again"},
		"it was elsewhere, and a request":    {away, request, ": wait for the request that is about container c1: not within 3s, it is tried again"},
		"it was elsewhere, and a data plane": {away, plane, ": nothing is taken: not within 3s, it is tried again"},
	} {
		t.Run(what, func(t *testing.T) {
			node := newNetNS(t)
			var first, second *fitted
			if err := netns.Do(node, func() error {
				first = newFitted(t)
				second = &fitted{Server: first.Server, t: t, plane: first.plane, pod: newNetNS(t), key: ipam.Key{ContainerID: "c2", IfName: "eth0"}}
				if failure := second.add(); failure != nil {
					return failure
				}
				one, err := first.end()
				if err != nil {
					return err
				}
				two, err := second.end()
				if err != nil {
					return err
				}
				return errors.Join(c.change(first, one), mac(second, two))
			}); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				if err := netns.Do(node, func() error {
					end, began := c.keep(first), time.Now()
					_, said := first.fitAll(t.Context(), first.plane.MTU())
					if took := time.Since(began); took != fitPatience || !strings.HasSuffix(said, c.said) {
						t.Errorf("after %v it is said %q", took, said)
					}
					if err := podlink.Check(second.made); err != nil {
						t.Errorf("the first is not put right yet, and of the second %v", err)
					}
					end()
					if _, said := first.fitAll(t.Context(), first.plane.MTU()); said != "" {
						t.Errorf("nothing keeps the first any more, and it is said %q", said)
					}
					return errors.Join(first.plane.Publish(t.Context()), podlink.Check(first.made))
				}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTheMACAddressOfAPodThatTheJournalDoesNotTellOf has pods that were taken up from aliases, on
// nodes that have these pools. What is known is what all of a network have.
func TestTheMACAddressOfAPodThatTheJournalDoesNotTellOf(t *testing.T) {
	mac := func(gateway string) plan.MAC { return plan.MACOf(netip.MustParseAddr(gateway)) }
	other, none := plan.MAC{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}, plan.MAC{}
	pool := netip.MustParsePrefix
	for what, c := range map[string]struct {
		pools      []netip.Prefix
		has, right plan.MAC
	}{
		"it has that of the primary pool":       {dualStack, mac("10.1.0.1"), mac("10.1.0.1")},
		"it has another's":                      {dualStack, other, mac("10.1.0.1")},
		"it has that of the other pool":         {dualStack, mac("fd00:1::1"), mac("fd00:1::1")},
		"it has none":                           {dualStack, none, mac("10.1.0.1")},
		"it has that of another network's pool": {dualStack, mac("10.9.0.1"), mac("10.1.0.1")},
		"it has an address of no pool":          {[]netip.Prefix{pool("10.2.0.0/24"), dualStack[1]}, other, none},
		"nothing is known of the node":          {nil, other, none},
	} {
		plane := &hostRoutes{settings: settings{Pools: c.pools, Networks: map[string][]netip.Prefix{"red": {pool("10.9.0.0/24")}}}}
		s := NewServer(Config{Node: plane})
		a := ipam.Attachment{Request: ipam.Request{Network: plan.DefaultNetwork}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2")}}
		if got := s.rightMAC(a, c.has); got != c.right {
			t.Errorf("%s: it is to have %v and not %v", what, got, c.right)
		}
		a.Router = netip.MustParseAddr("10.3.0.1")
		if got := s.rightMAC(a, c.has); got != mac("10.3.0.1") {
			t.Errorf("%s: it is to have %v, and the journal tells of another", what, got)
		}
	}
}

// TestTheServerPutsRightWhatItHearsOf has somebody change the MAC address of the node's end of
// a pod's interface while a server runs, and while none does.
func TestTheServerPutsRightWhatItHearsOf(t *testing.T) {
	n := newNode(t, settings{Pools: dualStack})
	r := newRuntime(t, n, conflist("1.1.0", n.socket()))
	rt := pod("c1", newNetNS(t))
	if _, err := r.add(t.Context(), rt); err != nil {
		t.Fatal(err)
	}
	right := plan.MACOf(netip.MustParseAddr("10.1.0.1"))
	for _, killed := range []bool{false, true} {
		if killed {
			n.kill()
		}
		var changes *nl.NetlinkSocket
		n.in(func() (err error) {
			if changes, err = rtnetlink.Subscribe(rtnetlink.Links(), unix.RTNLGRP_LINK); err != nil {
				return err
			}
			if err := changes.SetReceiveTimeout(&unix.Timeval{Sec: int64(30 * time.Second / time.Second)}); err != nil {
				return err
			}
			l, err := netlink.LinkByName(podlink.HostName("c1", "eth0"))
			if err != nil {
				return err
			}
			return netlink.LinkSetHardwareAddr(l, []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55})
		})
		defer changes.Close()
		if killed {
			n.start()
		}
		for has := (plan.MAC{}); has != right; {
			if _, _, err := changes.Receive(); err != nil {
				t.Fatalf("it has the MAC address %v (killed: %t): %v", has, killed, err)
			}
			has = n.links()[0].MAC
		}
	}
	if err := r.check(t.Context(), rt); err != nil {
		t.Error(err)
	}
}
