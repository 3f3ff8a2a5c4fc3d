package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
	"github.com/weftnet/weft/registry"
)

// Judgement is what the policies of one of the two sides say of a connection.
type Judgement struct {
	// Pod is the pod whose policies they are, "default/web"; Direction is its.
	Pod       string         `json:"pod"`
	Direction plan.Direction `json:"direction"`
	Allowed   bool           `json:"allowed"`
	// Rule is the rule that decides.
	Rule string `json:"rule,omitempty"`
	// Unasked says that the packet was dropped before it came there.
	Unasked bool `json:"unasked,omitempty"`
	// Advice says, of what is denied, which rule came nearest to allowing it,
	// and what would have to be otherwise.
	Advice string `json:"advice,omitempty"`
}

func (j Judgement) String() string {
	side := "egress from"
	if j.Direction == plan.Incoming {
		side = "ingress to"
	}
	verb := "is allowed"
	switch {
	case j.Unasked:
		verb = "would be denied as well"
	case !j.Allowed:
		verb = "is denied"
	}
	text := fmt.Sprintf("%s pod %s %s", side, j.Pod, verb)
	switch {
	case j.Rule == "":
		return text
	case j.Rule == policy.Unrestricted:
		return text + ": " + j.Rule
	case j.Unasked:
		return text + ", by " + j.Rule
	default:
		return text + " by " + j.Rule
	}
}

// Enforces reports whether a plug-in enforces policies, which it does if it reads
// them.
func Enforces(p plugin.Plugin) bool {
	return slices.ContainsFunc(p.Kinds(), func(k *registry.Kind) bool { return slices.Contains(PolicyKinds, k) })
}

// Policies returns the cluster's policies.
func Policies(objects registry.Objects) []*policy.Policy {
	var all []*policy.Policy
	for _, k := range PolicyKinds {
		for o := range objects.All(k) {
			p, _ := Policy(o)
			all = append(all, p)
		}
	}
	return all
}

// PolicyKinds are the kinds of objects that are policies.
var PolicyKinds = []*registry.Kind{api.NetworkPolicy, api.ClusterNetworkPolicy}

// Policy returns what an object of PolicyKinds says, and what of it cannot be
// enforced as it is written.
func Policy(o registry.Object) (p *policy.Policy, problems []string) {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		return kubernetes.NetworkPolicy(o)
	case *policyv1alpha2.ClusterNetworkPolicy:
		return kubernetes.ClusterNetworkPolicy(o)
	}
	panic(fmt.Sprintf("a %T is no policy", o))
}

// judge adds what policies say of a flow, and warnings where the Pods' labels
// say something else than what nodes have told each other of them.
func (c Cluster) judge(a *Answer, flow plan.Flow, planner *planner) {
	policies := Policies(c.Objects)
	named := kubernetes.Named(policies)
	policies, tooLarge := policy.Enforced(policies)
	src, dst, port := c.seen(*a, flow, planner)
	party := func(p Party) policy.Party {
		seen := c.party(p, named)
		for n := range registry.Each[*corev1.Node](c.Objects, api.Node) {
			if isNode(n, p.Address, a.Source.Node, planner.plans[n.Name]) {
				seen.Machines = append(seen.Machines, n.Labels)
			}
		}
		return seen
	}
	advise := func(d plan.Direction) policy.Advice {
		q := policy.Connection{Direction: d, Protocol: flow.Protocol, Port: port,
			SubjectName: a.Source.Name, Subject: party(a.Source), PeerName: dst.Name, Peer: party(dst)}
		if d == plan.Incoming {
			q.SubjectName, q.Subject, q.PeerName, q.Peer = dst.Name, party(dst), src.Name, party(src)
		}
		return policy.Advise(policies, q)
	}
	for i, s := range a.Steps {
		if s.Table != "verdicts" {
			continue
		}
		j := Judgement{Direction: plan.Incoming, Pod: podName(dst), Rule: s.Origin, Allowed: a.Allowed || i+1 < len(a.Steps)}
		subject, peer := dst, src
		if strings.HasPrefix(s.Decision, string(plan.Outgoing)) {
			j.Direction, j.Pod = plan.Outgoing, podName(a.Source)
			subject, peer = a.Source, dst
		}
		now := advise(j.Direction)
		if refused := planner.refused[s.Node][s.Entry]; refused != "" {
			j.Advice = refused
		} else if subject.orphan != nil || peer.orphan != nil || policy.IsShut(j.Rule) {
			// No object says what an orphan is; and what policies of a pod cost together
			// is in none of them.
		} else if now.Decision.Allow == j.Allowed && now.Decision.Origin == j.Rule {
			j.Advice = now.Text
			for _, p := range policies {
				// A rule that was added to such a policy would not hold either.
				if !j.Allowed && tooLarge[p.Name] != "" && p.Isolates(j.Direction) && p.Subject.Selects(party(subject).Identity, party(subject).NamespaceLabels) {
					j.Advice = p.Name + " is too large, so that none of its rules holds"
					break
				}
			}
		} else {
			a.Warn(s.Node, ofNode(s.Node, fmt.Sprintf("by the objects as they are, %s should decide about %s of pod %s, but the node goes by what nodes have told each other of their pods (NodePods, Tag)",
				now.Decision.Origin, j.Direction, j.Pod)))
		}
		if problem := c.unknown(peer, named); problem != "" && peer.Node != subject.Node {
			a.Warn(peer.Node, ofNode(peer.Node, problem))
		}
		a.Policies = append(a.Policies, j)
	}
	if n := len(a.Policies); n > 0 && !a.Policies[n-1].Allowed && a.Policies[n-1].Direction == plan.Outgoing && dst.pod != nil {
		if other := advise(plan.Incoming); !other.Decision.Allow {
			a.Policies = append(a.Policies, Judgement{Pod: podName(dst), Direction: plan.Incoming,
				Rule: other.Decision.Origin, Unasked: true, Advice: other.Text})
		}
	}
}

// seen returns the source as the destination's policies see it, and the
// destination and its port as all policies do: nodes send from other addresses
// than their first, and Services to other destinations than asked for. That is
// what would come of the flow if there were no policies.
func (c Cluster) seen(a Answer, flow plan.Flow, planner *planner) (src, dst Party, port uint16) {
	src, dst, port = a.Source, a.Destination, flow.Port
	e := seenFrom(planner.unhindered(flow), a.behind)
	if e.SeenSource.IsValid() && e.SeenSource != src.Address {
		src = Party{Name: fmt.Sprintf("%s (as %s)", src.Name, e.SeenSource), Address: e.SeenSource, Node: src.Node}
	}
	if e.SeenDestination.IsValid() && e.SeenDestination != dst.Address {
		dst = c.owner(e.SeenDestination)
		dst.Address = e.SeenDestination
	}
	if e.SeenPort != 0 {
		port = e.SeenPort
	}
	return src, dst, port
}

// unhindered returns what would become of a flow if there were no policies, with the plans
// that are known.
func (p *planner) unhindered(flow plan.Flow) plan.Explanation {
	if p.free.of == flow && p.free.known == len(p.plans) {
		return p.free.is
	}
	for name, known := range p.plans {
		if p.open[name] != nil {
			continue
		}
		without := *known
		for k, e := range known.Endpoints.All() {
			e.IngressPolicy, e.EgressPolicy = "", ""
			without.Endpoints = without.Endpoints.Set(k, e)
		}
		p.open[name] = &without
	}
	p.free = unhindered{of: flow, known: len(p.plans), is: plan.Explain(p.open, flow)}
	return p.free.is
}

// unhindered is what would become of a flow without policies, by a number of plans.
type unhindered struct {
	of    plan.Flow
	known int
	is    plan.Explanation
}

func podName(p Party) string { return strings.TrimPrefix(p.Name, "pod ") }

// isNode reports whether an address leads from a pod of a node to this one: the
// address of its Node, or one in the subnets of its pods, or whatever else it
// delivers to itself of what its own pods send. p is its plan, nil where that is
// not known.
func isNode(n *corev1.Node, a netip.Addr, from string, p *plan.Plan) bool {
	if slices.Contains(machine(n).Addresses, a) {
		return true
	}
	if p != nil && slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool {
		return pool.Network == plan.DefaultNetwork && slices.Contains(plan.NodeAddressesIn(pool.Prefix), a)
	}) {
		return true
	}
	return n.Name == from && (slices.Contains(otherAddresses(n), a) ||
		slices.ContainsFunc(plan.NodeOnly, func(prefix netip.Prefix) bool { return prefix.Contains(a) }))
}

// party returns what policies see of a party, but for whether it is a node.
func (c Cluster) party(p Party, named map[string]bool) policy.Party {
	seen := policy.Party{Address: p.Address}
	if p.pod != nil {
		seen.Identity = kubernetes.Identity(p.pod, named)
		if ns := c.Objects.Get(api.Namespace, registry.Key{Name: p.pod.Namespace}); ns != nil {
			seen.NamespaceLabels = ns.GetLabels()
		}
	}
	for d := range registry.Each[*api.DomainName](c.Objects, api.DomainNameKind) {
		if slices.Contains(parse(d.Addresses), p.Address) {
			seen.Domains = append(seen.Domains, d.Name)
		}
	}
	return seen
}

// machine returns what policies see of a node.
func machine(n *corev1.Node) *policy.Machine {
	addresses, _ := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP)
	return &policy.Machine{Name: n.Name, Labels: n.Labels, Addresses: addresses}
}

// unknown says what keeps other nodes from knowing a pod as its object is; ""
// where nothing does.
func (c Cluster) unknown(p Party, named map[string]bool) string {
	if p.pod == nil {
		return ""
	}
	node := registry.GetAs[*api.NodePods](c.Objects, api.NodePodsKind, registry.Key{Name: p.Node})
	if node == nil {
		return fmt.Sprintf("it has not told the others of its pods yet (there is no NodePods %s); their policies know %s by its address alone", p.Node, p.Name)
	}
	for _, t := range node.Pods {
		if !slices.Contains(parse(t.Addresses), p.Address) {
			continue
		}
		tag := registry.GetAs[*api.Tag](c.Objects, api.TagKind, registry.Key{Name: fmt.Sprint(t.Tag)})
		if tag == nil {
			return fmt.Sprintf("%s has tag %d there, which does not exist; other nodes' policies know it by its address alone", p.Name, t.Tag)
		}
		id := kubernetes.Identity(p.pod, named)
		if tag.Spec.Namespace != id.Namespace || !labels.Equals(tag.Spec.Labels, id.Labels) {
			return fmt.Sprintf("it has told the others that %s has the labels %q, but these are %q now", p.Name, labels.Set(tag.Spec.Labels), id.Labels)
		}
		return ""
	}
	return fmt.Sprintf("it has not told the others of %s yet (NodePods %s); their policies know it by its address alone", p.Name, p.Node)
}

// Scene returns all whom policies can be about. It is for policies that select
// by those of kubernetes.Replicas that are in named.
func Scene(objects registry.Objects, named map[string]bool) policy.Scene {
	var s policy.Scene
	for o := range objects.All(api.Namespace) {
		s.Namespaces = append(s.Namespaces, &policy.Namespace{Name: o.GetName(), Labels: o.GetLabels()})
	}
	for pod := range registry.Each[*corev1.Pod](objects, api.Pod) {
		if addresses := podAddresses(pod); attached(pod) && len(addresses) > 0 {
			s.Pods = append(s.Pods, policy.Pod{Name: registry.KeyOf(pod).String(), Identity: kubernetes.Identity(pod, named), Addresses: addresses})
		}
	}
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		s.Machines = append(s.Machines, machine(n))
	}
	for d := range registry.Each[*api.DomainName](objects, api.DomainNameKind) {
		s.Domains = append(s.Domains, &policy.Domain{Name: d.Name, Addresses: parse(d.Addresses)})
	}
	return s
}
