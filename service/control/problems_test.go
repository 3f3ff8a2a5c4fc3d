package control

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/pools"
)

// TestProblemsAreCounted has conditions say what is wrong with Services and AddressPools: each object
// counts once, and others' conditions say nothing.
func TestProblemsAreCounted(t *testing.T) {
	objects := make(registry.Snapshot)
	condition := func(kind string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status}
	}
	service := func(name string, conditions ...metav1.Condition) {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		svc.Status.Conditions = conditions
		objects.Put(api.Service, svc)
	}
	pool := func(name string, conditions ...metav1.Condition) {
		p := &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Status.Conditions = conditions
		objects.Put(api.AddressPoolKind, p)
	}
	metrics := prometheus.NewRegistry()
	show := shows(metrics)
	shown := func(want string) {
		t.Helper()
		show(objects)
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range families {
			for _, m := range f.Metric {
				got += fmt.Sprintf("%s{%s} %v\n", f.GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
			}
		}
		if got != want {
			t.Errorf("shown is\n%swant\n%s", got, want)
		}
	}
	service("fine")
	service("others", condition("example.com/Ready", metav1.ConditionFalse), condition(Served, metav1.ConditionTrue))
	pool("fine", condition(api.PoolUsable, metav1.ConditionTrue))
	shown("weft_controller_service_problems{AddressPool} 0\nweft_controller_service_problems{Service} 0\n")
	service("twice", condition(Served, metav1.ConditionFalse), condition(Granted, metav1.ConditionFalse))
	service("pooled", condition(pools.Pooled, metav1.ConditionFalse))
	pool("torn", condition(api.PoolUsable, metav1.ConditionFalse))
	shown("weft_controller_service_problems{AddressPool} 1\nweft_controller_service_problems{Service} 2\n")
}
