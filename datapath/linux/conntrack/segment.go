package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// Bits of a TCP header's flags (RFC 9293, section 3.1).
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

const (
	ipv4Header = 20
	ipv6Header = 40
	tcpHeader  = 20
	udpHeader  = 8
	icmpHeader = 8
	hopLimit   = 64
)

// segment is a TCP segment without payload, or what matters of one that has.
type segment struct {
	from, to netip.AddrPort
	seq, ack uint32
	flags    byte
	// length is the payload's, in bytes.
	length int
}

// packet returns the segment as an IP packet.
func (s segment) packet() []byte {
	h := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(h, s.from.Port())
	binary.BigEndian.PutUint16(h[2:], s.to.Port())
	binary.BigEndian.PutUint32(h[4:], s.seq)
	binary.BigEndian.PutUint32(h[8:], s.ack)
	h[12], h[13] = tcpHeader/4<<4, s.flags
	binary.BigEndian.PutUint16(h[16:], checksum(pseudoHeader(s.from.Addr(), s.to.Addr(), unix.IPPROTO_TCP, len(h)), h))
	return ipPacket(s.from.Addr(), s.to.Addr(), unix.IPPROTO_TCP, h)
}

// readSegment reads an IP packet, and reports whether it is a TCP segment: not
// one of its fragments, and, of IPv6, one without extension headers.
func readSegment(packet []byte) (s segment, ok bool) {
	if len(packet) == 0 {
		return s, false
	}
	var from, to netip.Addr
	var rest []byte
	switch packet[0] >> 4 {
	case 4:
		header := int(packet[0]&0x0f) * 4
		if len(packet) < ipv4Header || header < ipv4Header {
			return s, false
		}
		total := int(binary.BigEndian.Uint16(packet[2:]))
		fragment := binary.BigEndian.Uint16(packet[6:]) & 0x3fff // More Fragments, and the offset
		if packet[9] != unix.IPPROTO_TCP || fragment != 0 || total < header || total > len(packet) {
			return s, false
		}
		from, to = netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
		rest = packet[header:total]
	case 6:
		if len(packet) < ipv6Header || packet[6] != unix.IPPROTO_TCP {
			return s, false
		}
		total := ipv6Header + int(binary.BigEndian.Uint16(packet[4:]))
		if total > len(packet) {
			return s, false
		}
		from, to = netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
		rest = packet[ipv6Header:total]
	default:
		return s, false
	}
	if len(rest) < tcpHeader {
		return s, false
	}
	offset := int(rest[12]>>4) * 4
	if offset < tcpHeader || offset > len(rest) {
		return s, false
	}
	return segment{
		from: netip.AddrPortFrom(from, binary.BigEndian.Uint16(rest)), to: netip.AddrPortFrom(to, binary.BigEndian.Uint16(rest[2:])),
		seq: binary.BigEndian.Uint32(rest[4:]), ack: binary.BigEndian.Uint32(rest[8:]), flags: rest[13], length: len(rest) - offset,
	}, true
}

// prohibited returns the ICMP error that tells who sent a UDP datagram that it
// may not (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1). It comes from a
// router on the way.
func prohibited(router netip.Addr, s Side) []byte {
	quoted := make([]byte, udpHeader)
	binary.BigEndian.PutUint16(quoted, s.Own.Port())
	binary.BigEndian.PutUint16(quoted[2:], s.Other.Port())
	binary.BigEndian.PutUint16(quoted[4:], udpHeader)
	body := append(make([]byte, icmpHeader), ipPacket(s.Own.Addr(), s.Other.Addr(), unix.IPPROTO_UDP, quoted)...)
	to := s.Own.Addr()
	if to.Is4() {
		body[0], body[1] = 3, 13 // communication administratively prohibited
		binary.BigEndian.PutUint16(body[2:], checksum(body))
		return ipPacket(router, to, unix.IPPROTO_ICMP, body)
	}
	body[0], body[1] = 1, 1
	binary.BigEndian.PutUint16(body[2:], checksum(pseudoHeader(router, to, unix.IPPROTO_ICMPV6, len(body)), body))
	return ipPacket(router, to, unix.IPPROTO_ICMPV6, body)
}

// ipPacket puts an IP header before a payload. Both addresses are of one family.
func ipPacket(from, to netip.Addr, protocol plan.Protocol, payload []byte) []byte {
	if from.Is4() {
		h := make([]byte, ipv4Header, ipv4Header+len(payload))
		h[0], h[8], h[9] = 0x45, hopLimit, byte(protocol)
		binary.BigEndian.PutUint16(h[2:], uint16(ipv4Header+len(payload)))
		copy(h[12:], from.AsSlice())
		copy(h[16:], to.AsSlice())
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		return append(h, payload...)
	}
	h := make([]byte, ipv6Header, ipv6Header+len(payload))
	h[0], h[6], h[7] = 0x60, byte(protocol), hopLimit
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], from.AsSlice())
	copy(h[24:], to.AsSlice())
	return append(h, payload...)
}

// pseudoHeader is what the checksums of TCP, UDP and ICMPv6 cover of the IP
// header (RFC 9293, section 3.1; RFC 8200, section 8.1).
func pseudoHeader(from, to netip.Addr, protocol plan.Protocol, length int) []byte {
	h := append(from.AsSlice(), to.AsSlice()...)
	if from.Is4() {
		return append(h, 0, byte(protocol), byte(length>>8), byte(length))
	}
	return append(binary.BigEndian.AppendUint32(h, uint32(length)), 0, 0, 0, byte(protocol))
}

// checksum is the Internet checksum (RFC 1071) of parts, of which all but the
// last have an even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts {
		for ; len(p) > 1; p = p[2:] {
			sum += uint32(binary.BigEndian.Uint16(p))
		}
		if len(p) == 1 {
			sum += uint32(p[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
