package rtnl

import (
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/plan"
)

// News is what the kernel told of its objects since somebody looked: of each, what it
// told last.
type News struct {
	// Links are those of which something was told, by index; the value says
	// whether it was that they are gone. names are all their names.
	Links map[int]bool
	Names map[string]bool
	// Routes, neighbours, fdb, addresses and rules hold what was added or
	// changed, or nil for what was deleted.
	Routes     map[RouteKey]*toldRoute
	Neighbours map[NeighbourKey]*toldNeighbour
	FDB        map[FDBKey]*netip.Addr
	Addresses  map[AddressKey]bool
	Rules      map[Rule]toldRule
	// Lapsed are the links that were down, or lost an IPv4 address, if only for a
	// moment: the kernel takes a link's IPv4 routes with it, or with the last of
	// these, and does not tell.
	// removed are the addresses that were deleted, which take the sources of routes
	// with them the same way.
	Lapsed  map[int]bool
	Removed map[AddressKey]bool
	// Forwarding is the setting of an interface, or of all (index -1).
	Forwarding map[confKey]bool
	// Disciplines are the links of whose queueing disciplines or filters something was told.
	Disciplines map[int]bool
}

// NewNews returns what is told of before anything is.
func NewNews() *News {
	return &News{Links: map[int]bool{}, Names: map[string]bool{}, Routes: map[RouteKey]*toldRoute{}, Neighbours: map[NeighbourKey]*toldNeighbour{},
		FDB: map[FDBKey]*netip.Addr{}, Addresses: map[AddressKey]bool{}, Rules: map[Rule]toldRule{}, Forwarding: map[confKey]bool{},
		Lapsed: map[int]bool{}, Removed: map[AddressKey]bool{}, Disciplines: map[int]bool{}}
}

// toldRoute is what is told of a route. lapsed says that its link lapsed since.
type toldRoute struct {
	Protocol uint8
	Route    Route
	Lapsed   bool
}

type toldNeighbour struct {
	Protocol uint8
	MAC      plan.MAC
}

type toldRule struct {
	Protocol uint8
	There    bool
}

type confKey struct {
	IPv6 bool
	Link int
}

// Take takes note of a message of rtnetlink(7).
func (n *News) Take(h unix.NlMsghdr, data []byte) {
	switch h.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return
		}
		m := nl.DeserializeIfInfomsg(data)
		index := int(m.Index)
		n.Links[index] = h.Type == unix.RTM_DELLINK && m.Family == unix.AF_UNSPEC
		if n.Links[index] || m.Flags&unix.IFF_UP == 0 {
			n.lapse(index)
		}
		for kind, v := range message.Attributes(data[unix.SizeofIfInfomsg:]) {
			if kind == unix.IFLA_IFNAME {
				n.Names[strings.TrimRight(string(v), "\x00")] = true
				break
			}
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		n.route(h.Type == unix.RTM_NEWROUTE, data)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n.neighbour(h.Type == unix.RTM_NEWNEIGH, data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		n.address(h.Type == unix.RTM_NEWADDR, data)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		n.rule(h.Type == unix.RTM_NEWRULE, data)
	case unix.RTM_NEWNETCONF:
		n.conf(data)
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		if len(data) >= nl.SizeofTcMsg {
			n.Disciplines[int(nl.DeserializeTcMsg(data).Ifindex)] = true
		}
	}
}

// lapse takes note that a link was down or lost an IPv4 address.
func (n *News) lapse(link int) {
	n.Lapsed[link] = true
	for _, r := range n.Routes {
		if r != nil && r.Route.Link == link {
			r.Lapsed = true
		}
	}
}

func (n *News) route(there bool, data []byte) {
	if len(data) < unix.SizeofRtMsg {
		return
	}
	r := routeFrom(data)
	if !r.Prefix.IsValid() {
		return
	}
	n.Routes[r.RouteKey] = nil
	if there {
		n.Routes[r.RouteKey] = &toldRoute{Protocol: r.Protocol, Route: r.made()}
	}
}

func (n *News) neighbour(there bool, data []byte) {
	if len(data) < unix.SizeofNdMsg {
		return
	}
	is := neighbourFrom(data)
	key, known := NeighbourKey{is.link, is.addr}, there && is.known
	switch {
	case !is.addr.IsValid():
	case is.forwards:
		n.FDB[FDBKey{is.link, is.mac}] = nil
		if known {
			n.FDB[FDBKey{is.link, is.mac}] = &is.addr
		}
	default:
		n.Neighbours[key] = nil
		if known && is.permanent {
			n.Neighbours[key] = &toldNeighbour{is.protocol, is.mac}
		}
	}
}

func (n *News) address(there bool, data []byte) {
	if len(data) < unix.SizeofIfAddrmsg {
		return
	}
	m := nl.DeserializeIfAddrmsg(data)
	var a netip.Addr
	for kind, v := range message.Attributes(data[unix.SizeofIfAddrmsg:]) {
		if kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS && !a.IsValid() {
			a = addrOf(v)
		}
	}
	key := AddressKey{int(m.Index), netip.PrefixFrom(a, int(m.Prefixlen))}
	n.Addresses[key] = there
	if !there {
		n.Removed[key] = true
		if a.Is4() {
			n.lapse(key.Link)
		}
	}
}

func (n *News) rule(there bool, data []byte) {
	if len(data) < unix.SizeofRtMsg {
		return
	}
	r := ruleFrom(data)
	n.Rules[r.Rule] = toldRule{r.Protocol, there}
}

// The attributes of a message about settings (linux/netconf.h).
const (
	netconfIndex      = 1
	netconfForwarding = 2
)

func (n *News) conf(data []byte) {
	if len(data) < unix.NLMSG_ALIGNTO {
		return
	}
	key, forwarding := confKey{IPv6: data[0] == unix.AF_INET6}, -1
	for kind, v := range message.Attributes(data[unix.NLMSG_ALIGNTO:]) {
		switch kind {
		case netconfIndex:
			key.Link = message.Int(v)
		case netconfForwarding:
			forwarding = message.Int(v)
		}
	}
	if forwarding >= 0 {
		n.Forwarding[key] = forwarding > 0
	}
}
