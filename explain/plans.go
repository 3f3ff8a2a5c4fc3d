package explain

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Plans compiles the plan of each node that has an address, and returns what
// the plug-in says is wrong, by node. It fails if the cluster's configuration
// names a plug-in that does not exist.
func (c Cluster) Plans() (map[string]*plan.Plan, map[string][]plugin.Problem, error) {
	p, err := c.planner()
	if err != nil {
		return nil, nil, err
	}
	for o := range c.Objects.All(api.Node) {
		p.compile(o.GetName())
	}
	return p.plans, p.problems, nil
}

// planner compiles the plans of the nodes that it is asked for.
type planner struct {
	cluster   Cluster
	plugin    plugin.Plugin
	config    *api.ClusterConfig
	endpoints map[string][]plugin.Endpoint
	// asked holds the nodes that were asked for. Those without an address have
	// no plan.
	asked    map[string]bool
	plans    map[string]*plan.Plan
	problems map[string][]plugin.Problem
}

func (c Cluster) planner() (*planner, error) {
	config := api.Effective(c.Objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	plug, err := c.Plugin(config.Spec.Plugin)
	if err != nil {
		return nil, err
	}
	return &planner{
		cluster: c, plugin: plug, config: config, endpoints: c.endpoints(),
		asked: make(map[string]bool), plans: make(map[string]*plan.Plan), problems: make(map[string][]plugin.Problem),
	}, nil
}

// compile makes the plan of a node unless it was made before.
func (p *planner) compile(name string) {
	if p.asked[name] {
		return
	}
	p.asked[name] = true
	node, ok := p.cluster.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
	if !ok {
		return
	}
	addresses := api.NodeAddresses(node)
	if len(addresses) == 0 {
		return
	}
	p.plans[name], p.problems[name] = p.plugin.Compile(plugin.Input{
		Config: p.config, Objects: p.cluster.Objects,
		Node: plugin.Node{Name: name, Addresses: addresses, Prefixes: onLink(node, addresses), Endpoints: p.endpoints[name]},
	})
}

// explain follows a flow with the plans of those nodes alone that it can meet:
// those where it begins and should end, and then any that a plan sends it to,
// until there is no other. Where nobody knows of source or destination, the
// first node's plan says where they would be. So of a large cluster a few plans
// are compiled.
func (p *planner) explain(f plan.Flow, ends ...string) plan.Explanation {
	for _, name := range ends {
		p.compile(name)
	}
	for o := range p.cluster.Objects.All(api.Node) {
		if len(p.plans) > 0 {
			break
		}
		p.compile(o.GetName())
	}
	for {
		e := plan.Explain(p.plans, f)
		before := len(p.asked)
		for _, name := range p.next(f.Source, f.Destination, e.SeenDestination) {
			p.compile(name)
		}
		if len(p.asked) == before {
			return e
		}
	}
}

// next returns the nodes that the plans known so far send packets for some
// addresses to, and those that have the addresses or are the way there.
func (p *planner) next(addresses ...netip.Addr) []string {
	var names []string
	vias := slices.Clone(addresses)
	for _, known := range p.plans {
		for _, a := range addresses {
			for _, fromEndpoint := range []bool{true, false} {
				_, r, ok := known.Route(plan.DefaultNetwork, a, fromEndpoint)
				if ok {
					names, vias = append(names, r.Node), append(vias, r.Via)
				}
			}
			for k, e := range known.Egress.All() {
				if k.Destination.Contains(a) {
					names = append(names, e.Node)
				}
			}
		}
	}
	for o := range p.cluster.Objects.All(api.Node) {
		if slices.ContainsFunc(api.NodeAddresses(o.(*corev1.Node)), func(a netip.Addr) bool { return slices.Contains(vias, a) }) {
			names = append(names, o.GetName())
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// onLink returns the prefixes that a node's agent says it is on-link with.
// Where none said so, the other nodes' addresses count as on-link.
func onLink(node *corev1.Node, addresses []netip.Addr) []netip.Prefix {
	var prefixes []netip.Prefix
	for s := range strings.SplitSeq(node.Annotations[api.OnLinkAnnotation], ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil {
			prefixes = append(prefixes, p.Masked())
		}
	}
	if len(prefixes) == 0 {
		for _, a := range addresses {
			everything, _ := a.Prefix(0)
			prefixes = append(prefixes, everything)
		}
	}
	return prefixes
}

// endpoints returns the nodes' endpoints, as far as the Pod objects tell. The
// name of a pod's interface is not among that, so the pod's own name stands
// for it.
func (c Cluster) endpoints() map[string][]plugin.Endpoint {
	endpoints := make(map[string][]plugin.Endpoint)
	for o := range c.Objects.All(api.Pod) {
		pod := o.(*corev1.Pod)
		addresses := podAddresses(pod)
		if !attached(pod) || len(addresses) == 0 {
			continue
		}
		endpoints[pod.Spec.NodeName] = append(endpoints[pod.Spec.NodeName], plugin.Endpoint{
			Interface: pod.Namespace + "/" + pod.Name, Addresses: addresses, MAC: plan.MACOf(addresses[0]),
			Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID),
		})
	}
	return endpoints
}

// attached reports whether a pod has an interface of its own.
func attached(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && !pod.Spec.HostNetwork &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

func podAddresses(pod *corev1.Pod) []netip.Addr {
	var texts []string
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if len(texts) == 0 {
		texts = []string{pod.Status.PodIP}
	}
	return parse(texts)
}

func parse(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil {
			addresses = append(addresses, a.Unmap())
		}
	}
	return addresses
}
