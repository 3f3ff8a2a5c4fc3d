package hold_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce/hold"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/internal/netns"
)

func set(addresses ...string) map[netip.Addr]bool {
	all := make(map[netip.Addr]bool)
	for _, a := range addresses {
		all[netip.MustParseAddr(a)] = true
	}
	return all
}

// apart runs a test in a network namespace of its own.
func apart(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatANodeHolds(t *testing.T) {
	apart(t, func() error {
		others := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("198.51.100.1").To4(), Mask: net.CIDRMask(32, 32)}}
		lo, _ := netlink.LinkByName("lo")
		if err := netlink.AddrAdd(lo, others); err != nil {
			return err
		}
		h, err := hold.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		for i, wanted := range []map[netip.Addr]bool{set("192.0.2.7", "2001:db8::7"), set("192.0.2.8", "2001:db8::7"), set("192.0.2.8"), set("2001:db8::9"), {}} {
			if i == 2 { // as an agent that starts
				again, err := hold.Open()
				if err != nil {
					return err
				}
				defer again.Close()
				h = again
			}
			for range 2 {
				if err := h.Set(wanted); err != nil {
					return fmt.Errorf("step %d: %w", i, err)
				}
			}
			held, err := h.Held()
			if err != nil || !maps.Equal(held, wanted) {
				return fmt.Errorf("step %d: the node has %v, want %v (%v)", i, held, wanted, err)
			}
			for a := range wanted {
				l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
				if err != nil {
					return fmt.Errorf("step %d: no program can listen at %s: %w", i, a, err)
				}
				l.Close()
			}
			out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			for _, a := range []string{"192.0.2.7", "192.0.2.8"} {
				if strings.Contains(string(out), a) != wanted[netip.MustParseAddr(a)] {
					return fmt.Errorf("step %d: the rules are\n%s", i, out)
				}
			}
			if len(wanted) == 0 && strings.Contains(string(out), hold.Table) {
				return fmt.Errorf("the table stays:\n%s", out)
			}
		}
		if err := h.Set(set("198.51.100.1")); err == nil || !strings.Contains(err.Error(), "is not Weft's") {
			return fmt.Errorf("an address that somebody else has given: %w", err)
		}
		if err := h.Set(set("192.0.2.9", "2001:db8::7")); err != nil {
			return err
		}
		for i, want := range []int{2, 0} {
			if gone, err := hold.Remove(); err != nil || len(gone) != want {
				return fmt.Errorf("removal %d takes away %v: %w", i, gone, err)
			}
		}
		if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || strings.Contains(string(out), hold.Table) {
			return fmt.Errorf("the rules behind a removal are %s (%w)", out, err)
		}
		left, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil || len(left) != 2 { // that of somebody else, and 127.0.0.1
			return fmt.Errorf("what is left is %v, %w", left, err)
		}
		return nil
	})
}

// TestOthersChangeAddresses has the node have so many addresses that the kernel lists them in several parts, and others
// change some all the time: what the node has is known all the same.
func TestOthersChangeAddresses(t *testing.T) {
	apart(t, func() error {
		h, err := hold.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		many := make(map[netip.Addr]bool)
		for i := range 300 {
			many[netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})] = true
		}
		if err := h.Set(many); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer handle.Close()
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			pod := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("198.51.100.1").To4(), Mask: net.CIDRMask(32, 32)}}
			for {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				if err := errors.Join(handle.AddrAdd(lo, pod), handle.AddrDel(lo, pod)); err != nil {
					stopped <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		for range 1000 {
			held, heldErr := h.Held()
			if err = heldErr; err == nil && !maps.Equal(held, many) {
				err = fmt.Errorf("it has %d addresses, want %d", len(held), len(many))
			}
			if err != nil {
				break
			}
		}
		close(stop)
		return errors.Join(err, <-stopped)
	})
}

// TestTheTableIsTakenAway has somebody else flush all rules.
func TestTheTableIsTakenAway(t *testing.T) {
	apart(t, func() error {
		h, err := hold.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		for range 2 {
			if err := h.Set(set("192.0.2.7")); err != nil {
				return err
			}
			out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "192.0.2.7") {
				return fmt.Errorf("the kernel answers for the address itself: the rules are %s (%w)", out, err)
			}
			if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
		}
		return nil
	})
}

// TestNoTableCanBeMade has the table be another program's, which the kernel lets nobody else
// change: what the node is to have no more it has no more, and
// it gets nothing that it would answer for itself.
func TestNoTableCanBeMade(t *testing.T) {
	apart(t, func() error {
		h, err := hold.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		if err := h.Set(set("192.0.2.7", "192.0.2.8")); err != nil {
			return err
		}
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		other := exec.Command("nft", "--interactive")
		in, err := other.StdinPipe()
		if err == nil {
			err = other.Start()
		}
		if err != nil {
			return err
		}
		defer other.Wait()
		defer in.Close()
		fmt.Fprintf(in, "add table arp %s { flags owner; }\n", hold.Table)
		await.NoError(t, time.Minute, "the table is another program's", func() error {
			out, err := exec.Command("nft", "list", "tables").CombinedOutput()
			if err == nil && !strings.Contains(string(out), hold.Table) {
				err = fmt.Errorf("there are %s", out)
			}
			return err
		})
		if err := h.Set(set("192.0.2.8", "192.0.2.9")); err == nil || !strings.Contains(err.Error(), "keep the kernel from answering") {
			return fmt.Errorf("no table can be made, and it says %w", err)
		}
		if held, err := h.Held(); err != nil || !maps.Equal(held, set("192.0.2.8")) {
			return fmt.Errorf("the node has %v (%w)", held, err)
		}
		return nil
	})
}

func TestManyAddresses(t *testing.T) {
	apart(t, func() error {
		h, err := hold.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		many := make(map[netip.Addr]bool)
		for i := range 1200 {
			many[netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})] = true
		}
		for _, wanted := range []map[netip.Addr]bool{many, {}} {
			if err := h.Set(wanted); err != nil {
				return err
			}
			if held, err := h.Held(); err != nil || !maps.Equal(held, wanted) {
				return fmt.Errorf("it has %d, want %d (%w)", len(held), len(wanted), err)
			}
		}
		return nil
	})
}
