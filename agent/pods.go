package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// podWatch is what the agent does with the Pod objects of its node. Pods are
// networked without them: all this may be behind, or know nothing at all.
type podWatch struct {
	node     string
	registry registry.Registry
	pods     *registry.Cache
	log      *slog.Logger
	// lost, forget and endpoints are those of the CNI server.
	lost      func() []ipam.Attachment
	forget    func(context.Context, ipam.Attachment) error
	endpoints func() []plugin.Endpoint
	// kick has the data plane follow what pods say of their endpoints.
	kick func()
}

const (
	// lookForLostEvery is how often attachments without an interface are
	// looked for, and lostGrace how long the runtime has to send their DEL.
	lookForLostEvery = time.Minute
	lostGrace        = 5 * time.Minute
	// eventTimeout bounds the writing of one Event; an Event that could not be
	// written is tried again at the next change and after eventRetry.
	eventTimeout = 5 * time.Second
	eventRetry   = 30 * time.Second
)

func newPodWatch(a *agent) *podWatch {
	return &podWatch{node: a.Node, registry: a.Registry, log: a.Log, lost: a.server.Lost, forget: a.server.Forget, endpoints: a.server.Endpoints, kick: a.kick,
		pods: registry.NewCache(a.Registry, []*registry.Kind{api.Pod}, a.Log)}
}

// get returns a pod of this node, or nil where it is not known.
func (w *podWatch) get(namespace, name, uid string) *corev1.Pod {
	p := registry.GetAs[*corev1.Pod](w.pods, api.Pod, registry.Key{Namespace: namespace, Name: name})
	if p == nil || p.Spec.NodeName != w.node || !api.IsPod(p, uid) {
		return nil
	}
	return p
}

// withAsked returns endpoints with the ports of the node that lead to them and what they are
// limited to, also those of which the node does not know it: then it is what the pods ask for.
func (w *podWatch) withAsked(endpoints []plugin.Endpoint) []plugin.Endpoint {
	for i, e := range endpoints {
		p := w.says(e)
		if p == nil {
			continue
		}
		if e.Ports == nil {
			endpoints[i].Ports = plugin.HostPorts(p)
		}
		if e.Bandwidth == nil {
			// Of what is wrong with it an Event tells.
			asked, _ := api.PodNetwork(p)
			endpoints[i].Bandwidth = &plugin.Bandwidth{Ingress: uint64(asked.Ingress), Egress: uint64(asked.Egress)}
		}
	}
	return endpoints
}

// says returns the pod that says what is not known of an endpoint, nil where all is known, or
// there is none.
func (w *podWatch) says(e plugin.Endpoint) *corev1.Pod {
	if w == nil || e.Ports != nil && e.Bandwidth != nil || e.Pod == "" {
		return nil
	}
	return w.get(e.Namespace, e.Pod, e.UID)
}

// said returns the endpoints of which a pod says what is not known.
func (w *podWatch) said() (interfaces string) {
	for _, e := range w.endpoints() {
		if w.says(e) != nil {
			interfaces += e.Interface + " "
		}
	}
	return interfaces
}

// admit says what is wrong with a pod's settings, if the pod is known.
func (w *podWatch) admit(namespace, name, uid string) error {
	p := w.get(namespace, name, uid)
	if p == nil {
		return nil
	}
	if _, err := api.PodNetwork(p); err != nil {
		return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

// run follows the pods until ctx ends.
func (w *podWatch) run(ctx context.Context) {
	changes, cancel := w.pods.Subscribe()
	defer cancel()
	look := time.NewTicker(lookForLostEvery)
	defer look.Stop()
	retry := time.NewTimer(eventRetry)
	retry.Stop()
	warned := map[string]bool{}
	since := map[ipam.Key]time.Time{}
	said := ""
	for {
		if now := w.said(); now != said {
			said = now
			w.kick()
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			w.collect(ctx, since)
			continue
		case <-changes:
		case <-retry.C:
		}
		if !w.warn(ctx, warned) {
			retry.Reset(eventRetry)
		}
	}
}

// warn writes an Event for each pod of this node whose settings are wrong and
// of which warned does not tell yet. It returns whether all could be written.
func (w *podWatch) warn(ctx context.Context, warned map[string]bool) bool {
	all, there := true, map[string]bool{}
	for p := range registry.Each[*corev1.Pod](w.pods, api.Pod) {
		if p.Spec.NodeName != w.node || p.Spec.HostNetwork || api.Ended(p) {
			continue
		}
		_, err := api.PodNetwork(p)
		if err == nil {
			continue
		}
		event := podWarning(p, "InvalidAnnotation", err.Error(), w.node, metav1.Now())
		there[event.Name] = true
		if warned[event.Name] {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, eventTimeout)
		_, err = w.registry.Create(limited, api.Event, event)
		cancel()
		if err != nil && !errors.Is(err, registry.ErrExists) {
			w.log.Warn("cannot write an Event", "pod", registry.KeyOf(p), "message", event.Message, "error", err)
			all = false
			if errors.Is(err, registry.ErrUnavailable) {
				break
			}
			continue
		}
		warned[event.Name] = true
	}
	if all {
		// What is not there any more need not be remembered.
		for name := range warned {
			if !there[name] {
				delete(warned, name)
			}
		}
	}
	return all
}

// podWarning is an Event that warns of a pod. The same reason and message for
// the same pod give the same name, so that it is said once.
func podWarning(p *corev1.Pod, reason, message, host string, now metav1.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(string(p.UID) + "\x00" + reason + "\x00" + message))
	// A name has 253 characters at most, and none of its parts ends with '-'.
	name := p.Name[:min(len(p.Name), 236)]
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: strings.TrimRight(name, "-.") + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID,
			ResourceVersion: p.ResourceVersion},
		Reason: reason, Message: truncate(message), Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: eventSource, Host: host}, ReportingController: eventSource, ReportingInstance: host,
	}
}

// eventSource is who Events come from.
const eventSource = "weft-agent"

// collect frees the addresses of pods that are gone, network namespace and
// object, and for which the runtime has sent no DEL for lostGrace: it lost its
// state. since is collect's own.
func (w *podWatch) collect(ctx context.Context, since map[ipam.Key]time.Time) {
	now, lost := time.Now(), map[ipam.Key]ipam.Attachment{}
	for _, a := range w.lost() {
		// Of a pod without a name nobody can say that it is gone.
		if a.Pod != "" && w.get(a.Namespace, a.Pod, a.UID) == nil {
			lost[a.Key] = a
		}
	}
	for k := range since {
		if _, ok := lost[k]; !ok {
			delete(since, k)
		}
	}
	if !w.pods.Synced() || w.pods.Err() != nil {
		return
	}
	for k, a := range lost {
		if since[k].IsZero() {
			since[k] = now
		}
		if now.Sub(since[k]) < lostGrace {
			continue
		}
		// The cache may be behind without knowing it.
		gone, err := w.gone(ctx, a)
		if err == nil && gone {
			err = w.forget(ctx, a)
		}
		if err != nil {
			w.log.Warn("cannot tell whether a pod is gone, or free its addresses", "pod", a.Namespace+"/"+a.Pod, "container", a.ContainerID, "error", err)
			if errors.Is(err, registry.ErrUnavailable) {
				return
			}
			continue
		}
		if gone {
			w.log.Warn("freed the addresses of a pod that is gone, for which the runtime sent no DEL", "pod", a.Namespace+"/"+a.Pod, "container", a.ContainerID, "addresses", a.Addresses)
		}
	}
}

// gone asks the registry whether the pod of an attachment is not on this node.
func (w *podWatch) gone(ctx context.Context, a ipam.Attachment) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	o, err := w.registry.Get(ctx, api.Pod, registry.Key{Namespace: a.Namespace, Name: a.Pod})
	if errors.Is(err, registry.ErrNotFound) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("pod %s/%s: a %T", a.Namespace, a.Pod, o)
	}
	return p.Spec.NodeName != w.node || !api.IsPod(p, a.UID), nil
}
