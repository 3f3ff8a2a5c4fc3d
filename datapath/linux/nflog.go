package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// Messages and attributes of nfnetlink_log (linux/netfilter/nfnetlink_log.h).
const (
	nflogConfig = unix.NFNL_SUBSYS_ULOG<<8 | 1

	nflogConfigCommand   = 1
	nflogConfigMode      = 2
	nflogConfigThreshold = 5

	nflogBind       = 1
	nflogCopyPacket = 2

	nflogIn      = 4
	nflogOut     = 5
	nflogPayload = 9
	nflogPrefix  = 10
)

// openLog returns a socket, in the calling thread's network namespace, that
// gets the beginnings of the packets logged to a group, one at a time.
func openLog(group uint16, length uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	configure := func(attributes ...netlink.Attribute) error {
		b, err := netlink.MarshalAttributes(attributes)
		if err != nil {
			return err
		}
		header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, group)
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{Type: nflogConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(header, b...),
		})
		return err
	}
	err = configure(netlink.Attribute{Type: nflogConfigCommand, Data: []byte{nflogBind}})
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("another program, or another call, follows it: %w", err)
	}
	if err == nil {
		err = configure(
			netlink.Attribute{Type: nflogConfigMode, Data: append(binary.BigEndian.AppendUint32(nil, length), nflogCopyPacket, 0)},
			netlink.Attribute{Type: nflogConfigThreshold, Data: binary.BigEndian.AppendUint32(nil, 1)})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("follow log group %d: %w", group, err)
	}
	return conn, nil
}

// logEntry is a packet that was logged, and where.
type logEntry struct {
	// direction is that of the policy that denied it, or reason is why else it
	// was dropped.
	direction plan.Direction
	reason    datapath.Reason
	in, out   int // interface indexes
	packet    packetHeader
	// peer is who sent it through the tunnel, where packet is what was in it.
	peer netip.Addr
}

// link is the index of the interface that it is about.
func (e logEntry) link() int {
	if e.direction == plan.Incoming || e.reason == datapath.NoRoute {
		return e.out
	}
	return e.in
}

// parseLogMessage reads a message of the kernel, with the header of netfilter.
// It returns false for what tells of no packet.
func parseLogMessage(b []byte) (logEntry, bool) {
	const header = 4
	if len(b) < header {
		return logEntry{}, false
	}
	ad, err := netlink.NewAttributeDecoder(b[header:])
	if err != nil {
		return logEntry{}, false
	}
	ad.ByteOrder = binary.BigEndian
	var e logEntry
	var payload []byte
	for ad.Next() {
		switch ad.Type() {
		case nflogPrefix:
			switch prefix := strings.TrimRight(string(ad.Bytes()), "\x00"); plan.Direction(prefix) {
			case plan.Incoming, plan.Outgoing:
				e.direction = plan.Direction(prefix)
			default:
				e.reason = datapath.Reason(prefix)
			}
		case nflogIn:
			e.in = int(ad.Uint32())
		case nflogOut:
			e.out = int(ad.Uint32())
		case nflogPayload:
			payload = ad.Bytes()
		}
	}
	var read bool
	e.packet, read = parsePacket(payload)
	switch e.reason {
	case datapath.NotThePeers:
		if inner, ok := parsePacket(behind(payload, offsetInner)); ok {
			e.peer, e.packet = e.packet.source.Addr(), inner
		}
	case datapath.NoRoute:
		// What the endpoint is told quotes what it sent.
		e.packet, read = parsePacket(behind(payload, headerICMP))
	}
	return e, read && ad.Err() == nil && (e.direction != "" || slices.Contains(datapath.Reasons, e.reason))
}

// behind returns what follows so many bytes after the IP header; of IPv6,
// one without extension headers.
func behind(b []byte, offset int) []byte {
	if len(b) == 0 {
		return nil
	}
	length := header6
	if b[0]>>4 == 4 {
		length = int(b[0]&0xf) * 4
	}
	return b[min(length+offset, len(b)):]
}

// packetHeader is who sends what to whom. Ports are 0 where there are none, or
// where the packet is cut off before them.
type packetHeader struct {
	source, destination netip.AddrPort
	protocol            plan.Protocol
}

// parsePacket reads the beginning of an IP packet that anybody may have made.
func parsePacket(b []byte) (packetHeader, bool) {
	if len(b) == 0 {
		return packetHeader{}, false
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b)
	case 6:
		return parseIPv6(b)
	}
	return packetHeader{}, false
}

// parseIPv4 reads RFC 791, section 3.1.
func parseIPv4(b []byte) (packetHeader, bool) {
	const least = 20
	length := int(b[0]&0xf) * 4
	if len(b) < least || length < least {
		return packetHeader{}, false
	}
	source, destination := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0 // of a packet's fragments
	return withPorts(source, destination, plan.Protocol(b[9]), b[min(length, len(b)):], first), true
}

// parseIPv6 reads RFC 8200, section 3, and the extension headers of section 4.
func parseIPv6(b []byte) (packetHeader, bool) {
	const length = 40
	if len(b) < length {
		return packetHeader{}, false
	}
	source, destination := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	next, rest, first := b[6], b[length:], true
	for len(rest) >= 8 {
		var skip int
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_MH:
			skip = (int(rest[1]) + 1) * 8
		case unix.IPPROTO_FRAGMENT:
			skip = 8
			first = first && binary.BigEndian.Uint16(rest[2:])>>3 == 0
		case unix.IPPROTO_AH: // RFC 4302, section 2.2
			skip = (int(rest[1]) + 2) * 4
		default:
			return withPorts(source, destination, plan.Protocol(next), rest, first), true
		}
		next, rest = rest[0], rest[min(skip, len(rest)):]
		if !first {
			break // what follows is not a header
		}
	}
	return withPorts(source, destination, plan.Protocol(next), rest, first), true
}

// withPorts adds the ports, if the transport header is there and has any.
func withPorts(source, destination netip.Addr, p plan.Protocol, transport []byte, first bool) packetHeader {
	h := packetHeader{netip.AddrPortFrom(source, 0), netip.AddrPortFrom(destination, 0), p}
	if p.HasPorts() && first && len(transport) >= 4 {
		h.source = netip.AddrPortFrom(source, binary.BigEndian.Uint16(transport))
		h.destination = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(transport[2:]))
	}
	return h
}
