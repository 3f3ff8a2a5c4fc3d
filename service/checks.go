package service

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/registry"
)

// Check is what a load balancer outside asks each node about a Service, at a port of its own:
// it sends what comes for the Service to nodes alone that have endpoints of it, where these
// hand nothing on to others (externalTrafficPolicy: Local).
type Check struct {
	// Port is the healthCheckNodePort, of TCP at all of the node's addresses.
	Port    uint16
	Service registry.Key
	// Local is how many of the node's own endpoints are ready.
	Local int
	// NodePorts says that the Service has ports of nodes.
	NodePorts bool
}

// NodeCheckPort is where all nodes say whether they serve Services at all, and LocalCheckPort
// where they tell their own processes more: as kube-proxy does. No Service has these.
const (
	NodeCheckPort  = 10256
	LocalCheckPort = 10249
)

// Checker counts what load balancers ask. It is not safe for concurrent use. The zero Checker
// knows nothing yet.
type Checker struct {
	// Grants says that the registry keeps Grants: who has none of a port is not asked about
	// there, whoever is older.
	Grants   bool
	services derived.List[*checked]
}

// checked is what of a Service is asked.
type checked struct {
	key  registry.Key
	uid  types.UID
	made int64 // when, in seconds
	port uint16
	// nodePorts says that it has ports of nodes.
	nodePorts bool
}

// IsChecked reports whether load balancers ask nodes about a Service.
func IsChecked(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// HealthPort is what Grants call the port at which load balancers ask about a Service.
const HealthPort = "health"

func readChecked(o registry.Object, before *checked) *checked {
	svc := o.(*corev1.Service)
	_, others := svc.Labels[ProxyName]
	port := svc.Spec.HealthCheckNodePort
	if others || !IsChecked(svc) || port < 1 || port > 65535 {
		return nil
	}
	has := func(p corev1.ServicePort) bool { return p.NodePort != 0 }
	made := &checked{registry.KeyOf(svc), svc.UID, svc.CreationTimestamp.Unix(), uint16(port), slices.ContainsFunc(svc.Spec.Ports, has)}
	if before != nil && *before == *made {
		return before
	}
	return made
}

func compareChecked(a, b *checked) int {
	return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.made, b.made), a.key.Compare(b.key))
}

// Checks returns what a node is asked, in order of the ports, and what is wrong with Services
// of which another one has the port. It costs in proportion to the number of objects where
// Services are asked about, and next to nothing where none is.
func (c *Checker) Checks(objects registry.Objects, node string) (checks []Check, problems []Problem) {
	c.services.Update(objects.All(api.Service), readChecked, compareChecked)
	all := c.services.All()
	if len(all) == 0 {
		return nil, nil
	}
	ready := make(map[registry.Key][2]map[string]bool, len(all)) // by family
	for _, s := range all {
		if s.port == NodeCheckPort || s.port == LocalCheckPort {
			problems = append(problems, Problem{Service: s.key, Kind: api.Service, Key: s.key, Message: fmt.Sprintf("spec.healthCheckNodePort: at %d nodes say whether they serve Services at all: choose another", s.port)})
			continue
		}
		if c.Grants {
			g, ok := objects.Get(GrantKind, registry.Key{Name: NodePortGrant(int32(s.port), corev1.ProtocolTCP)}).(*Grant)
			if !ok || g.Spec.Service() != s.key || g.Spec.UID != s.uid || g.Spec.Port != HealthPort {
				continue // the Service is told so where Grants are given
			}
		}
		if n := len(checks); n > 0 && checks[n-1].Port == s.port {
			problems = append(problems, Problem{Service: s.key, Kind: api.Service, Key: s.key, Message: fmt.Sprintf("spec.healthCheckNodePort: %d is Service %s's: choose another", s.port, checks[n-1].Service)})
			continue
		}
		checks = append(checks, Check{Port: s.port, Service: s.key, NodePorts: s.nodePorts})
		ready[s.key] = [2]map[string]bool{{}, {}}
	}
	for o := range objects.All(api.EndpointSlice) {
		s := o.(*discoveryv1.EndpointSlice)
		both, asked := ready[registry.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}]
		if !asked {
			continue
		}
		of := both[0]
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			of = both[1]
		}
		for _, e := range s.Endpoints {
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			if isReady && len(e.Addresses) > 0 && e.NodeName != nil && *e.NodeName == node {
				of[e.Addresses[0]] = true
			}
		}
	}
	for i, check := range checks {
		// A pod that has both families is one endpoint.
		both := ready[check.Service]
		checks[i].Local = max(len(both[0]), len(both[1]))
	}
	return slices.Clip(checks), problems
}
