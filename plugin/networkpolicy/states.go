package networkpolicy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// State is how far a policy is in force.
type State struct {
	Kind *registry.Kind
	Key  registry.Key
	// Nodes are those with a pod that the policy selects, Pending those of them
	// that do not say yet that it is in force. Both are in alphabetical order.
	Nodes, Pending []string
	// Problems are what of the policy cannot be enforced as it is written, in
	// alphabetical order.
	Problems []string
	// Unresolved are the domain names in it for which no address was found, so
	// that the rules with them hold for nobody, in alphabetical order.
	Unresolved []string
}

// StateKinds are the kinds that States reads.
func StateKinds() []*registry.Kind {
	return append(slices.Clone(policyKinds), api.Namespace, api.TagKind, api.NodePodsKind, api.NodeReportKind, api.DomainNameKind)
}

// States says of each policy how far it is in force: first of
// ClusterNetworkPolicies, then of NetworkPolicies, in the order of their names. It
// knows what nodes say of themselves: a policy that was just changed in its
// status alone may be pending for a moment.
func States(objects registry.Objects) []State {
	var o overview
	o.update(objects)
	return o.states((*translated).version)
}

// overview is what the registry says about policies and nodes.
type overview struct {
	policies   policies
	namespaces derived.List[*policy.Namespace]
	tags       tags
	nodes      derived.List[*node]
	reports    derived.List[*api.NodeReport]
	domains    derived.List[*api.DomainName]
}

func (o *overview) update(objects registry.Objects) {
	o.policies.update(objects, outline)
	o.namespaces.Update(objects.All(api.Namespace), readNamespace, compareNamespaces)
	o.tags.update(objects)
	o.nodes.Update(objects.All(api.NodePodsKind), readNodePods, compareNodes)
	o.reports.Update(objects.All(api.NodeReportKind),
		func(o registry.Object, _ *api.NodeReport) *api.NodeReport { r, _ := o.(*api.NodeReport); return r },
		func(a, b *api.NodeReport) int { return strings.Compare(a.Name, b.Name) })
	o.domains.Update(objects.All(api.DomainNameKind),
		func(o registry.Object, _ *api.DomainName) *api.DomainName { d, _ := o.(*api.DomainName); return d },
		func(a, b *api.DomainName) int { return strings.Compare(a.Name, b.Name) })
}

// home is a namespace, and what pods in it are.
type home struct {
	labels labels.Set
	groups []*policy.Group
}

// states says of each policy how far it is in force, where nodes must have
// reached the version that a function says.
func (o *overview) states(version func(*translated) string) []State {
	nodes := map[plan.Tag][]string{}
	for _, n := range o.nodes.All() {
		for _, p := range n.Pods {
			nodes[p.Tag] = append(nodes[p.Tag], n.Name)
		}
	}
	homes := map[string]*home{}
	for _, g := range o.tags.groups {
		if len(nodes[g.Tag]) == 0 {
			continue
		}
		h := homes[g.Namespace]
		if h == nil {
			h = &home{labels: namespaceLabels(o.namespaces.All(), g.Namespace)}
			homes[g.Namespace] = h
		}
		h.groups = append(h.groups, g)
	}
	reports := map[string]*api.NodeReport{}
	for _, r := range o.reports.All() {
		reports[r.Name] = r
	}
	unresolved := map[string]bool{}
	for _, d := range o.domains.All() {
		unresolved[d.Name] = d.Problem != "" && len(d.Addresses) == 0
	}

	var states []State
	for t := range o.policies.all() {
		s := State{Kind: t.kind, Key: t.key(), Problems: slices.Clone(t.problems)}
		for _, d := range t.domains {
			if unresolved[d] {
				s.Unresolved = append(s.Unresolved, d)
			}
		}
		s.Unresolved = sorted(s.Unresolved)
		subject := &t.policy.Subject
		add := func(h *home) {
			for _, g := range h.groups {
				if subject.Selects(&g.Identity, h.labels) {
					s.Nodes = append(s.Nodes, nodes[g.Tag]...)
				}
			}
		}
		if subject.Namespace != "" {
			if h := homes[subject.Namespace]; h != nil {
				add(h)
			}
		} else {
			for name, h := range homes {
				if subject.SelectsNamespace(name, h.labels) {
					add(h)
				}
			}
		}
		s.Nodes = sorted(s.Nodes)
		for _, n := range s.Nodes {
			r := reports[n]
			if r == nil || !reached(r.Enforced[t.kind.Plural], version(t)) {
				// What it says is about what the policy was before.
				s.Pending = append(s.Pending, n)
				continue
			}
			told := false
			for _, p := range r.Problems {
				if p.Kind == t.kind.Kind && p.Namespace == s.Key.Namespace && p.Name == s.Key.Name {
					s.Problems = append(s.Problems, p.Message)
					told = true
				}
			}
			if !told && (slices.Contains(r.Untold, s.Key.Namespace) || slices.Contains(r.Untold, api.UntoldAnywhere)) {
				s.Problems = append(s.Problems, fmt.Sprintf("node %s has more problems with policies of the same namespace than it can tell: whether this one is enforced there as it is written is not known; mend the others first", n))
			}
		}
		s.Problems = sorted(s.Problems)
		states = append(states, s)
	}
	return states
}

func sorted(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
