package service

import (
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Concerning returns objects without the Services that have nothing to do with some of them, and
// without what is behind those: what a Compiler makes of the Services of these keys, and says of
// them, is the same. What is left are their namespaces, those of Services that claim what they claim, and
// where the API server is. So how one Service is served on a thousand nodes need not cost what all do.
func Concerning(objects registry.Objects, keys ...registry.Key) registry.Objects {
	var of []*service
	for _, key := range keys {
		if svc := registry.GetAs[*corev1.Service](objects, api.Service, key); svc != nil {
			if s := readService(svc, nil); s != nil {
				of = append(of, s)
			}
		}
	}
	// All Services of a namespace have one budget.
	namespaces := make(map[string]bool)
	for _, key := range keys {
		namespaces[key.Namespace] = true
	}
	for o := range objects.All(api.Service) {
		if s := readService(o, nil); s != nil && !namespaces[s.key.Namespace] && slices.ContainsFunc(of, s.meets) {
			namespaces[s.key.Namespace] = true
		}
	}
	some := concerning{Objects: objects, of: make(map[*registry.Kind][]registry.Object)}
	for _, k := range []*registry.Kind{api.Service, api.EndpointSlice} {
		for o := range objects.All(k) {
			of := registry.KeyOf(o)
			if k == api.EndpointSlice {
				of.Name = o.GetLabels()[discoveryv1.LabelServiceName]
			}
			if namespaces[of.Namespace] || of == APIServer {
				some.of[k] = append(some.of[k], o)
			}
		}
	}
	return some
}

// meets reports whether two Services may claim the same address and port of a node, whatever
// addresses that has.
func (s *service) meets(o *service) bool {
	claims := func(s *service) []netip.Addr { return slices.Concat(s.clusterIPs, s.external, s.balanced) }
	of := claims(o)
	return slices.ContainsFunc(claims(s), func(a netip.Addr) bool { return slices.Contains(of, a) }) || s.atNodes(o) || o.atNodes(s)
}

// atNodes reports whether a Service has a port of nodes that is a port of another one, which may
// have an address of a node.
func (s *service) atNodes(o *service) bool {
	return s.nodePorts && slices.ContainsFunc(s.ports, func(p port) bool {
		return p.nodePort != 0 && slices.ContainsFunc(o.ports, func(q port) bool { return q.port == p.nodePort || q.nodePort == p.nodePort })
	})
}

// concerning are objects with other Services and EndpointSlices.
type concerning struct {
	registry.Objects
	of map[*registry.Kind][]registry.Object
}

// All implements registry.Objects.
func (c concerning) All(k *registry.Kind) iter.Seq[registry.Object] {
	if k == api.Service || k == api.EndpointSlice {
		return slices.Values(c.of[k])
	}
	return c.Objects.All(k)
}
