package linux

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/interval"
	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// localTimeout bounds the wait for an IPv6 address to be usable, which takes
// milliseconds.
const localTimeout = 5 * time.Second

// kernel reads and writes objects through rtnetlink sockets that belong to the
// network namespace in which it was opened.
type kernel struct {
	stamps Stamps
	handle *netlink.Handle
	// raw is the socket of requests that the library cannot make: it knows no
	// NDA_PROTOCOL, and no settings of interfaces.
	raw    *nl.SocketHandle
	record func(format string, args ...any)
}

func openKernel(stamps Stamps, record func(string, ...any)) (*kernel, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a route netlink socket: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("open a route netlink socket: %w", err)
	}
	// The reason in words that comes with an error; without it, there is
	// still the error.
	_ = socket.SetExtAck(true)
	return &kernel{stamps: stamps, handle: handle, raw: &nl.SocketHandle{Socket: socket}, record: record}, nil
}

func (k *kernel) close() {
	k.handle.Close()
	k.raw.Close()
}

// read returns what is Weft's on this node. Neighbours and forwarding entries
// of the VXLAN device, and addresses of both devices, are Weft's whoever made
// them.
func (k *kernel) read(links []netlink.Link, own, tunnels []int) (*objects, error) {
	o := &objects{
		addresses:  map[addressKey]struct{}{},
		routes:     map[routeKey]route{},
		neighbours: map[neighbourKey]plan.MAC{},
		fdb:        map[fdbKey]netip.Addr{},
		rules:      map[rule]struct{}{},
		groups:     map[int]struct{}{},
	}
	for _, l := range links {
		if l.Attrs().Group == k.stamps.Group {
			o.groups[l.Attrs().Index] = struct{}{}
		}
	}
	for _, device := range own {
		addrs, err := message.Dump(func() ([]netlink.Addr, error) { return k.handle.AddrList(linkAt(device), netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of interface %d: %w", device, err)
		}
		for _, a := range addrs {
			o.addresses[addressKey{device, prefixOf(a.IPNet)}] = struct{}{}
		}
	}
	routes, err := message.Dump(func() ([]netlink.Route, error) {
		return k.handle.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: netlink.RouteProtocol(k.stamps.Protocol), Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if key, value, ok := routeFrom(r); ok {
			o.routes[key] = value
		}
	}
	rules, err := message.Dump(func() ([]netlink.Rule, error) { return k.handle.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, r := range rules {
		if r.Protocol != k.stamps.Protocol || r.Src == nil {
			continue
		}
		from := prefixOf(r.Src)
		to := interval.Everything(from.Addr().Is4())
		if r.Dst != nil {
			to = prefixOf(r.Dst)
		}
		o.rules[rule{r.Priority, from, to, r.Table}] = struct{}{}
	}
	return o, k.readNeighbours(o, tunnels)
}

func (k *kernel) readNeighbours(o *objects, tunnels []int) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		msgs, err := message.Dump(func() ([][]byte, error) {
			req := k.request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
			req.AddData(&netlink.Ndmsg{Family: family})
			return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		})
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, m := range msgs {
			n, protocol, err := neighbourFrom(m)
			if err != nil {
				return err
			}
			switch {
			case n.HardwareAddr == nil || len(n.HardwareAddr) != 6:
			case family == unix.AF_BRIDGE:
				if n.IP != nil && slices.Contains(tunnels, n.LinkIndex) {
					o.fdb[fdbKey{n.LinkIndex, plan.MAC(n.HardwareAddr)}] = addrOf(n.IP)
				}
			case n.State&netlink.NUD_PERMANENT != 0 && (protocol == k.stamps.Protocol || n.IP != nil && slices.Contains(tunnels, n.LinkIndex)):
				o.neighbours[neighbourKey{n.LinkIndex, addrOf(n.IP)}] = plan.MAC(n.HardwareAddr)
			}
		}
	}
	return nil
}

func neighbourFrom(m []byte) (n *netlink.Neigh, protocol uint8, err error) {
	if n, err = netlink.NeighDeserialize(m); err != nil {
		return nil, 0, fmt.Errorf("read a neighbour: %w", err)
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofNdMsg:])
	if err != nil {
		return nil, 0, fmt.Errorf("read a neighbour: %w", err)
	}
	for _, a := range attrs {
		if a.Attr.Type == netlink.NDA_PROTOCOL && len(a.Value) > 0 {
			protocol = a.Value[0]
		}
	}
	return n, protocol, nil
}

// connections returns the addresses of all interfaces but some.
func (k *kernel) connections(except []int) ([]connection, error) {
	addrs, err := message.Dump(func() ([]netlink.Addr, error) { return k.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []connection
	for _, a := range addrs {
		if slices.Contains(except, a.LinkIndex) {
			continue
		}
		if ip := addrOf(a.IP); !ip.IsLinkLocalUnicast() {
			all = append(all, connection{netip.PrefixFrom(ip, prefixOf(a.IPNet).Bits()), a.LinkIndex})
		}
	}
	slices.SortFunc(all, func(a, b connection) int { return a.addr.Compare(b.addr) })
	return all, nil
}

// apply writes what a delta says. What is new comes before what goes, and
// before it what it depends on; before routes, during runs. Every object is
// tried; the errors are joined, each as blame makes it one of the interface
// that the object is on.
func (k *kernel) apply(d delta, during func() error, blame func(link int, err error) error) error {
	var errs []error
	link := 0
	try := func(err error, verb string, what fmt.Stringer) {
		if err != nil {
			errs = append(errs, blame(link, fmt.Errorf("%s %s: %w", verb, what, err)))
		} else {
			k.record("%s %s", verb, what)
		}
	}
	for _, c := range d.addresses {
		if c.New != nil {
			try(k.addAddress(c.Key), "add", text("address %s on interface %d", c.Key.prefix, c.Key.link))
		}
	}
	for _, c := range d.groups {
		link = c.Key
		if c.New != nil {
			try(k.handle.LinkSetGroup(linkAt(c.Key), int(k.stamps.Group)), "set", text("group %d of interface %d", k.stamps.Group, c.Key))
		} else if err := k.release(c.Key); !gone(err) {
			try(err, "set", text("group 0 of interface %d", c.Key))
		}
	}
	for _, c := range d.neighbours {
		link = c.Key.link
		if c.New != nil {
			try(k.setNeighbour(c.Key, *c.New), verb(c.Old), text("neighbour %s at %s on interface %d", c.Key.addr, c.New, c.Key.link))
		}
	}
	link = 0
	for _, c := range d.fdb {
		if c.New != nil {
			try(k.setFDB(c.Key, *c.New), verb(c.Old), text("forwarding of %s to %s", c.Key.mac, c.New))
		}
	}
	if err := during(); err != nil {
		errs = append(errs, err)
	}
	for _, c := range d.routes {
		if c.New != nil {
			link = c.New.link
			try(k.setRoute(c), verb(c.Old), describeRoute(c.Key, *c.New))
		}
	}
	link = 0
	for _, c := range d.rules {
		if c.New != nil {
			try(ignore(k.handle.RuleAdd(k.ruleTo(c.Key)), unix.EEXIST), "add", c.Key)
		}
	}
	for _, c := range d.rules {
		if c.New == nil {
			try(ignore(k.handle.RuleDel(k.ruleTo(c.Key)), unix.ENOENT), "delete", c.Key)
		}
	}
	for _, c := range d.routes {
		if c.New == nil {
			err := k.handle.RouteDel(&netlink.Route{Dst: ipNet(c.Key.prefix), Table: c.Key.table, Protocol: netlink.RouteProtocol(k.stamps.Protocol),
				Priority: c.Key.metric, Type: c.Old.kind, Scope: unix.RT_SCOPE_NOWHERE})
			if gone(err) {
				continue
			}
			try(err, "delete", describeRoute(c.Key, *c.Old))
		}
	}
	for _, c := range d.fdb {
		if c.New == nil {
			if err := k.deleteNeighbour(unix.AF_BRIDGE, c.Key.link, *c.Old, c.Key.mac); !gone(err) {
				try(err, "delete", text("forwarding of %s", c.Key.mac))
			}
		}
	}
	for _, c := range d.neighbours {
		link = c.Key.link
		if c.New == nil {
			if err := k.deleteNeighbour(family(c.Key.addr), c.Key.link, c.Key.addr, plan.MAC{}); !gone(err) {
				try(err, "delete", text("neighbour %s on interface %d", c.Key.addr, c.Key.link))
			}
		}
	}
	link = 0
	for _, c := range d.addresses {
		if c.New == nil {
			err := k.handle.AddrDel(linkAt(c.Key.link), &netlink.Addr{IPNet: ipNet(c.Key.prefix)})
			if gone(err) || errors.Is(err, unix.EADDRNOTAVAIL) {
				continue
			}
			try(err, "delete", text("address %s on interface %d", c.Key.prefix, c.Key.link))
		}
	}
	return errors.Join(errs...)
}

// release makes an interface one that leads to no endpoint. It goes down, as no
// rule tells any more what may come from there.
func (k *kernel) release(index int) error {
	l, err := k.handle.LinkByIndex(index)
	if err != nil {
		return err
	}
	// It keeps the group while it is up, as that is how it is told that it may
	// not send what it likes.
	s, err := k.settings(index)
	if err != nil {
		return err
	}
	if err := errors.Join(k.handle.LinkSetDown(l), k.endpointSources(s, false)); err != nil {
		return err
	}
	return k.handle.LinkSetGroup(l, 0)
}

func (k *kernel) addAddress(key addressKey) error {
	a := &netlink.Addr{IPNet: ipNet(key.prefix)}
	if key.prefix.Addr().Is4() {
		return ignore(k.handle.AddrAdd(linkAt(key.link), a), unix.EEXIST)
	}
	// Nobody else can have it, and until detection had ended it could not be
	// a source.
	a.Flags = unix.IFA_F_NODAD
	// The kernel makes an IPv6 address local some time later, on a worker of
	// its own. The route that it then adds shows when.
	routes, done := make(chan netlink.RouteUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		return fmt.Errorf("watch routes: %w", err)
	}
	if err := k.handle.AddrAdd(linkAt(key.link), a); err != nil {
		return ignore(err, unix.EEXIST)
	}
	for timeout := time.After(localTimeout); ; {
		select {
		case r, ok := <-routes:
			if ok && (r.Dst == nil || r.Route.Type != unix.RTN_LOCAL || prefixOf(r.Dst) != key.prefix) {
				continue
			}
			return nil
		case <-timeout:
			return fmt.Errorf("the kernel did not make it local within %s", localTimeout)
		}
	}
}

// setRoute adds a route, or replaces Weft's own. It never replaces another's.
func (k *kernel) setRoute(c reconcile.Change[routeKey, route]) error {
	r := &netlink.Route{
		Dst:       ipNet(c.Key.prefix),
		Table:     c.Key.table,
		Priority:  c.Key.metric,
		Protocol:  netlink.RouteProtocol(k.stamps.Protocol),
		Type:      c.New.kind,
		LinkIndex: c.New.link,
		Gw:        ip(c.New.via),
		Src:       ip(c.New.source),
		Scope:     netlink.Scope(c.New.scope),
	}
	if c.New.onlink {
		r.Flags = unix.RTNH_F_ONLINK
	}
	if c.Old != nil {
		return k.handle.RouteReplace(r)
	}
	err := k.handle.RouteAdd(r)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	others, listErr := message.Dump(func() ([]netlink.Route, error) {
		return k.handle.RouteListFiltered(r.Family, &netlink.Route{Dst: r.Dst, Table: r.Table}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	})
	if listErr != nil {
		return err
	}
	for _, other := range others {
		if other.Protocol == netlink.RouteProtocol(k.stamps.Protocol) && other.Priority == r.Priority {
			return k.handle.RouteReplace(r)
		}
	}
	return fmt.Errorf("%w: another program's route is in the way: %v; delete that", err, others)
}

func (k *kernel) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	return req
}

func (k *kernel) setNeighbour(key neighbourKey, mac plan.MAC) error {
	req := k.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: family(key.addr), Index: uint32(key.link), State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, key.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac[:]))
	req.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, nl.Uint8Attr(k.stamps.Protocol)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) setFDB(key fdbKey, vtep netip.Addr) error {
	req := k.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(key.link), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, vtep.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, key.mac[:]))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) deleteNeighbour(family uint8, link int, addr netip.Addr, mac plan.MAC) error {
	req := k.request(unix.RTM_DELNEIGH, unix.NLM_F_ACK)
	msg := &netlink.Ndmsg{Family: family, Index: uint32(link)}
	if family == unix.AF_BRIDGE {
		msg.Flags = netlink.NTF_SELF
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	if !mac.IsZero() {
		req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac[:]))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *kernel) ruleTo(r rule) *netlink.Rule {
	n := netlink.NewRule()
	n.Family = int(family(r.from.Addr()))
	n.Priority, n.Src, n.Table, n.Protocol = r.priority, ipNet(r.from), r.table, k.stamps.Protocol
	if r.to.Bits() > 0 {
		n.Dst = ipNet(r.to)
	}
	return n
}

// routeFrom reads a route. A shape that Weft never makes gets a value that
// differs from all it makes.
func routeFrom(r netlink.Route) (routeKey, route, bool) {
	if r.Dst == nil {
		return routeKey{}, route{}, false
	}
	v := route{kind: r.Type, link: r.LinkIndex, via: addrOf(r.Gw), source: addrOf(r.Src), onlink: r.Flags&unix.RTNH_F_ONLINK != 0, scope: int(r.Scope)}
	if v.kind != unix.RTN_UNICAST {
		v.link, v.scope = 0, 0 // IPv6 shows the loopback device
	}
	if len(r.MultiPath) > 0 || r.Tos != 0 || r.MTU != 0 {
		v.kind = -1
	}
	return routeKey{r.Table, prefixOf(r.Dst), r.Priority}, v, true
}

func describeRoute(k routeKey, r route) fmt.Stringer {
	switch {
	case r.kind != unix.RTN_UNICAST:
		return text("route %s of type %d in table %d", k.prefix, r.kind, k.table)
	case r.via.IsValid():
		return text("route %s via %s on interface %d in table %d", k.prefix, r.via, r.link, k.table)
	}
	return text("route %s on interface %d in table %d", k.prefix, r.link, k.table)
}

// text formats when it is asked for.
func text(format string, args ...any) fmt.Stringer { return lazy{format, args} }

type lazy struct {
	format string
	args   []any
}

func (l lazy) String() string { return fmt.Sprintf(l.format, l.args...) }

func verb[V any](old *V) string {
	if old != nil {
		return "replace"
	}
	return "add"
}

// gone reports whether an object, or the interface it was on, was not there
// any more when it was to be deleted.
func gone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV)
}

func ignore(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}

func linkAt(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ip(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

func addrOf(i net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(i)
	return a.Unmap()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}
