package podlink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/internal/netns"
)

// Resize gives both ends of the interface that s describes the MTU of s. At no
// time does one end send what the other would drop: the pod's end shrinks
// first and grows last.
func Resize(s Spec) error {
	e, err := s.open()
	if err != nil {
		return err
	}
	defer e.close()
	resize := func(l netlink.Link, set func(netlink.Link, int) error) error {
		if l.Attrs().MTU == s.MTU {
			return nil
		}
		if err := set(l, s.MTU); err != nil {
			return fmt.Errorf("set the MTU %d of %s: %w", s.MTU, l.Attrs().Name, err)
		}
		return nil
	}
	node := func() error { return resize(e.link, e.host.LinkSetMTU) }
	pod := func() error {
		return netns.Visit(s.nsPath(e.ns), func() error { return resize(e.peer, netlink.LinkSetMTU) })
	}
	if s.MTU < e.peer.Attrs().MTU {
		return errors.Join(pod(), node())
	}
	return errors.Join(node(), pod())
}
