// Package api holds the kinds of objects that users and Weft share: upstream's
// own Go types where a module offers them, and ClusterConfig, Weft's one kind
// of its own.
package api

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	networkv1 "github.com/openshift/api/network/v1"
	"github.com/weftnet/weft/registry"
)

// GroupVersion is that of Weft's own kinds.
var GroupVersion = schema.GroupVersion{Group: "weft.network", Version: "v1"}

// clusterPolicies is the group and version of Kubernetes' cluster-wide policies.
var clusterPolicies = schema.GroupVersion{Group: policyv1alpha2.GroupName, Version: "v1alpha2"}

// DefaultName is the name of the only ClusterConfig and of the only
// ClusterNetwork.
const DefaultName = "default"

// The kinds.
var (
	Node = &registry.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Node"),
		Plural: "nodes", Singular: "node", New: func() registry.Object { return &corev1.Node{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateNode), Keep: keep(keepNode), StatusApart: true}
	Pod = &registry.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Plural: "pods", Singular: "pod", Namespaced: true, New: func() registry.Object { return &corev1.Pod{} },
		Validate: validator(true, validation.NameIsDNSSubdomain, validatePod), Keep: keep(keepPod), StatusApart: true}
	Namespace = &registry.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Namespace"),
		Plural: "namespaces", Singular: "namespace", New: func() registry.Object { return &corev1.Namespace{} },
		Validate: validator[*corev1.Namespace](false, validation.NameIsDNSLabel, nil), Keep: keep[*corev1.Namespace](nil), StatusApart: true}
	Service = &registry.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Service"),
		Plural: "services", Singular: "service", Namespaced: true, New: func() registry.Object { return &corev1.Service{} },
		Validate: validator(true, validation.NameIsDNS1035Label, validateService), Keep: keep[*corev1.Service](nil), StatusApart: true}
	// EndpointSlice says who is behind a Service.
	EndpointSlice = &registry.Kind{GroupVersionKind: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		Plural: "endpointslices", Singular: "endpointslice", Namespaced: true, New: func() registry.Object { return &discoveryv1.EndpointSlice{} },
		Validate: validator(true, validation.NameIsDNSSubdomain, validateEndpointSlice), Keep: keep(keepEndpointSlice)}
	// Event is what Weft tells users about a pod. Nobody follows events.
	Event = &registry.Kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Event"),
		Plural: "events", Singular: "event", Namespaced: true, New: func() registry.Object { return &corev1.Event{} },
		Validate: validator[*corev1.Event](true, validation.NameIsDNSSubdomain, nil)}

	ClusterNetwork = &registry.Kind{GroupVersionKind: networkv1.GroupVersion.WithKind("ClusterNetwork"),
		Plural: "clusternetworks", Singular: "clusternetwork", New: func() registry.Object { return &networkv1.ClusterNetwork{} },
		Validate: validator(false, onlyDefault, validateClusterNetwork), Keep: keep[*networkv1.ClusterNetwork](nil)}
	HostSubnet = &registry.Kind{GroupVersionKind: networkv1.GroupVersion.WithKind("HostSubnet"),
		Plural: "hostsubnets", Singular: "hostsubnet", New: func() registry.Object { return &networkv1.HostSubnet{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateHostSubnet), Keep: keep[*networkv1.HostSubnet](nil)}

	NetworkPolicy = &registry.Kind{GroupVersionKind: networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"),
		Plural: "networkpolicies", Singular: "networkpolicy", Namespaced: true, New: func() registry.Object { return &networkingv1.NetworkPolicy{} },
		Validate: validator(true, validation.NameIsDNSSubdomain, validateNetworkPolicy), Keep: keep[*networkingv1.NetworkPolicy](nil)}
	ClusterNetworkPolicy = &registry.Kind{GroupVersionKind: clusterPolicies.WithKind("ClusterNetworkPolicy"),
		Plural: "clusternetworkpolicies", Singular: "clusternetworkpolicy", New: func() registry.Object { return &policyv1alpha2.ClusterNetworkPolicy{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateClusterNetworkPolicy), Keep: keep[*policyv1alpha2.ClusterNetworkPolicy](nil), StatusApart: true}
	// EgressNetworkPolicy is OpenShift SDN's. No plug-in reads it yet; it is here so
	// that this is said.
	EgressNetworkPolicy = &registry.Kind{GroupVersionKind: networkv1.GroupVersion.WithKind("EgressNetworkPolicy"),
		Plural: "egressnetworkpolicies", Singular: "egressnetworkpolicy", Namespaced: true, New: func() registry.Object { return &networkv1.EgressNetworkPolicy{} },
		Validate: validator(true, validation.NameIsDNSSubdomain, validateEgressNetworkPolicy), Keep: keep[*networkv1.EgressNetworkPolicy](nil)}

	TagKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("Tag"),
		Plural: "tags", Singular: "tag", New: func() registry.Object { return &Tag{} },
		Validate: validator(false, tagName, validateTag), Keep: keep[*Tag](nil)}
	NodePodsKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("NodePods"),
		Plural: "nodepods", Singular: "nodepods", New: func() registry.Object { return &NodePods{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateNodePods), Keep: keep[*NodePods](nil)}
	NodeReportKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("NodeReport"),
		Plural: "nodereports", Singular: "nodereport", New: func() registry.Object { return &NodeReport{} },
		Validate: validator[*NodeReport](false, validation.NameIsDNSSubdomain, nil), Keep: keep[*NodeReport](nil)}
	DomainNameKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("DomainName"),
		Plural: "domainnames", Singular: "domainname", New: func() registry.Object { return &DomainName{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateDomainName), Keep: keep[*DomainName](nil)}

	AddressPoolKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("AddressPool"),
		Plural: "addresspools", Singular: "addresspool", New: func() registry.Object { return &AddressPool{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateAddressPool), Keep: keep[*AddressPool](nil), StatusApart: true, Optional: true}
	AddressGrantKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("AddressGrant"),
		Plural: "addressgrants", Singular: "addressgrant", New: func() registry.Object { return &AddressGrant{} },
		Validate: validator(false, validation.NameIsDNSSubdomain, validateAddressGrant), Keep: keep[*AddressGrant](nil), Optional: true}

	ClusterConfigKind = &registry.Kind{GroupVersionKind: GroupVersion.WithKind("ClusterConfig"),
		Plural: "clusterconfigs", Singular: "clusterconfig", New: func() registry.Object { return &ClusterConfig{} },
		Validate: validator(false, onlyDefault, validateClusterConfig), Keep: keep[*ClusterConfig](nil), StatusApart: true}
)

// Kinds lists the kinds that users see, in the order in which help and errors name
// them.
var Kinds = []*registry.Kind{ClusterConfigKind, ClusterNetwork, HostSubnet, NetworkPolicy, ClusterNetworkPolicy, EgressNetworkPolicy,
	Node, Pod, Namespace, Service, EndpointSlice, AddressPoolKind, AddressGrantKind, VirtualAddressKind, TagKind, NodePodsKind, NodeReportKind, DomainNameKind}

// PolicyKinds are the kinds of objects by which users say who may talk to whom,
// whether a plug-in reads them or not.
var PolicyKinds = []*registry.Kind{NetworkPolicy, ClusterNetworkPolicy, EgressNetworkPolicy}

// NodeKinds are the kinds of which a node's agent writes the object that has the
// node's name.
var NodeKinds = []*registry.Kind{Node, NodePodsKind, NodeReportKind}

// ClusterConfig says how the cluster's network is made. There is one, named
// "default"; without it, the defaults hold.
type ClusterConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ClusterConfigSpec   `json:"spec,omitempty"`
	Status ClusterConfigStatus `json:"status,omitempty"`
}

// ClusterConfigSpec is what users ask for.
type ClusterConfigSpec struct {
	// Plugin names the plug-in, "openshift-subnet" or "flannel", or one of them
	// with policies, "openshift-networkpolicy" or "flannel-networkpolicy".
	// Empty means the one that nodes use, or "openshift-subnet" in a cluster that uses none
	// yet.
	Plugin string `json:"plugin,omitempty"`
	// PluginNodes are the nodes that change to Plugin for now, at most 1000. The others
	// stay with the plug-in that they use, for as long as one likes. Empty means all. Where
	// Plugin is empty, it means nothing: those stay changed that are.
	PluginNodes []string `json:"pluginNodes,omitempty"`
	// DataPlane names the data plane, "linux". Default "linux".
	DataPlane string `json:"dataPlane,omitempty"`
	// ServiceProxy says who has Services reach what is behind them: "weft", every node by its
	// data plane, or "kube-proxy", which then must run on every node. Default "weft".
	ServiceProxy string `json:"serviceProxy,omitempty"`
	// ServiceNetworks are where Services get their addresses, one of each family at most, that
	// of the first the first. Kubernetes' API server gives Services theirs by its own
	// configuration, not by this: what it has is named here, too, so that nodes drop what is sent to
	// an address in there that no Service has. Empty means serviceNetwork of the ClusterNetwork.
	ServiceNetworks []string `json:"serviceNetworks,omitempty"`
	// DNS says how pods' questions for names are answered.
	DNS DNSSpec `json:"dns,omitzero"`
	// MTU of pods' interfaces in bytes, 576 (1280 with IPv6) to 65535; 0
	// takes the MTU of the node's own interface less what the tunnel costs.
	MTU int `json:"mtu,omitempty"`
	// VXLANPort is the UDP port of the overlay; 0 takes the plug-in's own
	// (openshift: that of the ClusterNetwork, or 4789; flannel: that of its
	// configuration, or 8472).
	VXLANPort int `json:"vxlanPort,omitempty"`
}

// ClusterConfigStatus is what the controller has to say and to remember.
type ClusterConfigStatus struct {
	// Conditions say what is wrong with the cluster's network as a whole.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Subnets is the allocator's memory.
	Subnets *SubnetLedger `json:"subnets,omitempty"`

	// Plugin is the plug-in of those nodes that were not told otherwise. While it is
	// empty, nodes go on as they say that they do, and those that say nothing by spec.plugin.
	Plugin string `json:"plugin,omitempty"`
	// Plugins is the mix: the plug-ins that every node compiles, in order. Plugin is
	// among them. While it is empty, it is Plugin alone.
	Plugins []string `json:"plugins,omitempty"`
	// PreparedPlugin is the plug-in that PluginNodes may change to: all were ready for it,
	// or it was forced. It is empty where that is none.
	PreparedPlugin string `json:"preparedPlugin,omitempty"`
	// PreviousPlugin is what Plugin was before, empty where that has left Plugins or was
	// come back to: the plug-in that a change is taken back to while it goes on.
	PreviousPlugin string `json:"previousPlugin,omitempty"`
	// TakenBack says that Plugin was come back to, for as long as others are in Plugins.
	TakenBack bool `json:"takenBack,omitempty"`
	// DecidedWish is the Wish that the status, and what its condition PluginChanged says,
	// are about.
	DecidedWish string `json:"decidedWish,omitempty"`
	// SpentForce is the value of ForcePluginAnnotation that counts no more, as the change is
	// at its end that it was given for, or as it was given before there was a status.
	SpentForce string `json:"spentForce,omitempty"`
	// LoadingPlugins are those of Plugins that no node was told to use since they came
	// in: what they enforce is not in force yet.
	LoadingPlugins []string `json:"loadingPlugins,omitempty"`
	// PluginRevision counts the changes of these four. Nodes repeat it in their reports,
	// so that it is known what these are about.
	PluginRevision int64 `json:"pluginRevision,omitempty"`
	// FirstRevision is PluginRevision as it was when this status began, where none was, or the
	// one before was lost: of an earlier one a report does not say what a node has used since.
	FirstRevision int64 `json:"firstRevision,omitempty"`
	// PluginNodes are the nodes that use PreparedPlugin before the others, as far as
	// spec.pluginNodes names them still, or is empty: then the others are to follow. They are
	// MaxChangedNodes at most, and where Spec.Plugin is empty only such as there are.
	PluginNodes []string `json:"pluginNodes,omitempty"`
}

// SubnetLedger is what the allocator of node subnets must remember beyond the
// HostSubnets themselves. It is written, by compare-and-swap, before any
// HostSubnet is: of two controllers that both believe they lead, one loses
// there and never hands out a subnet.
type SubnetLedger struct {
	// Pending holds subnets given to nodes whose HostSubnet may not be
	// written yet.
	Pending []SubnetGrant `json:"pending,omitempty"`
	// Quarantined holds subnets taken back from nodes.
	Quarantined []SubnetGrant `json:"quarantined,omitempty"`
	// Cursor is, for each cluster CIDR, the subnet given out last.
	Cursor map[string]string `json:"cursor,omitempty"`
}

// SubnetGrant is a subnet and the node that has or had it.
type SubnetGrant struct {
	Subnet string `json:"subnet"`
	Node   string `json:"node"`
	// NodeUID is the UID of the Node that was gone when the subnet was
	// quarantined; empty where none had it yet.
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// Until is when a quarantined subnet may be given to another node. It is
	// not set while the node's HostSubnet may still have the subnet.
	Until *metav1.Time `json:"until,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (c *ClusterConfig) DeepCopyObject() runtime.Object {
	out := *c
	c.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.PluginNodes = slices.Clone(c.Spec.PluginNodes)
	out.Spec.ServiceNetworks = slices.Clone(c.Spec.ServiceNetworks)
	out.Spec.DNS = c.Spec.DNS.deepCopy()
	out.Status.Conditions = slices.Clone(c.Status.Conditions)
	out.Status.Plugins = slices.Clone(c.Status.Plugins)
	out.Status.LoadingPlugins = slices.Clone(c.Status.LoadingPlugins)
	out.Status.PluginNodes = slices.Clone(c.Status.PluginNodes)
	if l := c.Status.Subnets; l != nil {
		out.Status.Subnets = &SubnetLedger{
			Pending:     copyGrants(l.Pending),
			Quarantined: copyGrants(l.Quarantined),
			Cursor:      maps.Clone(l.Cursor),
		}
	}
	return &out
}

func copyGrants(in []SubnetGrant) []SubnetGrant {
	out := slices.Clone(in)
	for i := range out {
		out[i].Until = out[i].Until.DeepCopy()
	}
	return out
}
