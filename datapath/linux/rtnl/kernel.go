// Package rtnl has what a kernel tells and takes by rtnetlink(7) as values: a node's
// interfaces, addresses, routes, rules, neighbours and forwarding entries, and the
// settings of interfaces.
//
// Objects is what there is that wears a data plane's stamps, as a Kernel reads it, and
// Wanted what should be. What leads from one to the other is a Delta, and Kernel.Apply
// writes that. News is what the kernel tells of all this meanwhile. A Node is what a
// compiler of plans needs to know of the interfaces. FoundRoute and FoundRule are
// anybody's.
package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/linux/message"
	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
)

// LoopbackLink is the index of the loopback interface, in each network namespace
// (LOOPBACK_IFINDEX of the kernel's net/flow.h).
const LoopbackLink = 1

// localTimeout bounds the wait for an IPv6 address to be usable, which takes
// milliseconds.
const localTimeout = 5 * time.Second

// Kernel reads and writes objects through rtnetlink sockets that belong to the
// network namespace in which it was opened.
type Kernel struct {
	stamps stamps.Stamps
	*netlink.Handle
	// raw is the socket of requests that the library cannot make: it knows no
	// NDA_PROTOCOL, and no settings of interfaces.
	raw    *nl.SocketHandle
	record func(format string, args ...any)
}

// Open opens the sockets in the calling thread's network namespace. What is changed is
// told to record.
func Open(stamps stamps.Stamps, record func(string, ...any)) (*Kernel, error) {
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
	return &Kernel{stamps: stamps, Handle: handle, raw: &nl.SocketHandle{Socket: socket}, record: record}, nil
}

// Close closes the sockets.
func (k *Kernel) Close() {
	k.Handle.Close()
	k.raw.Close()
}

// Read returns what is Weft's on this node. Neighbours and forwarding entries
// of the VXLAN device, and addresses of both devices, are Weft's whoever made
// them.
func (k *Kernel) Read(links []netlink.Link, own, tunnels []int) (*Objects, error) {
	o := &Objects{
		Addresses:  map[AddressKey]struct{}{},
		Routes:     map[RouteKey]Route{},
		Neighbours: map[NeighbourKey]plan.MAC{},
		FDB:        map[FDBKey]netip.Addr{},
		Rules:      map[Rule]struct{}{},
		Groups:     map[int]struct{}{},
		Shaping:    map[int]Shaping{},
	}
	for _, l := range links {
		if l.Attrs().Group == k.stamps.Group {
			o.Groups[l.Attrs().Index] = struct{}{}
		}
	}
	for _, device := range own {
		addrs, err := message.Dump(func() ([]netlink.Addr, error) { return k.AddrList(linkAt(device), netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("list addresses of interface %d: %w", device, err)
		}
		for _, a := range addrs {
			o.Addresses[AddressKey{device, PrefixOf(a.IPNet)}] = struct{}{}
		}
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		routes, err := ListRoutes(family, func(r FoundRoute) bool { return r.Protocol == k.stamps.Protocol })
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			o.Routes[r.RouteKey] = r.made()
		}
		rules, err := ListRules(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if r.Protocol == k.stamps.Protocol && r.From.Bits() > 0 {
				o.Rules[r.Rule] = struct{}{}
			}
		}
	}
	if err := k.readShaping(o, links); err != nil {
		return nil, err
	}
	return o, k.readNeighbours(o, tunnels)
}

func (k *Kernel) readNeighbours(o *Objects, tunnels []int) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		all, err := list(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, family, func(m []byte) (neighbour, bool) {
			n := neighbourFrom(m)
			return n, n.addr.IsValid() && n.known
		})
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range all {
			own := slices.Contains(tunnels, n.link)
			switch {
			case n.forwards && own:
				o.FDB[FDBKey{n.link, n.mac}] = n.addr
			case !n.forwards && n.permanent && (n.protocol == k.stamps.Protocol || own):
				o.Neighbours[NeighbourKey{n.link, n.addr}] = n.mac
			}
		}
	}
	return nil
}

// neighbour is a neighbour, or a forwarding entry of a bridge or VXLAN device.
type neighbour struct {
	forwards, permanent bool
	link                int
	addr                netip.Addr
	mac                 plan.MAC
	known               bool // the MAC, which may be zero: an entry with that floods
	protocol            uint8
}

// neighbourFrom reads a message about a neighbour, whose head is struct ndmsg of
// linux/neighbour.h.
func neighbourFrom(m []byte) neighbour {
	n := neighbour{forwards: m[0] == unix.AF_BRIDGE, link: message.Int(m[4:8]), permanent: binary.NativeEndian.Uint16(m[8:])&netlink.NUD_PERMANENT != 0}
	for kind, v := range message.Attributes(m[unix.SizeofNdMsg:]) {
		switch {
		case kind == netlink.NDA_DST:
			n.addr = addrOf(v)
		case kind == netlink.NDA_LLADDR && len(v) == len(n.mac):
			n.mac, n.known = plan.MAC(v), true
		case kind == netlink.NDA_PROTOCOL:
			n.protocol = message.Octet(v)
		}
	}
	return n
}

// Connections returns the addresses of all interfaces but some.
func (k *Kernel) Connections(except []int) (Connections, error) {
	addrs, err := message.Dump(func() ([]netlink.Addr, error) { return k.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return Connections{}, fmt.Errorf("list addresses: %w", err)
	}
	var all []Connection
	for _, a := range addrs {
		if slices.Contains(except, a.LinkIndex) {
			continue
		}
		if ip := addrOf(a.IP); !ip.IsLinkLocalUnicast() {
			all = append(all, Connection{netip.PrefixFrom(ip, PrefixOf(a.IPNet).Bits()), a.LinkIndex})
		}
	}
	return NewConnections(all), nil
}

// LocalAddresses are those of all interfaces, link-local ones included.
func LocalAddresses() ([]netip.Addr, error) {
	addrs, err := message.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range addrs {
		all = append(all, addrOf(a.IP))
	}
	return all, nil
}

// Refusal is a route that the kernel did not take, as another program has one there.
type Refusal struct {
	Key   RouteKey
	Route Route
	// Err names the other program's route and says what to do about it.
	Err error
}

// String says what was refused, for people.
func (r Refusal) String() string {
	if r.Key.Table == unix.RT_TABLE_MAIN {
		return fmt.Sprintf("add route %s", r.Key.Prefix)
	}
	return fmt.Sprintf("add route %s in table %d", r.Key.Prefix, r.Key.Table)
}

// Apply writes what a delta says, but for what goes of groups: see Release. What is
// new comes before what goes, and before it what it depends on; before routes, during
// runs, which is told on which links not all is as it should be by then. Every object is
// tried. It returns the routes that other programs' are in the way
// of, by their keys; all other errors are joined, each as blame makes it one of the
// interface that the object is on. Without an error, the kernel holds what the delta
// leads to, but for what was refused.
func (k *Kernel) Apply(d Delta, during func(failed map[int]bool) error, blame func(link int, err error) error) (refused []Refusal, err error) {
	var errs []error
	link, failed := 0, map[int]bool{}
	try := func(err error, verb string, what fmt.Stringer) {
		if err != nil {
			failed[link] = true
			errs = append(errs, blame(link, fmt.Errorf("%s %s: %w", verb, what, err)))
		} else {
			k.record("%s %s", verb, what)
		}
	}
	for _, c := range d.Addresses {
		if c.New != nil {
			try(k.addAddress(c.Key), "add", text("address %s on interface %d", c.Key.Prefix, c.Key.Link))
		}
	}
	for _, c := range d.Groups {
		link = c.Key
		if c.New != nil {
			try(k.LinkSetGroup(linkAt(c.Key), int(k.stamps.Group)), "set", text("group %d of interface %d", k.stamps.Group, c.Key))
		}
	}
	for _, c := range d.Neighbours {
		link = c.Key.Link
		if c.New != nil {
			try(k.setNeighbour(c.Key, *c.New), verb(c.Old), text("neighbour %s at %s on interface %d", c.Key.Addr, c.New, c.Key.Link))
		}
	}
	for _, c := range d.Shaping {
		link = c.Key
		if c.New != nil {
			try(k.shape(c.Key, c.Old, *c.New), verb(c.Old), text("shaping of interface %d, %s", c.Key, c.New))
		}
	}
	link = 0
	for _, c := range d.FDB {
		if c.New != nil {
			try(k.setFDB(c.Key, *c.New), verb(c.Old), text("forwarding of %s to %s", c.Key.MAC, c.New))
		}
	}
	if err := during(failed); err != nil {
		errs = append(errs, err)
	}
	refused = k.setRoutes(d, func(c reconcile.Change[RouteKey, Route], err error) {
		link = c.New.Link
		try(err, verb(c.Old), describeRoute(c.Key, *c.New))
	})
	link = 0
	for _, c := range d.Rules {
		if c.New != nil {
			try(ignore(k.RuleAdd(k.ruleTo(c.Key)), unix.EEXIST), "add", c.Key)
		}
	}
	for _, c := range d.Rules {
		if c.New == nil {
			try(ignore(k.RuleDel(k.ruleTo(c.Key)), unix.ENOENT), "delete", c.Key)
		}
	}
	k.deleteRoutes(d, func(c reconcile.Change[RouteKey, Route], err error) {
		try(err, "delete", describeRoute(c.Key, *c.Old))
	})
	for _, c := range d.FDB {
		if c.New == nil {
			if err := k.deleteNeighbour(unix.AF_BRIDGE, c.Key.Link, *c.Old, c.Key.MAC); !Gone(err) {
				try(err, "delete", text("forwarding of %s", c.Key.MAC))
			}
		}
	}
	for _, c := range d.Neighbours {
		link = c.Key.Link
		if c.New == nil {
			if err := k.deleteNeighbour(family(c.Key.Addr), c.Key.Link, c.Key.Addr, plan.MAC{}); !Gone(err) {
				try(err, "delete", text("neighbour %s on interface %d", c.Key.Addr, c.Key.Link))
			}
		}
	}
	for _, c := range d.Shaping {
		link = c.Key
		if c.New == nil {
			try(k.shape(c.Key, c.Old, Shaping{}), "delete", text("shaping of interface %d", c.Key))
		}
	}
	link = 0
	for _, c := range d.Addresses {
		if c.New == nil {
			err := k.AddrDel(linkAt(c.Key.Link), &netlink.Addr{IPNet: ipNet(c.Key.Prefix)})
			if Gone(err) || errors.Is(err, unix.EADDRNOTAVAIL) {
				continue
			}
			try(err, "delete", text("address %s on interface %d", c.Key.Prefix, c.Key.Link))
		}
	}
	return refused, errors.Join(errs...)
}

// Release makes an interface one that leads to no endpoint, unless it is gone. It goes
// down, as no rule tells any more what may come from there.
func (k *Kernel) Release(index int) error {
	l, err := k.LinkByIndex(index)
	if err == nil {
		err = k.release(l)
	}
	switch {
	case Gone(err):
		return nil
	case err != nil:
		return fmt.Errorf("set group 0 of interface %d: %w", index, err)
	}
	k.record("set group 0 of interface %d", index)
	return nil
}

func (k *Kernel) release(l netlink.Link) error {
	// It keeps the group while it is up, as that is how it is told that it may
	// not send what it likes.
	s, err := k.Settings(l.Attrs().Index)
	if err != nil {
		return err
	}
	if err := errors.Join(k.LinkSetDown(l), k.EndpointSources(s, false)); err != nil {
		return err
	}
	return k.LinkSetGroup(l, 0)
}

func (k *Kernel) addAddress(key AddressKey) error {
	a := &netlink.Addr{IPNet: ipNet(key.Prefix)}
	if key.Prefix == PlaceHolder {
		a.Scope = unix.RT_SCOPE_HOST // so that nothing is sent from it
	}
	if key.Prefix.Addr().Is4() {
		return ignore(k.AddrAdd(linkAt(key.Link), a), unix.EEXIST)
	}
	// Nobody else can have it, and until detection had ended it could not be
	// a source.
	a.Flags = unix.IFA_F_NODAD
	// The kernel makes an IPv6 address local some time later, on a worker of
	// its own. The route that it then adds shows when.
	routes, done := make(chan netlink.RouteUpdate), make(chan struct{})
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(done)
		return fmt.Errorf("watch routes: %w", err)
	}
	// Who sends waits for each update to be taken, and ends behind the last.
	defer func() {
		close(done)
		for range routes {
		}
	}()
	if err := k.AddrAdd(linkAt(key.Link), a); err != nil {
		return ignore(err, unix.EEXIST)
	}
	return seenLocal(routes, key.Prefix, func() (bool, error) { return k.isLocal(key.Prefix.Addr()) }, time.After(localTimeout))
}

// isLocal reports whether the kernel delivers to itself what goes to an address. It looks
// that one up, however many routes there are and whoever changes them meanwhile.
func (k *Kernel) isLocal(a netip.Addr) (bool, error) {
	found, err := k.RouteGet(ip(a))
	if slices.ContainsFunc(noWay, func(no error) bool { return errors.Is(err, no) }) {
		return false, nil
	}
	return err == nil && slices.ContainsFunc(found, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL }), err
}

// noWay are what a kernel says of an address that it has no route to, or one that
// refuses.
var noWay = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL}

// The time between two questions whether an address is local.
const firstAsk, lastAsk = time.Millisecond, time.Second

// seenLocal waits until the kernel tells that it has added the local route to a prefix.
// Where it tells nothing any more, as when more changes at once than a socket holds, it is
// asked, ever less often.
func seenLocal(routes <-chan netlink.RouteUpdate, prefix netip.Prefix, ask func() (bool, error), timeout <-chan time.Time) error {
	pause := retry.Backoff{First: firstAsk, Last: lastAsk}
	var again <-chan time.Time
	for {
		select {
		case r, ok := <-routes:
			switch {
			case !ok:
				routes, again = nil, time.After(pause.Next())
			case r.Type == unix.RTM_NEWROUTE && r.Dst != nil && r.Route.Type == unix.RTN_LOCAL && PrefixOf(r.Dst) == prefix:
				return nil
			}
		case <-again:
			if is, err := ask(); is || err != nil {
				return err
			}
			again = time.After(pause.Next())
		case <-timeout:
			return fmt.Errorf("the kernel did not make it local within %s", localTimeout)
		}
	}
}

func (k *Kernel) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.raw}
	return req
}

// execute has a request done of which nothing but that is to be known.
func (k *Kernel) execute(req *nl.NetlinkRequest) error {
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *Kernel) setNeighbour(key NeighbourKey, mac plan.MAC) error {
	req := k.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: family(key.Addr), Index: uint32(key.Link), State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, key.Addr.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac[:]))
	req.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, nl.Uint8Attr(k.stamps.Protocol)))
	return k.execute(req)
}

func (k *Kernel) setFDB(key FDBKey, vtep netip.Addr) error {
	req := k.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(key.Link), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, vtep.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, key.MAC[:]))
	return k.execute(req)
}

func (k *Kernel) deleteNeighbour(family uint8, link int, addr netip.Addr, mac plan.MAC) error {
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
	return k.execute(req)
}

func (k *Kernel) ruleTo(r Rule) *netlink.Rule {
	n := netlink.NewRule()
	n.Family = int(family(r.From.Addr()))
	n.Priority, n.Src, n.Table, n.Protocol = r.Priority, ipNet(r.From), r.Table, k.stamps.Protocol
	if r.To.Bits() > 0 {
		n.Dst = ipNet(r.To)
	}
	return n
}

func describeRoute(k RouteKey, r Route) fmt.Stringer {
	switch {
	case r.Kind != unix.RTN_UNICAST:
		return text("route %s of type %d in table %d", k.Prefix, r.Kind, k.Table)
	case r.Via.IsValid():
		return text("route %s via %s on interface %d in table %d", k.Prefix, r.Via, r.Link, k.Table)
	}
	return text("route %s on interface %d in table %d", k.Prefix, r.Link, k.Table)
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

// Gone reports whether an object, or the interface it was on, was not there
// any more when it was to be deleted.
func Gone(err error) bool {
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

// PrefixOf is an address with its prefix as a value.
func PrefixOf(n *net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}
