package keeper

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// receiveBuffer is how much of the kernel's memory queries may take that wait to be read,
	// in bytes for each address. The kernel takes twice of it, and counts some 800 bytes for a
	// query: so some 2,500 wait, those of a tenth of a second on a busy node. In a container that
	// has no right to more than the node's limit (net.core.rmem_max), which is 208 KiB most often,
	// some 500 do, as many as come while a server is started again where 5,000 are asked in a
	// second. The right for more is that to change all of the node's network; whether it would
	// have been of use says the server's metric weft_dns_unread_total.
	receiveBuffer = 1 << 20
	// backlog is how many connections may wait to be accepted.
	backlog = 512
)

// pair are the sockets of one address.
type pair struct {
	udp, tcp int
	at       netip.AddrPort
}

func (p pair) close() { closeAll([]int{p.udp, p.tcp}) }

// listen opens the sockets of an address at a port; at port 0 the kernel chooses one. The
// address need not be on an interface of the node.
func listen(a netip.Addr, port uint16) (p pair, err error) {
	if a.Zone() != "" {
		return pair{}, fmt.Errorf("listen at %s: an address of one link alone is none of a cluster", a)
	}
	p = pair{udp: -1, tcp: -1, at: netip.AddrPortFrom(a, port)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen at %s: %w", p.at, err)
			p.close()
			p = pair{}
		}
	}()
	// Where the kernel chooses, the port that it chose for one may be taken for the other.
	for try := 0; ; try++ {
		if p.udp, err = open(p.at, unix.SOCK_DGRAM); err != nil {
			return p, err
		}
		at, err := localOf(p.udp)
		if err != nil {
			return p, err
		}
		p.tcp, err = open(at, unix.SOCK_STREAM)
		if err == nil {
			p.at = at
			return p, nil
		}
		if port != 0 || try == 10 {
			return p, err
		}
		unix.Close(p.udp)
		p.udp = -1
	}
}

func open(at netip.AddrPort, kind int) (int, error) {
	family, level, freebind := unix.AF_INET, unix.IPPROTO_IP, unix.IP_FREEBIND
	if at.Addr().Is6() {
		family, level, freebind = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	set := func(level, option, value int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, option, value))
		}
	}
	// Whether the agent has made the address the node's own already does not matter.
	set(level, freebind, 1)
	if family == unix.AF_INET6 {
		set(level, unix.IPV6_V6ONLY, 1)
	}
	if kind == unix.SOCK_STREAM {
		// Connections that have just ended are no reason not to listen. For UDP the same
		// option would let others listen at the same address, and get the queries.
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	} else if err == nil {
		err = makeRoom(fd)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(at)))
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// makeRoom gives a socket as much room for queries that wait to be read as it may have now.
func makeRoom(udp int) error {
	if unix.SetsockoptInt(udp, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) == nil {
		return nil
	}
	// Without the right for it the system's limit holds.
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(udp, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer))
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// localOf returns where a socket is bound.
func localOf(fd int) (netip.AddrPort, error) {
	sa, err := unix.Getsockname(fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, os.NewSyscallError("getsockname", err)
}
