// Package oracle says what Services mean, slowly: it evaluates the texts of core/v1
// Service and discovery/v1 EndpointSlice, and what kube-proxy makes of them, for one
// packet at a time, with nothing prepared. It is what Weft's compiler is held against,
// and shares no code with it: it knows the objects of Kubernetes, and of Weft what its documents
// say, in types of its own.
//
// Where the texts leave a choice, or Weft chose differently on purpose, it is Weft's:
//
//   - Of Services that claim one address, protocol and port, a cluster IP goes before a
//     node port, that before a load balancer's address, and that before an external IP;
//     then the older goes first, then the first by namespace and name.
//   - Where Service default/kubernetes has its endpoints, the API server is: no Service has
//     such an address and port, and no other port of such an address is refused.
//   - loadBalancerSourceRanges let in who is in one of them, and nobody else but what has a load balancer's address
//     of the Service, where the node itself is let in: those of one family let in nobody of the other, and what
//     cannot be read lets in nobody.
//   - Endpoints at unspecified, loopback, link-local and multicast addresses are as if
//     they were not there.
//   - Node ports are at all of the node's addresses of the Service's families, and not at
//     loopback addresses.
//   - All of a live cluster IP that is no Service's port is refused, but by a node whose
//     own address it is.
//   - Addresses and ranges of IPv4 that are written in the form of IPv6 are IPv4 ones.
//   - What goes to the node itself keeps its source.
//   - Where a pod has a port of its node, a Service is not. At an address that one pod asks for
//     twice it has the port that it asks for first.
//   - A node's name server answers at an address of the Service that it stands in for as far as that
//     is what a packet there would come to, and at others where nothing has the port. Where nothing
//     else has it either, nobody but the node and its pods is answered.
//   - Of an address at which a name server answers, and which the node has not, all else is
//     dropped that is not for, or refused by, whose address it is.
//   - A slice that does not call a port as the Service does, which selects pods, has it by the number of its
//     targetPort, under a name that no port of the Service has: Kubernetes writes it anew soon.
//   - Of entries of one endpoint that say different things of it, one on this node goes
//     first, then one that has it ready, then one that has it serving, then the first
//     slice by name.
package oracle

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// World is all that decides where a packet to a Service goes.
type World struct {
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	Nodes    []*corev1.Node
	Pods     []*corev1.Pod
	// Pools and AddressGrants say whose addresses of load balancers are.
	Pools         []*Pool
	AddressGrants []*Grant
	// Granting says that there is no Kubernetes, and Grants which Service has an address of the
	// cluster, or a port of nodes.
	Granting bool
	Grants   []*Grant
	// ServicesLeft says that Services are another program's; hostPorts and names are not.
	ServicesLeft bool
	// Names is nil where pods answer for names.
	Names *Names
	// Others are, by the names of nodes, the addresses that a node has and its Node does not say.
	Others map[string][]netip.Addr
	// Gateways are, by the names of nodes, the addresses that a node has among those of its
	// pods. No node port is there.
	Gateways map[string][]netip.Addr
}

// Sender is who sends a packet, as the node sees it that it arrives at.
type Sender string

// The senders.
const (
	// PodHere is a pod of the node, and PodElsewhere one of another.
	PodHere      Sender = "a pod here"
	PodElsewhere Sender = "a pod elsewhere"
	NodeItself   Sender = "the node itself"
	// Outsider is anybody else, other nodes among them.
	Outsider Sender = "an outsider"
)

// Packet is the first of a connection.
type Packet struct {
	// Node is where it arrives.
	Node                string
	Sender              Sender
	Source, Destination netip.Addr
	// Protocol is TCP, UDP or SCTP; any other has no ports.
	Protocol corev1.Protocol
	// Port is the destination port.
	Port uint16
}

// Fate is what becomes of a packet.
type Fate string

// The fates.
const (
	// Unserved packets are to no Service, and go on as they are.
	Unserved Fate = "unserved"
	Served   Fate = "served"
	// Refused packets are answered, and Dropped ones are not.
	Refused Fate = "refused"
	Dropped Fate = "dropped"
	// AnsweredHere are those to the name server of the node itself.
	AnsweredHere Fate = "answered here"
)

// Answer is what becomes of a packet.
type Answer struct {
	Fate Fate
	// Service is whose port it went to, as "namespace/name"; "Pod namespace/name" where that is
	// a pod's, and NamesOfConfig where the ClusterConfig says that there are names. It is empty where it
	// is to no port of any.
	Service string
	// Backends are those that may be chosen, in order, where the packet is served.
	Backends []Backend
	// Affinity is for how long the client goes to the same backend; 0 is not at all.
	Affinity time.Duration
}

// Backend is one that may be chosen.
type Backend struct {
	netip.AddrPort
	// Masqueraded says that the packet gets there from the node's address.
	Masqueraded bool
}

// Evaluate says what becomes of a packet.
func (w *World) Evaluate(p Packet) Answer {
	if has := w.hostPortAt(p); has != nil {
		return has.answer(p)
	}
	if a, ok := w.named(p); ok {
		return a
	}
	c := w.winner(p)
	if c == nil {
		switch {
		case w.isOneServices(p.Destination) && !w.isOwn(p.Node, p.Destination):
			return Answer{Fate: Refused}
		case w.takes(p.Node, p.Destination):
			return Answer{Fate: Dropped}
		}
		return Answer{Fate: Unserved}
	}
	a := Answer{Service: c.service.Namespace + "/" + c.service.Name}
	if c.at == atLoadBalancer && !w.isAdmitted(p.Node, c.service, p.Source) {
		a.Fate = Dropped
		return a
	}
	found, elsewhere := w.candidates(c, p)
	switch {
	case len(found) == 0 && elsewhere:
		a.Fate = Dropped
		return a
	case len(found) == 0:
		a.Fate = Refused
		return a
	}
	a.Fate, a.Affinity = Served, affinityOf(c.service)
	for _, e := range found {
		a.Backends = append(a.Backends, Backend{e.at, w.isMasqueraded(c, p, e.at.Addr())})
	}
	slices.SortFunc(a.Backends, func(a, b Backend) int { return a.AddrPort.Compare(b.AddrPort) })
	return a
}

// place is what of a Service an address and port are.
type place int

// The places, the one that goes first in front.
const (
	atClusterIP place = iota
	atNodePort
	atLoadBalancer
	atExternalIP
)

// claim is a Service's port at the address, protocol and port of a packet.
type claim struct {
	service *corev1.Service
	port    corev1.ServicePort
	at      place
}

// winner returns the claim that decides, or nil if there is none.
func (w *World) winner(p Packet) *claim {
	var best *claim
	for _, s := range w.Services {
		for _, port := range s.Spec.Ports {
			for _, at := range []place{atClusterIP, atNodePort, atLoadBalancer, atExternalIP} {
				c := &claim{s, port, at}
				if w.isClaimed(c, p) && (best == nil || before(c, best)) {
					best = c
				}
			}
		}
	}
	return best
}

func before(a, b *claim) bool {
	return cmp.Or(cmp.Compare(a.at, b.at),
		a.service.CreationTimestamp.Time.Compare(b.service.CreationTimestamp.Time),
		strings.Compare(a.service.Namespace, b.service.Namespace), strings.Compare(a.service.Name, b.service.Name)) < 0
}

// isClaimed reports whether a packet goes to such a place of a Service, if nobody goes
// before it.
func (w *World) isClaimed(c *claim, p Packet) bool {
	s := c.service
	if w.ServicesLeft || !isServed(s) || w.isAPIServer(p) || !hasFamily(s, p.Destination) || protocolOf(c.port.Protocol) != p.Protocol {
		return false
	}
	if p.Destination.IsLoopback() {
		return false
	}
	switch c.at {
	case atClusterIP:
		return isPort(c, p.Port) && w.hasAddress(s, p.Destination)
	case atNodePort:
		return isNodePort(c, p.Port) && w.isOfNode(p.Node, p.Destination) && w.hasNodePort(c)
	case atLoadBalancer:
		return isPort(c, p.Port) && isBalanced(s, p.Destination) && w.mayHaveOutside(s, p.Destination)
	default:
		// "externalIPs is a list of IP addresses for which nodes in the cluster will also
		// accept traffic for this service."
		return isPort(c, p.Port) && slices.ContainsFunc(s.Spec.ExternalIPs, func(ip string) bool { return isAddress(ip, p.Destination) }) &&
			w.mayHaveOutside(s, p.Destination)
	}
}

// isBalanced reports whether a load balancer gave a Service an address. Setting its ipMode "to "VIP"
// indicates that traffic is delivered to the node with the destination set to the load-balancer's
// IP and port." It is the default.
func isBalanced(s *corev1.Service, a netip.Addr) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return isAddress(i.IP, a) && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP)
	})
}

func isPort(c *claim, port uint16) bool { return c.port.Port == int32(port) }

// isNodePort: "The port on each node on which this service is exposed when type is
// NodePort or LoadBalancer."
func isNodePort(c *claim, port uint16) bool {
	t := c.service.Spec.Type
	return (t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer) && c.port.NodePort != 0 && c.port.NodePort == int32(port)
}

// isServed reports whether a Service is any of the node's business. An ExternalName
// "aliases this service to the specified externalName", of one whose clusterIP is None
// "no virtual IP is allocated", and one with the label of another proxy is that one's.
func isServed(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && !isHeadless(s) && !isOthers(s.Labels)
}

func isHeadless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) || len(clusterIPs(s)) == 0
}

// isOthers reports whether the labels of a Service or of a slice, whatever their values,
// leave it to others.
func isOthers(labels map[string]string) bool {
	_, proxy := labels["service.kubernetes.io/service-proxy-name"]
	_, headless := labels[corev1.IsHeadlessService]
	return proxy || headless
}

// clusterIPs: "If this field is not specified, it will be initialized from the clusterIP
// field."
func clusterIPs(s *corev1.Service) (all []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// hasFamily reports whether a Service is of an address's family: ipFamilies are the "IP
// families … assigned to this service", and its cluster IPs "must correspond to the
// values of the ipFamilies field". At addresses of the other family, wherever a Service
// names them, it is not.
func hasFamily(s *corev1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(clusterIPs(s), func(own netip.Addr) bool { return own.Is4() == a.Is4() })
}

func protocolOf(p corev1.Protocol) corev1.Protocol { return cmp.Or(p, corev1.ProtocolTCP) }

func isAddress(text string, a netip.Addr) bool {
	parsed, err := netip.ParseAddr(text)
	return err == nil && parsed.Unmap() == a
}

// isOneServices reports whether all of an address is one Service's, so that it refuses what is none of
// its ports.
func (w *World) isOneServices(a netip.Addr) bool {
	if w.ServicesLeft {
		return false
	}
	for _, at := range w.apiServers() {
		if at.Destination == a {
			return false
		}
	}
	return slices.ContainsFunc(w.Services, func(s *corev1.Service) bool { return isServed(s) && w.hasAddress(s, a) || w.hasAlone(s, a) })
}

// isOwn reports whether an address is the own one of a node, wherever.
func (w *World) isOwn(name string, a netip.Addr) bool {
	return w.isOfNode(name, a) || slices.Contains(w.Gateways[name], a)
}

// isOfNode reports whether an address is one that the Node of a name has.
func (w *World) isOfNode(name string, a netip.Addr) bool {
	n := w.node(name)
	return n != nil && slices.ContainsFunc(n.Status.Addresses, func(own corev1.NodeAddress) bool { return isAddress(own.Address, a) })
}

func (w *World) node(name string) *corev1.Node {
	for _, n := range w.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// isAdmitted: "this will restrict traffic through the cloud-provider load-balancer … to
// the specified client IPs". The API lets ranges have spaces around them, and reads them
// as package net does. As with kube-proxy, nodes that may come by an address of their Node may also
// by that of a load balancer, which some have, and send from: who has it is not looked at.
func (w *World) isAdmitted(node string, s *corev1.Service, a netip.Addr) bool {
	n := w.node(node)
	return isInRange(s, a) || n != nil && isBalanced(s, a) && slices.ContainsFunc(n.Status.Addresses, func(own corev1.NodeAddress) bool {
		o, err := netip.ParseAddr(own.Address)
		return err == nil && o.Is4() == a.Is4() && isInRange(s, o)
	})
}

func isInRange(s *corev1.Service, a netip.Addr) bool {
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		if _, n, err := net.ParseCIDR(strings.TrimSpace(text)); err == nil && n.Contains(a.AsSlice()) {
			return true
		}
	}
	return len(s.Spec.LoadBalancerSourceRanges) == 0
}

// affinityOf: sessionAffinity "Must be ClientIP or None", and timeoutSeconds "Default
// value is 10800(for 3 hours)".
func affinityOf(s *corev1.Service) time.Duration {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int32(10800)
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// isLocal reports whether a claim binds a packet to the endpoints of its node. The
// internal policy is about "service traffic they receive on the ClusterIP"; the external
// one is about "one of the Service's "externally-facing" addresses", where "traffic …
// from within the cluster will always get "Cluster" semantics, but clients sending to a NodePort
// from within the cluster may need to take traffic policy into account when picking a node". Where
// a pod's own node gives it an endpoint, no other is asked: what comes from a pod of another node
// has picked this one.
func isLocal(c *claim, p Packet) bool {
	if c.at == atClusterIP {
		return c.service.Spec.InternalTrafficPolicy != nil && *c.service.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	}
	return isExternalLocal(c.service) && (p.Sender == Outsider || p.Sender == PodElsewhere)
}

func isExternalLocal(s *corev1.Service) bool {
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// isMasqueraded reports whether a packet gets the node's address as its source on its way
// to a backend.
func (w *World) isMasqueraded(c *claim, p Packet, backend netip.Addr) bool {
	switch {
	case p.Sender == NodeItself:
		return true // it has one already
	case w.isOwn(p.Node, backend):
		return false
	case p.Source == backend:
		return true
	case c.at == atClusterIP:
		return p.Sender == Outsider
	}
	// "each node will deliver traffic only to the node-local endpoints of the service,
	// without masquerading the client source IP", and what comes from within is answered
	// within.
	return !isExternalLocal(c.service)
}
