package openshift

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/subnet"
)

// ledger is the allocator's memory, a ClusterConfig's status.subnets. It makes
// one decision of what is written to many objects, in any order and by any
// number of controllers that may be stopped for any time before a write and do
// it afterwards. Each write is by compare-and-swap, so a late one succeeds only
// if its object is still what it was read as. What must hold is: whatever subnet
// a node has or may yet get is in the ledger or in a HostSubnet.
//
// A controller reads the ledger, then the HostSubnets, then the Nodes. Then it
// writes the ledger, or where it has nothing to write there sees that it is as
// it was read, and only then writes HostSubnets. So the ledger did not change
// while the rest was read, and all was so at one moment.
//
//   - A subnet becomes pending, which gives it to a node, before the node's
//     HostSubnet gets it.
//   - It stops being pending when the HostSubnet has it and is settled: written
//     for the Node that is there. A controller that found an earlier Node gone
//     read the HostSubnet before that, and can no longer delete it.
//   - It becomes quarantined, with the UID of the Node that is gone, before the
//     HostSubnet is deleted. It stops being quarantined if it becomes pending
//     for the same node, or if the HostSubnet has it and is settled for another
//     Node of the name. The UID is there so that of two controllers, one that
//     saw this Node a moment before it went and one that found it gone, both
//     have to write the ledger, and one fails.
//   - Its rest begins when the HostSubnet has it no longer and can no longer get
//     it by a late write, which is that there is none or that it has another
//     subnet instead: whatever came and went unseen before, it had the subnet
//     by that HostSubnet. When the rest is over, others may get it.
type ledger struct {
	pending, quarantined []grant
	cursor               map[netip.Prefix]netip.Prefix
}

// grant is a subnet and the node that has or had it.
type grant struct {
	subnet netip.Prefix
	node   string
	// uid is that of the Node that was gone when the subnet was quarantined.
	uid types.UID
	// until is when a quarantine ends, to the second; zero while its rest has
	// not begun.
	until time.Time
}

func (g grant) family() subnet.Family { return subnet.FamilyOf(g.subnet.Addr()) }

// remembered is how many subnets whose quarantine is over the ledger keeps, so
// that nodes which come back later find theirs again if it is free.
const remembered = 256

// readLedger reads a ledger. What is not valid in it means nothing.
func readLedger(l *api.SubnetLedger) ledger {
	out := ledger{cursor: map[netip.Prefix]netip.Prefix{}}
	if l == nil {
		return out
	}
	read := func(in []api.SubnetGrant) []grant {
		var grants []grant
		for _, g := range in {
			p, err := netip.ParsePrefix(g.Subnet)
			if err != nil {
				continue
			}
			e := grant{subnet: p.Masked(), node: g.Node, uid: g.NodeUID}
			if g.Until != nil {
				e.until = g.Until.UTC()
			}
			grants = append(grants, e)
		}
		return grants
	}
	out.pending, out.quarantined = read(l.Pending), read(l.Quarantined)
	for cidr, last := range l.Cursor {
		c, err := netip.ParsePrefix(cidr)
		p, err2 := netip.ParsePrefix(last)
		if err == nil && err2 == nil {
			out.cursor[c] = p
		}
	}
	return out
}

// format returns the ledger as it is stored, or nil if it is empty.
func (l ledger) format(now time.Time) *api.SubnetLedger {
	l.quarantined = slices.Clone(l.quarantined)
	l.forget(now)
	l.pending = slices.Clone(l.pending)
	slices.SortFunc(l.pending, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.node, b.node), a.subnet.Compare(b.subnet))
	})
	write := func(grants []grant) []api.SubnetGrant {
		var out []api.SubnetGrant
		for _, g := range grants {
			e := api.SubnetGrant{Subnet: g.subnet.String(), Node: g.node, NodeUID: g.uid}
			if !g.until.IsZero() {
				e.Until = &metav1.Time{Time: g.until}
			}
			out = append(out, e)
		}
		return out
	}
	out := &api.SubnetLedger{Pending: write(l.pending), Quarantined: write(l.quarantined)}
	for cidr, last := range l.cursor {
		if out.Cursor == nil {
			out.Cursor = map[string]string{}
		}
		out.Cursor[cidr.String()] = last.String()
	}
	if out.Pending == nil && out.Quarantined == nil && out.Cursor == nil {
		return nil
	}
	return out
}

// over reports whether a quarantined subnet has rested long enough.
func (g grant) over(now time.Time) bool { return !g.until.IsZero() && !g.until.After(now) }

// latest orders the quarantined, those that end last first.
func latest(a, b grant) int {
	if a.until.IsZero() != b.until.IsZero() {
		if a.until.IsZero() {
			return -1
		}
		return 1
	}
	return b.until.Compare(a.until)
}

// forget orders the quarantined, those that end last first, and drops what
// ended before the last few.
func (l *ledger) forget(now time.Time) {
	slices.SortFunc(l.quarantined, func(a, b grant) int {
		return cmp.Or(latest(a, b), cmp.Compare(a.node, b.node), a.subnet.Compare(b.subnet))
	})
	kept := 0
	l.quarantined = slices.DeleteFunc(l.quarantined, func(g grant) bool {
		if !g.over(now) {
			return false
		}
		kept++
		return kept > remembered
	})
}

// quarantine adds a subnet taken from a node, whose Node of that UID is gone.
// Its rest has not begun.
func (l *ledger) quarantine(p netip.Prefix, node string, uid types.UID) {
	g := grant{subnet: p, node: node, uid: uid}
	i := slices.IndexFunc(l.quarantined, func(e grant) bool { return e.subnet == p && e.node == node })
	if i < 0 {
		l.quarantined = append(l.quarantined, g)
	} else {
		l.quarantined[i] = g
	}
}
