package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/pools"
)

// AddressProblems returns what is wrong with addresses outside of the cluster: Services that wait
// for one that nobody gives, and addresses for which no node answers, or several do. How many
// lines they are does not go by how many Services there are.
func (c Cluster) AddressProblems() (all []api.Problem) {
	var waiting []string
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		if c.isPending(svc) {
			waiting = append(waiting, registry.KeyOf(svc).String())
		}
	}
	slices.Sort(waiting)
	what := "1 of type LoadBalancer has no address (%s): no AddressPool is for it"
	if n := len(waiting); n > 1 {
		what = fmt.Sprint(n) + " of type LoadBalancer have no address (%s): no AddressPool is for them"
	}
	if len(waiting) > 0 {
		all = append(all, api.Problem{Name: "services", Message: fmt.Sprintf(what, printable.Few(waiting, 0)), Remedy: makePool})
	}
	return append(all, c.announceProblems()...)
}

// makePool is what to do about Services of type LoadBalancer that get no address.
const makePool = "make an AddressPool that serves this spec.loadBalancerClass, or, where another program gives such addresses, see what that says"

// isPending reports whether a Service is to get an address of a load balancer, has none, and there
// is no AddressPool that would serve it. Of one that a pool would serve its condition says what is
// wrong.
func (c Cluster) isPending(svc *corev1.Service) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || len(svc.Status.LoadBalancer.Ingress) > 0 || svc.DeletionTimestamp != nil ||
		meta.IsStatusConditionFalse(svc.Status.Conditions, pools.Pooled) {
		return false
	}
	for p := range registry.Each[*api.AddressPool](c.Objects, api.AddressPoolKind) {
		if p.ServesClass(svc.Spec.LoadBalancerClass) {
			return false
		}
	}
	return true
}
