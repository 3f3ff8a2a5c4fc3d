package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
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
	m, err := c.mixed()
	endpoints := c.endpoints()
	old := make(map[string]OldPods)
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if err != nil {
			old[node.Name] = OldPods{Unknown: err.Error()}
			continue
		}
		old[node.Name] = m.oldPods(node, endpoints[node.Name])
	}
	return old
}

// mixed is which subnets nodes have by the plug-ins of the mix.
type mixed struct {
	// bases are the names of what plug-ins of the mix stand on, by their own.
	bases map[string]string
	// subnets are those of nodes by their names, of each base. All are of the network
	// plan.DefaultNetwork.
	subnets map[string]map[string][]netip.Prefix
}

// mixed asks each plug-in once for all nodes: the plans of all nodes would cost the square of
// their number. All nodes that say which plug-in they use go by one mix. It fails where a
// plug-in of the mix is not known.
func (c Cluster) mixed() (mixed, error) {
	config := Config(c.Objects, c.Plugin)
	m := mixed{make(map[string]string), make(map[string]map[string][]netip.Prefix)}
	for _, name := range api.PluginMix(config) {
		p, err := c.Plugin(name)
		if err != nil {
			return mixed{}, err
		}
		base := plugin.BaseOf(p)
		if m.bases[name] = base.Name(); m.subnets[base.Name()] == nil {
			m.subnets[base.Name()] = change.SubnetsOf(base, config, c.Objects)
		}
	}
	return m, nil
}

// parts returns what the plug-ins state of a node, by the names of their bases: its subnets, and
// nothing else.
func (m mixed) parts(node string) map[string]*plan.Plan {
	parts := make(map[string]*plan.Plan, len(m.subnets))
	for base, of := range m.subnets {
		parts[base] = &plan.Plan{}
		for _, prefix := range of[node] {
			parts[base].Local.Pools = append(parts[base].Local.Pools, plan.Pool{Network: plan.DefaultNetwork, Prefix: prefix})
		}
	}
	return parts
}

// oldPods is OldPods of one node.
func (m mixed) oldPods(node *corev1.Node, endpoints []plugin.Endpoint) (old OldPods) {
	report, err := api.NodePlugins(node)
	switch {
	case err != nil:
		return OldPods{Unknown: err.Error()}
	case report == nil || report.Uses == "":
		return OldPods{Unknown: "its agent does not say which plug-in the node uses"}
	case m.bases[report.Uses] == "":
		return OldPods{Unknown: fmt.Sprintf("the node uses %s, which is not among the plug-ins of the cluster (%s)", report.Uses, strings.Join(slices.Sorted(maps.Keys(m.bases)), ", "))}
	case len(api.NodeAddresses(node)) == 0:
		return OldPods{Unknown: "the node has no address in its status, so its subnets are not known"}
	}
	parts, used := m.parts(node.Name), m.bases[report.Uses]
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
