package control

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// ManagedBy is the value of the label endpointslice.kubernetes.io/managed-by of the
// EndpointSlices that are made here. Others' are left alone.
const ManagedBy = "weft.network"

// maxEndpoints is how many endpoints a slice has at most, as Kubernetes' own have by default.
const maxEndpoints = 100

// slicesOf returns the EndpointSlices that a Service is to have, of its members, where it has
// those in before already, all that are made here. nodes are those that there are. An endpoint
// stays in its slice, so that few slices change with it. taken reports whether a name is another
// slice's.
func slicesOf(svc *corev1.Service, members []member, nodes map[string]place, before []*discoveryv1.EndpointSlice, taken func(name string) bool) (all []*discoveryv1.EndpointSlice) {
	groups, known := make(map[groupKey]*group), make(map[string]*numbered)
	for _, m := range members {
		key := groupKey{m.family, m.ports}
		if groups[key] == nil {
			groups[key] = &group{groupKey: key, wanted: make(map[string]discoveryv1.Endpoint)}
			known[m.ports.text] = m.ports
		}
		// Pods with the address of their node share it.
		wanted, now := groups[key].wanted, endpointOf(svc, m.pod, m.address, nodes)
		if other, shared := wanted[m.address]; !shared || isBetter(now, other) {
			wanted[m.address] = now
		}
	}
	names := make(map[string]bool)
	for _, old := range slices.SortedFunc(slices.Values(before), byName) {
		g := groups[groupKey{old.AddressType, known[textOf(old.Ports)]}]
		if g == nil {
			continue
		}
		kept := newSlice(svc, old.Name, old.AddressType, old.Ports)
		for _, e := range old.Endpoints {
			if len(e.Addresses) == 0 {
				continue // nobody here wrote that
			}
			if now, ok := g.wanted[e.Addresses[0]]; ok && len(kept.Endpoints) < maxEndpoints {
				kept.Endpoints = append(kept.Endpoints, now)
				delete(g.wanted, e.Addresses[0])
			}
		}
		if len(kept.Endpoints) > 0 {
			all, g.kept, names[kept.Name] = append(all, kept), append(g.kept, kept), true
		}
	}
	last := make(map[discoveryv1.AddressType]int) // number of a slice of a family
	for _, g := range slices.SortedFunc(maps.Values(groups), compareGroups) {
		rest := slices.SortedFunc(maps.Keys(g.wanted), compareAddresses)
		for _, s := range g.kept {
			n := min(maxEndpoints-len(s.Endpoints), len(rest))
			s.Endpoints, rest = appendOf(s.Endpoints, g.wanted, rest[:n]), rest[n:]
		}
		for len(rest) > 0 {
			last[g.family]++
			name := fmt.Sprintf("%s-%s-%d", svc.Name, strings.ToLower(string(g.family)), last[g.family])
			if names[name] || taken(name) {
				continue
			}
			s := newSlice(svc, name, g.family, g.ports.all)
			n := min(maxEndpoints, len(rest))
			s.Endpoints, rest = appendOf(nil, g.wanted, rest[:n]), rest[n:]
			all = append(all, s)
		}
	}
	return all
}

// groupKey tells endpoints apart that cannot be in one slice.
type groupKey struct {
	family discoveryv1.AddressType
	ports  *numbered
}

// group are endpoints that can be in one slice.
type group struct {
	groupKey
	// wanted are those that are in no slice yet, by address, kept the slices that there are.
	wanted map[string]discoveryv1.Endpoint
	kept   []*discoveryv1.EndpointSlice
}

func compareGroups(a, b *group) int {
	return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.ports.text, b.ports.text))
}

func byName(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) }

// compareAddresses compares texts of addresses by the addresses.
func compareAddresses(a, b string) int {
	return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b))
}

func appendOf(to []discoveryv1.Endpoint, of map[string]discoveryv1.Endpoint, addresses []string) []discoveryv1.Endpoint {
	for _, a := range addresses {
		to = append(to, of[a])
	}
	return to
}

// families are those of which a Service has endpoints: its own, or those of its cluster
// addresses, or any where it has neither.
func families(svc *corev1.Service) []discoveryv1.AddressType {
	var all []discoveryv1.AddressType
	for _, f := range svc.Spec.IPFamilies {
		all = append(all, discoveryv1.AddressType(f))
	}
	if len(all) > 0 {
		return all
	}
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, addressType(a))
		}
	}
	if len(all) > 0 {
		return all
	}
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// addressOf returns the first address of a family that a pod has.
func addressOf(pod *corev1.Pod, family discoveryv1.AddressType) (address string, ok bool) {
	texts := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && addressType(a) == family {
			return a.Unmap().String(), true
		}
	}
	return "", false
}

// numbers are those that the ports of a Service have on pods. They are made once for all
// pods that do not differ in them.
type numbers struct {
	service *corev1.Service
	// named are the ports that pods are asked for.
	named map[namedPort]bool
	// byNamed are numbers by those that a pod gives to names.
	byNamed map[string]*numbered
}

// namedPort is a port as a container calls it.
type namedPort struct {
	name     string
	protocol corev1.Protocol
}

// numbered are the ports that some pods have of a Service.
type numbered struct {
	all  []discoveryv1.EndpointPort
	text string
}

func numbersOf(svc *corev1.Service) *numbers {
	n := &numbers{service: svc, named: make(map[namedPort]bool), byNamed: make(map[string]*numbered)}
	for _, p := range svc.Spec.Ports {
		if name := p.TargetPort.StrVal; name != "" {
			n.named[namedPort{name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}] = true
		}
	}
	return n
}

// on returns those of a pod. That costs what the pod has of ports.
func (n *numbers) on(pod *corev1.Pod) *numbered {
	has := make(map[namedPort]int32)
	var says []string
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range containers {
			for _, p := range c.Ports {
				called := namedPort{p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
				if n.named[called] && has[called] == 0 && p.ContainerPort >= 1 && p.ContainerPort <= 65535 {
					has[called] = p.ContainerPort
					says = append(says, fmt.Sprintf("%q %s %d", called.name, called.protocol, p.ContainerPort))
				}
			}
		}
	}
	slices.Sort(says)
	said := strings.Join(says, " ")
	if n.byNamed[said] == nil {
		ports := n.ports(has)
		n.byNamed[said] = &numbered{ports, textOf(ports)}
	}
	return n.byNamed[said]
}

// ports returns the numbers where named ports have those given. One that is named, and that
// the pod does not have, is left out, and so is what no slice may have, as a Service may that was stored
// before there was a rule for it.
func (n *numbers) ports(has map[namedPort]int32) (all []discoveryv1.EndpointPort) {
	for _, p := range n.service.Spec.Ports {
		name, protocol := p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)
		number := cmp.Or(p.TargetPort.IntVal, p.Port)
		if called := p.TargetPort.StrVal; called != "" {
			if number = has[namedPort{called, protocol}]; number == 0 {
				continue
			}
		}
		if number < 1 || number > math.MaxUint16 || !slices.Contains(protocols, protocol) {
			continue
		}
		all = append(all, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number, AppProtocol: p.AppProtocol})
	}
	return all
}

// protocols are those that ports have.
var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// textOf is the same for ports that are.
func textOf(ports []discoveryv1.EndpointPort) string {
	var b strings.Builder
	for _, p := range ports {
		fmt.Fprintf(&b, " %q %s %d %q", or(p.Name), or(p.Protocol), or(p.Port), or(p.AppProtocol))
	}
	return b.String()
}

// or returns what a pointer points to, or the zero value where it is nil.
func or[T any](p *T) (v T) {
	if p != nil {
		return *p
	}
	return v
}

func endpointOf(svc *corev1.Service, pod *corev1.Pod, address string, nodes map[string]place) discoveryv1.Endpoint {
	ready, terminating := isReady(pod) && !isGone(pod, nodes), pod.DeletionTimestamp != nil
	serving, shown := ready, ready && !terminating || svc.Spec.PublishNotReadyAddresses
	e := discoveryv1.Endpoint{Addresses: []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &shown, Serving: &serving, Terminating: &terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if node := pod.Spec.NodeName; node != "" {
		e.NodeName = &node
		if zone := nodes[node].zone; zone != "" {
			e.Zone = &zone
		}
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == svc.Name {
		hostname := pod.Spec.Hostname
		e.Hostname = &hostname
	}
	switch or(svc.Spec.TrafficDistribution) {
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
		e.Hints = hints(e, false)
	case corev1.ServiceTrafficDistributionPreferSameNode:
		e.Hints = hints(e, true)
	}
	return e
}

// isBetter reports whether an endpoint is to stand for another of its address: who is ready,
// and then who serves.
func isBetter(e, other discoveryv1.Endpoint) bool {
	worth := func(e discoveryv1.Endpoint) (n int) {
		if or(e.Conditions.Ready) {
			n += 2
		}
		if or(e.Conditions.Serving) {
			n++
		}
		return n
	}
	return worth(e) > worth(other)
}

// hints say that an endpoint is to be used from its own zone first, and before that from its
// own node.
func hints(e discoveryv1.Endpoint, node bool) *discoveryv1.EndpointHints {
	var h discoveryv1.EndpointHints
	if e.Zone != nil {
		h.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
	}
	if node && e.NodeName != nil {
		h.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return &h
}

// isReady reports whether a pod runs, and does not say that it is not ready.
func isReady(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return true
}

func newSlice(svc *corev1.Service, name string, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: family, Ports: ports}
	s.Namespace, s.Name = svc.Namespace, name
	s.Labels = map[string]string{discoveryv1.LabelServiceName: svc.Name, discoveryv1.LabelManagedBy: ManagedBy}
	if who, left := svc.Labels[service.ProxyName]; left {
		s.Labels[service.ProxyName] = who
	}
	if isHeadless(svc) {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID}}
	return s
}

func isHeadless(svc *corev1.Service) bool { return svc.Spec.ClusterIP == corev1.ClusterIPNone }

// labelled are pods that have not ended by namespace and by each of their labels, so that to find those that a
// Service selects costs what there are of its rarest label.
type labelled map[label][]*corev1.Pod

// label is one label of a pod.
type label struct{ namespace, key, value string }

func (l labelled) add(p *corev1.Pod) {
	if api.Ended(p) {
		return
	}
	for key, value := range p.Labels {
		at := label{p.Namespace, key, value}
		l[at] = append(l[at], p)
	}
}

// candidates returns the pods that have the rarest label of those that a Service selects. All that it selects are among
// them.
func (l labelled) candidates(svc *corev1.Service) (rarest []*corev1.Pod) {
	first := true
	for key, value := range svc.Spec.Selector {
		if pods := l[label{svc.Namespace, key, value}]; first || len(pods) < len(rarest) {
			rarest, first = pods, false
		}
	}
	return rarest
}

// isOurs reports whether an EndpointSlice was made here, and for which Service.
func isOurs(s *discoveryv1.EndpointSlice) (of registry.Key, ours bool) {
	return registry.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}, s.Labels[discoveryv1.LabelManagedBy] == ManagedBy
}
