package policy

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Size is how large rules are, as users write them.
type Size struct {
	Rules int
	// Peers counts selectors, nodes, domains, and prefixes with their exceptions,
	// Ports ports and ranges of them, both over all rules.
	Peers, Ports int
}

// What the policies of users may be. One that is larger, and those by whose size a
// namespace exceeds what its policies may be together, allow nothing (Closed).
//
// What a node does about a change grows with this, and another's change waits
// for as long. Upstream says nothing of limits but those of etcd, to which an
// object may have 1.5 MB.
var (
	MaxOfPolicy    = Size{Rules: 500, Peers: 1000, Ports: 1000}
	MaxOfNamespace = Size{Rules: 1000, Peers: 2000, Ports: 2000}
)

// MaxVerdicts is how many verdicts a set may have, which is what the policies
// of one pod make in a direction, and MaxWork how many times it may take to look at
// 64 of its rules for some ports. A set with more denies everything.
//
// MaxVerdictsOfNamespace is how many the policies of one namespace make together on
// one node. Where they make more, the largest of its sets deny everything, as many
// as it takes.
const (
	MaxVerdicts            = 2048
	MaxVerdictsOfNamespace = 4096
	MaxWork                = 20_000_000
)

// Only tests set these.
var maxVerdicts, maxOfNamespace, maxWork = MaxVerdicts, MaxVerdictsOfNamespace, MaxWork

// Size returns how large the policy is.
func (p *Policy) Size() (s Size) {
	for _, rules := range [...][]Rule{p.Ingress, p.Egress} {
		s.Rules += len(rules)
		for _, r := range rules {
			s.Peers += len(r.Peers)
			s.Ports += len(r.Ports)
			for _, peer := range r.Peers {
				if peer.Block != nil {
					s.Peers += len(peer.Block.Except)
				}
			}
		}
	}
	return s
}

// Plus returns the sum of two sizes.
func (s Size) Plus(o Size) Size {
	return Size{s.Rules + o.Rules, s.Peers + o.Peers, s.Ports + o.Ports}
}

// Beyond says what of a size is more than there may be, "" if nothing is.
func (s Size) Beyond(most Size) string {
	for _, of := range []struct {
		n, most int
		what    string
	}{{s.Rules, most.Rules, "rules"}, {s.Peers, most.Peers, "peers and exceptions"}, {s.Ports, most.Ports, "ports"}} {
		if of.n > of.most {
			return fmt.Sprintf("%d %s, more than %d", of.n, of.what, of.most)
		}
	}
	return ""
}

// Oversized says of which policies, in the order of their names, what is more than
// there may be: alone, or with those of the same namespace before them.
func Oversized(policies iter.Seq[*Policy]) map[*Policy]string {
	oversized := map[*Policy]string{}
	sums := map[string]Size{}
	for p := range policies {
		namespace := p.Subject.Namespace
		if namespace == "" {
			continue
		}
		size := p.Size()
		sum := sums[namespace].Plus(size)
		if why := size.Beyond(MaxOfPolicy); why != "" {
			oversized[p] = fmt.Sprintf("it has %s that a policy may have: it isolates its pods and allows nothing; split it, or say it with fewer", why)
		} else if why := sum.Beyond(MaxOfNamespace); why != "" {
			oversized[p] = fmt.Sprintf("with those before it by name, the policies of namespace %s have %s that they may have together: it isolates its pods and allows nothing; use fewer", namespace, why)
		} else {
			sums[namespace] = sum
		}
	}
	return oversized
}

// Enforced returns policies as nodes enforce them, in the order of their names, and
// which of them allow nothing as they are too large (Oversized), by name.
func Enforced(policies []*Policy) (enforced []*Policy, tooLarge map[string]string) {
	enforced = slices.SortedFunc(slices.Values(policies), func(a, b *Policy) int { return strings.Compare(a.Name, b.Name) })
	tooLarge = map[string]string{}
	oversized := Oversized(slices.Values(enforced))
	for i, p := range enforced {
		if why := oversized[p]; why != "" {
			enforced[i], tooLarge[p.Name] = p.Closed(), why
		}
	}
	return enforced, tooLarge
}

// Closed returns the policy without rules: it isolates whom it isolated, and
// allows nothing.
func (p *Policy) Closed() *Policy {
	closed := *p
	closed.Ingress, closed.Egress = nil, nil
	return &closed
}

// Costly is a set of policies that deny everything because of MaxVerdicts,
// MaxVerdictsOfNamespace or MaxWork.
type Costly struct {
	// Policies are those that it is made of, in the order of their names.
	Policies []*Policy
	// Why is what they do beyond the limit, as "make more than 2048 verdicts".
	Why string
}
