package plugin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// NameServer is where a node and its pods find the node's own name server.
type NameServer struct {
	// Service are the addresses of the Service that pods ask, More those that the
	// ClusterConfig adds, the node's own among them.
	Service, More []netip.Addr
	// Origin names the Service, MoreOrigin the ClusterConfig.
	Origin, MoreOrigin string
}

// Addresses are all of them, each once.
func (s NameServer) Addresses() []netip.Addr {
	all := slices.Concat(s.Service, s.More)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Within returns s without all addresses but some.
func (s NameServer) Within(some []netip.Addr) NameServer {
	within := func(all []netip.Addr) (in []netip.Addr) {
		for _, a := range all {
			if slices.Contains(some, a) {
				in = append(in, a)
			}
		}
		return in
	}
	s.Service, s.More = within(s.Service), within(s.More)
	return s
}

// NameServerOf returns where the name server of a node is to answer: nowhere, if the cluster
// leaves that to pods. Of the Service those addresses count at which it has the port of name
// servers.
func NameServerOf(config *api.ClusterConfig, objects registry.Objects, node []netip.Addr) (s NameServer) {
	dns := config.Spec.DNS
	key := dns.ServiceKey()
	s.Origin, s.MoreOrigin = "Service "+key.String(), "ClusterConfig "+config.Name
	if dns.Server != api.NamesByNodes {
		return s
	}
	s.Service, _ = NameService(config, objects) // where there is none, nobody asks there
	s.More = dns.AnswersAt(node)
	return s
}

// StartNameServer is how a node's problem ends that is mended by a name server's running there.
const StartNameServer = "start weft-dns there"

// refusedNames is said in what a node says while pods' questions still come to a name server of its own
// that has gone.
const refusedNames = "none runs on the node, and what pods ask is refused at "

// RefusedNames is what is wrong with a node's name server that has gone while questions still come to it.
func RefusedNames(at []netip.Addr) string {
	var all []string
	for _, a := range at {
		all = append(all, a.String())
	}
	return refusedNames + strings.Join(all, ", ") + ": " + StartNameServer
}

// RefusesNames reports whether a node says in a problem that what its name server is asked is refused.
func RefusesNames(node string, p api.Problem) bool {
	return p.Kind == api.Node.Kind && p.Name == node && strings.Contains(p.Message, refusedNames)
}

// NameService returns the addresses of the Service at which pods ask for names, whoever is to answer
// there, or an error that says why nobody can be asked there.
func NameService(config *api.ClusterConfig, objects registry.Objects) ([]netip.Addr, error) {
	key := config.Spec.DNS.ServiceKey()
	svc, name := registry.GetAs[*corev1.Service](objects, api.Service, key), "Service "+key.String()
	switch {
	case svc == nil:
		return nil, fmt.Errorf("there is no %s", name)
	case !slices.ContainsFunc(svc.Spec.Ports, isDNS):
		return nil, fmt.Errorf("%s has no port %d", name, api.DNSPort)
	}
	all := slices.DeleteFunc(api.ClusterAddresses(svc), func(a netip.Addr) bool { return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() })
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no address in the cluster", name)
	}
	return all, nil
}

func isDNS(p corev1.ServicePort) bool { return p.Port == api.DNSPort }

// PutNames returns a plan in which the node itself answers what it and its pods ask its name
// server. It comes behind all plug-ins, layers and PutPorts. Nobody loses a port of the node
// to it: where a pod has the port of name servers at an address, that pod answers. What comes
// from other machines goes where it went: they have name servers of their own. Where that would
// be the node's own name server, at an address of the node itself, it is dropped: that server
// answers whoever gets to it, and asks others for anybody.
//
// The addresses of the Service count as far as the plan serves the Service there, so that
// nobody gets another's address by a Service of that name; and all of them where Services are
// left to another program.
func PutNames(p *plan.Plan, s NameServer) *plan.Plan {
	services := p.Services
	put := func(a netip.Addr, origin string, free bool) {
		for _, protocol := range []plan.Protocol{plan.UDP, plan.TCP} {
			key := plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: protocol, Port: api.DNSPort}
			all, everybodys := services.Get(key)
			key.From = plan.Inside
			inside, ours := services.Get(key)
			switch {
			case everybodys && all.Origin != origin, ours && inside.Origin != origin, !everybodys && !ours && !free:
				continue
			case everybodys:
				key.From = plan.Anywhere
				services = services.Delete(key)
				key.From = plan.Outside
				services = services.Set(key, all)
				key.From = plan.Inside
			}
			services = services.Set(key, plan.Service{Here: true, Origin: origin})
		}
	}
	for _, a := range s.Service {
		put(a, s.Origin, p.Local.ServicesLeft)
	}
	for _, a := range s.More {
		put(a, s.MoreOrigin, true)
	}
	return KeepOthersOut(withServices(p, services), slices.Concat(s.Service, s.More), s.MoreOrigin)
}

// KeepOthersOut returns a plan in which what other machines send to the port of name servers at
// addresses of the node itself is dropped, unless it goes to somebody else, as a pod that has that
// port. It is to be in force before the node's name server is there, and until it is no more.
func KeepOthersOut(p *plan.Plan, at []netip.Addr, origin string) *plan.Plan {
	services := p.Services
	for _, a := range at {
		for _, protocol := range []plan.Protocol{plan.UDP, plan.TCP} {
			if !keepsOthersOut(p, a, protocol) {
				services = services.Set(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: protocol, Port: api.DNSPort, From: plan.Outside},
					plan.Service{Otherwise: plan.Silence, Origin: origin})
			}
		}
	}
	return withServices(p, services)
}

// KeepsOthersOut reports whether nothing that other machines send comes to a name server of the
// node that is at an address, under a plan.
func KeepsOthersOut(p *plan.Plan, a netip.Addr) bool {
	return keepsOthersOut(p, a, plan.UDP) && keepsOthersOut(p, a, plan.TCP)
}

func keepsOthersOut(p *plan.Plan, a netip.Addr, protocol plan.Protocol) bool {
	for _, from := range []plan.Scope{plan.Anywhere, plan.Outside} {
		if _, ok := p.Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: protocol, Port: api.DNSPort, From: from}); ok {
			return true
		}
	}
	return !p.Owns(plan.DefaultNetwork, a)
}

// NameServerIn reports whether a plan has the node itself answer at an address.
func NameServerIn(p *plan.Plan, a netip.Addr) bool {
	for _, protocol := range []plan.Protocol{plan.UDP, plan.TCP} {
		for _, from := range []plan.Scope{plan.Anywhere, plan.Inside} {
			svc, ok := p.Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: a, Protocol: protocol, Port: api.DNSPort, From: from})
			if ok && svc.Here {
				return true
			}
		}
	}
	return false
}

func withServices(p *plan.Plan, services plan.Table[plan.ServiceKey, plan.Service]) *plan.Plan {
	if services == p.Services {
		return p
	}
	q := *p
	q.Services = services
	return &q
}
