package kubernetes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// NetworkPolicy translates a NetworkPolicy. What of it cannot be enforced as it
// is written fails closed, and is said in problems, a sentence each that names
// the field.
func NetworkPolicy(o *networkingv1.NetworkPolicy) (p *policy.Policy, problems []string) {
	p = &policy.Policy{
		Name:    "NetworkPolicy " + o.Namespace + "/" + o.Name,
		Tier:    policy.Isolating,
		Subject: policy.Selector{Namespace: o.Namespace},
	}
	spec := field.NewPath("spec")

	var of faults
	p.IsolatesIngress, p.IsolatesEgress = of.directions(spec.Child("policyTypes"), &o.Spec)
	problems = append(problems, of.so("the policy isolates its pods in both directions")...)

	of = nil
	if n := words(&o.Spec.PodSelector); n > maxWords {
		of.add(spec.Child("podSelector"), "it has %d labels and values, more than %d that a policy may have", n, maxWords)
	} else {
		p.Subject.Pods = of.selector(spec.Child("podSelector"), &o.Spec.PodSelector)
	}
	problems = append(problems, of.so("the policy isolates all pods of its namespace and allows nothing")...)
	if of != nil {
		return p, problems
	}
	if n := wordsOf(&o.Spec); n > maxWords {
		of.add(spec, "its selectors have %d labels and values together, more than %d that a policy may have", n, maxWords)
		return p, append(problems, of.so("the policy isolates its pods and allows nothing; split it, or select by fewer labels")...)
	}

	// Rules of a direction that the policy is not about mean nothing.
	if p.IsolatesIngress {
		for i, r := range o.Spec.Ingress {
			rule, of := allow(p, spec, "ingress", i, "from", r.From, r.Ports)
			p.Ingress = append(p.Ingress, rule)
			problems = append(problems, of...)
		}
	}
	if p.IsolatesEgress {
		for i, r := range o.Spec.Egress {
			rule, of := allow(p, spec, "egress", i, "to", r.To, r.Ports)
			p.Egress = append(p.Egress, rule)
			problems = append(problems, of...)
		}
	}
	return p, problems
}

// maxWords is how many labels and values the selectors of a policy may have
// together. To check and sort them takes time, which others' changes wait for.
const maxWords = 2000

// words counts the labels and values of a selector.
func words(s *metav1.LabelSelector) int {
	if s == nil {
		return 0
	}
	n := len(s.MatchLabels)
	for i := range s.MatchExpressions {
		n += 1 + len(s.MatchExpressions[i].Values)
	}
	return n
}

func wordsOf(spec *networkingv1.NetworkPolicySpec) int {
	n := words(&spec.PodSelector)
	peers := func(all []networkingv1.NetworkPolicyPeer) {
		for i := range all {
			n += words(all[i].PodSelector) + words(all[i].NamespaceSelector)
		}
	}
	for i := range spec.Ingress {
		peers(spec.Ingress[i].From)
	}
	for i := range spec.Egress {
		peers(spec.Egress[i].To)
	}
	return n
}

// directions says in which directions a policy isolates. Without types, which
// API servers fill in and other registries do not, that is ingress, and egress
// if there is a rule for it.
func (f *faults) directions(path *field.Path, spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			f.add(path.Index(i), "%q is neither Ingress nor Egress", t)
			ingress, egress = true, true
		}
	}
	return ingress, egress
}

// allow translates the rule at an index of a direction of p.
func allow(p *policy.Policy, spec *field.Path, direction string, index int, side string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) (policy.Rule, []string) {
	rule := policy.Rule{Origin: fmt.Sprintf("%s %s[%d]", p.Name, direction, index), Action: policy.Allow}
	path := spec.Child(direction).Index(index)
	var of faults
	for i := range peers {
		rule.Peers = append(rule.Peers, of.peer(path.Child(side).Index(i), &peers[i], p.Subject.Namespace))
	}
	for i := range ports {
		rule.Ports = append(rule.Ports, of.port(path.Child("ports").Index(i), &ports[i]))
	}
	if of != nil {
		rule.Peers, rule.Ports = nobody, nil
	}
	return rule, of.so("the rule allows nothing")
}

func (f *faults) peer(path *field.Path, peer *networkingv1.NetworkPolicyPeer, namespace string) policy.Peer {
	selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
	switch {
	case selects && peer.IPBlock != nil:
		f.add(path, "there is an ipBlock as well as a selector")
	case peer.IPBlock != nil:
		return policy.Peer{Block: f.block(path.Child("ipBlock"), peer.IPBlock)}
	case selects:
		s := &policy.Selector{
			Namespaces: f.selector(path.Child("namespaceSelector"), peer.NamespaceSelector),
			Pods:       f.selector(path.Child("podSelector"), peer.PodSelector),
		}
		if peer.NamespaceSelector == nil {
			s.Namespace = namespace
		}
		return policy.Peer{Pods: s}
	default:
		f.add(path, "there is none of podSelector, namespaceSelector and ipBlock")
	}
	return policy.Peer{}
}

func (f *faults) block(path *field.Path, block *networkingv1.IPBlock) *policy.Block {
	b := &policy.Block{Prefix: f.prefix(path.Child("cidr"), block.CIDR)}
	for i, except := range block.Except {
		at := path.Child("except").Index(i)
		e := f.prefix(at, except)
		if b.Prefix.IsValid() && e.IsValid() && (e.Bits() <= b.Prefix.Bits() || !b.Prefix.Contains(e.Addr())) {
			f.add(at, "%s is not strictly within %s", e, b.Prefix)
		}
		b.Except = append(b.Except, e)
	}
	return b
}

var protocols = map[corev1.Protocol]plan.Protocol{
	corev1.ProtocolTCP: plan.TCP, corev1.ProtocolUDP: plan.UDP, corev1.ProtocolSCTP: plan.SCTP,
}

func (f *faults) port(path *field.Path, port *networkingv1.NetworkPolicyPort) policy.Port {
	p := policy.Port{Protocol: plan.TCP, Range: plan.AllPorts}
	if port.Protocol != nil {
		var known bool
		if p.Protocol, known = protocols[*port.Protocol]; !known {
			f.add(path.Child("protocol"), "%q is none of TCP, UDP and SCTP", *port.Protocol)
		}
	}
	switch {
	case port.EndPort != nil && (port.Port == nil || port.Port.Type != intstr.Int):
		f.add(path.Child("endPort"), "there is no number as port, with which the range would begin")
	case port.Port == nil:
	case port.Port.Type == intstr.Int:
		last := port.Port.IntVal
		if port.EndPort != nil {
			last = *port.EndPort
		}
		var err error
		if p.Range, err = ports(port.Port.IntVal, last); err != nil {
			f.add(path, "%v", err)
		}
	default:
		p.Name = port.Port.StrVal
		if len(validation.IsValidPortName(p.Name)) > 0 {
			f.add(path.Child("port"), "%q is not the name of a port", p.Name)
		}
	}
	return p
}
