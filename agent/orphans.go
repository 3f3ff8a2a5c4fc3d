package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

const (
	// lookForOrphansEvery is how often pods are looked for that have an interface and
	// no object.
	lookForOrphansEvery = 10 * time.Second
	// orphanGrace is how long a pod must have had no object before it is told of: in
	// the normal course the object goes a moment before the runtime sends the DEL.
	orphanGrace = 30 * time.Second
	// orphansAsked is how many pods the registry is asked about each time, so that
	// large nodes together do not keep it busy.
	orphansAsked = 16
)

// orphanWatch finds the node's pods that have an interface in the default network and
// no object, as after a deletion by force. They run on, and the node has them in its plan; who compiles
// one from the registry's objects does not know of them.
type orphanWatch struct {
	node string
	log  *slog.Logger
	// endpoints are those of the node's plan.
	endpoints func() []plugin.Endpoint
	// known reports whether what the agent follows shows the object of a pod. Such
	// pods the registry is not asked about.
	known func(namespace, name, uid string) bool
	get   func(context.Context, registry.Key) (registry.Object, error)
	// tell is told the orphans when they are known, and when they change.
	tell func(api.Orphans)

	// since is when an endpoint's object was first found to be gone, by interface.
	since map[string]time.Time
	// last is the interface of whom was asked last; the next time goes on after it.
	last string
	// unsettled are the interfaces of the first look of which it is not known yet
	// whether they are an orphan's, nil before that look. Until there are none, nothing
	// is told: it would take back what the agent before this one told of them.
	unsettled map[string]bool
	// told is the text that was told last, nil while none was.
	told *string
}

func newOrphanWatch(a *agent) *orphanWatch {
	w := &orphanWatch{node: a.Node, log: a.Log, endpoints: a.endpoints,
		known: func(string, string, string) bool { return false },
		get: func(ctx context.Context, key registry.Key) (registry.Object, error) {
			return a.Registry.Get(ctx, api.Pod, key)
		},
		tell: func(o api.Orphans) {
			text := o.Text()
			a.mu.Lock()
			a.orphans = &text
			a.mu.Unlock()
			a.node.Kick()
		}}
	if a.pods != nil {
		w.known = func(namespace, name, uid string) bool { return a.pods.get(namespace, name, uid) != nil }
	}
	return w
}

// run looks until ctx ends.
func (w *orphanWatch) run(ctx context.Context) {
	for {
		w.look(ctx, time.Now())
		retry.Sleep(ctx, lookForOrphansEvery)
		if ctx.Err() != nil {
			return
		}
	}
}

// look asks about some of the node's pods, and tells of those that have had no object
// for orphanGrace. What cannot be asked stays as it was. A pod whose object cannot be
// read keeps no other from its turn; while the registry is away, nobody has one.
func (w *orphanWatch) look(ctx context.Context, now time.Time) {
	var named, ask []plugin.Endpoint
	since := make(map[string]time.Time)
	for _, e := range w.endpoints() {
		// Whose it is nobody can say, or what is told has no room for its network.
		if e.Pod == "" || e.Network != plan.DefaultNetwork {
			continue
		}
		named = append(named, e)
		if !w.known(e.Namespace, e.Pod, e.UID) {
			ask = append(ask, e)
			if at, ok := w.since[e.Interface]; ok {
				since[e.Interface] = at
			}
		}
	}
	w.since = since
	if w.unsettled == nil {
		w.unsettled = make(map[string]bool)
		for _, e := range ask {
			w.unsettled[e.Interface] = true
		}
	}
	for _, e := range w.turn(ask) {
		gone, err := w.gone(ctx, e)
		if err != nil {
			w.log.Debug("cannot tell whether there is an object of a pod", "pod", e.Name(), "error", err)
			if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
				break
			}
			delete(w.unsettled, e.Interface)
		} else if !gone {
			delete(w.since, e.Interface)
			delete(w.unsettled, e.Interface)
		} else if w.since[e.Interface].IsZero() {
			w.since[e.Interface] = now
		}
		w.last = e.Interface
	}
	maps.DeleteFunc(w.unsettled, func(name string, _ bool) bool {
		return w.long(name, now) || !slices.ContainsFunc(ask, func(e plugin.Endpoint) bool { return e.Interface == name })
	})
	if len(w.unsettled) == 0 {
		w.say(named, now)
	}
}

// long reports whether there has been no object of an interface's pod for long enough
// to tell of it.
func (w *orphanWatch) long(name string, now time.Time) bool {
	at, gone := w.since[name]
	return gone && now.Sub(at) >= orphanGrace
}

// turn returns those to be asked about now: orphansAsked of them, after those of the
// last time.
func (w *orphanWatch) turn(all []plugin.Endpoint) []plugin.Endpoint {
	slices.SortFunc(all, func(a, b plugin.Endpoint) int { return cmp.Compare(a.Interface, b.Interface) })
	if len(all) <= orphansAsked {
		return all
	}
	next := slices.IndexFunc(all, func(e plugin.Endpoint) bool { return e.Interface > w.last })
	next = max(next, 0)
	return slices.Concat(all[next:], all[:next])[:orphansAsked]
}

// gone asks the registry whether the object of an endpoint's pod is gone.
func (w *orphanWatch) gone(ctx context.Context, e plugin.Endpoint) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	o, err := w.get(ctx, registry.Key{Namespace: e.Namespace, Name: e.Pod})
	if errors.Is(err, registry.ErrNotFound) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	p, ok := o.(*corev1.Pod)
	return ok && (p.Spec.NodeName != w.node || !api.IsPod(p, e.UID)), nil
}

// say tells of the endpoints that have been without an object for long enough.
func (w *orphanWatch) say(endpoints []plugin.Endpoint, now time.Time) {
	var o api.Orphans
	for _, e := range endpoints {
		if w.long(e.Interface, now) {
			orphan := api.Orphan{Namespace: e.Namespace, Name: e.Pod, UID: e.UID}
			for _, a := range e.Addresses {
				orphan.Addresses = append(orphan.Addresses, a.String())
			}
			o.Pods = append(o.Pods, orphan)
		}
	}
	slices.SortFunc(o.Pods, func(a, b api.Orphan) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), slices.Compare(a.Addresses, b.Addresses))
	})
	text := o.Text()
	if w.told != nil && text == *w.told {
		return
	}
	if text != "" {
		w.log.Warn("pods have an interface, and there is no object of them", "orphans", text)
	}
	w.told = &text
	w.tell(o)
}
