package plan

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Tag is the 24-bit number that every endpoint wears: a VNID, an identity, a
// group or a zone, as the plug-in decides, for all nodes alike. It may travel in
// the VXLAN network identifier (RFC 7348, section 5).
type Tag uint32

// MaxTag is the largest tag.
const MaxTag Tag = 1<<24 - 1

// MAC is an EUI-48 address. The zero value means none.
type MAC [6]byte

// ParseMAC reads the colon-separated form.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, fmt.Errorf("MAC address %q is not of the form 0a:58:0a:01:00:02", s)
	}
	return MAC(hw), nil
}

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// IsZero reports whether m is no address.
func (m MAC) IsZero() bool { return m == MAC{} }

// MACOf returns the locally administered unicast address that stands for an
// IP address: 0a:58 and the four bytes of an IPv4 address, or 0e and the last
// five bytes of a digest of an IPv6 address. Everyone who knows the IP
// address knows the MAC, so that nobody has to publish it.
func MACOf(a netip.Addr) MAC {
	a = a.Unmap()
	if a.Is4() {
		b := a.As4()
		return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
	}
	// FNV-1a over the 16 bytes: the low bytes alone would collide between
	// subnets that number their hosts alike.
	h := uint64(14695981039346656037)
	for _, c := range a.As16() {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return MAC{0x0e, byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
}

// PublicKey is an X25519 public key (RFC 7748), as WireGuard knows a machine by. The
// zero value means none.
type PublicKey [32]byte

// keyText is how keys are written: as wg(8) writes them, and in no second way.
var keyText = base64.StdEncoding.Strict()

// ParsePublicKey reads the base64 form that wg(8) has.
func ParsePublicKey(s string) (PublicKey, error) {
	var k PublicKey
	// The decoder skips ends of lines, so that the length alone does not tell.
	b, err := keyText.DecodeString(s)
	if err != nil || len(b) != len(k) || len(s) != keyText.EncodedLen(len(k)) {
		return PublicKey{}, fmt.Errorf("public key %q is not %d bytes in base64, as wg pubkey writes them", s, len(k))
	}
	if k = PublicKey(b); k.IsZero() {
		return PublicKey{}, fmt.Errorf("public key %q is that of nobody, as all of its bytes are 0: leave it out where there is none", s)
	}
	return k, nil
}

func (k PublicKey) String() string { return keyText.EncodeToString(k[:]) }

// IsZero reports whether k is no key.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// Protocol is an IP protocol number (IANA "Assigned Internet Protocol
// Numbers"). 0 means any.
type Protocol uint8

// The protocols that have names here.
const (
	AnyProtocol Protocol = 0
	ICMP        Protocol = 1
	TCP         Protocol = 6
	UDP         Protocol = 17
	ICMPv6      Protocol = 58
	SCTP        Protocol = 132
)

var protocolNames = map[Protocol]string{AnyProtocol: "any", ICMP: "icmp", TCP: "tcp", UDP: "udp", ICMPv6: "icmpv6", SCTP: "sctp"}

func (p Protocol) String() string {
	if s, ok := protocolNames[p]; ok {
		return s
	}
	return fmt.Sprintf("%d", uint8(p))
}

// ParseProtocol reads a name or a number from 1 to 255.
func ParseProtocol(s string) (Protocol, error) {
	for p, name := range protocolNames {
		if s == name {
			return p, nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("protocol %q is none of tcp, udp, sctp, icmp, icmpv6, any or a number from 1 to 255", s)
	}
	return Protocol(n), nil
}

// MarshalText writes the form that ParseProtocol reads.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = ParseProtocol(string(text))
	return err
}

// HasPorts reports whether the protocol's header begins with two ports.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// PortRange is an inclusive range of ports.
type PortRange struct{ First, Last uint16 }

// AllPorts is the range of every port.
var AllPorts = PortRange{0, 65535}

// Contains reports whether port lies in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

func (r PortRange) String() string {
	if r == AllPorts {
		return "any"
	}
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParsePortRange reads "80", "8000-8080" or "any".
func ParsePortRange(s string) (PortRange, error) {
	if s == "any" {
		return AllPorts, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || f > l {
		return PortRange{}, fmt.Errorf("port range %q is neither any, nor a port from 0 to 65535, nor two in ascending order such as 8000-8080", s)
	}
	return PortRange{uint16(f), uint16(l)}, nil
}
