package rtnl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/internal/sysctl"
)

// addrGenModeNone keeps the kernel from making link-local addresses
// (IN6_ADDR_GEN_MODE_NONE).
const addrGenModeNone = "1"

// set makes a setting have a value, and writes only if it has another.
func (k *Kernel) set(name, value string) error {
	old, err := sysctl.Get(name)
	if err != nil || old == value {
		return err
	}
	if err := sysctl.Set(name, value); err != nil {
		return err
	}
	k.record("set %s to %s, it was %s", name, value, old)
	return nil
}

// IPv6Enabled reports whether the kernel speaks IPv6 in this namespace.
func IPv6Enabled() bool {
	v, err := sysctl.Get("ipv6/conf/all/disable_ipv6")
	return err == nil && v == "0"
}

// NoIPv6 says why there is no IPv6, and what to do.
const NoIPv6 = "IPv6 is turned off: set net.ipv6.conf.all.disable_ipv6 to 0 and boot without ipv6.disable=1, or use no IPv6 in the cluster"

// What the node must not believe, or do for, what is behind Weft's interfaces,
// whatever the node's defaults are: nothing there routes, redirects, or speaks
// for others. The kernel reads the value for all interfaces as well, and Weft
// changes that of none but its own.
//
// What breaks and opens nothing is left alone. arp_announce and arp_filter are
// about questions that no endpoint needs. Without shared_media, fewer redirects are
// sent. src_valid_mark is about packets with a mark, and Weft gives them none.
// log_martians only tells. drop_unicast_in_l2_multicast drops what no kernel sends.
var distrusted = []assignment{
	{"ipv4/accept_redirects", "0"}, {"ipv4/secure_redirects", "0"}, {"ipv4/send_redirects", "0"}, {"ipv4/accept_source_route", "0"},
	{"ipv4/proxy_arp", "0"}, {"ipv4/proxy_arp_pvlan", "0"}, {"ipv4/bootp_relay", "0"}, {"ipv4/arp_accept", "0"},
	// Neighbours are known for good: who asks is not answered, and not remembered.
	// The kernel remembers whoever it answers, and of the gateway, which is an
	// address of another interface, it answers with 0 or 3 alone: then for all of the
	// node's addresses. Only a table of the family arp could let through who asks
	// under an endpoint's own address for its gateway, and while others flush
	// that, endpoints could fill the table of neighbours.
	{"ipv4/arp_ignore", "8"},
	{"ipv6/accept_ra", "0"}, {"ipv6/autoconf", "0"}, {"ipv6/accept_redirects", "0"}, {"ipv6/accept_source_route", "0"},
	{"ipv6/proxy_ndp", "0"}, {"ipv6/seg6_enabled", "0"}, {"ipv6/rpl_seg_enabled", "0"},
}

// distrust returns the settings of an interface of Weft's, which it gets before it
// comes up. Where it has nothing to do with IPv6, it does none at all.
func distrust(ipv6 bool) []assignment {
	disabled := "1"
	if ipv6 {
		disabled = "0"
	}
	return append(slices.Clip(distrusted), assignment{"ipv6/disable_ipv6", disabled})
}

// ownDeviceSettings are those of weft0 and weft-vxlan. What comes out of the
// tunnel goes on to endpoints, and never to the node's loopback addresses. On
// endpoints' interfaces these may be open (see EndpointSettings), and the packet filter
// keeps endpoints off them.
func (k *Kernel) ownDeviceSettings(link int, ipv4, ipv6 bool) error {
	s, err := k.Settings(link)
	if err != nil {
		return err
	}
	wanted := append(distrust(ipv6), assignment{"ipv4/rp_filter", "0"}, assignment{"ipv4/route_localnet", "0"}, assignment{"ipv6/addr_gen_mode", addrGenModeNone})
	if ipv4 {
		wanted = append(wanted, assignment{"ipv4/forwarding", "1"})
	}
	return k.assign(s, wanted...)
}

// Forwarding makes the node a router for the families.
func (k *Kernel) Forwarding(ipv4, ipv6 bool) error {
	var errs []error
	if ipv4 {
		errs = append(errs, k.set("ipv4/ip_forward", "1"))
	}
	if ipv6 {
		errs = append(errs, k.keepAdvertisements(), k.set("ipv6/conf/all/forwarding", "1"))
	}
	return errors.Join(errs...)
}

// halfClosed is for how many seconds, at least, connection tracking knows a TCP connection of
// which one side has said that it sends no more, while nothing is sent. The kernel's own minute is
// less than programs take that answer slowly, and what they send then would come from nobody whom
// the client knows. It is what kube-proxy has.
const halfClosed = 3600

// KeepHalfClosed has connections through Services stay known while one side still sends. What
// an administrator has set to more stays.
func (k *Kernel) KeepHalfClosed() error {
	const name = "netfilter/nf_conntrack_tcp_timeout_close_wait"
	old, err := sysctl.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kernel tracks no connections of TCP
	}
	if n, number := strconv.Atoi(old); err != nil || number == nil && n >= halfClosed {
		return err
	}
	return k.set(name, strconv.Itoa(halfClosed))
}

// keepAdvertisements has the node go on to take router advertisements on the
// interfaces where it lives by them. Once it is a router, the kernel ignores
// them where accept_ra is 1, and throws away what it learnt.
func (k *Kernel) keepAdvertisements() error {
	if v, err := sysctl.Get("ipv6/conf/all/forwarding"); err != nil || v != "0" {
		return nil // it is a router already, as somebody wanted it
	}
	routes, err := message.Dump(func() ([]netlink.Route, error) {
		return k.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA, Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list the routes that router advertisements gave: %w", err)
	}
	var errs []error
	seen := map[int]bool{}
	for _, r := range routes {
		if seen[r.LinkIndex] || r.LinkIndex == 0 {
			continue
		}
		seen[r.LinkIndex] = true
		l, err := k.LinkByIndex(r.LinkIndex)
		if err != nil || datapath.OwnsInterface(l.Attrs().Name) {
			continue
		}
		name := "ipv6/conf/" + l.Attrs().Name + "/accept_ra"
		if v, err := sysctl.Get(name); err == nil && v == "1" {
			errs = append(errs, k.set(name, "2"))
		}
	}
	return errors.Join(errs...)
}

// EndpointSettings makes the node a router for what comes from an endpoint's
// interface, which it is unless someone turned that off for new interfaces,
// and distrust what the endpoint says of the network. answers says that the node's
// processes reach the endpoint at a loopback address, so that its answers are to be let
// through to there; where that is not so, the setting is others'.
func (k *Kernel) EndpointSettings(s *Settings, ipv4, ipv6, answers bool) error {
	wanted := distrust(ipv6)
	if answers {
		wanted = append(wanted, assignment{"ipv4/route_localnet", "1"})
	}
	if ipv4 {
		wanted = append(wanted, assignment{"ipv4/forwarding", "1"})
	}
	if ipv6 {
		wanted = append(wanted, assignment{"ipv6/forwarding", "1"})
	}
	return k.assign(s, wanted...)
}

// EndpointSources says who checks the IPv4 sources of what comes from an
// interface. The kernel does by default, with a lookup in all routing tables
// for each packet where there are routing rules. Where the packet filter has
// let nothing through but the endpoint's own addresses, that is turned off:
// no reverse path filter, and no search for the node's own addresses.
func (k *Kernel) EndpointSources(s *Settings, filtered bool) error {
	if !filtered {
		return k.assign(s, assignment{"ipv4/accept_local", "0"})
	}
	return k.assign(s, assignment{"ipv4/rp_filter", "0"}, assignment{"ipv4/accept_local", "1"})
}
