package removal

import (
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
	"github.com/weftnet/weft/cli/everynode"
	"github.com/weftnet/weft/internal/printable"
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

// work is what cleans the nodes.
func (r *Removal) work() *everynode.Work {
	w := &everynode.Work{Client: r.client, Namespace: r.Namespace, Name: cleanerName, Progress: r.Progress, Poll: r.Poll}
	if r.Force {
		w.LeftOut = func(ctx context.Context) (_ map[string]bool, err error) {
			r.left, err = r.down(ctx)
			return r.left, err
		}
	}
	return w
}

// down returns the nodes of whose kubelets nothing is heard.
func (r *Removal) down(ctx context.Context) (map[string]bool, error) {
	out := make(map[string]bool)
	err := r.each(ctx, nodes, "", "", func(o *unstructured.Unstructured) error {
		var n corev1.Node
		if err := convert(o, &n); err != nil {
			return err
		}
		if everynode.Ready(&n) == corev1.ConditionUnknown {
			out[n.Name] = true
		}
		return nil
	})
	return out, err
}

// cleanNodes ends the agents and has the nodes cleaned.
func (r *Removal) cleanNodes(ctx context.Context) error {
	agents, err := everynode.Get(ctx, r.client, r.Namespace, agentName)
	if err != nil {
		return err
	}
	if agents != nil {
		// What it is made from goes only when it is there. Its pods wait for
		// the agents to end.
		if err := r.work().Put(ctx, cleaner(agents, r.Force)); err != nil {
			return err
		}
		if err := r.delete(ctx, object{everynode.DaemonSets, r.Namespace, agentName}); err != nil {
			return err
		}
	} else if err := r.forceCleaner(ctx); err != nil {
		return err
	}
	if r.Force {
		return r.work().Await(ctx)
	}
	down, err := r.down(ctx)
	if err != nil {
		return err
	}
	if err = r.work().Await(ctx); err != nil && len(down) > 0 {
		return fmt.Errorf("%w; --force leaves out nodes of whose kubelets nothing is heard: %s", err, named(down))
	}
	return err
}

// named names a few nodes of some.
func named(some map[string]bool) string { return printable.Few(slices.Sorted(maps.Keys(some)), 0) }

// forceCleaner gives the DaemonSet that an earlier run made --force, if this one
// has it.
func (r *Removal) forceCleaner(ctx context.Context) error {
	d, err := everynode.Get(ctx, r.client, r.Namespace, cleanerName)
	if err != nil || d == nil || !r.Force {
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
	return r.work().Put(ctx, d)
}

// cleanNodeObjects takes what the agents said on Node objects off them, and returns of how many.
func (r *Removal) cleanNodeObjects(ctx context.Context) (count int, err error) {
	err = r.each(ctx, nodes, "", "", func(o *unstructured.Unstructured) error {
		var n corev1.Node
		if err := convert(o, &n); err != nil {
			return err
		}
		metadata, status := nodePatches(&n, r.Purge)
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
		r.progress("node %s: took Weft's annotations and conditions off its object", n.Name)
		count++
		return nil
	})
	return count, err
}

func subresource(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// nodePatches returns the strategic merge patches that take annotations and
// conditions of Weft off a node, nil where there are none. What a user wrote there stays unless
// purge is given.
func nodePatches(n *corev1.Node, purge bool) (metadata, status map[string]any) {
	gone := make(map[string]any)
	for name := range n.Annotations {
		if strings.HasPrefix(name, api.GroupVersion.Group+"/") {
			gone[name] = nil
		}
	}
	// Under that name agents of earlier versions said something else, which asks for nothing.
	if !purge && api.AskedDataPlane(n) != "" {
		delete(gone, api.DataPlaneAnnotation)
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
