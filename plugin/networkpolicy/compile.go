package networkpolicy

import (
	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// view is what a node's pods are and which policies concern them.
type view struct {
	policies   policies
	namespaces derived.List[*policy.Namespace]
	locals     locals
}

// update reads the policies with translate or outline. It reports whether any
// policy came or went, or was changed.
func (v *view) update(in plugin.Input, read func(registry.Object, *translated) *translated) (changed bool) {
	changed = v.policies.update(in.Objects, read)
	v.namespaces.Update(in.Objects.All(api.Namespace), readNamespace, compareNamespaces)
	v.locals.update(in, v.policies.named)
	return changed
}

// concerned returns the policies that select a pod of the node, among those that
// a function wants.
func (v *view) concerned(wanted func(*translated) bool) []*translated {
	pods := map[string][]*policy.Identity{}
	for _, l := range v.locals.list {
		if counts(l) {
			pods[l.Namespace] = append(pods[l.Namespace], l.Identity)
		}
	}
	selects := func(t *translated, namespace string) bool {
		labels := namespaceLabels(v.namespaces.All(), namespace)
		for _, id := range pods[namespace] {
			if t.policy.Subject.Selects(id, labels) {
				return true
			}
		}
		return false
	}
	var concerned []*translated
	for t := range v.policies.all() {
		if !wanted(t) {
			continue
		}
		if n := t.policy.Subject.Namespace; n != "" {
			if selects(t, n) {
				concerned = append(concerned, t)
			}
			continue
		}
		for n := range pods {
			if selects(t, n) {
				concerned = append(concerned, t)
				break
			}
		}
	}
	return concerned
}

// compiler compiles the plans of a node.
type compiler struct {
	// on is the plug-in that knows no policies. What compiles with it is Below.
	on plugin.Plugin
	plugin.Later
	// plain is the plan of that.
	plain *plan.Plan

	node     string
	view     view
	list     []*policy.Policy
	denying  denying
	untold   untoldPods
	tooLarge map[*translated]string
	closed   map[*policy.Policy]*policy.Policy
	tags     tags
	others   derived.List[*node]
	nodes    placed
	listings derived.List[*listing]
	domains  derived.List[*policy.Domain]
	names    nameServer
	tables   policy.Compiler
	made     policy.Tables
}

// begin has it know nothing yet but whose plans it compiles.
func (c *compiler) begin(node string) {
	*c = compiler{on: c.on, node: node}
	c.Later = plugin.Later{Of: adds, Own: &c.tables, Below: plugin.Sparing(c.on)}
}

// Compile implements plugin.Compiler.
//
// A problem that a policy has by itself is reported by the nodes with pods that
// the policy selects, so that what a node cannot do is not lost among what does
// not concern it; the controller reports the others.
func (c *compiler) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	if c.node != in.Node.Name {
		gradual := c.tables.Gradual
		if c.begin(in.Node.Name); gradual {
			c.LeaveForLater()
		}
	}
	previous := in.Previous
	plain, problems := c.Below.Compile(in)
	c.plain = plain

	tables := c.tables.Compile(c.world(in))
	c.made = tables
	p := *plain
	p.Classes, p.Within, p.Verdicts = tables.Classes, tables.Within, tables.Verdicts
	if previous == nil {
		previous = &plan.Plan{}
	}
	p.Endpoints = c.endpoints(previous.Endpoints, plain.Endpoints, tables.Endpoints)
	return &p, append(problems[:len(problems):len(problems)], c.problems()...)
}

// LeaveForLater implements plugin.Gradual.
func (c *compiler) LeaveForLater() {
	c.tables.Gradual = true
	c.Below.LeaveForLater()
}

// world brings what is known of the cluster to what the objects say.
func (c *compiler) world(in plugin.Input) *policy.World {
	if c.closed == nil {
		c.closed = map[*policy.Policy]*policy.Policy{}
	}
	if c.view.update(in, translate) || c.list == nil {
		c.list, c.tooLarge = limited(c.view.policies.all(), c.closed)
		c.denying = denyingAmong(c.list)
		c.list = c.denying.with(c.list)
	}
	c.tags.update(in.Objects)
	other := func(o registry.Object, before *node) *node {
		if o.GetName() == c.node {
			return nil // the node knows better
		}
		return readNodePods(o, before)
	}
	gone, came := c.others.Update(in.Objects.All(api.NodePodsKind), other, compareNodes)
	c.listings.Update(in.Objects.All(api.Node), readListing, compareListings)
	c.nodes.update(c.others.All(), c.listings.All(), in.Node.Others, c.plain, len(gone)+len(came) > 0)
	c.domains.Update(in.Objects.All(api.DomainNameKind), readDomain, compareDomains)
	groups, nodes := c.names.update(in, c.tags.groups, c.nodes.list)
	return &policy.World{
		Network: plan.DefaultNetwork, Policies: c.list, Namespaces: c.view.namespaces.All(), Groups: groups,
		Nodes: nodes, Machines: c.nodes.machines, Domains: c.domains.All(), Local: c.untold.mark(in, &c.view, c.denying),
	}
}

// endpoints returns the endpoints that base wants, with their policies. It shares
// what it can with the previous ones.
func (c *compiler) endpoints(previous, plain plan.Table[plan.EndpointKey, plan.Endpoint], policies map[string]policy.EndpointPolicies) plan.Table[plan.EndpointKey, plan.Endpoint] {
	out := previous
	for k := range previous.All() {
		if _, wanted := plain.Get(k); !wanted {
			out = out.Delete(k)
		}
	}
	for k, e := range plain.All() {
		e.IngressPolicy, e.EgressPolicy = policies[k.Interface].Ingress, policies[k.Interface].Egress
		out = out.Set(k, e)
	}
	return out
}

// problems are those of the objects that this package reads.
func (c *compiler) problems() []plugin.Problem {
	problems := c.limits()
	for _, t := range c.view.concerned(func(t *translated) bool { return len(t.problems) > 0 }) {
		for _, message := range t.problems {
			problems = append(problems, plugin.Problem{Kind: t.kind, Key: t.key(), Message: message, Told: true})
		}
	}
	for _, n := range c.others.All() {
		if n.problem != nil {
			problems = append(problems, plugin.Problem{Kind: api.NodePodsKind, Key: registry.Key{Name: n.Name}, Message: n.problem.Error()})
		} else if p := c.nodes.nodes[n.Name].problem; p != nil {
			problems = append(problems, plugin.Problem{Kind: api.NodePodsKind, Key: registry.Key{Name: n.Name}, Message: p.Error()})
		}
	}
	for _, l := range c.listings.All() {
		key := registry.Key{Name: l.Name}
		if l.problem != "" {
			problems = append(problems, plugin.Problem{Kind: api.Node, Key: key, Message: l.problem})
		}
		if p := c.nodes.unbelieved[l.Name]; p != nil {
			problems = append(problems, plugin.Problem{Kind: api.Node, Key: key, Message: p.Error()})
		}
	}
	for _, t := range c.tags.All() {
		if t.problem == nil {
			break // those that mean nothing come first
		}
		problems = append(problems, plugin.Problem{Kind: api.TagKind, Key: registry.KeyOf(t.object), Message: t.problem.Error()})
	}
	return problems
}
