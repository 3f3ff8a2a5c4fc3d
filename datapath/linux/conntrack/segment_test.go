package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSegmentIsReadAsWritten(t *testing.T) {
	for _, s := range []segment{
		{from: netip.MustParseAddrPort("10.1.0.2:80"), to: netip.MustParseAddrPort("10.1.1.3:40000"), seq: 1, ack: 0xfffffffe, flags: tcpACK},
		{from: netip.MustParseAddrPort("[fd01::2]:80"), to: netip.MustParseAddrPort("[fd01:0:0:1::3]:40000"), seq: 7, flags: tcpRST | tcpACK},
	} {
		packet := s.packet()
		if got, ok := readSegment(packet); !ok || got != s {
			t.Errorf("got %v, %t, want %v", got, ok, s)
		}
		// A right checksum makes the sum of all nothing.
		header := ipv6Header
		if s.from.Addr().Is4() {
			header = ipv4Header
			if sum := checksum(packet[:header]); sum != 0 {
				t.Errorf("the header of %v has a wrong checksum", s)
			}
		}
		if sum := checksum(pseudoHeader(s.from.Addr(), s.to.Addr(), unix.IPPROTO_TCP, tcpHeader), packet[header:]); sum != 0 {
			t.Errorf("%v has a wrong checksum", s)
		}
	}
}

func TestWhatIsNoSegment(t *testing.T) {
	v4 := segment{from: netip.MustParseAddrPort("10.1.0.2:80"), to: netip.MustParseAddrPort("10.1.1.3:40000")}.packet()
	v6 := segment{from: netip.MustParseAddrPort("[fd01::2]:80"), to: netip.MustParseAddrPort("[fd01::3]:40000")}.packet()
	with := func(packet []byte, at int, b byte) []byte {
		packet = slices.Clone(packet)
		packet[at] = b
		return packet
	}
	for name, packet := range map[string][]byte{
		"nothing":                    nil,
		"another version":            with(v4, 0, 0x55),
		"an IPv4 header too short":   with(v4, 0, 0x44),
		"an IPv4 header too long":    with(v4, 0, 0x4f),
		"a first fragment":           with(v4, 6, 0x20),
		"a later fragment":           with(v4, 7, 1),
		"more than there is of IPv4": with(v4, 3, 200),
		"more than there is of IPv6": with(v6, 5, 200),
		"UDP over IPv4":              with(v4, 9, unix.IPPROTO_UDP),
		"an extension header":        with(v6, 6, 0),
		"a TCP header too short":     with(v4, ipv4Header+12, 0x40),
		"a TCP header too long":      with(v6, ipv6Header+12, 0xf0),
		"a cut one":                  v4[:ipv4Header+tcpHeader-1],
	} {
		if s, ok := readSegment(packet); ok {
			t.Errorf("%s reads as %v", name, s)
		}
	}
}

func FuzzReadSegment(f *testing.F) {
	f.Add(segment{from: netip.MustParseAddrPort("10.1.0.2:80"), to: netip.MustParseAddrPort("10.1.1.3:40000"), flags: tcpACK}.packet())
	f.Add(segment{from: netip.MustParseAddrPort("[fd01::2]:80"), to: netip.MustParseAddrPort("[fd01::3]:40000"), flags: tcpACK}.packet())
	f.Fuzz(func(t *testing.T, packet []byte) {
		s, ok := readSegment(packet)
		if ok && (s.length < 0 || s.from.Addr().Is4() != s.to.Addr().Is4()) {
			t.Errorf("%x reads as %v", packet, s)
		}
	})
}

// The error is read by the kernel of who sent the datagram, which compares what
// it quotes with its sockets; here it is held to the checksums.
func TestProhibited(t *testing.T) {
	for _, c := range []struct{ router, own, other string }{
		{"10.1.0.1", "10.1.0.2:40000", "10.1.1.3:53"},
		{"fd01::1", "[fd01::2]:40000", "[fd01:0:0:1::3]:53"},
	} {
		router := netip.MustParseAddr(c.router)
		s := Side{netip.MustParseAddrPort(c.own), netip.MustParseAddrPort(c.other)}
		packet := prohibited(router, s)
		header := ipv4Header
		var pseudo []byte
		if router.Is6() {
			header = ipv6Header
			pseudo = pseudoHeader(router, s.Own.Addr(), unix.IPPROTO_ICMPV6, len(packet)-header)
		}
		if sum := checksum(pseudo, packet[header:]); sum != 0 {
			t.Errorf("the error of %s has a wrong checksum", c.router)
		}
		if quoted := packet[header+icmpHeader:]; len(quoted) != header+udpHeader {
			t.Errorf("the error of %s quotes %d bytes", c.router, len(quoted))
		}
	}
}
