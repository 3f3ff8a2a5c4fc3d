package linux

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/linux/nft"
	"github.com/weftnet/weft/datapath/linux/rtnl"
	"github.com/weftnet/weft/plan"
)

// news is what the kernel told since somebody looked.
type news struct {
	*rtnl.News
	stamps Stamps
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

func newNews(stamps Stamps) *news {
	return &news{News: rtnl.NewNews(), stamps: stamps, tables: map[string]string{}, pending: map[uint32]map[string]bool{}}
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
			if table := strings.TrimRight(string(v), "\x00"); data[0] == byte(nftables.TableFamilyINet) && slices.Contains(n.stamps.Tables(), table) {
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
	names := make(map[int]string, len(c.node.Links))
	for name, index := range c.node.Links {
		names[index] = name
	}
	for index, gone := range n.Links {
		if what := d.wrongLink(index, gone, names); what != "" {
			say("%s", what)
		}
	}
	for name := range c.missing {
		if n.Names[name] {
			if l, err := d.kernel.LinkByName(name); err == nil && rtnl.MayBe(l, name) && d.mayBe(name) {
				say("interface %s is there", name)
			}
		}
	}
	if len(c.missing) > 0 {
		for index := range n.Links {
			l, err := d.kernel.LinkByIndex(index)
			if err != nil {
				continue
			}
			if name := rtnl.Whose(l); c.missing[name] && d.mayBe(name) && l.Attrs().Name != name {
				say("interface %s, which is %s now", name, l.Attrs().Name)
			}
		}
	}
	for name, m := range d.misnamed {
		if m.Over(name, n.Links, d.kernel.LinkByIndex) {
			say("interface %s, whose name or alias is no longer in question", name)
		}
	}
	for name := range n.Names {
		index, ok := c.node.Links[name]
		if gone, told := n.Links[index]; ok && (gone || !told) {
			if l, err := d.kernel.LinkByName(name); err == nil && l.Attrs().Index != index {
				say("interface %s, which is another now", name)
			}
		}
	}
	// What was on an endpoint's interface goes with it.
	stands := func(link int) bool {
		if names[link] == "" {
			return true
		}
		l, err := d.kernel.LinkByIndex(link)
		if err != nil {
			return !rtnl.Gone(err)
		}
		return l.Attrs().Flags&net.FlagUp != 0
	}
	refused := make(map[rtnl.RouteKey]bool, len(d.refused))
	for _, r := range d.refused {
		refused[r.Key] = true
	}
	for key, r := range n.Routes {
		if refused[key] {
			continue // what is there is another's, who may do with it as he likes
		}
		own := r != nil && r.Protocol == d.stamps.Protocol
		switch want, ok := c.want.Routes.Now[key]; {
		case ok && (!own || r.Route != want) && stands(want.Link), !ok && own && !r.Lapsed:
			say("route %s", key.Prefix)
		}
	}
	for key, is := range n.Neighbours {
		switch want, ok := c.want.Neighbours.Now[key]; {
		case ok && (is == nil || is.MAC != want) && stands(key.Link),
			!ok && is != nil && (is.Protocol == d.stamps.Protocol || c.node.IsTunnel(key.Link)):
			say("neighbour %s", key.Addr)
		}
	}
	for key, vtep := range n.FDB {
		switch want, ok := c.want.FDB.Now[key]; {
		case ok && (vtep == nil || *vtep != want), !ok && vtep != nil && c.node.IsTunnel(key.Link):
			say("forwarding of %s", key.MAC)
		}
	}
	for key, there := range n.Addresses {
		name, own := c.node.Own(key.Link)
		if _, ok := c.want.Addresses.Now[key]; own && ok != there {
			say("address %s of %s", key.Prefix, name)
		}
	}
	for r, is := range n.Rules {
		_, ok := c.want.Rules.Now[r]
		if ok && !is.There || !ok && is.There && is.Protocol == d.stamps.Protocol && r.From.Bits() > 0 {
			say("%s", r)
		}
	}
	unshaped, err := d.kernel.Unshaped(n.News, c.want.Shaping.Now)
	if err != nil {
		say("%s: %v", overlooked, err)
	}
	for _, index := range unshaped {
		say("limit of the bandwidth of %s", names[index])
	}
	for key, on := range n.Forwarding {
		needed := d.forwards[0] && !key.IPv6 || d.forwards[1] && key.IPv6
		name := names[key.Link]
		if own, ok := c.node.Own(key.Link); ok && !key.IPv6 {
			name = own // of IPv6 the kernel asks the setting for all
		}
		if needed && !on && (key.Link == -1 || name != "") {
			say("forwarding of %s", map[bool]string{true: "all interfaces", false: name}[name == ""])
		}
	}
	return found
}

// removed reports whether an interface has lost an address.
func (n *news) removed(a netip.Addr) bool {
	for key := range n.Removed {
		if key.Prefix.Addr() == a {
			return true
		}
	}
	return false
}

// untold reports whether something may have gone that is wanted, without being
// told. Of an interface that is gone, its absence shows.
func (d *DataPlane) untold(n *news) bool {
	c := d.compiler
	for key := range n.Removed {
		if _, ok := c.want.Addresses.Now[key]; ok {
			return true
		}
	}
	if len(n.Lapsed)+len(n.Removed) == 0 {
		return false
	}
	suspects := map[int]bool{}
	for key, r := range c.want.Routes.Now {
		if r.Kind == unix.RTN_LOCAL && (n.Lapsed[rtnl.LoopbackLink] || n.removed(r.Source)) {
			return true
		}
		if told := n.Routes[key]; n.Lapsed[r.Link] && (told == nil || told.Lapsed) {
			suspects[r.Link] = true
		}
	}
	for link := range suspects {
		if _, err := d.kernel.LinkByIndex(link); !rtnl.Gone(err) {
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
	if tunnel, ok := c.node.Tunnel(index); ok {
		t, _ := c.plan.Local.Tunnel(tunnel)
		name, mac, mtu = d.stamps.TunnelPrefix+tunnel, t.MAC, c.node.Tunnels[tunnel].MTU
	} else if index == c.node.Bridge {
		name, mac = d.stamps.Bridge, plan.MACOf(c.plan.Local.Pools[0].Gateway)
	} else if name == "" {
		return d.wrongLower(index)
	}
	l, err := d.kernel.LinkByIndex(index)
	switch endpoint := names[index] != ""; {
	case err != nil && endpoint:
		return "" // who makes them tells of that
	case err != nil:
		return "interface " + name
	case l.Attrs().Name != name || endpoint && !rtnl.MayBe(l, name):
		return fmt.Sprintf("interface %s, which is %s now", name, l.Attrs().Name)
	case l.Attrs().MasterIndex != 0:
		return "interface " + name + ", which is in a bridge now"
	case l.Attrs().Flags&net.FlagUp == 0, endpoint && l.Attrs().Group != d.stamps.Group:
		return "interface " + name
	case !endpoint && (rtnl.Whose(l) != name || plan.MAC(l.Attrs().HardwareAddr) != mac || mtu != 0 && l.Attrs().MTU != mtu):
		return "interface " + name
	}
	return ""
}

// wrongLower says what is wrong with an interface that tunnels go through; empty for
// others.
func (d *DataPlane) wrongLower(index int) string {
	c := d.compiler
	for _, t := range c.plan.Local.Tunnels {
		device, ok := c.node.Tunnels[t.Name]
		if !ok || index != c.node.Holding(t.VTEP) {
			continue
		}
		if l, err := d.kernel.LinkByIndex(index); err == nil && l.Attrs().MTU-rtnl.OverheadOver(t.VTEP) != device.MTU {
			return "MTU of " + l.Attrs().Name
		}
	}
	return ""
}
