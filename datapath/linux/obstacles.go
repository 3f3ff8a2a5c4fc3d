package linux

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// Obstacles says which chains of others drop what endpoints send and get, or
// the tunnel packets that carry it, which routing rules and routes lead it astray,
// and which setting drops it; see datapath.Surveyor. What it cannot tell it leaves
// out: it follows the rules of a chain as such a packet would meet them, and where
// one that it does not understand might accept the packet, it is silent.
func (d *DataPlane) Obstacles() ([]string, error) {
	var found []string
	err := d.in(func() error {
		ways, tunnel4 := d.passages()
		dropping, err := droppingChains(ways)
		legacy, legacyErr := droppingLegacy(ways)
		err, found = errors.Join(err, legacyErr), append(dropping, legacy...)
		for _, t := range d.travels() {
			r, routingErr := readRouting(t.is4, t.concerns())
			if err = errors.Join(err, routingErr); routingErr == nil {
				found = append(found, r.astray(t)...)
			}
		}
		if tunnel4 {
			why, strictErr := strictFilter()
			if err = errors.Join(err, strictErr); why != "" {
				found = append(found, why)
			}
		}
		return err
	})
	slices.Sort(found)
	return slices.Compact(found), err
}

// droppingLegacy says which chains of iptables-legacy drop packets.
func droppingLegacy(ways []passage) (found []string, _ error) {
	var errs []error
	for _, is6 := range []bool{false, true} {
		f := legacyFamilies[is6]
		if !slices.ContainsFunc(ways, func(w passage) bool { return w.packet.ipv6 == is6 }) {
			continue
		}
		used, err := f.inUse()
		errs = append(errs, err)
		for _, name := range used {
			t, err := f.read(name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			for _, place := range inOrder {
				c, ok := t.hooks[hookNumbers[place]]
				if !ok {
					continue
				}
				end := fates{chain: fmt.Sprintf("chain %s of the table %s of %s", iptablesChains[place], name, f.command),
					mend: func(w *passage) string { return w.mendIptables(f.command, name) }}
				for _, w := range ways {
					if w.place != place || w.packet.ipv6 != is6 {
						continue
					}
					fate, err := w.at(nftables.ChainPriority(legacyPriorities[name])).through(t, strconv.FormatUint(uint64(c.begin), 10))
					errs = append(errs, err)
					if fate == isDropped || fate == goesOn && c.drops {
						end.drops(w)
					}
				}
				found = append(found, end.lines()...)
			}
		}
	}
	return found, errors.Join(errs...)
}

// droppingChains says which chains of others drop packets.
func droppingChains(ways []passage) (found []string, _ error) {
	if len(ways) == 0 {
		return nil, nil
	}
	conn, err := nftConn()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	devices, err := chainDevices()
	if err != nil {
		return nil, err
	}
	var errs []error
	tables := map[nftables.Table]*nftTable{}
	for _, c := range chains {
		if c.Hooknum == nil || c.Priority == nil || c.Table.Name == tableName || c.Table.Name == policyTableName {
			continue
		}
		place, ok := placeOf(c.Table.Family, *c.Hooknum)
		if !ok {
			continue
		}
		table := tables[*c.Table]
		if table == nil {
			table = &nftTable{conn: conn, table: c.Table, known: map[string][][]expr.Any{}, sets: map[string]finder{}}
			tables[*c.Table] = table
		}
		end := fates{chain: fmt.Sprintf("chain %s of nftables table %s %s", c.Name, familyNames[c.Table.Family], c.Table.Name),
			mend: func(w *passage) string { return w.mendNftables(c) }}
		for _, w := range ways {
			if w.place != place || !w.meets(c) {
				continue
			}
			p := w.at(*c.Priority)
			if place == ingress || place == egress {
				if p, ok = w.on(devices[chainKey{c.Table.Family, c.Table.Name, c.Name}]); !ok {
					continue
				}
			}
			if c.Table.Family == nftables.TableFamilyNetdev {
				p.meta[expr.MetaKeyNFPROTO] = values{wholly([]byte{unix.NFPROTO_NETDEV})}
			}
			fate, err := p.through(table, c.Name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if fate == isDropped || fate == goesOn && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				end.drops(w)
			}
		}
		found = append(found, end.lines()...)
	}
	return found, errors.Join(errs...)
}

// fates are what a chain drops.
type fates struct {
	// chain is the chain for people, and mend returns how it lets packets through.
	chain string
	mend  func(*passage) string
	// tunnel is a way of tunnel packets on which it drops, and pods are those of
	// what endpoints send and get, by whether it is what they get.
	tunnel *passage
	pods   map[bool]*passage
}

func (f *fates) drops(w passage) {
	if w.port != 0 {
		f.tunnel = &w
		return
	}
	if f.pods == nil {
		f.pods = map[bool]*passage{}
	}
	f.pods[w.incoming] = &w
}

func (f *fates) lines() (lines []string) {
	if w := f.tunnel; w != nil {
		what := map[bool]string{true: "the tunnel packets that come from other nodes", false: "the tunnel packets to other nodes"}[w.incoming]
		state := ""
		if w.state == expr.CtStateBitUNTRACKED && (w.place == input || w.place == output) {
			state = ", in connection tracking's state untracked"
		}
		lines = append(lines, fmt.Sprintf("%s drops %s (UDP port %d%s); let them through: %s", f.chain, what, w.port, state, f.mend(w)))
	}
	sent, got := f.pods[false], f.pods[true]
	what := "what pods send and get"
	switch {
	case got == nil:
		what = "what pods send to other nodes"
	case sent == nil:
		what = "what pods get from other nodes"
	}
	if w := cmp.Or(sent, got); w != nil {
		mend := f.mend(w)
		if other := cmp.Or(got, sent); f.mend(other) != mend {
			mend += "; " + f.mend(other)
		}
		lines = append(lines, fmt.Sprintf("%s drops %s; let it through: %s", f.chain, what, mend))
	}
	return lines
}

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
		names = append(names, wholly([]byte(interfaceKey(name))))
		if i, err := net.InterfaceByName(name); err == nil {
			indexes = append(indexes, wholly(hostEndian(uint32(i.Index))))
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
func (d *DataPlane) passages() (ways []passage, tunnel4 bool) {
	d.state.Lock()
	defer d.state.Unlock()
	if d.compiler == nil {
		return nil, false
	}
	p := d.compiler.plan
	ipv4, ipv6 := routed(p)
	if len(p.Local.Pools) > 0 {
		for _, is6 := range []bool{false, true} {
			if is6 && ipv6 || !is6 && ipv4 {
				ways = append(ways, d.forwarded(is6)...)
			}
		}
	}
	t := p.Local.Tunnel
	if !t.IsZero() && len(d.compiler.sourcesOf().peers) > 0 {
		ways = append(ways, d.tunnelled()...)
	}
	return ways, ipv4 && !t.IsZero()
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
func (d *DataPlane) forwarded(ipv6 bool) (ways []passage) {
	const translated = 1<<4 | 1<<5 // IPS_SRC_NAT, IPS_DST_NAT
	c := d.compiler
	// Endpoints come and go, and any name of Weft's stands for theirs.
	endpoints := devices{names: values{wholly([]byte(interfaceKey("weft0123456789a")))}}
	for _, link := range c.node.links {
		endpoints.indexes = append(endpoints.indexes, wholly(hostEndian(uint32(link))))
	}
	var here, there, hops []netip.Prefix
	for _, pool := range c.plan.Local.Pools {
		if pool.Prefix.Addr().Is6() == ipv6 {
			here = append(here, pool.Prefix)
		}
	}
	tunnelled := !c.plan.Local.Tunnel.IsZero()
	for k, r := range c.plan.Routes.All() {
		if (r.Way == plan.ToTunnel || r.Way == plan.ToNextHop) && !r.EndpointsOnly && k.Prefix.Addr().Is6() == ipv6 {
			there, hops = append(there, k.Prefix), append(hops, single(r.Via))
		}
	}
	others, links := devices{names: values{wholly([]byte(interfaceKey(vxlanName)))}}, []string{vxlanName}
	if link := c.node.vxlan; link != 0 {
		others.indexes = values{wholly(hostEndian(uint32(link)))}
	}
	if !tunnelled {
		others, links = d.leading(hops, netip.Addr{})
	}
	const fromAny, toAny = 12, 16
	source, destination, length := uint32(fromAny), uint32(toAny), 4
	ip := "ip"
	if ipv6 {
		source, destination, length, ip = 8, 24, 16, "ip6"
	}
	for _, incoming := range []bool{false, true} {
		p := newPacket(ipv6, unix.IPPROTO_TCP, unix.RTN_UNICAST, unix.RTN_UNICAST)
		p.status = values{{make([]byte, 4), hostEndian(translated)}}
		from, to, in, out := here, there, endpoints, others
		inLinks, outLinks := slices.Collect(maps.Keys(c.node.links)), links
		if incoming {
			from, to, in, out = there, here, others, endpoints
			inLinks, outLinks = outLinks, inLinks
		}
		fromOne, _ := commonPrefix(from, !ipv6)
		toOne, _ := commonPrefix(to, !ipv6)
		p.fields = append(p.fields,
			field{expr.PayloadBaseNetworkHeader, source, values{within(fromOne, length)}},
			field{expr.PayloadBaseNetworkHeader, destination, values{within(toOne, length)}})
		add := func(at place, in, out devices, links []string, chosen, iptables string) {
			ways = append(ways, passage{place: at, packet: p.between(in, out), state: expr.CtStateBitNEW, incoming: incoming, links: links, chosen: chosen, iptables: iptables})
		}
		comes, goes := "iifname 'weft*'", "oifname 'weft*'"
		iptablesComes, iptablesGoes := "-i weft+", "-o weft+"
		if !tunnelled && incoming {
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

// tunnelled are the passages of tunnel packets, which nothing tracks.
func (d *DataPlane) tunnelled() (ways []passage) {
	t := d.compiler.plan.Local.Tunnel
	peers := d.compiler.sourcesOf().peers
	ipv6 := !t.VTEP.Is4()
	var hops []netip.Prefix
	var others values
	for a := range peers {
		others, hops = append(others, wholly(a.AsSlice())), append(hops, single(a))
	}
	own := values{wholly(t.VTEP.AsSlice())}
	underlay, links := d.leading(hops, t.VTEP)
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
func (d *DataPlane) leading(machines []netip.Prefix, own netip.Addr) (all devices, links []string) {
	addresses := func(yield func(netip.Addr) bool) {
		for _, m := range machines {
			if !yield(m.Addr()) {
				return
			}
		}
	}
	for link := range d.compiler.node.leadingTo(addresses, own) {
		i, err := net.InterfaceByIndex(link)
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		all.indexes = append(all.indexes, wholly(hostEndian(uint32(link))))
		all.names = append(all.names, wholly([]byte(interfaceKey(i.Name))))
		links = append(links, i.Name)
	}
	return all, links
}

// mendNftables lets the packets through a chain of nftables.
func (w *passage) mendNftables(c *nftables.Chain) string {
	command := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "iptables", nftables.TableFamilyIPv6: "ip6tables"}[c.Table.Family]
	_, theirs := legacyPriorities[c.Table.Name]
	switch {
	case command != "" && theirs && c.Name == iptablesChains[w.place]:
		return w.mendIptables(command, c.Table.Name)
	case c.Table.Name == "firewalld" && w.port != 0 && w.place == input:
		return fmt.Sprintf("firewall-cmd --permanent --add-port=%d/udp && firewall-cmd --reload", w.port)
	case c.Table.Name == "firewalld" && w.port == 0:
		return "firewall-cmd --permanent --zone=trusted --add-interface=weft+ && firewall-cmd --reload"
	}
	rule := fmt.Sprintf("nft insert rule %s %s %s", familyNames[c.Table.Family], c.Table.Name, c.Name)
	if w.chosen == "" {
		return fmt.Sprintf("%s iifname 'weft*' accept; %[1]s oifname 'weft*' accept", rule)
	}
	return fmt.Sprintf("%s %s accept", rule, w.chosen)
}

// mendIptables lets the packets through a chain of a table of iptables, with a
// command of the name.
func (w *passage) mendIptables(command, table string) string {
	if table != "filter" {
		command += " -t " + table
	}
	if w.iptables == "" {
		return fmt.Sprintf("%[1]s -I FORWARD -i weft+ -j ACCEPT; %[1]s -I FORWARD -o weft+ -j ACCEPT", command)
	}
	return fmt.Sprintf("%s -I %s %s -j ACCEPT", command, iptablesChains[w.place], w.iptables)
}

// chainKey names a chain of nftables.
type chainKey struct {
	family      nftables.TableFamily
	table, name string
}

// chainDevices returns the devices that chains of nftables are on, which the
// library does not read. A name that ends with an asterisk is the beginning of
// several.
func chainDevices() (map[chainKey][]string, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{Version: nl.NFNETLINK_V0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("list the devices of nftables chains: %w", err)
	}
	const hookDevice, hookDevices, devicePrefix = 3, 4, 2 // NFTA_HOOK_DEV, NFTA_HOOK_DEVS, NFTA_DEVICE_PREFIX
	all := map[chainKey][]string{}
	text := func(b []byte) string { return strings.TrimRight(string(b), "\x00") }
	for _, m := range messages {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		key, devices := chainKey{family: nftables.TableFamily(m[0])}, []string(nil)
		for kind, v := range attributes(m[nl.SizeofNfgenmsg:]) {
			switch kind {
			case unix.NFTA_CHAIN_TABLE:
				key.table = text(v)
			case unix.NFTA_CHAIN_NAME:
				key.name = text(v)
			case unix.NFTA_CHAIN_HOOK:
				for kind, v := range attributes(v) {
					switch kind {
					case hookDevice:
						devices = append(devices, text(v))
					case hookDevices:
						for kind, v := range attributes(v) {
							if name := text(v); kind == devicePrefix {
								devices = append(devices, name+"*")
							} else {
								devices = append(devices, name)
							}
						}
					}
				}
			}
		}
		all[key] = devices
	}
	return all, nil
}

// nftTable is an nftables table of somebody's.
type nftTable struct {
	conn  *nftables.Conn
	table *nftables.Table
	// known are the chains and sets that were read.
	known map[string][][]expr.Any
	sets  map[string]finder
}

// finder returns what a set says of all keys from one to another; perhaps where it
// does not say the same of all.
type finder func(low, high []byte) (verdict, certainty)

// rules returns the rules of a chain; false if there is no such chain, as it
// may just have been removed.
func (t *nftTable) rules(chain string) ([][]expr.Any, bool, error) {
	if all, ok := t.known[chain]; ok {
		return all, true, nil
	}
	rules, err := t.conn.GetRules(t.table, &nftables.Chain{Name: chain, Table: t.table})
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("list the rules of chain %s of nftables table %s: %w", chain, t.table.Name, err)
	}
	var all [][]expr.Any
	for _, r := range rules {
		all = append(all, r.Exprs)
	}
	t.known[chain] = all
	return all, true, nil
}

// find returns what a set says of keys; false where that cannot be told.
func (t *nftTable) find(name string) (finder, bool) {
	f, known := t.sets[name]
	if !known {
		f = t.read(name)
		t.sets[name] = f
	}
	return f, f != nil
}

func (t *nftTable) read(name string) finder {
	s, err := t.conn.GetSetByName(t.table, name)
	if err != nil || s.Dynamic {
		return nil
	}
	all, _, err := readElements(s)
	if err != nil {
		return nil
	}
	return all.finder(s.Interval)
}

// finder returns what finds keys among the elements of somebody's set. Those of
// an interval set are where an interval begins, and where one has ended.
func (all elements) finder(interval bool) finder {
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b element) int {
		// Where one ends and another begins, it is in that.
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(end(b), end(a)))
	})
	miss, has := verdict{}, no
	if len(sorted) > 0 && sorted[0].key == "" {
		miss, has = all[sorted[0]].verdict, yes // what holds for all that is not there
		sorted = sorted[1:]
	}
	// after returns how many elements are not behind a key.
	after := func(key []byte) int {
		n, _ := slices.BinarySearchFunc(sorted, string(key), func(e element, key string) int {
			if e.key <= key {
				return -1
			}
			return 1
		})
		return n
	}
	return func(low, high []byte) (verdict, certainty) {
		if len(sorted) > 0 && (len(sorted[0].key) != len(low) || sorted[0].last != "") {
			return verdict{}, perhaps // a part of the key alone is known
		}
		n := after(low)
		one := bytes.Equal(low, high)
		switch {
		case !one && after(high) != n:
			return verdict{}, perhaps
		case n == 0 || sorted[n-1].end:
		case interval, one && sorted[n-1].key == string(low):
			return all[sorted[n-1]].verdict, yes
		case sorted[n-1].key == string(low):
			return verdict{}, perhaps
		}
		return miss, has
	}
}

func end(e element) int {
	if e.end {
		return 1
	}
	return 0
}
