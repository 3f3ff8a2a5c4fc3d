// Package rtnetlink subscribes to what the kernel tells about a node's
// interfaces, addresses and routes (rtnetlink(7)).
//
// With each pod come a dozen changes to its interface, and each would wake
// every subscriber. So a subscription has a filter, which the kernel runs.
package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Filter chooses messages. It is a program of the kernel's packet filter, which
// reads the network's byte order from messages that have the machine's.
type Filter []unix.SockFilter

// The offsets of what filters look at: the type, in the header of a message;
// the length of a route's destination, in bits, and the route's own type; and, in
// a message about an interface, the first attribute, which is the name.
const (
	typeOffset        = 4
	flagsOffset       = 6
	destinationOffset = unix.SizeofNlMsghdr + 1
	routeTypeOffset   = unix.SizeofNlMsghdr + 7
	attributeOffset   = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	nameOffset        = attributeOffset + unix.SizeofRtAttr
)

var (
	// All ends a filter and passes the message, None ends it and does not.
	All  = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}
	None = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
)

// Links passes messages about interfaces that are there, and about those that are gone. One
// of the family of bridges says only that an interface is in one, or has left it.
func Links() Filter {
	return Filter{
		Load(unix.BPF_H, typeOffset), Compare(Half(unix.RTM_NEWLINK), 1, 0), Compare(Half(unix.RTM_DELLINK), 0, 3),
		Load(unix.BPF_B, unix.SizeofNlMsghdr), Compare(unix.AF_UNSPEC, 0, 1), // ifi_family
		All, None,
	}
}

// Underlay passes what may concern the node's own network: of routes, those to
// everywhere, and those to what the node delivers to itself; of interfaces, those
// whose names do not begin with the four bytes given, and perhaps others; and all
// else.
func Underlay(prefix [4]byte) Filter {
	return Filter{
		0:  Load(unix.BPF_H, typeOffset),
		1:  Compare(Half(unix.RTM_NEWLINK), 10, 0),
		2:  Compare(Half(unix.RTM_DELLINK), 9, 0),
		3:  Compare(Half(unix.RTM_NEWROUTE), 2, 0),
		4:  Compare(Half(unix.RTM_DELROUTE), 1, 0),
		5:  All,
		6:  Load(unix.BPF_B, destinationOffset),
		7:  Compare(0, 9, 0),
		8:  Load(unix.BPF_B, routeTypeOffset),
		9:  Compare(unix.RTN_LOCAL, 7, 0),
		10: Compare(unix.RTN_BROADCAST, 6, 0),
		11: Compare(unix.RTN_ANYCAST, 5, 4),
		12: Load(unix.BPF_H, attributeOffset+2),
		13: Compare(Half(unix.IFLA_IFNAME), 0, 3),
		14: Load(unix.BPF_W, nameOffset),
		15: Compare(binary.BigEndian.Uint32(prefix[:]), 0, 1),
		16: None,
		17: All,
	}
}

// Owned passes what may concern what one protocol's stamp is on: of routes,
// those of that protocol and those that take another's place; of neighbours,
// those of that protocol, permanent ones, and forwarding entries; and all else.
// Neighbours that come and go by themselves, as a pod can have many do, are not
// passed.
func Owned(protocol byte) Filter {
	return Filter{
		0:  Load(unix.BPF_H, typeOffset),
		1:  Compare(Half(unix.RTM_NEWROUTE), 3, 0),
		2:  Compare(Half(unix.RTM_DELROUTE), 2, 0),
		3:  Compare(Half(unix.RTM_NEWNEIGH), 6, 0),
		4:  Compare(Half(unix.RTM_DELNEIGH), 5, 12),
		5:  Load(unix.BPF_B, unix.SizeofNlMsghdr+5), // rtm_protocol
		6:  Compare(uint32(protocol), 10, 0),
		7:  Load(unix.BPF_H, flagsOffset),
		8:  {Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: Half(unix.NLM_F_REPLACE), Jt: 8, Jf: 0},
		9:  None,
		10: Load(unix.BPF_B, unix.SizeofNlMsghdr), // ndm_family
		11: Compare(unix.AF_BRIDGE, 5, 0),
		12: Load(unix.BPF_H, unix.SizeofNlMsghdr+8), // ndm_state
		13: {Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: Half(unix.NUD_PERMANENT), Jt: 3, Jf: 0},
		14: {Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + unix.SizeofNdMsg},
		15: {Code: unix.BPF_LDX | unix.BPF_IMM, K: netlink.NDA_PROTOCOL},
		16: {Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		17: All,
		18: Load(unix.BPF_W, findAttribute),
		19: Compare(0, 4, 0),
		20: {Code: unix.BPF_MISC | unix.BPF_TAX},
		21: {Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: unix.SizeofRtAttr},
		22: Compare(uint32(protocol), 0, 1),
		23: All,
		24: None,
	}
}

// Others passes what may concern all that is not of one protocol's stamp: of routes,
// those of other protocols; of interfaces, those whose names do not begin with the four
// bytes given; and all else. Routes to IPv6's link-local and multicast addresses, which
// come with each interface, are not passed.
func Others(protocol byte, prefix [4]byte) Filter {
	return Filter{
		0:  Load(unix.BPF_H, typeOffset),
		1:  Compare(Half(unix.RTM_NEWLINK), 17, 0),
		2:  Compare(Half(unix.RTM_DELLINK), 16, 0),
		3:  Compare(Half(unix.RTM_NEWROUTE), 1, 0),
		4:  Compare(Half(unix.RTM_DELROUTE), 0, 13),
		5:  Load(unix.BPF_B, unix.SizeofNlMsghdr+5), // rtm_protocol
		6:  Compare(uint32(protocol), 17, 0),
		7:  Load(unix.BPF_B, unix.SizeofNlMsghdr), // rtm_family
		8:  Compare(unix.AF_INET6, 0, 9),
		9:  {Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + unix.SizeofRtMsg},
		10: {Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.RTA_DST},
		11: Load(unix.BPF_W, findAttribute),
		12: Compare(0, 5, 0), // to everywhere
		13: {Code: unix.BPF_MISC | unix.BPF_TAX},
		14: {Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: unix.SizeofRtAttr},
		15: {Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 0xff00, Jt: 8, Jf: 0},
		16: {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xffc0},
		17: Compare(0xfe80, 6, 0),
		18: All,
		19: Load(unix.BPF_H, attributeOffset+2),
		20: Compare(Half(unix.IFLA_IFNAME), 0, 2),
		21: Load(unix.BPF_W, nameOffset),
		22: Compare(binary.BigEndian.Uint32(prefix[:]), 1, 0),
		23: All,
		24: None,
	}
}

// findAttribute, as the offset of a load, gives the offset of the attribute
// whose type is in the index register, from the one in the accumulator on, or 0
// (SKF_AD_NLATTR).
const findAttribute = 0xfffff000 + 12

// Load reads so many bytes (unix.BPF_B, BPF_H or BPF_W) of a message, at an offset.
func Load(size uint16, offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: offset}
}

// Compare skips some instructions if what was loaded is value, and others if
// it is not.
func Compare(value uint32, same, other uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: same, Jf: other}
}

// Half is a value of two bytes in the machine's order, read in the network's.
func Half(value uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, value)))
}

// Subscribe returns a socket of the thread's network namespace that gets the
// messages of groups (RTNLGRP_…) which the filter passes.
func Subscribe(filter Filter, groups ...uint) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the node's network: %w", err)
	}
	if err := filter.Attach(socket); err != nil {
		socket.Close()
		return nil, err
	}
	return socket, nil
}

// Attach has a socket get only what the filter passes.
func (f Filter) Attach(socket *nl.NetlinkSocket) error {
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	return os.NewSyscallError("attach a filter to a netlink socket", unix.SetsockoptSockFprog(socket.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
}
