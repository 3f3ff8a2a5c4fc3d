// Package conntrack lists, deletes and ends the connections that a kernel tracks.
//
// A Tracker lists and deletes entries. An Ender tells both sides of connections that
// were deleted that these have ended, and a Forgetter deletes those of addresses that
// have lost their endpoint, both in the background.
package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaLabels     = 22

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaProtoInfoTCP = 1
	ctaTCPState     = 1
)

// States of a TCP connection (linux/netfilter/nf_conntrack_tcp.h).
const (
	tcpTimeWait = 7
	tcpClose    = 8
)

// seenReply is the bit of a connection's status that says that something came back
// (IPS_SEEN_REPLY of linux/netfilter/nf_conntrack_common.h).
const seenReply = 1 << 1

// Tracker lists and deletes entries of connection tracking in the network
// namespace that it was opened in.
type Tracker struct{ socket *nl.SocketHandle }

// Open opens a Tracker.
func Open() (*Tracker, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a conntrack netlink socket: %w", err)
	}
	return &Tracker{&nl.SocketHandle{Socket: s}}, nil
}

// Close closes the socket.
func (t *Tracker) Close() { t.socket.Close() }

func (t *Tracker) request(kind, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|kind, flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: t.socket}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// List calls f for every connection, with the entry that remove wants of it,
// which holds for the call only. All families are listed at once: the kernel
// looks into every bucket of its table, which costs more than what is in them.
func (t *Tracker) List(f func(c Connection, entry []byte)) error {
	var broken error
	r := t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if len(msg) < nl.SizeofNfgenmsg {
			return true
		}
		entry := msg[nl.SizeofNfgenmsg:]
		c, err := parseConnection(entry)
		if err != nil {
			broken = err
			return true
		}
		f(c, entry)
		return true
	})
	if err = errors.Join(err, broken); err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	return nil
}

// Remove deletes the connection that HandleOf told the handle of, and reports whether it was
// there still.
func (t *Tracker) Remove(is4 bool, handle []byte) (was bool, err error) {
	family := uint8(unix.AF_INET6)
	if is4 {
		family = unix.AF_INET
	}
	r := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	r.AddRawData(handle)
	_, err = r.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// HandleOf returns those of an entry's attributes by which the kernel finds it
// again.
func HandleOf(entry []byte) ([]byte, error) {
	attributes, err := netlink.UnmarshalAttributes(entry)
	if err != nil {
		return nil, err
	}
	var keep []netlink.Attribute
	for _, a := range attributes {
		switch a.Type &^ netlink.Nested {
		case ctaTupleOrig, ctaID, ctaZone:
			keep = append(keep, a)
		}
	}
	return netlink.MarshalAttributes(keep)
}

// parseConnection reads an entry's attributes.
func parseConnection(entry []byte) (Connection, error) {
	var orig, reply tuple
	var label [16]byte
	answered, over := true, false // where nobody says
	for kind, v := range message.Attributes(entry) {
		switch kind {
		case ctaTupleOrig:
			orig.parse(v)
		case ctaTupleReply:
			reply.parse(v)
		case ctaLabels:
			copy(label[:], v)
		case ctaStatus:
			answered = len(v) != 4 || message.BigEndian(v)&seenReply != 0
		case ctaProtoInfo:
			over = isOver(v)
		}
	}
	if !orig.source.IsValid() || !reply.source.IsValid() {
		return Connection{}, errors.New("the kernel told of a connection without addresses")
	}
	return Connection{
		Protocol: orig.protocol,
		Source:   orig.at(orig.source, orig.sourcePort), Destination: orig.at(reply.source, reply.sourcePort),
		Dialled: orig.at(orig.destination, orig.destinationPort), seen: orig.at(reply.destination, reply.destinationPort),
		Label: label, Unanswered: !answered, Over: over,
	}, nil
}

// isOver reports whether what an entry says of its protocol is that a TCP connection has ended: both sides
// have said so and heard it, or one has reset it.
func isOver(info []byte) bool {
	for kind, v := range message.Attributes(info) {
		if kind != ctaProtoInfoTCP {
			continue
		}
		for kind, v := range message.Attributes(v) {
			if kind == ctaTCPState {
				s := message.Octet(v)
				return s == tcpTimeWait || s == tcpClose
			}
		}
	}
	return false
}

// tuple is one direction of a connection.
type tuple struct {
	protocol                    plan.Protocol
	source, destination         netip.Addr
	sourcePort, destinationPort uint16
}

// at is an address with a port, of protocols that have any.
func (t *tuple) at(a netip.Addr, port uint16) netip.AddrPort {
	if !t.protocol.HasPorts() {
		port = 0
	}
	return netip.AddrPortFrom(a, port)
}

func (t *tuple) parse(b []byte) {
	for part, v := range message.Attributes(b) {
		for kind, v := range message.Attributes(v) {
			a, _ := netip.AddrFromSlice(v)
			switch {
			case part == ctaTupleIP && (kind == ctaIPv4Src || kind == ctaIPv6Src):
				t.source = a
			case part == ctaTupleIP && (kind == ctaIPv4Dst || kind == ctaIPv6Dst):
				t.destination = a
			case part == ctaTupleProto && kind == ctaProtoNum:
				t.protocol = plan.Protocol(message.Octet(v))
			case part == ctaTupleProto && kind == ctaProtoSrcPort && len(v) == 2:
				t.sourcePort = binary.BigEndian.Uint16(v)
			case part == ctaTupleProto && kind == ctaProtoDstPort && len(v) == 2:
				t.destinationPort = binary.BigEndian.Uint16(v)
			}
		}
	}
}

// Connection is an entry of connection tracking.
type Connection struct {
	Protocol plan.Protocol
	// Source and destination are who began it and who got it, behind the
	// translation of Services. Ports are 0 for protocols without.
	Source, Destination netip.AddrPort
	// Dialled is what the source calls the destination, and seen what the
	// destination calls the source.
	Dialled, seen netip.AddrPort
	// Label is what labels it; all is 0 where nothing does.
	Label [16]byte
	// Unanswered says that nothing came back yet, and Over that both sides of a TCP connection have parted with it.
	Unanswered, Over bool
}

// Leftover is what both sides have of the connection.
func (c Connection) Leftover() Leftover {
	return Leftover{c.Protocol, Side{c.Source, c.Dialled}, Side{c.Destination, c.seen}}
}

// SCTPTracked reports whether the kernel tracks SCTP connections by port.
func SCTPTracked() bool {
	_, err := sysctl.Get("netfilter/nf_conntrack_sctp_timeout_established")
	return err == nil
}

// NoneTracked reports whether the kernel tracks no connection at all.
func NoneTracked() bool {
	v, err := sysctl.Get("netfilter/nf_conntrack_count")
	return err == nil && v == "0"
}

// MostTracked is how many connections the kernel tracks at most; 0 where it does
// not say, as it tracks none yet or has no bound.
func MostTracked() int {
	v, err := sysctl.Get("netfilter/nf_conntrack_max")
	if err != nil {
		return 0
	}
	most, err := strconv.Atoi(v)
	if err != nil {
		return 0
	}
	return max(most, 0)
}
