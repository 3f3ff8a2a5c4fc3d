package openshift

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/subnet"
)

// The conditions on the ClusterConfig.
const (
	// SubnetsAvailable is false when a node waits for a subnet in vain.
	SubnetsAvailable = "SubnetsAvailable"
	// ClusterNetworkValid is false when something in the ClusterNetwork does
	// not mean anything or is in the way of something else.
	ClusterNetworkValid = "ClusterNetworkValid"
)

// verb is what a write does.
type verb string

const (
	doCreate verb = "create"
	doUpdate verb = "update"
	doDelete verb = "delete"
	// doCheck writes nothing, and fails if the object is not as it was read.
	doCheck verb = "check"
)

// write is one change to the registry, by compare-and-swap with the resource
// version of the object that it was made from.
type write struct {
	verb   verb
	kind   *registry.Kind
	object registry.Object
	// barrier: unless it is done, nothing that follows may be.
	barrier bool
	// why is for the log.
	why string
}

// decision is what is to be done and to be said.
type decision struct {
	writes []write
	// next is when to look again though nothing changed; zero for never.
	next time.Time
	// problems are by object.
	problems map[string]string
	usage    []usage
	// quarantined is how many subnets are.
	quarantined int
}

// usage is how much of a range is.
type usage struct {
	cidr netip.Prefix
	subnet.Usage
}

// reconcile decides what must be written to get each node its subnet. It is
// level-triggered: after each write, and after any part of them, it decides
// what is left to do; when nothing is left it returns no writes. objects may
// be stale in any way but one: the HostSubnets are as they were at one moment
// after the ClusterConfig was read, and each Node as it was after that. The
// writes begin with one to the ClusterConfig, or a check of it (see ledger). elsewhere
// says who has which subnets by other plug-ins: a node without one gets its own there, if
// that is one to be given, and no other node does. Of a range of which some is foreign
// there, nodes get nothing else.
func reconcile(objects registry.Objects, elsewhere plugin.Elsewhere, now time.Time, quarantine time.Duration) decision {
	r := &reconciliation{
		now: now, elsewhere: elsewhere,
		until: now.Add(quarantine + time.Second).UTC().Truncate(time.Second),
		nodes: map[string]*corev1.Node{}, hosts: map[string]*host{}, reasons: map[string][]string{},
		decision: decision{problems: map[string]string{}},
	}
	cn := registry.GetAs[*networkv1.ClusterNetwork](objects, api.ClusterNetwork, networkKey)
	if cn == nil {
		r.write(write{verb: doCreate, kind: api.ClusterNetwork, object: Subnet{}.Begins(api.ClusterNetwork), why: "there was none"})
		return r.decision
	}
	config := registry.GetAs[*api.ClusterConfig](objects, api.ClusterConfigKind, networkKey)
	if config == nil {
		config = &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
		r.write(write{verb: doCreate, kind: api.ClusterConfigKind, object: config, why: "the allocator's memory is in its status"})
		return r.decision
	}
	r.network = readNetwork(cn)
	r.foreign = slices.DeleteFunc(slices.Clone(r.network.ranges), func(rg subnet.Range) bool {
		return !slices.ContainsFunc(elsewhere.Foreign, rg.CIDR.Overlaps)
	})
	r.ordered = readHosts(r.network, objects.All(api.HostSubnet))
	for _, h := range r.ordered {
		r.hosts[h.name] = h
	}
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		r.nodes[n.Name] = n
	}
	r.ledger = readLedger(config.Status.Subnets)
	r.heldElsewhere, _ = plugin.Node{Taken: elsewhere.Holdings}.Elsewhere()
	r.settleAddresses()
	r.sortOut()
	r.allocate()
	r.writeConfig(config)
	written := len(r.writes) > 0
	r.writeHosts()
	r.writeNodes()
	r.writeNetwork(cn)
	if len(r.writes) > 0 && !written {
		r.writes = slices.Insert(r.writes, 0, write{verb: doCheck, kind: api.ClusterConfigKind, object: config, barrier: true})
	}
	return r.decision
}

// reconciliation is a run of reconcile.
type reconciliation struct {
	decision
	now, until time.Time
	elsewhere  plugin.Elsewhere
	// heldElsewhere are the subnets of elsewhere.Holdings.
	heldElsewhere *subnet.Set
	network       network
	// foreign are the ranges of which others give subnets that do not ask what is free.
	// That of a range only a part is theirs is not believed: who gives Nodes their
	// podCIDRs is configured for itself.
	foreign []subnet.Range
	ordered []*host // the oldest first
	hosts   map[string]*host
	nodes   map[string]*corev1.Node
	ledger  ledger
	// reasons says, by node, why it has no subnet of some family.
	reasons map[string][]string
	// addresses are those of Nodes that are believed, disbelieved says by Node
	// why others are not.
	addresses   map[string][]netip.Addr
	disbelieved map[string][]string
	// exhausted says of which families there are no subnets left, lack is the reason of
	// that for a condition.
	exhausted []string
	lack      string
	// barred: a barrier cannot be passed.
	barred bool
}

// write adds a write. One that the registry would refuse, because somebody
// else got something invalid into the object, is reported instead.
func (r *reconciliation) write(w write) {
	if r.barred {
		return
	}
	if w.verb != doDelete && w.kind.Validate != nil {
		if err := w.kind.Validate(w.object); err != nil {
			r.barred = w.barrier
			name := w.kind.Kind + " " + w.object.GetName()
			r.problems[name] = strings.TrimPrefix(r.problems[name]+"; ", "; ") + "it cannot be written, because it is invalid: " + err.Error()
			return
		}
	}
	r.writes = append(r.writes, w)
}

// gone reports whether the node that the HostSubnet was made for is no more.
func (r *reconciliation) gone(h *host) bool { return !h.ghost && r.nodes[h.name] == nil }

// needs returns the families of which the HostSubnet is to get a subnet.
func (r *reconciliation) needs(h *host, families []subnet.Family) []subnet.Family {
	if h.garbled || r.nodes[h.name] == nil && !(h.ghost && h.object.Annotations[AssignSubnet] == "true") {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(families), h.claimsFamily)
}

// waiting reports whether the subnet of a grant might still be written into
// the HostSubnet as it is now, by whoever decided that when the grant was
// pending.
func (r *reconciliation) waiting(g grant) bool {
	h := r.hosts[g.node]
	return h != nil && !h.claimsFamily(g.family())
}

// settled reports whether nobody who found that a node was gone can still
// delete the HostSubnet as it is now.
func (r *reconciliation) settled(h *host) bool {
	n := r.nodes[h.name]
	return h.ghost || n != nil && h.uid() == n.UID
}

// claims reports whether the HostSubnet of a grant's node claims its subnet.
func (r *reconciliation) claims(g grant) bool {
	h := r.hosts[g.node]
	return h != nil && slices.Contains(h.claims, g.subnet)
}

// sortOut brings the ledger to what became of its entries.
func (r *reconciliation) sortOut() {
	l := &r.ledger
	pending := l.pending
	l.pending = nil
	for _, g := range pending {
		switch h := r.hosts[g.node]; {
		case r.claims(g) && r.settled(h):
		case r.claims(g) && !r.gone(h) || r.mayHave(g):
			l.pending = append(l.pending, g)
		default:
			l.quarantine(g.subnet, g.node, "")
		}
	}
	l.quarantined = slices.DeleteFunc(l.quarantined, func(g grant) bool {
		return r.claims(g) && r.settled(r.hosts[g.node])
	})
	for _, h := range r.ordered {
		if r.gone(h) {
			for _, p := range h.claims {
				l.quarantine(p, h.name, h.uid())
			}
		}
	}
	for i, g := range l.quarantined {
		if g.until.IsZero() && !r.claims(g) && !r.waiting(g) {
			l.quarantined[i].until = r.until
		}
	}
}

// mayHave reports whether a node may still be given the subnet of a grant: it
// is there and has none of that family, and the subnet is in the cluster's
// CIDRs and overlaps with nothing else, by this plug-in or another.
func (r *reconciliation) mayHave(g grant) bool {
	h, node := r.hosts[g.node], r.nodes[g.node]
	if h == nil && node == nil || h != nil && !slices.Contains(r.needs(h, []subnet.Family{g.family()}), g.family()) {
		return false
	}
	if !r.network.covers(g.subnet) || r.network.service.IsValid() && r.network.service.Overlaps(g.subnet) || r.othersHave(g) {
		return false
	}
	for _, other := range r.ordered {
		if slices.ContainsFunc(other.claims, g.subnet.Overlaps) || slices.ContainsFunc(other.addresses, g.subnet.Contains) {
			return false
		}
	}
	// An entry for the same node is the same subnet, or one that it had too.
	clashes := func(e grant) bool { return e.node != g.node && e.subnet.Overlaps(g.subnet) }
	same := func(e grant) bool { return e.node == g.node && e.family() == g.family() }
	return !slices.ContainsFunc(r.ledger.pending, func(e grant) bool { return clashes(e) || same(e) }) &&
		!slices.ContainsFunc(r.ledger.quarantined, func(e grant) bool { return clashes(e) && r.quarantined(e) })
}

// othersHave reports whether part of the subnet of a grant is another machine's by
// another plug-in, or may become so.
func (r *reconciliation) othersHave(g grant) bool {
	if r.elsewhere.Holdings[g.subnet] != g.node && slices.ContainsFunc(r.foreign, func(rg subnet.Range) bool { return rg.CIDR.Overlaps(g.subnet) }) {
		return true
	}
	for p, holder := range r.elsewhere.Holdings {
		if holder != g.node && p.Overlaps(g.subnet) {
			return true
		}
	}
	return false
}

// quarantined reports whether a subnet must not be given to another node yet.
func (r *reconciliation) quarantined(g grant) bool { return !g.over(r.now) || r.waiting(g) }

// allocate makes grants for all that wait, those who come back first.
func (r *reconciliation) allocate() {
	l := &r.ledger
	a := subnet.NewAllocator(r.network.ranges, l.cursor)
	families := families(r.network.ranges)
	for _, h := range r.ordered {
		for _, f := range r.needs(h, families) {
			r.restore(h, f)
		}
	}
	for _, h := range r.ordered {
		for _, p := range h.claims {
			a.Take(p)
		}
		for _, address := range h.addresses {
			a.Take(netip.PrefixFrom(address, address.BitLen()))
		}
	}
	for _, addresses := range r.addresses {
		for _, address := range addresses {
			a.Take(netip.PrefixFrom(address, address.BitLen()))
		}
	}
	a.Take(r.network.service)
	for _, g := range l.pending {
		a.Take(g.subnet)
	}
	for _, g := range l.quarantined {
		if r.quarantined(g) {
			a.Quarantine(g.subnet)
			r.decision.quarantined++
		}
		if g.until.After(r.now) && (r.next.IsZero() || g.until.Before(r.next)) {
			r.next = g.until
		}
	}
	r.adopt(a, families)
	for _, rg := range r.foreign {
		a.Close(rg)
	}
	failed := map[subnet.Family]error{}
	for _, h := range r.ordered {
		for _, f := range r.needs(h, families) {
			if slices.ContainsFunc(l.pending, func(g grant) bool { return g.node == h.name && g.family() == f }) {
				continue
			}
			var p netip.Prefix
			if failed[f] == nil {
				p, failed[f] = a.Allocate(f)
			}
			if failed[f] == nil {
				l.pending = append(l.pending, grant{subnet: p, node: h.name})
				continue
			}
			_, why := lackOf(failed[f])
			r.reasons[h.name] = append(r.reasons[h.name], fmt.Sprintf("no %s subnet: %s", f, why))
			if h.waits() && f == families[0] {
				break // see grantsFor
			}
		}
	}
	for _, f := range families {
		if failed[f] != nil {
			reason, why := lackOf(failed[f])
			r.lack, r.exhausted = reason, append(r.exhausted, why)
			if again := r.now.Add(lookElsewhere); len(r.foreign) > 0 && (r.next.IsZero() || again.Before(r.next)) {
				r.next = again
			}
		}
	}
	// What others hold now is not kept for those who had it.
	l.quarantined = slices.DeleteFunc(l.quarantined, func(g grant) bool {
		return !r.quarantined(g) && (slices.ContainsFunc(l.pending, func(e grant) bool { return e.subnet.Overlaps(g.subnet) }) || r.held(g.subnet))
	})
	l.cursor = a.Cursor()
	for _, rg := range r.network.ranges {
		r.usage = append(r.usage, usage{rg.CIDR, a.Usage(rg)})
	}
}

// lookElsewhere is after how long it is asked again what others give that a node waits for:
// not all of that is followed.
const lookElsewhere = 10 * time.Second

// lackOf says why there is no subnet for a node, and the reason for a condition.
func lackOf(err error) (reason, message string) {
	var e *subnet.ExhaustedError
	if !errors.As(err, &e) || len(e.Closed) == 0 {
		return "RangeExhausted", err.Error()
	}
	var closed []string
	for _, rg := range e.Closed {
		closed = append(closed, rg.String())
	}
	return "RangeShared", fmt.Sprintf("of %s, from which another plug-in of the cluster gives, too, a node gets that alone which it has by the other one, as its podCIDR; %v", strings.Join(closed, " and "), err)
}

// adopt gives nodes the subnets that they have by other plug-ins, and keeps the others of
// these from being given.
func (r *reconciliation) adopt(a *subnet.Allocator, families []subnet.Family) {
	for _, p := range slices.SortedFunc(maps.Keys(r.elsewhere.Holdings), netip.Prefix.Compare) {
		h, f := r.hosts[r.elsewhere.Holdings[p]], subnet.FamilyOf(p.Addr())
		waits := h != nil && !h.ghost && slices.Contains(r.needs(h, families), f) &&
			!slices.ContainsFunc(r.ledger.pending, func(g grant) bool { return g.node == h.name && g.family() == f })
		if waits && a.Free(p) {
			r.ledger.pending = append(r.ledger.pending, grant{subnet: p, node: h.name})
		}
		a.Take(p)
	}
}

// held reports whether a HostSubnet claims part of a subnet.
func (r *reconciliation) held(p netip.Prefix) bool {
	return slices.ContainsFunc(r.ordered, func(h *host) bool { return slices.ContainsFunc(h.claims, p.Overlaps) })
}

// restore makes a grant of the subnet that a node had, if it may have it.
func (r *reconciliation) restore(h *host, f subnet.Family) {
	l := &r.ledger
	last := -1
	for i, g := range l.quarantined {
		if g.node == h.name && g.family() == f && r.mayHave(g) && (last < 0 || latest(g, l.quarantined[last]) < 0) {
			last = i
		}
	}
	if last >= 0 {
		l.pending = append(l.pending, grant{subnet: l.quarantined[last].subnet, node: h.name})
		l.quarantined = slices.Delete(l.quarantined, last, last+1)
	}
}

// writeConfig writes the ledger and the conditions, if they changed.
func (r *reconciliation) writeConfig(config *api.ClusterConfig) {
	out := config.DeepCopyObject().(*api.ClusterConfig)
	out.Status.Subnets = r.ledger.format(r.now)
	condition := func(name string, reason, message string) {
		c := metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: cmp.Or(reason, "AsExpected"),
			Message: message, LastTransitionTime: metav1.NewTime(r.now.UTC().Truncate(time.Second))}
		if reason != "" {
			c.Status = metav1.ConditionFalse
			r.problems[api.ClusterConfigKind.Kind+" "+config.Name+" "+name] = message
		}
		meta.SetStatusCondition(&out.Status.Conditions, c)
	}
	reason := ""
	if len(r.network.problems) > 0 {
		reason = r.network.problems[0].reason
	}
	condition(ClusterNetworkValid, reason, r.networkProblems())
	switch {
	case len(r.network.ranges) == 0:
		condition(SubnetsAvailable, "NoRange", "ClusterNetwork "+api.DefaultName+" has no CIDR that can be used")
	case len(r.exhausted) > 0:
		condition(SubnetsAvailable, r.lack, strings.Join(r.exhausted, "; "))
	default:
		condition(SubnetsAvailable, "", "")
	}
	if !equal(config.Status, out.Status) {
		r.write(write{verb: doUpdate, kind: api.ClusterConfigKind, object: out, barrier: true, why: "subnets given out or taken back"})
	}
}

func (r *reconciliation) networkProblems() string {
	var messages []string
	for _, p := range r.network.problems {
		messages = append(messages, p.message)
	}
	return strings.Join(messages, "; ")
}

// equal compares what is stored of two values.
func equal(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}
