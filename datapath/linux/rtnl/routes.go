package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/reconcile"
)

// setRoutes adds the routes of a delta, and replaces Weft's own. It never replaces
// another's: those that others have are returned. What is there is read once for all
// routes that are to be replaced, were refused before or cannot be added; what is only
// new costs no more than itself. All other outcomes are told to done.
func (k *Kernel) setRoutes(d Delta, done func(reconcile.Change[RouteKey, Route], error)) (refused []Refusal) {
	var doubtful []reconcile.Change[RouteKey, Route]
	families := map[uint8]map[RouteKey][]*FoundRoute{}
	for _, c := range d.Routes {
		if c.New == nil {
			continue
		}
		if c.Old == nil && !d.again[c.Key] {
			if err := k.RouteAdd(k.routeTo(c.Key, *c.New)); !errors.Is(err, unix.EEXIST) {
				done(c, err)
				continue
			}
		}
		doubtful = append(doubtful, c)
		there := families[family(c.Key.Prefix.Addr())]
		if there == nil {
			there = map[RouteKey][]*FoundRoute{}
			families[family(c.Key.Prefix.Addr())] = there
		}
		there[c.Key] = nil
	}
	failed := map[uint8]error{}
	for family, there := range families {
		routes, err := ListRoutes(family, func(r FoundRoute) bool { _, asked := there[r.RouteKey]; return asked })
		failed[family] = err
		for _, r := range routes {
			there[r.RouteKey] = append(there[r.RouteKey], r)
		}
	}
	names := map[int]string{}
	for _, c := range doubtful {
		of := family(c.Key.Prefix.Addr())
		if failed[of] != nil {
			done(c, failed[of])
			continue
		}
		there := families[of][c.Key]
		others := slices.DeleteFunc(slices.Clone(there), func(r *FoundRoute) bool { return r.Protocol == k.stamps.Protocol })
		if len(others) > 0 {
			refused = append(refused, Refusal{c.Key, *c.New, k.inTheWay(others, names)})
			continue
		}
		if len(there) > 0 {
			done(c, k.RouteReplace(k.routeTo(c.Key, *c.New)))
			continue
		}
		err := k.RouteAdd(k.routeTo(c.Key, *c.New))
		if errors.Is(err, unix.EEXIST) { // since it was read
			refused = append(refused, Refusal{c.Key, *c.New, errForeignRoute})
			continue
		}
		done(c, err)
	}
	return refused
}

// routeTo is a route of Weft's as the library takes it.
func (k *Kernel) routeTo(key RouteKey, r Route) *netlink.Route {
	made := &netlink.Route{
		Dst:       ipNet(key.Prefix),
		Table:     key.Table,
		Priority:  key.Metric,
		Protocol:  netlink.RouteProtocol(k.stamps.Protocol),
		Type:      r.Kind,
		LinkIndex: r.Link,
		Gw:        ip(r.Via),
		Src:       ip(r.Source),
		Scope:     netlink.Scope(r.Scope),
	}
	if r.Kind == unix.RTN_LOCAL {
		made.LinkIndex, made.Scope = LoopbackLink, unix.RT_SCOPE_HOST
	}
	if r.Onlink {
		made.Flags = unix.RTNH_F_ONLINK
	}
	return made
}

var errForeignRoute = errors.New("another program's route is in the way")

// inTheWay says that routes of others are in the way of one of Weft's, and how to delete
// them. names are those of interfaces, as far as they were asked for.
func (k *Kernel) inTheWay(others []*FoundRoute, names map[int]string) error {
	var mends []string
	for _, r := range others {
		mends = append(mends, "ip route del "+k.describeForeign(r, names))
	}
	return fmt.Errorf("%w; delete that: %s", errForeignRoute, strings.Join(mends, "; "))
}

// describeForeign writes another program's route as ip-route(8) takes it.
func (k *Kernel) describeForeign(r *FoundRoute, names map[int]string) string {
	var b strings.Builder
	if b.WriteString(r.Prefix.String()); r.Prefix.Bits() == 0 {
		b.Reset()
		b.WriteString("default")
	}
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	if _, known := names[r.Link]; !known {
		names[r.Link] = ""
		if l, err := k.LinkByIndex(r.Link); err == nil {
			names[r.Link] = l.Attrs().Name
		}
	}
	if name := names[r.Link]; name != "" {
		fmt.Fprintf(&b, " dev %s", name)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		fmt.Fprintf(&b, " table %d", r.Table)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	return b.String()
}
