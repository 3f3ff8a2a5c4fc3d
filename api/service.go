package api

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	labels "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the fields of a Service may say that choose one of a few ways, as in Kubernetes, in the order in
// which it names them.
var (
	serviceTypes            = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort}
	affinities              = []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}
	internalTrafficPolicies = []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}
	externalTrafficPolicies = []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal}
	trafficDistributions    = []string{corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode}
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
	problems = append(problems, validateTypeFields(spec, s, kind)...)
	for i, p := range s.Spec.Ports {
		if kind == corev1.ServiceTypeClusterIP && p.NodePort != 0 {
			problems = append(problems, field.Forbidden(spec.Child("ports").Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
	}
	problems = append(problems, labels.ValidateLabels(s.Spec.Selector, spec.Child("selector"))...)
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
	if d := s.Spec.TrafficDistribution; d != nil && !slices.Contains(trafficDistributions, *d) {
		problems = append(problems, field.NotSupported(spec.Child("trafficDistribution"), *d, trafficDistributions))
	}
	problems = append(problems, validateExternalIPs(spec.Child("externalIPs"), s.Spec.ExternalIPs)...)
	problems = append(problems, validateBalanced(spec, s, kind)...)
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

// validateTypeFields holds a Service to what it must have by its type, and to what it cannot have by it.
func validateTypeFields(spec *field.Path, s *corev1.Service, kind corev1.ServiceType) (problems field.ErrorList) {
	headless := s.Spec.ClusterIP == corev1.ClusterIPNone
	switch kind {
	case corev1.ServiceTypeExternalName:
		path := spec.Child("externalName")
		// A dot at the end says that the name is whole.
		if name := strings.TrimSuffix(s.Spec.ExternalName, "."); name == "" {
			problems = append(problems, field.Required(path, ""))
		} else {
			for _, message := range validation.NameIsDNSSubdomain(name, false) {
				problems = append(problems, field.Invalid(path, s.Spec.ExternalName, message))
			}
		}
		for _, of := range []struct {
			name string
			set  bool
		}{{"clusterIPs", s.Spec.ClusterIP != "" || len(s.Spec.ClusterIPs) > 0}, {"ipFamilies", len(s.Spec.IPFamilies) > 0}, {"ipFamilyPolicy", s.Spec.IPFamilyPolicy != nil}} {
			if of.set {
				problems = append(problems, field.Forbidden(spec.Child(of.name), "may not be set for ExternalName services"))
			}
		}
		return problems
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if headless {
			problems = append(problems, field.Invalid(spec.Child("clusterIPs").Index(0), corev1.ClusterIPNone, fmt.Sprintf("may not be set to 'None' for %s services", kind)))
		}
	}
	if len(s.Spec.Ports) == 0 && !headless {
		problems = append(problems, field.Required(spec.Child("ports"), "a Service has one at least, unless its clusterIP is None or its `type` is 'ExternalName'"))
	}
	return problems
}

// validateExternalIPs refuses what is an address of no one machine.
func validateExternalIPs(path *field.Path, texts []string) (problems field.ErrorList) {
	for i, text := range texts {
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		switch {
		case err != nil || a.Zone() != "":
			problems = append(problems, field.Invalid(path.Index(i), text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
		case a.IsUnspecified(), a.IsLoopback(), a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast():
			problems = append(problems, field.Invalid(path.Index(i), text, "is unspecified, loopback, link-local or multicast on the link: give an address at which others reach one machine"))
		}
	}
	return problems
}

// validateBalanced holds a Service to what only those of type LoadBalancer have.
func validateBalanced(spec *field.Path, s *corev1.Service, kind corev1.ServiceType) (problems field.ErrorList) {
	problems = validateSourceRanges(spec.Child("loadBalancerSourceRanges"), s.Spec.LoadBalancerSourceRanges, kind)
	balanced := kind == corev1.ServiceTypeLoadBalancer
	if s.Spec.AllocateLoadBalancerNodePorts != nil && !balanced {
		problems = append(problems, field.Forbidden(spec.Child("allocateLoadBalancerNodePorts"), "may only be used when `type` is 'LoadBalancer'"))
	}
	path := spec.Child("loadBalancerClass")
	switch class := s.Spec.LoadBalancerClass; {
	case class == nil:
	case !balanced:
		problems = append(problems, field.Forbidden(path, "may only be used when `type` is 'LoadBalancer'"))
	default:
		for _, message := range names.IsQualifiedName(*class) {
			problems = append(problems, field.Invalid(path, *class, message))
		}
	}
	path = spec.Child("healthCheckNodePort")
	switch port := s.Spec.HealthCheckNodePort; {
	case port == 0: // it has none, or none yet
	case !balanced || s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal:
		problems = append(problems, field.Invalid(path, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case port < 1 || port > 65535:
		problems = append(problems, field.Invalid(path, port, "must be between 1 and 65535, or 0 to be given one"))
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
