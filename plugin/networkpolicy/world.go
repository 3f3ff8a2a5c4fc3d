package networkpolicy

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
	"github.com/weftnet/weft/registry"
)

// The functions in this file read objects. Each gets what it made of the object's
// former state and returns that where it means the same, since that is how the
// policies' compiler knows what it need not do again.

// translated is an object that holds a policy.
type translated struct {
	kind   *registry.Kind
	object registry.Object
	// policy is the same pointer until the spec changes.
	policy *policy.Policy
	// since is the resource version at which the spec changed, or at which it
	// was first seen.
	since    string
	problems []string
	// named are those of kubernetes.Replicas that the policy selects by, domains
	// the domain names it has.
	named, domains []string
}

func (t *translated) key() registry.Key { return registry.KeyOf(t.object) }
func (t *translated) version() string   { return t.object.GetResourceVersion() }

// translate reads a NetworkPolicy or a ClusterNetworkPolicy.
func translate(o registry.Object, before *translated) *translated {
	t := &translated{object: o, since: o.GetResourceVersion()}
	if before != nil && reflect.DeepEqual(spec(before.object), spec(o)) {
		*t = *before
		t.object = o
		return t
	}
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		t.kind = api.NetworkPolicy
		t.policy, t.problems = kubernetes.NetworkPolicy(o)
	case *policyv1alpha2.ClusterNetworkPolicy:
		t.kind = api.ClusterNetworkPolicy
		t.policy, t.problems = kubernetes.ClusterNetworkPolicy(o)
	default:
		return nil
	}
	t.named = slices.Sorted(maps.Keys(kubernetes.Named([]*policy.Policy{t.policy})))
	for _, r := range t.policy.Egress {
		for _, p := range r.Peers {
			if p.Domain != "" {
				t.domains = append(t.domains, p.Domain)
			}
		}
	}
	return t
}

// outline is translate without the rules, for those who need to know whom a
// policy is about and nothing else.
func outline(o registry.Object, before *translated) *translated {
	t := translate(o, before)
	if t != nil && (before == nil || t.policy != before.policy) {
		p := *t.policy
		p.Ingress, p.Egress = nil, nil
		t.policy = &p
	}
	return t
}

func spec(o registry.Object) any {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		return &o.Spec
	case *policyv1alpha2.ClusterNetworkPolicy:
		return &o.Spec
	}
	return nil
}

// policies are those of all kinds.
type policies struct {
	// kinds are in the order of policyKinds.
	kinds [2]derived.List[*translated]
	// named are those of kubernetes.Replicas by which any policy selects.
	named map[string]bool
}

// update reads the policies with translate or outline. It reports whether any
// came or went, or was changed, even if it means the same.
func (p *policies) update(objects registry.Objects, read func(registry.Object, *translated) *translated) (changed bool) {
	for i, k := range policyKinds {
		gone, came := p.kinds[i].Update(objects.All(k), read, compareTranslated)
		changed = changed || len(gone)+len(came) > 0
	}
	if changed || p.named == nil {
		named := map[string]bool{}
		for t := range p.all() {
			for _, label := range t.named {
				named[label] = true
			}
		}
		if p.named == nil || !maps.Equal(p.named, named) {
			p.named = named
		}
	}
	return changed
}

func compareTranslated(a, b *translated) int { return strings.Compare(a.policy.Name, b.policy.Name) }

// all yields the policies in the order of their names: ClusterNetworkPolicies
// come first.
func (p *policies) all() iter.Seq[*translated] {
	return func(yield func(*translated) bool) {
		for i := range p.kinds {
			for _, t := range p.kinds[i].All() {
				if !yield(t) {
					return
				}
			}
		}
	}
}

// readNamespace reads a Namespace.
func readNamespace(o registry.Object, before *policy.Namespace) *policy.Namespace {
	if before != nil && maps.Equal(before.Labels, o.GetLabels()) {
		return before
	}
	return &policy.Namespace{Name: o.GetName(), Labels: o.GetLabels()}
}

func compareNamespaces(a, b *policy.Namespace) int { return strings.Compare(a.Name, b.Name) }

// namespaceLabels returns the labels of a namespace, nil where it is not known.
func namespaceLabels(namespaces []*policy.Namespace, name string) labels.Set {
	i, found := slices.BinarySearchFunc(namespaces, name, func(n *policy.Namespace, name string) int { return strings.Compare(n.Name, name) })
	if !found {
		return nil
	}
	return namespaces[i].Labels
}

// node is a NodePods.
type node struct {
	// Node is the same pointer while it means the same.
	*policy.Node
	// problem says what of it was left out.
	problem error
}

// maxPodAddresses is of how many addresses a NodePods may tell, so that who has got
// hold of one node does not make the others work for long. Nodes have some hundred
// pods, with an address of each family.
const maxPodAddresses = 8192

// readNodePods reads a NodePods.
func readNodePods(o registry.Object, before *node) *node {
	pods, ok := o.(*api.NodePods)
	if !ok {
		return nil
	}
	n := &node{Node: &policy.Node{Name: pods.Name, Origin: api.NodePodsKind.Kind + " " + pods.Name}}
	seen := map[netip.Addr]bool{}
	for i, p := range pods.Pods {
		if i+len(seen)+len(p.Addresses) >= maxPodAddresses {
			n.problem = fmt.Errorf("it has more than %d addresses of pods; what is beyond is left out, and is no pod's for policies", maxPodAddresses)
			break
		}
		if p.Tag < api.MinTag || p.Tag > api.MaxTag {
			n.problem = fmt.Errorf("tag %d is not from %d to %d; delete it, and the node's agent writes it anew", p.Tag, api.MinTag, api.MaxTag)
			continue
		}
		t := policy.TaggedAddresses{Tag: plan.Tag(p.Tag), Addresses: make([]netip.Addr, 0, len(p.Addresses))}
		for _, text := range p.Addresses {
			a, err := parseAddress(text)
			if err != nil || seen[a] {
				n.problem = fmt.Errorf("%q is no address, or is there twice; delete it, and the node's agent writes it anew", text)
				continue
			}
			seen[a] = true
			t.Addresses = append(t.Addresses, a)
		}
		n.Pods = append(n.Pods, t)
	}
	same := func(a, b policy.TaggedAddresses) bool {
		return a.Tag == b.Tag && slices.Equal(a.Addresses, b.Addresses)
	}
	if before != nil && slices.EqualFunc(before.Pods, n.Pods, same) {
		n.Node = before.Node
	}
	return n
}

func compareNodes(a, b *node) int { return strings.Compare(a.Name, b.Name) }

// parseAddress parses an address that packets can have.
func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err == nil && (a.Is4In6() || a.Zone() != "") {
		err = fmt.Errorf("%s is no address of a packet", text)
	}
	return a, err
}

// listing is what a Node lists of its machine.
type listing struct {
	*policy.Machine
	// problem says what of it was left out, or is empty.
	problem string
}

// readListing reads a Node.
func readListing(o registry.Object, before *listing) *listing {
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	addresses, more := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP)
	l := &listing{Machine: &policy.Machine{Name: n.Name, Labels: n.Labels, Addresses: addresses}}
	if more != nil {
		l.problem = more.Error()
	}
	if before != nil && before.problem == l.problem && maps.Equal(before.Labels, l.Labels) && slices.Equal(before.Addresses, l.Addresses) {
		return before
	}
	return l
}

func compareListings(a, b *listing) int { return strings.Compare(a.Name, b.Name) }

// readDomain reads a DomainName.
func readDomain(o registry.Object, before *policy.Domain) *policy.Domain {
	name, ok := o.(*api.DomainName)
	if !ok {
		return nil
	}
	d := &policy.Domain{Name: name.Name}
	seen := map[netip.Addr]bool{}
	for _, text := range name.Addresses {
		if a, err := parseAddress(text); err == nil && !seen[a] {
			seen[a] = true
			d.Addresses = append(d.Addresses, a)
		}
	}
	if before != nil && slices.Equal(before.Addresses, d.Addresses) {
		return before
	}
	return d
}

func compareDomains(a, b *policy.Domain) int { return strings.Compare(a.Name, b.Name) }
