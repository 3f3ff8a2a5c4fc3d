package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/pools"
)

// AddressProblems returns what is wrong with addresses outside of the cluster: Services that wait
// for one that nobody gives, and addresses for which no node answers, or several do. How many
// lines they are does not go by how many Services there are.
func (c Cluster) AddressProblems() (all []api.Problem) {
	waiting := make(map[lack][]string)
	for svc := range registry.Each[*corev1.Service](c.Objects, api.Service) {
		if why := c.pending(svc); why != (lack{}) {
			waiting[why] = append(waiting[why], registry.KeyOf(svc).String())
		}
	}
	for _, why := range []lack{noPool, noPoolOfClass, leftAlone} {
		names := waiting[why]
		slices.Sort(names)
		switch n := len(names); n {
		case 0:
		case 1:
			all = append(all, api.Problem{Name: "services", Message: fmt.Sprintf("1 of type LoadBalancer has no address (%s): %s", names[0], why.of1), Remedy: why.remedy})
		default:
			all = append(all, api.Problem{Name: "services", Message: fmt.Sprintf("%d of type LoadBalancer have no address (%s): %s", n, printable.Few(names, 0), why.ofMany), Remedy: why.remedy})
		}
	}
	return append(all, c.announceProblems()...)
}

// lack is why Services of type LoadBalancer get no address, and what to do about it.
type lack struct{ of1, ofMany, remedy string }

var (
	noPool = lack{"no AddressPool is for it", "no AddressPool is for them",
		"make an AddressPool without spec.loadBalancerClass, or, where another program gives such addresses, see what that says"}
	noPoolOfClass = lack{"no AddressPool has its spec.loadBalancerClass", "no AddressPool has their spec.loadBalancerClass",
		"make one that has it, or, where another program gives such addresses, see what that says"}
	leftAlone = lack{"its label " + service.ProxyName + " keeps AddressPools from it", "their label " + service.ProxyName + " keeps AddressPools from them",
		"take the label off, or see what the program says that it names"}
)

// pending says why a Service that is to get an address of a load balancer has none: no AddressPool
// would serve it, or pools leave it to another program. It is the zero lack where that is not so. Of one that a pool
// would serve its condition says what is wrong.
func (c Cluster) pending(svc *corev1.Service) lack {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || len(svc.Status.LoadBalancer.Ingress) > 0 || svc.DeletionTimestamp != nil ||
		meta.IsStatusConditionFalse(svc.Status.Conditions, pools.Pooled) {
		return lack{}
	}
	for p := range registry.Each[*api.AddressPool](c.Objects, api.AddressPoolKind) {
		if !p.ServesClass(svc.Spec.LoadBalancerClass) {
			continue
		}
		if service.LeftTo(svc) != "" {
			return leftAlone
		}
		return lack{}
	}
	if class := svc.Spec.LoadBalancerClass; class != nil && *class != "" && *class != api.LinkClass {
		return noPoolOfClass
	}
	return noPool
}
