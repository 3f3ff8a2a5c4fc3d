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

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Filter chooses messages. It is a program of the kernel's packet filter, which
// reads the network's byte order from messages that have the machine's.
type Filter []unix.SockFilter

// The offsets of what filters look at: the type, in the header of a message;
// the length of a route's destination, in bits; and, in a message about an
// interface, the first attribute, which is the name.
const (
	typeOffset        = 4
	destinationOffset = unix.SizeofNlMsghdr + 1
	attributeOffset   = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	nameOffset        = attributeOffset + unix.SizeofRtAttr
)

var (
	all  = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}
	none = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
)

// Removals passes messages about interfaces that are gone.
func Removals() Filter {
	return Filter{load(unix.BPF_H, typeOffset), compare(half(unix.RTM_DELLINK), 0, 1), all, none}
}

// Underlay passes what may concern the node's own network: of routes, those to
// everywhere; of interfaces, those whose names do not begin with the four bytes
// given, and perhaps others; and all else.
func Underlay(prefix [4]byte) Filter {
	return Filter{
		0:  load(unix.BPF_H, typeOffset),
		1:  compare(half(unix.RTM_NEWLINK), 6, 0),
		2:  compare(half(unix.RTM_DELLINK), 5, 0),
		3:  compare(half(unix.RTM_NEWROUTE), 2, 0),
		4:  compare(half(unix.RTM_DELROUTE), 1, 0),
		5:  all,
		6:  load(unix.BPF_B, destinationOffset),
		7:  compare(0, 5, 4),
		8:  load(unix.BPF_H, attributeOffset+2),
		9:  compare(half(unix.IFLA_IFNAME), 0, 3),
		10: load(unix.BPF_W, nameOffset),
		11: compare(binary.BigEndian.Uint32(prefix[:]), 0, 1),
		12: none,
		13: all,
	}
}

func load(size uint16, offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: offset}
}

// compare skips some instructions if what was loaded is value, and others if
// it is not.
func compare(value uint32, same, other uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: same, Jf: other}
}

// half is a value of two bytes in the machine's order, read in the network's.
func half(value uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, value)))
}

// Subscribe returns a socket of the thread's network namespace that gets the
// messages of groups (RTNLGRP_…) which the filter passes.
func Subscribe(filter Filter, groups ...uint) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the node's network: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(socket.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		socket.Close()
		return nil, os.NewSyscallError("attach a filter to a netlink socket", err)
	}
	return socket, nil
}
