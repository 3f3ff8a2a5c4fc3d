package removal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weftnet/weft/api"
)

// What the chart calls things.
const (
	agentName = "weft-agent"
	nameLabel = "app.kubernetes.io/name"
	nameValue = "weft"
	partLabel = "app.kubernetes.io/component"
	// category is that of Weft's custom resources.
	category = "weft"
)

// cleanerName is the name of the DaemonSet that cleans the nodes, and the value
// of its pods' partLabel.
const cleanerName = "weft-uninstall"

// cleaner returns the DaemonSet that cleans the nodes of what the agents of
// another left: it sees the same of a node as they do. An init container does
// the work, so that a pod that runs is one that is done.
func cleaner(agents *appsv1.DaemonSet, force bool) *appsv1.DaemonSet {
	labels := map[string]string{nameLabel: nameValue, partLabel: cleanerName}
	everywhere := intstr.FromString("100%")
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: cleanerName, Namespace: agents.Namespace, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: labels},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &everywhere}},
			Template:       *agents.Spec.Template.DeepCopy(),
		},
	}
	t := &d.Spec.Template
	t.ObjectMeta = metav1.ObjectMeta{Labels: labels}
	i := slices.IndexFunc(t.Spec.Containers, func(c corev1.Container) bool {
		return len(c.Command) > 0 && path.Base(c.Command[0]) == agentName
	})
	work := t.Spec.Containers[max(i, 0)]
	work.Name = "uninstall"
	work.Args = slices.Concat([]string{"uninstall"}, work.Command[min(1, len(work.Command)):], work.Args, []string{"--wait=1m"})
	work.Command = work.Command[:min(1, len(work.Command))]
	if force {
		work.Args = append(work.Args, "--force")
	}
	work.Ports, work.LivenessProbe, work.ReadinessProbe, work.StartupProbe, work.Lifecycle = nil, nil, nil, nil, nil
	work.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	rest := *work.DeepCopy()
	rest.Name, rest.Args = "done", append(rest.Args, "--stay")
	t.Spec.InitContainers, t.Spec.Containers = []corev1.Container{work}, []corev1.Container{rest}
	return d
}

// cleanNodes ends the agents and has the nodes cleaned.
func (r *Removal) cleanNodes(ctx context.Context) error {
	have, err := r.get(ctx, daemonSets, r.Namespace, agentName)
	if err != nil {
		return err
	}
	if have != nil {
		var agents appsv1.DaemonSet
		if err := convert(have, &agents); err != nil {
			return err
		}
		// What it is made from goes only when it is there. Its pods wait for
		// the agents to end.
		if err := r.putCleaner(ctx, cleaner(&agents, r.Force)); err != nil {
			return err
		}
		if err := r.delete(ctx, object{daemonSets, r.Namespace, agentName}); err != nil {
			return err
		}
	} else if err := r.forceCleaner(ctx); err != nil {
		return err
	}
	return r.awaitCleaner(ctx)
}

// putCleaner creates the DaemonSet, or makes the one there is like it.
func (r *Removal) putCleaner(ctx context.Context, d *appsv1.DaemonSet) error {
	want, err := unconvert(d)
	if err != nil {
		return err
	}
	in := r.in(daemonSets, r.Namespace)
	_, err = in.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		have, err := r.get(ctx, daemonSets, r.Namespace, cleanerName)
		if err != nil || have == nil {
			return err
		}
		want.SetResourceVersion(have.GetResourceVersion())
		if _, err = in.Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update daemonset %s: %w", cleanerName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("create daemonset %s: %w", cleanerName, err)
	}
	r.progress("created daemonset %s, which cleans the nodes", cleanerName)
	return nil
}

// forceCleaner gives the DaemonSet that an earlier run made --force, if this one
// has it.
func (r *Removal) forceCleaner(ctx context.Context) error {
	have, err := r.get(ctx, daemonSets, r.Namespace, cleanerName)
	if err != nil || have == nil || !r.Force {
		return err
	}
	var d appsv1.DaemonSet
	if err := convert(have, &d); err != nil {
		return err
	}
	t := &d.Spec.Template.Spec
	for _, list := range [][]corev1.Container{t.InitContainers, t.Containers} {
		for i := range list {
			if !slices.Contains(list[i].Args, "--force") {
				list[i].Args = append(list[i].Args, "--force")
			}
		}
	}
	return r.putCleaner(ctx, &d)
}

// awaitCleaner waits until every node is clean.
func (r *Removal) awaitCleaner(ctx context.Context) error {
	said := make(map[string]string)
	var d *appsv1.DaemonSet
	var states []nodeState
	for {
		now, list, err := r.cleanerState(ctx)
		switch {
		case err == nil && now == nil:
			return nil
		case err == nil:
			d, states = now, list
		case ctx.Err() == nil || d == nil:
			return err
		}
		done := 0
		for _, s := range states {
			if s.done {
				done++
			}
			if line := s.String(); said[s.node] != line && (s.done || s.failed) {
				r.progress("%s", line)
				said[s.node] = line
			}
		}
		if d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedNumberScheduled == d.Status.DesiredNumberScheduled && done >= int(d.Status.DesiredNumberScheduled) {
			return nil
		}
		if !r.pause(ctx) {
			return late(d, states)
		}
	}
}

// cleanerState returns the DaemonSet, nil if there is none, and how far its pods
// are.
func (r *Removal) cleanerState(ctx context.Context) (*appsv1.DaemonSet, []nodeState, error) {
	o, err := r.get(ctx, daemonSets, r.Namespace, cleanerName)
	if err != nil || o == nil {
		return nil, nil, err
	}
	var d appsv1.DaemonSet
	if err := convert(o, &d); err != nil {
		return nil, nil, err
	}
	var states []nodeState
	err = r.each(ctx, pods, r.Namespace, nameLabel+"="+nameValue+","+partLabel+"="+cleanerName, func(o *unstructured.Unstructured) error {
		var p corev1.Pod
		if err := convert(o, &p); err != nil {
			return err
		}
		if p.DeletionTimestamp == nil {
			states = append(states, stateOf(&p))
		}
		return nil
	})
	return &d, states, err
}

// nodeState is how far a node is.
type nodeState struct {
	node string
	// done says that it is clean, failed that it said why it is not.
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
	s := nodeState{node: cmp.Or(p.Spec.NodeName, affinityNode(p), p.Name), detail: "its pod is " + string(cmp.Or(p.Status.Phase, corev1.PodPending))}
	s.done = p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready
	for _, c := range p.Status.InitContainerStatuses {
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

// affinityNode is the node that a pod of a DaemonSet is meant for before it is
// scheduled.
func affinityNode(p *corev1.Pod) string {
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

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// late says which nodes are not clean when the time is over.
func late(d *appsv1.DaemonSet, states []nodeState) error {
	waiting := make(map[string]string)
	for _, s := range states {
		if !s.done {
			waiting[s.node] = s.String()
		}
	}
	const again = "give more --timeout, or mend them, and run it again; daemonset " + cleanerName + " goes on meanwhile"
	if missing := int(d.Status.DesiredNumberScheduled) - len(states); missing > 0 || d.Status.ObservedGeneration != d.Generation {
		waiting["~"] = fmt.Sprintf("%d nodes have no pod of it yet", max(missing, 0))
		if d.Status.ObservedGeneration != d.Generation {
			waiting["~"] = "the cluster's controllers have not seen it yet"
		}
	}
	var words []string
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		words = append(words, waiting[node])
	}
	return fmt.Errorf("not all nodes are clean: %s (%s)", strings.Join(words, "; "), again)
}

// cleanNodeObjects takes what the agents said on Node objects off them.
func (r *Removal) cleanNodeObjects(ctx context.Context) error {
	return r.each(ctx, nodes, "", "", func(o *unstructured.Unstructured) error {
		var n corev1.Node
		if err := convert(o, &n); err != nil {
			return err
		}
		metadata, status := nodePatches(&n)
		if metadata == nil && status == nil {
			return nil
		}
		for sub, patch := range map[string]map[string]any{"": metadata, "status": status} {
			if patch == nil {
				continue
			}
			b, err := json.Marshal(patch)
			if err != nil {
				return err
			}
			_, err = r.client.Resource(nodes).Patch(ctx, n.Name, types.StrategicMergePatchType, b, metav1.PatchOptions{}, subresource(sub)...)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("node %s: take off what its agent said: %w", n.Name, err)
			}
		}
		r.progress("node %s: its object says nothing of Weft any more", n.Name)
		return nil
	})
}

func subresource(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// nodePatches returns the strategic merge patches that take annotations and
// conditions of Weft off a node, nil where there are none.
func nodePatches(n *corev1.Node) (metadata, status map[string]any) {
	gone := make(map[string]any)
	for name := range n.Annotations {
		if strings.HasPrefix(name, api.GroupVersion.Group+"/") {
			gone[name] = nil
		}
	}
	if len(gone) > 0 {
		metadata = map[string]any{"metadata": map[string]any{"annotations": gone}}
	}
	var conditions []any
	for _, c := range n.Status.Conditions {
		own := strings.HasPrefix(string(c.Type), api.GroupVersion.Group+"/") ||
			c.Type == corev1.NodeNetworkUnavailable && strings.HasPrefix(c.Reason, "Weft")
		if own {
			conditions = append(conditions, map[string]any{"$patch": "delete", "type": string(c.Type)})
		}
	}
	if len(conditions) > 0 {
		status = map[string]any{"status": map[string]any{"conditions": conditions}}
	}
	return metadata, status
}
