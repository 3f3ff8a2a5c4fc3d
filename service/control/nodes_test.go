package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// nodeWith returns a Node whose agent has told of it.
func nodeWith(name string, more ...corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = append(more, corev1.NodeCondition{Type: api.NodeInSync, Status: corev1.ConditionTrue})
	return n
}

// TestWatch has leases come and go, and says what Nodes are to say then.
func TestWatch(t *testing.T) {
	silent := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: unheard}
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}
	written := nodeWith("written", corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "Other"})
	all := []*corev1.Node{nodeWith("node1"), nodeWith("node2"), foreign, written}
	w, now := &watch{}, began
	for _, step := range []struct {
		after time.Duration
		nodes []*corev1.Node
		held  []string
		want  []marking
	}{
		{0, all, []string{"node1", "node2", "written"}, nil},
		{time.Second, all, []string{"node1", "written"}, nil},
		{nodeGrace - time.Second, all, []string{"node1", "written"}, nil},
		{time.Second, all, []string{"node1", "written"}, []marking{{"node2", true}}},
		{time.Hour, []*corev1.Node{nodeWith("node1"), nodeWith("node2", silent)}, []string{"node1"}, nil},
		{time.Second, []*corev1.Node{nodeWith("node1"), nodeWith("node2", silent)}, []string{"node1", "node2"}, []marking{{"node2", false}}},
		// Who was there meanwhile begins anew.
		{0, all, []string{"node1", "written"}, nil},
		{nodeGrace - 1, all, []string{"node1", "node2", "written"}, nil},
		{2, all, []string{"node1", "written"}, nil},
		// Nobody holds one: nothing is known.
		{nodeGrace, all, nil, nil},
		{nodeGrace, all, []string{"node1", "written"}, nil},
	} {
		now = now.Add(step.after)
		objects := registry.Snapshot{}
		for _, n := range step.nodes {
			objects[api.Node] = append(objects[api.Node], n)
		}
		held := make(map[string]string)
		for _, name := range step.held {
			held[api.NodeLease(name)] = "agent"
		}
		if got := w.decide(objects, held, now); !reflect.DeepEqual(got, step.want) {
			t.Errorf("%v later, held by %v: %v; expected %v", step.after, step.held, got, step.want)
		}
	}
}

// A Node has one condition that says whether it is ready, whoever wrote what it said before.
func TestMarking(t *testing.T) {
	n := nodeWith("node1", corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Other"})
	for _, silent := range []bool{true, true, false} {
		marking{"node1", silent}.put(n, metav1.Now())
		ready := 0
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready++
			}
		}
		if IsSilent(n) != silent || ready > 1 || !hasAgent(n) {
			t.Errorf("once it is silent is %t its conditions are %v", silent, n.Status.Conditions)
		}
	}
}

// TestADeadNodesPodsAreNotReady has an agent end, and another one begin.
func TestADeadNodesPodsAreNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := memory.New()
		svc := newService(0)
		svc.Spec.Selector = map[string]string{"app": "web"}
		create := func(k *registry.Kind, o registry.Object) {
			if _, err := r.Create(ctx, k, o); err != nil {
				t.Fatal(err)
			}
		}
		create(api.Service, svc)
		leases := make(map[string]registry.Lease)
		acquire := func(node string) {
			l, err := r.Acquire(ctx, api.NodeLease(node), "agent of "+node, 15*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			leases[node] = l
		}
		for i, node := range []string{"node1", "node2"} {
			create(api.Node, nodeWith(node))
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "on-" + node, Labels: svc.Spec.Selector}}
			pod.Spec.NodeName, pod.Spec.Containers = node, []corev1.Container{{Name: "c"}}
			pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.1.%d.2", i)
			create(api.Pod, pod)
			acquire(node)
		}
		ended := make(chan error)
		go func() { ended <- Run(ctx, r, slog.New(slog.DiscardHandler), nil) }()
		ready := func() []string {
			on := make(map[string]bool)
			all, _, err := r.List(ctx, api.EndpointSlice)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				for _, e := range o.(*discoveryv1.EndpointSlice).Endpoints {
					if *e.Conditions.Ready {
						on[*e.NodeName] = true
					}
				}
			}
			return slices.Sorted(maps.Keys(on))
		}
		expect := func(when string, after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			if got := ready(); !slices.Equal(got, want) {
				t.Errorf("%s pods are ready on %v; expected %v", when, got, want)
			}
		}
		expect("at first", time.Minute, "node1", "node2")
		leases["node2"].Release(ctx)
		expect("soon after the agent of node2 ended", nodeGrace-time.Second, "node1", "node2")
		expect("long after it ended", 2*watchPause, "node1")
		acquire("node2")
		expect("once it is back", 2*watchPause, "node1", "node2")
		leases["node1"].Release(ctx)
		leases["node2"].Release(ctx)
		expect("without any agent", time.Hour, "node1", "node2")
		cancel()
		<-ended
	})
}
