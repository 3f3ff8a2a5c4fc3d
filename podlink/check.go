package podlink

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
)

// Check says what about the interface is not as s describes it, in one error;
// nil when all is. It changes nothing.
func Check(s Spec) error {
	if err := s.validate(); err != nil {
		return err
	}
	e, err := s.open()
	if err != nil {
		return err
	}
	defer e.close()
	host, link, peer := e.host, e.link, e.peer
	var wrong []string
	if name := link.Attrs().Name; name != s.HostInterface {
		wrong = append(wrong, fmt.Sprintf("the node's interface is called %s and not %s", name, s.HostInterface))
	}
	if peer.Attrs().Name != s.Interface {
		wrong = append(wrong, fmt.Sprintf("the pod's interface is called %s and not %s", peer.Attrs().Name, s.Interface))
	}
	wrong = append(wrong, s.compareEnds(link, peer)...)
	for _, end := range []netlink.Link{link, peer} {
		if end.Attrs().Flags&net.FlagUp == 0 {
			wrong = append(wrong, fmt.Sprintf("%s is down", end.Attrs().Name))
		}
	}
	if s.hasIPv6() {
		addrs, err := host.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return fmt.Errorf("list the addresses of %s: %w", s.HostInterface, err)
		}
		if !holds(addrs, LinkLocalGateway, 64) {
			wrong = append(wrong, fmt.Sprintf("%s lacks the address %s/64", s.HostInterface, LinkLocalGateway))
		}
	}
	err = netns.Visit(s.nsPath(e.ns), func() error {
		pod, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer pod.Close()
		more, err := s.comparePod(pod, peer)
		wrong = append(wrong, more...)
		return err
	})
	if err != nil {
		return err
	}
	return join(wrong)
}

func (s Spec) comparePod(h *netlink.Handle, link netlink.Link) ([]string, error) {
	var wrong []string
	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", s.Interface, err)
	}
	for _, a := range s.Addresses {
		if !holds(addrs, a, a.BitLen()) {
			wrong = append(wrong, fmt.Sprintf("%s lacks the address %s/%d", s.Interface, a, a.BitLen()))
		}
	}
	for _, gw := range s.Gateways {
		neighs, err := h.NeighList(link.Attrs().Index, family(gw))
		if err != nil {
			return nil, fmt.Errorf("list the neighbours on %s: %w", s.Interface, err)
		}
		found := false
		for _, n := range neighs {
			found = found || n.IP.Equal(gw.AsSlice()) && n.State&netlink.NUD_PERMANENT != 0 && bytes.Equal(n.HardwareAddr, s.HostMAC[:])
		}
		if !found {
			wrong = append(wrong, fmt.Sprintf("the pod lacks the permanent neighbour %s at %s", gw, s.HostMAC))
		}
	}
	for _, r := range s.routes(link) {
		there, err := r.exists(h)
		if err != nil {
			return nil, err
		}
		if !there {
			wrong = append(wrong, fmt.Sprintf("the pod lacks the %s on %s", r, s.Interface))
		}
	}
	return wrong, nil
}

func holds(addrs []netlink.Addr, a netip.Addr, bits int) bool {
	for _, have := range addrs {
		if ones, _ := have.Mask.Size(); have.IP.Equal(a.AsSlice()) && ones == bits {
			return true
		}
	}
	return false
}

// compareEnds says which of the properties that a pair is made with differ.
func (s Spec) compareEnds(host, pod netlink.Link) []string {
	var wrong []string
	for _, end := range []struct {
		link netlink.Link
		mac  plan.MAC
	}{{host, s.HostMAC}, {pod, s.MAC}} {
		a := end.link.Attrs()
		if !end.mac.IsZero() && !bytes.Equal(a.HardwareAddr, end.mac[:]) {
			wrong = append(wrong, fmt.Sprintf("%s has the MAC address %s and not %s", a.Name, a.HardwareAddr, end.mac))
		}
		if s.MTU != 0 && a.MTU != s.MTU {
			wrong = append(wrong, fmt.Sprintf("%s has the MTU %d and not %d", a.Name, a.MTU, s.MTU))
		}
	}
	return wrong
}
