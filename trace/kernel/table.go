package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

const (
	// tablePrefix begins the name of the table of a probe.
	tablePrefix = "weft-trace-"
	// markPriority is the first there is, and of chains of one priority the one
	// that was made last comes first.
	markPriority = math.MinInt32
	// markRate is how many packets a second are traced at most, should others
	// look like the probe.
	markRate = 20
	// ownerFlag makes a table go with the socket that made it
	// (NFT_TABLE_F_OWNER in linux/netfilter/nf_tables.h).
	ownerFlag = 2
)

// openTable makes the table that has the kernel trace the probe. The kernel
// takes it away with the socket, however this process ends.
func openTable(w trace.Watch) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	if err := writeTable(conn, w); err != nil {
		conn.Close()
		return nil, fmt.Errorf("have the kernel trace the probe: %w", err)
	}
	return conn, nil
}

func writeTable(conn *netlink.Conn, w trace.Watch) error {
	table := tablePrefix + w.ID
	messages := []netlink.Message{batch(unix.NFNL_MSG_BATCH_BEGIN)}
	add := func(kind netlink.HeaderType, flags netlink.HeaderFlags, attributes []netlink.Attribute) error {
		b, err := netlink.MarshalAttributes(attributes)
		messages = append(messages, netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | flags},
			Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, b...),
		})
		return err
	}
	errs := []error{add(unix.NFT_MSG_NEWTABLE, netlink.Excl, []netlink.Attribute{
		{Type: unix.NFTA_TABLE_NAME, Data: text(table)}, {Type: unix.NFTA_TABLE_FLAGS, Data: number(ownerFlag)},
	})}
	for _, hook := range []struct {
		name   string
		number uint32
		tunnel bool
		reply  bool
	}{
		{"prerouting", unix.NF_INET_PRE_ROUTING, false, false}, {"output", unix.NF_INET_LOCAL_OUT, false, false},
		{"prerouting" + replySuffix, unix.NF_INET_PRE_ROUTING, false, true}, {"output" + replySuffix, unix.NF_INET_LOCAL_OUT, false, true},
		{tunnelPrefix + "prerouting", unix.NF_INET_PRE_ROUTING, true, false}, {tunnelPrefix + "output", unix.NF_INET_LOCAL_OUT, true, false},
		{tunnelPrefix + "prerouting" + replySuffix, unix.NF_INET_PRE_ROUTING, true, true}, {tunnelPrefix + "output" + replySuffix, unix.NF_INET_LOCAL_OUT, true, true},
	} {
		priority := int32(markPriority)
		at, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_HOOK_HOOKNUM, Data: number(hook.number)}, {Type: unix.NFTA_HOOK_PRIORITY, Data: number(uint32(priority))},
		})
		errs = append(errs, err, add(unix.NFT_MSG_NEWCHAIN, 0, []netlink.Attribute{
			{Type: unix.NFTA_CHAIN_TABLE, Data: text(table)}, {Type: unix.NFTA_CHAIN_NAME, Data: text(hook.name)},
			{Type: unix.NLA_F_NESTED | unix.NFTA_CHAIN_HOOK, Data: at}, {Type: unix.NFTA_CHAIN_TYPE, Data: text("filter")},
		}))
		exprs, err := encode(match(w, hook.tunnel, hook.reply))
		errs = append(errs, err, add(unix.NFT_MSG_NEWRULE, netlink.Append, []netlink.Attribute{
			{Type: unix.NFTA_RULE_TABLE, Data: text(table)}, {Type: unix.NFTA_RULE_CHAIN, Data: text(hook.name)},
			{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: exprs},
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	messages = append(messages, batch(unix.NFNL_MSG_BATCH_END))
	if _, err := conn.SendMessages(messages); err != nil {
		return err
	}
	for acknowledged := 0; acknowledged < len(messages)-2; {
		answers, err := conn.Receive() // an error is what the kernel refused
		if err != nil {
			return err
		}
		acknowledged += len(answers)
	}
	return nil
}

func batch(kind netlink.HeaderType) netlink.Message {
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
}

func text(s string) []byte { return append([]byte(s), 0) }

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func encode(exprs []expr.Any) ([]byte, error) {
	var list []netlink.Attribute
	for _, e := range exprs {
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, err
		}
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b})
	}
	return netlink.MarshalAttributes(list)
}

// The names of the chains of a probe's table say which packet their rule marks.
// The kernel tells the chain of a rule that begins a trace, but of a packet only
// the headers, without those of the packet within.
const (
	tunnelPrefix = "tunnel-"
	replySuffix  = "-reply"
)

// match returns a rule that marks the probe, or what comes back, as traced, or
// the packet of an overlay that it is in.
func match(w trace.Watch, tunnel, reply bool) []expr.Any {
	from, to, sourcePort, port := w.Source, w.Destination, w.SourcePort, w.Port
	if reply {
		from, to, sourcePort, port = to, from, port, sourcePort
	}
	var e []expr.Any
	meta := func(key expr.MetaKey, data []byte) {
		e = append(e, &expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data})
	}
	payload := func(base expr.PayloadBase, offset uint32, data []byte) {
		e = append(e, &expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(data))},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data})
	}
	family, addresses := byte(unix.NFPROTO_IPV4), uint32(12)
	protocol, length, etherType := uint32(9), uint32(header4), uint16(unix.ETH_P_IP)
	if from.Is6() {
		family, addresses = unix.NFPROTO_IPV6, 8
		protocol, length, etherType = 6, header6, unix.ETH_P_IPV6
	}
	// Where the probe's headers are.
	network, networkAt := expr.PayloadBaseNetworkHeader, uint32(0)
	transport, transportAt := expr.PayloadBaseTransportHeader, uint32(0)
	if tunnel {
		meta(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_UDP})
		network, networkAt = expr.PayloadBaseTransportHeader, overlay
		transport, transportAt = network, networkAt+length
		payload(network, networkAt-2, binary.BigEndian.AppendUint16(nil, etherType))
		payload(network, networkAt+protocol, []byte{byte(w.Protocol)})
	} else {
		meta(expr.MetaKeyNFPROTO, []byte{family})
		meta(expr.MetaKeyL4PROTO, []byte{byte(w.Protocol)})
	}
	for i, a := range []netip.Addr{from, to} {
		b := a.AsSlice()
		payload(network, networkAt+addresses+uint32(i*len(b)), b)
	}
	switch {
	case w.Protocol.HasPorts():
		for i, p := range []uint16{sourcePort, port} {
			if p != 0 {
				payload(transport, transportAt+uint32(2*i), binary.BigEndian.AppendUint16(nil, p))
			}
		}
	default:
		payload(transport, transportAt, []byte{echoType(w.Protocol, reply)})
		if w.SourcePort != 0 {
			payload(transport, transportAt+4, binary.BigEndian.AppendUint16(nil, w.SourcePort))
		}
	}
	return append(e,
		&expr.Limit{Type: expr.LimitTypePkts, Rate: markRate, Unit: expr.LimitTimeSecond, Burst: markRate},
		&expr.Immediate{Register: 1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1},
		// That it accepts ends this chain alone, and tells the packets that it has
		// marked from those that others have.
		&expr.Verdict{Kind: expr.VerdictAccept})
}

// echoType is the ICMP type of echo requests and replies (RFC 792; RFC 4443,
// section 4).
func echoType(p plan.Protocol, reply bool) byte {
	switch {
	case p == plan.ICMP && reply:
		return 0
	case p == plan.ICMP:
		return 8
	case reply:
		return 129
	default:
		return 128
	}
}
