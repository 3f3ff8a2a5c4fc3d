package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// OldPods are the pods of a node that have addresses of other plug-ins than the one that the
// node uses.
type OldPods struct {
	// Names are those that are known, as "default/web", in order.
	Names []string
	// Unknown says why there may be more, empty where these are all.
	Unknown string
}

// OldPods returns, by node, which pods keep addresses of plug-ins that their node does not use
// any more. It goes by the Pod objects, and by what agents say of pods without objects. The
// objects must have the kinds of all bases of the mix, and Pods.
func (c Cluster) OldPods() map[string]OldPods {
	config, unsaid := config(c.Objects, c.Plugin)
	p := &planner{cluster: c, config: config, unsaid: unsaid}
	endpoints := c.endpoints()
	old := make(map[string]OldPods)
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		old[node.Name] = p.oldPods(node, endpoints[node.Name])
	}
	return old
}

// oldPods is OldPods of one node.
func (p *planner) oldPods(node *corev1.Node, endpoints []plugin.Endpoint) (old OldPods) {
	report, err := api.NodePlugins(node)
	switch {
	case err != nil:
		return OldPods{Unknown: err.Error()}
	case report == nil || report.Uses == "":
		return OldPods{Unknown: "its agent does not say which plug-in the node uses"}
	}
	config := p.configOf(node)
	all := make([]plugin.Plugin, 0, 2)
	used := ""
	for _, name := range api.PluginMix(config) {
		plug, err := p.cluster.Plugin(name)
		if err != nil {
			return OldPods{Unknown: err.Error()}
		}
		if all = append(all, plug); name == report.Uses {
			used = plugin.BaseOf(plug).Name()
		}
	}
	if used == "" {
		return OldPods{Unknown: fmt.Sprintf("the node uses %s, which is not among the plug-ins of the cluster (%s)", report.Uses, strings.Join(api.PluginMix(config), ", "))}
	}
	addresses := api.NodeAddresses(node)
	if len(addresses) == 0 {
		return OldPods{Unknown: "the node has no address in its status, so its subnets are not known"}
	}
	parts := plugin.Parts(all...)(plugin.Input{Config: p.config, Objects: p.cluster.Objects,
		Node: plugin.Node{Name: node.Name, Addresses: addresses, Prefixes: onLink(node, addresses), Others: otherAddresses(node)}})
	for _, e := range endpoints {
		if slices.ContainsFunc(e.Addresses, func(ip netip.Addr) bool { return outlives(parts, used, plan.Address{Network: e.Network, IP: ip}) }) {
			old.Names = append(old.Names, e.Namespace+"/"+e.Pod)
		}
	}
	slices.Sort(old.Names)
	orphans, err := api.NodeOrphans(node)
	switch {
	case err != nil:
		old.Unknown = err.Error()
	case orphans.More > 0:
		old.Unknown = fmt.Sprintf("there are %d more pods without objects, which its agent does not name", orphans.More)
	case len(old.Names) == 0 && len(report.Needs) > 0:
		old.Unknown = "the node needs an old plug-in, but the registry tells of no pod with an address of it"
	}
	return old
}

// outlives reports whether an address may be of any plug-in but the used one.
func outlives(parts map[string]*plan.Plan, used string, a plan.Address) bool {
	for name := range parts {
		if name != used && plugin.Outlives(parts, name, used, a) {
			return true
		}
	}
	return false
}
