package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Party is one end of a connection in plan.DefaultNetwork, in which nodes are, and the
// addresses that objects tell of.
type Party struct {
	// Name is "pod default/web", "node node1", "service default/web", or the
	// address.
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	// Node is the node it is on, where that is known.
	Node string `json:"node,omitempty"`
	// Resolved says what a host name was taken for, and by whom.
	Resolved string `json:"resolved,omitempty"`

	addresses []netip.Addr
	pod       *corev1.Pod // of one with an interface of its own, else nil
	service   *corev1.Service
	orphan    *api.Orphan // of a pod without an object, else nil
}

// Attached reports whether the party is a pod with an interface of its own.
func (p Party) Attached() bool { return p.pod != nil }

// OnHost reports whether the party has no interface of its own, as a node has none, and a
// pod in its node's network.
func (p Party) OnHost() bool { return p.pod == nil && p.orphan == nil }

// meet chooses addresses of one family: the source's primary one where the
// destination has one of that family. Only addresses of the given family, if
// it is not 0, come into question.
func meet(src, dst *Party, family int) error {
	for _, s := range src.addresses {
		for _, d := range dst.addresses {
			if s.Is4() == d.Is4() && (family == 0 || s.Is4() == (family == 4)) {
				src.Address, dst.Address = s, d
				return nil
			}
		}
	}
	if family != 0 {
		return fmt.Errorf("%s and %s do not both have an IPv%d address: %v and %v", src.Name, dst.Name, family, src.addresses, dst.addresses)
	}
	return fmt.Errorf("%s and %s have no addresses of the same family: %v and %v", src.Name, dst.Name, src.addresses, dst.addresses)
}

// find returns what a name stands for. namespace is that of names without one.
func (c Cluster) find(namespace string, n name) (Party, error) {
	if n.address.IsValid() {
		return c.owner(n.address), nil
	}
	key := registry.Key{Namespace: namespace, Name: n.name}
	if n.namespace != "" {
		key.Namespace = n.namespace
	}
	switch n.kind {
	case "node":
		return c.node(n.name)
	case "pod":
		return c.pod(key)
	case "service":
		return c.service(key)
	}
	switch {
	case c.Objects.Get(api.Pod, key) != nil:
		return c.pod(key)
	case c.Objects.Get(api.Node, registry.Key{Name: n.name}) != nil:
		return c.node(n.name)
	}
	if p, ok, err := c.host(n.name); ok || err != nil {
		return p, err
	}
	hint := c.elsewhere(n.name)
	if c.Objects.Get(api.Service, key) != nil {
		hint = "; for the Service of that name write svc/" + n.name
	}
	return Party{}, fmt.Errorf("%q is no pod in namespace %s, no node and no address%s", n.name, namespace, hint)
}

// host finds what a host name stands for: a Service by its name in the
// cluster's DNS, or whatever this machine's resolver says. It returns false for
// what is no host name.
func (c Cluster) host(name string) (Party, bool, error) {
	if name == "localhost" {
		return Party{Name: name, addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}}, true, nil
	}
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	if len(labels) < 2 {
		return Party{}, false, nil
	}
	if key := (registry.Key{Namespace: labels[1], Name: labels[0]}); len(labels) == 2 || labels[2] == "svc" {
		if c.Objects.Get(api.Service, key) != nil {
			p, err := c.service(key)
			p.Resolved = fmt.Sprintf("%s is taken for Service %s, as the cluster's DNS would", name, key)
			return p, true, err
		}
		if len(labels) > 2 {
			return Party{}, false, fmt.Errorf("%q: there is no service %s", name, key)
		}
	}
	if c.Resolve == nil {
		return Party{}, false, nil
	}
	addresses, err := c.Resolve(name)
	if err != nil || len(addresses) == 0 {
		return Party{}, false, fmt.Errorf("%q is no pod and no node, and this machine's resolver does not know it as a host name: %v", name, err)
	}
	p := Party{Name: name, addresses: addresses}
	if owner := c.owner(addresses[0]); len(addresses) == 1 && owner.Node != "" {
		p = owner
	}
	var words []string
	for _, a := range addresses {
		words = append(words, a.String())
	}
	p.Resolved = fmt.Sprintf("%s is %s to this machine's resolver; a pod's may say something else", name, strings.Join(words, ", "))
	return p, true, nil
}

// elsewhere names pods of that name in other namespaces.
func (c Cluster) elsewhere(name string) string {
	var found []string
	for o := range c.Objects.All(api.Pod) {
		if o.GetName() == name {
			found = append(found, registry.KeyOf(o).String())
		}
	}
	hint := ""
	if len(found) > 0 {
		hint = "; there is " + strings.Join(found, ", ")
	}
	for n := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		orphans, _ := api.NodeOrphans(n)
		for _, o := range orphans.Pods {
			if o.Name == name && len(c.orphaned(o)) > 0 {
				hint += fmt.Sprintf("; %s still has an interface of pod %s, of which there is no object: ask about its address %s", n.Name, o, o.Addresses[0])
			}
		}
	}
	return hint
}

func (c Cluster) pod(key registry.Key) (Party, error) {
	pod, ok := c.Objects.Get(api.Pod, key).(*corev1.Pod)
	if !ok {
		return Party{}, fmt.Errorf("there is no pod %s%s", key, c.elsewhere(key.Name))
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Party{}, fmt.Errorf("pod %s has ended (its phase is %q): its address is nobody's, or another's by now", key, pod.Status.Phase)
	}
	p := Party{Name: "pod " + key.String(), Node: pod.Spec.NodeName, addresses: podAddresses(pod)}
	if len(p.addresses) == 0 {
		return Party{}, fmt.Errorf("pod %s has no address (its phase is %q)", key, pod.Status.Phase)
	}
	if attached(pod) {
		p.pod = pod
	}
	return p, nil
}

func (c Cluster) node(name string) (Party, error) {
	node, ok := c.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
	if !ok {
		return Party{}, fmt.Errorf("there is no node %s", name)
	}
	p := Party{Name: "node " + name, Node: name, addresses: api.NodeAddresses(node)}
	if len(p.addresses) == 0 {
		return Party{}, fmt.Errorf("node %s has no address in its status: its agent has not been there yet", name)
	}
	return p, nil
}

// owner returns what has an address, or else the address itself.
func (c Cluster) owner(a netip.Addr) Party {
	p := Party{Name: a.String(), addresses: []netip.Addr{a}}
	for o := range c.Objects.All(api.Node) {
		if slices.Contains(api.NodeAddresses(o.(*corev1.Node)), a) {
			p.Name, p.Node = "node "+o.GetName(), o.GetName()
		}
	}
	for o := range c.Objects.All(api.Pod) {
		pod := o.(*corev1.Pod)
		if attached(pod) && slices.Contains(podAddresses(pod), a) {
			p.Name, p.Node, p.pod = "pod "+registry.KeyOf(pod).String(), pod.Spec.NodeName, pod
		}
	}
	if p.Node == "" {
		if o, node, ok := c.orphan(a); ok {
			p.Name, p.Node, p.orphan = "pod "+o.String(), node, &o
		}
	}
	return p
}

func (p Party) String() string {
	var more []string
	if p.Name != p.Address.String() && p.Address.IsValid() {
		more = append(more, p.Address.String())
	}
	if p.Node != "" && p.Name != "node "+p.Node {
		more = append(more, "on "+p.Node)
	}
	if len(more) == 0 {
		return p.Name
	}
	return p.Name + " (" + strings.Join(more, " ") + ")"
}
