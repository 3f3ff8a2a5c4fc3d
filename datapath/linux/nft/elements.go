package nft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
)

// ReadElements lists a set's elements, and how many packets those matched that
// count any. Sets are large, and the kernel begins anew at the first element
// for each of the buffers that it fills. So they are read by the socket with
// the larger buffer, and as they come.
func ReadElements(s *nftables.Set) (Elements, map[Element]uint64, error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	defer socket.Close()
	var counts map[Element]uint64
	all, err := message.Dump(func() (Elements, error) {
		all := Elements{}
		counts = map[Element]uint64{}
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP)
		r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}
		r.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(s.Table.Family), Version: nl.NFNETLINK_V0})
		r.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(s.Table.Name)))
		r.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(s.Name)))
		err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
			parseElements(msg, func(e Element, v Value, packets uint64) {
				all[e] = v
				if packets > 0 {
					counts[e] = packets
				}
			})
			return true
		})
		return all, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list elements of set %s: %w", s.Name, err)
	}
	return all, counts, nil
}

// parseElements reads a message of a list of elements, with the header of
// netfilter.
func parseElements(msg []byte, f func(e Element, v Value, packets uint64)) {
	for kind, list := range message.Attributes(msg[min(len(msg), nl.SizeofNfgenmsg):]) {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, one := range message.Attributes(list) {
			f(parseElement(one))
		}
	}
}

func parseElement(b []byte) (e Element, v Value, packets uint64) {
	for kind, b := range message.Attributes(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = string(only(b))
		case nftables.NFTA_SET_ELEM_KEY_END:
			e.Last = string(only(b))
		case unix.NFTA_SET_ELEM_DATA:
			for kind, b := range message.Attributes(b) {
				if kind == unix.NFTA_DATA_VERDICT {
					v.Verdict = verdictFrom(b)
				} else {
					v.Data = string(b)
				}
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = len(b) == 4 && message.BigEndian(b)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			// A counter is the only expression that elements have here.
			for kind, b := range message.Attributes(b) {
				if kind != unix.NFTA_EXPR_DATA {
					continue
				}
				for kind, b := range message.Attributes(b) {
					if kind == unix.NFTA_COUNTER_PACKETS && len(b) == 8 {
						packets = binary.BigEndian.Uint64(b)
					}
				}
			}
		}
	}
	return e, v, packets
}

// only returns what the only attribute holds.
func only(b []byte) (v []byte) {
	for _, v = range message.Attributes(b) {
	}
	return v
}

// verdictFrom reads the attributes of a verdict.
func verdictFrom(b []byte) (v Verdict) {
	for kind, b := range message.Attributes(b) {
		switch {
		case kind == unix.NFTA_VERDICT_CODE && len(b) == 4:
			v.Kind = expr.VerdictKind(int32(message.BigEndian(b)))
		case kind == unix.NFTA_VERDICT_CHAIN:
			v.Chain = strings.TrimRight(string(b), "\x00")
		}
	}
	return v
}
