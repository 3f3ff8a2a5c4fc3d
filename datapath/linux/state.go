package linux

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/datapath/reconcile"
	"github.com/weftnet/weft/plan"
)

// The kinds of kernel objects outside nftables, each a key by which the kernel
// tells objects apart and a value that says the rest. All are plain values:
// what is wanted and what is there are compared with ==.

// routeKey is what makes a route unique in the kernel.
type routeKey struct {
	table  int
	prefix netip.Prefix
	metric int
}

type route struct {
	kind   int // RTN_UNICAST, RTN_UNREACHABLE or RTN_THROW
	link   int // interface index; 0 where kind needs none
	via    netip.Addr
	onlink bool
	source netip.Addr
	scope  int // IPv4 only
}

// addressKey names an address of one of Weft's own devices.
type addressKey struct {
	link   int
	prefix netip.Prefix
}

type neighbourKey struct {
	link int
	addr netip.Addr
}

// fdbKey names a forwarding entry of a VXLAN device; its value is the VTEP.
type fdbKey struct {
	link int
	mac  plan.MAC
}

// rule sends packets from a prefix, to another, to a routing table.
type rule struct {
	priority int
	from, to netip.Prefix
	table    int
}

func (r rule) String() string {
	return fmt.Sprintf("rule %d from %s to %s lookup %d", r.priority, r.from, r.to, r.table)
}

// objects is everything of Weft's that the kernel holds, but devices and
// nftables.
type objects struct {
	addresses  map[addressKey]struct{}
	routes     map[routeKey]route
	neighbours map[neighbourKey]plan.MAC
	fdb        map[fdbKey]netip.Addr
	rules      map[rule]struct{}
	// groups are the interfaces stamped as leading to endpoints.
	groups map[int]struct{}
}

// wanted is what the kernel should hold.
type wanted struct {
	addresses  reconcile.Ledger[addressKey, struct{}]
	routes     reconcile.Ledger[routeKey, route]
	neighbours reconcile.Ledger[neighbourKey, plan.MAC]
	fdb        reconcile.Ledger[fdbKey, netip.Addr]
	rules      reconcile.Ledger[rule, struct{}]
	groups     reconcile.Ledger[int, struct{}]
}

// delta is what leads from one state to another, each kind in an order that
// depends on the content alone.
type delta struct {
	addresses  []reconcile.Change[addressKey, struct{}]
	routes     []reconcile.Change[routeKey, route]
	neighbours []reconcile.Change[neighbourKey, plan.MAC]
	fdb        []reconcile.Change[fdbKey, netip.Addr]
	rules      []reconcile.Change[rule, struct{}]
	groups     []reconcile.Change[int, struct{}]
}

// against returns what leads from have to what is wanted.
func (w *wanted) against(have *objects) delta {
	return delta{
		addresses:  reconcile.Diff(have.addresses, w.addresses.Now, compareAddressKey),
		routes:     reconcile.Diff(have.routes, w.routes.Now, compareRouteKey),
		neighbours: reconcile.Diff(have.neighbours, w.neighbours.Now, compareNeighbourKey),
		fdb:        reconcile.Diff(have.fdb, w.fdb.Now, compareFDBKey),
		rules:      reconcile.Diff(have.rules, w.rules.Now, compareRule),
		groups:     reconcile.Diff(have.groups, w.groups.Now, cmp.Compare[int]),
	}
}

// changes returns what became of what is wanted since the last call.
func (w *wanted) changes() delta {
	return delta{
		addresses:  w.addresses.Changes(compareAddressKey),
		routes:     w.routes.Changes(compareRouteKey),
		neighbours: w.neighbours.Changes(compareNeighbourKey),
		fdb:        w.fdb.Changes(compareFDBKey),
		rules:      w.rules.Changes(compareRule),
		groups:     w.groups.Changes(cmp.Compare[int]),
	}
}

// asObjects returns the wanted objects as if the kernel held them.
func (w *wanted) asObjects() *objects {
	return &objects{w.addresses.Now, w.routes.Now, w.neighbours.Now, w.fdb.Now, w.rules.Now, w.groups.Now}
}

func compareRouteKey(a, b routeKey) int {
	return cmp.Or(cmp.Compare(a.table, b.table), a.prefix.Compare(b.prefix), cmp.Compare(a.metric, b.metric))
}

func compareAddressKey(a, b addressKey) int {
	return cmp.Or(cmp.Compare(a.link, b.link), a.prefix.Compare(b.prefix))
}

func compareNeighbourKey(a, b neighbourKey) int {
	return cmp.Or(cmp.Compare(a.link, b.link), a.addr.Compare(b.addr))
}

func compareFDBKey(a, b fdbKey) int {
	return cmp.Or(cmp.Compare(a.link, b.link), slices.Compare(a.mac[:], b.mac[:]))
}

func compareRule(a, b rule) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), netip.Prefix.Compare(a.from, b.from), netip.Prefix.Compare(a.to, b.to), cmp.Compare(a.table, b.table))
}
