package link

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/announce/wire"
)

// groups are the solicited-node groups of the IPv6 addresses that a node answers for, or asks for, to hear who else
// does (RFC 4862, section 5.4.2). The kernel tells switches of them (MLD, RFC 3810), which else might not forward questions, and
// has the interface take what is sent to them.
type groups struct {
	// sockets are what groups are joined by. What one may join the kernel bounds by memory, to
	// some three hundred (net.core.optmem_max).
	sockets []int
	// joined is by which socket each was.
	joined map[netip.Addr]int
}

// manySockets is how many sockets there are, and so for how many groups: some 5,000 with 20 KiB,
// which is the least that kernels are delivered with.
const manySockets = 16

// open opens the sockets, in the network namespace that the caller is in.
func (g *groups) open() error {
	g.joined = make(map[netip.Addr]int)
	for range manySockets {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			return nil // the kernel has no IPv6, and so has the link
		}
		if err != nil {
			return err
		}
		g.sockets = append(g.sockets, fd)
	}
	return nil
}

func (g *groups) close() {
	for _, fd := range g.sockets {
		unix.Close(fd)
	}
	g.sockets = nil
}

// set joins the groups of some addresses and leaves all others. Unable are those of the addresses
// whose groups the node cannot be in, and for which it so may not be asked.
func (g *groups) set(addresses map[netip.Addr]bool, index int) (unable map[netip.Addr]error, err error) {
	wanted := make(map[netip.Addr][]netip.Addr)
	for a := range addresses {
		if a.Is6() {
			group := wire.SolicitedNode(a)
			wanted[group] = append(wanted[group], a)
		}
	}
	var errs []error
	for group, fd := range g.joined {
		if wanted[group] == nil {
			if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_DROP_MEMBERSHIP, request(group, index)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("leave the group %s: %w", group, err))
				continue
			}
			delete(g.joined, group)
		}
	}
	unable = make(map[netip.Addr]error)
	for group, of := range wanted {
		if _, is := g.joined[group]; is {
			continue
		}
		err := g.join(group, index)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
			err = fmt.Errorf("it cannot be in more groups of IPv6, without which it may not be asked: give it a higher net.core.optmem_max, or have other nodes answer for some addresses (%w)", err)
		} else {
			err = fmt.Errorf("it cannot be in the groups of IPv6, without which it may not be asked (%w)", err)
		}
		for _, a := range of {
			unable[a] = err
		}
	}
	return unable, errors.Join(errs...)
}

// join joins a group by the first socket that has room for it.
func (g *groups) join(group netip.Addr, index int) error {
	err := error(unix.EAFNOSUPPORT)
	for _, fd := range g.sockets {
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_ADD_MEMBERSHIP, request(group, index))
		if err == nil || errors.Is(err, unix.EADDRINUSE) {
			g.joined[group] = fd
			return nil
		}
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) {
			break
		}
	}
	return err
}

func request(group netip.Addr, index int) *unix.IPv6Mreq {
	return &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)}
}
