package oracle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// match is what a rule of a ClusterNetworkPolicy has to do with a packet.
type match int

const (
	no match = iota
	yes
	// unknown is that of a rule in which something is said that this version
	// of the API does not know, so that nothing may be relied upon.
	unknown
)

// tier asks the ClusterNetworkPolicies of a tier. "Policies with lower priority
// values have higher precedence", and within one, "a rule that appears at the
// top". Pass means that none decided.
func (c *Cluster) tier(tier policyv1alpha2.Tier, d direction, subject *corev1.Pod, with peer, t traffic) (policyv1alpha2.ClusterNetworkPolicyRuleAction, string) {
	policies := slices.SortedFunc(slices.Values(c.ClusterNetworkPolicies), func(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), strings.Compare(a.Name, b.Name))
	})
	for _, p := range policies {
		if p.Spec.Tier != tier || !c.isSubject(&p.Spec.Subject, subject) {
			continue
		}
		for i, r := range rules(p, d) {
			if action, ok := c.matches(r, with, t); ok {
				return action, fmt.Sprintf("ClusterNetworkPolicy %s %s[%d]", p.Name, d, i)
			}
		}
	}
	return policyv1alpha2.ClusterNetworkPolicyRuleActionPass, ""
}

// rule is one of either direction: an ingress rule's peers have two of the
// fields that an egress rule's have.
type rule struct {
	action    policyv1alpha2.ClusterNetworkPolicyRuleAction
	peers     []policyv1alpha2.ClusterNetworkPolicyEgressPeer
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
}

func rules(p *policyv1alpha2.ClusterNetworkPolicy, d direction) []rule {
	var out []rule
	if d == egress {
		for _, r := range p.Spec.Egress {
			out = append(out, rule{r.Action, r.To, r.Protocols})
		}
		return out
	}
	for _, r := range p.Spec.Ingress {
		o := rule{r.Action, nil, r.Protocols}
		for _, from := range r.From {
			o.peers = append(o.peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: from.Namespaces, Pods: from.Pods})
		}
		out = append(out, o)
	}
	return out
}

func (c *Cluster) isSubject(s *policyv1alpha2.ClusterNetworkPolicySubject, p *corev1.Pod) bool {
	switch {
	case s.Namespaces != nil:
		return selects(s.Namespaces, c.namespaceLabels(p))
	case s.Pods != nil:
		return c.inNamespaced(s.Pods, p)
	}
	return false
}

func (c *Cluster) inNamespaced(s *policyv1alpha2.NamespacedPod, p *corev1.Pod) bool {
	return selects(&s.NamespaceSelector, c.namespaceLabels(p)) && selects(&s.PodSelector, p.Labels)
}

// matches reports whether a rule decides, and how: "If any element matches the
// source of incoming traffic then the specified action is applied." Where part
// of it is not known: "For "Accept" rules, "fail closed" means: "treat the rule
// as matching no traffic". For "Deny" and "Pass" rules, "fail closed" means:
// "treat the rule as a 'Deny all' rule"", which is said of peers; of protocols it
// means all protocols of the peers.
func (c *Cluster) matches(r rule, with peer, t traffic) (policyv1alpha2.ClusterNetworkPolicyRuleAction, bool) {
	const deny = policyv1alpha2.ClusterNetworkPolicyRuleActionDeny
	isPeer, isProtocol := no, no
	for _, p := range r.peers {
		isPeer = max(isPeer, c.matchesPeer(p, r.action, with))
	}
	for _, p := range r.protocols {
		isProtocol = max(isProtocol, matchesProtocol(p, t))
	}
	if len(r.protocols) == 0 {
		isProtocol = yes
	}
	accepts := r.action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept
	switch {
	case isPeer == unknown:
		return deny, !accepts
	case isProtocol == unknown:
		return deny, !accepts && isPeer == yes
	}
	return r.action, isPeer == yes && isProtocol == yes
}

func (c *Cluster) matchesPeer(p policyv1alpha2.ClusterNetworkPolicyEgressPeer, action policyv1alpha2.ClusterNetworkPolicyRuleAction, with peer) match {
	switch {
	case p.Namespaces != nil:
		return matched(with.pod != nil && selects(p.Namespaces, c.namespaceLabels(with.pod)))
	case p.Pods != nil:
		return matched(with.pod != nil && c.inNamespaced(p.Pods, with.pod))
	case p.Nodes != nil:
		return matched(c.onNode(p.Nodes, with))
	case p.Networks != nil:
		return matched(slices.ContainsFunc(p.Networks, func(cidr policyv1alpha2.CIDR) bool { return inCIDR(string(cidr), with.address) }))
	case p.DomainNames != nil && action != policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return unknown // "DomainNames is only supported for Accept rules"
	case p.DomainNames != nil:
		return matched(slices.ContainsFunc(p.DomainNames, func(n policyv1alpha2.DomainName) bool { return c.isDomain(string(n), with) }))
	}
	return unknown
}

func matched(ok bool) match {
	if ok {
		return yes
	}
	return no
}

// onNode: "selects the nodeIPs as the peer type by matching on the IPs present
// in the node.Status.Addresses field of the node". Weft takes for the node what
// leads to it besides: who may not reach a node may not by another of its
// addresses.
func (c *Cluster) onNode(s *metav1.LabelSelector, with peer) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return selects(s, n.Labels) && hasAddress(n, with.address) })
}

// isDomain reports whether a domain name stands for an address, for a name
// without a wildcard: who stands behind one that has it cannot be asked.
func (c *Cluster) isDomain(name string, with peer) bool {
	return slices.Contains(c.Domains[strings.TrimSuffix(strings.ToLower(name), ".")], with.address)
}

func matchesProtocol(p policyv1alpha2.ClusterNetworkPolicyProtocol, t traffic) match {
	var protocol corev1.Protocol
	var port *policyv1alpha2.Port
	switch {
	case p.TCP != nil:
		protocol, port = corev1.ProtocolTCP, p.TCP.DestinationPort
	case p.UDP != nil:
		protocol, port = corev1.ProtocolUDP, p.UDP.DestinationPort
	case p.SCTP != nil:
		protocol, port = corev1.ProtocolSCTP, p.SCTP.DestinationPort
	case p.DestinationNamedPort != "":
		return matched(named(t, p.DestinationNamedPort))
	default:
		return unknown
	}
	switch {
	case protocol != t.Protocol:
		return no
	case port == nil:
		return yes
	case port.Range != nil:
		return matched(port.Range.Start <= int32(t.Port) && int32(t.Port) <= port.Range.End)
	}
	return matched(port.Number == int32(t.Port))
}
