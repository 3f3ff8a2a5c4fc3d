package api

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	policyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	// transports are the protocols that have ports.
	transports = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

// validateNetworkPolicy refuses what an API server does.
func validateNetworkPolicy(p *networkingv1.NetworkPolicy) field.ErrorList {
	spec := field.NewPath("spec")
	problems := validateSelector(spec.Child("podSelector"), &p.Spec.PodSelector)
	for i, r := range p.Spec.Ingress {
		at := spec.Child("ingress").Index(i)
		problems = append(problems, validatePolicyRule(at, at.Child("from"), r.From, r.Ports)...)
	}
	for i, r := range p.Spec.Egress {
		at := spec.Child("egress").Index(i)
		problems = append(problems, validatePolicyRule(at, at.Child("to"), r.To, r.Ports)...)
	}
	types := spec.Child("policyTypes")
	if n := len(p.Spec.PolicyTypes); n > len(policyTypes) {
		problems = append(problems, field.TooMany(types, n, len(policyTypes)))
	}
	for i, t := range p.Spec.PolicyTypes {
		problems = append(problems, validateOneOf(types.Index(i), t, policyTypes)...)
	}
	return problems
}

func validatePolicyRule(path, peersPath *field.Path, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) field.ErrorList {
	var problems field.ErrorList
	for i := range ports {
		problems = append(problems, validatePolicyPort(path.Child("ports").Index(i), &ports[i])...)
	}
	for i := range peers {
		at, peer := peersPath.Index(i), &peers[i]
		selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
		problems = append(problems, validateSelector(at.Child("podSelector"), peer.PodSelector)...)
		problems = append(problems, validateSelector(at.Child("namespaceSelector"), peer.NamespaceSelector)...)
		switch {
		case peer.IPBlock != nil:
			problems = append(problems, validateIPBlock(at.Child("ipBlock"), peer.IPBlock)...)
			if selects {
				problems = append(problems, field.Forbidden(at, "may not have both ipBlock and a selector"))
			}
		case !selects:
			problems = append(problems, field.Required(at, "must have podSelector, namespaceSelector or ipBlock"))
		}
	}
	return problems
}

func validateSelector(path *field.Path, s *metav1.LabelSelector) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func validateIPBlock(path *field.Path, b *networkingv1.IPBlock) field.ErrorList {
	var problems field.ErrorList
	prefix := func(path *field.Path, value string) (netip.Prefix, bool) {
		p, err := parseCIDR(value)
		if err != nil {
			problems = append(problems, field.Invalid(path, value, err.Error()))
		}
		return p, err == nil
	}
	whole, ok := prefix(path.Child("cidr"), b.CIDR)
	for i, value := range b.Except {
		at := path.Child("except").Index(i)
		if p, known := prefix(at, value); ok && known && (!whole.Contains(p.Addr()) || p.Bits() <= whole.Bits()) {
			problems = append(problems, field.Invalid(at, value, "must be strictly within "+whole.String()))
		}
	}
	return problems
}

func validatePolicyPort(path *field.Path, p *networkingv1.NetworkPolicyPort) field.ErrorList {
	var problems field.ErrorList
	if p.Protocol != nil {
		problems = append(problems, validateOneOf(path.Child("protocol"), *p.Protocol, transports)...)
	}
	port, end := path.Child("port"), path.Child("endPort")
	switch {
	case p.Port == nil || p.Port.Type == intstr.String:
		if p.EndPort != nil {
			problems = append(problems, field.Forbidden(end, "needs a number as port, with which the range begins"))
		}
		if p.Port != nil {
			for _, problem := range validation.IsValidPortName(p.Port.StrVal) {
				problems = append(problems, field.Invalid(port, p.Port.StrVal, problem))
			}
		}
	default:
		problems = append(problems, validatePortNumber(port, p.Port.IntVal)...)
		if p.EndPort != nil {
			problems = append(problems, validatePortNumber(end, *p.EndPort)...)
			if *p.EndPort < p.Port.IntVal {
				problems = append(problems, field.Invalid(end, *p.EndPort, "must not be less than port"))
			}
		}
	}
	return problems
}

func validatePortNumber(path *field.Path, n int32) field.ErrorList {
	var problems field.ErrorList
	for _, problem := range validation.IsValidPortNum(int(n)) {
		problems = append(problems, field.Invalid(path, n, problem))
	}
	return problems
}

func validateOneOf[T ~string](path *field.Path, value T, allowed []T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}
