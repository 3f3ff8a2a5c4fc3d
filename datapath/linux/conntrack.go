package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

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
	ctaIPv6Src = 3

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
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

// list calls f for every connection of a family, with what remove needs.
func (t *tracker) list(family uint8, f func(c trackedConnection, handle []byte)) error {
	var broken error
	r := t.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		if len(msg) < nl.SizeofNfgenmsg {
			return true
		}
		c, handle, err := parseConnection(msg[nl.SizeofNfgenmsg:])
		if err != nil {
			broken = err
			return true
		}
		f(c, handle)
		return true
	})
	if err = errors.Join(err, broken); err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	return nil
}

// remove deletes the connection that list gave the handle of; one that has
// ended is no error.
func (t *tracker) remove(family uint8, handle []byte) error {
	r := t.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	r.AddRawData(handle)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// parseConnection reads an entry's attributes, and returns with it those by
// which the kernel finds it again.
func parseConnection(b []byte) (c trackedConnection, handle []byte, err error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return c, nil, err
	}
	ad.ByteOrder = binary.BigEndian
	var orig, reply tuple
	var keep []netlink.Attribute
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			keep = append(keep, netlink.Attribute{Type: ctaTupleOrig | netlink.Nested, Data: ad.Bytes()})
			ad.Nested(orig.parse)
		case ctaTupleReply:
			ad.Nested(reply.parse)
		case ctaID, ctaZone:
			keep = append(keep, netlink.Attribute{Type: ad.Type(), Data: ad.Bytes()})
		}
	}
	if err := ad.Err(); err != nil {
		return c, nil, err
	}
	if handle, err = netlink.MarshalAttributes(keep); err != nil {
		return c, nil, err
	}
	c = trackedConnection{protocol: orig.protocol, source: netip.AddrPortFrom(orig.source, 0), destination: netip.AddrPortFrom(reply.source, 0)}
	if c.protocol.HasPorts() {
		c.source = netip.AddrPortFrom(orig.source, orig.sourcePort)
		c.destination = netip.AddrPortFrom(reply.source, reply.sourcePort)
	}
	return c, handle, nil
}

// tuple is what is needed of one direction of a connection: who sends.
type tuple struct {
	protocol   plan.Protocol
	source     netip.Addr
	sourcePort uint16
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
					}
				}
				return nil
			})
		}
	}
	return nil
}
