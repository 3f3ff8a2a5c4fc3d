package api

import (
	"regexp"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of an EgressNetworkPolicy: how many rules it has, as in OpenShift, and how
// many characters a domain name (RFC 1035, section 2.3.4) with its last dot.
const (
	maxEgressRules = 1000
	maxDomainName  = 254
)

// egressDomain is a domain name, which may end with a dot.
var egressDomain = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*[.]?$`)

func validateEgressNetworkPolicy(p *networkv1.EgressNetworkPolicy) field.ErrorList {
	var problems field.ErrorList
	egress := field.NewPath("spec", "egress")
	switch {
	case p.Spec.Egress == nil:
		problems = append(problems, field.Required(egress, "write [] for no rules"))
	case len(p.Spec.Egress) > maxEgressRules:
		problems = append(problems, field.TooMany(egress, len(p.Spec.Egress), maxEgressRules))
	}
	for i, rule := range p.Spec.Egress {
		at := egress.Index(i)
		if t := rule.Type; t != networkv1.EgressNetworkPolicyRuleAllow && t != networkv1.EgressNetworkPolicyRuleDeny {
			problems = append(problems, field.NotSupported(at.Child("type"), t,
				[]networkv1.EgressNetworkPolicyRuleType{networkv1.EgressNetworkPolicyRuleAllow, networkv1.EgressNetworkPolicyRuleDeny}))
		}
		to := at.Child("to")
		cidr, name := rule.To.CIDRSelector, rule.To.DNSName
		if (cidr != "") == (name != "") {
			problems = append(problems, field.Invalid(to, "", "must have either cidrSelector or dnsName"))
		}
		if cidr != "" {
			if _, err := parseCIDR(cidr); err != nil {
				problems = append(problems, field.Invalid(to.Child("cidrSelector"), cidr, err.Error()))
			}
		}
		if name != "" && (len(name) > maxDomainName || !egressDomain.MatchString(name)) {
			problems = append(problems, field.Invalid(to.Child("dnsName"), name, "must be a domain name such as www.example.com"))
		}
	}
	return problems
}
