package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// hostPort is a port of a node that a pod has.
type hostPort struct {
	pod *corev1.Pod
	corev1.ContainerPort
}

// hostPortAt returns who has a hostPort at the address, protocol and port of a packet, nil where
// nobody does. "Of two pods that ask for the same it is the later one's, as the earlier is about to go;
// but where the scheduler does not see that they do, as of :: and one of the node's addresses, the
// earlier keeps it."
func (w *World) hostPortAt(p Packet) (has *hostPort) {
	if w.keepsPort(p) {
		return nil
	}
	pods := slices.SortedFunc(slices.Values(w.Pods), func(a, b *corev1.Pod) int { return a.CreationTimestamp.Time.Compare(b.CreationTimestamp.Time) })
	for _, pod := range pods {
		if pod.Spec.NodeName != p.Node {
			continue
		}
		for _, c := range pod.Spec.Containers {
			for _, port := range c.Ports {
				asks := &hostPort{pod, port}
				switch {
				case port.HostPort == 0, port.HostPort != int32(p.Port), protocolOf(port.Protocol) != p.Protocol, !w.isHostPort(asks, p.Node, p.Destination):
				case has == nil, has.pod != pod && !asks.isUnseenBeside(has):
					has = asks
				}
			}
		}
	}
	return has
}

// keepsPort reports whether a packet is to where the API server is: there "no pod has a hostPort, nor
// has it that port of the loopback address on such a node".
func (w *World) keepsPort(p Packet) bool {
	return slices.ContainsFunc(w.apiServers(), func(at Packet) bool {
		onNode := w.isOfNode(p.Node, at.Destination) || slices.Contains(w.Others[p.Node], at.Destination)
		return at.Protocol == p.Protocol && at.Port == p.Port &&
			(at.Destination == p.Destination || onNode && p.Destination == netip.MustParseAddr("127.0.0.1"))
	})
}

// isHostPort reports whether a hostPort is at an address. It is at "each of the node's addresses (those
// of its Node object) of either family … and at 127.0.0.1; at ::1 it is not". A hostIP "is one of
// those, or any other address of the node's, or 0.0.0.0 or :: for those of one family"; all of
// 127.0.0.0/8 are the node's. The pod has an address of the family.
func (w *World) isHostPort(asks *hostPort, node string, a netip.Addr) bool {
	if _, ok := asks.backend(a); !ok || a.IsLoopback() && a.Is6() {
		return false
	}
	ofAll := w.isOfNode(node, a) || a == netip.MustParseAddr("127.0.0.1")
	switch ip := asks.HostIP; ip {
	case "":
		return ofAll
	case "0.0.0.0":
		return ofAll && a.Is4()
	case "::":
		return ofAll && a.Is6()
	default:
		return isAddress(ip, a) && (ofAll || a.IsLoopback() || slices.Contains(w.Others[node], a))
	}
}

// backend returns where a pod is asked that has a hostPort.
func (h *hostPort) backend(a netip.Addr) (netip.AddrPort, bool) {
	for _, ip := range h.pod.Status.PodIPs {
		if own, err := netip.ParseAddr(ip.IP); err == nil && own.Is4() == a.Is4() {
			return netip.AddrPortFrom(own, uint16(h.ContainerPort.ContainerPort)), true
		}
	}
	return netip.AddrPort{}, false
}

// isUnseenBeside reports whether a scheduler does not see that two hostPorts are the same. To it
// "" and 0.0.0.0 are all addresses, and all others are what is written.
func (h *hostPort) isUnseenBeside(o *hostPort) bool {
	all := func(ip string) bool { return ip == "" || ip == "0.0.0.0" }
	return h.HostIP != o.HostIP && !all(h.HostIP) && !all(o.HostIP)
}

// answer is what becomes of a packet to a hostPort: "Clients keep their addresses, but for the pod itself
// and processes of its node."
func (h *hostPort) answer(p Packet) Answer {
	at, _ := h.backend(p.Destination)
	return Answer{Fate: Served, Service: "Pod " + h.pod.Namespace + "/" + h.pod.Name,
		Backends: []Backend{{at, p.Sender == NodeItself || p.Source == at.Addr()}}}
}
