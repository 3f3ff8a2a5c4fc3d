package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// lookForCutOffEvery is how often pods are looked for that have an address and
// no interface. Such a pod is told of when it is found twice in a row: a DEL
// that is on its way is no problem.
const lookForCutOffEvery = 3 * time.Second

// cutOffWatch finds the node's pods that have an address and no interface, as
// when somebody deleted that. The plan does not have them, but whoever compiles
// one from the registry's objects takes them to be reached.
type cutOffWatch struct {
	node string
	log  *slog.Logger
	// attached are the attachments that the node knows, and lost those of them
	// that were ready and whose interface is gone.
	attached, lost func() []ipam.Attachment
	// collected are those that the runtime had taken away, as none of its containers,
	// since the last call.
	collected func() []ipam.Attachment
	// own asks the registry for the node's pods, and get for one.
	own func(context.Context) ([]*corev1.Pod, error)
	get func(context.Context, registry.Key) (registry.Object, error)
	// tell is told what is wrong when that changes.
	tell func([]api.Problem)

	// unrecorded are pods that have an address, and of which the node knew nothing when
	// the agent started, or knows nothing since the runtime had what it knew taken away;
	// nil before the registry was asked.
	unrecorded map[registry.Key]*corev1.Pod
	// taken are the attachments collected of which it is not known yet whether their
	// pods run.
	taken []ipam.Attachment
	// before is what was found last, and told what was told last.
	before map[registry.Key]api.Problem
	told   []api.Problem
}

func newCutOffWatch(a *agent) *cutOffWatch {
	return &cutOffWatch{node: a.Node, log: a.Log, attached: a.server.Attachments, lost: a.server.Lost, collected: a.server.Collected, own: a.ownPods,
		get: func(ctx context.Context, key registry.Key) (registry.Object, error) {
			return a.Registry.Get(ctx, api.Pod, key)
		},
		tell: func(wrong []api.Problem) {
			a.mu.Lock()
			a.cutOff = wrong
			a.mu.Unlock()
			a.node.Kick()
		}}
}

// run looks until ctx ends.
func (w *cutOffWatch) run(ctx context.Context) {
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookForCutOffEvery):
		}
	}
}

// look finds what is wrong now, and tells what was so the last time, too.
func (w *cutOffWatch) look(ctx context.Context) {
	found := w.find(ctx)
	if ctx.Err() != nil {
		return
	}
	var wrong []api.Problem
	for _, key := range slices.SortedFunc(maps.Keys(found), registry.Key.Compare) {
		if _, again := w.before[key]; again {
			wrong = append(wrong, found[key])
		}
	}
	w.before = found
	if slices.Equal(wrong, w.told) {
		return
	}
	for _, p := range wrong {
		if !slices.Contains(w.told, p) {
			w.log.Warn("a pod is cut off", "pod", p.Namespace+"/"+p.Name, "problem", p.Message)
		}
	}
	w.told = wrong
	w.tell(wrong)
}

func (w *cutOffWatch) find(ctx context.Context) map[registry.Key]api.Problem {
	found := make(map[registry.Key]api.Problem)
	add := func(key registry.Key, message string) {
		found[key] = api.Problem{Kind: api.Pod.Kind, Namespace: key.Namespace, Name: key.Name,
			Message: message + ", so that no packet reaches it or comes from it", Remedy: "delete the pod, so that it is made anew"}
	}
	for _, l := range w.lost() {
		// One without a name has no Pod that could be asked about.
		key := registry.Key{Namespace: l.Namespace, Name: l.Pod}
		if l.Pod != "" && w.runs(ctx, key, func(p *corev1.Pod) bool { return api.IsPod(p, l.UID) }) {
			if _, told := found[key]; told && l.Secondary {
				continue // the one behind which the rest of the world is comes first
			}
			in := ""
			if l.Network != plan.DefaultNetwork {
				in = " in network " + l.Network
			}
			add(key, fmt.Sprintf("its interface %s%s on %s is gone", l.HostInterface, in, w.node))
		}
	}
	if w.unrecorded == nil {
		pods, err := w.own(ctx)
		if err != nil {
			w.log.Debug("cannot tell yet whether the node knows all its pods", "error", err)
			return found
		}
		w.unrecorded = make(map[registry.Key]*corev1.Pod)
		for _, p := range pods {
			if !api.Ended(p) && len(podAddresses(p)) > 0 {
				w.unrecorded[registry.KeyOf(p)] = p
			}
		}
	}
	w.taken = slices.DeleteFunc(append(w.taken, w.collected()...), func(a ipam.Attachment) bool {
		key, answered := registry.Key{Namespace: a.Namespace, Name: a.Pod}, false
		mayRun := a.Pod != "" && w.runs(ctx, key, func(p *corev1.Pod) bool {
			if answered = true; api.IsPod(p, a.UID) && len(podAddresses(p)) > 0 {
				w.unrecorded[key] = p
			}
			return true
		})
		return answered || !mayRun
	})
	if len(w.unrecorded) == 0 {
		return found
	}
	attached := w.attached()
	for key, pod := range w.unrecorded {
		known := slices.ContainsFunc(attached, func(a ipam.Attachment) bool {
			return a.Namespace == key.Namespace && a.Pod == key.Name || a.Unidentified && hasAddresses(pod, a)
		})
		addresses := podAddresses(pod)
		if known || !w.runs(ctx, key, func(p *corev1.Pod) bool { return p.UID == pod.UID && slices.Equal(podAddresses(p), addresses) }) {
			delete(w.unrecorded, key)
			continue
		}
		add(key, fmt.Sprintf("%s knows no interface of it with its address %s", w.node, strings.Join(addresses, ", ")))
	}
	return found
}

// runs reports whether a pod is one of the node that has not ended, as far as
// is known, and is says yes to it.
func (w *cutOffWatch) runs(ctx context.Context, key registry.Key, is func(*corev1.Pod) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	o, err := w.get(ctx, key)
	if err != nil {
		return !errors.Is(err, registry.ErrNotFound)
	}
	p, ok := o.(*corev1.Pod)
	return ok && p.Spec.NodeName == w.node && !p.Spec.HostNetwork && !api.Ended(p) && is(p)
}

// podAddresses are the addresses that a pod says it has.
func podAddresses(p *corev1.Pod) []string {
	var addresses []string
	for _, ip := range p.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	if len(addresses) == 0 && p.Status.PodIP != "" {
		addresses = []string{p.Status.PodIP}
	}
	return addresses
}
