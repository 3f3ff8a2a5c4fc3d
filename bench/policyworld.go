package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// The large cluster: on each of its nodes as many pods, of as many namespaces
// that all hold the same pods and policies. Node 0 is real, the others are
// objects alone.
const (
	worldNodes      = 1000
	worldPods       = 100 // of a node
	worldNamespaces = 1000
	worldTeams      = 50 // share out the namespaces
	// worldCIDR has room for 1024 nodes.
	worldCIDR     = "10.128.0.0/14"
	worldHostBits = 8
)

// role is what a pod is for, its label "app". A namespace has ten pods of each.
type role int

const (
	web role = iota
	front
	db
	cache
	jobs
	queue
	cron
	client
	admin
	reports
	roles int = iota
)

var roleNames = [roles]string{"web", "api", "db", "cache", "worker", "queue", "cron", "client", "admin", "reports"}

func (r role) String() string { return roleNames[r] }

// fictive is a pod of the large cluster, as policies see it.
type fictive struct {
	namespace int
	role      role
}

// The slots of node 0's pods in namespace 0: the last two keep the first one
// company, so that three local pods can talk within a namespace.
const (
	webSlot    = 0
	frontSlot  = worldPods - 2
	clientSlot = worldPods - 1
)

// placed returns the pod that a node has in a slot, both from 0.
func placed(node, slot int) fictive {
	if node == 0 && slot == frontSlot {
		return fictive{0, front}
	}
	if node == 0 && slot == clientSlot {
		return fictive{0, client}
	}
	return fictive{(node + slot*(worldNamespaces/worldPods)) % worldNamespaces, role(slot % roles)}
}

// hostOf returns the node that has a pod of a namespace in a slot.
func hostOf(namespace, slot int) int {
	return (namespace - slot*(worldNamespaces/worldPods) + worldNodes*worldPods) % worldNodes
}

func namespaceName(i int) string { return fmt.Sprintf("ns%03d", i) }
func nodeName(i int) string      { return fmt.Sprintf("host%03d", i) }

func (f fictive) labels() map[string]string {
	return map[string]string{"app": f.role.String(), "app.kubernetes.io/part-of": "shop"}
}

// tag is the number of the pod's Tag.
func (f fictive) tag() int32 { return int32(1000 + f.namespace*roles + int(f.role)) }

// podPort is the pods' named port.
const podPort = 8080

func worldTags() []registry.Object {
	var tags []registry.Object
	for ns := range worldNamespaces {
		for r := range role(roles) {
			f := fictive{ns, r}
			tags = append(tags, &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(f.tag())},
				Spec: api.TagSpec{Namespace: namespaceName(ns), Labels: f.labels(), Ports: []api.TagPort{{Name: "http", Protocol: "TCP", Port: podPort}}}})
		}
	}
	return tags
}

func worldNamespaceObjects() []registry.Object {
	var list []registry.Object
	for i := range worldNamespaces {
		labels := map[string]string{"kubernetes.io/metadata.name": namespaceName(i), "team": fmt.Sprintf("team%02d", i%worldTeams)}
		switch i {
		case worldNamespaces - 1:
			labels["purpose"] = "monitoring"
		case worldNamespaces - 2, worldNamespaces - 3:
			labels["purpose"] = "ingress"
		}
		list = append(list, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceName(i), Labels: labels}})
	}
	return list
}

// worldNode is the Node of a node that is no more than that. Its address is on
// the lab's underlay, beyond those that the lab gives out.
func worldNode(i int) *corev1.Node {
	name := nodeName(i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "zone": fmt.Sprint(i % 3)}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: netip.AddrFrom4([4]byte{172, 30, byte(16 + i/250), byte(1 + i%250)}).String()}}},
	}
}

// slotAddress is the address of the pod in a slot of a node with that subnet:
// the first is the node's own.
func slotAddress(subnet netip.Prefix, slot int) netip.Addr {
	a := subnet.Masked().Addr().As4()
	a[3] = byte(2 + slot)
	return netip.AddrFrom4(a)
}

// nodePods is what the agent of a node would write of its pods.
func nodePods(node int, subnet netip.Prefix) *api.NodePods {
	pods := &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: nodeName(node)}}
	for slot := range worldPods {
		addTagged(pods, placed(node, slot).tag(), slotAddress(subnet, slot))
	}
	return pods
}

// addTagged adds a pod.
func addTagged(n *api.NodePods, tag int32, a netip.Addr) {
	i, found := slices.BinarySearchFunc(n.Pods, tag, func(p api.TaggedPods, tag int32) int { return int(p.Tag - tag) })
	if !found {
		n.Pods = slices.Insert(n.Pods, i, api.TaggedPods{Tag: tag})
	}
	at := &n.Pods[i].Addresses
	*at = append(*at, a.String())
	slices.SortFunc(*at, func(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) })
}

// retag gives an address another tag, as its pod's new labels do.
func retag(n *api.NodePods, a netip.Addr, tag int32) {
	for i := range n.Pods {
		n.Pods[i].Addresses = slices.DeleteFunc(n.Pods[i].Addresses, func(s string) bool { return s == a.String() })
	}
	n.Pods = slices.DeleteFunc(n.Pods, func(p api.TaggedPods) bool { return len(p.Addresses) == 0 })
	addTagged(n, tag, a)
}

// worldPod is the Pod object of one of the real node's pods.
func worldPod(f fictive, name, uid, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName(f.namespace), Name: name, UID: types.UID(uid), Labels: f.labels()},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "registry.example/main",
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: podPort, Protocol: corev1.ProtocolTCP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func apps(list ...role) *metav1.LabelSelector {
	if len(list) == 1 {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": list[0].String()}}
	}
	e := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn}
	for _, r := range list {
		e.Values = append(e.Values, r.String())
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func policyPorts(p corev1.Protocol, port intstr.IntOrString, end int32) []networkingv1.NetworkPolicyPort {
	out := []networkingv1.NetworkPolicyPort{{Protocol: &p, Port: &port}}
	if end != 0 {
		out[0].EndPort = &end
	}
	return out
}

func tcp(port int32) []networkingv1.NetworkPolicyPort {
	return policyPorts(corev1.ProtocolTCP, intstr.FromInt32(port), 0)
}

func udp(port int32) []networkingv1.NetworkPolicyPort {
	return policyPorts(corev1.ProtocolUDP, intstr.FromInt32(port), 0)
}

func from(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyIngressRule {
	return []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
}

func newPolicy(namespace, name string, subject *metav1.LabelSelector, ingress []networkingv1.NetworkPolicyIngressRule, egress []networkingv1.NetworkPolicyEgressRule) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: *subject, Ingress: ingress, Egress: egress, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
	if egress != nil {
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	}
	return p
}

// namespacePolicies are the ten policies of a namespace.
func namespacePolicies(ns int) []*networkingv1.NetworkPolicy {
	type peer = networkingv1.NetworkPolicyPeer
	name, team := namespaceName(ns), fmt.Sprintf("team%02d", ns%worldTeams)
	named := policyPorts(corev1.ProtocolTCP, intstr.FromString("http"), 0)
	dns := networkingv1.NetworkPolicyEgressRule{To: []peer{{NamespaceSelector: matching("kubernetes.io/metadata.name", namespaceName(1))}}, Ports: udp(53)}
	return []*networkingv1.NetworkPolicy{
		newPolicy(name, "default-deny", &metav1.LabelSelector{}, nil, nil),
		newPolicy(name, "web-from-outside", apps(web), from(named, peer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8", "172.16.0.0/12"}}}), nil),
		newPolicy(name, "web-from-ingress", apps(web), from(named, peer{NamespaceSelector: matching("purpose", "ingress")}), nil),
		newPolicy(name, "api-from-web", apps(front), from(append(tcp(podPort), udp(podPort)...), peer{PodSelector: apps(web)}), nil),
		newPolicy(name, "db-from-api", apps(db), from(tcp(5432), peer{PodSelector: apps(front, jobs)}), nil),
		newPolicy(name, "cache-from-team", apps(cache), from(tcp(6379), peer{NamespaceSelector: matching("team", team), PodSelector: apps(front)}), nil),
		newPolicy(name, "metrics", &metav1.LabelSelector{}, from(policyPorts(corev1.ProtocolTCP, intstr.FromInt32(9090), 9099),
			peer{NamespaceSelector: matching("purpose", "monitoring"), PodSelector: apps(web)}), nil),
		newPolicy(name, "queue-from-worker", apps(queue), from(tcp(5672), peer{PodSelector: apps(jobs, cron)}), nil),
		newPolicy(name, "worker-out", apps(jobs), nil, []networkingv1.NetworkPolicyEgressRule{
			{To: []peer{{PodSelector: apps(db, queue)}}}, dns,
			{To: []peer{{IPBlock: &networkingv1.IPBlock{CIDR: "198.51.100.0/24", Except: []string{"198.51.100.128/25"}}}}, Ports: tcp(443)}}),
		newPolicy(name, "web-out", apps(web), nil, []networkingv1.NetworkPolicyEgressRule{
			{To: []peer{{PodSelector: apps(front)}}, Ports: append(tcp(podPort), udp(podPort)...)}, dns}),
	}
}

func worldPolicies() []registry.Object {
	var list []registry.Object
	for ns := range worldNamespaces {
		for _, p := range namespacePolicies(ns) {
			list = append(list, p)
		}
	}
	return list
}

// clusterPolicies are what the administrators of the cluster say: to nineteen
// teams each something of their own, and one baseline for all.
func clusterPolicies() []registry.Object {
	var list []registry.Object
	tcpPort := func(n int32) []policyv1alpha2.ClusterNetworkPolicyProtocol {
		return []policyv1alpha2.ClusterNetworkPolicyProtocol{{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: &policyv1alpha2.Port{Number: n}}}}
	}
	for i := range int32(19) {
		list = append(list, &policyv1alpha2.ClusterNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team%02d", i+1)},
			Spec: policyv1alpha2.ClusterNetworkPolicySpec{Tier: policyv1alpha2.AdminTier, Priority: i,
				Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: matching("team", fmt.Sprintf("team%02d", i+1))},
				Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{
					{Name: "monitoring", Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, Protocols: tcpPort(9100),
						From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: matching("purpose", "monitoring")}}},
					{Name: "own", Action: policyv1alpha2.ClusterNetworkPolicyRuleActionPass,
						From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: matching("team", fmt.Sprintf("team%02d", i+1))}}},
				},
				Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{
					{Name: "metadata", Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
						To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []policyv1alpha2.CIDR{"169.254.169.254/32"}}}},
				}},
		})
	}
	return append(list, &policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{Tier: policyv1alpha2.BaselineTier,
			Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
			Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{Name: "nodes", Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, Protocols: tcpPort(10250),
				To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Nodes: &metav1.LabelSelector{}}}}}},
	})
}
