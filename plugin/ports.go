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
	"github.com/weftnet/weft/service"
)

// Port is a port of the node that leads to one of an endpoint, as a pod asks for by its
// hostPort.
type Port struct {
	// Address is the node's own that the port is at. Unspecified is all of the node's of its
	// family, with 127.0.0.1 among those of IPv4, and invalid is those of both.
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
// counts.
//
// Of two pods that ask for one the later has it, where a scheduler would have kept it from the
// other's node: the other is about to go. A scheduler compares addresses as they are written, ""
// and 0.0.0.0 alone being all others, too. Where two are apart by that, the earlier keeps the port.
//
// Where the API server is, as servers say, which KeptServers returns, no pod has a port: it would draw
// agents' own connections to it, and no object could put that right, as no agent would hear of it.
func PutPorts(p *plan.Plan, n Node, servers []plan.ServiceKey) (*plan.Plan, []Problem) {
	return new(Ports).Put(p, n, servers)
}

// KeptServers are the addresses and ports at which objects say that the API server is, where the
// plug-in is for clusters that have one.
func KeptServers(plug Plugin, objects registry.Objects) []plan.ServiceKey {
	if slices.Contains(plug.Kinds(), service.GrantKind) || !slices.Contains(plug.Kinds(), api.EndpointSlice) {
		return nil
	}
	return service.APIServers(objects)
}

// Ports does what PutPorts does, again and again, and what did not change since costs next to
// nothing.
type Ports struct {
	name              string
	addresses, others []netip.Addr
	endpoints         []Endpoint
	servers           []plan.ServiceKey
	before, after     portTables
	problems          []Problem
}

// portTables are the tables that ports are put into.
type portTables struct {
	services plan.Table[plan.ServiceKey, plan.Service]
	backends plan.Table[plan.BackendKey, plan.Backend]
}

// Put is PutPorts.
func (w *Ports) Put(p *plan.Plan, n Node, servers []plan.ServiceKey) (*plan.Plan, []Problem) {
	endpoints := slices.DeleteFunc(slices.Clone(n.Endpoints), func(e Endpoint) bool {
		_, there := p.Endpoints.Get(plan.EndpointKey{Interface: e.Interface})
		return !there || len(e.Ports) == 0 || e.Network != plan.DefaultNetwork
	})
	if len(endpoints) == 0 {
		*w = Ports{}
		return p, nil
	}
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(b.Interface, a.Interface))
	})
	if !w.knows(p, n, endpoints) || !slices.Equal(w.servers, servers) {
		s := &ports{node: n, plan: *p, servers: serversOn(n, servers), holders: make(map[plan.ServiceKey]holder), services: make(map[string][]string), refused: make(map[int][]string)}
		s.put(endpoints)
		*w = Ports{name: n.Name, addresses: n.Addresses, others: n.Others, endpoints: endpoints, servers: servers, before: portTables{p.Services, p.Backends}, after: portTables{s.plan.Services, s.plan.Backends}, problems: s.all(endpoints)}
	}
	q := *p
	q.Services, q.Backends = w.after.services, w.after.backends
	return &q, w.problems
}

// knows reports whether what is put is what was put last.
func (w *Ports) knows(p *plan.Plan, n Node, endpoints []Endpoint) bool {
	return w.name == n.Name && slices.Equal(w.addresses, n.Addresses) && slices.Equal(w.others, n.Others) &&
		w.before == portTables{p.Services, p.Backends} &&
		slices.EqualFunc(w.endpoints, endpoints, func(a, b Endpoint) bool {
			return a.Interface == b.Interface && a.Name() == b.Name() && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Ports, b.Ports)
		})
}

// ports puts ports into a plan.
type ports struct {
	node Node
	plan plan.Plan
	// servers are where the API server is.
	servers map[plan.ServiceKey]bool
	// holders are who has a frontend, whose key has no side.
	holders map[plan.ServiceKey]holder
	// refused is what is said of endpoints, by their numbers.
	refused map[int][]string
	// services are the ports of each Service, by its origin, that pods have.
	services map[string][]string
}

// holder is a port of an endpoint, each by its number.
type holder struct{ endpoint, port int }

// put decides who has which port, and puts these.
func (s *ports) put(endpoints []Endpoint) {
	for i, e := range endpoints {
		for j, port := range e.Ports {
			at, wrong := s.at(e, port)
			if wrong != "" {
				s.refused[i] = append(s.refused[i], fmt.Sprintf("%s: %s", port, wrong))
			}
			for _, a := range at {
				key := plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: port.Protocol, Port: port.Node}
				has, taken := s.holders[key]
				switch {
				case s.servers[key]:
					s.yield(i, port, a)
				case !taken:
					s.holders[key] = holder{i, j}
				case has.endpoint == i: // it asks for it twice
				case port.keepsApart(endpoints[has.endpoint].Ports[has.port]):
					s.lose(i, port, a, endpoints, has.endpoint, "earlier")
				default:
					s.holders[key] = holder{i, j}
					s.lose(has.endpoint, endpoints[has.endpoint].Ports[has.port], a, endpoints, i, "later")
				}
			}
		}
	}
	for key, has := range s.holders {
		e := endpoints[has.endpoint]
		port := e.Ports[has.port]
		// Sets of Services begin with a namespace, which has no colon.
		set := fmt.Sprintf("hostport:%s/%d-%s", e.Interface, port.Container, port.Protocol)
		origin := "Pod " + e.Name()
		s.clear(key, e)
		if key.Address.IsLoopback() {
			key.From = plan.Inside
		}
		s.plan.Services = s.plan.Services.Set(key, plan.Service{Set: set, Origin: origin})
		for _, a := range e.Addresses {
			s.plan.Backends = s.plan.Backends.Set(plan.BackendKey{Network: plan.DefaultNetwork, Set: set, Address: a, Port: port.Container},
				plan.Backend{Node: s.node.Name, Weight: 1, Origin: origin})
		}
	}
}

// keepsApart reports whether no scheduler sees that two ports are one: their addresses are
// written otherwise, and neither is what it takes for all.
func (p Port) keepsApart(o Port) bool {
	all := func(a netip.Addr) bool { return !a.IsValid() || a == netip.IPv4Unspecified() }
	return p.Address != o.Address && !all(p.Address) && !all(o.Address)
}

// lose takes note of that an endpoint has not a port at an address that another has. Of two of
// one pod, the later stands for it.
func (s *ports) lose(i int, port Port, a netip.Addr, endpoints []Endpoint, other int, when string) {
	if a == loopback && port.Address != loopback || endpoints[i].Name() == endpoints[other].Name() {
		return // it is said of another address
	}
	s.refused[i] = append(s.refused[i], fmt.Sprintf("%s at %s: pod %s has it, which came %s: delete one of them", port, a, endpoints[other].Name(), when))
}

// serversOn are those of the API server's addresses and ports that a node may have. Where it
// has one, that port of its loopback address is the API server's, too, as far as anybody can tell.
func serversOn(n Node, servers []plan.ServiceKey) map[plan.ServiceKey]bool {
	all := make(map[plan.ServiceKey]bool, len(servers))
	for _, key := range servers {
		all[key] = true
		if slices.Contains(n.Addresses, key.Address) || slices.Contains(n.Others, key.Address) {
			key.Address = loopback
			all[key] = true
		}
	}
	return all
}

// yield takes note of that an endpoint has not a port at an address, as the API server is there.
func (s *ports) yield(i int, port Port, a netip.Addr) {
	if a == loopback && port.Address != loopback {
		return // it is said of another address
	}
	s.refused[i] = append(s.refused[i], fmt.Sprintf("%s at %s: the API server is there, which nodes must find: choose another port", port, a))
}

// at returns the addresses at which a port of an endpoint is to be, and why it is at none.
func (s *ports) at(e Endpoint, port Port) (at []netip.Addr, wrong string) {
	switch a := port.Address; {
	case !a.IsValid(), a.IsUnspecified():
		for _, own := range append(slices.Clone(s.node.Addresses), loopback) {
			if hasFamily(e.Addresses, own) && (!a.IsValid() || a.Is4() == own.Is4()) {
				at = append(at, own)
			}
		}
		return at, ""
	case a.IsLoopback() && a.Is6():
		return nil, fmt.Sprintf("no kernel hands what is sent to %s to a pod: leave hostIP out, or give one of the node's other addresses", a)
	case !a.IsLoopback() && !slices.Contains(s.node.Addresses, a) && !slices.Contains(s.node.Others, a):
		return nil, fmt.Sprintf("%s has no address %s: leave hostIP out, or give one of the node's", s.node.Name, a)
	case !hasFamily(e.Addresses, a):
		return nil, "the pod has no address of that family: give hostIP of the other"
	default:
		return []netip.Addr{a}, ""
	}
}

// clear takes away what Services have where an endpoint's port is.
func (s *ports) clear(key plan.ServiceKey, e Endpoint) {
	found := false
	for _, key.From = range []plan.Scope{plan.Anywhere, plan.Inside, plan.Outside} {
		service, ok := s.plan.Services.Get(key)
		if !ok {
			continue
		}
		if !found {
			s.services[service.Origin] = append(s.services[service.Origin],
				fmt.Sprintf("%s/%s is a hostPort of pod %s", netip.AddrPortFrom(key.Address, key.Port), strings.ToUpper(key.Protocol.String()), e.Name()))
		}
		found = true
		s.plan.Services = s.plan.Services.Delete(key)
	}
}

// all returns what is wrong: with pods, and then with Services.
func (s *ports) all(endpoints []Endpoint) (all []Problem) {
	for i, refused := range s.refused {
		e, message := endpoints[i], "hostPort "+printable.Few(refused, 0)
		problem := Problem{Message: "pod " + e.Name() + ": " + message}
		if e.Pod != "" {
			problem = Problem{Kind: api.Pod, Key: registry.Key{Namespace: e.Namespace, Name: e.Pod}, Message: message}
		}
		all = append(all, problem)
	}
	for origin, taken := range s.services {
		slices.Sort(taken)
		message := fmt.Sprintf("on node %s %s, which is served in its place: give one of them another port", s.node.Name, printable.Few(taken, 0))
		problem := Problem{Message: origin + ": " + message}
		if kind, key, ok := ParseOrigin([]*registry.Kind{api.Service}, origin); ok {
			problem = Problem{Kind: kind, Key: key, Message: message}
		}
		all = append(all, problem)
	}
	slices.SortFunc(all, func(a, b Problem) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// hasFamily reports whether one of some addresses is of a's family.
func hasFamily(addresses []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(addresses, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

// HostPorts are the ports of its node that a kubelet has a runtime give a pod: those of its
// containers, of which none begins before the others; never nil. What cni.Server would not take
// is left out.
func HostPorts(p *corev1.Pod) []Port {
	all := []Port{}
	for _, c := range p.Spec.Containers {
		for _, of := range c.Ports {
			if len(all) == MaxPorts {
				return all
			}
			protocol, err := plan.ParseProtocol(strings.ToLower(cmp.Or(string(of.Protocol), "tcp")))
			if err != nil || !protocol.HasPorts() || of.HostPort < 1 || of.HostPort > maxPort || of.ContainerPort < 1 || of.ContainerPort > maxPort {
				continue
			}
			port := Port{Protocol: protocol, Node: uint16(of.HostPort), Container: uint16(of.ContainerPort)}
			if port.Address, err = ParseHostIP(of.HostIP); err != nil {
				continue
			}
			all = append(all, port)
		}
	}
	return all
}

// ParseHostIP reads a hostIP; "" is an invalid address. One that is written in another way than
// addresses are is an error: a scheduler compares what is written, and would not see that two
// are the same.
func ParseHostIP(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q is no IP address", printable.Line(text))
	case a.Unmap().String() != text:
		return netip.Addr{}, fmt.Errorf("%q is not how that address is written: write %s", text, a.Unmap())
	}
	return a, nil
}

const (
	maxPort = 1<<16 - 1
	// MaxPorts is how many ports of the node may lead to one pod.
	MaxPorts = 4096
)
