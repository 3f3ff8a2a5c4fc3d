package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weftnet/weft/plan"
)

// owners knows whose an address is: a pod's of the node itself or, else, that of
// the first of the nodes that say it is theirs.
type owners struct {
	local map[netip.Addr]localOwner
	// claims are the winners, contested those that lose to them.
	claims    map[netip.Addr]claim
	contested map[netip.Addr][]claim
}

type localOwner struct {
	pod *Local
	// member is nil while the pod's labels are not known.
	member *member
}

type claim struct {
	node *Node
	tag  plan.Tag
}

func byName(a, b *Node) int { return strings.Compare(a.Name, b.Name) }

// updateNodes follows the nodes, and calls touch for each address that may have
// another owner.
func (x *owners) updateNodes(was, is []*Node, touch func(netip.Addr)) {
	for o, n := range changes(was, is, byName) {
		if o != nil {
			for _, t := range o.Pods {
				for _, a := range t.Addresses {
					x.withdraw(a, o)
					touch(a)
				}
			}
		}
		if n != nil {
			for _, t := range n.Pods {
				for _, a := range t.Addresses {
					x.claim(a, claim{n, t.Tag})
					touch(a)
				}
			}
		}
	}
}

// claim enters a claim. Of those of one node the first counts.
func (x *owners) claim(a netip.Addr, c claim) {
	first, ok := x.claims[a]
	if !ok {
		x.claims[a] = c
		return
	}
	all := append([]claim{first}, x.contested[a]...)
	i, found := slices.BinarySearchFunc(all, c, func(a, b claim) int { return byName(a.node, b.node) })
	if found {
		return
	}
	all = slices.Insert(all, i, c)
	x.claims[a], x.contested[a] = all[0], all[1:]
}

// withdraw takes back what a node claimed.
func (x *owners) withdraw(a netip.Addr, n *Node) {
	others := x.contested[a]
	if x.claims[a].node == n {
		if len(others) == 0 {
			delete(x.claims, a)
			return
		}
		x.claims[a], others = others[0], others[1:]
	} else {
		others = slices.DeleteFunc(slices.Clone(others), func(c claim) bool { return c.node == n })
	}
	if x.contested[a] = others; len(others) == 0 {
		delete(x.contested, a)
	}
}

// updateLocal follows the node's own pods.
func (x *owners) updateLocal(pods []*Local, memberOf func(*Local) *member, touch func(netip.Addr)) {
	was := x.local
	x.local = make(map[netip.Addr]localOwner, len(pods))
	for _, pod := range pods {
		if pod.Ended {
			continue
		}
		for _, a := range pod.Addresses {
			if _, ok := x.local[a]; !ok {
				x.local[a] = localOwner{pod, memberOf(pod)}
			}
			if x.local[a] != was[a] {
				touch(a)
			}
		}
	}
	for a := range was {
		if _, ok := x.local[a]; !ok {
			touch(a)
		}
	}
}
