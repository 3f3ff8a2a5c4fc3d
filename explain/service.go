package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// Frontend is an address and port behind which others are. Weft translates them, or
// kube-proxy does, where the ClusterConfig leaves Services to that. What that has really set
// up no object tells.
type Frontend struct {
	// Name is "Service default/web" or "hostPort of pod default/web".
	Name string `json:"name"`
	// By is who translates, if anybody does: "weft", "kube-proxy", or what a
	// Service says that it is left to. It is empty where a Service has no address of its own
	// (it is headless).
	By string `json:"by,omitempty"`
	// Missing says why the frontend has nothing behind it.
	Missing string `json:"missing,omitempty"`

	// empty says that nothing is behind it.
	empty    bool
	backends []backend
}

type backend struct {
	party Party
	port  uint16
}

func (c Cluster) service(key registry.Key) (Party, error) {
	svc, ok := c.Objects.Get(api.Service, key).(*corev1.Service)
	if !ok {
		var found []string
		for o := range c.Objects.All(api.Service) {
			if o.GetName() == key.Name {
				found = append(found, registry.KeyOf(o).String())
			}
		}
		hint := ""
		if len(found) > 0 {
			hint = "; there is " + strings.Join(found, ", ")
		}
		return Party{}, fmt.Errorf("there is no service %s%s", key, hint)
	}
	p := Party{Name: "service " + key.String(), service: svc, addresses: api.ClusterAddresses(svc)}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName && svc.Spec.ExternalName == "":
		return Party{}, fmt.Errorf("service %s is to stand for a host name, and has none: its spec.externalName is empty", key)
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return Party{}, fmt.Errorf("service %s stands for the host name %s: ask about that", key, printable.Line(svc.Spec.ExternalName))
	case len(p.addresses) > 0:
		return p, nil
	case !isHeadless(svc):
		return Party{}, fmt.Errorf("service %s has got no address in the cluster yet: weft status and its conditions say why, where that stays so", key)
	}
	// A headless one is what its pods are.
	for _, pod := range c.selected(svc) {
		p.addresses = append(p.addresses, podAddresses(pod)...)
	}
	if len(p.addresses) == 0 {
		return Party{}, fmt.Errorf("service %s has no address of its own, and no running pod that it selects has one", key)
	}
	return p, nil
}

// isHeadless reports whether a Service is to have no address of its own.
func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(svc.Spec.ClusterIPs, corev1.ClusterIPNone)
}

// frontends are all addresses of a Service but those of nodes.
func frontends(svc *corev1.Service) []netip.Addr {
	return append(api.ClusterAddresses(svc), outerAddresses(svc)...)
}

// selected returns the pods that a Service selects and that have an address.
// Whether they are ready is not known.
func (c Cluster) selected(svc *corev1.Service) []*corev1.Pod {
	var pods []*corev1.Pod
	if len(svc.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	for pod := range registry.Each[*corev1.Pod](c.Objects, api.Pod) {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Namespace == svc.Namespace && !ended && len(podAddresses(pod)) > 0 && selector.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// chooseServicePort decides about the port of a Service, and its protocol.
func chooseServicePort(q Question, named string, svc *corev1.Service, a *Answer) error {
	if !a.Protocol.HasPorts() && !q.Assumed {
		a.Port = 0
		return nil
	}
	if isHeadless(svc) && chooseBehind(q, named, svc, a) {
		return nil
	}
	var found, all []string
	for _, p := range svc.Spec.Ports {
		text := fmt.Sprintf("%d/%s", p.Port, protocolOf(p.Protocol))
		if all = append(all, text); p.Name != "" {
			all[len(all)-1] += " (" + printable.Line(p.Name) + ")"
		}
		switch {
		case !q.Assumed && protocolOf(p.Protocol) != q.Protocol:
		case q.Port != 0 && int32(q.Port) != p.Port:
		case named != "" && named != p.Name && named != strconv.Itoa(int(p.Port)):
		default:
			found = append(found, text)
			a.Port, a.Protocol = uint16(p.Port), protocolOf(p.Protocol)
			if a.asked = &p; isHeadless(svc) && p.TargetPort.IntVal > 0 {
				a.Port = uint16(p.TargetPort.IntVal)
			}
		}
	}
	has := "it has " + strings.Join(all, ", ")
	if len(all) == 0 {
		has = "it has none"
	}
	switch {
	case len(found) == 0:
		return fmt.Errorf("service %s/%s has no such port: %s", svc.Namespace, svc.Name, has)
	case len(found) > 1 && (q.Port != 0 || named != ""):
		return fmt.Errorf("service %s/%s has the ports %s: say which with --protocol", svc.Namespace, svc.Name, strings.Join(found, " and "))
	case len(found) > 1:
		first := strconv.Itoa(int(svc.Spec.Ports[0].Port))
		if isHeadless(svc) {
			first = cmp.Or(printable.Line(svc.Spec.Ports[0].Name), first)
		}
		return fmt.Errorf("service %s/%s has several ports: say which, as in svc/%s:%s; %s", svc.Namespace, svc.Name, svc.Name, first, has)
	}
	return nil
}

// chooseBehind decides about the port where it is given as a number, and nobody translates it: who
// connects to a headless Service at a port connects to its pods at that port. A port's name stands
// for what the port leads to, as in the SRV records of the cluster's DNS. It returns false where
// none is given as a number.
func chooseBehind(q Question, named string, svc *corev1.Service, a *Answer) bool {
	port := q.Port
	if named != "" {
		n, err := strconv.ParseUint(named, 10, 16)
		if err != nil || n == 0 || q.Port != 0 && q.Port != uint16(n) {
			return false
		}
		port = uint16(n)
	}
	if port == 0 {
		return false
	}
	a.Port = port
	if q.Assumed {
		for _, p := range svc.Spec.Ports {
			if p.Port == int32(port) || p.TargetPort.IntVal == int32(port) {
				a.Protocol = protocolOf(p.Protocol)
				break
			}
		}
	}
	a.asked = &corev1.ServicePort{Port: int32(port), Protocol: corev1.Protocol(strings.ToUpper(a.Protocol.String()))}
	return true
}

// frontend returns what the destination of a flow is the frontend of, if others than Weft
// do it, or nil. by is who does Services.
func (c Cluster) frontend(a Answer, flow plan.Flow, by string) *Frontend {
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		named := a.Destination.service != nil && registry.KeyOf(a.Destination.service) == registry.KeyOf(svc)
		if svc.Spec.Type == corev1.ServiceTypeExternalName || a.Destination.service != nil && !named {
			continue
		}
		own := slices.Contains(frontends(svc), flow.Destination)
		onNode := a.Destination.service == nil && c.isNode(flow.Destination)
		if !own && !onNode && !named {
			continue
		}
		f := Frontend{Name: "Service " + registry.KeyOf(svc).String(), By: cmp.Or(service.LeftTo(svc), by)}
		if len(api.ClusterAddresses(svc)) == 0 && !onNode {
			f.By = ""
		}
		if f.By == api.WeftProxy {
			continue
		}
		if named && !flow.Protocol.HasPorts() {
			f.Missing = fmt.Sprintf("a Service has no %s", flow.Protocol)
			return &f
		}
		if named && f.By == "" && a.asked != nil {
			c.fill(&f, svc, *a.asked, flow.Destination.Is4())
			return &f
		}
		for _, p := range svc.Spec.Ports {
			port := p.Port
			if onNode && !own {
				port = p.NodePort
			}
			if port == int32(flow.Port) && port != 0 && protocolOf(p.Protocol) == flow.Protocol {
				c.fill(&f, svc, p, flow.Destination.Is4())
				return &f
			}
		}
		if own {
			f.Missing = fmt.Sprintf("it has no port %d/%s", flow.Port, flow.Protocol)
			return &f
		}
	}
	return nil
}

// fill finds what is behind a port of a Service.
func (c Cluster) fill(f *Frontend, svc *corev1.Service, p corev1.ServicePort, is4 bool) {
	for _, pod := range c.selected(svc) {
		port := p.TargetPort.IntVal
		if p.TargetPort.StrVal != "" {
			named, err := containerPort(pod, p.TargetPort.StrVal, protocolOf(p.Protocol))
			if err != nil {
				continue
			}
			port = named.ContainerPort
		}
		if port == 0 {
			port = p.Port
		}
		for _, a := range podAddresses(pod) {
			if a.Is4() == is4 {
				party := c.owner(a)
				party.Address = a
				f.backends = append(f.backends, backend{party, uint16(port)})
				break
			}
		}
	}
	switch {
	case len(svc.Spec.Selector) == 0:
		f.Missing = "it selects no pods: what is behind it was written by hand, and is not known"
	case len(f.backends) == 0:
		f.empty, f.Missing = true, "no running pod that it selects has an address and the port"
	}
}

func (c Cluster) isNode(a netip.Addr) bool {
	for n := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		if slices.Contains(api.NodeAddresses(n), a) {
			return true
		}
	}
	return false
}

// behind answers about what is behind a frontend. That it is denied can be
// said, if none of it may be reached; that it is allowed cannot, as others
// decide who gets it.
func (c Cluster) behind(a *Answer, flow plan.Flow, f Frontend, planner *planner) {
	a.Service = &f
	// Nobody translates what is sent to a headless one: the port is that of the pods.
	if all := f.backends; f.By == "" && len(all) > 0 && !slices.ContainsFunc(all, func(b backend) bool { return b.port != all[0].port }) {
		a.Port = all[0].port
	}
	open := 0
	for _, b := range f.backends {
		one := Answer{Source: a.Source, Destination: b.party, Protocol: a.Protocol, Port: b.port}
		inner := flow
		inner.Destination, inner.Port = b.party.Address, b.port
		c.answer(&one, inner, planner)
		if one.Verdict != Denied {
			open++
		}
		a.inherit(&one)
		a.Backends = append(a.Backends, one)
	}
	if f.By == "" && len(a.Backends) > 0 && open == len(a.Backends) {
		a.Verdict, a.Explanation.Allowed = Allowed, true
		a.Reason = fmt.Sprintf("%s stands for its %s, all of which may be reached", f.Name, count(len(a.Backends), "pod"))
		for _, b := range a.Backends {
			for _, d := range b.Doubts {
				a.Doubt(d)
			}
		}
		return
	}
	a.Verdict = NotKnown
	switch {
	case f.Missing != "":
		if f.empty {
			a.Verdict = Denied
		}
		a.Reason = fmt.Sprintf("%s: %s", f.Name, f.Missing)
	case open == 0:
		a.Verdict = Denied
		a.Reason = fmt.Sprintf("%s has %s behind it, none of which may be reached", f.Name, count(len(a.Backends), "pod"))
	case open < len(a.Backends):
		a.Reason = fmt.Sprintf("%s has %s behind it, of which %d may be reached", f.Name, count(len(a.Backends), "pod"), open)
	default:
		a.Reason = fmt.Sprintf("%s has %s behind it, which may be reached", f.Name, count(len(a.Backends), "pod"))
	}
	if f.By != "" && a.Verdict == NotKnown {
		a.Doubt(fmt.Sprintf("%s, not Weft, translates %s", f.By, netip.AddrPortFrom(flow.Destination, flow.Port)))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
