package kubernetes

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
)

// ClusterNetworkPolicy translates a ClusterNetworkPolicy, as NetworkPolicy does.
func ClusterNetworkPolicy(o *policyv1alpha2.ClusterNetworkPolicy) (p *policy.Policy, problems []string) {
	p = &policy.Policy{Name: "ClusterNetworkPolicy " + o.Name, Priority: int(o.Spec.Priority)}
	spec := field.NewPath("spec")
	var of faults
	switch o.Spec.Tier {
	case policyv1alpha2.AdminTier:
		p.Tier = policy.Admin
	case policyv1alpha2.BaselineTier:
		p.Tier = policy.Baseline
	default:
		of.add(spec.Child("tier"), "%q is neither Admin nor Baseline", o.Spec.Tier)
		p.Tier = policy.Admin
	}
	p.Subject = of.subject(spec.Child("subject"), &o.Spec.Subject)
	problems = of.so("the policy denies what it might deny or pass, and accepts nothing")

	t := clusterRules{policy: p, spec: spec, uncertain: of != nil, problems: problems}
	for i, r := range o.Spec.Ingress {
		peers := make([]policyv1alpha2.ClusterNetworkPolicyEgressPeer, len(r.From))
		for j, peer := range r.From {
			peers[j] = policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods}
		}
		p.Ingress = append(p.Ingress, t.rule("ingress", i, r.Name, r.Action, "from", peers, r.Protocols))
	}
	for i, r := range o.Spec.Egress {
		p.Egress = append(p.Egress, t.rule("egress", i, r.Name, r.Action, "to", r.To, r.Protocols))
	}
	return p, t.problems
}

// subject returns whom a policy is about, or might be if that is not
// understood.
func (f *faults) subject(path *field.Path, s *policyv1alpha2.ClusterNetworkPolicySubject) policy.Selector {
	if fields(s.Namespaces != nil, s.Pods != nil) != 1 {
		f.add(path, "there must be either namespaces or pods")
		return policy.Selector{}
	}
	return *f.pods(path, s.Namespaces, s.Pods)
}

// pods translates a pair of fields one of which is set.
func (f *faults) pods(path *field.Path, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) *policy.Selector {
	if namespaces != nil {
		return &policy.Selector{Namespaces: f.selector(path.Child("namespaces"), namespaces)}
	}
	path = path.Child("pods")
	return &policy.Selector{
		Namespaces: f.selector(path.Child("namespaceSelector"), &pods.NamespaceSelector),
		Pods:       f.selector(path.Child("podSelector"), &pods.PodSelector),
	}
}

// fields counts those that are set. One that has exactly one of several fields
// has none of those that are known here if it is of a later version.
func fields(set ...bool) (n int) {
	for _, is := range set {
		if is {
			n++
		}
	}
	return n
}

// clusterRules translates the rules of a policy.
type clusterRules struct {
	policy *policy.Policy
	spec   *field.Path
	// uncertain says that the policy's subject or tier is not understood.
	uncertain bool
	problems  []string
}

var actions = map[policyv1alpha2.ClusterNetworkPolicyRuleAction]policy.Action{
	policyv1alpha2.ClusterNetworkPolicyRuleActionAccept: policy.Allow,
	policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:   policy.Deny,
	policyv1alpha2.ClusterNetworkPolicyRuleActionPass:   policy.Pass,
}

func (t *clusterRules) rule(direction string, index int, name string, action policyv1alpha2.ClusterNetworkPolicyRuleAction,
	side string, peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer, ports []policyv1alpha2.ClusterNetworkPolicyProtocol) policy.Rule {
	rule := policy.Rule{Origin: fmt.Sprintf("%s %s[%d]", t.policy.Name, direction, index)}
	if name != "" {
		rule.Origin += " " + strconv.Quote(name)
	}
	path := t.spec.Child(direction).Index(index)

	var known bool
	if rule.Action, known = actions[action]; !known {
		rule.Action = policy.Deny
		var of faults
		of.add(path.Child("action"), "%q is none of Accept, Deny and Pass", action)
		t.problems = append(t.problems, of.so("the rule denies")...)
	}

	var unknownPeers, unresolved, unknownPorts faults
	if len(peers) == 0 {
		unknownPeers.add(path.Child(side), "there must be a peer")
	}
	for i := range peers {
		at := path.Child(side).Index(i)
		rule.Peers = append(rule.Peers, unknownPeers.clusterPeers(at, &peers[i])...)
		at = at.Child("domainNames")
		switch domains := peers[i].DomainNames; {
		case len(domains) == 0:
		case rule.Action != policy.Allow:
			unknownPeers.add(at, "only rules that Accept can have domain names")
		default:
			rule.Peers = append(rule.Peers, unresolved.domains(at, domains)...)
		}
	}
	for i := range ports {
		rule.Ports = append(rule.Ports, unknownPorts.clusterPort(path.Child("protocols").Index(i), &ports[i]))
	}
	t.problems = append(t.problems, unresolved.so("the rule does not match it")...)

	understood := unknownPeers == nil && unknownPorts == nil
	if rule.Action == policy.Allow {
		t.problems = append(t.problems, append(unknownPeers, unknownPorts...).so("the rule matches nothing")...)
		if !understood || t.uncertain || len(rule.Peers) == 0 {
			rule.Peers, rule.Ports = nobody, nil
		}
		return rule
	}
	t.problems = append(t.problems, unknownPeers.so("the rule denies everything")...)
	t.problems = append(t.problems, unknownPorts.so("the rule denies all ports")...)
	if !understood || t.uncertain {
		rule.Action = policy.Deny
	}
	if unknownPeers != nil {
		rule.Peers, rule.Ports = nil, nil
	}
	if unknownPorts != nil {
		rule.Ports = nil
	}
	return rule
}

// clusterPeers translates a peer but for domain names.
func (f *faults) clusterPeers(path *field.Path, peer *policyv1alpha2.ClusterNetworkPolicyEgressPeer) (peers []policy.Peer) {
	if fields(peer.Namespaces != nil, peer.Pods != nil, peer.Nodes != nil, len(peer.Networks) > 0, len(peer.DomainNames) > 0) != 1 {
		f.add(path, "there must be exactly one of the kinds of peers that this version of Weft knows")
		return nil
	}
	switch {
	case peer.Namespaces != nil || peer.Pods != nil:
		return []policy.Peer{{Pods: f.pods(path, peer.Namespaces, peer.Pods)}}
	case peer.Nodes != nil:
		nodes := f.selector(path.Child("nodes"), peer.Nodes)
		if nodes == nil {
			nodes = labels.Everything()
		}
		return []policy.Peer{{Nodes: nodes}}
	}
	for i, network := range peer.Networks {
		prefix := f.prefix(path.Child("networks").Index(i), string(network))
		peers = append(peers, policy.Peer{Block: &policy.Block{Prefix: prefix}})
	}
	return peers
}

// domains translates those of a peer's domain names of which one can ask a name
// server what they stand for.
func (f *faults) domains(path *field.Path, names []policyv1alpha2.DomainName) (peers []policy.Peer) {
	for i, name := range names {
		domain := strings.ToLower(strings.TrimSuffix(string(name), "."))
		switch {
		case strings.HasPrefix(domain, "*."):
			f.add(path.Index(i), "no name server says what %q stands for, so write each name", name)
		case len(validation.IsDNS1123Subdomain(domain)) > 0:
			f.add(path.Index(i), "%q is not the name of a host", name)
		default:
			peers = append(peers, policy.Peer{Domain: domain})
		}
	}
	return peers
}

func (f *faults) clusterPort(path *field.Path, p *policyv1alpha2.ClusterNetworkPolicyProtocol) policy.Port {
	if fields(p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != "") != 1 {
		f.add(path, "there must be exactly one of the protocols that this version of Weft knows")
		return policy.Port{}
	}
	switch {
	case p.TCP != nil:
		return policy.Port{Protocol: plan.TCP, Range: f.destination(path.Child("tcp"), p.TCP.DestinationPort)}
	case p.UDP != nil:
		return policy.Port{Protocol: plan.UDP, Range: f.destination(path.Child("udp"), p.UDP.DestinationPort)}
	case p.SCTP != nil:
		return policy.Port{Protocol: plan.SCTP, Range: f.destination(path.Child("sctp"), p.SCTP.DestinationPort)}
	}
	return policy.Port{Protocol: plan.AnyProtocol, Range: plan.AllPorts, Name: p.DestinationNamedPort}
}

// destination returns the ports of a protocol, which are all if none are named.
func (f *faults) destination(path *field.Path, p *policyv1alpha2.Port) plan.PortRange {
	path = path.Child("destinationPort")
	if p == nil {
		return plan.AllPorts
	}
	if fields(p.Number != 0, p.Range != nil) != 1 {
		f.add(path, "there must be either number or range")
		return plan.AllPorts
	}
	first, last := p.Number, p.Number
	if p.Range != nil {
		first, last = p.Range.Start, p.Range.End
	}
	r, err := ports(first, last)
	if err != nil {
		f.add(path, "%v", err)
	}
	return r
}
