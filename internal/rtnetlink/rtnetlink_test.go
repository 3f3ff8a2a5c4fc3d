package rtnetlink

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
)

// TestFilters changes interfaces and looks at what subscribers are told. What
// each is told last ends the test, so that it needs no waiting.
func TestFilters(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	err := netns.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		links, err := Subscribe(Links(), unix.RTNLGRP_LINK)
		if err != nil {
			return err
		}
		defer links.Close()
		others, err := Subscribe(Underlay([4]byte([]byte("weft"))), unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE)
		if err != nil {
			return err
		}
		defer others.Close()
		foreign, err := Subscribe(Others(87, [4]byte([]byte("weft"))), unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			return err
		}
		defer foreign.Close()

		bridge := func(name string) netlink.Link {
			return &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		}
		for _, name := range []string{"weft12", "we0", "end0"} {
			if err := netlink.LinkAdd(bridge(name)); err != nil {
				return fmt.Errorf("add %s: %w", name, err)
			}
		}
		link, err := netlink.LinkByName("weft12")
		if err != nil {
			return err
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "weftport"}, PeerName: "weftpeer"}
		we0, err := netlink.LinkByName("we0")
		if err != nil {
			return err
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		for range 2 { // it leaves the bridge, and stays
			if err := netlink.LinkSetMaster(veth, we0); err != nil {
				return err
			}
			if err := netlink.LinkSetNoMaster(veth); err != nil {
				return err
			}
		}
		addr, _ := netlink.ParseAddr("192.0.2.1/32")
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		for _, destination := range []string{"198.51.100.7/32", "0.0.0.0/0"} {
			_, to, _ := net.ParseCIDR(destination)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to}); err != nil {
				return fmt.Errorf("add the route to %s: %w", destination, err)
			}
		}
		for _, destination := range []string{"198.51.100.8/32", "2001:db8::7/128", "fe80:1::/64", "fec0::/64"} {
			for _, protocol := range []netlink.RouteProtocol{unix.RTPROT_STATIC, 87} {
				_, to, _ := net.ParseCIDR(destination)
				if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to, Protocol: protocol, Priority: 1 + int(protocol)}); err != nil {
					return fmt.Errorf("add the route to %s: %w", destination, err)
				}
			}
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: make(net.IPMask, 16)}}); err != nil {
			return fmt.Errorf("add the default route of IPv6: %w", err)
		}
		for _, name := range []string{"weft12", "end0"} {
			if err := netlink.LinkDel(bridge(name)); err != nil {
				return fmt.Errorf("delete %s: %w", name, err)
			}
		}
		// That weftport has left its bridge is not told as if it was gone.
		got := slices.DeleteFunc(told(t, links), func(s string) bool { return s == "16 weftpeer" || s == "16 lo" || s == "" })
		if !slices.Equal(slices.Compact(got), []string{"16 weft12", "16 we0", "16 end0", "16 weftport", "16 we0", "16 weftport", "16 we0", "16 weftport", "16 we0", "16 weftport", "16 we0", "17 weft12", "17 end0"}) {
			t.Errorf("of interfaces, these are told: %q", got)
		}
		got = slices.DeleteFunc(told(t, others), func(s string) bool { return s == "16 we0" || s == "16 end0" || s == "16 lo" })
		// Addresses of weft12 and lo come, each with its route in the table local,
		// and lo's with that of its prefix and its broadcast address (20, 24); then
		// the default route. The first goes with its interface (21, 25).
		if !slices.Equal(got, []string{"20 ", "24 192.0.2.1", "20 ", "24 127.0.0.1", "24 127.0.0.0", "24 127.255.255.255", "24 everywhere",
			"21 ", "25 192.0.2.1", "17 end0"}) {
			t.Errorf("of the underlay, these are told: %v", got)
		}
		// Of what is not Weft's: nothing of weft12 but its address, and of routes those of
		// others, but what each interface has of IPv6.
		if got := told(t, foreign); !slices.Equal(slices.Compact(got), []string{"16 we0", "16 end0", "16 we0", "24 192.0.2.1", "16 lo", "24 127.0.0.1", "24 127.0.0.0", "24 127.255.255.255", "24 ::1",
			"24 198.51.100.7", "24 everywhere", "24 198.51.100.8", "24 2001:db8::7", "24 fec0::", "24 everywhere", "25 192.0.2.1", "17 end0"}) {
			t.Errorf("of others', these are told: %q", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// told returns the types of messages, with the names of interfaces and the destinations of routes, up to the removal of end0.
func told(t *testing.T, socket *nl.NetlinkSocket) (messages []string) {
	t.Helper()
	for {
		list, _, err := socket.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			name := ""
			if m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK {
				link, err := netlink.LinkDeserialize(nil, m.Data)
				if err != nil {
					t.Fatal(err)
				}
				name = link.Attrs().Name
			}
			if m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE {
				name = "everywhere"
				attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
				if err != nil {
					t.Fatal(err)
				}
				for _, attribute := range attributes {
					if to, ok := netip.AddrFromSlice(attribute.Value); ok && attribute.Attr.Type == unix.RTA_DST {
						name = to.String()
					}
				}
			}
			messages = append(messages, fmt.Sprintf("%d %s", m.Header.Type, name))
			if m.Header.Type == unix.RTM_DELLINK && name == "end0" {
				return messages
			}
		}
	}
}
