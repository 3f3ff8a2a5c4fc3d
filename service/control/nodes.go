package control

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// Where Kubernetes' own controllers do not run, nobody else finds out that a node is dead, and its pods go on to
// say that they are ready. So a Node says that nothing is known of it (its condition Ready is Unknown, with Kubernetes' own
// reason) once its agent has held no lease for nodeGrace, and what Services select there is not ready then, as
// under Kubernetes' node controller. An agent that comes back takes that away. Nor is a pod ready whose Node
// somebody deleted.
const (
	// nodeGrace is for how long a node's lease may be nobody's. With the lease's own time (--lease-ttl, 15 s), that is the
	// 40 s after which Kubernetes' controllers have long done the same.
	nodeGrace = 25 * time.Second
	// watchPause is how often leases are looked at.
	watchPause = 5 * time.Second
	// unheard is the reason of the condition.
	unheard = "NodeStatusUnknown"
)

// watch finds out which nodes are heard of no more. The zero value has seen none.
type watch struct {
	// since says of nodes whose lease nobody holds when that was seen first.
	since map[string]time.Time
}

// place is what is known of a node that pods are on.
type place struct {
	zone   string
	silent bool
}

// places are those of all nodes.
func places(objects registry.Objects) map[string]place {
	all := make(map[string]place)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		all[n.Name] = place{n.Labels[corev1.LabelTopologyZone], IsSilent(n)}
	}
	return all
}

// isGone reports whether a pod's node is, or nothing is known of it.
func isGone(pod *corev1.Pod, nodes map[string]place) bool {
	node, there := nodes[pod.Spec.NodeName]
	return pod.Spec.NodeName != "" && (!there || node.silent)
}

// marking is a Node that is to say that nothing is known of it, or to say that no more.
type marking struct {
	node   string
	silent bool
}

// look has Nodes say what follows from the leases that somebody holds now.
func (w *watch) look(ctx context.Context, r registry.Registry, objects registry.Objects) error {
	var held map[string]string
	if err := within(ctx, func(ctx context.Context) (err error) {
		held, err = r.Holders(ctx, api.NodeLeasePrefix)
		return err
	}); err != nil {
		w.since = nil // nobody knows who held one meanwhile
		return err
	}
	var calls []call
	for _, m := range w.decide(objects, held, time.Now()) {
		calls = append(calls, call{Do: m.write})
	}
	return carryOut(ctx, r, slices.Values(calls))
}

// decide says which Nodes are to say something else, where held are the leases that somebody holds. Of a node that no
// agent has ever told of, nothing follows. Nothing follows either where no agent holds a lease: it is the registry
// or the way there, then, that was away.
func (w *watch) decide(objects registry.Objects, held map[string]string, now time.Time) (all []marking) {
	before := w.since
	w.since = make(map[string]time.Time)
	for n := range registry.Each[*corev1.Node](objects, api.Node) {
		_, alive := held[api.NodeLease(n.Name)]
		switch {
		case alive && IsSilent(n):
			all = append(all, marking{node: n.Name})
		case alive || len(held) == 0 || IsSilent(n) || !hasAgent(n):
		default:
			since, known := before[n.Name]
			if !known {
				since = now
			}
			w.since[n.Name] = since
			if now.Sub(since) >= nodeGrace {
				all = append(all, marking{node: n.Name, silent: true})
			}
		}
	}
	return all
}

// hasAgent reports whether an agent has told of a node.
func hasAgent(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == api.NodeInSync })
}

// IsSilent reports whether a Node says that nothing is known of it, as this package has it say, and Kubernetes' node
// controller: its pods are no endpoints that are ready then.
func IsSilent(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, saysUnheard)
}

// saysUnheard reports whether a condition is the one by which a Node says that.
func saysUnheard(c corev1.NodeCondition) bool {
	return c.Type == corev1.NodeReady && c.Reason == unheard
}

// write has the Node say it.
func (m marking) write(ctx context.Context, r registry.Registry) error {
	_, err := registry.ModifyOnce(ctx, r, api.Node, registry.Key{Name: m.node}, func(n *corev1.Node) error {
		m.put(n, metav1.Now())
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}

// put has the Node say it. Of each type there is one condition: somebody else's that says whether the node is ready is not
// known to hold either.
func (m marking) put(n *corev1.Node, now metav1.Time) {
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return saysUnheard(c) || m.silent && c.Type == corev1.NodeReady
	})
	if m.silent {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: unheard,
			Message: "its agent holds no lease: what Services select there is not ready", LastTransitionTime: now})
	}
}
