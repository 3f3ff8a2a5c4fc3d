package control

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/pools"
)

// IsProblem reports whether a condition of a Service is one by which the controller says that
// something is wrong with it, or that it is not known whether something is.
func IsProblem(c metav1.Condition) bool {
	return c.Status != metav1.ConditionTrue && slices.Contains([]string{Served, Granted, pools.Pooled}, c.Type)
}

// problems counts, by kind, the objects of which conditions say that something is wrong, or may be.
func problems(objects registry.Objects) (services, addressPools int) {
	for svc := range registry.Each[*corev1.Service](objects, api.Service) {
		if slices.ContainsFunc(svc.Status.Conditions, IsProblem) {
			services++
		}
	}
	for p := range registry.Each[*api.AddressPool](objects, api.AddressPoolKind) {
		if meta.IsStatusConditionFalse(p.Status.Conditions, api.PoolUsable) {
			addressPools++
		}
	}
	return services, addressPools
}

// shows returns what has a registry of metrics, which may be nil, show these counts.
func shows(metrics prometheus.Registerer) func(registry.Objects) {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_controller_service_problems",
		Help: "Services and AddressPools of which conditions say that something is wrong, or may be, by kind."}, []string{"kind"})
	if metrics != nil {
		metrics.MustRegister(gauge)
	}
	return func(objects registry.Objects) {
		services, addressPools := problems(objects)
		gauge.WithLabelValues(api.Service.Kind).Set(float64(services))
		gauge.WithLabelValues(api.AddressPoolKind.Kind).Set(float64(addressPools))
	}
}
