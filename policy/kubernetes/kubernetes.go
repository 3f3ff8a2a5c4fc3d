// Package kubernetes translates Kubernetes' own policies, NetworkPolicy and
// ClusterNetworkPolicy, into those of package policy, and says what policies can
// see of a pod. It consists of pure functions.
package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/policy"
)

// NetworkPolicy translates a NetworkPolicy. What of it cannot be enforced as it
// is written fails closed, and is said in problems, a sentence each that names
// the field.
func NetworkPolicy(o *networkingv1.NetworkPolicy) (p *policy.Policy, problems []string) {
	return nil, nil
}

// ClusterNetworkPolicy translates a ClusterNetworkPolicy, as NetworkPolicy does.
func ClusterNetworkPolicy(o *policyv1alpha2.ClusterNetworkPolicy) (p *policy.Policy, problems []string) {
	return nil, nil
}


// Replicas are the labels by which Kubernetes' controllers tell replicas and
// revisions of the same pods apart. Policies see them only if some policy of the
// cluster selects by them.
var Replicas = map[string]bool{}

// Named returns those of Replicas by which some of the policies select pods.
func Named(policies []*policy.Policy) map[string]bool { return nil }

// Identity returns what policies can tell of a pod: its namespace, its labels
// but for those of Replicas that are not in named, and its named ports.
func Identity(p *corev1.Pod, named map[string]bool) *policy.Identity { return nil }
