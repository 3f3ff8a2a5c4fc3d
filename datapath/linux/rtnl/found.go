package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/message"
)

// FoundRule is a routing rule that somebody made.
type FoundRule struct {
	Rule
	Protocol uint8
	Action   uint8
	In, Out  string // names of interfaces
	Inverted bool
	Mark     uint32
	Mask     uint32
	Target   int
	IP       uint8 // the protocol that it is about, 0 for all
	// Suppressed is the length of prefixes up to which what it finds is not taken;
	// -1 for none.
	Suppressed int
	// Narrow says that it chooses by more than is followed here.
	Narrow bool
}

// FoundRoute is a route that somebody made.
type FoundRoute struct {
	RouteKey
	Route
	Protocol  uint8
	From      netip.Prefix // IPv6 may choose by the source, too
	NextHopID int
	Multipath bool
	mtu       int
	TOS       uint8
	// Dead says that its link is down, and cloned that it is the kernel's memory of
	// another route.
	Dead, cloned bool
}

// Elsewhere reports whether a rule chooses none of the packets that are followed.
func (r *FoundRule) Elsewhere() bool { return r.Narrow || r.Out != "" || r.Mark&r.Mask != 0 }

// ForAll reports whether a rule has its table asked for every packet.
func (r *FoundRule) ForAll() bool {
	return r.Action == nl.FR_ACT_TO_TBL && r.Suppressed < 0 && !r.Inverted && !r.Narrow &&
		r.From.Bits() <= 0 && r.To.Bits() <= 0 && r.In == "" && r.Out == "" && r.Mask == 0 && r.IP == 0
}

// Takes reports whether a rule takes what its table has.
func (r *FoundRule) Takes(route *FoundRoute) bool {
	return route != nil && route.Kind != unix.RTN_THROW && (route.Rejects() || route.Prefix.Bits() > r.Suppressed)
}

// Rejects reports whether a route has packets dropped.
func (r *FoundRoute) Rejects() bool {
	return r.Kind == unix.RTN_BLACKHOLE || r.Kind == unix.RTN_UNREACHABLE || r.Kind == unix.RTN_PROHIBIT
}

// LeadsLike reports whether a route leads where another does.
func (r *FoundRoute) LeadsLike(other *FoundRoute) bool {
	return r.Kind == other.Kind && r.Link == other.Link && r.Via == other.Via && !r.Multipath
}

// ListRules returns the rules of a family in the order in which the kernel asks them.
func ListRules(family uint8) ([]FoundRule, error) {
	rules, err := list(unix.RTM_GETRULE, unix.RTM_NEWRULE, family, func(m []byte) (FoundRule, bool) { return ruleFrom(m), true })
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return rules, nil
}

// ListRoutes returns some of the routes of a family: a node may have those of the whole
// Internet.
func ListRoutes(family uint8, some func(FoundRoute) bool) ([]*FoundRoute, error) {
	routes, err := list(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, family, func(m []byte) (*FoundRoute, bool) {
		route := routeFrom(m)
		if !route.Prefix.IsValid() || route.cloned || !some(route) {
			return nil, false
		}
		kept := route // so that the others take no memory
		return &kept, true
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

func list[T any](kind, answer int, family uint8, read func(m []byte) (T, bool)) ([]T, error) {
	return message.Dump(func() ([]T, error) {
		var all []T
		req := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family}})
		err := req.ExecuteIter(unix.NETLINK_ROUTE, uint16(answer), func(m []byte) bool {
			// A kernel without the family tells of all others.
			if len(m) >= unix.SizeofRtMsg && m[0] == family {
				if one, ok := read(m); ok {
					all = append(all, one)
				}
			}
			return true
		})
		return all, err
	})
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
func ruleFrom(m []byte) FoundRule {
	all := interval.Everything(m[0] == unix.AF_INET)
	r := FoundRule{Rule: Rule{From: all, To: all, Table: int(m[4])}, Action: m[7], Narrow: m[3] != 0, Suppressed: -1,
		Inverted: binary.NativeEndian.Uint32(m[8:])&ruleInverted != 0}
	for kind, v := range message.Attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case nl.FRA_SRC:
			r.From = netip.PrefixFrom(addrOf(v), int(m[2])).Masked()
		case nl.FRA_DST:
			r.To = netip.PrefixFrom(addrOf(v), int(m[1])).Masked()
		case nl.FRA_IIFNAME:
			r.In = strings.TrimRight(string(v), "\x00")
		case nl.FRA_OIFNAME:
			r.Out = strings.TrimRight(string(v), "\x00")
		case nl.FRA_GOTO:
			r.Target = message.Int(v)
		case nl.FRA_PRIORITY:
			r.Priority = message.Int(v)
		case nl.FRA_FWMARK:
			r.Mark = uint32(message.Int(v))
		case nl.FRA_FWMASK:
			r.Mask = uint32(message.Int(v))
		case nl.FRA_TABLE:
			r.Table = message.Int(v)
		case nl.FRA_PROTOCOL:
			r.Protocol = message.Octet(v)
		case nl.FRA_IP_PROTO:
			r.IP = message.Octet(v)
		case nl.FRA_SUPPRESS_PREFIXLEN:
			r.Suppressed = message.Int(v)
		case nl.FRA_UID_RANGE:
			// What the node forwards has the first user's number.
			r.Narrow = r.Narrow || len(v) < 4 || binary.NativeEndian.Uint32(v) != 0
		case nl.FRA_FLOW, nl.FRA_PAD:
		default:
			r.Narrow = true
		}
	}
	return r
}

// routeFrom reads a message about a route.
func routeFrom(m []byte) FoundRoute {
	head := nl.DeserializeRtMsg(m)
	all := interval.Everything(head.Family == unix.AF_INET).Addr()
	r := FoundRoute{RouteKey: RouteKey{Table: int(head.Table), Prefix: netip.PrefixFrom(all, int(head.Dst_len))},
		Route:    Route{Kind: int(head.Type), Scope: int(head.Scope), Onlink: head.Flags&unix.RTNH_F_ONLINK != 0},
		Protocol: head.Protocol, TOS: head.Tos, Dead: head.Flags&unix.RTNH_F_DEAD != 0, cloned: head.Flags&unix.RTM_F_CLONED != 0, From: netip.PrefixFrom(all, int(head.Src_len))}
	for kind, v := range message.Attributes(m[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			r.Prefix = netip.PrefixFrom(addrOf(v), int(head.Dst_len))
		case unix.RTA_SRC:
			r.From = netip.PrefixFrom(addrOf(v), int(head.Src_len))
		case unix.RTA_TABLE:
			r.Table = message.Int(v)
		case unix.RTA_PRIORITY:
			r.Metric = message.Int(v)
		case unix.RTA_OIF:
			r.Link = message.Int(v)
		case unix.RTA_GATEWAY:
			r.Via = addrOf(v)
		case unix.RTA_PREFSRC:
			r.Source = addrOf(v)
		case unix.RTA_MULTIPATH:
			r.Multipath = true
		case nextHopAttribute:
			r.NextHopID = message.Int(v)
		case unix.RTA_METRICS:
			for kind, v := range message.Attributes(v) {
				if kind == unix.RTAX_MTU {
					r.mtu = message.Int(v)
				}
			}
		}
	}
	return r
}

// made is the route as Weft would have made it. One of a shape that Weft never makes
// gets a value that differs from all it makes.
func (r *FoundRoute) made() Route {
	v := r.Route
	if v.Kind != unix.RTN_UNICAST {
		v.Link, v.Scope = 0, 0 // IPv6 shows the loopback device
	}
	if r.Multipath || r.TOS != 0 || r.mtu != 0 {
		v.Kind = -1
	}
	return v
}
