package plugin

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Port is a port of the node that leads to one of an endpoint, as a pod asks for by its
// hostPort.
type Port struct {
	// Address is the node's own that the port is at. Invalid is all of the node's, and the
	// loopback address 127.0.0.1.
	Address  netip.Addr
	Protocol plan.Protocol
	// Node is the node's port, Container the endpoint's.
	Node, Container uint16
}

// String writes the node's side, as "80/TCP" or "172.30.0.2:80/TCP".
func (p Port) String() string {
	text := fmt.Sprintf("%d/%s", p.Node, strings.ToUpper(p.Protocol.String()))
	if p.Address.IsValid() {
		text = fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Address, p.Node), strings.ToUpper(p.Protocol.String()))
	}
	return text
}

// loopback is the one of the node's loopback addresses at which all ports are. A kernel hands
// what is sent to such an address to an endpoint of the node only, and over IPv6 to none.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// PutPorts returns a plan with the ports of the node that lead to its endpoints, and what is
// wrong with some of them. It comes behind all plug-ins and layers: who may ask for a port of
// a node may do more than who may have a Service, so that where both have one the pod's
// counts. Of two pods that ask for one it is that of the pod which came later.
func PutPorts(p *plan.Plan, n Node) (*plan.Plan, []Problem) {
	endpoints := slices.DeleteFunc(slices.Clone(n.Endpoints), func(e Endpoint) bool {
		_, there := p.Endpoints.Get(plan.EndpointKey{Interface: e.Interface})
		return !there || len(e.Ports) == 0 || e.Network != plan.DefaultNetwork
	})
	if len(endpoints) == 0 {
		return p, nil
	}
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(b.Created.Compare(a.Created), strings.Compare(a.Interface, b.Interface))
	})
	ports := &ports{node: n, plan: *p, holders: make(map[plan.ServiceKey]string), services: make(map[string][]string)}
	for _, e := range endpoints {
		ports.endpoint(e)
	}
	return &ports.plan, ports.all()
}

// ports puts ports into a plan.
type ports struct {
	node Node
	plan plan.Plan
	// holders are the pods that have a frontend, whose key has no side.
	holders map[plan.ServiceKey]string
	// services are the ports of each Service, by its origin, that pods have.
	services map[string][]string
	problems []Problem
}

func (s *ports) endpoint(e Endpoint) {
	var refused []string
	for _, port := range e.Ports {
		refused = append(refused, s.port(e, port)...)
	}
	if len(refused) == 0 {
		return
	}
	problem := Problem{Message: "hostPort " + printable.Few(refused, 0)}
	if e.Pod != "" {
		problem.Kind, problem.Key = api.Pod, registry.Key{Namespace: e.Namespace, Name: e.Pod}
	} else {
		problem.Message = "pod " + e.Name() + ": " + problem.Message
	}
	s.problems = append(s.problems, problem)
}

// port puts one port of an endpoint, and says where it cannot.
func (s *ports) port(e Endpoint, port Port) (refused []string) {
	at := []netip.Addr{port.Address}
	switch {
	case !port.Address.IsValid():
		at = append(slices.Clone(s.node.Addresses), loopback)
	case port.Address.IsLoopback() && port.Address.Is6():
		return []string{fmt.Sprintf("%s: no kernel hands what is sent to %s to a pod: leave hostIP out, or give one of the node's other addresses", port, port.Address)}
	case !port.Address.IsLoopback() && !slices.Contains(s.node.Addresses, port.Address) && !slices.Contains(s.node.Others, port.Address):
		return []string{fmt.Sprintf("%s: %s has no address %s: leave hostIP out, or give one of the node's", port, s.node.Name, port.Address)}
	case !hasFamily(e.Addresses, port.Address):
		return []string{fmt.Sprintf("%s: the pod has no address of that family: give hostIP of the other", port)}
	}
	set := fmt.Sprintf("%s/hostport:%d-%s", e.Name(), port.Container, port.Protocol)
	origin, reached := "Pod "+e.Name(), false
	for _, a := range at {
		if !hasFamily(e.Addresses, a) {
			continue
		}
		key := plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: port.Protocol, Port: port.Node}
		if other := s.holders[key]; other == e.Name() {
			continue // it asks for it twice
		} else if other != "" {
			if a != loopback || port.Address.IsValid() { // else it is said of another address
				refused = append(refused, fmt.Sprintf("%s at %s: pod %s has it, which came later: delete one of them", port, a, other))
			}
			continue
		}
		s.holders[key] = e.Name()
		s.clear(key)
		if a.IsLoopback() {
			key.From = plan.Inside
		}
		s.plan.Services, reached = s.plan.Services.Set(key, plan.Service{Set: set, Origin: origin}), true
	}
	if !reached {
		return refused
	}
	for _, a := range e.Addresses {
		s.plan.Backends = s.plan.Backends.Set(plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: a, Port: port.Container},
			plan.Backend{Node: s.node.Name, Weight: 1, Origin: origin})
	}
	return refused
}

// clear takes away what Services have where a pod's port is.
func (s *ports) clear(key plan.ServiceKey) {
	where := fmt.Sprintf("%s/%s", netip.AddrPortFrom(key.Address, key.Port), strings.ToUpper(key.Protocol.String()))
	taken := fmt.Sprintf("%s is a hostPort of pod %s", where, s.holders[key])
	for _, key.From = range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} {
		if service, ok := s.plan.Services.Get(key); ok {
			if all := s.services[service.Origin]; len(all) == 0 || all[len(all)-1] != taken {
				s.services[service.Origin] = append(all, taken)
			}
			s.plan.Services = s.plan.Services.Delete(key)
		}
	}
}

// all returns what is wrong: with pods, and then with Services.
func (s *ports) all() []Problem {
	for origin, taken := range s.services {
		message := fmt.Sprintf("on node %s %s, which is served in its place: give one of them another port", s.node.Name, printable.Few(taken, 0))
		problem := Problem{Message: origin + ": " + message}
		if kind, key, ok := ParseOrigin([]*registry.Kind{api.Service}, origin); ok {
			problem = Problem{Kind: kind, Key: key, Message: message}
		}
		s.problems = append(s.problems, problem)
	}
	slices.SortFunc(s.problems, func(a, b Problem) int { return strings.Compare(a.String(), b.String()) })
	return s.problems
}

// hasFamily reports whether one of some addresses is of a's family.
func hasFamily(addresses []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

// HostPorts are the ports of its node that a pod asks for; never nil. What none can be is
// left out: an API server lets nobody write it.
func HostPorts(p *corev1.Pod) []Port {
	all := []Port{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, of := range c.Ports {
			protocol, err := plan.ParseProtocol(strings.ToLower(cmp.Or(string(of.Protocol), "tcp")))
			if err != nil || !protocol.HasPorts() || of.HostPort < 1 || of.HostPort > maxPort || of.ContainerPort < 1 || of.ContainerPort > maxPort {
				continue
			}
			port := Port{Protocol: protocol, Node: uint16(of.HostPort), Container: uint16(of.ContainerPort)}
			if a, err := netip.ParseAddr(of.HostIP); err == nil && !a.IsUnspecified() && a.Zone() == "" {
				port.Address = a.Unmap()
			}
			all = append(all, port)
		}
	}
	return all
}

const maxPort = 1<<16 - 1
