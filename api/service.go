package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the fields of a Service may say that choose one of a few ways, as in Kubernetes, in the order in
// which it names them.
var (
	serviceTypes            = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort}
	affinities              = []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}
	internalTrafficPolicies = []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}
	externalTrafficPolicies = []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal}
	familyPolicies          = []corev1.IPFamilyPolicy{corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack}
)

// maxAffinitySeconds is for how long, in seconds, a client may stay with an endpoint at most: a day.
const maxAffinitySeconds = 86400

// validateServiceKind holds a Service to what Kubernetes' API demands of its type and of what goes with
// that, in the same words. A field that is empty has its default. What Kubernetes clears where the type
// changes, as ports of nodes, is not there in what apply writes.
func validateServiceKind(spec *field.Path, s *corev1.Service) (problems field.ErrorList) {
	kind := cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP)
	if !slices.Contains(serviceTypes, kind) {
		// What else is wrong depends on what was meant.
		return append(problems, field.NotSupported(spec.Child("type"), kind, serviceTypes))
	}
	if kind == corev1.ServiceTypeExternalName {
		path := spec.Child("externalName")
		// A dot at the end says that the name is whole.
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name == "" {
			problems = append(problems, field.Required(path, ""))
		} else {
			for _, message := range validation.NameIsDNSSubdomain(name, false) {
				problems = append(problems, field.Invalid(path, s.Spec.ExternalName, message))
			}
		}
	}
	for i, p := range s.Spec.Ports {
		if kind == corev1.ServiceTypeClusterIP && p.NodePort != 0 {
			problems = append(problems, field.Forbidden(spec.Child("ports").Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
	}
	problems = append(problems, validateAffinity(spec, s)...)
	if p := s.Spec.InternalTrafficPolicy; p != nil && !slices.Contains(internalTrafficPolicies, *p) {
		problems = append(problems, field.NotSupported(spec.Child("internalTrafficPolicy"), *p, internalTrafficPolicies))
	}
	outside := kind == corev1.ServiceTypeNodePort || kind == corev1.ServiceTypeLoadBalancer || kind == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
	switch p := s.Spec.ExternalTrafficPolicy; {
	case p == "":
	case !outside:
		problems = append(problems, field.Invalid(spec.Child("externalTrafficPolicy"), p, "may only be set for externally-accessible services"))
	case !slices.Contains(externalTrafficPolicies, p):
		problems = append(problems, field.NotSupported(spec.Child("externalTrafficPolicy"), p, externalTrafficPolicies))
	}
	problems = append(problems, validateSourceRanges(spec.Child("loadBalancerSourceRanges"), s.Spec.LoadBalancerSourceRanges, kind)...)
	path := spec.Child("ipFamilyPolicy")
	switch p := s.Spec.IPFamilyPolicy; {
	case p == nil:
	case !slices.Contains(familyPolicies, *p):
		problems = append(problems, field.NotSupported(path, *p, familyPolicies))
	case *p != corev1.IPFamilyPolicySingleStack:
	case len(s.Spec.ClusterIPs) > 1:
		problems = append(problems, field.Invalid(path, *p, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	case len(s.Spec.IPFamilies) > 1:
		problems = append(problems, field.Invalid(path, *p, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return problems
}

func validateAffinity(spec *field.Path, s *corev1.Service) (problems field.ErrorList) {
	affinity, config := cmp.Or(s.Spec.SessionAffinity, corev1.ServiceAffinityNone), s.Spec.SessionAffinityConfig
	path := spec.Child("sessionAffinityConfig")
	switch {
	case !slices.Contains(affinities, affinity):
		problems = append(problems, field.NotSupported(spec.Child("sessionAffinity"), affinity, affinities))
	case affinity == corev1.ServiceAffinityNone && config != nil:
		problems = append(problems, field.Forbidden(path, fmt.Sprintf("must not be set when session affinity is %s", affinity)))
	case config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil:
		if seconds := *config.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > maxAffinitySeconds {
			problems = append(problems, field.Invalid(path.Child("clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds)))
		}
	}
	return problems
}

func validateSourceRanges(path *field.Path, ranges []string, kind corev1.ServiceType) (problems field.ErrorList) {
	if len(ranges) > 0 && kind != corev1.ServiceTypeLoadBalancer {
		return append(problems, field.Forbidden(path, "may only be used when `type` is 'LoadBalancer'"))
	}
	for i, text := range ranges {
		if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
			problems = append(problems, field.Invalid(path.Index(i), text, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"))
		}
	}
	return problems
}
