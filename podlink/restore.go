package podlink

import (
	"bytes"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Whole reports whether a host end is as Restore leaves it, by what that writes last. Of its
// name it says nothing.
func (s Spec) Whole(end HostEnd) bool {
	return (s.HostMAC.IsZero() || end.MAC == s.HostMAC) && (end.NextHop || !s.hasIPv6())
}

// Restore gives the host end of the interface that s describes back what others may have
// changed, and returns its index: its name, its MAC address, to which the pod sends everything,
// and what an interface loses that is moved to another network namespace. It is not for the
// MTU, which both ends have, nor for what the alias says and whether it is up. Of s it needs
// HostInterface and Addresses, and it gives no MAC address where HostMAC is zero. The error
// wraps ENODEV where there is none.
//
// What Whole goes by is written last, so that whoever is killed before leaves one that is not.
func Restore(s Spec) (index int, err error) {
	if err := s.checkHostName(); err != nil {
		return 0, err
	}
	err = onHost(func(h *netlink.Handle) error {
		link, err := find(h, s.HostInterface)
		switch {
		case err != nil:
			return err
		case link.Type() != "veth":
			return fmt.Errorf("%s is a %s and not a veth: remove it", s.HostInterface, link.Type())
		}
		if err := s.nameBack(h, link); err != nil {
			return err
		}
		index = link.Attrs().Index
		if err := s.setUpHop(h, link); err != nil {
			return err
		}
		if a := link.Attrs(); !s.HostMAC.IsZero() && !bytes.Equal(a.HardwareAddr, s.HostMAC[:]) {
			if err := h.LinkSetHardwareAddr(link, s.HostMAC[:]); err != nil {
				return fmt.Errorf("set the MAC address %s of %s, which has %s: %w", s.HostMAC, a.Name, a.HardwareAddr, err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("put %s right: %w", s.HostInterface, err)
	}
	return index, nil
}
