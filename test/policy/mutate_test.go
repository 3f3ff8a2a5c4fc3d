package policy

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/test/policy/oracle"
)

// mutate returns a cluster in which something else is so. What did not change
// is the same pointer, as in a cache of a registry's objects.
func (g *generator) mutate(before *oracle.Cluster) *oracle.Cluster {
	c := copyOf(before)
	for range 1 + g.IntN(2) {
		g.change(c)
	}
	return c
}

// copyOf returns a cluster whose lists can be changed, of the same objects.
func copyOf(c *oracle.Cluster) *oracle.Cluster {
	return &oracle.Cluster{
		Namespaces: slices.Clone(c.Namespaces), Pods: slices.Clone(c.Pods), Nodes: slices.Clone(c.Nodes),
		NetworkPolicies: slices.Clone(c.NetworkPolicies), ClusterNetworkPolicies: slices.Clone(c.ClusterNetworkPolicies),
		Domains: maps.Clone(c.Domains),
	}
}

func (g *generator) change(c *oracle.Cluster) {
	switch g.IntN(15) {
	case 0, 1:
		c.NetworkPolicies = append(c.NetworkPolicies, g.networkPolicy(c))
	case 2, 3:
		replace(g, c.NetworkPolicies, func(p *networkingv1.NetworkPolicy) {
			next := g.networkPolicy(c)
			if g.chance(50) { // a part of it
				next.Spec.PodSelector, next.Spec.PolicyTypes = p.Spec.PodSelector, p.Spec.PolicyTypes
			}
			p.Spec = next.Spec
		})
	case 4:
		c.NetworkPolicies = without(g, c.NetworkPolicies)
	case 5:
		c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, g.clusterNetworkPolicy(c))
	case 6:
		replace(g, c.ClusterNetworkPolicies, func(p *policyv1alpha2.ClusterNetworkPolicy) { p.Spec = g.clusterNetworkPolicy(c).Spec })
	case 7:
		c.ClusterNetworkPolicies = without(g, c.ClusterNetworkPolicies)
	case 8, 9:
		replace(g, c.Pods, func(p *corev1.Pod) { p.Labels = g.labels(podLabels, 55) })
	case 10:
		g.addPod(c)
	case 11:
		if g.chance(50) {
			c.Pods = without(g, c.Pods)
			return
		}
		replace(g, c.Pods, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	case 12:
		replace(g, c.Namespaces, func(n *corev1.Namespace) { n.Labels = g.namespaceLabels(n.Name) })
	case 13:
		g.resolve(c)
	case 14:
		replace(g, c.Nodes, func(n *corev1.Node) { n.Labels = g.labels(nodeLabels, 50) })
	}
}

// replace puts a changed copy in the place of one of some objects.
func replace[T any, O interface {
	*T
	DeepCopy() O
}](g *generator, list []O, change func(O)) {
	if len(list) == 0 {
		return
	}
	i := g.IntN(len(list))
	o := list[i].DeepCopy()
	change(o)
	list[i] = o
}

func without[T any](g *generator, list []T) []T {
	if len(list) == 0 {
		return list
	}
	i := g.IntN(len(list))
	return slices.Delete(list, i, i+1)
}
