package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Names is what a ClusterConfig says of names, where its `server` is `nodes`.
type Names struct {
	// Service is "at whose addresses pods ask, as `namespace/name`".
	Service string
	// Addresses are "more addresses at which each node answers: one that nobody else has … or
	// `node` for the node's own".
	Addresses []string
	// Answering are, by the names of nodes, the addresses at which their name servers run: "a node
	// answers as long as its name server runs, at each address at which that could open its
	// sockets".
	Answering map[string][]netip.Addr
}

// namesAt returns who it is that a node's name server answers for at an address, protocol and
// port; "" where it does not. "Every node answers its own pods' questions for names: at the address
// at which they ask anyway", at port 53 over UDP and TCP. It "stands in for … the pods that the Service
// selects", so at the Service's addresses it answers as far as the Service is served there; where Services
// are another program's, at all of them. Nobody loses a port to it that it has.
func (w *World) namesAt(p Packet) string {
	if w.Names == nil || p.Port != 53 || p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolTCP ||
		!slices.Contains(w.Names.Answering[p.Node], p.Destination) || w.hostPortAt(p) != nil {
		return ""
	}
	served := w.winner(p)
	for _, s := range w.Services {
		isPort := func(port corev1.ServicePort) bool { return port.Port == 53 }
		if s.Namespace+"/"+s.Name == w.Names.Service && slices.Contains(clusterIPs(s), p.Destination) && slices.ContainsFunc(s.Spec.Ports, isPort) &&
			(w.ServicesLeft || served != nil && served.service == s) {
			return w.Names.Service
		}
	}
	if served == nil && w.isNamed(p) {
		return NamesOfConfig
	}
	return ""
}

// NamesOfConfig is who it is that answers where the ClusterConfig has names be answered.
const NamesOfConfig = "ClusterConfig default"

// named returns what becomes of a packet because of names, and false where they say nothing of
// it. Who comes from elsewhere goes where it went, "and what other machines send to port 53 is
// dropped" at the node's own addresses, where nobody else has it.
func (w *World) named(p Packet) (Answer, bool) {
	if p.Sender == PodHere || p.Sender == NodeItself {
		whose := w.namesAt(p)
		return Answer{Fate: AnsweredHere, Service: whose}, whose != ""
	}
	return Answer{Fate: Dropped, Service: NamesOfConfig}, w.isOwn(p.Node, p.Destination) && w.winner(p) == nil && w.mayAnswer(p)
}

// mayAnswer reports whether the name server of a node is at an address, protocol and port, or may
// come to be: "so it is from when `addresses` has" it.
func (w *World) mayAnswer(p Packet) bool {
	if w.Names == nil || p.Port != 53 || p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolTCP {
		return false
	}
	isPort := func(port corev1.ServicePort) bool { return port.Port == 53 }
	return w.isNamed(p) || slices.Contains(w.Names.Answering[p.Node], p.Destination) && slices.ContainsFunc(w.Services, func(s *corev1.Service) bool {
		return s.Namespace+"/"+s.Name == w.Names.Service && slices.Contains(clusterIPs(s), p.Destination) && slices.ContainsFunc(s.Spec.Ports, isPort)
	})
}

// isNamed reports whether the ClusterConfig has a node answer at an address.
func (w *World) isNamed(p Packet) bool {
	return slices.ContainsFunc(w.Names.Addresses, func(text string) bool {
		return isAddress(text, p.Destination) || text == "node" && w.isOfNode(p.Node, p.Destination)
	})
}

// takes reports whether a node answers for names at some port of an address that is not its
// own, and so has all of it.
func (w *World) takes(node string, a netip.Addr) bool {
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		if w.namesAt(Packet{Node: node, Sender: NodeItself, Destination: a, Protocol: protocol, Port: 53}) != "" {
			return !w.isOwn(node, a)
		}
	}
	return false
}
