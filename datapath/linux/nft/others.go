package nft

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// SubscribeOthers returns a socket of the thread's network namespace that is told of
// changes to other tables than those named. Of a transaction that changes several, the
// kernel may tell in one message, which is passed or not by the first table in it.
func SubscribeOthers(tables ...string) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the packet filter: %w", err)
	}
	filter := others(tables)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(socket.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		socket.Close()
		return nil, os.NewSyscallError("attach a filter to a netlink socket", err)
	}
	return socket, nil
}

// others passes what is about no table named. What tells who did a transaction is not
// passed. The kernel's packet filter reads the network's byte order, a byte beyond the end
// of a message ends the program, and the message is not passed.
func others(tables []string) []unix.SockFilter {
	const typeOffset, attributeOffset = 4, unix.SizeofNlMsghdr + nl.SizeofNfgenmsg
	native := func(v uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
	}
	load := func(size uint16, offset int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: uint32(offset)}
	}
	equal := func(value uint32, same, other int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: uint8(same), Jf: uint8(other)}
	}
	all, none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	program := []unix.SockFilter{
		load(unix.BPF_H, typeOffset), equal(native(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN), 0, 1), none,
		// The first attribute of all else is the table's name.
		load(unix.BPF_H, attributeOffset+2), equal(native(unix.NFTA_TABLE_NAME), 1, 0), all,
	}
	for _, table := range tables {
		name := append([]byte(table), 0)
		for i, b := range name {
			left := 2*(len(name)-i-1) + 1 // instructions until the next name
			program = append(program, load(unix.BPF_B, attributeOffset+unix.SizeofRtAttr+i), equal(uint32(b), 0, left))
		}
		program = append(program, none)
	}
	return append(program, all)
}
