package podlink

import (
	"bytes"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Restore gives the host end of the interface that s describes back what others may have
// changed, and returns its index: its name, its MAC address, to which the pod sends everything,
// and what an interface loses that is moved to another network namespace. It is not for the
// MTU, which both ends have, nor for what the alias says and whether it is up. The error
// wraps ENODEV where there is none.
func Restore(s Spec) (index int, err error) {
	if err := s.validate(); err != nil {
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
		if a := link.Attrs(); !s.HostMAC.IsZero() && !bytes.Equal(a.HardwareAddr, s.HostMAC[:]) {
			if err := h.LinkSetHardwareAddr(link, s.HostMAC[:]); err != nil {
				return fmt.Errorf("set the MAC address %s of %s, which has %s: %w", s.HostMAC, a.Name, a.HardwareAddr, err)
			}
		}
		index = link.Attrs().Index
		return s.setUpHop(h, link)
	})
	if err != nil {
		return 0, fmt.Errorf("put %s right: %w", s.HostInterface, err)
	}
	return index, nil
}
