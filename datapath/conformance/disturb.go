package conformance

import (
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// disturbance is what somebody else does to a node, in its namespace. It
// returns how many things were affected.
type disturbance struct {
	what string
	do   func(n *node) (int, error)
}

var disturbances = []disturbance{
	{"routes are deleted", deleteRoutes},
	{"rules are deleted", deleteRules},
	{"neighbours are deleted", func(n *node) (int, error) {
		v4, err := deleteNeighbours(n, unix.AF_INET)
		if err != nil {
			return v4, err
		}
		v6, err := deleteNeighbours(n, unix.AF_INET6)
		return v4 + v6, err
	}},
	{"forwarding entries are deleted", func(n *node) (int, error) { return deleteNeighbours(n, unix.AF_BRIDGE) }},
	{"the packet filter is flushed", flushTables},
	{"addresses are deleted", func(n *node) (int, error) {
		return eachDevice(n, func(l netlink.Link) (int, error) {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
			for _, a := range addrs {
				if err := netlink.AddrDel(l, &a); err != nil {
					return 0, err
				}
			}
			return len(addrs), err
		})
	}},
	{"queueing disciplines are deleted", deleteDisciplines},
	{"devices are set down", func(n *node) (int, error) {
		return eachDevice(n, func(l netlink.Link) (int, error) { return 1, netlink.LinkSetDown(l) })
	}},
	{"devices are deleted", func(n *node) (int, error) {
		return eachDevice(n, func(l netlink.Link) (int, error) { return 1, netlink.LinkDel(l) })
	}},
}

// eachDevice calls f for the interfaces that the data plane made.
func eachDevice(n *node, f func(netlink.Link) (int, error)) (int, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return 0, err
	}
	count := 0
	for _, l := range links {
		if _, ok := n.pods[l.Attrs().Name]; ok || slices.Contains(n.own, l.Attrs().Name) {
			continue
		}
		c, err := f(l)
		if err != nil {
			return count, err
		}
		count += c
	}
	return count, nil
}

func deleteRoutes(*node) (int, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, r := range routes {
		if r.Protocol == unix.RTPROT_KERNEL || r.Protocol == unix.RTPROT_BOOT || r.Protocol == unix.RTPROT_RA {
			continue
		}
		if err := netlink.RouteDel(&netlink.Route{Dst: r.Dst, Table: r.Table, Priority: r.Priority, Protocol: r.Protocol, Type: r.Type, Scope: unix.RT_SCOPE_NOWHERE}); err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

func deleteRules(*node) (int, error) {
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, r := range rules {
		if r.Priority == 0 || r.Priority >= 32766 { // the kernel's own
			continue
		}
		if err := netlink.RuleDel(&r); err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

// deleteNeighbours deletes what does not come and go by itself.
func deleteNeighbours(n *node, family int) (int, error) {
	neighbours, err := netlink.NeighList(0, family)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, e := range neighbours {
		if e.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		if family == unix.AF_BRIDGE && e.IP == nil {
			continue // an address of the device itself
		}
		if err := netlink.NeighDel(&e); err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

// deleteDisciplines deletes what is not there by itself.
func deleteDisciplines(*node) (int, error) {
	disciplines, err := netlink.QdiscList(nil)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, d := range disciplines {
		if d.Attrs().Handle == 0 {
			continue
		}
		if err := netlink.QdiscDel(d); err != nil {
			return count, err
		}
		count++
	}
	return count, nil
}

func flushTables(*node) (int, error) {
	conn, err := nftables.New()
	if err != nil {
		return 0, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return 0, err
	}
	conn.FlushRuleset()
	return len(tables), conn.Flush()
}
