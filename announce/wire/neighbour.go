package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Neighbour is a neighbour solicitation or advertisement (RFC 4861, sections 4.3 and 4.4).
type Neighbour struct {
	// Advertisement says that it is one; else it is a solicitation.
	Advertisement bool
	// Solicited says that an advertisement answers somebody, and Override that it is to be
	// believed before what is known.
	Solicited, Override bool
	// From is the sender's Ethernet address, Source its IPv6 address, :: where it asks whether
	// it may have the target's; To and Destination are whom it is sent to.
	From, To            MAC
	Source, Destination netip.Addr
	Target              netip.Addr
	// Link is the Ethernet address that it tells, of the sender in a solicitation and of the
	// target in an advertisement; HasLink says that it does.
	Link    MAC
	HasLink bool
}

const (
	ipv6Length     = 40
	neighbourFixed = 24
	optionLength   = 8
	icmpv6         = 58
	// hopLimit is what such a packet has, as no router has forwarded it.
	hopLimit      = 255
	solicitation  = 135
	advertisement = 136
	sourceLink    = 1
	targetLink    = 2
	flagSolicited = 1 << 6
	flagOverride  = 1 << 5
)

// AllNodesAddress are all that speak IPv6 on a link.
var AllNodesAddress = netip.MustParseAddr("ff02::1")

// SolicitedNode is the group in which those are that may have an address (RFC 4291, section
// 2.7.1).
func SolicitedNode(a netip.Addr) netip.Addr {
	of := a.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff}
	copy(group[13:], of[13:])
	return netip.AddrFrom16(group)
}

// groupMAC is the Ethernet address of a group of IPv6 (RFC 2464, section 7).
func groupMAC(group netip.Addr) MAC {
	of := group.As16()
	return MAC{0x33, 0x33, of[12], of[13], of[14], of[15]}
}

// Frame writes it.
func (n Neighbour) Frame() []byte {
	length := neighbourFixed
	if n.HasLink {
		length += optionLength
	}
	b := frame(n.To, n.From, EtherIPv6, ipv6Length+length)
	b = append(b, 0x60, 0, 0, 0, 0, byte(length), icmpv6, hopLimit)
	b = append(append(b, n.Source.AsSlice()...), n.Destination.AsSlice()...)
	body := make([]byte, neighbourFixed, length)
	body[0] = solicitation
	option := byte(sourceLink)
	if n.Advertisement {
		body[0], option = advertisement, targetLink
		if n.Solicited {
			body[4] |= flagSolicited
		}
		if n.Override {
			body[4] |= flagOverride
		}
	}
	copy(body[8:], n.Target.AsSlice())
	if n.HasLink {
		body = append(append(body, option, 1), n.Link[:]...)
	}
	binary.BigEndian.PutUint16(body[2:], checksum(n.Source, n.Destination, body))
	return append(b, body...)
}

// checksum is that of ICMPv6 (RFC 4443, section 2.3), of a message whose own is 0.
func checksum(source, destination netip.Addr, message []byte) uint16 {
	sum := uint32(len(message)) + icmpv6
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(source.AsSlice())
	add(destination.AsSlice())
	add(message)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// ReadNeighbour reads a frame, as RFC 4861, sections 7.1.1 and 7.1.2, says which to take.
func ReadNeighbour(b []byte) (n Neighbour, err error) {
	if len(b) >= headerLength {
		n.To = MAC(b)
	}
	n.From, b, err = open(b, EtherIPv6)
	if err != nil {
		return n, err
	}
	if len(b) < ipv6Length+neighbourFixed || b[0]>>4 != 6 || b[6] != icmpv6 || b[7] != hopLimit {
		return n, errors.New("it is no neighbour discovery of this link")
	}
	n.Source, n.Destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	length := int(binary.BigEndian.Uint16(b[4:]))
	if b = b[ipv6Length:]; length < neighbourFixed || length > len(b) {
		return n, errors.New("it is shorter than it says")
	}
	body := append([]byte(nil), b[:length]...)
	said := binary.BigEndian.Uint16(body[2:])
	body[2], body[3] = 0, 0
	if said != checksum(n.Source, n.Destination, body) {
		return n, errors.New("its checksum is another one")
	}
	option := byte(sourceLink)
	switch body[0] {
	case solicitation:
	case advertisement:
		n.Advertisement, option = true, targetLink
		n.Solicited, n.Override = body[4]&flagSolicited != 0, body[4]&flagOverride != 0
	default:
		return n, errors.New("it is neither a neighbour solicitation nor an advertisement")
	}
	if n.Target = netip.AddrFrom16([16]byte(body[8:])); body[1] != 0 || n.Target.IsMulticast() {
		return n, errors.New("its target is a group, or its code is not 0")
	}
	for options := body[neighbourFixed:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || len(options) < int(options[1])*optionLength {
			return n, errors.New("it has an option that is longer than it, or has no length")
		}
		if options[0] == option && options[1] == 1 {
			n.Link, n.HasLink = MAC(options[2:]), true
		}
		options = options[int(options[1])*optionLength:]
	}
	if n.Source.IsUnspecified() && (n.HasLink || n.Advertisement || n.Destination != SolicitedNode(n.Target)) || n.Advertisement && n.Solicited && n.Destination.IsMulticast() {
		return n, errors.New("nobody may send it in this way")
	}
	return n, nil
}

// ProbeNeighbour asks whether anybody has an address (RFC 4862, section 5.4.2).
func ProbeNeighbour(from MAC, a netip.Addr) []byte {
	group := SolicitedNode(a)
	return Neighbour{From: from, To: groupMAC(group), Source: netip.IPv6Unspecified(), Destination: group, Target: a}.Frame()
}

// IsProbe reports whether it asks whether anybody has an address, as who is about to take it does.
func (n Neighbour) IsProbe() bool { return !n.Advertisement && n.Source.IsUnspecified() }

// AnnounceNeighbour tells all on the link who has an address.
func AnnounceNeighbour(from MAC, a netip.Addr) []byte {
	return Neighbour{Advertisement: true, Override: true, From: from, To: AllNodes, Source: a, Destination: AllNodesAddress, Target: a, Link: from, HasLink: true}.Frame()
}

// Answer answers a solicitation. Who asks without an address of its own is told with all
// others (RFC 4861, section 7.2.4).
func (n Neighbour) Answer(from MAC) []byte {
	if n.Source.IsUnspecified() {
		return AnnounceNeighbour(from, n.Target)
	}
	to := n.From
	if n.HasLink {
		to = n.Link
	}
	return Neighbour{Advertisement: true, Solicited: true, Override: true, From: from, To: to, Source: n.Target, Destination: n.Source, Target: n.Target, Link: from, HasLink: true}.Frame()
}
