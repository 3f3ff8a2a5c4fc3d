package linux

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/plan"
)

// news is what the kernel told since somebody looked: of each object, what it
// told last.
type news struct {
	stamps Stamps
	// links are those of which something was told, by index; the value says
	// whether it was that they are gone. names are all their names.
	links map[int]bool
	names map[string]bool
	// routes, neighbours, fdb, addresses and rules hold what was added or
	// changed, or nil for what was deleted.
	routes     map[routeKey]*toldRoute
	neighbours map[neighbourKey]*toldNeighbour
	fdb        map[fdbKey]*netip.Addr
	addresses  map[addressKey]bool
	rules      map[rule]toldRule
	// lapsed are the links that were down, or lost an IPv4 address, if only for a
	// moment: the kernel takes a link's IPv4 routes with it, or with the last of
	// these, and does not tell.
	// removed are the addresses that were deleted, which take the sources of routes
	// with them the same way.
	lapsed  map[int]bool
	removed map[addressKey]bool
	// forwarding is the setting of an interface, or of all (index -1).
	forwarding map[confKey]bool
	// tables are those of the packet filter that others changed, and who.
	tables map[string]string
	// pending are the tables that a transaction touched of which the end was
	// not told yet, by the socket that it came from.
	pending map[uint32]map[string]bool
	// generation is that of the ruleset that was told last.
	generation uint32
	// overlooked says that there was more to tell than could be held.
	overlooked bool
}

// toldRoute is what is told of a route. lapsed says that its link lapsed since.
type toldRoute struct {
	protocol uint8
	route    route
	lapsed   bool
}

type toldNeighbour struct {
	protocol uint8
	mac      plan.MAC
}

type toldRule struct {
	protocol uint8
	there    bool
}

type confKey struct {
	ipv6 bool
	link int
}

func newNews(stamps Stamps) *news {
	return &news{stamps: stamps, links: map[int]bool{}, names: map[string]bool{}, routes: map[routeKey]*toldRoute{}, neighbours: map[neighbourKey]*toldNeighbour{},
		fdb: map[fdbKey]*netip.Addr{}, addresses: map[addressKey]bool{}, rules: map[rule]toldRule{}, forwarding: map[confKey]bool{},
		lapsed: map[int]bool{}, removed: map[addressKey]bool{},
		tables: map[string]string{}, pending: map[uint32]map[string]bool{}}
}

// routing takes note of a message of rtnetlink(7).
func (n *news) routing(h unix.NlMsghdr, data []byte) {
	switch h.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return
		}
		m := nl.DeserializeIfInfomsg(data)
		index := int(m.Index)
		n.links[index] = h.Type == unix.RTM_DELLINK && m.Family == unix.AF_UNSPEC
		if n.links[index] || m.Flags&unix.IFF_UP == 0 {
			n.lapse(index)
		}
		for kind, v := range message.Attributes(data[unix.SizeofIfInfomsg:]) {
			if kind == unix.IFLA_IFNAME {
				n.names[strings.TrimRight(string(v), "\x00")] = true
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
	}
}

// lapse takes note that a link was down or lost an IPv4 address.
func (n *news) lapse(link int) {
	n.lapsed[link] = true
	for _, r := range n.routes {
		if r != nil && r.route.link == link {
			r.lapsed = true
		}
	}
}

func (n *news) route(there bool, data []byte) {
	if len(data) < unix.SizeofRtMsg {
		return
	}
	m := nl.DeserializeRtMsg(data)
	r := netlink.Route{Table: int(m.Table), Protocol: netlink.RouteProtocol(m.Protocol), Type: int(m.Type), Scope: netlink.Scope(m.Scope),
		Flags: int(m.Flags), Tos: int(m.Tos)}
	to := interval.Everything(m.Family == unix.AF_INET).Addr()
	for kind, v := range message.Attributes(data[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			to = addrOf(v)
		case unix.RTA_TABLE:
			r.Table = message.Int(v)
		case unix.RTA_PRIORITY:
			r.Priority = message.Int(v)
		case unix.RTA_OIF:
			r.LinkIndex = message.Int(v)
		case unix.RTA_GATEWAY:
			r.Gw = v
		case unix.RTA_PREFSRC:
			r.Src = v
		case unix.RTA_MULTIPATH:
			r.MultiPath = []*netlink.NexthopInfo{{}}
		case unix.RTA_METRICS:
			for kind, v := range message.Attributes(v) {
				if kind == unix.RTAX_MTU {
					r.MTU = message.Int(v)
				}
			}
		}
	}
	if prefix := netip.PrefixFrom(to, int(m.Dst_len)); prefix.IsValid() {
		r.Dst = ipNet(prefix)
	}
	key, value, ok := routeFrom(r)
	if !ok {
		return
	}
	n.routes[key] = nil
	if there {
		n.routes[key] = &toldRoute{protocol: m.Protocol, route: value}
	}
}

func (n *news) neighbour(there bool, data []byte) {
	neigh, protocol, err := neighbourFrom(data)
	if err != nil || neigh.IP == nil {
		return
	}
	mac, is := plan.MAC{}, there && len(neigh.HardwareAddr) == 6
	if len(neigh.HardwareAddr) == 6 {
		mac = plan.MAC(neigh.HardwareAddr)
	}
	if neigh.Family == unix.AF_BRIDGE {
		key := fdbKey{neigh.LinkIndex, mac}
		n.fdb[key] = nil
		if vtep := addrOf(neigh.IP); is {
			n.fdb[key] = &vtep
		}
		return
	}
	key := neighbourKey{neigh.LinkIndex, addrOf(neigh.IP)}
	n.neighbours[key] = nil
	if is && neigh.State&netlink.NUD_PERMANENT != 0 {
		n.neighbours[key] = &toldNeighbour{protocol, mac}
	}
}

func (n *news) address(there bool, data []byte) {
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
	key := addressKey{int(m.Index), netip.PrefixFrom(a, int(m.Prefixlen))}
	n.addresses[key] = there
	if !there {
		n.removed[key] = true
		if a.Is4() {
			n.lapse(key.link)
		}
	}
}

func (n *news) rule(there bool, data []byte) {
	if len(data) < unix.SizeofRtMsg {
		return
	}
	r := ruleFrom(data)
	n.rules[r.rule] = toldRule{r.protocol, there}
}

// The attributes of a message about settings (linux/netconf.h).
const (
	netconfIndex      = 1
	netconfForwarding = 2
)

func (n *news) conf(data []byte) {
	if len(data) < unix.NLMSG_ALIGNTO {
		return
	}
	key, forwarding := confKey{ipv6: data[0] == unix.AF_INET6}, -1
	for kind, v := range message.Attributes(data[unix.NLMSG_ALIGNTO:]) {
		switch kind {
		case netconfIndex:
			key.link = message.Int(v)
		case netconfForwarding:
			forwarding = message.Int(v)
		}
	}
	if forwarding >= 0 {
		n.forwarding[key] = forwarding > 0
	}
}

// next returns what comes after n. A transaction may have been told in part: its
// end comes last.
func (n *news) next() *news {
	next := newNews(n.stamps)
	next.generation = n.generation
	if !n.overlooked {
		next.pending = n.pending
	}
	return next
}

// filter takes note of a message of nftables. Those of a transaction come in a
// row, from the socket that asked for it, and end with who that was.
func (n *news) filter(h unix.NlMsghdr, data []byte) {
	if h.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < nl.SizeofNfgenmsg {
		return
	}
	if h.Type&0xff != unix.NFT_MSG_NEWGEN {
		for kind, v := range message.Attributes(data[nl.SizeofNfgenmsg:]) {
			if kind != unix.NFTA_TABLE_NAME { // the first attribute of all that is in a table names that
				continue
			}
			if table := strings.TrimRight(string(v), "\x00"); data[0] == byte(nftables.TableFamilyINet) && (table == n.stamps.Table || table == n.stamps.PolicyTable) {
				if n.pending[h.Pid] == nil {
					n.pending[h.Pid] = map[string]bool{}
				}
				n.pending[h.Pid][table] = true
			}
			break
		}
		return
	}
	touched := n.pending[h.Pid]
	delete(n.pending, h.Pid)
	by := ""
	for kind, v := range message.Attributes(data[nl.SizeofNfgenmsg:]) {
		switch {
		case kind == unix.NFTA_GEN_ID && len(v) == 4:
			n.generation = message.BigEndian(v)
		case kind == unix.NFTA_GEN_PROC_NAME:
			by = strings.TrimRight(string(v), "\x00") + by
		case kind == unix.NFTA_GEN_PROC_PID && len(v) == 4:
			by += fmt.Sprintf(" (process %d)", message.BigEndian(v))
		}
	}
	if nft.OwnSocket(h.Pid) {
		return
	}
	for table := range touched {
		n.tables[table] = by
	}
}

// judge says what of the news is not as the data plane wants it.
func (d *DataPlane) judge(n *news) []datapath.Disturbance {
	var found []datapath.Disturbance
	say := func(format string, args ...any) {
		found = append(found, datapath.Disturbance{What: fmt.Sprintf(format, args...)})
	}
	if n.overlooked {
		say(overlooked)
	}
	for _, table := range slices.Sorted(maps.Keys(n.tables)) {
		found = append(found, datapath.Disturbance{What: "nftables table inet " + table, By: n.tables[table]})
	}
	c := d.compiler
	names := make(map[int]string, len(c.node.links))
	for name, index := range c.node.links {
		names[index] = name
	}
	for index, gone := range n.links {
		if what := d.wrongLink(index, gone, names); what != "" {
			say("%s", what)
		}
	}
	for name := range c.missing {
		if n.names[name] {
			if _, err := d.kernel.handle.LinkByName(name); err == nil {
				say("interface %s is there", name)
			}
		}
	}
	// What was on an endpoint's interface goes with it.
	stands := func(link int) bool {
		if names[link] == "" {
			return true
		}
		l, err := d.kernel.handle.LinkByIndex(link)
		if err != nil {
			return !gone(err)
		}
		return l.Attrs().Flags&net.FlagUp != 0
	}
	for key, r := range n.routes {
		own := r != nil && r.protocol == d.stamps.Protocol
		switch want, ok := c.want.routes.Now[key]; {
		case ok && (!own || r.route != want) && stands(want.link), !ok && own && !r.lapsed:
			say("route %s", key.prefix)
		}
	}
	for key, is := range n.neighbours {
		switch want, ok := c.want.neighbours.Now[key]; {
		case ok && (is == nil || is.mac != want) && stands(key.link),
			!ok && is != nil && (is.protocol == d.stamps.Protocol || c.node.isTunnel(key.link)):
			say("neighbour %s", key.addr)
		}
	}
	for key, vtep := range n.fdb {
		switch want, ok := c.want.fdb.Now[key]; {
		case ok && (vtep == nil || *vtep != want), !ok && vtep != nil && c.node.isTunnel(key.link):
			say("forwarding of %s", key.mac)
		}
	}
	for key, there := range n.addresses {
		name, own := c.node.own(key.link)
		if _, ok := c.want.addresses.Now[key]; own && ok != there {
			say("address %s of %s", key.prefix, name)
		}
	}
	for r, is := range n.rules {
		_, ok := c.want.rules.Now[r]
		if ok && !is.there || !ok && is.there && is.protocol == d.stamps.Protocol && r.from.Bits() > 0 {
			say("%s", r)
		}
	}
	for key, on := range n.forwarding {
		needed := d.forwards[0] && !key.ipv6 || d.forwards[1] && key.ipv6
		name := names[key.link]
		if own, ok := c.node.own(key.link); ok && !key.ipv6 {
			name = own // of IPv6 the kernel asks the setting for all
		}
		if needed && !on && (key.link == -1 || name != "") {
			say("forwarding of %s", map[bool]string{true: "all interfaces", false: name}[name == ""])
		}
	}
	return found
}

// untold reports whether something may have gone that is wanted, without being
// told. Of an interface that is gone, its absence shows.
func (d *DataPlane) untold(n *news) bool {
	c := d.compiler
	for key := range n.removed {
		if _, ok := c.want.addresses.Now[key]; ok {
			return true
		}
	}
	if len(n.lapsed) == 0 {
		return false
	}
	suspects := map[int]bool{}
	for key, r := range c.want.routes.Now {
		if told := n.routes[key]; n.lapsed[r.link] && (told == nil || told.lapsed) {
			suspects[r.link] = true
		}
	}
	for link := range suspects {
		if _, err := d.kernel.handle.LinkByIndex(link); !gone(err) {
			return true
		}
	}
	return false
}

// wrongLink says what is wrong with an interface that is Weft's or that the
// tunnel goes through; empty for others.
func (d *DataPlane) wrongLink(index int, gone bool, names map[int]string) string {
	c := d.compiler
	name, mac, mtu := names[index], plan.MAC{}, 0
	if tunnel, ok := c.node.tunnel(index); ok {
		t, _ := c.plan.Local.Tunnel(tunnel)
		name, mac, mtu = d.stamps.TunnelPrefix+tunnel, t.MAC, c.node.tunnels[tunnel].mtu
	} else if index == c.node.bridge {
		name, mac = d.stamps.Bridge, plan.MACOf(c.plan.Local.Pools[0].Gateway)
	} else if name == "" {
		return d.wrongLower(index)
	}
	l, err := d.kernel.handle.LinkByIndex(index)
	switch endpoint := names[index] != ""; {
	case err != nil && endpoint:
		return "" // who makes them tells of that
	case err != nil:
		return "interface " + name
	case l.Attrs().Name != name:
		return fmt.Sprintf("interface %s, which is %s now", name, l.Attrs().Name)
	case l.Attrs().Flags&net.FlagUp == 0, endpoint && l.Attrs().Group != d.stamps.Group:
		return "interface " + name
	case !endpoint && (plan.MAC(l.Attrs().HardwareAddr) != mac || mtu != 0 && l.Attrs().MTU != mtu):
		return "interface " + name
	}
	return ""
}

// wrongLower says what is wrong with an interface that tunnels go through; empty for
// others.
func (d *DataPlane) wrongLower(index int) string {
	c := d.compiler
	for _, t := range c.plan.Local.Tunnels {
		device, ok := c.node.tunnels[t.Name]
		if !ok || index != c.node.holding(t.VTEP) {
			continue
		}
		if l, err := d.kernel.handle.LinkByIndex(index); err == nil && l.Attrs().MTU-overheadOver(t.VTEP) != device.mtu {
			return "MTU of " + l.Attrs().Name
		}
	}
	return ""
}
