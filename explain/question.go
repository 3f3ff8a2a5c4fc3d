package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/plan"
)

// DefaultPort is the destination port of who names none, nor a Service that has
// one.
const DefaultPort = 8080

// Question is what to ask.
type Question struct {
	// Namespace is that of pods and Services which are named without one.
	Namespace string
	// Source and Destination are pods ("web", "shop/web", "pod/web"), nodes
	// ("node/node1", or "node1" where no pod is called so), addresses or host
	// names. Destination may be a Service ("svc/web", "svc/shop/web") and may end
	// with a port or its name ("web:8080", "svc/web:http", "[fd00::1]:80").
	Source, Destination string
	// Protocol is what to ask about; Assumed says that the protocol of a Service
	// takes its place.
	Protocol plan.Protocol
	Assumed  bool
	// Port is the destination port, for protocols that have ports; 0 means that
	// of Destination.
	Port uint16
	// Family is 4 or 6 to ask about that family alone, 0 for either.
	Family int
}

// name is what a question calls one end.
type name struct {
	// kind is "pod", "node" or "service"; empty where that was not said.
	kind string
	// namespace is empty where it was not said.
	namespace, name string
	address         netip.Addr
	// port is a number or a name.
	port string
}

// kinds are the words for kinds, as kubectl knows them.
var kinds = map[string]string{
	"pod": "pod", "pods": "pod", "po": "pod", "node": "node", "nodes": "node", "no": "node",
	"svc": "service", "service": "service", "services": "service",
}

// parseName reads what a question calls one end.
func parseName(text string) (name, error) {
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")); err == nil {
		return name{address: a.Unmap().WithZone("")}, nil
	}
	rest, port, _ := cutLast(text, ":")
	n := name{port: port}
	if strings.HasSuffix(text, ":") {
		return n, fmt.Errorf("%q ends with a colon: put a port after it", text)
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(rest, "["), "]")); err == nil {
		if a.Is6() && !strings.HasPrefix(rest, "[") {
			return n, fmt.Errorf("%q: put an IPv6 address in brackets to give it a port, as in [fd00::1]:80", text)
		}
		n.address = a.Unmap().WithZone("")
		return n, nil
	}
	words := strings.Split(rest, "/")
	for _, w := range words {
		if w == "" {
			return n, fmt.Errorf("%q names nothing: write NAME, KIND/NAME or NAMESPACE/NAME", text)
		}
	}
	switch {
	case len(words) == 1:
		n.name = words[0]
	case len(words) == 2 && kinds[words[0]] != "":
		n.kind, n.name = kinds[words[0]], words[1]
	case len(words) == 2:
		n.kind, n.namespace, n.name = "pod", words[0], words[1]
	case len(words) == 3 && kinds[words[0]] != "":
		n.kind, n.namespace, n.name = kinds[words[0]], words[1], words[2]
	case len(words) == 3 && kinds[words[1]] != "":
		n.kind, n.namespace, n.name = kinds[words[1]], words[0], words[2]
	default:
		return n, fmt.Errorf("%q is not of the form NAME, KIND/NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME, where KIND is pod, node or svc", text)
	}
	if n.kind == "node" && n.namespace != "" {
		return n, fmt.Errorf("%q: nodes are in no namespace", text)
	}
	return n, nil
}

// cutLast cuts a text around the last of some separators.
func cutLast(text, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(text, separator); i >= 0 {
		return text[:i], text[i+len(separator):], true
	}
	return text, "", false
}

// flow finds the parties of a question, and what to ask the plans.
func (c Cluster) flow(q Question, a *Answer) (flow plan.Flow, err error) {
	if a.Source, err = c.source(q); err != nil {
		return flow, fmt.Errorf("source: %w", err)
	}
	to, err := parseName(q.Destination)
	if err == nil {
		a.Destination, err = c.find(q.Namespace, to)
	}
	if err != nil {
		return flow, fmt.Errorf("destination: %w", err)
	}
	if svc := a.Destination.service; svc != nil && a.Source.outside() {
		// Who is outside is told of the addresses outside.
		a.Destination.addresses = append(outerAddresses(svc), a.Destination.addresses...)
	}
	if err := meet(&a.Source, &a.Destination, q.Family); err != nil {
		return flow, err
	}
	if err := c.choosePort(q, to.port, a); err != nil {
		return flow, fmt.Errorf("destination: %w", err)
	}
	flow = plan.Flow{Network: plan.DefaultNetwork, Source: a.Source.Address, Destination: a.Destination.Address, Protocol: a.Protocol, Port: a.Port, Node: a.Source.Node}
	return flow, nil
}

// source finds who sends.
func (c Cluster) source(q Question) (Party, error) {
	from, err := parseName(q.Source)
	switch {
	case err != nil:
		return Party{}, err
	case from.port != "":
		return Party{}, fmt.Errorf("%q: a source has no port here: leave out :%s", q.Source, from.port)
	case from.kind == "service":
		return Party{}, fmt.Errorf("%q: a Service sends nothing: name one of its pods", q.Source)
	case from.address.IsValid() && plan.StaysHome(from.address):
		return Party{}, fmt.Errorf("%s is an address of every machine and pod: name the one that sends", from.address)
	case from.address.IsValid() && plan.IsGroup(from.address):
		return Party{}, fmt.Errorf("%s stands for several machines: nothing comes from it", from.address)
	}
	return c.find(q.Namespace, from)
}

// choosePort decides about protocol and port.
func (c Cluster) choosePort(q Question, named string, a *Answer) error {
	a.Protocol, a.Port = q.Protocol, q.Port
	if a.Protocol == plan.ICMP && a.Source.Address.Is6() {
		a.Protocol = plan.ICMPv6
	}
	if svc := a.Destination.service; svc != nil {
		return chooseServicePort(q, named, svc, a)
	}
	if !a.Protocol.HasPorts() {
		a.Port = 0
		if named != "" {
			return fmt.Errorf("%q: %s has no ports: leave out :%s", q.Destination, a.Protocol, named)
		}
		return nil
	}
	if named != "" {
		n, err := strconv.ParseUint(named, 10, 16)
		if err != nil && a.Destination.pod != nil {
			var port corev1.ContainerPort
			if port, err = containerPort(a.Destination.pod, named, a.Protocol); err == nil {
				n = uint64(port.ContainerPort)
			}
		}
		if err != nil || n == 0 {
			return fmt.Errorf("port %q of %s is neither a number from 1 to 65535 nor the name of one of its %s ports", named, a.Destination.Name, a.Protocol)
		}
		if q.Port != 0 && q.Port != uint16(n) {
			return fmt.Errorf("%q has port %d, but --port says %d: give one of them", q.Destination, n, q.Port)
		}
		a.Port = uint16(n)
	}
	a.Port = cmp.Or(a.Port, DefaultPort)
	return nil
}

// containerPort finds a port of a pod by its name.
func containerPort(pod *corev1.Pod, name string, p plan.Protocol) (corev1.ContainerPort, error) {
	for _, c := range append(pod.Spec.Containers[:len(pod.Spec.Containers):len(pod.Spec.Containers)], pod.Spec.InitContainers...) {
		for _, port := range c.Ports {
			if port.Name == name && protocolOf(port.Protocol) == p {
				return port, nil
			}
		}
	}
	return corev1.ContainerPort{}, fmt.Errorf("pod %s/%s has no %s port %q", pod.Namespace, pod.Name, p, name)
}

// protocolOf is a protocol as Kubernetes writes it.
func protocolOf(p corev1.Protocol) plan.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return plan.UDP
	case corev1.ProtocolSCTP:
		return plan.SCTP
	default:
		return plan.TCP
	}
}
