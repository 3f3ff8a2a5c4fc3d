package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
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
}

// newFitted makes one in the calling thread's network namespace.
func newFitted(t *testing.T) *fitted {
	socket, err := rtnetlink.Subscribe(rtnetlink.Links(), unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(socket.Close)
	f := &fitted{t: t, socket: socket, pod: newNetNS(t), key: ipam.Key{ContainerID: "c1", IfName: "eth0"}}
	f.plane = &hostRoutes{settings: settings{Dir: t.TempDir(), Pools: dualStack}}
	f.Server = NewServer(Config{Journal: openJournal(t), Node: f.plane, Log: slog.New(slog.DiscardHandler)})
	f.plane.server = f.Server
	f.recovery.Do(func() {})
	if _, failure := f.do(t.Context(), &call{id: "one", command: protocol.Add, version: "1.1.0", key: f.key, netns: f.pod, configuration: "weft", network: plan.DefaultNetwork},
		func() bool { return false }); failure != nil {
		t.Fatal(failure)
	}
	return f
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

// right checks that the pod is an endpoint, and its interface as an ADD makes it.
func (f *fitted) right() error {
	if err := f.plane.Publish(f.t.Context()); err != nil {
		return err
	}
	if n := len(f.Endpoints()); n != 1 {
		return fmt.Errorf("there are %d endpoints", n)
	}
	a, _ := f.Journal.Get(f.key)
	l, err := netlink.LinkByName(a.HostInterface)
	if err != nil {
		return err
	}
	if index := f.link(f.key); l.Attrs().Index != index {
		return fmt.Errorf("it is interface %d, and %d is known", l.Attrs().Index, index)
	}
	return podlink.Check(linkSpec(a))
}

// TestWhatOthersChangeOfAPodsInterfaceIsPutRight has somebody change the node's end of a pod's
// interface in what no data plane knows of. The server hears of it, and it is as it was. Then
// nothing more is to be put right. It is the same for a server that heard nothing.
func TestWhatOthersChangeOfAPodsInterfaceIsPutRight(t *testing.T) {
	needRoot(t)
	there := func(ns *os.File, f func() error) error { return netns.Do(nsPath(ns), f) }
	away := func(f *fitted, l netlink.Link) (*os.File, error) {
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return nil, err
		}
		f.t.Cleanup(func() { home.Close() })
		elsewhere := makeNetNS(f.t)
		f.t.Cleanup(func() { elsewhere.Close() })
		if err := netlink.LinkSetNsFd(l, int(elsewhere.Fd())); err != nil {
			return nil, err
		}
		if f.hear() || len(f.Endpoints()) > 0 {
			return nil, errors.New("it is elsewhere, and the pod is an endpoint")
		}
		return elsewhere, there(elsewhere, func() error { return netlink.LinkSetNsFd(l, int(home.Fd())) })
	}
	mac := []byte{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}
	for what, change := range map[string]func(*fitted, netlink.Link) error{
		"its MAC address": func(_ *fitted, l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) },
		"its MAC address and its name": func(_ *fitted, l netlink.Link) error {
			return errors.Join(netlink.LinkSetHardwareAddr(l, mac), netlink.LinkSetName(l, "stray"))
		},
		"it is elsewhere and comes back": func(f *fitted, l netlink.Link) error {
			_, err := away(f, l)
			return err
		},
		"it is elsewhere and comes back under another name": func(f *fitted, l netlink.Link) error {
			if _, err := away(f, l); err != nil {
				return err
			}
			return netlink.LinkSetName(l, "back0")
		},
	} {
		for _, heard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heard: %t", what, heard), func(t *testing.T) {
				if err := netns.Do(newNetNS(t), func() error {
					f := newFitted(t)
					if err := f.right(); err != nil || f.hear() {
						return fmt.Errorf("an ADD leaves something to put right: %w", err)
					}
					l, err := netlink.LinkByName(podlink.HostName(f.key.ContainerID, f.key.IfName))
					if err != nil {
						return err
					}
					if err := change(f, l); err != nil {
						return err
					}
					if heard && !f.hear() {
						t.Error("it is not heard")
					}
					if restored, said := f.fitAll(t.Context(), f.Node.MTU()); !restored || said != "" {
						t.Errorf("it is restored: %t, and it is said %q", restored, said)
					}
					if err := f.right(); err != nil {
						t.Errorf("it is put right, and %v", err)
					}
					f.hear() // of the way back, on which not all was right yet
					if restored, said := f.fitAll(t.Context(), f.Node.MTU()); restored || said != "" || f.hear() {
						t.Errorf("after that it is restored: %t, and it is said %q", restored, said)
					}
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
