package linux

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
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
		if err != nil || !used {
			errs = append(errs, err)
			continue
		}
		t, err := f.read()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, w := range ways {
			c, ok := t.hooks[uint32(w.hook)]
			if w.packet.ipv6 != is6 || !ok {
				continue
			}
			end, err := w.packet.through(t, strconv.FormatUint(uint64(c.begin), 10))
			errs = append(errs, err)
			if end == isDropped || end == goesOn && c.drops {
				name := map[nftables.ChainHook]string{*nftables.ChainHookInput: "INPUT", *nftables.ChainHookForward: "FORWARD"}[w.hook]
				found = append(found, w.says(fmt.Sprintf("chain %s of the table filter of %s", name, f.command), w.mendIptables(f.command)))
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
	var errs []error
	for _, c := range chains {
		if c.Hooknum == nil || c.Type != nftables.ChainTypeFilter || c.Table.Name == tableName || c.Table.Name == policyTableName {
			continue
		}
		table := &nftTable{conn: conn, table: c.Table}
		for _, w := range ways {
			if *c.Hooknum != w.hook || !w.meets(c.Table.Family) {
				continue
			}
			end, err := w.packet.through(table, c.Name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if end == goesOn && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				end = isDropped
			}
			if end == isDropped {
				found = append(found, w.obstacle(c))
			}
		}
	}
	return found, errors.Join(errs...)
}

// passage is a way through the node on which others may drop packets.
type passage struct {
	hook   nftables.ChainHook
	packet packet
	// port is that of the tunnel, where tunnel packets go this way, and 0 where
	// what endpoints send and get does.
	port uint16
}

// meets reports whether the passage leads through tables of a family.
func (w *passage) meets(family nftables.TableFamily) bool {
	switch family {
	case nftables.TableFamilyINet:
		return true
	case nftables.TableFamilyIPv4:
		return !w.packet.ipv6
	case nftables.TableFamilyIPv6:
		return w.packet.ipv6
	}
	return false
}

// passages are those that the plan in force needs: from endpoints to other
// nodes, of each family, and for tunnel packets from other nodes. It also says
// whether IPv4 goes through the tunnel.
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
				ways = append(ways, passage{hook: *nftables.ChainHookForward, packet: d.forwarded(is6)})
			}
		}
	}
	t := p.Local.Tunnel
	if !t.IsZero() && len(d.compiler.sourcesOf().peers) > 0 {
		ways = append(ways, passage{hook: *nftables.ChainHookInput, packet: d.tunnelled(), port: t.Port})
	}
	return ways, ipv4 && !t.IsZero()
}

// forwarded is the first packet of an endpoint's TCP connection to another
// node's endpoint. Nothing translated it.
func (d *DataPlane) forwarded(ipv6 bool) packet {
	const translated = 1<<4 | 1<<5 // IPS_SRC_NAT, IPS_DST_NAT
	p := newPacket(ipv6, unix.IPPROTO_TCP, unix.RTN_UNICAST)
	p.state = expr.CtStateBitNEW
	p.status = values{{make([]byte, 4), hostEndian(translated)}}
	p.meta[expr.MetaKeyIIFNAME] = values{wholly([]byte(interfaceKey("weft0123456789a")))}
	p.meta[expr.MetaKeyOIFNAME] = values{wholly([]byte(interfaceKey(vxlanName)))}
	var endpoints values
	for _, link := range d.compiler.node.links {
		endpoints = append(endpoints, wholly(hostEndian(uint32(link))))
	}
	p.meta[expr.MetaKeyIIF] = endpoints
	if link := d.compiler.node.vxlan; link != 0 {
		p.meta[expr.MetaKeyOIF] = values{wholly(hostEndian(uint32(link)))}
	}
	return p
}

// tunnelled is a tunnel packet from another node, which nothing tracks.
func (d *DataPlane) tunnelled() packet {
	t := d.compiler.plan.Local.Tunnel
	peers := d.compiler.sourcesOf().peers
	ipv6 := !t.VTEP.Is4()
	p := newPacket(ipv6, unix.IPPROTO_UDP, unix.RTN_LOCAL)
	p.state = expr.CtStateBitUNTRACKED
	var sources values
	for a := range peers {
		sources = append(sources, wholly(a.AsSlice()))
	}
	from, to := uint32(12), uint32(16)
	if ipv6 {
		from, to = 8, 24
	}
	p.fields = append(p.fields,
		field{expr.PayloadBaseNetworkHeader, from, sources},
		field{expr.PayloadBaseNetworkHeader, to, values{wholly(t.VTEP.AsSlice())}},
		field{expr.PayloadBaseTransportHeader, 2, values{wholly(binary.BigEndian.AppendUint16(nil, t.Port))}})
	for link := range d.compiler.node.leadingTo(maps.Keys(peers), t.VTEP) {
		i, err := net.InterfaceByIndex(link)
		if err != nil || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		p.meta[expr.MetaKeyIIF] = append(p.meta[expr.MetaKeyIIF], wholly(hostEndian(uint32(link))))
		p.meta[expr.MetaKeyIIFNAME] = append(p.meta[expr.MetaKeyIIFNAME], wholly([]byte(interfaceKey(i.Name))))
	}
	return p
}

// obstacle says which chain of nftables drops the packets, and how to let them
// through.
func (w *passage) obstacle(c *nftables.Chain) string {
	family := cmp.Or(map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6"}[c.Table.Family], "inet")
	name := map[nftables.ChainHook]string{*nftables.ChainHookInput: "INPUT", *nftables.ChainHookForward: "FORWARD"}[w.hook]
	rule := fmt.Sprintf("nft insert rule %s %s %s", family, c.Table.Name, c.Name)
	var mend string
	switch {
	case c.Table.Name == "filter" && family == "ip" && c.Name == name:
		mend = w.mendIptables("iptables")
	case c.Table.Name == "filter" && family == "ip6" && c.Name == name:
		mend = w.mendIptables("ip6tables")
	case c.Table.Name == "firewalld" && w.port != 0:
		mend = fmt.Sprintf("firewall-cmd --permanent --add-port=%d/udp && firewall-cmd --reload", w.port)
	case c.Table.Name == "firewalld":
		mend = "firewall-cmd --permanent --zone=trusted --add-interface=weft+ && firewall-cmd --reload"
	case w.port != 0:
		mend = fmt.Sprintf("%s udp dport %d accept", rule, w.port)
	default:
		mend = fmt.Sprintf("%s iifname 'weft*' accept; %[1]s oifname 'weft*' accept", rule)
	}
	return w.says(fmt.Sprintf("chain %s of nftables table %s %s", c.Name, family, c.Table.Name), mend)
}

// mendIptables lets the packets through with a command of the name.
func (w *passage) mendIptables(command string) string {
	if w.port != 0 {
		return fmt.Sprintf("%s -I INPUT -p udp --dport %d -j ACCEPT", command, w.port)
	}
	return fmt.Sprintf("%[1]s -I FORWARD -i weft+ -j ACCEPT; %[1]s -I FORWARD -o weft+ -j ACCEPT", command)
}

func (w *passage) says(chain, mend string) string {
	if w.port != 0 {
		return fmt.Sprintf("%s drops the tunnel packets that come from other nodes (UDP port %d, in connection tracking's state untracked); let them through: %s", chain, w.port, mend)
	}
	return fmt.Sprintf("%s drops what pods send and get; let it through: %s", chain, mend)
}

// nftTable is an nftables table of somebody's.
type nftTable struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// rules returns the rules of a chain; false if there is no such chain, as it
// may just have been removed.
func (t *nftTable) rules(chain string) ([][]expr.Any, bool, error) {
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
	return all, true, nil
}

// find returns what a set says of a key; false where that cannot be told.
func (t *nftTable) find(name string) (func(key []byte) (verdict, certainty), bool) {
	s, err := t.conn.GetSetByName(t.table, name)
	if err != nil || s.Dynamic {
		return nil, false
	}
	all, _, err := readElements(s)
	if err != nil {
		return nil, false
	}
	return all.finder(s.Interval), true
}

// finder returns what finds a key among the elements of somebody's set. Those of
// an interval set are where an interval begins, and where one has ended.
func (all elements) finder(interval bool) func(key []byte) (verdict, certainty) {
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b element) int {
		// Where one ends and another begins, it is in that.
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(end(b), end(a)))
	})
	miss, has := verdict{}, no
	if len(sorted) > 0 && sorted[0].key == "" {
		miss, has = all[sorted[0]].verdict, yes // what holds for all that is not there
		sorted = sorted[1:]
	}
	return func(key []byte) (verdict, certainty) {
		if len(sorted) > 0 && (len(sorted[0].key) != len(key) || sorted[0].last != "") {
			return verdict{}, perhaps // a part of the key alone is known
		}
		after, _ := slices.BinarySearchFunc(sorted, string(key), func(e element, key string) int {
			if e.key <= key {
				return -1
			}
			return 1
		})
		if after > 0 && !sorted[after-1].end && (interval || sorted[after-1].key == string(key)) {
			return all[sorted[after-1]].verdict, yes
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
