// Package explain answers "why": would a connection between two things of the
// cluster work, and which entry of which table decides that?
//
// It is a function of the registry's objects. Why finds what the two names
// stand for, compiles the plans of the nodes on the way with the cluster's own
// plug-in, as these nodes' agents do, and asks the interpreter in package plan.
// Where policies decide it asks package policy, too, which rule came nearest to
// allowing what is denied. It touches neither nodes nor kernels; so it says what
// should be, and adds a warning where a node on the way does not do what its plan
// says.
package explain

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Snapshot holds the objects of some kinds. It implements plugin.Objects.
type Snapshot map[*registry.Kind][]registry.Object

// Put adds an object or replaces the one of its name.
func (s Snapshot) Put(k *registry.Kind, o registry.Object) {
	i, found := slices.BinarySearchFunc(s[k], registry.KeyOf(o), compareKey)
	if found {
		s[k][i] = o
		return
	}
	s[k] = slices.Insert(s[k], i, o)
}

// All implements plugin.Objects.
func (s Snapshot) All(k *registry.Kind) iter.Seq[registry.Object] { return slices.Values(s[k]) }

// Get implements plugin.Objects.
func (s Snapshot) Get(k *registry.Kind, key registry.Key) registry.Object {
	if i, found := slices.BinarySearchFunc(s[k], key, compareKey); found {
		return s[k][i]
	}
	return nil
}

func compareKey(o registry.Object, key registry.Key) int { return registry.KeyOf(o).Compare(key) }

// Cluster is what an answer is found from.
type Cluster struct {
	Objects plugin.Objects
	// Plugin finds a plug-in by name.
	Plugin func(name string) (plugin.Plugin, error)
	// Lost names the nodes whose agent does not hold its lease.
	Lost map[string]bool
}

// Question is what to ask.
type Question struct {
	// Namespace is that of pods which are named without one.
	Namespace string
	// Source and Destination are pods ("web", "shop/web", "pod/web"), nodes
	// ("node/node1", or "node1" where no pod is called so) or addresses.
	Source, Destination string
	Protocol            plan.Protocol
	// Port is the destination port, for protocols that have ports.
	Port uint16
}

// Answer is what becomes of a connection and why.
type Answer struct {
	// Source and Destination are what the names stand for.
	Source      Party `json:"source"`
	Destination Party `json:"destination"`
	plan.Explanation
	// Policies says what policies have to say, in the order in which the packet
	// meets them.
	Policies []Judgement `json:"policies,omitempty"`
	// Warnings say why the nodes may not do what the plans say.
	Warnings []string `json:"warnings,omitempty"`
}

// Party is one end of a connection.
type Party struct {
	// Name is "pod default/web", "node node1", or the address.
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	// Node is the node it is on, where that is known.
	Node string `json:"node,omitempty"`

	addresses []netip.Addr
	pod       *corev1.Pod // of one with an interface of its own, else nil
}

// Why answers a question. It fails if a name stands for nothing, or for
// something without a fitting address.
func (c Cluster) Why(q Question) (Answer, error) {
	a := Answer{}
	flow, err := c.flow(q, &a.Source, &a.Destination)
	if err != nil {
		return Answer{}, err
	}
	planner, err := c.planner()
	if err != nil {
		return Answer{}, err
	}
	a.Explanation = planner.explain(flow, a.Source.Node, a.Destination.Node)
	a.Warnings = c.warnings(a, planner.plans, planner.problems)
	if Enforces(planner.plugin) {
		c.judge(&a, flow, planner.plans)
	}
	return a, nil
}

// flow finds the parties of a question, and what to ask the plans.
func (c Cluster) flow(q Question, src, dst *Party) (flow plan.Flow, err error) {
	if *src, err = c.find(q.Namespace, q.Source); err != nil {
		return flow, fmt.Errorf("source: %w", err)
	}
	if *dst, err = c.find(q.Namespace, q.Destination); err != nil {
		return flow, fmt.Errorf("destination: %w", err)
	}
	if err := meet(src, dst); err != nil {
		return flow, err
	}
	flow = plan.Flow{Source: src.Address, Destination: dst.Address, Protocol: q.Protocol, Node: src.Node}
	if flow.Protocol.HasPorts() {
		flow.Port = q.Port
	}
	if flow.Protocol == plan.ICMP && src.Address.Is6() {
		flow.Protocol = plan.ICMPv6
	}
	return flow, nil
}

// meet chooses addresses of one family: the source's primary one where the
// destination has one of that family.
func meet(src, dst *Party) error {
	for _, s := range src.addresses {
		for _, d := range dst.addresses {
			if s.Is4() == d.Is4() {
				src.Address, dst.Address = s, d
				return nil
			}
		}
	}
	return fmt.Errorf("%s and %s have no addresses of the same family: %v and %v", src.Name, dst.Name, src.addresses, dst.addresses)
}

// find returns what a name stands for.
func (c Cluster) find(namespace, name string) (Party, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		return c.owner(a.Unmap().WithZone("")), nil
	}
	prefix, rest, qualified := strings.Cut(name, "/")
	switch {
	case qualified && prefix == "node":
		return c.node(rest)
	case qualified && prefix == "pod":
		if ns, pod, ok := strings.Cut(rest, "/"); ok {
			return c.pod(registry.Key{Namespace: ns, Name: pod})
		}
		return c.pod(registry.Key{Namespace: namespace, Name: rest})
	case qualified:
		return c.pod(registry.Key{Namespace: prefix, Name: rest})
	}
	key := registry.Key{Namespace: namespace, Name: name}
	if c.Objects.Get(api.Pod, key) == nil {
		if c.Objects.Get(api.Node, registry.Key{Name: name}) != nil {
			return c.node(name)
		}
		return Party{}, fmt.Errorf("%q is no pod in namespace %s, no node and no address%s", name, namespace, c.elsewhere(name))
	}
	return c.pod(key)
}

// elsewhere names pods of that name in other namespaces.
func (c Cluster) elsewhere(name string) string {
	var found []string
	for o := range c.Objects.All(api.Pod) {
		if o.GetName() == name {
			found = append(found, registry.KeyOf(o).String())
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; there is " + strings.Join(found, ", ")
}

func (c Cluster) pod(key registry.Key) (Party, error) {
	pod, ok := c.Objects.Get(api.Pod, key).(*corev1.Pod)
	if !ok {
		return Party{}, fmt.Errorf("there is no pod %s%s", key, c.elsewhere(key.Name))
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
			p.Name, p.Node, p.pod = "pod "+registry.KeyOf(o).String(), pod.Spec.NodeName, pod
		}
	}
	return p
}

// warnings says why the nodes on the way may not do what the plans say.
func (c Cluster) warnings(a Answer, plans map[string]*plan.Plan, problems map[string][]plugin.Problem) []string {
	nodes := []string{a.Source.Node, a.Destination.Node}
	for _, s := range a.Steps {
		nodes = append(nodes, s.Node)
	}
	slices.Sort(nodes)
	var warnings []string
	for _, name := range slices.Compact(nodes) {
		if name == "" {
			continue
		}
		warn := func(format string, args ...any) {
			warnings = append(warnings, "node "+name+": "+fmt.Sprintf(format, args...))
		}
		node, ok := c.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
		if !ok {
			warn("there is no such node in the registry")
			continue
		}
		if c.Lost[name] {
			warn("its agent does not run; the node does what it was told last")
		}
		for _, problem := range NodeProblems(node) {
			warn("%s", problem)
		}
		for _, p := range problems[name] {
			warn("%s", p)
		}
		if plans[name] == nil {
			warn("it has no address in its status, so it has no plan")
		}
	}
	return warnings
}

// String returns the answer for people.
func (a Answer) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s\n", a.Source, a.Destination)
	b.WriteString(a.Explanation.String())
	for _, j := range a.Policies {
		fmt.Fprintf(&b, "policy: %s\n", j)
		if j.Advice != "" {
			fmt.Fprintf(&b, "  %s\n", j.Advice)
		}
	}
	for _, w := range a.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

func (p Party) String() string {
	var more []string
	if p.Name != p.Address.String() {
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
