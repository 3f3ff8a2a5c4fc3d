package cli

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// TestDoubt has nodes that said that a policy is in force, and may not do what they
// said any more.
func TestDoubt(t *testing.T) {
	objects := registry.Snapshot{}
	held := map[string]string{}
	node := func(name string, status corev1.ConditionStatus, reason string) {
		objects.Put(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: api.NodeInSync, Status: status, Reason: reason}}}})
		held[api.NodeLease(name)] = "somebody"
	}
	node("well", corev1.ConditionTrue, "PlanLoaded")
	node("told", corev1.ConditionFalse, "NotAllInOrder")
	node("flushed", corev1.ConditionFalse, api.PlanNotLoaded)
	node("late", corev1.ConditionTrue, "PlanLoaded")
	s := policyState{Kind: "NetworkPolicy", Nodes: []string{"flushed", "gone", "late", "told", "well"}, Pending: []string{"flushed", "gone", "late"}}
	s.doubt(held, objects)
	if !slices.Equal(s.Lost, []string{"gone"}) || !slices.Equal(s.Unloaded, []string{"flushed"}) || !slices.Equal(s.Pending, []string{"late"}) {
		t.Errorf("lost %v, unloaded %v, pending %v", s.Lost, s.Unloaded, s.Pending)
	}
	var out strings.Builder
	if err := printPolicyStates(&out, []policyState{s}, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"on 2 of 5", "not known on gone, whose agent does not run", "not known on flushed, where the plan is not in the data plane", "not yet on late"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not said in\n%s", want, out.String())
		}
	}
}
