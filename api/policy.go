package api

import (
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// tagName is for Tags, whose names are numbers.
func tagName(name string, _ bool) []string {
	if n, err := strconv.ParseUint(name, 10, 32); err != nil || n < MinTag || n > MaxTag || strconv.FormatUint(n, 10) != name {
		return []string{"must be a number from " + strconv.Itoa(MinTag) + " to " + strconv.Itoa(MaxTag)}
	}
	return nil
}

func validateTag(*Tag) field.ErrorList { return nil }

func validateNodePods(*NodePods) field.ErrorList { return nil }

func validateDomainName(*DomainName) field.ErrorList { return nil }

func validateNetworkPolicy(*networkingv1.NetworkPolicy) field.ErrorList { return nil }

func validateClusterNetworkPolicy(*policyv1alpha2.ClusterNetworkPolicy) field.ErrorList { return nil }
