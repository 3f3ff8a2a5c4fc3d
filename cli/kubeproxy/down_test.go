package kubeproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// TestNodesThatAreDown waits for no node that has neither an agent nor a kubelet that is heard of, as
// long as others say who does Services; and for one of which that is not known only without Force.
func TestNodesThatAreDown(t *testing.T) {
	lives := as(corev1.ConditionTrue, node("node1", api.WeftProxy))
	died := func(ready corev1.ConditionStatus) registry.Object { return as(ready, node("node2", api.KubeProxy)) }
	for name, test := range map[string]struct {
		nodes   []registry.Object
		agents  []string
		force   bool
		waiting string
	}{
		"it has no power":                {[]registry.Object{lives, died(corev1.ConditionUnknown)}, []string{"node1"}, false, ""},
		"and never had an agent":         {[]registry.Object{lives, as(corev1.ConditionUnknown, node("node2", ""))}, []string{"node1"}, false, ""},
		"its agent lives":                {[]registry.Object{lives, died(corev1.ConditionUnknown)}, []string{"node1", "node2"}, false, `node2 says "kube-proxy"`},
		"its kubelet lives":              {[]registry.Object{lives, died(corev1.ConditionTrue)}, []string{"node1"}, true, "node2 has no agent that lives"},
		"its kubelet is not ready":       {[]registry.Object{lives, died(corev1.ConditionFalse)}, []string{"node1"}, false, "node2 has no agent that lives, and is not known to be down: --force leaves it out"},
		"and it is forced":               {[]registry.Object{lives, died(corev1.ConditionFalse)}, []string{"node1"}, true, ""},
		"nobody knows, and it is forced": {[]registry.Object{lives, node("node2", api.KubeProxy)}, []string{"node1"}, true, ""},
		"all have none":                  {[]registry.Object{as(corev1.ConditionUnknown, node("node1", api.WeftProxy))}, nil, true, "node1 has no agent that lives"},
	} {
		var said []string
		c := New(clusterOf(t, test.agents, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy), api.Node: test.nodes}), nil,
			Options{DryRun: true, Force: test.force, Progress: func(line string) { said = append(said, line) }})
		err := c.serveBy(t.Context(), api.WeftProxy)
		switch {
		case test.waiting == "" && (err != nil || !slices.Equal(said, []string{"all nodes but node2 say that Services are done by weft"})):
			t.Errorf("%s: it is said %q, and it ends with %v", name, said, err)
		case test.waiting != "" && (err == nil || !strings.HasSuffix(err.Error(), ": "+test.waiting)):
			t.Errorf("%s: it ends with %v, want %q", name, err, test.waiting)
		}
	}
}

// TestNodeThatCameBack waits for a node that was down at first, and does not name it at the end.
func TestNodeThatCameBack(t *testing.T) {
	r := clusterOf(t, []string{"node1"}, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy),
		api.Node: {as(corev1.ConditionTrue, node("node1", api.WeftProxy)), as(corev1.ConditionUnknown, node("node2", api.KubeProxy))}})
	var said []string
	c := New(r, nil, Options{DaemonSet: DaemonSet, DryRun: true, Progress: func(line string) { said = append(said, line) }})
	for name, look := range map[string]func() error{
		"who does Services": func() error { return c.serveBy(t.Context(), api.WeftProxy) },
		"who has cleaned":   func() error { _, err := c.leftOut(t.Context()); return err },
	} {
		if err := look(); err != nil || !c.left["node2"] {
			t.Errorf("%s: while it is down it is waited for: %v", name, err)
		}
	}
	if _, err := r.Acquire(t.Context(), api.NodeLease("node2"), "node2", time.Hour); err != nil {
		t.Fatal(err)
	}
	if waits := c.serveBy(t.Context(), api.WeftProxy); waits == nil || !strings.HasSuffix(waits.Error(), `: node2 says "kube-proxy"`) {
		t.Errorf("once it is back it ends with %v", waits)
	}
	_, err := registry.Modify(t.Context(), r, api.Node, registry.Key{Name: "node2"}, func(n *corev1.Node) error {
		n.Annotations[api.ServiceProxyAnnotation] = api.WeftProxy
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	said, c.left = nil, map[string]bool{"node2": true}
	if err := c.sayLeft("remove", c.serveBy(t.Context(), api.WeftProxy)); err != nil || !slices.Equal(said, []string{"all nodes say that Services are done by weft"}) {
		t.Errorf("once it does Services it is said %q, and it ends with %v", said, err)
	}
	c.left = map[string]bool{"node2": true}
	if out, err := c.leftOut(t.Context()); err != nil || len(out) > 0 || len(c.left) > 0 {
		t.Errorf("once it is back there are left out %v, and named %v: %v", out, c.left, err)
	}
}

// daemonSet is one of kube-proxy's or of those that clean up, for two nodes.
func daemonSet(name string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: DaemonSet.Namespace, Name: name, UID: types.UID(name)}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "kube-proxy", Command: []string{"kube-proxy"}}}
	return d
}

// podOf is one of a DaemonSet on a node, whose container is in a state, and which is ready or not.
func podOf(d *appsv1.DaemonSet, node string, ready corev1.ConditionStatus, state corev1.ContainerState) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-" + node, Labels: d.Spec.Selector.MatchLabels}}
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	p.Spec.NodeName = node
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: state}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}
	return p
}

// change is one of a cluster of which node2 is down, with the objects that Kubernetes has.
func change(t *testing.T, by string, said *[]string, objects ...runtime.Object) (*Change, *fake.FakeDynamicClient) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	client := fake.NewSimpleDynamicClient(scheme, objects...)
	r := clusterOf(t, []string{"node1"}, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(by),
		api.Node: {as(corev1.ConditionTrue, node("node1", by)), as(corev1.ConditionUnknown, node("node2", api.WeftProxy))}})
	return New(r, client, Options{DaemonSet: DaemonSet, Force: true, Poll: time.Millisecond, Progress: func(line string) { *said = append(*said, line) }}), client
}

// TestRestoreBesideOneDown brings kube-proxy back where its pod on a node that is down does not come.
func TestRestoreBesideOneDown(t *testing.T) {
	d := daemonSet(DaemonSet.Name)
	d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberReady = 2, 1, 1
	since := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}
	runs, down := podOf(d, "node1", corev1.ConditionTrue, since), podOf(d, "node2", corev1.ConditionFalse, since)
	var said []string
	c, _ := change(t, api.KubeProxy, &said, d, runs, down)
	if err := c.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"kube-proxy runs on 1 nodes", "all nodes but node2 say that Services are done by kube-proxy",
		"nodes that were left out, as no agent lives there and the Node is not Ready: node2: once they are back, run weft kube-proxy restore again"}
	if !slices.Equal(said, want) {
		t.Errorf("it is said\n%s", strings.Join(said, "\n"))
	}

	// One that lives is waited for, with a pod that is not ready and with none.
	for name, objects := range map[string][]runtime.Object{
		"not ready": {podOf(d, "node1", corev1.ConditionFalse, since), down},
		"new":       {podOf(d, "node1", corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}), down},
		"none":      {down},
	} {
		c, _ := change(t, api.KubeProxy, &said, append(objects, d)...)
		if n, err := c.runsOn(t.Context(), d); n != 0 || err != nil {
			t.Errorf("%s: it runs on %d nodes: %v", name, n, err)
		}
	}
}

// TestRemoveBesideOneDown takes kube-proxy away where a node that is down cannot clean up.
func TestRemoveBesideOneDown(t *testing.T) {
	var said []string
	c, client := change(t, api.WeftProxy, &said, daemonSet(DaemonSet.Name))
	client.PrependReactor("create", "daemonsets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
		o.SetUID(cleanerName)
		o.Object["status"] = map[string]any{"desiredNumberScheduled": int64(2), "updatedNumberScheduled": int64(2)}
		d := daemonSet(cleanerName)
		d.Spec.Selector.MatchLabels, _, _ = unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		for _, p := range []*corev1.Pod{
			podOf(d, "node1", corev1.ConditionTrue, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}),
			podOf(d, "node2", corev1.ConditionFalse, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}),
		} {
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
			if err == nil {
				err = client.Tracker().Add(&unstructured.Unstructured{Object: fields})
			}
			if err != nil {
				return true, nil, fmt.Errorf("give the cleaner a pod: %w", err)
			}
		}
		return false, nil, nil
	})
	// They go with their DaemonSet.
	client.PrependReactor("delete", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
		for _, node := range []string{"node1", "node2"} {
			if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), DaemonSet.Namespace, cleanerName+"-"+node); err != nil {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"all nodes but node2 say that Services are done by weft", "the pods of DaemonSet kube-system/kube-proxy are being ended",
		"created daemonset weft-kube-proxy-cleanup, which cleans the nodes", "node node1: clean",
		"nodes that were left out, as no agent lives there and the Node is not Ready: node2: once they are back, run weft kube-proxy remove again"}
	if i := slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, "all nodes but") }); i < 0 || !slices.Equal(said[i:], want) {
		t.Errorf("it is said\n%s", strings.Join(said, "\n"))
	}
}
