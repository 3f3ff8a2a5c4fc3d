package control

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/weftnet/weft/service"
)

// space is what is left for EndpointSlices of the Services of a namespace. Any number of Services may select the same
// pods, so that their endpoints are many more than what users write, and each round goes through all of them. So no
// more are made than nodes serve: the older Services have theirs first. A Service has all of its endpoints or none.
type space struct {
	// endpoints are how many there may be, each counted once for each of its ports, or once where it has none. Of pods
	// that share an address each counts.
	endpoints int
	// looks are how many pods may be looked at to find them: a pod may have a label that a Service selects, and not
	// all of them.
	looks int
}

// budget is the space of a namespace. Only tests set it.
var budget = space{endpoints: service.MaxBackendsOfNamespace, looks: 10 * service.MaxBackendsOfNamespace}

// member is an address of a pod that a Service selects.
type member struct {
	pod     *corev1.Pod
	family  discoveryv1.AddressType
	address string
	ports   *numbered
}

// take returns who is to be in the EndpointSlices of a Service, and takes the space for that. Where there is not so
// much, or nodes serve no Service with so many, it returns nobody and says so: that costs what there was space for.
func (left *space) take(svc *corev1.Service, pods labelled) (all []member, problem string) {
	if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName || hasTooManyPorts(svc) {
		return nil, ""
	}
	most := left.endpoints
	if !isHeadless(svc) {
		most = min(most, service.MaxBackends)
	}
	selector, families, numbers, size := labels.SelectorFromSet(svc.Spec.Selector), families(svc), numbersOf(svc), 0
	for _, pod := range pods.candidates(svc) {
		if left.looks == 0 {
			return nil, fmt.Sprintf("its pods are not looked for, and it has no endpoints, as %d were looked at already for older Services of namespace %s: "+
				"have these select by a label that few other pods have, or put it into another namespace", budget.looks, svc.Namespace)
		}
		left.looks--
		if !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		for _, family := range families {
			address, ok := addressOf(pod, family)
			if !ok {
				continue
			}
			ports := numbers.on(pod)
			size += max(1, len(ports.all))
			switch {
			case size <= most:
				all = append(all, member{pod, family, address, ports})
			case size > service.MaxBackends && !isHeadless(svc):
				return nil, fmt.Sprintf("its endpoints are more than %d for all of its ports together, and none is made: make several Services of it", service.MaxBackends)
			default:
				return nil, fmt.Sprintf("its endpoints for all of its ports and those of older Services are more than %d in namespace %s, and none of its is made: "+
					"remove Services there, have them select fewer pods, or put it into another namespace", budget.endpoints, svc.Namespace)
			}
		}
	}
	left.endpoints -= size
	return all, ""
}
