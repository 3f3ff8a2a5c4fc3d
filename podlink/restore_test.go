package podlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// strange is a MAC address that no interface of a pod is given.
var strange = plan.MAC{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}

// there returns the only host end of the node.
func there() (HostEnd, error) {
	ends, err := List()
	if err != nil || len(ends) != 1 {
		return HostEnd{}, fmt.Errorf("the host ends are %v, %w", ends, err)
	}
	return ends[0], nil
}

// goAndComeBack moves an interface to another network namespace, and back.
func goAndComeBack(t *testing.T, link netlink.Link) error {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	elsewhere := newNetNS(t)
	ns, err := os.Open(elsewhere)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := netlink.LinkSetNsFd(link, int(ns.Fd())); err != nil {
		return err
	}
	return netns.Do(elsewhere, func() error { return netlink.LinkSetNsFd(link, int(home.Fd())) })
}

// changes are what others may do to a host end.
var changes = map[string]func(*testing.T, netlink.Link) error{
	"its MAC address":  func(_ *testing.T, l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, strange[:]) },
	"it was elsewhere": func(t *testing.T, l netlink.Link) error { return goAndComeBack(t, l) },
	"it was elsewhere, and has another MAC address": func(t *testing.T, l netlink.Link) error {
		return errors.Join(goAndComeBack(t, l), netlink.LinkSetHardwareAddr(l, strange[:]))
	},
	"it had no IPv6 for a while": func(_ *testing.T, l netlink.Link) error {
		setting := "ipv6/conf/" + l.Attrs().Name + "/disable_ipv6"
		return errors.Join(sysctl.Set(setting, "1"), sysctl.Set(setting, "0"))
	},
	"it was down": func(_ *testing.T, l netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetUp(l))
	},
	"its address": func(_ *testing.T, l netlink.Link) error {
		addr, err := netlink.ParseAddr("fe80::1/64")
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, addr)
	},
	"the length of its address": func(_ *testing.T, l netlink.Link) error { return changeLength(l, "fe80::1/64") },
}

// changeLength gives an interface an address that it has, such as fe80::1/64, with another length.
func changeLength(l netlink.Link, address string) error {
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	other := &netlink.Addr{IPNet: &net.IPNet{IP: addr.IP, Mask: net.CIDRMask(120, 128)}, Flags: unix.IFA_F_NODAD}
	return errors.Join(netlink.AddrDel(l, addr), netlink.AddrAdd(l, other))
}

// TestWhatOthersChangeIsSeenAndPutRight has somebody change a host end. What List says of it
// tells that it is not whole. Restore puts it right, and needs no more for it than what an alias
// says and the MAC address. After that it is whole.
func TestWhatOthersChangeIsSeenAndPutRight(t *testing.T) {
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			s := spec(newNetNS(t))
			in(t, newNetNS(t), func() error {
				if err := ensure(s); err != nil {
					return err
				}
				made, err := there()
				if err != nil || !s.Whole(made) {
					return fmt.Errorf("it is made as %v, %w", made, err)
				}
				link, err := netlink.LinkByName(s.HostInterface)
				if err != nil {
					return err
				}
				if err := change(t, link); err != nil {
					return err
				}
				if changed, err := there(); err != nil || s.Whole(changed) {
					t.Errorf("it is changed, and held to be whole: %v, %v", changed, err)
				}
				known := Spec{HostInterface: s.HostInterface, Addresses: s.Addresses, HostMAC: s.HostMAC}
				if index, err := Restore(known); err != nil || index != made.Index {
					return fmt.Errorf("it is restored as %d, and was %d: %w", index, made.Index, err)
				}
				if restored, err := there(); err != nil || restored != made {
					t.Errorf("it is restored as %v, and was %v; %v", restored, made, err)
				}
				if value, err := sysctl.Get("ipv6/conf/" + s.HostInterface + "/accept_ra"); err != nil || value != "0" {
					t.Errorf("the setting accept_ra is %q, %v", value, err)
				}
				if merges, err := ethtool(s.HostInterface, ethtoolGetGRO, 0); err != nil || merges != 1 {
					t.Errorf("packets are merged: %d, %v", merges, err)
				}
				return errors.Join(ensure(s), Check(s))
			})
		})
	}
}

// TestWhoeverIsStoppedInRestoreLeavesItNotWhole has the kernel refuse the last that Restore
// writes, which is the MAC address. All else is there by then, and that it is not whole is seen.
func TestWhoeverIsStoppedInRestoreLeavesItNotWhole(t *testing.T) {
	s := spec(newNetNS(t))
	in(t, newNetNS(t), func() error {
		if err := ensure(s); err != nil {
			return err
		}
		link, err := netlink.LinkByName(s.HostInterface)
		if err != nil {
			return err
		}
		if err := goAndComeBack(t, link); err != nil {
			return err
		}
		impossible := s
		impossible.HostMAC = plan.MAC{0x01, 0x00, 0x5e, 0x00, 0x00, 0x01} // that of a group
		if _, err := Restore(impossible); err == nil {
			t.Error("the kernel takes the MAC address of a group")
		}
		if end, err := there(); err != nil || !end.NextHop || impossible.Whole(end) {
			t.Errorf("it is %v, %v, and held to be whole: %t", end, err, impossible.Whole(end))
		}
		return nil
	})
}

// TestNothingIsMadeUpOfWhatIsNotKnown restores a host end of which nobody knows the MAC address,
// and one of a pod without IPv6.
func TestNothingIsMadeUpOfWhatIsNotKnown(t *testing.T) {
	s := spec(newNetNS(t))
	in(t, newNetNS(t), func() error {
		s.Addresses, s.Gateways, s.Destinations = []netip.Addr{address4}, s.Gateways[:1], everything[:1]
		if err := ensure(s); err != nil {
			return err
		}
		link, err := netlink.LinkByName(s.HostInterface)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(link, strange[:]); err != nil {
			return err
		}
		known := Spec{HostInterface: s.HostInterface, Addresses: s.Addresses}
		if _, err := Restore(known); err != nil {
			return err
		}
		if end, err := there(); err != nil || end.MAC != strange || end.NextHop || !known.Whole(end) || s.Whole(end) {
			t.Errorf("it is %v, %v", end, err)
		}
		known.HostInterface = "eth0"
		if _, err := Restore(known); err == nil {
			t.Error("it restores what is no pod's")
		}
		return nil
	})
}
