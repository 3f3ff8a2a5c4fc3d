package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
)

// Attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
)

// tracker lists and deletes entries of connection tracking in the network
// namespace that it was opened in.
type tracker struct{ socket *nl.SocketHandle }

func openTracker() (*tracker, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a conntrack netlink socket: %w", err)
	}
	return &tracker{&nl.SocketHandle{Socket: s}}, nil
}

func (t *tracker) close() { t.socket.Close() }

func (t *tracker) request(kind, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|kind, flags)
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: t.socket}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}

// list calls f for every connection, with the entry that remove wants of it,
// which holds for the call only. All families are listed at once: the kernel
// looks into every bucket of its table, which costs more than what is in them.
func (t *tracker) list(f func(c trackedConnection, entry []byte)) error {
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

// remove deletes the connection that handleOf told the handle of; one that has
// ended is no error.
func (t *tracker) remove(is4 bool, handle []byte) error {
	family := uint8(unix.AF_INET6)
	if is4 {
		family = unix.AF_INET
	}
	r := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	r.AddRawData(handle)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// handleOf returns those of an entry's attributes by which the kernel finds it
// again.
func handleOf(entry []byte) ([]byte, error) {
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
func parseConnection(entry []byte) (c trackedConnection, err error) {
	ad, err := netlink.NewAttributeDecoder(entry)
	if err != nil {
		return c, err
	}
	ad.ByteOrder = binary.BigEndian
	var orig, reply tuple
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			ad.Nested(orig.parse)
		case ctaTupleReply:
			ad.Nested(reply.parse)
		}
	}
	if err := ad.Err(); err != nil {
		return c, err
	}
	if !orig.protocol.HasPorts() {
		orig.sourcePort, orig.destinationPort, reply.sourcePort, reply.destinationPort = 0, 0, 0, 0
	}
	return trackedConnection{
		protocol: orig.protocol,
		source:   netip.AddrPortFrom(orig.source, orig.sourcePort), destination: netip.AddrPortFrom(reply.source, reply.sourcePort),
		dialled: netip.AddrPortFrom(orig.destination, orig.destinationPort), seen: netip.AddrPortFrom(reply.destination, reply.destinationPort),
	}, nil
}

// tuple is one direction of a connection.
type tuple struct {
	protocol                    plan.Protocol
	source, destination         netip.Addr
	sourcePort, destinationPort uint16
}

func (t *tuple) parse(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleIP:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					a, _ := netip.AddrFromSlice(ad.Bytes())
					switch ad.Type() {
					case ctaIPv4Src, ctaIPv6Src:
						t.source = a
					case ctaIPv4Dst, ctaIPv6Dst:
						t.destination = a
					}
				}
				return nil
			})
		case ctaTupleProto:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case ctaProtoNum:
						t.protocol = plan.Protocol(ad.Uint8())
					case ctaProtoSrcPort:
						t.sourcePort = ad.Uint16()
					case ctaProtoDstPort:
						t.destinationPort = ad.Uint16()
					}
				}
				return nil
			})
		}
	}
	return nil
}

// trackedConnection is an entry of connection tracking.
type trackedConnection struct {
	protocol plan.Protocol
	// source and destination are who began it and who got it, behind the
	// translation of Services. Ports are 0 for protocols without.
	source, destination netip.AddrPort
	// dialled is what the source calls the destination, and seen what the
	// destination calls the source.
	dialled, seen netip.AddrPort
}

// leftover is what both sides have of the connection.
func (c trackedConnection) leftover() leftover {
	return leftover{c.protocol, side{c.source, c.dialled}, side{c.destination, c.seen}}
}

// sctpTracked reports whether the kernel tracks SCTP connections by port.
func sctpTracked() bool {
	_, err := sysctl.Get("netfilter/nf_conntrack_sctp_timeout_established")
	return err == nil
}

// noneTracked reports whether the kernel tracks no connection at all.
func noneTracked() bool {
	v, err := sysctl.Get("netfilter/nf_conntrack_count")
	return err == nil && v == "0"
}

// mostTracked is how many connections the kernel tracks at most; 0 where it does
// not say, as it tracks none yet or has no bound.
func mostTracked() int {
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
