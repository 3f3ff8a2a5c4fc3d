package oracle

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pool is an AddressPool: "prefixes, `192.0.2.0/24`, and ranges, `192.0.2.10-192.0.2.40`".
type Pool struct{ Addresses []string }

// Grant says who has something: an AddressGrant, or a ServiceGrant, which there are where there is no
// Kubernetes.
type Grant struct {
	// What is an address, or a port of nodes as "30080-tcp".
	What string
	// Service is whose it is, as "namespace/name", and UID tells that from an earlier one.
	Service string
	UID     types.UID
}

// isOf reports whether a Grant is a Service's.
func (g *Grant) isOf(s *corev1.Service) bool {
	return g.Service == s.Namespace+"/"+s.Name && g.UID == s.UID
}

// grantOf returns the Grant of something, nil where there is none.
func grantOf(all []*Grant, what string) *Grant {
	if i := slices.IndexFunc(all, func(g *Grant) bool { return g.What == what }); i >= 0 {
		return all[i]
	}
	return nil
}

// isPooled reports whether an address is one of an AddressPool.
func (w *World) isPooled(a netip.Addr) bool {
	return slices.ContainsFunc(w.Pools, func(p *Pool) bool {
		return slices.ContainsFunc(p.Addresses, func(text string) bool {
			if from, to, isRange := strings.Cut(text, "-"); isRange {
				first, err := netip.ParseAddr(from)
				last, wrong := netip.ParseAddr(to)
				return err == nil && wrong == nil && first.Is4() == a.Is4() && !a.Less(first) && !last.Less(a)
			}
			_, n, err := net.ParseCIDR(text)
			return err == nil && (len(n.IP) == net.IPv4len) == a.Is4() && n.Contains(a.AsSlice())
		})
	})
}

// mayHaveOutside reports whether a Service is served at an address that it says in its status or
// its externalIPs: "An address of a pool, or one that has a grant, they serve for the Service
// alone that has the grant, whatever a Service says".
func (w *World) mayHaveOutside(s *corev1.Service, a netip.Addr) bool {
	if g := grantOf(w.AddressGrants, a.String()); g != nil {
		return g.isOf(s)
	}
	return !w.isPooled(a)
}

// hasAddress reports whether a Service has an address as its cluster IP. Kubernetes' API server
// gives these, and nobody else. Without it nodes go by ServiceGrants, "and not by what a Service
// says of itself", and of another Service's address it does not get, whoever gave it that.
func (w *World) hasAddress(s *corev1.Service, a netip.Addr) bool {
	if !slices.Contains(clusterIPs(s), a) {
		return false
	}
	if !w.Granting {
		return true
	}
	if g := grantOf(w.AddressGrants, a.String()); g != nil && !g.isOf(s) {
		return false
	}
	g := grantOf(w.Grants, a.String())
	return g != nil && g.isOf(s)
}

// hasNodePort is the same of a port of nodes.
func (w *World) hasNodePort(c *claim) bool {
	if !w.Granting {
		return true
	}
	g := grantOf(w.Grants, fmt.Sprintf("%d-%s", c.port.NodePort, strings.ToLower(string(protocolOf(c.port.Protocol)))))
	return g != nil && g.isOf(c.service)
}

// hasAlone reports whether an address is, outside of the cluster, a Service's that has it from a
// pool: "What is no port of the Service is refused at its address, so that nothing is routed on."
func (w *World) hasAlone(s *corev1.Service, a netip.Addr) bool {
	g := grantOf(w.AddressGrants, a.String())
	return g != nil && g.isOf(s) && isServed(s) && isBalanced(s, a) && hasFamily(s, a)
}
