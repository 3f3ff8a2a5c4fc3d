package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// reservation keeps a port for a component that listens there later, so that no other control plane finds it free
// meanwhile, also one of another process. It is a socket that is bound and does not listen: with SO_REUSEADDR, which
// Go's listeners have as well, the component can be bound beside it.
type reservation struct {
	port   uint16
	socket int
}

type reservations []reservation

func (all reservations) close() {
	for _, one := range all {
		unix.Close(one.socket)
	}
}

// reserve finds a free port at an address, and keeps it. It is one that the kernel does not give to connections, so that none
// takes it while its component is away.
func reserve(at netip.Addr) (one reservation, err error) {
	family := unix.AF_INET6
	if at.Is4() {
		family = unix.AF_INET
	}
	if one.socket, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return one, fmt.Errorf("reserve a port on %s: %w", at, err)
	}
	for range 100 {
		one.port = uint16(20000 + rand.IntN(10000))
		// Without SO_REUSEADDR the kernel refuses where any other socket is bound.
		if err = bindTo(one.socket, netip.AddrPortFrom(at, one.port)); err == nil {
			err = unix.SetsockoptInt(one.socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		unix.Close(one.socket)
		return reservation{}, fmt.Errorf("reserve a port on %s: %w", at, err)
	}
	return one, nil
}

func bindTo(socket int, at netip.AddrPort) error {
	if at.Addr().Is4() {
		return unix.Bind(socket, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	}
	return unix.Bind(socket, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
}
