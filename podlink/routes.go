package podlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is a route of a pod through one of its interfaces.
type route struct {
	link netlink.Link
	to   netip.Prefix
	via  netip.Addr
}

// routes returns those of the pod through link, which validate has found to have a
// gateway each.
func (s Spec) routes(link netlink.Link) []route {
	var all []route
	for _, d := range s.Destinations {
		via, _ := s.nextHop(d)
		all = append(all, route{link, d.Masked(), via})
	}
	return all
}

// String names the route, as "default route via 10.1.0.1".
func (r route) String() string {
	return fmt.Sprintf("%s via %s", r.what(), r.via)
}

func (r route) what() string {
	if r.to.Bits() == 0 {
		return "default route"
	}
	return "route to " + r.to.String()
}

// add adds the route, and never takes the place of one that is the work of somebody
// else.
func (r route) add(h *netlink.Handle) error {
	err := h.RouteAdd(r.kernel())
	if !errors.Is(err, unix.EEXIST) {
		if err != nil {
			return fmt.Errorf("add the %s: %w", r, err)
		}
		return nil
	}
	there, err := r.exists(h)
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("add the %s: the pod has another %s", r, r.what())
	}
	return nil
}

// kernel is the route as netlink has it.
func (r route) kernel() *netlink.Route {
	bits := r.to.Addr().BitLen()
	k := &netlink.Route{LinkIndex: r.link.Attrs().Index, Family: family(r.via), Gw: r.via.AsSlice(),
		Dst: &net.IPNet{IP: r.to.Addr().AsSlice(), Mask: net.CIDRMask(r.to.Bits(), bits)}}
	if r.via.Is4() {
		k.Flags = int(netlink.FLAG_ONLINK)
	}
	return k
}

// exists reports whether the pod has the route.
func (r route) exists(h *netlink.Handle) (bool, error) {
	routes, err := h.RouteListFiltered(family(r.via), &netlink.Route{LinkIndex: r.link.Attrs().Index}, netlink.RT_FILTER_OIF)
	if err != nil {
		return false, fmt.Errorf("list the pod's routes: %w", err)
	}
	for _, have := range routes {
		if prefixOf(have.Dst, r.to.Addr()) == r.to && have.Gw.Equal(r.via.AsSlice()) {
			return true, nil
		}
	}
	return false, nil
}

// prefixOf returns the destination of a kernel's route as a prefix. None is that of
// the default route, of the family of example.
func prefixOf(n *net.IPNet, example netip.Addr) netip.Prefix {
	if n == nil {
		everything, _ := example.Prefix(0)
		return everything
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	if example.Is4() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones)
}
