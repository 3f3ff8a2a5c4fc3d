package linux

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/subnet"
)

// readRouting reads the rules of a family, and of its routes the data plane's and those to
// some of the addresses that it is about: a node may have the routes of the whole
// Internet.
func readRouting(stamps Stamps, is4 bool, concerns *subnet.Set) (*routing, error) {
	family := uint8(unix.AF_INET6)
	if is4 {
		family = unix.AF_INET
	}
	list := func(kind, answer int, take func(r *routing, m []byte)) func() (*routing, error) {
		return func() (*routing, error) {
			r := &routing{stamps: stamps}
			req := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
			req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
			err := req.ExecuteIter(unix.NETLINK_ROUTE, uint16(answer), func(m []byte) bool {
				// A kernel without the family tells of all others.
				if len(m) >= unix.SizeofRtMsg && m[0] == family {
					take(r, m)
				}
				return true
			})
			return r, err
		}
	}
	rules, err := message.Dump(list(unix.RTM_GETRULE, unix.RTM_NEWRULE, func(r *routing, m []byte) { r.rules = append(r.rules, ruleFrom(m)) }))
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	r, err := message.Dump(list(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, func(r *routing, m []byte) {
		if route, ok := foundRouteFrom(m); ok && stamps.matter(&route, concerns) {
			kept := route // so that the others take no memory
			r.add(&kept)
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	r.rules = rules.rules
	return r, nil
}

// matter reports whether a route says something of packets to some addresses, or
// is Weft's.
func (s Stamps) matter(r *foundRoute, concerns *subnet.Set) bool {
	_, overlaps := concerns.Overlap(r.prefix)
	return overlaps || r.protocol == s.Protocol
}

const (
	// ruleInverted is the flag of a rule that chooses what it does not describe
	// (FIB_RULE_INVERT of linux/fib_rules.h).
	ruleInverted = 2
	// nextHopAttribute holds the number of a route's next hop that is an object of
	// its own (RTA_NH_ID of linux/rtnetlink.h).
	nextHopAttribute = 30
)

// ruleFrom reads a message about a rule, whose head is struct fib_rule_hdr of
// linux/fib_rules.h.
func ruleFrom(m []byte) foundRule {
	all := interval.Everything(m[0] == unix.AF_INET)
	r := foundRule{rule: rule{from: all, to: all, table: int(m[4])}, action: m[7], narrow: m[3] != 0, suppressed: -1,
		inverted: binary.NativeEndian.Uint32(m[8:])&ruleInverted != 0}
	for kind, v := range message.Attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case nl.FRA_SRC:
			r.from = netip.PrefixFrom(addrOf(v), int(m[2])).Masked()
		case nl.FRA_DST:
			r.to = netip.PrefixFrom(addrOf(v), int(m[1])).Masked()
		case nl.FRA_IIFNAME:
			r.in = strings.TrimRight(string(v), "\x00")
		case nl.FRA_OIFNAME:
			r.out = strings.TrimRight(string(v), "\x00")
		case nl.FRA_GOTO:
			r.target = message.Int(v)
		case nl.FRA_PRIORITY:
			r.priority = message.Int(v)
		case nl.FRA_FWMARK:
			r.mark = uint32(message.Int(v))
		case nl.FRA_FWMASK:
			r.mask = uint32(message.Int(v))
		case nl.FRA_TABLE:
			r.table = message.Int(v)
		case nl.FRA_PROTOCOL:
			r.protocol = message.Octet(v)
		case nl.FRA_IP_PROTO:
			r.ip = message.Octet(v)
		case nl.FRA_SUPPRESS_PREFIXLEN:
			r.suppressed = message.Int(v)
		case nl.FRA_UID_RANGE:
			// What the node forwards has the first user's number.
			r.narrow = r.narrow || len(v) < 4 || binary.NativeEndian.Uint32(v) != 0
		case nl.FRA_FLOW, nl.FRA_PAD:
		default:
			r.narrow = true
		}
	}
	return r
}

// foundRouteFrom reads a message about a route; false for one that no ordinary
// packet takes.
func foundRouteFrom(m []byte) (foundRoute, bool) {
	head := nl.DeserializeRtMsg(m)
	all := interval.Everything(head.Family == unix.AF_INET).Addr()
	r := foundRoute{routeKey: routeKey{table: int(head.Table), prefix: netip.PrefixFrom(all, int(head.Dst_len))},
		route: route{kind: int(head.Type)}, protocol: head.Protocol, from: netip.PrefixFrom(all, int(head.Src_len))}
	for kind, v := range message.Attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			r.prefix = netip.PrefixFrom(addrOf(v), int(head.Dst_len))
		case unix.RTA_SRC:
			r.from = netip.PrefixFrom(addrOf(v), int(head.Src_len))
		case unix.RTA_TABLE:
			r.table = message.Int(v)
		case unix.RTA_PRIORITY:
			r.metric = message.Int(v)
		case unix.RTA_OIF:
			r.link = message.Int(v)
		case unix.RTA_GATEWAY:
			r.via = addrOf(v)
		case unix.RTA_PREFSRC:
			r.source = addrOf(v)
		case unix.RTA_MULTIPATH:
			r.multipath = true
		case nextHopAttribute:
			r.nextHopID = message.Int(v)
		}
	}
	const unusable = unix.RTNH_F_DEAD | unix.RTM_F_CLONED
	return r, head.Tos == 0 && head.Flags&unusable == 0 && r.prefix.IsValid()
}
