// Package oracle says what network policies mean, slowly: it evaluates the
// texts of networking.k8s.io/v1 NetworkPolicy and policy.networking.k8s.io
// ClusterNetworkPolicy (v1alpha2) word by word, for one packet at a time, with
// nothing prepared. It is what Weft's compiler is held against, and shares no
// code with it: it knows the objects of Kubernetes and nothing of Weft.
//
// Where the texts leave a choice, it is Weft's: of ClusterNetworkPolicies of
// equal priority the first by name decides; a node always reaches its own pods,
// whatever ClusterNetworkPolicies say; a pod always reaches itself; and a rule of
// which a part is not known fails closed, be it a NetworkPolicy's or in what a
// ClusterNetworkPolicy's says of protocols, as upstream asks for other parts.
package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Cluster is all that policies speak of.
type Cluster struct {
	Namespaces             []*corev1.Namespace
	Pods                   []*corev1.Pod
	Nodes                  []*corev1.Node
	NetworkPolicies        []*networkingv1.NetworkPolicy
	ClusterNetworkPolicies []*policyv1alpha2.ClusterNetworkPolicy
	// Domains are the addresses that domain names stand for, by the names in
	// lower case without a dot at their ends.
	Domains map[string][]netip.Addr
}

// Packet is the first of a connection.
type Packet struct {
	Source, Destination netip.Addr
	// Protocol is TCP, UDP or SCTP; any other has no ports.
	Protocol corev1.Protocol
	// Port is the destination port.
	Port uint16
}

// Answer is what becomes of a packet.
type Answer struct {
	Allowed bool
	// Egress is the rule by which the source's policies decided and Ingress
	// that by which the destination's did, as "NetworkPolicy default/web
	// ingress[0]". They are empty where no policy decided or none was asked.
	Egress, Ingress string
}

// Decided reports whether any policy decided.
func (a Answer) Decided() bool { return a.Egress != "" || a.Ingress != "" }

type direction string

const (
	ingress direction = "ingress"
	egress  direction = "egress"
)

// Evaluate says what becomes of a packet.
func (c *Cluster) Evaluate(p Packet) Answer {
	source, destination := c.podAt(p.Source), c.podAt(p.Destination)
	if source != nil && source == destination {
		return Answer{Allowed: true}
	}
	a := Answer{Allowed: true}
	if source != nil {
		a.Allowed, a.Egress = c.decide(egress, source, peer{p.Destination, destination}, traffic{p, destination})
	}
	// "OR if the traffic source is the pod's local node"
	if a.Allowed && destination != nil && !c.isNode(destination.Spec.NodeName, p.Source) {
		a.Allowed, a.Ingress = c.decide(ingress, destination, peer{p.Source, source}, traffic{p, destination})
	}
	return a
}

// podAt returns the pod that has an address. Pods in their node's network have
// none of their own, and pods that have ended none any more.
func (c *Cluster) podAt(a netip.Addr) *corev1.Pod {
	for _, p := range c.Pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if parsed, err := netip.ParseAddr(ip.IP); err == nil && parsed == a {
				return p
			}
		}
	}
	return nil
}

// isNode reports whether an address is the own one of the node of a name.
func (c *Cluster) isNode(name string, a netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n *corev1.Node) bool { return n.Name == name && hasAddress(n, a) })
}

// hasAddress reports whether an address is a node's own: one in its status, or of
// a prefix that its pods' addresses are from the prefix's own or the first.
func hasAddress(n *corev1.Node, a netip.Addr) bool {
	for _, cidr := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			if first := p.Masked().Addr(); a == first || a == first.Next() {
				return true
			}
		}
	}
	return slices.ContainsFunc(n.Status.Addresses, func(own corev1.NodeAddress) bool {
		parsed, err := netip.ParseAddr(own.Address)
		return err == nil && parsed == a
	})
}

// peer is the other side, as the subject of a policy sees it.
type peer struct {
	address netip.Addr
	pod     *corev1.Pod // nil for what is none
}

// traffic is a packet and the pod it is for, whose named ports are meant.
type traffic struct {
	Packet
	destination *corev1.Pod // nil for what is none
}

// decide asks the policies for a pod in the order of their tiers.
func (c *Cluster) decide(d direction, subject *corev1.Pod, with peer, t traffic) (allowed bool, by string) {
	if action, by := c.tier(policyv1alpha2.AdminTier, d, subject, with, t); action != policyv1alpha2.ClusterNetworkPolicyRuleActionPass {
		return action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, by
	}
	if isolated, allowed, by := c.networkPolicies(d, subject, with, t); isolated {
		return allowed, by
	}
	if action, by := c.tier(policyv1alpha2.BaselineTier, d, subject, with, t); action != policyv1alpha2.ClusterNetworkPolicyRuleActionPass {
		return action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, by
	}
	// "the default kubernetes policy is applied, which says that all pods can
	// communicate with each other"
	return true, ""
}

// networkPolicies asks the NetworkPolicies that select a pod.
func (c *Cluster) networkPolicies(d direction, subject *corev1.Pod, with peer, t traffic) (isolated, allowed bool, by string) {
	policies := slices.SortedFunc(slices.Values(c.NetworkPolicies), func(a, b *networkingv1.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range policies {
		if p.Namespace != subject.Namespace || !selects(&p.Spec.PodSelector, subject.Labels) || !affects(p, d) {
			continue
		}
		name := fmt.Sprintf("NetworkPolicy %s/%s %s", p.Namespace, p.Name, d)
		if !isolated {
			isolated, by = true, name+" isolation"
		}
		if d == ingress {
			for i, r := range p.Spec.Ingress {
				if c.isPeer(p.Namespace, r.From, with) && isPort(r.Ports, t) {
					return true, true, fmt.Sprintf("%s[%d]", name, i)
				}
			}
			continue
		}
		for i, r := range p.Spec.Egress {
			if c.isPeer(p.Namespace, r.To, with) && isPort(r.Ports, t) {
				return true, true, fmt.Sprintf("%s[%d]", name, i)
			}
		}
	}
	return isolated, false, by
}

// affects reports whether a policy is about a direction: "policies that contain
// an egress section are assumed to affect egress, and all policies (whether or
// not they contain an ingress section) are assumed to affect ingress", unless
// policyTypes says.
func affects(p *networkingv1.NetworkPolicy, d direction) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return d == ingress || len(p.Spec.Egress) > 0
	}
	want := networkingv1.PolicyTypeIngress
	if d == egress {
		want = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(p.Spec.PolicyTypes, want)
}

// isPeer: "If this field is empty or missing, this rule matches all sources".
func (c *Cluster) isPeer(namespace string, peers []networkingv1.NetworkPolicyPeer, with peer) bool {
	found := len(peers) == 0
	for _, p := range peers {
		switch {
		case p.IPBlock != nil:
			found = found || inBlock(p.IPBlock, with.address)
		case p.PodSelector == nil && p.NamespaceSelector == nil:
			// What this version of the API does not know may have been there
			// to narrow the rule.
			return false
		case with.pod == nil:
		case p.NamespaceSelector == nil:
			found = found || with.pod.Namespace == namespace && selects(p.PodSelector, with.pod.Labels)
		default:
			found = found || selects(p.NamespaceSelector, c.namespaceLabels(with.pod)) &&
				(p.PodSelector == nil || selects(p.PodSelector, with.pod.Labels))
		}
	}
	return found
}

func inBlock(b *networkingv1.IPBlock, a netip.Addr) bool {
	if !inCIDR(b.CIDR, a) {
		return false
	}
	for _, except := range b.Except {
		if inCIDR(except, a) {
			return false
		}
	}
	return true
}

func inCIDR(cidr string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Contains(a)
}

// isPort: "If this field is empty or missing, this rule matches all ports".
func isPort(ports []networkingv1.NetworkPolicyPort, t traffic) bool {
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case protocol != t.Protocol:
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			if named(t, p.Port.StrVal) {
				return true
			}
		default:
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			if p.Port.IntVal <= int32(t.Port) && int32(t.Port) <= last {
				return true
			}
		}
	}
	return len(ports) == 0
}

// named reports whether traffic is for a port of that name of its destination:
// of several that have the name and the protocol, the first, as for Services.
func named(t traffic, name string) bool {
	if t.destination == nil {
		return false
	}
	for _, container := range t.destination.Spec.Containers {
		for _, p := range container.Ports {
			if p.Name == name && cmp.Or(p.Protocol, corev1.ProtocolTCP) == t.Protocol {
				return p.ContainerPort == int32(t.Port)
			}
		}
	}
	return false
}

func (c *Cluster) namespaceLabels(p *corev1.Pod) map[string]string {
	for _, n := range c.Namespaces {
		if n.Name == p.Namespace {
			return n.Labels
		}
	}
	return nil
}
