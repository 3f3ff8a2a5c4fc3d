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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestForcedAgain runs once more what left out a node that is down: the namespace is being deleted still, as a pod of that
// node is in it. That holds nothing else up, and the node is named again.
func TestForcedAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	lists := map[schema.GroupVersionResource]string{crds: "CustomResourceDefinitionList"}
	for _, o := range owned {
		if !scheme.IsVersionRegistered(o.GroupVersion()) {
			lists[o.GroupVersionResource] = o.Resource + "List"
		}
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(scheme, lists,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "weft-system", Labels: map[string]string{nameLabel: nameValue}}})
	client.PrependReactor("delete", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	var said []string
	r := New(client, Options{Namespace: "weft-system", Force: true, Purge: true, Poll: 10 * time.Millisecond, Progress: func(line string) { said = append(said, line) }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // or it would wait for the namespace for ever
	defer cancel()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(client.Actions(), func(a k8stesting.Action) bool { return a.GetResource() == crds }) {
		t.Error("nothing is purged")
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, "nodes that were left out, as nothing is heard of their kubelets: down: ") {
		t.Errorf("it says only:\n%s", all)
	}
}
