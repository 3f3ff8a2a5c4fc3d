package service

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

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
}

// Checker counts what load balancers ask. It is not safe for concurrent use. The zero Checker
// knows nothing yet.
type Checker struct {
	services derived.List[*checked]
}

// checked is what of a Service is asked.
type checked struct {
	key  registry.Key
	made int64 // when, in seconds
	port uint16
}

func readChecked(o registry.Object, before *checked) *checked {
	svc := o.(*corev1.Service)
	_, others := svc.Labels[ProxyName]
	port := svc.Spec.HealthCheckNodePort
	if others || svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || port < 1 || port > 65535 {
		return nil
	}
	made := &checked{registry.KeyOf(svc), svc.CreationTimestamp.Unix(), uint16(port)}
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
	ready := make(map[registry.Key]map[string]bool, len(all))
	for _, s := range all {
		if n := len(checks); n > 0 && checks[n-1].Port == s.port {
			problems = append(problems, Problem{s.key, api.Service, s.key, fmt.Sprintf("spec.healthCheckNodePort: %d is Service %s's: choose another", s.port, checks[n-1].Service)})
			continue
		}
		checks = append(checks, Check{Port: s.port, Service: s.key})
		ready[s.key] = make(map[string]bool)
	}
	for o := range objects.All(api.EndpointSlice) {
		s := o.(*discoveryv1.EndpointSlice)
		of := ready[registry.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}]
		if of == nil {
			continue
		}
		for _, e := range s.Endpoints {
			isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
			if isReady && len(e.Addresses) > 0 && e.NodeName != nil && *e.NodeName == node {
				of[e.Addresses[0]] = true
			}
		}
	}
	for i, check := range checks {
		checks[i].Local = len(ready[check.Service])
	}
	return slices.Clip(checks), problems
}
