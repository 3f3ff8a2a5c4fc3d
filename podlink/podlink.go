// Package podlink makes, checks and removes the interface of a pod: a veth
// pair with one end in the pod's network namespace and the other on the node.
//
// The pod is a host of its own, one hop away: its end has the pod's address
// with the full prefix length, routes through the host end, and the host end's
// MAC address as a permanent neighbour, so that neither ARP nor neighbour
// discovery ever decides what a pod reaches. One of a pod's interfaces has the
// default route; each of the others leads to what is in its own network. All host
// ends of a node and network have the same MAC address. What is beyond the host
// end, a data plane decides.
//
// The host end is Weft's by its name, and its alias says whose it is and which
// addresses the pod has in which network, so that what the node's memory may have
// lost can be read back from the kernel. Where somebody has changed names, the alias is
// what counts. Start reading at Spec and Ensure.
package podlink

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// ErrNameTaken is wrapped by the error of Ensure when the pod has an interface
// of the wanted name that is not Weft's. Nothing is changed then.
var ErrNameTaken = errors.New("the pod's network namespace has an interface of this name already")

// addrGenNone keeps the kernel from making link-local addresses
// (IN6_ADDR_GEN_MODE_NONE in linux/if_link.h).
const addrGenNone = 1

// Ensure makes the interface that s describes, or what is missing of it, and
// returns the index of its host end. What it made before an error stays until
// Remove. One to which somebody gave another name gets its own back.
//
// The host end of a new interface is down: it is for a data plane to bring it
// up, when all rules about the pod hold. Until then nothing that runs in the
// pod's namespace can send or be reached. Await tells when it can.
func Ensure(s Spec) (index int, err error) {
	if err := s.validate(); err != nil {
		return 0, err
	}
	if s.HostMAC.IsZero() {
		return 0, errors.New("a pod's interface needs a MAC address for its host end")
	}
	ns, err := os.Open(s.NetNS)
	if err != nil {
		return 0, fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer ns.Close()
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()

	link, err := s.create(host, ns)
	if err != nil {
		return 0, err
	}
	if err := s.setUpHost(host, link); err != nil {
		return 0, fmt.Errorf("set up %s: %w", s.HostInterface, err)
	}
	err = netns.Visit(s.nsPath(ns), func() error {
		pod, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer pod.Close()
		return s.setUpPod(pod)
	})
	if err != nil {
		return 0, fmt.Errorf("set up %s in %s: %w", s.Interface, s.NetNS, err)
	}
	return link.Attrs().Index, nil
}

// Await returns when the interface that s describes, of which both ends are
// up, sends and receives at both.
func Await(s Spec) error {
	ns, err := os.Open(s.NetNS)
	if err != nil {
		return fmt.Errorf("open the pod's network namespace: %w", err)
	}
	defer ns.Close()
	ready := func(name string) func() error {
		return func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return fmt.Errorf("open netlink: %w", err)
			}
			defer h.Close()
			if err := settle(h, name); err != nil {
				return fmt.Errorf("wait for %s: %w", name, err)
			}
			return nil
		}
	}
	if err := ready(s.HostInterface)(); err != nil {
		return err
	}
	return netns.Visit(s.nsPath(ns), ready(s.Interface))
}

// nsPath names the namespace that is open already, whatever becomes of the
// path by which it was found.
func (s Spec) nsPath(ns *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", ns.Fd()) }

// create makes the pair unless it is there as it should be, and returns its host end.
func (s Spec) create(host *netlink.Handle, ns *os.File) (netlink.Link, error) {
	veth := &netlink.Veth{
		LinkAttrs:        netlink.NewLinkAttrs(),
		PeerName:         s.Interface,
		PeerTxQLen:       -1,
		PeerHardwareAddr: s.MAC[:],
		PeerNamespace:    netlink.NsFd(ns.Fd()),
	}
	veth.Name, veth.HardwareAddr, veth.MTU = s.HostInterface, s.HostMAC[:], s.MTU
	add := func() (netlink.Link, error) {
		err := host.LinkAdd(veth)
		if err == nil && veth.Index == 0 { // LinkAdd has asked for it
			err = errors.New("it is gone again")
		}
		if err != nil {
			return nil, fmt.Errorf("make the veth pair %s and %s: %w", s.HostInterface, s.Interface, err)
		}
		return veth, nil
	}
	made, err := add()
	if !errors.Is(err, unix.EEXIST) {
		return made, err
	}
	// One of the two names is taken.
	old, err := find(host, s.HostInterface)
	if named, failure := host.LinkByName(s.HostInterface); isGone(err) && failure == nil {
		old, err = named, nil
	}
	switch {
	case isGone(err):
		return nil, fmt.Errorf("interface %s in %s: %w", s.Interface, s.NetNS, ErrNameTaken)
	case err != nil:
		return nil, err
	}
	if stamp, err := ParseStamp(old.Attrs().Alias); err == nil && (stamp.ContainerID != s.ContainerID || stamp.Interface != s.Interface) {
		return nil, fmt.Errorf("%s belongs to interface %s of container %s", s.HostInterface, stamp.Interface, stamp.ContainerID)
	}
	if err := s.nameBack(host, old); err != nil {
		return nil, err
	}
	same, err := s.isPair(host, old, ns)
	if err != nil || same {
		return old, err
	}
	// A pair that leads elsewhere or has other properties is made anew,
	// unless the name in the pod would still be taken then.
	if err := s.nameFree(host, old, ns); err != nil {
		return nil, err
	}
	if err := host.LinkDel(old); err != nil && !isGone(err) {
		return nil, fmt.Errorf("remove the half-made %s: %w", s.HostInterface, err)
	}
	return add()
}

// nameBack gives the host end its name, where somebody gave it another. One that another
// pod's interface has is free once a data plane has given that its own.
func (s Spec) nameBack(host *netlink.Handle, l netlink.Link) error {
	called := l.Attrs().Name
	if called == s.HostInterface {
		return nil
	}
	err := Rename(host, l, s.HostInterface)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if holder, failure := host.LinkByName(s.HostInterface); failure == nil && Belongs(holder) != "" && Belongs(holder) != s.HostInterface {
		return fmt.Errorf("%s is called %s now, and %s has its name: try again once they have their own", s.HostInterface, called, Belongs(holder))
	}
	return fmt.Errorf("%s is called %s now, as another's interface has its name: delete that (ip link del %[1]s), or give it another name", s.HostInterface, called)
}

// isPair reports whether old and the pod's interface are the wanted pair.
func (s Spec) isPair(host *netlink.Handle, old netlink.Link, ns *os.File) (bool, error) {
	peer, err := s.peer(host, old, ns)
	if err != nil || peer == nil {
		return false, err
	}
	return peer.Attrs().Name == s.Interface && len(s.compareEnds(old, peer)) == 0, nil
}

// nameFree says when the name of the pod's end is taken by something other
// than old's peer.
func (s Spec) nameFree(host *netlink.Handle, old netlink.Link, ns *os.File) error {
	peer, err := s.peer(host, old, ns)
	if err != nil {
		return err
	}
	return netns.Visit(s.nsPath(ns), func() error {
		link, err := netlink.LinkByName(s.Interface)
		switch {
		case isGone(err):
			return nil
		case err != nil:
			return fmt.Errorf("find %s in %s: %w", s.Interface, s.NetNS, err)
		case peer != nil && peer.Attrs().Index == link.Attrs().Index:
			return nil
		}
		return fmt.Errorf("interface %s in %s: %w", s.Interface, s.NetNS, ErrNameTaken)
	})
}

// peer returns the other end of old if it is in the pod's namespace, or nil.
func (s Spec) peer(host *netlink.Handle, old netlink.Link, ns *os.File) (netlink.Link, error) {
	if old.Type() != "veth" {
		return nil, fmt.Errorf("%s is a %s and not a veth: remove it", s.HostInterface, old.Type())
	}
	id, err := host.GetNetNsIdByFd(int(ns.Fd()))
	if err != nil {
		return nil, fmt.Errorf("find the identifier of %s: %w", s.NetNS, err)
	}
	if id < 0 || id != old.Attrs().NetNsID {
		return nil, nil
	}
	var peer netlink.Link
	err = netns.Visit(s.nsPath(ns), func() error {
		peer, err = netlink.LinkByIndex(old.Attrs().ParentIndex)
		if isGone(err) {
			return nil
		}
		return err
	})
	return peer, err
}

func (s Spec) setUpHost(h *netlink.Handle, link netlink.Link) error {
	if alias := s.stamp().String(); link.Attrs().Alias != alias {
		if err := h.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("set the alias %q: %w", alias, err)
		}
	}
	return s.setUpHop(h, link)
}

// setUpHop has the host end be what the pod takes for its next hop. The address comes last:
// that it is there says that the rest is.
func (s Spec) setUpHop(h *netlink.Handle, link netlink.Link) error {
	if err := mergePackets(s.HostInterface); err != nil {
		// The pod is only slower without it.
		slog.Debug("a pod's packets are routed one by one", "interface", s.HostInterface, "error", err)
	}
	if s.hasIPv6() {
		if err := h.LinkSetIP6AddrGenMode(link, addrGenNone); err != nil {
			return fmt.Errorf("keep the kernel from making IPv6 addresses: %w", err)
		}
		for _, set := range [][2]string{{"accept_ra", "0"}, {"disable_ipv6", "0"}} {
			if err := sysctl.Ensure("ipv6/conf/"+s.HostInterface+"/"+set[0], set[1]); err != nil {
				return err
			}
		}
		return addAddr(h, link, LinkLocalGateway, 64)
	}
	return nil
}

func (s Spec) setUpPod(h *netlink.Handle) error {
	// Each namespace has its loopback interface as the first.
	if err := h.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	link, err := h.LinkByName(s.Interface)
	if err != nil {
		return err
	}
	if s.hasIPv6() {
		for _, set := range [][2]string{{"disable_ipv6", "0"}, {"accept_ra", "0"}, {"accept_dad", "0"}} {
			if err := sysctl.Ensure("ipv6/conf/"+s.Interface+"/"+set[0], set[1]); err != nil {
				return err
			}
		}
	}
	for _, a := range s.Addresses {
		if err := addAddr(h, link, a, a.BitLen()); err != nil {
			return err
		}
	}
	if err := setUp(h, link); err != nil {
		return err
	}
	for _, gw := range s.Gateways {
		neigh := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: family(gw), State: netlink.NUD_PERMANENT,
			IP: gw.AsSlice(), HardwareAddr: s.HostMAC[:]}
		if err := h.NeighSet(neigh); err != nil {
			return fmt.Errorf("make %s a permanent neighbour: %w", gw, err)
		}
	}
	for _, r := range s.routes(link) {
		if err := r.add(h); err != nil {
			return err
		}
	}
	return nil
}

func setUp(h *netlink.Handle, link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	return h.LinkSetUp(link)
}

// settle waits until an interface that is up also sends. The kernel finds out
// that there is a carrier some time after both ends are up, and drops what is
// sent until then; since Linux 6.8, asking for the state makes it do so at
// once.
func settle(h *netlink.Handle, name string) error {
	const patience = 3 * time.Second
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("it has no carrier after %v, its state is %v", patience, link.Attrs().OperState)
		}
	}
}

// addAddr gives an interface an address with this prefix length. An interface has an IPv6
// address once, and the kernel changes no length: one of another length goes first.
func addAddr(h *netlink.Handle, link netlink.Link, a netip.Addr, bits int) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	err := h.AddrAdd(link, addr)
	if errors.Is(err, unix.EEXIST) {
		have, listed := addresses(h, link, family(a))
		if listed != nil || holds(have, a, bits) {
			return listed
		}
		for _, other := range have {
			if !other.IP.Equal(a.AsSlice()) {
				continue
			}
			if err := h.AddrDel(link, &other); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("take away the address %s, which is to be %s/%d: %w", other.IPNet, a, bits, err)
			}
		}
		err = h.AddrAdd(link, addr)
	}
	if err != nil {
		return fmt.Errorf("add the address %s/%d: %w", a, bits, err)
	}
	return nil
}

// addresses returns those of an interface, or of all where it is nil.
func addresses(h *netlink.Handle, link netlink.Link, family int) ([]netlink.Addr, error) {
	for {
		addrs, err := h.AddrList(link, family)
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			continue
		case err != nil:
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		return addrs, nil
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// Remove removes a pod's interface by the name of its host end, also where somebody has
// given it another. It succeeds when the interface is gone already, and refuses what is
// not Weft's. index is that of the host end, 0 where it is not known: then all of the node's
// interfaces are read, which takes some milliseconds where there are hundreds.
func Remove(hostInterface string, index int) error {
	if !IsHostName(hostInterface) {
		return fmt.Errorf("%q is not the name of a pod's interface", hostInterface)
	}
	return onHost(func(h *netlink.Handle) error {
		link, err := known(h, hostInterface, index)
		switch {
		case isGone(err):
			return nil
		case err != nil:
			return err
		case link.Type() != "veth":
			return fmt.Errorf("%s is a %s and not a veth: remove it by hand", hostInterface, link.Type())
		}
		if err := h.LinkDel(link); err != nil && !isGone(err) {
			return fmt.Errorf("remove %s: %w", hostInterface, err)
		}
		return nil
	})
}

// known is find for a host end of which the index may be known.
func known(h *netlink.Handle, name string, index int) (netlink.Link, error) {
	if index != 0 {
		if l, err := h.LinkByIndex(index); err == nil && Belongs(l) == name {
			return l, nil
		}
	}
	return find(h, name)
}

// Exists reports whether the node has the host end of this name, whatever it is called
// now.
func Exists(hostInterface string) (there bool, err error) {
	err = onHost(func(h *netlink.Handle) error {
		_, err := find(h, hostInterface)
		there = err == nil
		if isGone(err) {
			return nil
		}
		return err
	})
	return there, err
}

// onHost calls f with what speaks with the node's kernel.
func onHost(f func(*netlink.Handle) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return f(h)
}

// HostEnd is a host end found on the node.
type HostEnd struct {
	// Name is the one that it was made with, whatever it is called now.
	Name  string
	Index int
	MTU   int
	MAC   plan.MAC
	// NextHop says that it has the address LinkLocalGateway, with the length 64. It loses that where it is moved
	// to another network namespace, where it is set down, and where IPv6 is turned off for it.
	NextHop bool
	// Alias is what ParseStamp reads; it is empty in a half-made one.
	Alias string
}

// List returns the host ends on the node, each by what its alias says. One whose alias
// says nothing is there by its name, if that is no other's.
func List() (ends []HostEnd, err error) {
	err = onHost(func(h *netlink.Handle) error {
		links, err := list(h)
		if err != nil {
			return err
		}
		hops, err := nextHops(h)
		if err != nil {
			return err
		}
		own, _ := Owners(links, Belongs, Claim)
		for _, link := range links {
			a, name := link.Attrs(), Belongs(link)
			if name == "" && link.Type() == "veth" && IsHostName(a.Name) && own[a.Name] == nil {
				name, own[a.Name] = a.Name, link
			}
			if name == "" || own[name] != link || len(a.HardwareAddr) != 6 {
				continue
			}
			ends = append(ends, HostEnd{Name: name, Index: a.Index, MTU: a.MTU, MAC: plan.MAC(a.HardwareAddr), NextHop: hops[a.Index], Alias: a.Alias})
		}
		return nil
	})
	return ends, err
}

// nextHops returns the indexes of the interfaces that have the address LinkLocalGateway.
func nextHops(h *netlink.Handle) (map[int]bool, error) {
	addrs, err := addresses(h, nil, netlink.FAMILY_V6)
	if err != nil {
		return nil, err
	}
	hops := map[int]bool{}
	for _, a := range addrs {
		if holds([]netlink.Addr{a}, LinkLocalGateway, 64) {
			hops[a.LinkIndex] = true
		}
	}
	return hops, nil
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, syscall.ENODEV)
}

// join makes one error of what is wrong, or nil.
func join(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}
