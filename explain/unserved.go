package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// unserved says what is known of a Service behind which the packet finds nobody: that no node
// serves it, or that endpoints are where they do not count.
func (c Cluster) unserved(a *Answer, flow plan.Flow) {
	if a.Service == nil {
		if svc := c.hasNone(a, flow); svc != nil {
			key := registry.KeyOf(svc)
			text := fmt.Sprintf("no node serves it at %s: see weft service %s", flow.Destination, key)
			if a.Destination.service == nil {
				a.Warn("", api.Problem{Kind: api.Service.Kind, Namespace: key.Namespace, Name: key.Name, Message: text})
				return
			}
			if a.Verdict != Denied {
				a.Verdict, a.Explanation.Allowed, a.Doubts = Denied, false, nil
				a.Reason = fmt.Sprintf("Service %s: %s; what is sent there %s", key, text, a.Reason)
				a.SeenSource, a.SeenDestination, a.SeenPort = netip.Addr{}, netip.Addr{}, 0
			}
		}
		return
	}
	name, of := strings.CutPrefix(a.Service.Name, api.Service.Kind+" ")
	if !of || a.Verdict == Allowed || !strings.HasSuffix(a.Reason, plan.NoneOnHand) {
		return
	}
	namespace, name, _ := strings.Cut(name, "/")
	svc := registry.GetAs[*corev1.Service](c.Objects, api.Service, registry.Key{Namespace: namespace, Name: name})
	if svc == nil {
		return
	}
	// The policy goes by the address: of a node or outside of the cluster it is that for who comes from
	// outside, as a pod of another node does.
	policy, local := "externalTrafficPolicy", svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if slices.Contains(api.ClusterAddresses(svc), flow.Destination) {
		policy, local = "internalTrafficPolicy", svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	}
	if nodes := c.endpointNodes(svc); local && len(nodes) > 0 {
		a.Reason += fmt.Sprintf(": its %s is Local, and its endpoints are on %s", policy, printable.Few(nodes, 0))
		return
	}
	a.Reason += ", as none of its endpoints gets connections there: see weft service " + registry.KeyOf(svc).String()
}

// doubtFree doubts that what is sent to an address where Services get theirs leaves the cluster, where
// kube-proxy does Services: what no Service has there some of its modes drop, and what is no port of a
// Service all refuse. Where Weft does them, the plan says what becomes of it.
func (c Cluster) doubtFree(a *Answer, to netip.Addr, config *api.ClusterConfig) {
	leaves := a.Verdict == Allowed && a.Explanation.Node == "" && a.Peer == ""
	if !leaves || config.Spec.ServiceProxy != api.KubeProxy {
		return
	}
	network := registry.GetAs[*networkv1.ClusterNetwork](c.Objects, api.ClusterNetwork, registry.Key{Name: api.DefaultName})
	for _, r := range api.ServiceRanges(config, network) {
		if r.Contains(to) {
			a.Doubt(fmt.Sprintf("%s is of %s, where Services get their addresses, and kube-proxy may drop or refuse what no Service is reached by there", to, r))
		}
	}
}

// warnOfLoopback warns of a port of nodes that a node asks for at a loopback address of its own, or at
// none, which is one to its kernel: Weft has none of them there, and kube-proxy in some of its modes.
func (c Cluster) warnOfLoopback(a *Answer, flow plan.Flow, config *api.ClusterConfig) {
	if !flow.Destination.IsLoopback() && !flow.Destination.IsUnspecified() || a.Service != nil || !a.Source.OnHost() {
		return
	}
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		is := func(p corev1.ServicePort) bool {
			return p.NodePort == int32(flow.Port) && strings.EqualFold(string(cmp.Or(p.Protocol, corev1.ProtocolTCP)), flow.Protocol.String())
		}
		if flow.Port == 0 || !slices.ContainsFunc(svc.Spec.Ports, is) {
			continue
		}
		if config.Spec.ServiceProxy == api.KubeProxy {
			a.Doubt(fmt.Sprintf("kube-proxy may serve port %d of Service %s at loopback addresses, too", flow.Port, registry.KeyOf(svc)))
			return
		}
		a.Warn("", api.Problem{Kind: api.Service.Kind, Namespace: svc.Namespace, Name: svc.Name,
			Message: fmt.Sprintf("its port %d of nodes is not at %s, where the node itself answers: it is at the node's own addresses", flow.Port, flow.Destination)})
	}
}

// hasNone returns the Service that has the packet's destination as an address in the cluster, where
// Weft serves it and its packets leave the cluster or get to nobody.
func (c Cluster) hasNone(a *Answer, flow plan.Flow) *corev1.Service {
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		if asked := a.Destination.service; asked != nil && registry.KeyOf(asked) != registry.KeyOf(svc) {
			continue
		}
		if svc.Spec.Type != corev1.ServiceTypeExternalName && slices.Contains(api.ClusterAddresses(svc), flow.Destination) {
			return svc
		}
	}
	return nil
}

// endpointNodes returns the nodes of the endpoints of a Service that are ready, in order.
func (c Cluster) endpointNodes(svc *corev1.Service) (nodes []string) {
	for s := range registry.Each[*discoveryv1.EndpointSlice](c.Objects, api.EndpointSlice) {
		if s.Namespace != svc.Namespace || s.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		for _, e := range s.Endpoints {
			if ready := e.Conditions.Ready; e.NodeName != nil && (ready == nil || *ready) {
				nodes = append(nodes, *e.NodeName)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
