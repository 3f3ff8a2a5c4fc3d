package conformance

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// Packets made by hand, as an attacker would.

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100
)

// udp returns a datagram with its IP header.
func udp(source, destination netip.AddrPort, data string) []byte {
	b := binary.BigEndian.AppendUint16(nil, source.Port())
	b = binary.BigEndian.AppendUint16(b, destination.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	b = append(append(b, 0, 0), data...)
	sum := checksum(append(pseudoHeader(source.Addr(), destination.Addr(), unix.IPPROTO_UDP, len(b)), b...))
	binary.BigEndian.PutUint16(b[6:], sum)
	return ip(source.Addr(), destination.Addr(), unix.IPPROTO_UDP, b)
}

// acknowledgement returns a TCP segment of a connection that goes on, with its IP
// header.
func acknowledgement(source, destination netip.AddrPort, data string) []byte {
	return segment(source, destination, 0x10, data)
}

// reset returns the answer to a TCP segment of no connection, with its IP header.
func reset(source, destination netip.AddrPort) []byte { return segment(source, destination, 0x14, "") }

// segment returns a TCP segment with some flags (RFC 9293, section 3.1), with its IP
// header.
func segment(source, destination netip.AddrPort, flags byte, data string) []byte {
	return numbered(source, destination, 7, 7, flags, data)
}

// numbered is segment with sequence numbers: that of the first byte, and of the one that is
// expected next.
func numbered(source, destination netip.AddrPort, sequence, acknowledged uint32, flags byte, data string) []byte {
	const window = 1024
	b := binary.BigEndian.AppendUint16(nil, source.Port())
	b = binary.BigEndian.AppendUint16(b, destination.Port())
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = binary.BigEndian.AppendUint32(b, acknowledged)
	b = append(b, 5<<4, flags)
	b = append(binary.BigEndian.AppendUint16(b, window), 0, 0, 0, 0)
	b = append(b, data...)
	sum := checksum(append(pseudoHeader(source.Addr(), destination.Addr(), unix.IPPROTO_TCP, len(b)), b...))
	binary.BigEndian.PutUint16(b[16:], sum)
	return ip(source.Addr(), destination.Addr(), unix.IPPROTO_TCP, b)
}

// addressesOf returns who sends a packet to whom.
func addressesOf(packet []byte) (source, destination netip.Addr) {
	if packet[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:]))
	}
	return netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:]))
}

// ip puts an IP header in front of something.
func ip(source, destination netip.Addr, protocol byte, payload []byte) []byte {
	if source.Is6() {
		b := []byte{0x60, 0, 0, 0}
		b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
		b = append(b, protocol, 64)
		return append(append(append(b, source.AsSlice()...), destination.AsSlice()...), payload...)
	}
	return append(ipv4Header(source, destination, protocol, nil, len(payload)), payload...)
}

// ipv4Header is RFC 791, section 3.1, with options, whose length must be a
// multiple of 4.
func ipv4Header(source, destination netip.Addr, protocol byte, options []byte, payload int) []byte {
	b := []byte{byte(0x45 + len(options)/4), 0}
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(options)+payload))
	b = append(b, 0, 0, 0, 0, 64, protocol, 0, 0)
	b = append(append(append(b, source.AsSlice()...), destination.AsSlice()...), options...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return b
}

// withOptions puts options that do nothing into an IPv4 header, and a
// destination options header that does nothing behind one of IPv6 (RFC 8200,
// section 4.6).
func withOptions(packet []byte) []byte {
	if packet[0]>>4 == 6 {
		b := append([]byte{}, packet[:40]...)
		binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+8)
		b[6] = unix.IPPROTO_DSTOPTS
		return append(append(b, packet[6], 0, 1, 4, 0, 0, 0, 0), packet[40:]...)
	}
	source, destination := addressesOf(packet)
	return append(ipv4Header(source, destination, packet[9], []byte{1, 1, 1, 1}, len(packet)-20), packet[20:]...)
}

// icmpError returns an ICMP message that a packet is too long, or another of a
// type, which quotes the packet.
func icmpError(source, destination netip.Addr, kind byte, quoted []byte) []byte {
	const mtu = 1300
	b := []byte{kind, 0, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}
	if kind == 3 {
		b[1] = 4 // fragmentation needed
	}
	b = append(b, quoted...)
	if source.Is4() {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return ip(source, destination, unix.IPPROTO_ICMP, b)
	}
	binary.BigEndian.PutUint16(b[2:], checksum(append(pseudoHeader(source, destination, unix.IPPROTO_ICMPV6, len(b)), b...)))
	return ip(source, destination, unix.IPPROTO_ICMPV6, b)
}

// echoReply returns the reply to a ping.
func echoReply(source, destination netip.Addr, data string) []byte {
	b := append([]byte{0, 0, 0, 0, 0, 7, 0, 1}, data...)
	if source.Is4() {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return ip(source, destination, unix.IPPROTO_ICMP, b)
	}
	b[0] = 129
	binary.BigEndian.PutUint16(b[2:], checksum(append(pseudoHeader(source, destination, unix.IPPROTO_ICMPV6, len(b)), b...)))
	return ip(source, destination, unix.IPPROTO_ICMPV6, b)
}

// solicitation asks for the link-layer address of a target (RFC 4861, section
// 4.3), with a word behind it.
func solicitation(source, target netip.Addr, word string) []byte {
	const hopLimit = 255
	group := target.As16()
	copy(group[:], []byte{0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff})
	destination := netip.AddrFrom16(group)
	b := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	b = append(b, word...)
	binary.BigEndian.PutUint16(b[2:], checksum(append(pseudoHeader(source, destination, unix.IPPROTO_ICMPV6, len(b)), b...)))
	packet := ip(source, destination, unix.IPPROTO_ICMPV6, b)
	packet[7] = hopLimit
	return packet
}

// listening tells the routers of a link which multicasts one listens to (RFC 3810,
// section 5.2), behind a router alert (RFC 2711).
func listening(source netip.Addr, word string) []byte {
	destination := netip.MustParseAddr("ff02::16")
	b := append([]byte{143, 0, 0, 0, 0, 0, 0, 0}, word...)
	binary.BigEndian.PutUint16(b[2:], checksum(append(pseudoHeader(source, destination, unix.IPPROTO_ICMPV6, len(b)), b...)))
	alert := []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0}
	packet := ip(source, destination, unix.IPPROTO_HOPOPTS, append(alert, b...))
	packet[7] = 1
	return packet
}

// tooBig is the type of the message that a packet is too long, and redirect
// that of one that there is a better next hop.
func tooBig(a netip.Addr) byte {
	if a.Is4() {
		return 3
	}
	return 2
}

func redirect(a netip.Addr) byte {
	if a.Is4() {
		return 5
	}
	return 137
}

func pseudoHeader(source, destination netip.Addr, protocol byte, length int) []byte {
	b := append(source.AsSlice(), destination.AsSlice()...)
	if source.Is4() {
		return binary.BigEndian.AppendUint16(append(b, 0, protocol), uint16(length))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(b, 0, 0, 0, protocol)
}

// frame puts an Ethernet header in front of a packet.
func frame(from, to plan.MAC, packet []byte) []byte {
	etherType := uint16(etherTypeIPv4)
	if packet[0]>>4 == 6 {
		etherType = etherTypeIPv6
	}
	b := append(append([]byte{}, to[:]...), from[:]...)
	return append(binary.BigEndian.AppendUint16(b, etherType), packet...)
}

// tagged puts a frame into a VLAN (IEEE 802.1Q).
func tagged(frame []byte) []byte {
	b := append([]byte{}, frame[:12]...)
	b = binary.BigEndian.AppendUint16(b, etherTypeVLAN)
	return append(append(b, 0, 1), frame[12:]...)
}

// vxlan returns what a datagram to a VTEP carries: the header of VXLAN (RFC
// 7348, section 5) and a frame.
func vxlan(vni uint32, frame []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0x08<<24) // there is a VNI
	return append(binary.BigEndian.AppendUint32(b, vni<<8), frame...)
}

// inject sends a packet as it is from an interface of a host.
func (h *host) inject(link string, to plan.MAC, packet []byte) error {
	return h.injectTimes(1, link, to, packet)
}

// injectTimes does so a number of times.
func (h *host) injectTimes(times int, link string, to plan.MAC, packet []byte) error {
	return h.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		from := plan.MAC(l.Attrs().HardwareAddr)
		for range times {
			err := unix.Sendto(fd, frame(from, to, packet), 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// listenICMP makes a host note what ICMP messages it gets, by the word at
// their end. It may be called again.
func (o *observer) listenICMP(h *host) {
	o.t.Helper()
	for family, protocol := range map[int]int{unix.AF_INET: unix.IPPROTO_ICMP, unix.AF_INET6: unix.IPPROTO_ICMPV6} {
		s := service{plan.Protocol(protocol), 0}
		if h.listening[s] {
			continue
		}
		h.listening[s] = true
		must(o.t, h.Do(func() error {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			// Closing does not wake who reads, but an end of waiting does.
			wait := unix.Timeval{Usec: 50000}
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
				return errors.Join(err, unix.Close(fd))
			}
			done := make(chan struct{})
			o.keep(closer(done), func() {
				defer unix.Close(fd)
				b := make([]byte, 65536)
				for {
					n, _, err := unix.Recvfrom(fd, b, 0)
					if err == nil {
						if i := strings.LastIndex(string(b[:n]), wordPrefix); i >= 0 {
							o.arrived(string(b[i:n]), arrival{receiver: h.name})
						}
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
			return nil
		}))
	}
}

type closer chan struct{}

func (c closer) Close() error {
	close(c)
	return nil
}
