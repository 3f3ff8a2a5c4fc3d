package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/reconcile"
)

// setRoutes adds the routes of a delta, and replaces Weft's own. It never replaces
// another's: those that others have are returned. What is there is read once for all
// routes that are to be replaced, were refused before or cannot be added; what is only
// new costs no more than itself. All other outcomes are told to done.
func (k *Kernel) setRoutes(d Delta, done func(reconcile.Change[RouteKey, Route], error)) (refused []Refusal) {
	var fresh, doubtful []reconcile.Change[RouteKey, Route]
	for _, c := range d.Routes {
		switch {
		case c.New == nil:
		case c.Old == nil && !d.again[c.Key]:
			fresh = append(fresh, c)
		default:
			doubtful = append(doubtful, c)
		}
	}
	added := k.executeTogether(len(fresh), func(i int) *nl.NetlinkRequest {
		return k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, fresh[i].Key, *fresh[i].New)
	})
	for i, err := range added {
		if errors.Is(err, unix.EEXIST) {
			doubtful = append(doubtful, fresh[i])
		} else {
			done(fresh[i], err)
		}
	}
	slices.SortFunc(doubtful, func(a, b reconcile.Change[RouteKey, Route]) int { return compareRouteKey(a.Key, b.Key) })
	families := map[uint8]map[RouteKey][]*FoundRoute{}
	for _, c := range doubtful {
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
			done(c, k.execute(k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, c.Key, *c.New)))
			continue
		}
		err := k.execute(k.routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.Key, *c.New))
		if errors.Is(err, unix.EEXIST) { // since it was read
			refused = append(refused, Refusal{c.Key, *c.New, errForeignRoute})
			continue
		}
		done(c, err)
	}
	return refused
}

// deleteRoutes deletes the routes that a delta has no more. What becomes of each that was still
// there is told to done.
func (k *Kernel) deleteRoutes(d Delta, done func(reconcile.Change[RouteKey, Route], error)) {
	var leave []reconcile.Change[RouteKey, Route]
	for _, c := range d.Routes {
		if c.New == nil {
			leave = append(leave, c)
		}
	}
	deleted := k.executeTogether(len(leave), func(i int) *nl.NetlinkRequest {
		return k.routeRequest(unix.RTM_DELROUTE, 0, leave[i].Key, Route{Kind: leave[i].Old.Kind, Scope: unix.RT_SCOPE_NOWHERE})
	})
	for i, err := range deleted {
		if !Gone(err) {
			done(leave[i], err)
		}
	}
}

// routeRequest asks for something to be done to a route of Weft's.
func (k *Kernel) routeRequest(kind, flags int, key RouteKey, r Route) *nl.NetlinkRequest {
	if r.Kind == unix.RTN_LOCAL && kind == unix.RTM_NEWROUTE {
		r.Link, r.Scope = LoopbackLink, unix.RT_SCOPE_HOST
	}
	req := k.request(kind, flags|unix.NLM_F_ACK)
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family(key.Prefix.Addr()), Dst_len: uint8(key.Prefix.Bits()), Table: unix.RT_TABLE_UNSPEC,
		Protocol: k.stamps.Protocol, Scope: uint8(r.Scope), Type: uint8(r.Kind)}}
	if r.Onlink {
		msg.Flags = unix.RTNH_F_ONLINK
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.RTA_DST, key.Prefix.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(key.Table))))
	if r.Source.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.Source.AsSlice()))
	}
	if r.Via.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Via.AsSlice()))
	}
	if key.Metric != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(key.Metric))))
	}
	if r.Link != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(r.Link))))
	}
	return req
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
