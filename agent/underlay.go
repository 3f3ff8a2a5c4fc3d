package agent

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/internal/rtnetlink"
)

// underlay is how the node sits in the network below Weft's.
type underlay struct {
	// Addresses are the node's own, at most one of each family, the primary
	// one first.
	Addresses []netip.Addr
	// MTU is that of the interface that has the primary address, in bytes.
	MTU int
	// Prefixes are those that the interface of an address in Addresses is
	// on-link with; an address without a network makes none.
	Prefixes []netip.Prefix
	// Others are what else the node delivers to itself, in ascending order:
	// addresses that are not in Addresses, and broadcast and anycast addresses.
	Others []netip.Addr
}

func (u underlay) equal(o underlay) bool {
	return u.MTU == o.MTU && slices.Equal(u.Addresses, o.Addresses) && slices.Equal(u.Prefixes, o.Prefixes) && slices.Equal(u.Others, o.Others)
}

// link is what chooseUnderlay must know of an interface.
type link struct {
	Name      string
	MTU       int
	Addresses []netip.Prefix
	// Metrics holds, for each family that has a default route through the
	// interface, the least metric: [0] for IPv4, [1] for IPv6; -1 for none.
	Metrics [2]int
}

func (l link) equal(o link) bool {
	return l.Name == o.Name && l.MTU == o.MTU && l.Metrics == o.Metrics && slices.Equal(l.Addresses, o.Addresses)
}

// chooseUnderlay finds the node's addresses. wanted, if any, are the addresses
// to use, and must be there. Else, for each family, it is the one of previous
// that is still there: neither another default route nor an address that comes
// and goes, as a virtual one does, is a reason to move a node's tunnels. Else it
// is the first address of the interface with the best default route, or of the
// only interface that has any; it refuses to guess between several.
func chooseUnderlay(links []link, wanted, previous []netip.Addr) (underlay, error) {
	var u underlay
	take := func(l link, a netip.Addr) {
		if len(u.Addresses) == 0 {
			u.MTU = l.MTU
		}
		u.Addresses = append(u.Addresses, a)
		for _, p := range l.Addresses {
			if p.Addr().Is4() == a.Is4() && !p.IsSingleIP() && !slices.Contains(u.Prefixes, p.Masked()) {
				u.Prefixes = append(u.Prefixes, p.Masked())
			}
		}
	}
	if len(wanted) > 0 {
		for _, a := range wanted {
			l, ok := holder(links, a)
			if !ok {
				return underlay{}, fmt.Errorf("node address %s is on no interface of this node (there are %s): name one that is", a, describe(links))
			}
			take(l, a)
		}
		return u, nil
	}
	for family := range 2 {
		l, a, there := kept(links, previous, family)
		if !there {
			var err error
			if l, a, err = chooseFamily(links, family); err != nil {
				return underlay{}, err
			}
		}
		if a.IsValid() {
			take(l, a)
		}
	}
	if len(u.Addresses) == 0 {
		return underlay{}, fmt.Errorf("no interface has a global address (there are %s): give the node one", describe(links))
	}
	return u, nil
}

func chooseFamily(links []link, family int) (link, netip.Addr, error) {
	var candidates []link
	for _, l := range links {
		if firstOf(l, family).IsValid() {
			candidates = append(candidates, l)
		}
	}
	routed := slices.DeleteFunc(slices.Clone(candidates), func(l link) bool { return l.Metrics[family] < 0 })
	switch {
	case len(routed) > 0:
		best := slices.MinFunc(routed, func(a, b link) int {
			return cmp.Or(cmp.Compare(a.Metrics[family], b.Metrics[family]), strings.Compare(a.Name, b.Name))
		})
		return best, firstOf(best, family), nil
	case len(candidates) == 1:
		return candidates[0], firstOf(candidates[0], family), nil
	case len(candidates) == 0:
		return link{}, netip.Addr{}, nil
	}
	return link{}, netip.Addr{}, fmt.Errorf("which address is the node's own? %s have one each and none has a default route: name the address with --node-ip", describe(candidates))
}

// kept returns the address of a family among previous, if it is there.
func kept(links []link, previous []netip.Addr, family int) (link, netip.Addr, bool) {
	for _, a := range previous {
		if l, ok := holder(links, a); ok && a.Is4() == (family == 0) {
			return l, a, true
		}
	}
	return link{}, netip.Addr{}, false
}

// firstOf returns the first address of a family, one with a network of its own
// before one without, as virtual addresses often have none.
func firstOf(l link, family int) netip.Addr {
	var first netip.Addr
	for _, p := range l.Addresses {
		switch {
		case p.Addr().Is4() != (family == 0):
		case !p.IsSingleIP():
			return p.Addr()
		case !first.IsValid():
			first = p.Addr()
		}
	}
	return first
}

func holder(links []link, a netip.Addr) (link, bool) {
	for _, l := range links {
		for _, p := range l.Addresses {
			if p.Addr() == a {
				return l, true
			}
		}
	}
	return link{}, false
}

func describe(links []link) string {
	var words []string
	for _, l := range links {
		for _, p := range l.Addresses {
			words = append(words, l.Name+" "+p.Addr().String())
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// ipvsName is the interface on which kube-proxy, where it uses IPVS, has the
// addresses of all Services: what is sent to one of these is not for the node.
const ipvsName = "kube-ipvs0"

// readUnderlay looks at the node's own network again, and reports whether it could be read.
func (a *agent) readUnderlay() (read bool) {
	links, local, err := readLinks()
	if a.announcer != nil {
		own, err2 := readOwn()
		a.announcer.see(links, own, cmp.Or(err, err2))
	}
	var u underlay
	if read = err == nil; read {
		u, err = chooseUnderlay(links, a.NodeIPs, a.underlayNow().Addresses)
		u.Others = othersOf(local, u.Addresses)
	}
	if err != nil {
		// The last known stays: an address that is away for a moment must not
		// take the node's routes with it.
		a.problem("underlay")(err.Error())
		return read
	}
	a.problem("underlay")("")
	a.mu.Lock()
	same := a.underlay.equal(u)
	a.underlay = u
	a.mu.Unlock()
	if !same {
		a.Log.Info("node's own network", "addresses", u.Addresses, "mtu", u.MTU, "prefixes", u.Prefixes)
		a.kick()
		a.node.Kick()
	}
	return true
}

func (a *agent) underlayNow() underlay {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.underlay
}

// readLinks reads the interfaces that may carry the underlay, all but loopback
// and what Weft made, and what the node delivers to itself by way of all
// interfaces but Weft's, as the kernel's own routing table says.
func readLinks() (links []link, local []netip.Addr, err error) {
	found, err := dump(netlink.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list interfaces: %w", err)
	}
	byIndex, others := make(map[int]int, len(found)), make(map[int]bool, len(found))
	for _, l := range found {
		at := l.Attrs()
		if datapath.OwnsInterface(at.Name) {
			continue
		}
		others[at.Index] = at.Name != ipvsName
		if at.Flags&unix.IFF_LOOPBACK != 0 || at.Flags&unix.IFF_UP == 0 {
			continue
		}
		byIndex[at.Index] = len(links)
		links = append(links, link{Name: at.Name, MTU: at.MTU, Metrics: [2]int{-1, -1}})
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		ip, _ := netip.AddrFromSlice(a.IP)
		i, ok := byIndex[a.LinkIndex]
		if !ok || a.Scope != unix.RT_SCOPE_UNIVERSE || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED|unix.IFA_F_DEPRECATED|unix.IFA_F_TEMPORARY) != 0 {
			continue
		}
		ones, _ := a.Mask.Size()
		links[i].Addresses = append(links[i].Addresses, netip.PrefixFrom(ip.Unmap(), ones))
	}
	// Each Service may have a route of its own, so that few of many are kept.
	routes, err := dump(func() (few []netlink.Route, err error) {
		err = netlink.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if _, delivered := deliveredTo(r); delivered || isDefault(r) {
				few = append(few, r)
			}
			return true
		})
		return few, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if a, ok := deliveredTo(r); ok && others[r.LinkIndex] {
			local = append(local, a)
		}
		i, ok := byIndex[r.LinkIndex]
		if !ok || !isDefault(r) {
			continue
		}
		family := 0
		if r.Family == netlink.FAMILY_V6 {
			family = 1
		}
		if m := &links[i].Metrics[family]; *m < 0 || r.Priority < *m {
			*m = r.Priority
		}
	}
	return links, local, nil
}

// readOwn reads which addresses the node's kernel has, and on which interfaces, but those of
// Weft's and of kube-proxy's.
func readOwn() (map[netip.Addr]string, error) {
	found, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	names := make(map[int]string, len(found))
	for _, l := range found {
		if name := l.Attrs().Name; !datapath.OwnsInterface(name) && name != ipvsName {
			names[l.Attrs().Index] = name
		}
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	own := make(map[netip.Addr]string)
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && names[a.LinkIndex] != "" && a.Flags&unix.IFA_F_DADFAILED == 0 {
			own[ip.Unmap()] = names[a.LinkIndex]
		}
	}
	return own, nil
}

// readGateways reads the addresses of the interfaces that Weft made. Those of the node's
// subnets are gateways, and ends of tunnels.
func readGateways() (gateways []netip.Addr, err error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	own := make(map[int]bool)
	for _, l := range links {
		own[l.Attrs().Index] = datapath.OwnsInterface(l.Attrs().Name)
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if ip, _ := netip.AddrFromSlice(a.IP); own[a.LinkIndex] && !ip.IsLinkLocalUnicast() {
			gateways = append(gateways, ip.Unmap())
		}
	}
	return gateways, nil
}

// deliveredTo returns the address of a route by which the kernel takes packets to
// that address for its own. The kernel makes these routes, and users can add some.
// Which there are depends on its version, on the state of the interface and on the
// forwarding of IPv6, so they are read and not worked out from the addresses.
//
// Loopback addresses and IPv6's link-local ones are not among them: the first no
// pod reaches, and of the second all are the node's (plan.NodeOnly). Nor are
// prefixes of several addresses, which are a user's, or of loopback alone.
func deliveredTo(r netlink.Route) (netip.Addr, bool) {
	if r.Table != unix.RT_TABLE_LOCAL || !isLocal(r.Type) || r.Dst == nil {
		return netip.Addr{}, false
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	a = a.Unmap()
	ones, _ := r.Dst.Mask.Size()
	return a, ones == a.BitLen() && !a.IsLoopback() && !(a.Is6() && a.IsLinkLocalUnicast())
}

// has asks the kernel whether it takes what is sent to an address for its own, whatever
// was seen of its addresses before: one may have come just now. Where it knows no way, it
// does not.
func has(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return isLocal(r.Type) })
}

// isLocal reports whether the kernel delivers to itself what goes by a route of
// this type, RTN_….
func isLocal(kind int) bool {
	return kind == unix.RTN_LOCAL || kind == unix.RTN_BROADCAST || kind == unix.RTN_ANYCAST
}

// othersOf returns what is local and not among these addresses, each once, in
// ascending order.
func othersOf(local, addresses []netip.Addr) []netip.Addr {
	others := slices.DeleteFunc(slices.Clone(local), func(a netip.Addr) bool { return slices.Contains(addresses, a) })
	slices.SortFunc(others, netip.Addr.Compare)
	return slices.Compact(others)
}

// isDefault reports whether a route is the node's own to everywhere.
func isDefault(r netlink.Route) bool {
	if r.Table != unix.RT_TABLE_MAIN {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Type == unix.RTN_UNICAST
}

// dump repeats a netlink dump that others' changes interrupted.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	var out []T
	var err error
	for range 10 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// The least time between two looks at the node's own network, and how long the
// changes that come together may take to come: an address is often replaced by
// removing one and adding another.
const (
	lookEvery = time.Second
	lookAfter = 50 * time.Millisecond
)

// watchUnderlay calls changed soon after changes to the node's interfaces,
// addresses, default routes and what it delivers to itself, and at least every
// interval. Where changed could not read these, it is called again.
func watchUnderlay(ctx context.Context, interval time.Duration, log *slog.Logger, changed func() (read bool)) {
	changes := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { followUnderlay(ctx, log, changes) })
	next := time.NewTimer(interval)
	defer next.Stop()
	var last time.Time
	pending := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			wait := interval
			if !changed() {
				wait = min(lookEvery, interval)
			}
			last, pending = time.Now(), false
			next.Reset(wait)
		case <-changes:
			if !pending {
				pending = true
				next.Reset(max(lookAfter, time.Until(last.Add(lookEvery))))
			}
		}
	}
}

// followUnderlay delivers to changes after each change that may concern the
// node's own network, until ctx ends.
func followUnderlay(ctx context.Context, log *slog.Logger, changes chan<- struct{}) {
	for ; ctx.Err() == nil; retry.Sleep(ctx, lookEvery) {
		socket, err := rtnetlink.Subscribe(rtnetlink.Underlay([4]byte([]byte(datapath.InterfacePrefix))), unix.RTNLGRP_LINK,
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		if err != nil {
			log.Warn("cannot follow changes of interfaces and addresses; looking now and then", "error", err)
			continue
		}
		stop := context.AfterFunc(ctx, socket.Close)
		for {
			messages, from, err := socket.Receive()
			if err != nil {
				break // there was more to tell than the socket can hold, as a rule
			}
			if from.Pid == nl.PidKernel && slices.ContainsFunc(messages, concernsUnderlay) {
				notify(changes)
			}
		}
		notify(changes)
		if stop() {
			socket.Close()
		}
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// concernsUnderlay reports whether a message of rtnetlink(7) is about a change
// to an interface that is not Weft's, to an address that may be the node's own,
// to a default route, or to what the node delivers to itself.
func concernsUnderlay(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(m.Data).Scope == unix.RT_SCOPE_UNIVERSE
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		r := nl.DeserializeRtMsg(m.Data)
		return r.Dst_len == 0 || r.Table == unix.RT_TABLE_LOCAL && isLocal(int(r.Type))
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return !datapath.OwnsInterface(nameIn(m.Data))
	}
	return false
}

// nameIn returns the name of the interface that a message about it tells, or "".
func nameIn(data []byte) string {
	for data = data[min(len(data), unix.SizeofIfInfomsg):]; len(data) >= unix.SizeofRtAttr; {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			return ""
		}
		if binary.NativeEndian.Uint16(data[2:]) == unix.IFLA_IFNAME {
			name, _, _ := strings.Cut(string(data[unix.SizeofRtAttr:length]), "\x00")
			return name
		}
		data = data[min(len(data), (length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return ""
}
