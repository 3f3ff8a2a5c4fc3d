package removal

import (
	"context"
	"errors"
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

	"github.com/weftnet/weft/api"
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
	said, err := force(t, client, purge)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// force does it where it may fail.
func force(t *testing.T, client *fake.FakeDynamicClient, purge bool) (string, error) {
	var said []string
	r := New(client, Options{Namespace: "weft-system", Force: true, Purge: purge, Poll: 10 * time.Millisecond, Progress: func(line string) { said = append(said, line) }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // or what waits for ever would
	defer cancel()
	err := r.Run(ctx)
	return strings.Join(said, "\n"), err
}

const leftOut = "nodes that were left out, as nothing was heard of their kubelets: down: "

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

// TestForcedComesBack has a node that was left out back before the end, too late to be cleaned.
func TestForcedComesBack(t *testing.T) {
	client := server(t, down(), system(), agents())
	client.PrependReactor("delete", "namespaces", func(k8stesting.Action) (bool, runtime.Object, error) {
		back := down()
		back.Status.Conditions[0].Status = corev1.ConditionTrue
		return false, nil, client.Tracker().Update(nodes, unstructure(t, back), "")
	})
	if said := forced(t, client, false); !strings.Contains(said, leftOut) {
		t.Errorf("it says only:\n%s", said)
	}
}

// TestForcedUnfinished cannot write to Nodes at first, in a cluster whose namespace is not Weft's. The run that fails names
// the node that it left out, and so does the next one, for which there are no objects of Weft to delete. The one after
// that has nothing to do.
func TestForcedUnfinished(t *testing.T) {
	n := down()
	n.Annotations = map[string]string{api.OnLinkAnnotation: "192.0.2.0/24"}
	client := server(t, n, agents())
	failure := errors.New("not now")
	client.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if failure == nil {
			return true, nil, client.Tracker().Update(nodes, unstructure(t, down()), "")
		}
		return true, nil, failure
	})
	said, err := force(t, client, false)
	if !errors.Is(err, failure) {
		t.Errorf("it fails with %v", err)
	}
	failure = nil
	for _, said := range []string{said, forced(t, client, false)} {
		if !strings.Contains(said, leftOut+"Weft's pods there go once ") {
			t.Errorf("it says only:\n%s", said)
		}
	}
	if said := forced(t, client, false); said != "" {
		t.Errorf("where nothing is left to do it says:\n%s", said)
	}
}
