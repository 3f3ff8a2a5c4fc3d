package api

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/registry"
)

// What the parts of Weft say to each other and to users on objects that have
// no field for it.
const (
	// ProblemAnnotation says what is wrong with an object whose kind has no
	// status to say it in, which is of AnnotatedKinds. It is gone when the problem is.
	ProblemAnnotation = "weft.network/problem"
	// OnLinkAnnotation holds, on a Node, the prefixes that its interfaces are
	// on-link with, separated by commas: whose addresses can be next hops.
	OnLinkAnnotation = "weft.network/on-link"
	// OtherAddressesAnnotation holds, on a Node, what it delivers to itself besides
	// the addresses in its status and in its pods' subnets, separated by commas:
	// addresses of its other interfaces, broadcast and anycast addresses.
	OtherAddressesAnnotation = "weft.network/other-addresses"
	// ServiceProxyAnnotation says, on a Node, who does Services there by the plan that the data
	// plane did wholly last: WeftProxy, KubeProxy, or NoProxy where the data plane cannot.
	ServiceProxyAnnotation = "weft.network/service-proxy"
	// KubeProxyAnnotation says, on the ClusterConfig, that kube-proxy is to run nowhere, as weft
	// kube-proxy remove has ended it: its value begins with KubeProxyRemoved then, which the name of
	// its DaemonSet follows where that is not the usual one.
	KubeProxyAnnotation = "weft.network/kube-proxy"
	// KubeProxyRemoved is also the value of a label that no node has.
	KubeProxyRemoved = "removed"
	// NodeInSync is the condition by which an agent says whether its node does
	// all that its plan says, and why not. Whether pods can be networked it
	// says in Kubernetes' own NetworkUnavailable.
	NodeInSync corev1.NodeConditionType = "weft.network/InSync"
	// PlanNotLoaded is the reason of that condition where the data plane may not
	// hold all of the plan that it can, so that policies may not be in force.
	PlanNotLoaded = "PlanNotLoaded"
	// ControllerLease is the name of the lease that the leading controller
	// holds.
	ControllerLease = "controller"
)

// AnnotatedKinds are the kinds on which a controller writes ProblemAnnotation. Who has a namespace alone may write
// none of them. On others it is anybody's word, and is not read.
var AnnotatedKinds = []*registry.Kind{ClusterNetwork, HostSubnet, Node}

// LivingControllerPrefix begins the names of what LivingControllerLease names.
const LivingControllerPrefix = "controllers/"

// LivingControllerLease is the name of the lease that a controller holds while it
// lives, whether it leads or not.
func LivingControllerLease(controller string) string { return LivingControllerPrefix + controller }

// CanHaveAgent reports whether agents run on a node's system, which is Linux where the node does not
// say otherwise. On others, as Windows, somebody else sees to the network.
func CanHaveAgent(n *corev1.Node) bool {
	system := n.Labels[corev1.LabelOSStable]
	return system == "" || system == "linux"
}

// NodeLeasePrefix begins the names of the leases of nodes.
const NodeLeasePrefix = "node/"

// NodeLease is the name of the lease that a node's agent holds while it lives.
func NodeLease(node string) string { return NodeLeasePrefix + node }

// RivalLease is the name of the lease that another agent holds which waits for
// the name of a node that has an agent.
func RivalLease(node string) string { return NodeLease(node) + RivalSuffix }

// RivalSuffix is what RivalLease adds to the name of the node's lease.
const RivalSuffix = "/rival"
