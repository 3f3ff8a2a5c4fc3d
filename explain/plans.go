package explain

import (
	"net/netip"
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
	config := api.Effective(c.Objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	plug, err := c.Plugin(config.Spec.Plugin)
	if err != nil {
		return nil, nil, err
	}
	endpoints := c.endpoints()
	plans := make(map[string]*plan.Plan)
	problems := make(map[string][]plugin.Problem)
	for o := range c.Objects.All(api.Node) {
		node := o.(*corev1.Node)
		addresses := api.NodeAddresses(node)
		if len(addresses) == 0 {
			continue
		}
		plans[node.Name], problems[node.Name] = plug.Compile(plugin.Input{
			Config: config, Objects: c.Objects,
			Node: plugin.Node{Name: node.Name, Addresses: addresses, Prefixes: onLink(node, addresses), Endpoints: endpoints[node.Name]},
		})
	}
	return plans, problems, nil
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
			Namespace: pod.Namespace, Pod: pod.Name,
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
