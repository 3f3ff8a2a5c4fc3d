package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// ProxyName is the label of Services, and of their endpoints, that another program than
// the cluster's own serves.
const ProxyName = "service.kubernetes.io/service-proxy-name"

// defaultAffinity is how long a client stays with its backend where the Service does not
// say (corev1.DefaultClientIPServiceAffinitySeconds).
const defaultAffinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second

// service is what of a Service is compiled.
type service struct {
	key     registry.Key
	uid     types.UID
	name    string // "namespace/name"
	origin  string
	created time.Time
	ports   []port
	// clusterIPs are in the order in which the Service has them.
	clusterIPs []netip.Addr
	// families are those that the Service is of.
	families []plan.Family
	// external are its addresses outside that somebody wrote into it, balanced those that
	// a load balancer gave it.
	external, balanced []netip.Addr
	nodePorts          bool
	// guarded says that only ranges may come to balanced addresses; open are families of
	// which all may.
	guarded bool
	ranges  []netip.Prefix
	open    map[plan.Family]bool

	affinity                     time.Duration
	internalLocal, externalLocal bool
	problems                     []string
}

// kindOfService begins the origins of what Services make.
const kindOfService = "Service "

// portName is what a Service and its slices call a port by.
type portName struct {
	name     string
	protocol plan.Protocol
}

// port is one of a Service's.
type port struct {
	portName
	port     uint16
	nodePort uint16
	// target is the number that it has at the pods that the Service selects, 0 where it selects none, or
	// says a name.
	target uint16
}

var protocols = map[corev1.Protocol]plan.Protocol{"": plan.TCP, corev1.ProtocolTCP: plan.TCP, corev1.ProtocolUDP: plan.UDP, corev1.ProtocolSCTP: plan.SCTP}

// readService reads a Service; nil where it has no addresses that are to be served here. One that is written, and says
// the same of all that is compiled, stays what it was: others write annotations and status as often as they like.
func readService(o registry.Object, before *service) *service {
	made := newService(o)
	if before != nil && reflect.DeepEqual(before, made) {
		return before
	}
	return made
}

// newService reads a Service, whatever was read of it before.
func newService(o registry.Object) *service {
	svc := o.(*corev1.Service)
	_, others := svc.Labels[ProxyName]
	_, headless := svc.Labels[corev1.IsHeadlessService]
	if others || headless || svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	s := &service{key: registry.KeyOf(svc), uid: svc.UID, created: svc.CreationTimestamp.Time,
		internalLocal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		externalLocal: svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		nodePorts:     svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer,
	}
	s.origin = kindOfService + s.key.String()
	s.name = s.origin[len(kindOfService):]
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 && svc.Spec.ClusterIP != "" {
		ips = []string{svc.Spec.ClusterIP}
	}
	s.clusterIPs = s.addresses("spec.clusterIPs", ips)
	if len(s.clusterIPs) == 0 {
		return nil // it has none yet
	}
	for _, f := range svc.Spec.IPFamilies {
		s.families = append(s.families, map[corev1.IPFamily]plan.Family{corev1.IPv4Protocol: plan.IPv4, corev1.IPv6Protocol: plan.IPv6}[f])
	}
	for _, a := range s.clusterIPs {
		if f := plan.FamilyOf(a); !slices.Contains(s.families, f) {
			s.families = append(s.families, f)
		}
	}
	s.external = s.ofFamilies(s.addresses("spec.externalIPs", svc.Spec.ExternalIPs))
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.readBalanced(svc)
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		s.affinity = defaultAffinity
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
			s.affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	s.readPorts(svc)
	return s
}

// readPorts reads the ports that mean something.
func (s *service) readPorts(svc *corev1.Service) {
	for _, p := range svc.Spec.Ports {
		protocol, known := protocols[p.Protocol]
		switch {
		case !known:
			s.problem("spec.ports: protocol %q of port %d is none of TCP, UDP and SCTP: nobody serves it", p.Protocol, p.Port)
		case p.Port < 1 || p.Port > 65535 || p.NodePort < 0 || p.NodePort > 65535:
			s.problem("spec.ports: port %d with nodePort %d: either must be between 1 and 65535", p.Port, p.NodePort)
		default:
			one := port{portName: portName{p.Name, protocol}, port: uint16(p.Port), nodePort: uint16(p.NodePort)}
			if target := cmp.Or(p.TargetPort.IntVal, p.Port); len(svc.Spec.Selector) > 0 && p.TargetPort.StrVal == "" && target > 0 && target <= 65535 {
				one.target = uint16(target)
			}
			s.ports = append(s.ports, one)
		}
	}
}

// readBalanced reads what load balancers gave, and whom the Service lets in there.
func (s *service) readBalanced(svc *corev1.Service) {
	var ips []string
	for _, i := range svc.Status.LoadBalancer.Ingress {
		// A load balancer that is a proxy sends to ports of nodes, and has its own address.
		if i.IP != "" && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
			ips = append(ips, i.IP)
		}
	}
	s.balanced = s.ofFamilies(s.addresses("status.loadBalancer.ingress", ips))
	s.open = make(map[plan.Family]bool)
	for _, text := range svc.Spec.LoadBalancerSourceRanges {
		s.guarded = true
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if a := p.Addr(); a.Is4In6() && p.Bits() >= mappedBits {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-mappedBits)
		}
		switch {
		case err != nil:
			s.problem("spec.loadBalancerSourceRanges: %q is not a prefix such as 192.0.2.0/24, and lets nobody in", text)
		case p.Bits() == 0:
			s.open[plan.FamilyOf(p.Addr())] = true
		default:
			s.ranges = append(s.ranges, p.Masked())
		}
	}
	slices.SortFunc(s.ranges, netip.Prefix.Compare)
	s.ranges = slices.Compact(s.ranges)
	s.checkRanges()
}

// checkRanges says at which addresses nobody may come, as no range is of their family: once for all of a family, which may be many.
func (s *service) checkRanges() {
	all := map[plan.Family]netip.Addr{plan.IPv4: netip.IPv4Unspecified(), plan.IPv6: netip.IPv6Unspecified()}
	nobody := map[plan.Family]netip.Addr{plan.IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), plan.IPv6: netip.IPv6Loopback()}
	for _, f := range bothFamilies {
		if !s.guards(f) || slices.ContainsFunc(s.ranges, func(p netip.Prefix) bool { return plan.FamilyOf(p.Addr()) == f }) {
			continue
		}
		var some []string
		more := 0
		for _, a := range s.balanced {
			switch {
			case plan.FamilyOf(a) != f:
			case len(some) == printable.MaxNamed:
				more++
			default:
				some = append(some, a.String())
			}
		}
		if len(some) > 0 {
			s.problem("spec.loadBalancerSourceRanges: no range is of the family of %s, so that nobody may come there: add ranges of that family, %s for all, or %s if nobody is meant",
				printable.Few(some, more), netip.PrefixFrom(all[f], 0), netip.PrefixFrom(nobody[f], nobody[f].BitLen()))
		}
	}
}

// guards reports whether only some may come to balanced addresses of a family.
func (s *service) guards(f plan.Family) bool { return s.guarded && !s.open[f] }

// mostAdmitted returns how many those are at most whom any node lets in at balanced addresses: see admitted.
func (s *service) mostAdmitted() (n int) {
	if !s.guarded || len(s.ports) == 0 {
		return 0
	}
	guarded := make(map[plan.Family]bool)
	for _, a := range s.balanced {
		if f := plan.FamilyOf(a); s.guards(f) {
			guarded[f] = true
			n++
		}
	}
	for _, p := range s.ranges {
		if guarded[plan.FamilyOf(p.Addr())] {
			n++
		}
	}
	return n
}

// admitted returns whom a node lets in at balanced addresses, in order. A node that has such an address
// itself, as some load balancers have nodes do, sends from there what it sends to it, so that is let in
// where one of the node's own addresses is.
func (s *service) admitted(own []netip.Addr) []netip.Prefix {
	all, mayCome := slices.Clone(s.ranges), make(map[plan.Family]bool)
	for _, o := range own {
		if f := plan.FamilyOf(o); !mayCome[f] {
			mayCome[f] = slices.ContainsFunc(s.ranges, func(p netip.Prefix) bool { return p.Contains(o) })
		}
	}
	for _, a := range s.balanced {
		if mayCome[plan.FamilyOf(a)] {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// mappedBits are those in front of an IPv4 address in an IPv6 one that maps it (RFC 4291,
// section 2.5.5.2).
const mappedBits = 96

// addresses reads those of a list, each once, that one machine can have.
func (s *service) addresses(field string, texts []string) (all []netip.Addr) {
	if len(texts) == 0 {
		return nil
	}
	seen := make(map[netip.Addr]bool, len(texts))
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		switch {
		case err != nil:
			s.problem("%s: %q is not an IP address", field, text)
		case a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || plan.IsGroup(a):
			s.problem("%s: %s cannot be the address of a Service: choose one of one machine", field, a)
		case !seen[a]:
			seen[a] = true
			all = append(all, a)
		}
	}
	return all
}

// ofFamilies returns the addresses of the families that the Service is of. Of others it has
// no endpoints, and they are nobody's.
func (s *service) ofFamilies(all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(all, func(a netip.Addr) bool { return !slices.Contains(s.families, plan.FamilyOf(a)) })
}

func (s *service) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// LeftTo returns who does a Service, as it says itself, where that is not who does all
// others; else it is empty. No value of the label names Weft.
func LeftTo(svc *corev1.Service) string {
	who, left := svc.Labels[ProxyName]
	switch {
	case left && who == "":
		return "nobody"
	case who == api.WeftProxy:
		return "another program that is called " + who
	}
	return who
}

// slice is what of an EndpointSlice is compiled.
type slice struct {
	key registry.Key
	// of is the Service that it belongs to.
	of     registry.Key
	origin string
	// ports are in the order of their names.
	ports     []slicePort
	endpoints []member
	// refused are the addresses that are no endpoint's, in order, each once.
	refused []string
}

// slicePort is a port of all endpoints of a slice.
type slicePort struct {
	portName
	number uint16
}

func (p portName) compare(o portName) int {
	return cmp.Or(strings.Compare(p.name, o.name), cmp.Compare(p.protocol, o.protocol))
}

// calls reports whether a slice calls a port so.
func (s *slice) calls(name portName) bool {
	_, found := slices.BinarySearchFunc(s.ports, name, func(p slicePort, name portName) int { return p.compare(name) })
	return found
}

// member is an endpoint without a port.
type member struct {
	address                     netip.Addr
	node                        string
	ready, serving, terminating bool
	// zones and nodes are those by whom it is to be used first, in order; nil where nothing says. Each port of the Service
	// asks whether the node is among them, and either may be very many.
	zones, nodes []string
}

// readSlice reads an EndpointSlice; nil where it is of no Service that is served here.
func readSlice(o registry.Object, before *slice) *slice {
	es := o.(*discoveryv1.EndpointSlice)
	name := es.Labels[discoveryv1.LabelServiceName]
	_, others := es.Labels[ProxyName]
	_, headless := es.Labels[corev1.IsHeadlessService]
	if name == "" || others || headless || es.AddressType == discoveryv1.AddressTypeFQDN {
		return nil
	}
	s := &slice{key: registry.KeyOf(es), of: registry.Key{Namespace: es.Namespace, Name: name}}
	s.origin = "EndpointSlice " + s.key.String()
	for _, p := range es.Ports {
		protocol, known := plan.TCP, true
		if p.Protocol != nil {
			protocol, known = protocols[*p.Protocol]
		}
		// One without a number is for all ports, of which no Service of Kubernetes has any.
		if !known || p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
			continue
		}
		called := portName{protocol: protocol}
		if p.Name != nil {
			called.name = *p.Name
		}
		s.ports = append(s.ports, slicePort{called, uint16(*p.Port)})
	}
	slices.SortStableFunc(s.ports, func(a, b slicePort) int { return a.compare(b.portName) })
	var refused []string
	s.endpoints = make([]member, 0, len(es.Endpoints))
	for _, e := range es.Endpoints {
		if len(e.Addresses) == 0 {
			continue
		}
		a, err := netip.ParseAddr(e.Addresses[0])
		a = a.Unmap()
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || plan.IsGroup(a) {
			refused = append(refused, e.Addresses[0])
			continue
		}
		m := member{address: a, ready: isTrue(e.Conditions.Ready, true)}
		m.serving, m.terminating = isTrue(e.Conditions.Serving, true), isTrue(e.Conditions.Terminating, false)
		if e.NodeName != nil {
			m.node = *e.NodeName
		}
		if e.Hints != nil {
			for _, z := range e.Hints.ForZones {
				m.zones = append(m.zones, z.Name)
			}
			for _, n := range e.Hints.ForNodes {
				m.nodes = append(m.nodes, n.Name)
			}
			slices.Sort(m.zones)
			slices.Sort(m.nodes)
		}
		s.endpoints = append(s.endpoints, m)
	}
	slices.Sort(refused)
	s.refused = slices.Compact(refused)
	return s
}

func isTrue(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}
