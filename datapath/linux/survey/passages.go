package survey

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// place is where packets meet a packet filter.
type place int

const (
	ingress place = iota
	prerouting
	input
	forward
	output
	postrouting
	egress
)

// inOrder are the places of IP's own hooks.
var inOrder = []place{prerouting, input, forward, output, postrouting}

var hookNumbers = map[place]uint32{prerouting: unix.NF_INET_PRE_ROUTING, input: unix.NF_INET_LOCAL_IN, forward: unix.NF_INET_FORWARD,
	output: unix.NF_INET_LOCAL_OUT, postrouting: unix.NF_INET_POST_ROUTING}

var iptablesChains = map[place]string{prerouting: "PREROUTING", input: "INPUT", forward: "FORWARD", output: "OUTPUT", postrouting: "POSTROUTING"}

var familyNames = map[nftables.TableFamily]string{nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyNetdev: "netdev"}

// placeOf returns the place of a hook of nftables; false for those of families
// that neither endpoints' packets nor the tunnel's go by, as ARP's.
func placeOf(family nftables.TableFamily, hook nftables.ChainHook) (place, bool) {
	const inetIngress = 5 // NF_INET_INGRESS
	switch {
	case familyNames[family] == "":
		return 0, false
	case family == nftables.TableFamilyNetdev && hook == *nftables.ChainHookIngress, family == nftables.TableFamilyINet && hook == inetIngress:
		return ingress, true
	case family == nftables.TableFamilyNetdev:
		return egress, hook == *nftables.ChainHookEgress
	}
	for p, number := range hookNumbers {
		if nftables.ChainHook(number) == hook {
			return p, true
		}
	}
	return 0, false
}

// passage is a place that packets come by on which others may drop them.
type passage struct {
	place  place
	packet packet
	// state is that of connection tracking, once that has seen the packet.
	state uint32
	// incoming says that they come from other nodes.
	incoming bool
	// port is that of the tunnel, where tunnel packets go this way, and 0 where
	// what endpoints send and get does.
	port uint16
	// links are the devices by which they come or go.
	links []string
	// chosen is how nftables chooses them, and iptables.
	chosen, iptables string
}

// meets reports whether the packets meet a chain at their place.
func (w *passage) meets(c *nftables.Chain) bool {
	if c.Type == nftables.ChainTypeNAT && w.port != 0 {
		return false // nothing tracks them
	}
	switch c.Table.Family {
	case nftables.TableFamilyIPv4:
		return !w.packet.ipv6
	case nftables.TableFamilyIPv6:
		return w.packet.ipv6
	}
	return true
}

// at returns the packet as a chain of some priority finds it.
func (w *passage) at(priority nftables.ChainPriority) *packet {
	p := w.packet
	p.meta = maps.Clone(p.meta)
	p.state = w.state
	tracked := *nftables.ChainPriorityConntrack
	if w.port != 0 {
		tracked = *nftables.ChainPriorityRaw // by when Weft has said that it is not to be
	}
	if w.place == prerouting || w.place == output {
		switch {
		case priority < tracked:
			p.state = expr.CtStateBitINVALID
		case priority == tracked:
			p.state = 0
		}
	}
	if w.place == ingress {
		p.state = expr.CtStateBitINVALID
	}
	return &p
}

// on returns the packet as it is on some devices; false if it is on none of them.
func (w *passage) on(devices []string) (*packet, bool) {
	var names, indexes values
	for _, name := range w.links {
		if !slices.ContainsFunc(devices, func(d string) bool {
			start, more := strings.CutSuffix(d, "*")
			return d == name || more && strings.HasPrefix(name, start)
		}) {
			continue
		}
		names = append(names, wholly([]byte(nft.InterfaceKey(name))))
		if i, err := net.InterfaceByName(name); err == nil {
			indexes = append(indexes, wholly(nft.HostEndian(uint32(i.Index))))
		}
	}
	p := w.at(0)
	if w.place == ingress {
		p.meta[expr.MetaKeyIIFNAME], p.meta[expr.MetaKeyIIF] = names, indexes
	} else {
		p.meta[expr.MetaKeyOIFNAME], p.meta[expr.MetaKeyOIF] = names, indexes
	}
	return p, len(names) > 0
}

// passages are those that the plan in force needs: from endpoints to those of
// other nodes and back, of each family, and for the tunnel packets that carry it.
// It also says whether IPv4 goes through the tunnel.
func (s *Subject) passages() (ways []passage, tunnel4 bool) {
	p := s.Plan
	ipv4, ipv6 := rtnl.Routed(p)
	if len(p.Local.Pools) > 0 {
		for _, is6 := range []bool{false, true} {
			if is6 && ipv6 || !is6 && ipv4 {
				ways = append(ways, s.forwarded(is6)...)
			}
		}
	}
	for _, t := range rtnl.Overlays(s.Node.Stamps, p) {
		if peers := s.Peers[t.Name]; len(peers) > 0 {
			ways = append(ways, s.tunnelled(t, peers)...)
		}
	}
	return ways, ipv4 && len(p.Local.Tunnels) > 0
}

// devices are those by which a packet comes and goes.
type devices struct {
	names, indexes values
}

// noDevice is what a packet has at a place where it has not come by a device, or
// where it is not known yet by which it will go.
var noDevice = devices{values{wholly(make([]byte, unix.IFNAMSIZ))}, values{wholly(make([]byte, 4))}}

func (p packet) between(in, out devices) packet {
	p.meta = maps.Clone(p.meta)
	p.meta[expr.MetaKeyIIFNAME], p.meta[expr.MetaKeyIIF] = in.names, in.indexes
	p.meta[expr.MetaKeyOIFNAME], p.meta[expr.MetaKeyOIF] = out.names, out.indexes
	return p
}

// forwarded are the passages of the first packets of TCP connections between an
// endpoint and another node's. Nothing translated them.
func (s *Subject) forwarded(ipv6 bool) (ways []passage) {
	const translated = 1<<4 | 1<<5 // IPS_SRC_NAT, IPS_DST_NAT
	// Endpoints come and go, and any name of Weft's stands for theirs.
	endpoints := devices{names: values{wholly([]byte(nft.InterfaceKey("weft0123456789a")))}}
	for _, link := range s.Node.Links {
		endpoints.indexes = append(endpoints.indexes, wholly(nft.HostEndian(uint32(link))))
	}
	var here, there, hops []netip.Prefix
	for _, pool := range s.Plan.Local.Pools {
		if pool.Prefix.Addr().Is6() == ipv6 {
			here = append(here, pool.Prefix)
		}
	}
	for k, r := range s.Plan.Routes.All() {
		if (r.Way == plan.ToTunnel || r.Way == plan.ToNextHop) && !r.EndpointsOnly && k.Prefix.Addr().Is6() == ipv6 {
			there = append(there, k.Prefix)
			for _, name := range r.Peers {
				if via := s.Plan.Peer(name).NextHop(k.Prefix.Addr()); via.IsValid() {
					hops = append(hops, interval.Single(via))
				}
			}
		}
	}
	var others devices
	var links []string
	for _, t := range rtnl.Overlays(s.Node.Stamps, s.Plan) {
		others.names, links = append(others.names, wholly([]byte(nft.InterfaceKey(t.Device)))), append(links, t.Device)
		if device, ok := s.Node.Tunnels[t.Name]; ok {
			others.indexes = append(others.indexes, wholly(nft.HostEndian(uint32(device.Index))))
		}
	}
	if len(links) == 0 {
		others, links = s.leading(hops, netip.Addr{})
	}
	const fromAny, toAny = 12, 16
	source, destination, length := uint32(fromAny), uint32(toAny), 4
	ip := "ip"
	if ipv6 {
		source, destination, length, ip = 8, 24, 16, "ip6"
	}
	for _, incoming := range []bool{false, true} {
		p := newPacket(ipv6, unix.IPPROTO_TCP, unix.RTN_UNICAST, unix.RTN_UNICAST)
		p.status = values{{make([]byte, 4), nft.HostEndian(translated)}}
		from, to, in, out := here, there, endpoints, others
		inLinks, outLinks := slices.Collect(maps.Keys(s.Node.Links)), links
		if incoming {
			from, to, in, out = there, here, others, endpoints
			inLinks, outLinks = outLinks, inLinks
		}
		fromOne, _ := interval.Common(from, !ipv6)
		toOne, _ := interval.Common(to, !ipv6)
		p.fields = append(p.fields,
			field{expr.PayloadBaseNetworkHeader, source, values{within(fromOne, length)}},
			field{expr.PayloadBaseNetworkHeader, destination, values{within(toOne, length)}})
		add := func(at place, in, out devices, links []string, chosen, iptables string) {
			ways = append(ways, passage{place: at, packet: p.between(in, out), state: expr.CtStateBitNEW, incoming: incoming, links: links, chosen: chosen, iptables: iptables})
		}
		comes, goes := "iifname 'weft*'", "oifname 'weft*'"
		iptablesComes, iptablesGoes := "-i weft+", "-o weft+"
		if tunnelled := len(s.Plan.Local.Tunnels) > 0; !tunnelled && incoming {
			comes, iptablesComes = fmt.Sprintf("%s daddr %s", ip, toOne), fmt.Sprintf("-d %s", toOne)
		} else if !tunnelled {
			goes, iptablesGoes = fmt.Sprintf("%s saddr %s", ip, fromOne), fmt.Sprintf("-s %s", fromOne)
		}
		add(ingress, in, noDevice, inLinks, comes, "")
		add(prerouting, in, noDevice, nil, comes, iptablesComes)
		add(forward, in, out, nil, "", "")
		add(postrouting, in, out, nil, goes, iptablesGoes)
		add(egress, noDevice, out, outLinks, goes, "")
	}
	return ways
}

// tunnelled are the passages of a tunnel's packets, which nothing tracks.
func (s *Subject) tunnelled(t rtnl.Overlay, peers map[netip.Addr]bool) (ways []passage) {
	ipv6 := !t.VTEP.Is4()
	var hops []netip.Prefix
	var others values
	for a := range peers {
		others, hops = append(others, wholly(a.AsSlice())), append(hops, interval.Single(a))
	}
	own := values{wholly(t.VTEP.AsSlice())}
	underlay, links := s.leading(hops, t.VTEP)
	source, destination := uint32(12), uint32(16)
	if ipv6 {
		source, destination = 8, 24
	}
	chosen, iptables := fmt.Sprintf("udp dport %d", t.Port), fmt.Sprintf("-p udp --dport %d", t.Port)
	for _, incoming := range []bool{true, false} {
		from, to := others, own
		kinds := [2]byte{unix.RTN_UNICAST, unix.RTN_LOCAL}
		in, out := underlay, noDevice
		places := []place{ingress, prerouting, input}
		if !incoming {
			from, to, kinds = own, others, [2]byte{unix.RTN_LOCAL, unix.RTN_UNICAST}
			in, out, places = noDevice, underlay, []place{output, postrouting, egress}
		}
		p := newPacket(ipv6, unix.IPPROTO_UDP, kinds[0], kinds[1])
		p.fields = append(p.fields,
			field{expr.PayloadBaseNetworkHeader, source, from},
			field{expr.PayloadBaseNetworkHeader, destination, to},
			field{expr.PayloadBaseTransportHeader, 2, values{wholly(binary.BigEndian.AppendUint16(nil, t.Port))}})
		for _, at := range places {
			ways = append(ways, passage{place: at, packet: p.between(in, out), state: expr.CtStateBitUNTRACKED, incoming: incoming, port: t.Port, links: links,
				chosen: chosen, iptables: iptables})
		}
	}
	return ways
}

// leading returns the devices that lead to other machines.
func (s *Subject) leading(machines []netip.Prefix, own netip.Addr) (all devices, links []string) {
	addresses := func(yield func(netip.Addr) bool) {
		for _, m := range machines {
			if !yield(m.Addr()) {
				return
			}
		}
	}
	for link := range s.Node.LeadingTo(addresses, own) {
		i, err := net.InterfaceByIndex(link)
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		all.indexes = append(all.indexes, wholly(nft.HostEndian(uint32(link))))
		all.names = append(all.names, wholly([]byte(nft.InterfaceKey(i.Name))))
		links = append(links, i.Name)
	}
	return all, links
}
