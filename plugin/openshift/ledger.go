package openshift

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/subnet"
)

// ledger is the allocator's memory, a ClusterConfig's status.subnets.
//
// A subnet that is given to a node becomes pending before the node's
// HostSubnet is written, and quarantined before it is deleted. It leaves the
// one only for the other or for the HostSubnet. So whoever reads the ledger
// first and the HostSubnets afterwards sees every subnet that any node has or
// may yet be given, and as long as nobody else wrote the ledger meanwhile,
// which compare-and-swap tells, may give out the others.
//
// That holds even for a controller that wrote the ledger, was stopped, and
// goes on long afterwards: what it writes last is a HostSubnet as it read it,
// by compare-and-swap. A quarantine therefore does not end while there is a
// HostSubnet that could still be filled that way (see reconciliation.waiting).
type ledger struct {
	pending, quarantined []grant
	cursor               map[netip.Prefix]netip.Prefix
}

// grant is a subnet and the node that has or had it.
type grant struct {
	subnet netip.Prefix
	node   string
	// until is when a quarantine ends, to the second.
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
			e := grant{subnet: p.Masked(), node: g.Node}
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
			e := api.SubnetGrant{Subnet: g.subnet.String(), Node: g.node}
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

// forget orders the quarantined, those that end last first, and drops what
// ended before the last few.
func (l *ledger) forget(now time.Time) {
	slices.SortFunc(l.quarantined, func(a, b grant) int {
		return cmp.Or(b.until.Compare(a.until), cmp.Compare(a.node, b.node), a.subnet.Compare(b.subnet))
	})
	over := 0
	l.quarantined = slices.DeleteFunc(l.quarantined, func(g grant) bool {
		if g.until.After(now) {
			return false
		}
		over++
		return over > remembered
	})
}

// has reports whether grants has the subnet for the node.
func has(grants []grant, p netip.Prefix, node string) bool {
	return slices.ContainsFunc(grants, func(g grant) bool { return g.subnet == p && g.node == node })
}

// quarantine adds a subnet taken from a node, unless it is there.
func (l *ledger) quarantine(p netip.Prefix, node string, until time.Time) {
	if !has(l.quarantined, p, node) {
		l.quarantined = append(l.quarantined, grant{p, node, until})
	}
}
