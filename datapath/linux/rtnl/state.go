package rtnl

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// The kinds of kernel objects outside nftables, each a key by which the kernel
// tells objects apart and a value that says the rest. All are plain values:
// what is wanted and what is there are compared with ==.

// RouteKey is what makes a route unique in the kernel.
type RouteKey struct {
	Table  int
	Prefix netip.Prefix
	Metric int
}

// Route is what a route says beside its key.
type Route struct {
	Kind   int // RTN_UNICAST, RTN_UNREACHABLE, RTN_THROW or RTN_LOCAL
	Link   int // interface index; 0 where kind needs none
	Via    netip.Addr
	Onlink bool
	Source netip.Addr
	Scope  int // IPv4 only
}

// AddressKey names an address of one of Weft's own devices.
type AddressKey struct {
	Link   int
	Prefix netip.Prefix
}

// PlaceHolder is the address of a tunnel's device on which the node has no other IPv4 address. With
// a device's last IPv4 address the kernel takes all routes and neighbours on it, also those that
// need no address. As it is one of the loopback device's (RFC 1122, section 3.2.1.3), the node
// answers nobody at it who could not reach the node there before.
var PlaceHolder = netip.MustParsePrefix("127.0.0.87/32")

// NeighbourKey names a neighbour; its value is the MAC address.
type NeighbourKey struct {
	Link int
	Addr netip.Addr
}

// FDBKey names a forwarding entry of a VXLAN device; its value is the VTEP.
type FDBKey struct {
	Link int
	MAC  plan.MAC
}

// Rule sends packets from a prefix, to another, to a routing table.
type Rule struct {
	Priority int
	From, To netip.Prefix
	Table    int
}

// String is for people.
func (r Rule) String() string {
	return fmt.Sprintf("rule %d from %s to %s lookup %d", r.Priority, r.From, r.To, r.Table)
}

// Objects is everything of Weft's that the kernel holds, but devices and
// nftables.
type Objects struct {
	Addresses  map[AddressKey]struct{}
	Routes     map[RouteKey]Route
	Neighbours map[NeighbourKey]plan.MAC
	FDB        map[FDBKey]netip.Addr
	Rules      map[Rule]struct{}
	// Groups are the interfaces stamped as leading to endpoints.
	Groups map[int]struct{}
	// Shaping is that of interfaces, by their indexes.
	Shaping map[int]Shaping
}

// Wanted is what the kernel should hold.
type Wanted struct {
	Addresses  reconcile.Ledger[AddressKey, struct{}]
	Routes     reconcile.Ledger[RouteKey, Route]
	Neighbours reconcile.Ledger[NeighbourKey, plan.MAC]
	FDB        reconcile.Ledger[FDBKey, netip.Addr]
	Rules      reconcile.Ledger[Rule, struct{}]
	Groups     reconcile.Ledger[int, struct{}]
	Shaping    reconcile.Ledger[int, Shaping]
}

// Delta is what leads from one state to another, each kind in an order that
// depends on the content alone.
type Delta struct {
	Addresses  []reconcile.Change[AddressKey, struct{}]
	Routes     []reconcile.Change[RouteKey, Route]
	Neighbours []reconcile.Change[NeighbourKey, plan.MAC]
	FDB        []reconcile.Change[FDBKey, netip.Addr]
	Rules      []reconcile.Change[Rule, struct{}]
	Groups     []reconcile.Change[int, struct{}]
	Shaping    []reconcile.Change[int, Shaping]
	// again are the routes that the kernel refused before.
	again map[RouteKey]bool
}

// Against returns what leads from have to what is wanted.
func (w *Wanted) Against(have *Objects) Delta {
	return Delta{
		Addresses:  reconcile.Diff(have.Addresses, w.Addresses.Now, compareAddressKey),
		Routes:     reconcile.Diff(have.Routes, w.Routes.Now, compareRouteKey),
		Neighbours: reconcile.Diff(have.Neighbours, w.Neighbours.Now, compareNeighbourKey),
		FDB:        reconcile.Diff(have.FDB, w.FDB.Now, compareFDBKey),
		Rules:      reconcile.Diff(have.Rules, w.Rules.Now, compareRule),
		Groups:     reconcile.Diff(have.Groups, w.Groups.Now, cmp.Compare[int]),
		Shaping:    reconcile.Diff(have.Shaping, w.Shaping.Now, cmp.Compare[int]),
	}
}

// Changes returns what became of what is wanted since the last call.
func (w *Wanted) Changes() Delta {
	return Delta{
		Addresses:  w.Addresses.Changes(compareAddressKey),
		Routes:     w.Routes.Changes(compareRouteKey),
		Neighbours: w.Neighbours.Changes(compareNeighbourKey),
		FDB:        w.FDB.Changes(compareFDBKey),
		Rules:      w.Rules.Changes(compareRule),
		Groups:     w.Groups.Changes(cmp.Compare[int]),
		Shaping:    w.Shaping.Changes(cmp.Compare[int]),
	}
}

// Begin has the next Changes tell nothing of what became of what is wanted until now.
func (w *Wanted) Begin() {
	w.Addresses.Begin()
	w.Routes.Begin()
	w.Neighbours.Begin()
	w.FDB.Begin()
	w.Rules.Begin()
	w.Groups.Begin()
	w.Shaping.Begin()
}

// Again returns a delta that also adds the routes that the kernel refused before, where
// they are still wanted. The kernel holds none of these, so nothing of them is to be
// replaced or deleted.
func (d Delta) Again(refused []Refusal, w *Wanted) Delta {
	if len(refused) == 0 {
		return d
	}
	var again []reconcile.Change[RouteKey, Route]
	was := map[RouteKey]bool{}
	for _, r := range refused {
		was[r.Key] = true
		if route, ok := w.Routes.Now[r.Key]; ok {
			again = append(again, reconcile.Change[RouteKey, Route]{Key: r.Key, New: &route})
		}
	}
	for _, c := range d.Routes {
		if !was[c.Key] {
			again = append(again, c)
		}
	}
	slices.SortFunc(again, func(a, b reconcile.Change[RouteKey, Route]) int { return compareRouteKey(a.Key, b.Key) })
	d.Routes, d.again = again, was
	return d
}

// Local divides a delta: early has the routes that come, or that go, by which the kernel delivers
// to itself what is sent to an address that no interface has; rest has all else.
func (d Delta) Local(come bool) (early, rest Delta) {
	rest = d
	rest.Routes = nil
	for _, c := range d.Routes {
		if c.Key.Table == unix.RT_TABLE_LOCAL && (come && c.Old == nil || !come && c.New == nil) {
			early.Routes = append(early.Routes, c)
		} else {
			rest.Routes = append(rest.Routes, c)
		}
	}
	return early, rest
}

func compareRouteKey(a, b RouteKey) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), a.Prefix.Compare(b.Prefix), cmp.Compare(a.Metric, b.Metric))
}

func compareAddressKey(a, b AddressKey) int {
	return cmp.Or(cmp.Compare(a.Link, b.Link), a.Prefix.Compare(b.Prefix))
}

func compareNeighbourKey(a, b NeighbourKey) int {
	return cmp.Or(cmp.Compare(a.Link, b.Link), a.Addr.Compare(b.Addr))
}

func compareFDBKey(a, b FDBKey) int {
	return cmp.Or(cmp.Compare(a.Link, b.Link), slices.Compare(a.MAC[:], b.MAC[:]))
}

func compareRule(a, b Rule) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), netip.Prefix.Compare(a.From, b.From), netip.Prefix.Compare(a.To, b.To), cmp.Compare(a.Table, b.Table))
}
