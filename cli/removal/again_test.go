package removal

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/weftnet/weft/cli/everynode"
)

// down is a node of whose kubelet nothing is heard.
func down() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
}

// system is Weft's own namespace.
func system() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "weft-system", Labels: map[string]string{nameLabel: nameValue}}}
}

// agents is the agents' DaemonSet.
func agents() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-system", Name: agentName, Labels: map[string]string{nameLabel: nameValue}},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Command: []string{"weft-agent"}}}}}}}
}

// forced runs weft uninstall --yes --force, and returns what it says.
func forced(t *testing.T, client *fake.FakeDynamicClient, purge bool) string {
	t.Helper()
	var said []string
	r := New(client, Options{Namespace: "weft-system", Force: true, Purge: purge, Poll: 10 * time.Millisecond, Progress: func(line string) { said = append(said, line) }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // or what waits for ever would
	defer cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return strings.Join(said, "\n")
}

const leftOut = "nodes that were left out, as nothing is heard of their kubelets: down: "

// TestForcedAgain runs once more what left out a node that is down: the namespace is being deleted still, as a pod of that
// node is in it. That holds nothing else up, and the node is named again.
func TestForcedAgain(t *testing.T) {
	client := server(t, down(), system())
	client.PrependReactor("delete", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	said := forced(t, client, true)
	if !slices.ContainsFunc(client.Actions(), func(a k8stesting.Action) bool { return a.GetResource() == crds }) {
		t.Error("nothing is purged")
	}
	if !strings.Contains(said, leftOut) {
		t.Errorf("it says only:\n%s", said)
	}
}

// TestForcedAfterNot forces what a run without --force waited for in vain: its DaemonSet is there, and is to have --force
// from now on.
func TestForcedAfterNot(t *testing.T) {
	d := cleaner(agents(), false)
	d.ResourceVersion = "17"
	client := server(t, down(), system(), d)
	var args []string
	client.PrependReactor("update", "daemonsets", func(a k8stesting.Action) (bool, runtime.Object, error) {
		var d appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(a.(k8stesting.UpdateAction).GetObject().(runtime.Unstructured).UnstructuredContent(), &d); err != nil {
			return true, nil, err
		}
		args = d.Spec.Template.Spec.InitContainers[0].Args
		return false, nil, nil
	})
	if said := forced(t, client, false); !strings.Contains(said, leftOut) {
		t.Errorf("it says only:\n%s", said)
	}
	if !slices.Contains(args, "--force") {
		t.Errorf("the nodes are cleaned with %q", args)
	}
	if d, err := everynode.Get(t.Context(), client, "weft-system", cleanerName); err != nil || d != nil {
		t.Errorf("DaemonSet %s is left: %v, %v", cleanerName, d, err)
	}
}
