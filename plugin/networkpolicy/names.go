package networkpolicy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// nameServerTag is what a node's own name server wears on that node. No Tag has it.
const nameServerTag plan.Tag = 1

// nameServer makes policies take the name server that each node has for what it stands in
// for: the pods that the Service selects at whose addresses it answers. So policies go on to
// mean what they did, which allow pods to ask those.
type nameServer struct {
	service *corev1.Service
	group   *policy.Group
	node    *policy.Node
	// groups and nodes are those of the cluster, and allGroups and allNodes these with the
	// name server's.
	groups, allGroups []*policy.Group
	nodes, allNodes   []*policy.Node
}

// update follows the Service, and adds its name server to the groups and nodes of the
// cluster, each of which is the same slice while it means the same.
func (s *nameServer) update(in plugin.Input, groups []*policy.Group, nodes []*policy.Node) ([]*policy.Group, []*policy.Node) {
	answers := plugin.NameServerOf(in.Config, in.Objects, nil)
	service := registry.GetAs[*corev1.Service](in.Objects, api.Service, in.Config.Spec.DNS.ServiceKey())
	if len(answers.Service) == 0 {
		service = nil
	}
	if s.service != service {
		s.service = service
		s.read(answers)
	}
	if s.group == nil {
		return groups, nodes
	}
	if s.allGroups == nil || !slices.Equal(s.groups, groups) {
		s.groups, s.allGroups = groups, slices.Concat([]*policy.Group{s.group}, groups)
	}
	if s.allNodes == nil || !slices.Equal(s.nodes, nodes) {
		s.nodes, s.allNodes = nodes, slices.Concat([]*policy.Node{s.node}, nodes)
	}
	return s.allGroups, s.allNodes
}

// read makes of the Service what policies know. A Service that selects nothing by labels
// stands for no pods.
func (s *nameServer) read(answers plugin.NameServer) {
	var group *policy.Group
	var node *policy.Node
	if s.service != nil && len(s.service.Spec.Selector) > 0 {
		group = &policy.Group{Tag: nameServerTag, Identity: policy.Identity{Namespace: s.service.Namespace, Labels: s.service.Spec.Selector, Ports: namedPorts(s.service)}}
		addresses := slices.SortedFunc(slices.Values(answers.Service), netip.Addr.Compare)
		node = &policy.Node{Origin: answers.Origin, Pods: []policy.TaggedAddresses{{Tag: nameServerTag, Addresses: slices.Compact(addresses)}}}
	}
	if group != nil && s.group != nil && sameIdentity(&group.Identity, &s.group.Identity) && slices.Equal(node.Pods[0].Addresses, s.node.Pods[0].Addresses) && node.Origin == s.node.Origin {
		return
	}
	s.group, s.node, s.allGroups, s.allNodes = group, node, nil, nil
}

// namedPorts are the names that pods of the Service call the ports of the name server: policies may
// name these, too. They are the Service's targetPorts; where these are numbers, its own ports' names,
// which are those of the pods where kubeadm has made both.
func namedPorts(svc *corev1.Service) (ports []policy.NamedPort) {
	for _, p := range svc.Spec.Ports {
		protocol, known := protocols[string(p.Protocol)]
		if name := cmp.Or(p.TargetPort.StrVal, p.Name); known && p.Port == api.DNSPort && name != "" {
			ports = append(ports, policy.NamedPort{Name: name, Protocol: protocol, Port: api.DNSPort})
		}
	}
	slices.SortFunc(ports, func(a, b policy.NamedPort) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(ports)
}
