package oracle

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one address and port that stands behind a Service's port.
type endpoint struct {
	at                       netip.AddrPort
	here                     bool
	ready, serving, stopping bool
	zones, nodes             []string
}

// candidates returns the endpoints that may be chosen for a packet, and whether there
// would be one on some other node where there is none. Where a policy is Local, the node
// "will deliver traffic only to the node-local endpoints", whatever hints say.
func (w *World) candidates(c *claim, p Packet) (found []endpoint, elsewhere bool) {
	all := w.entriesOf(c, p)
	if !isLocal(c, p) {
		return usable(w.near(all, p.Node)), false
	}
	var here []endpoint
	for _, e := range all {
		if e.here {
			here = append(here, e)
		}
	}
	return usable(here), len(usable(all)) > 0
}

// usable returns those that are ready; or, where none is, those that are about to end
// and still serve.
func usable(all []endpoint) []endpoint {
	ready := only(all, func(e endpoint) bool { return e.ready })
	if len(ready) > 0 {
		return ready
	}
	return only(all, func(e endpoint) bool { return e.serving && e.stopping })
}

// near returns the endpoints that hints leave for a node: "which node(s)", or else
// "which zone(s) this endpoint should be consumed by". Hints are followed where all that
// are ready have some, and one of these is for the node.
func (w *World) near(all []endpoint, node string) []endpoint {
	ready := only(all, func(e endpoint) bool { return e.ready })
	if found := hinted(ready, node, func(e endpoint) []string { return e.nodes }); len(found) > 0 {
		return found
	}
	if n := w.node(node); n != nil && n.Labels[corev1.LabelTopologyZone] != "" {
		if found := hinted(ready, n.Labels[corev1.LabelTopologyZone], func(e endpoint) []string { return e.zones }); len(found) > 0 {
			return found
		}
	}
	return all
}

// hinted returns those that are for a node or a zone, none if one has no hint at all.
func hinted(all []endpoint, place string, hints func(endpoint) []string) []endpoint {
	if slices.ContainsFunc(all, func(e endpoint) bool { return len(hints(e)) == 0 }) {
		return nil
	}
	return only(all, func(e endpoint) bool { return slices.Contains(hints(e), place) })
}

func only(all []endpoint, is func(endpoint) bool) (some []endpoint) {
	for _, e := range all {
		if is(e) {
			some = append(some, e)
		}
	}
	return some
}

// entriesOf returns the endpoints behind a port, each once. "For a given service there
// may be multiple EndpointSlice objects which must be joined to produce the full set of
// endpoints", and one that moves is in two of them for a while. What has it on this node
// goes first; then, as the texts do not say who is right, what has it ready, what has it
// serving, and the first slice by name.
func (w *World) entriesOf(c *claim, p Packet) (all []endpoint) {
	for _, s := range slices.SortedFunc(slices.Values(w.Slices), func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }) {
		if !isBehind(s, c.service) || (s.AddressType == discoveryv1.AddressTypeIPv4) != p.Destination.Is4() {
			continue
		}
		for _, port := range s.Ports {
			if protocolOf(valueOr(port.Protocol, "")) != p.Protocol || valueOr(port.Port, 0) == 0 || !isNamed(port, c.port) && !standsIn(port, s, c) {
				continue
			}
			for _, e := range s.Endpoints {
				if next, ok := read(e, *port.Port, p.Node); ok {
					all = append(all, next)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b endpoint) int {
		return cmp.Or(a.at.Compare(b.at), first(a.here, b.here),
			first(a.ready, b.ready), first(a.ready || a.serving, b.ready || b.serving))
	})
	return slices.CompactFunc(all, func(a, b endpoint) bool { return a.at == b.at })
}

// isNamed reports whether a slice's port is a Service's by name: "This must match the 'name' field in the
// corresponding ServicePort".
func isNamed(port discoveryv1.EndpointPort, of corev1.ServicePort) bool {
	return valueOr(port.Name, "") == of.Name && protocolOf(valueOr(port.Protocol, "")) == protocolOf(of.Protocol)
}

// standsIn reports whether a slice's port is a Service's by its number, as the slice was written for
// another name: targetPort is the "Number or name of the port to access on the pods targeted by the
// service", and "If this is not specified, the value of the 'port' field is used".
func standsIn(port discoveryv1.EndpointPort, in *discoveryv1.EndpointSlice, c *claim) bool {
	target := c.port.TargetPort.IntVal
	if target == 0 {
		target = c.port.Port
	}
	if len(c.service.Spec.Selector) == 0 || c.port.TargetPort.StrVal != "" || target != *port.Port {
		return false
	}
	for _, own := range c.service.Spec.Ports {
		if isNamed(port, own) {
			return false
		}
	}
	for _, other := range in.Ports {
		if isNamed(other, c.port) && valueOr(other.Port, 0) != 0 {
			return false
		}
	}
	return true
}

// first puts what is so in front of what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// isBehind: "all of the slices for a given service by listing EndpointSlices in the
// service's namespace whose `kubernetes.io/service-name` label contains the service's
// name". "No semantics are defined for the "FQDN" type."
func isBehind(s *discoveryv1.EndpointSlice, of *corev1.Service) bool {
	return s.Namespace == of.Namespace && s.Labels[discoveryv1.LabelServiceName] == of.Name && !isOthers(s.Labels) &&
		(s.AddressType == discoveryv1.AddressTypeIPv4 || s.AddressType == discoveryv1.AddressTypeIPv6)
}

// apiServers returns packets to where the API server is, which have destinations alone:
// "kubernetes" in the namespace "default" is the Service that every cluster has, and the API
// server writes its own addresses into its endpoints.
func (w *World) apiServers() (all []Packet) {
	if w.Granting {
		return nil // without Kubernetes there is none
	}
	kubernetes := &corev1.Service{}
	kubernetes.Namespace, kubernetes.Name = corev1.NamespaceDefault, "kubernetes"
	for _, s := range w.Slices {
		if !isBehind(s, kubernetes) {
			continue
		}
		for _, port := range s.Ports {
			for _, e := range s.Endpoints {
				if is, ok := read(e, valueOr(port.Port, 0), ""); ok && is.at.Port() != 0 {
					all = append(all, Packet{Destination: is.at.Addr(), Protocol: protocolOf(valueOr(port.Protocol, "")), Port: is.at.Port()})
				}
			}
		}
	}
	return all
}

func (w *World) isAPIServer(p Packet) bool {
	return slices.Contains(w.apiServers(), Packet{Destination: p.Destination, Protocol: p.Protocol, Port: p.Port})
}

// read reads an entry: "No semantics are defined for additional addresses beyond the
// first", and a condition that is not given "should be interpreted as "true"", but for
// terminating.
func read(e discoveryv1.Endpoint, port int32, node string) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	a = a.Unmap()
	if err != nil || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return endpoint{}, false
	}
	is := endpoint{
		at:      netip.AddrPortFrom(a, uint16(port)),
		here:    e.NodeName != nil && *e.NodeName == node,
		ready:   valueOr(e.Conditions.Ready, true),
		serving: valueOr(e.Conditions.Serving, true), stopping: valueOr(e.Conditions.Terminating, false),
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			is.zones = append(is.zones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			is.nodes = append(is.nodes, n.Name)
		}
	}
	return is, true
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
