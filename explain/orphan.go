package explain

import (
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

// Orphaned returns what is wrong where a node has interfaces of pods without objects;
// false where it has none.
func Orphaned(node string, o api.Orphans) (api.Problem, bool) {
	var names []string
	for _, pod := range o.Pods {
		names = append(names, fmt.Sprintf("%s (%s)", pod, strings.Join(pod.Addresses, ", ")))
	}
	p := ofNode(node, "it still has ")
	switch all := len(names) + o.More; {
	case all == 0:
		return api.Problem{}, false
	case all == 1 && len(names) == 1:
		p.Message += fmt.Sprintf("an interface of pod %s, of which there is no object: the pod runs on", names[0])
	default:
		p.Message += fmt.Sprintf("interfaces of %d pods of which there is no object: %s; they run on", all, printable.Few(names, o.More))
	}
	p.Remedy = "stop what still runs at the container runtime of " + node + ", with which the interface goes"
	return p, true
}

// orphaned returns the addresses of a pod without an object, none where an object of
// it has come since.
func (c Cluster) orphaned(o api.Orphan) []netip.Addr {
	if pod, ok := c.Objects.Get(api.Pod, registry.Key{Namespace: o.Namespace, Name: o.Name}).(*corev1.Pod); ok && api.IsPod(pod, o.UID) {
		return nil
	}
	return parse(o.Addresses)
}

// orphan returns the pod without an object that has an address, and its node.
func (c Cluster) orphan(a netip.Addr) (o api.Orphan, node string, found bool) {
	for n := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		orphans, _ := api.NodeOrphans(n)
		for _, o := range orphans.Pods {
			if slices.Contains(c.orphaned(o), a) {
				return o, n.Name, true
			}
		}
	}
	return o, "", false
}

// warnOfOrphans says of the ends of an answer that there is no object of them, or that
// a node has interfaces of which it does not say whose addresses they have, so that
// an address which no object has may be there all the same.
func (c Cluster) warnOfOrphans(a *Answer, plans map[string]*plan.Plan) {
	for _, end := range []Party{a.Source, a.Destination} {
		if end.orphan != nil {
			p, _ := Orphaned(end.Node, api.Orphans{Pods: []api.Orphan{*end.orphan}})
			a.Warn(end.Node, p)
		}
		for name, p := range plans {
			node, ok := c.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
			if !ok || end.Node != "" || p == nil || !slices.ContainsFunc(p.Local.Pools, func(pool plan.Pool) bool {
				return pool.Network == plan.DefaultNetwork && pool.Prefix.Contains(end.Address)
			}) {
				continue
			}
			orphans, err := api.NodeOrphans(node)
			switch {
			case err != nil:
				a.Doubt(err.Error())
			case orphans.More > 0:
				a.Doubt(fmt.Sprintf("%s has interfaces of %d more pods of which there is no object than it names", name, orphans.More))
			}
		}
	}
}
