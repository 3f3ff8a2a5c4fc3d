package linux

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

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
	addresses  ledger[addressKey, struct{}]
	routes     ledger[routeKey, route]
	neighbours ledger[neighbourKey, plan.MAC]
	fdb        ledger[fdbKey, netip.Addr]
	rules      ledger[rule, struct{}]
	groups     ledger[int, struct{}]
}

// change is what must happen to one object. old is nil when it is not there,
// new is nil when it is not wanted.
type change[K, V any] struct {
	key      K
	old, new *V
}

// delta is what leads from one state to another, each kind in an order that
// depends on the content alone.
type delta struct {
	addresses  []change[addressKey, struct{}]
	routes     []change[routeKey, route]
	neighbours []change[neighbourKey, plan.MAC]
	fdb        []change[fdbKey, netip.Addr]
	rules      []change[rule, struct{}]
	groups     []change[int, struct{}]
}

// against returns what leads from have to what is wanted.
func (w *wanted) against(have *objects) delta {
	return delta{
		addresses:  diff(have.addresses, w.addresses.now, compareAddressKey),
		routes:     diff(have.routes, w.routes.now, compareRouteKey),
		neighbours: diff(have.neighbours, w.neighbours.now, compareNeighbourKey),
		fdb:        diff(have.fdb, w.fdb.now, compareFDBKey),
		rules:      diff(have.rules, w.rules.now, compareRule),
		groups:     diff(have.groups, w.groups.now, cmp.Compare[int]),
	}
}

// changes returns what became of what is wanted since the last call.
func (w *wanted) changes() delta {
	return delta{
		addresses:  w.addresses.changes(compareAddressKey),
		routes:     w.routes.changes(compareRouteKey),
		neighbours: w.neighbours.changes(compareNeighbourKey),
		fdb:        w.fdb.changes(compareFDBKey),
		rules:      w.rules.changes(compareRule),
		groups:     w.groups.changes(cmp.Compare[int]),
	}
}

// asObjects returns the wanted objects as if the kernel held them.
func (w *wanted) asObjects() *objects {
	return &objects{w.addresses.now, w.routes.now, w.neighbours.now, w.fdb.now, w.rules.now, w.groups.now}
}

// ledger holds objects that several plan entries may ask for at once, as all
// routes to one node ask for its forwarding entry. An object is there as long
// as one of them asks.
type ledger[K, V comparable] struct {
	now  map[K]V
	asks map[K]int
	// before holds the values at the last call of changes of all keys that
	// were touched since; nil where there was none.
	before map[K]*V
}

// add asks for an object. It returns false, and adds nothing, when someone
// asks for another value of the same key.
func (l *ledger[K, V]) add(k K, v V) bool {
	old, ok := l.now[k]
	if ok && old != v {
		return false
	}
	if !ok {
		l.touch(k)
		if l.now == nil {
			l.now, l.asks = map[K]V{}, map[K]int{}
		}
		l.now[k] = v
	}
	l.asks[k]++
	return true
}

// remove takes back one add of that value.
func (l *ledger[K, V]) remove(k K, v V) bool {
	if old, ok := l.now[k]; !ok || old != v {
		return false
	}
	if l.asks[k]--; l.asks[k] == 0 {
		l.touch(k)
		delete(l.now, k)
		delete(l.asks, k)
	}
	return true
}

func (l *ledger[K, V]) touch(k K) {
	if _, ok := l.before[k]; ok {
		return
	}
	if l.before == nil {
		l.before = map[K]*V{}
	}
	l.before[k] = nil
	if v, ok := l.now[k]; ok {
		l.before[k] = &v
	}
}

func (l *ledger[K, V]) changes(compare func(a, b K) int) []change[K, V] {
	var changes []change[K, V]
	for k, old := range l.before {
		c := change[K, V]{key: k, old: old}
		if v, ok := l.now[k]; ok {
			c.new = &v
		}
		if c.old != nil && c.new != nil && *c.old == *c.new || c.old == nil && c.new == nil {
			continue
		}
		changes = append(changes, c)
	}
	l.before = nil
	return sorted(changes, compare)
}

func diff[K, V comparable](have, want map[K]V, compare func(a, b K) int) []change[K, V] {
	var changes []change[K, V]
	for k, v := range want {
		if old, ok := have[k]; !ok {
			changes = append(changes, change[K, V]{key: k, new: &v})
		} else if old != v {
			changes = append(changes, change[K, V]{key: k, old: &old, new: &v})
		}
	}
	for k, v := range have {
		if _, ok := want[k]; !ok {
			changes = append(changes, change[K, V]{key: k, old: &v})
		}
	}
	return sorted(changes, compare)
}

func sorted[K, V any](changes []change[K, V], compare func(a, b K) int) []change[K, V] {
	slices.SortFunc(changes, func(a, b change[K, V]) int { return compare(a.key, b.key) })
	return changes
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
