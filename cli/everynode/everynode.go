// Package everynode has a Kubernetes cluster do something once on every node: by a DaemonSet
// whose pods do it, as a Kubernetes cluster lets nobody reach a node in another way. Who began
// and was killed finds the DaemonSet there, and waits on.
package everynode

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// DaemonSets is their resource.
var DaemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// pageSize bounds how many objects come with one answer.
const pageSize = 500

// Work is what is done on every node, by a DaemonSet. Where its pods have an init container, that
// does it, and a pod that runs is one that is done. Else the first container does it, and may do
// it again and again: it is done once that has ended well.
type Work struct {
	Client dynamic.Interface
	// Namespace and Name are the DaemonSet's.
	Namespace, Name string
	// Progress is told what was done, a line each.
	Progress func(line string)
	// Poll is how often the nodes are looked at.
	Poll time.Duration
	// LeftOut, if it is set, returns the nodes that are not waited for, as nothing runs there.
	LeftOut func(context.Context) (map[string]bool, error)
}

// Put creates the DaemonSet, or makes the one there is like it. It may be given one that was read.
func (w *Work) Put(ctx context.Context, d *appsv1.DaemonSet) error {
	want, err := toUnstructured(d)
	if err != nil {
		return err
	}
	// An API server creates nothing that has one, and does not look first whether it is there.
	want.SetResourceVersion("")
	in := w.Client.Resource(DaemonSets).Namespace(w.Namespace)
	_, err = in.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, err := in.Get(ctx, w.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("create daemonset %s: one of that name was there, and has gone: run it again", w.Name)
		}
		if err != nil {
			return fmt.Errorf("read daemonset %s: %w", w.Name, err)
		}
		want.SetResourceVersion(have.GetResourceVersion())
		if _, err = in.Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update daemonset %s: %w", w.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("create daemonset %s: %w", w.Name, err)
	}
	w.Progress(fmt.Sprintf("created daemonset %s, which cleans the nodes", w.Name))
	return nil
}

// Await waits until every node has done it, but for those that are left out. Where there is no such
// DaemonSet there is nothing to wait for.
func (w *Work) Await(ctx context.Context) error {
	said := make(map[string]string)
	var last *state
	for {
		now, err := w.state(ctx)
		switch {
		case err == nil && now == nil:
			return nil
		case err == nil:
			last = now
		case ctx.Err() == nil || last == nil:
			return err
		}
		done := 0
		for _, s := range last.nodes {
			if s.done {
				done++
			}
			if line := s.String(); said[s.node] != line && (s.done || s.failed) {
				w.Progress(line)
				said[s.node] = line
			}
		}
		if last.seen && last.updated >= last.wanted && done >= last.wanted {
			return nil
		}
		select {
		case <-ctx.Done():
			return w.late(last)
		case <-time.After(w.Poll):
		}
	}
}

// state is how far a DaemonSet is.
type state struct {
	// seen says that the cluster's controllers know what it is now. It is to have pods on wanted
	// nodes beside those that are left out, and has updated pods that are as it is now.
	seen            bool
	wanted, updated int
	nodes           []nodeState
}

// state returns how far the DaemonSet is, nil if there is none.
func (w *Work) state(ctx context.Context) (*state, error) {
	d, err := Get(ctx, w.Client, w.Namespace, w.Name)
	if err != nil || d == nil {
		return nil, err
	}
	pods, err := PodsOf(ctx, w.Client, d)
	if err != nil {
		return nil, err
	}
	var out map[string]bool
	if w.LeftOut != nil {
		if out, err = w.LeftOut(ctx); err != nil {
			return nil, err
		}
	}
	rest, wanted := Without(out, pods, d)
	s := &state{seen: d.Status.ObservedGeneration == d.Generation, wanted: wanted, updated: int(d.Status.UpdatedNumberScheduled)}
	for _, p := range rest {
		if p.DeletionTimestamp == nil {
			s.nodes = append(s.nodes, stateOf(p))
		}
	}
	return s, nil
}

// Without returns the pods of a DaemonSet that are on no node that is left out, and on how many nodes
// it is to have some beside those. A node that is left out counts where it has a pod, also one that
// is to end: a DaemonSet has one there as long as the node is there.
func Without(out map[string]bool, pods []*corev1.Pod, d *appsv1.DaemonSet) (rest []*corev1.Pod, wanted int) {
	there := make(map[string]bool)
	for _, p := range pods {
		if node := NodeOf(p); out[node] {
			there[node] = true
		} else {
			rest = append(rest, p)
		}
	}
	return rest, max(int(d.Status.DesiredNumberScheduled)-len(there), 0)
}

// Get returns a DaemonSet, or nil if there is none.
func Get(ctx context.Context, client dynamic.Interface, namespace, name string) (*appsv1.DaemonSet, error) {
	o, err := client.Resource(DaemonSets).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read daemonset %s of namespace %s: %w", name, namespace, err)
	}
	d := &appsv1.DaemonSet{}
	return d, fromUnstructured(o, d)
}

// PodsOf returns the pods of a DaemonSet.
func PodsOf(ctx context.Context, client dynamic.Interface, d *appsv1.DaemonSet) (all []*corev1.Pod, err error) {
	labels, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("daemonset %s: its selector: %w", d.Name, err)
	}
	options := metav1.ListOptions{LabelSelector: labels.String(), Limit: pageSize}
	for {
		list, err := client.Resource(pods).Namespace(d.Namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the pods of daemonset %s: %w", d.Name, err)
		}
		for i := range list.Items {
			p := &corev1.Pod{}
			if err := fromUnstructured(&list.Items[i], p); err != nil {
				return nil, err
			}
			if metav1.IsControlledBy(p, d) {
				all = append(all, p)
			}
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// nodeState is how far a node is.
type nodeState struct {
	node string
	// done says that it is clean, failed that its pod said why it is not.
	done, failed bool
	detail       string
}

func (s nodeState) String() string {
	if s.done {
		return "node " + s.node + ": clean"
	}
	return "node " + s.node + ": " + s.detail
}

func stateOf(p *corev1.Pod) nodeState {
	s := nodeState{node: cmp.Or(NodeOf(p), p.Name), detail: "its pod is " + string(cmp.Or(p.Status.Phase, corev1.PodPending))}
	s.done = p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) > 0 && finished(p, p.Status.ContainerStatuses[0])
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		for _, state := range []corev1.ContainerState{c.LastTerminationState, c.State} {
			if t := state.Terminated; t != nil && t.ExitCode != 0 {
				s.failed, s.detail = true, strings.TrimPrefix(lastLine(cmp.Or(t.Message, t.Reason)), "error: ")
			} else if w := state.Waiting; w != nil && !s.failed && w.Reason != "" {
				s.detail = "its pod waits: " + cmp.Or(w.Message, w.Reason)
			}
		}
	}
	return s
}

// finished reports whether a container has done what there is to do: it is ready, where an init
// container has done it, and else it has ended well, after which it is started again.
func finished(p *corev1.Pod, c corev1.ContainerStatus) bool {
	if len(p.Spec.InitContainers) > 0 {
		return c.Ready
	}
	ended := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
	return ended != nil && ended.ExitCode == 0
}

// NodeOf is the node that a pod of a DaemonSet is on, or is meant for before it is scheduled.
func NodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, f := range t.MatchFields {
				if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
					return f.Values[0]
				}
			}
		}
	}
	return ""
}

// Ready is what a Node says of whether it is ready, "" where it says nothing. It is
// corev1.ConditionUnknown where nobody hears of its kubelet.
func Ready(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// late says which nodes are not clean when the time is over.
func (w *Work) late(last *state) error {
	waiting := make(map[string]string)
	for _, s := range last.nodes {
		if !s.done {
			waiting[s.node] = s.String()
		}
	}
	again := "give more --timeout, or mend them, and run it again; daemonset " + w.Name + " goes on meanwhile"
	if missing := last.wanted - len(last.nodes); !last.seen {
		waiting["~"] = "the cluster's controllers have not seen it yet"
	} else if missing > 0 {
		waiting["~"] = fmt.Sprintf("%d nodes have no pod of it yet", missing)
	}
	var words []string
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		words = append(words, waiting[node])
	}
	return fmt.Errorf("not all nodes are clean: %s (%s)", strings.Join(words, "; "), again)
}

// fromUnstructured gives an object its Go type.
func fromUnstructured(o *unstructured.Unstructured, to any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to); err != nil {
		return fmt.Errorf("%s %s: %w", strings.ToLower(o.GetKind()), o.GetName(), err)
	}
	return nil
}

// toUnstructured is the inverse.
func toUnstructured(d *appsv1.DaemonSet) (*unstructured.Unstructured, error) {
	d.TypeMeta = metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet"}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(d)
	return &unstructured.Unstructured{Object: fields}, err
}
