package attack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// The packets are made by hand here, octet by octet, as an attacker would who
// has no use for a kernel that knows better.

var wire = binary.BigEndian

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherVLAN = 0x8100
	etherIPv6 = 0x86dd
)

var broadcast = plan.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// header is what of an IP header is unusual; its zero value is usual.
type header struct {
	ttl uint8 // 64 if 0
	// options of IPv4, a multiple of four octets.
	options []byte
	// extensions go between IPv6's header and what it carries; next is what
	// the IPv6 header says comes next, 0 with no extensions.
	extensions []byte
	next       uint8
	// id, offset (in octets) and more make a fragment.
	id       uint32
	offset   int
	more     bool
	fragment bool
}

// internet returns an IPv4 or IPv6 packet, by the family of its destination.
func (h header) internet(from, to netip.Addr, protocol uint8, data []byte) []byte {
	if h.ttl == 0 {
		h.ttl = 64
	}
	if to.Is6() {
		return h.internet6(from, to, protocol, data)
	}
	length := 20 + len(h.options)
	b := []byte{0x40 | byte(length/4), 0}
	b = wire.AppendUint16(b, uint16(length+len(data)))
	b = wire.AppendUint16(b, uint16(h.id))
	frag := uint16(h.offset / 8)
	if h.more {
		frag |= 0x2000
	}
	b = wire.AppendUint16(b, frag)
	b = append(b, h.ttl, protocol, 0, 0)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = append(b, h.options...)
	wire.PutUint16(b[10:], checksum(b))
	return append(b, data...)
}

func (h header) internet6(from, to netip.Addr, protocol uint8, data []byte) []byte {
	next, extensions := protocol, h.extensions
	if h.fragment {
		frag := []byte{protocol, 0}
		field := uint16(h.offset)
		if h.more {
			field |= 1
		}
		frag = wire.AppendUint32(wire.AppendUint16(frag, field), h.id)
		extensions, next = append(append([]byte{}, extensions...), frag...), unix.IPPROTO_FRAGMENT
	}
	if len(h.extensions) > 0 {
		next = h.next
	}
	b := []byte{0x60, 0, 0, 0}
	b = wire.AppendUint16(b, uint16(len(extensions)+len(data)))
	b = append(b, next, h.ttl)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	return append(append(b, extensions...), data...)
}

// datagram returns a UDP packet.
func (h header) datagram(from, to netip.AddrPort, data string) []byte {
	return h.internet(from.Addr(), to.Addr(), unix.IPPROTO_UDP, udp(from, to, data))
}

func datagram(from, to netip.AddrPort, data string) []byte { return header{}.datagram(from, to, data) }

// udp returns a UDP datagram without the IP header.
func udp(from, to netip.AddrPort, data string) []byte {
	b := wire.AppendUint16(nil, from.Port())
	b = wire.AppendUint16(b, to.Port())
	b = wire.AppendUint16(b, uint16(8+len(data)))
	b = append(append(b, 0, 0), data...)
	sum := transportSum(from.Addr(), to.Addr(), unix.IPPROTO_UDP, b)
	if sum == 0 {
		sum = 0xffff
	}
	wire.PutUint16(b[6:], sum)
	return b
}

// The flags of TCP.
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
	flagURG
)

// segment returns a TCP packet.
func segment(from, to netip.AddrPort, flags uint8, seq, ack uint32, data string) []byte {
	b := wire.AppendUint16(nil, from.Port())
	b = wire.AppendUint16(b, to.Port())
	b = wire.AppendUint32(wire.AppendUint32(b, seq), ack)
	b = append(b, 5<<4, flags)
	b = wire.AppendUint16(b, 0xffff)
	b = append(append(b, 0, 0, 0, 0), data...)
	wire.PutUint16(b[16:], transportSum(from.Addr(), to.Addr(), unix.IPPROTO_TCP, b))
	return header{}.internet(from.Addr(), to.Addr(), unix.IPPROTO_TCP, b)
}

// icmp returns an ICMP packet of the family: rest are the four octets after
// the checksum.
func (h header) icmp(from, to netip.Addr, kind, code uint8, rest uint32, body []byte) []byte {
	b := wire.AppendUint32([]byte{kind, code, 0, 0}, rest)
	b = append(b, body...)
	if to.Is4() {
		wire.PutUint16(b[2:], checksum(b))
		return h.internet(from, to, unix.IPPROTO_ICMP, b)
	}
	wire.PutUint16(b[2:], transportSum(from, to, unix.IPPROTO_ICMPV6, b))
	return h.internet(from, to, unix.IPPROTO_ICMPV6, b)
}

// ping returns an echo request (RFC 792, RFC 4443) that carries a word.
func ping(from, to netip.Addr, word string) []byte {
	kind := uint8(8)
	if to.Is6() {
		kind = 128
	}
	return header{}.icmp(from, to, kind, 0, 7<<16|1, []byte(word))
}

// frame returns an Ethernet frame with an IP packet.
func frame(from, to plan.MAC, packet []byte) []byte {
	kind := uint16(etherIPv4)
	if packet[0]>>4 == 6 {
		kind = etherIPv6
	}
	return ethernet(from, to, kind, packet)
}

func ethernet(from, to plan.MAC, kind uint16, data []byte) []byte {
	b := append(append([]byte{}, to[:]...), from[:]...)
	return append(wire.AppendUint16(b, kind), data...)
}

// tagged returns a frame with an 802.1Q tag.
func tagged(from, to plan.MAC, vlan uint16, packet []byte) []byte {
	inner := frame(from, to, packet)
	return ethernet(from, to, etherVLAN, append(wire.AppendUint16(nil, vlan), inner[12:]...))
}

// arp returns a frame of RFC 826; operation 1 asks, 2 answers.
func arp(operation uint16, from, to, sender plan.MAC, senderIP netip.Addr, target plan.MAC, targetIP netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = wire.AppendUint16(b, operation)
	b = append(append(b, sender[:]...), senderIP.AsSlice()...)
	b = append(append(b, target[:]...), targetIP.AsSlice()...)
	return ethernet(from, to, etherARP, b)
}

// encapsulate returns what a datagram to a VTEP carries (RFC 7348).
func encapsulate(vni uint32, inner []byte) string {
	b := wire.AppendUint32(nil, 0x08<<24)
	b = wire.AppendUint32(b, vni<<8)
	return string(append(b, inner...))
}

func transportSum(from, to netip.Addr, protocol uint8, data []byte) uint16 {
	pseudo := append(append([]byte{}, from.AsSlice()...), to.AsSlice()...)
	if to.Is4() {
		pseudo = append(pseudo, 0, protocol)
		pseudo = wire.AppendUint16(pseudo, uint16(len(data)))
	} else {
		pseudo = wire.AppendUint32(pseudo, uint32(len(data)))
		pseudo = append(pseudo, 0, 0, 0, protocol)
	}
	return checksum(append(pseudo, data...))
}

// checksum is the one of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(wire.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
