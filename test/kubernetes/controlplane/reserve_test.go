package controlplane

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAReservedPortIsItsComponentsAlone checks that nobody who looks for a port finds one free that is reserved, and that a program
// which is told that port can listen there.
func TestAReservedPortIsItsComponentsAlone(t *testing.T) {
	for _, at := range []netip.Addr{loopback, netip.IPv6Loopback()} {
		one, err := reserve(at)
		if err != nil {
			t.Fatal(err)
		}
		defer reservations{one}.close()
		other, err := unix.Socket(map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[at.Is4()], unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(other)
		if err := bindTo(other, netip.AddrPortFrom(at, one.port)); err != unix.EADDRINUSE {
			t.Errorf("port %d of %s is reserved, and for another there is: %v", one.port, at, err)
		}
		l, err := net.Listen("tcp", netip.AddrPortFrom(at, one.port).String())
		if err != nil {
			t.Errorf("the component that has the port cannot listen: %v", err)
			continue
		}
		l.Close()
	}
	if _, err := reserve(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("a port of an address that there is not is reserved")
	}
}
