package nft

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/rtnetlink"
)

// SubscribeOthers returns a socket of the thread's network namespace that is told of
// changes to other tables than those named. Of a transaction that changes several, the
// kernel may tell in one message, which is passed or not by the first table in it.
func SubscribeOthers(tables ...string) (*nl.NetlinkSocket, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of the packet filter: %w", err)
	}
	if err := others(tables).Attach(socket); err != nil {
		socket.Close()
		return nil, err
	}
	return socket, nil
}

// others passes what is about no table named. What tells who did a transaction is not
// passed. A byte beyond the end of a message ends the program, and the message is not
// passed.
func others(tables []string) rtnetlink.Filter {
	const typeOffset, attributeOffset = 4, unix.SizeofNlMsghdr + nl.SizeofNfgenmsg
	filter := rtnetlink.Filter{
		rtnetlink.Load(unix.BPF_H, typeOffset), rtnetlink.Compare(rtnetlink.Half(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN), 0, 1), rtnetlink.None,
		// The first attribute of all else is the table's name.
		rtnetlink.Load(unix.BPF_H, attributeOffset+2), rtnetlink.Compare(rtnetlink.Half(unix.NFTA_TABLE_NAME), 1, 0), rtnetlink.All,
	}
	for _, table := range tables {
		name := append([]byte(table), 0)
		for i, b := range name {
			left := 2*(len(name)-i-1) + 1 // instructions until the next name
			filter = append(filter, rtnetlink.Load(unix.BPF_B, uint32(attributeOffset+unix.SizeofRtAttr+i)), rtnetlink.Compare(uint32(b), 0, uint8(left)))
		}
		filter = append(filter, rtnetlink.None)
	}
	return append(filter, rtnetlink.All)
}
