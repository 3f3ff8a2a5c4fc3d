package api

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/registry"
)

// The limits of a ClusterNetworkPolicy.
const (
	maxPriority = 1000
	// maxClusterRules is how many rules there may be in a direction, peers in a
	// rule, and so on with every list.
	maxClusterRules   = 25
	maxRuleNameLength = 100
	maxCIDRLength     = 43
)

// policyDomainName is what may stand as a domain name in a ClusterNetworkPolicy:
// upstream's pattern, which is wider than it means to be.
var policyDomainName = regexp.MustCompile(`^(\*\.)?([a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.)+[a-zA-z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?\.?$`)

var (
	clusterTiers   = []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}
	clusterActions = []policyv1alpha2.ClusterNetworkPolicyRuleAction{policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
		policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass}
)

// StoredClusterNetworkPolicy is the kind ClusterNetworkPolicy for who writes to
// policies as they are, valid or not: an API server takes some that Weft refuses,
// and it is of these that their status has something to say.
var StoredClusterNetworkPolicy = func() *registry.Kind {
	k := *ClusterNetworkPolicy
	k.Validate = nil
	return &k
}()

// validateClusterNetworkPolicy refuses what the kind's definition does, and what
// that forbids in words alone: selectors that are none, and domain names in rules
// that do not Accept.
func validateClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) field.ErrorList {
	spec := field.NewPath("spec")
	problems := validateOneOf(spec.Child("tier"), p.Spec.Tier, clusterTiers)
	if n := p.Spec.Priority; n < 0 || n > maxPriority {
		problems = append(problems, field.Invalid(spec.Child("priority"), n, "must be between 0 and 1000"))
	}
	subject := spec.Child("subject")
	problems = append(problems, exactlyOne(subject, "namespaces or pods", p.Spec.Subject.Namespaces != nil, p.Spec.Subject.Pods != nil)...)
	problems = append(problems, validateClusterPods(subject, p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)...)

	ingress := spec.Child("ingress")
	problems = append(problems, atMost(ingress, len(p.Spec.Ingress))...)
	for i, r := range p.Spec.Ingress {
		at := ingress.Index(i)
		problems = append(problems, validateClusterRule(at, r.Name, r.Action, r.Protocols)...)
		from := at.Child("from")
		problems = append(problems, validateListLength(from, len(r.From))...)
		for j, peer := range r.From {
			problems = append(problems, exactlyOne(from.Index(j), "namespaces or pods", peer.Namespaces != nil, peer.Pods != nil)...)
			problems = append(problems, validateClusterPods(from.Index(j), peer.Namespaces, peer.Pods)...)
		}
	}
	egress := spec.Child("egress")
	problems = append(problems, atMost(egress, len(p.Spec.Egress))...)
	for i := range p.Spec.Egress {
		problems = append(problems, validateClusterEgress(egress.Index(i), &p.Spec.Egress[i])...)
	}
	return problems
}

func validateClusterRule(path *field.Path, name string, action policyv1alpha2.ClusterNetworkPolicyRuleAction, protocols []policyv1alpha2.ClusterNetworkPolicyProtocol) field.ErrorList {
	problems := validateOneOf(path.Child("action"), action, clusterActions)
	if utf8.RuneCountInString(name) > maxRuleNameLength {
		problems = append(problems, field.TooLongCharacters(path.Child("name"), name, maxRuleNameLength))
	}
	if protocols != nil {
		problems = append(problems, validateListLength(path.Child("protocols"), len(protocols))...)
	}
	for i, p := range protocols {
		at := path.Child("protocols").Index(i)
		problems = append(problems, exactlyOne(at, "tcp, udp, sctp or destinationNamedPort",
			p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != "")...)
		if p.TCP != nil {
			problems = append(problems, validateDestinationPort(at.Child("tcp"), p.TCP.DestinationPort)...)
		}
		if p.UDP != nil {
			problems = append(problems, validateDestinationPort(at.Child("udp"), p.UDP.DestinationPort)...)
		}
		if p.SCTP != nil {
			problems = append(problems, validateDestinationPort(at.Child("sctp"), p.SCTP.DestinationPort)...)
		}
	}
	return problems
}

func validateDestinationPort(path *field.Path, p *policyv1alpha2.Port) field.ErrorList {
	path = path.Child("destinationPort")
	if p == nil {
		return field.ErrorList{field.Required(path, "all ports are the range from 1 to 65535")}
	}
	problems := exactlyOne(path, "number or range", p.Number != 0, p.Range != nil)
	if p.Number != 0 {
		problems = append(problems, validatePortNumber(path.Child("number"), p.Number)...)
	}
	if r := p.Range; r != nil {
		at := path.Child("range")
		problems = append(problems, validatePortNumber(at.Child("start"), r.Start)...)
		problems = append(problems, validatePortNumber(at.Child("end"), r.End)...)
		if r.Start >= r.End {
			problems = append(problems, field.Invalid(at, r.End, "end must be greater than start"))
		}
	}
	return problems
}

func validateClusterEgress(path *field.Path, r *policyv1alpha2.ClusterNetworkPolicyEgressRule) field.ErrorList {
	problems := validateClusterRule(path, r.Name, r.Action, r.Protocols)
	to := path.Child("to")
	problems = append(problems, validateListLength(to, len(r.To))...)
	nameless := false // whether a peer has no named ports
	for i, peer := range r.To {
		at := to.Index(i)
		problems = append(problems, exactlyOne(at, "namespaces, pods, nodes, networks or domainNames",
			peer.Namespaces != nil, peer.Pods != nil, peer.Nodes != nil, len(peer.Networks) > 0, len(peer.DomainNames) > 0)...)
		problems = append(problems, validateClusterPods(at, peer.Namespaces, peer.Pods)...)
		problems = append(problems, validateSelector(at.Child("nodes"), peer.Nodes)...)
		problems = append(problems, validateSet(at.Child("networks"), peer.Networks, func(c policyv1alpha2.CIDR) string {
			if p, err := netip.ParsePrefix(string(c)); err != nil || p.Addr().Is4In6() || len(c) > maxCIDRLength {
				return "must be a CIDR such as 10.1.0.0/16"
			}
			return ""
		})...)
		domains := at.Child("domainNames")
		problems = append(problems, validateSet(domains, peer.DomainNames, func(d policyv1alpha2.DomainName) string {
			if !policyDomainName.MatchString(string(d)) {
				return "must be a domain name such as www.example.com"
			}
			return ""
		})...)
		if len(peer.DomainNames) > 0 && r.Action != policyv1alpha2.ClusterNetworkPolicyRuleActionAccept {
			problems = append(problems, field.Forbidden(domains, "only rules that Accept can have domain names"))
		}
		nameless = nameless || peer.Nodes != nil || len(peer.Networks) > 0 || len(peer.DomainNames) > 0
	}
	for i, p := range r.Protocols {
		if nameless && p.DestinationNamedPort != "" {
			problems = append(problems, field.Forbidden(path.Child("protocols").Index(i).Child("destinationNamedPort"),
				"nodes, networks and domainNames have no named ports"))
		}
	}
	return problems
}

// validateClusterPods validates the fields by which a peer or subject selects
// pods, each of which may be nil.
func validateClusterPods(path *field.Path, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) field.ErrorList {
	problems := validateSelector(path.Child("namespaces"), namespaces)
	if pods != nil {
		at := path.Child("pods")
		problems = append(problems, validateSelector(at.Child("namespaceSelector"), &pods.NamespaceSelector)...)
		problems = append(problems, validateSelector(at.Child("podSelector"), &pods.PodSelector)...)
	}
	return problems
}

// exactlyOne demands that one of some fields is set, and no other.
func exactlyOne(path *field.Path, names string, set ...bool) field.ErrorList {
	n := 0
	for _, is := range set {
		if is {
			n++
		}
	}
	switch n {
	case 0:
		return field.ErrorList{field.Required(path, "must have "+names)}
	case 1:
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "may have only one of "+strings.Replace(names, " or ", " and ", 1))}
}

func atMost(path *field.Path, n int) field.ErrorList {
	if n > maxClusterRules {
		return field.ErrorList{field.TooMany(path, n, maxClusterRules)}
	}
	return nil
}

// validateListLength is for lists that must not be empty.
func validateListLength(path *field.Path, n int) field.ErrorList {
	if n == 0 {
		return field.ErrorList{field.Required(path, "must have an item")}
	}
	return atMost(path, n)
}

// validateSet is for lists that hold nothing twice; problem says what is wrong
// with an item, if anything is.
func validateSet[T ~string](path *field.Path, items []T, problem func(T) string) field.ErrorList {
	problems := atMost(path, len(items))
	seen := map[T]bool{}
	for i, item := range items {
		if p := problem(item); p != "" {
			problems = append(problems, field.Invalid(path.Index(i), item, p))
		}
		if seen[item] {
			problems = append(problems, field.Duplicate(path.Index(i), item))
		}
		seen[item] = true
	}
	return problems
}
