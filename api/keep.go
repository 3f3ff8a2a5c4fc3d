package api

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/registry"
)

// lastApplied is where kubectl keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// keep returns a registry.Kind's Keep: what every object has and Weft never
// uses goes, and what more of its type drop lets go of. On a large cluster that
// is most of an object.
func keep[T registry.Object](drop func(T)) func(registry.Object) {
	return func(o registry.Object) {
		o.SetManagedFields(nil)
		delete(o.GetAnnotations(), lastApplied)
		if len(o.GetAnnotations()) == 0 {
			o.SetAnnotations(nil)
		}
		if drop != nil {
			drop(o.(T))
		}
	}
}

// leavingTaint is what the cluster autoscaler gives a node that it is about to remove.
const leavingTaint = "ToBeDeletedByClusterAutoscaler"

// IsLeaving reports whether a node is about to go, so that no new connections are to come to it.
func IsLeaving(n *corev1.Node) bool {
	return n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == leavingTaint })
}

func keepNode(n *corev1.Node) {
	var taints []corev1.Taint
	if IsLeaving(n) {
		taints = []corev1.Taint{{Key: leavingTaint}}
	}
	n.Spec = corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs, Unschedulable: n.Spec.Unschedulable, Taints: taints}
	n.Status = corev1.NodeStatus{Addresses: n.Status.Addresses, Conditions: n.Status.Conditions}
}

// keepPod keeps of a pod's containers their ports alone, whose names policies
// and Services may use, as those of sidecars, which are among its init containers. Of a
// dnsConfig it keeps that there is one, where the pod looks for names otherwise by it than
// others do.
func keepPod(p *corev1.Pod) {
	spec, status := p.Spec, p.Status
	p.Spec = corev1.PodSpec{NodeName: spec.NodeName, HostNetwork: spec.HostNetwork, DNSPolicy: spec.DNSPolicy}
	if c := spec.DNSConfig; c != nil && (len(c.Searches) > 0 || slices.ContainsFunc(c.Options, isDots)) {
		p.Spec.DNSConfig = &corev1.PodDNSConfig{}
	}
	p.Spec.Containers, p.Spec.InitContainers = keepPorts(spec.Containers), keepPorts(spec.InitContainers)
	p.Status = corev1.PodStatus{Phase: status.Phase, PodIP: status.PodIP, PodIPs: status.PodIPs, StartTime: status.StartTime}
}

// isDots reports whether an option says which names are looked for in which order; see resolv.conf(5). The kubelet
// writes a name and its value with a colon between them, and a name that has both as it is; a line has what spaces part.
func isDots(o corev1.PodDNSConfigOption) bool {
	return slices.ContainsFunc(strings.Fields(o.Name), func(name string) bool { return name == "ndots" || strings.HasPrefix(name, "ndots:") })
}

// keepEndpointSlice lets go of which objects endpoints are.
func keepEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].TargetRef, s.Endpoints[i].DeprecatedTopology = nil, nil
	}
}

func keepPorts(containers []corev1.Container) (kept []corev1.Container) {
	for _, c := range containers {
		if len(c.Ports) > 0 {
			kept = append(kept, corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return kept
}
