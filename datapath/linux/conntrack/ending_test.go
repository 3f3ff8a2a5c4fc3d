package conntrack

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// own returns the path of a new network namespace, in which loopback addresses work.
func own(t *testing.T) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	if err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := netns.Netlink(path, func(h *netlink.Handle, _ vnetns.NsHandle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	return path
}

// A socket for datagrams is told of an end while others are still asked for theirs. Later it would
// be told so of what it has begun since.
func TestDatagramsDoNotWaitForConnections(t *testing.T) {
	path := own(t)
	asked, answered := make(chan struct{}), make(chan struct{})
	var begun atomic.Bool
	e := StartEnder(func(f func() error) error {
		if begun.CompareAndSwap(false, true) {
			close(asked)
			<-answered
		}
		return netns.Do(path, f)
	}, slog.New(slog.DiscardHandler))
	defer e.Close()
	defer close(answered)

	var socket *net.UDPConn
	if err := netns.Do(path, func() (err error) {
		socket, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	here := socket.LocalAddr().(*net.UDPAddr).AddrPort()
	there := netip.MustParseAddrPort("127.0.0.1:53")
	p := &plan.Plan{Local: plan.Local{Pools: []plan.Pool{{Network: plan.DefaultNetwork, Gateway: there.Addr()}}}}
	of := func(protocol plan.Protocol) Leftover {
		return Leftover{Protocol: protocol, Client: Side{here, there}, Server: Side{there, here}}
	}
	e.End(Lot{Plan: p, Network: plan.DefaultNetwork, Leftovers: []Leftover{of(plan.TCP)}})
	<-asked
	e.End(Lot{Plan: p, Network: plan.DefaultNetwork, Leftovers: []Leftover{of(plan.TCP), of(plan.UDP)}})
	socket.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := socket.Read(make([]byte, 1)); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("the socket is told %v", err)
	}
}
