package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
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
		var broken error
		err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
			broken = errors.Join(broken, parseElements(msg, func(e Element, v Value, packets uint64) {
				all[e] = v
				if packets > 0 {
					counts[e] = packets
				}
			}))
			return true
		})
		return all, errors.Join(err, broken)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list elements of set %s: %w", s.Name, err)
	}
	return all, counts, nil
}

// parseElements reads a message of a list of elements, with the header of
// netfilter.
func parseElements(msg []byte, f func(e Element, v Value, packets uint64)) error {
	if len(msg) < nl.SizeofNfgenmsg {
		return nil
	}
	ad, err := netlink.NewAttributeDecoder(msg[nl.SizeofNfgenmsg:])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		ad.Nested(func(list *netlink.AttributeDecoder) error {
			for list.Next() {
				list.Nested(func(ad *netlink.AttributeDecoder) error {
					e, v, packets, err := parseElement(ad)
					if err == nil {
						f(e, v, packets)
					}
					return err
				})
			}
			return nil
		})
	}
	return ad.Err()
}

func parseElement(ad *netlink.AttributeDecoder) (e Element, v Value, packets uint64, err error) {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e.Key = string(ad.Bytes())
				}
				return nil
			})
		case nftables.NFTA_SET_ELEM_KEY_END:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					e.Last = string(ad.Bytes())
				}
				return nil
			})
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(func(ad *netlink.AttributeDecoder) (err error) {
				for ad.Next() {
					if ad.Type() == unix.NFTA_DATA_VERDICT {
						v.Verdict, err = verdictFrom(ad.Bytes())
					} else {
						v.Data = string(ad.Bytes())
					}
				}
				return err
			})
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = ad.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			// A counter is the only expression that elements have here.
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == unix.NFTA_EXPR_DATA {
						ad.Nested(func(ad *netlink.AttributeDecoder) error {
							for ad.Next() {
								if ad.Type() == unix.NFTA_COUNTER_PACKETS {
									packets = ad.Uint64()
								}
							}
							return nil
						})
					}
				}
				return nil
			})
		}
	}
	return e, v, packets, nil
}
