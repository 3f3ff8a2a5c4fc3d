package cli

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// TestLeftBehind deletes the Nodes of one that has pods, of one of which no agent runs and that
// has no pods, and of one whose agent runs. Of the first and the last it is said what is still
// there, and of a Node that was gone before nothing.
func TestLeftBehind(t *testing.T) {
	r := memory.New()
	for _, node := range []string{"node1", "node4"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "on-" + node}, Spec: corev1.PodSpec{NodeName: node}}
		if _, err := r.Create(t.Context(), api.Pod, pod); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Acquire(t.Context(), api.NodeLease("node3"), "node3", time.Hour); err != nil {
		t.Fatal(err)
	}
	got := leftBehind(t.Context(), r, map[string]bool{"node1": true, "node2": true, "node3": true})
	want := []string{
		"node node3: there is no such Node, though its agent runs; if it was not to be deleted, start its agent again to register it; else stop the agent",
		"node node1: there is no such Node, but a pod, shop/on-node1, is on it; other nodes may have no way there; start its agent to register it, or delete the pods",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it is said %q, and not %q", got, want)
	}
	if got := leftBehind(t.Context(), registry.Registry(nil), nil); got != nil {
		t.Errorf("where no Node is gone it is said %q", got)
	}
}
