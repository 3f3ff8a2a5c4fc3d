package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

// Lengths of headers, in bytes; overlay is what VXLAN puts between an outer and
// an inner IP header (RFC 7348, section 5).
const (
	header4 = 20
	header6 = 40
	overlay = 8 + 8 + 14
	snap    = header6 + overlay + header6 + 8
)

// openCapture returns a socket that gets the beginnings of all packets with the
// probe's addresses, either way, on any device, in packets of an overlay too.
func openCapture(w trace.Watch) (*os.File, error) {
	program, err := bpf.Assemble(filter(w))
	if err != nil {
		return nil, err
	}
	var raw []unix.SockFilter
	for _, i := range program {
		raw = append(raw, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	// It gets nothing before it has its filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("filter packets: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bits(unix.ETH_P_ALL)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("look at packets: %w", err)
	}
	return os.NewFile(uintptr(fd), "packets"), nil
}

// bits is a number in the order of the network.
func bits(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }

// filter accepts what has the probe's addresses. A load beyond a packet's end
// refuses the packet, so what needs less of it is tried first.
func filter(w trace.Watch) []bpf.Instruction {
	var program []bpf.Instruction
	for _, outer := range []int{0, header4, header6} {
		for _, reply := range []bool{false, true} {
			from, to := w.Source, w.Destination
			if reply {
				from, to = to, from
			}
			program = append(program, accept(outer, from, to)...)
		}
	}
	return append(program, bpf.RetConstant{})
}

// accept are instructions that accept packets between two addresses which are
// behind an outer header of some length.
func accept(outer int, from, to netip.Addr) []bpf.Instruction {
	type test struct {
		offset, size int
		value, mask  uint32
	}
	// The rest of an IPv6 header's first byte may change on the way.
	const whole, version = 0xffffffff, 0xf0
	var tests []test
	at := 0
	if outer > 0 {
		if outer == header4 {
			tests = append(tests, test{0, 1, 0x45, whole}, test{9, 1, unix.IPPROTO_UDP, whole})
		} else {
			tests = append(tests, test{0, 1, 0x60, version}, test{6, 1, unix.IPPROTO_UDP, whole})
		}
		at = outer + overlay
	}
	addresses := 12
	if from.Is4() {
		tests = append(tests, test{at, 1, 0x45, whole})
	} else {
		tests = append(tests, test{at, 1, 0x60, version})
		addresses = 8
	}
	for i, a := range []netip.Addr{from, to} {
		b := a.AsSlice()
		for j := 0; j < len(b); j += 4 {
			tests = append(tests, test{at + addresses + i*len(b) + j, 4, binary.BigEndian.Uint32(b[j:]), whole})
		}
	}
	var program []bpf.Instruction
	for i, t := range tests {
		left := 3*(len(tests)-i-1) + 1
		program = append(program, bpf.LoadAbsolute{Off: uint32(t.offset), Size: t.size}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: t.value, SkipTrue: uint8(left)})
	}
	return append(program, bpf.RetConstant{Val: snap})
}

// recognise reports whether a packet is the probe, or what comes back, and
// whether it is within another of an overlay, and the port of who sent the probe.
func (o *Watching) recognise(b []byte) (reply, tunnel bool, port uint16, ok bool) {
	for _, outer := range []int{0, header4 + overlay, header6 + overlay} {
		if len(b) < outer {
			break
		}
		inner := b[outer:]
		length := header4
		if o.watch.Source.Is6() {
			length = header6
		}
		if len(inner) < length {
			break
		}
		if reply, ok := o.isProbe(inner[:length], inner[length:]); ok {
			return reply, outer > 0, o.sourcePort(reply, inner[length:]), true
		}
	}
	return false, false, 0, false
}

// isProbe reports whether headers are the probe's, or of what comes back.
func (o *Watching) isProbe(header, transport []byte) (reply, ok bool) {
	w := o.watch
	var from, to netip.Addr
	var protocol byte
	switch {
	case len(transport) < 8:
		return false, false
	case w.Source.Is4() && len(header) == header4 && header[0]>>4 == 4:
		from, to, protocol = netip.AddrFrom4([4]byte(header[12:16])), netip.AddrFrom4([4]byte(header[16:20])), header[9]
	case w.Source.Is6() && len(header) == header6 && header[0]>>4 == 6:
		from, to, protocol = netip.AddrFrom16([16]byte(header[8:24])), netip.AddrFrom16([16]byte(header[24:40])), header[6]
	}
	if plan.Protocol(protocol) != w.Protocol {
		return false, false
	}
	switch {
	case from == w.Source && to == w.Destination && o.fits(false, transport):
		return false, true
	case from == w.Destination && to == w.Source && o.fits(true, transport):
		return true, true
	}
	return false, false
}

func (o *Watching) fits(reply bool, transport []byte) bool {
	if !o.watch.Protocol.HasPorts() {
		return transport[0] == echoType(o.watch.Protocol, reply) && (o.watch.SourcePort == 0 || o.sourcePort(reply, transport) == o.watch.SourcePort)
	}
	port := binary.BigEndian.Uint16(transport[2:])
	if reply {
		port = binary.BigEndian.Uint16(transport)
	}
	return port == o.watch.Port && (o.watch.SourcePort == 0 || o.sourcePort(reply, transport) == o.watch.SourcePort)
}

// sourcePort is the port, or the identifier, of who sent the probe.
func (o *Watching) sourcePort(reply bool, transport []byte) uint16 {
	switch {
	case !o.watch.Protocol.HasPorts():
		return binary.BigEndian.Uint16(transport[4:])
	case reply:
		return binary.BigEndian.Uint16(transport[2:])
	}
	return binary.BigEndian.Uint16(transport)
}

// readPackets calls f with what is seen of the probe.
func (o *Watching) readPackets(ctx context.Context, f func(trace.Event)) error {
	conn, err := o.packets.SyscallConn()
	if err != nil {
		return err
	}
	names := make(map[int]string)
	encapsulates := make(map[int]bool)
	var only uint16 // the source port of all packets so far
	b := make([]byte, snap)
	return o.each(ctx, o.packets, func() (bool, error) {
		var n int
		var from unix.Sockaddr
		var lost uint32
		var failed error
		err := conn.Read(func(fd uintptr) bool {
			n, from, failed = unix.Recvfrom(int(fd), b, 0)
			if errors.Is(failed, unix.EAGAIN) {
				return false
			}
			// There is room again, so that what was lost meanwhile is known.
			if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil {
				failed = errors.Join(failed, os.NewSyscallError("getsockopt", err))
			} else {
				lost = s.Drops
			}
			return true
		})
		switch {
		case err != nil:
			return false, err
		case lost > 0:
			return false, errors.New("some of the packets were lost to sight, as there are more than can be read: ask again")
		case errors.Is(failed, unix.ENETDOWN):
			return false, nil // a device went down
		case failed != nil:
			return false, fmt.Errorf("look at packets: %w", failed)
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok {
			return false, nil
		}
		reply, tunnel, port, ok := o.recognise(b[:n])
		if !ok {
			return false, nil
		}
		if only == 0 {
			only = port
		} else if port != only {
			return false, fmt.Errorf("others send the same from %s, so that the probe, whose port was translated, cannot be told from theirs: ask again", o.watch.Source)
		}
		name, known := names[link.Ifindex]
		if !known {
			i, err := net.InterfaceByIndex(link.Ifindex)
			if err != nil {
				return false, fmt.Errorf("the device that the packet passed is gone: ask again: %w", err)
			}
			name = i.Name
			names[link.Ifindex] = name
			if encapsulates[link.Ifindex], err = isOverlay(link.Ifindex); err != nil {
				return false, err
			}
		}
		out := link.Pkttype == unix.PACKET_OUTGOING
		if !out {
			o.devices[name] = true
		}
		f(trace.Event{Kind: trace.Seen, Time: time.Now(), Reply: reply, Device: name, Out: out, Tunnel: tunnel,
			Encapsulates: encapsulates[link.Ifindex]})
		return true, nil
	})
}

// isOverlay reports whether what leaves on a device goes on within packets of an
// overlay whose headers are as long as those that are looked into.
func isOverlay(index int) (bool, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return false, fmt.Errorf("ask what device %d is: %w", index, err)
	}
	return link.Type() == "vxlan", nil
}
