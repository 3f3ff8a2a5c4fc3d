package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/ipam"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// flaky is a registry that counts calls and may fail.
type flaky struct {
	registry.Registry
	mu    sync.Mutex
	err   error
	calls map[string]int
}

func newFlaky() *flaky { return &flaky{Registry: memory.New(), calls: map[string]int{}} }

func (f *flaky) call(verb string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[verb]++
	return f.err
}

func (f *flaky) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// count returns how many calls there were, and starts anew.
func (f *flaky) count() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		n += c
	}
	clear(f.calls)
	return n
}

func (f *flaky) Get(ctx context.Context, k *registry.Kind, key registry.Key) (registry.Object, error) {
	if err := f.call("get"); err != nil {
		return nil, err
	}
	return f.Registry.Get(ctx, k, key)
}

func (f *flaky) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := f.call("create"); err != nil {
		return nil, err
	}
	return f.Registry.Create(ctx, k, o, opts...)
}

func (f *flaky) Update(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	if err := f.call("update"); err != nil {
		return nil, err
	}
	return f.Registry.Update(ctx, k, o, opts...)
}

func pod(name, uid, node string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), Annotations: annotations},
		Spec: corev1.PodSpec{NodeName: node}}
}

func attachment(name, uid string) ipam.Attachment {
	return ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: "c-" + name, IfName: "eth0"}, Network: plan.DefaultNetwork, PodName: ipam.PodName{Namespace: "default", Pod: name, UID: uid}}}
}

// watched is a podWatch that runs, and what it does.
type watched struct {
	*podWatch
	reg *flaky

	mu        sync.Mutex
	none      []ipam.Attachment // what has no interface
	forgotten []string
	attached  []plugin.Endpoint
	kicks     atomic.Int32
}

func watchPods(t *testing.T, pods ...*corev1.Pod) *watched {
	w := &watched{reg: newFlaky()}
	for _, p := range pods {
		w.create(t, api.Pod, p)
	}
	log := slog.New(slog.DiscardHandler)
	w.podWatch = &podWatch{node: "node1", registry: w.reg, log: log, pods: registry.NewCache(w.reg, []*registry.Kind{api.Pod}, log),
		lost: func() []ipam.Attachment {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.none
		},
		forget: func(_ context.Context, a ipam.Attachment) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.forgotten = append(w.forgotten, a.Pod)
			w.none = nil
			return nil
		},
		endpoints: func() []plugin.Endpoint {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.attached)
		},
		kick: func() { w.kicks.Add(1) },
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.pods.Run(ctx) })
	wg.Go(func() { w.run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	synctest.Wait()
	return w
}

// TestWhatPodsAsked has endpoints of which the node does not know the ports and limits: these are
// what their pods ask for, once those are known.
func TestWhatPodsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchPods(t)
		endpoint := func(name, uid string, ports []plugin.Port, limit *plugin.Bandwidth) plugin.Endpoint {
			return plugin.Endpoint{Interface: "weft-" + name, Namespace: "default", Pod: name, UID: uid, Ports: ports, Bandwidth: limit}
		}
		w.mu.Lock()
		w.attached = []plugin.Endpoint{endpoint("known", "u1", []plugin.Port{}, &plugin.Bandwidth{}), endpoint("half", "u5", []plugin.Port{}, nil),
			endpoint("lost", "u2", nil, nil), endpoint("other", "u3", nil, nil), {Interface: "weft-nobody"}}
		w.mu.Unlock()
		asked := func() (all []string) {
			for _, e := range w.withAsked(w.endpoints()) {
				limit := ""
				if e.Bandwidth != nil {
					limit = fmt.Sprint(*e.Bandwidth)
				}
				all = append(all, fmt.Sprint(e.Interface, " ", e.Ports, limit))
			}
			return all
		}
		if got, want := asked(), []string{"weft-known []{0 0}", "weft-half []", "weft-lost []", "weft-other []", "weft-nobody []"}; !slices.Equal(got, want) {
			t.Errorf("before there are pods they are %q", got)
		}
		for name, uid := range map[string]string{"known": "u1", "half": "u5", "lost": "u2", "other": "not the endpoint's"} {
			p := pod(name, uid, "node1", map[string]string{api.IngressBandwidth: "10M", api.EgressBandwidth: "20M"})
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80, ContainerPort: 8080}}}}
			w.create(t, api.Pod, p)
		}
		synctest.Wait()
		if got, want := asked(), []string{"weft-known []{0 0}", "weft-half []{10000000 20000000}", "weft-lost [80/TCP]{10000000 20000000}", "weft-other []", "weft-nobody []"}; !slices.Equal(got, want) {
			t.Errorf("they are %q, and not %q", got, want)
		}
		kicks := w.kicks.Load()
		if kicks == 0 {
			t.Error("the data plane was not told")
		}
		w.create(t, api.Pod, pod("more", "u4", "node1", nil))
		synctest.Wait()
		if n := w.kicks.Load(); n != kicks {
			t.Errorf("the data plane was told %d times, although nothing has changed", n-kicks)
		}
	})
}

func (w *watched) create(t *testing.T, k *registry.Kind, o registry.Object) {
	t.Helper()
	if _, err := w.reg.Registry.Create(t.Context(), k, o); err != nil {
		t.Fatal(err)
	}
}

// freed is of which pods the addresses were freed.
func (w *watched) freed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.forgotten)
}

func (w *watched) events(t *testing.T) []*corev1.Event {
	t.Helper()
	objects, _, err := w.reg.List(t.Context(), api.Event)
	if err != nil {
		t.Fatal(err)
	}
	var events []*corev1.Event
	for _, o := range objects {
		events = append(events, o.(*corev1.Event))
	}
	return events
}

var invalid = map[string]string{api.IngressBandwidth: "fast"}

func TestAPodWithInvalidAnnotationsIsRefusedAndToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		onHost := pod("onhost", "u4", "node1", invalid)
		onHost.Spec.HostNetwork = true
		w := watchPods(t, pod("good", "u1", "node1", nil), pod("bad", "u2", "node1", invalid), pod("elsewhere", "u3", "node2", invalid), onHost)
		if err := w.admit("default", "good", "u1"); err != nil {
			t.Error(err)
		}
		if err := w.admit("default", "bad", "u2"); err == nil || !strings.Contains(err.Error(), `ingress-bandwidth="fast"`) {
			t.Errorf("got %v", err)
		}
		// Of another pod of the name, and of one that is not known, nothing is.
		for _, name := range []string{"bad", "unknown"} {
			if err := w.admit("default", name, "u9"); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			w.create(t, api.Pod, pod("more"+time.Now().Format("150405"), "", "node1", nil))
			time.Sleep(time.Second)
		}
		events := w.events(t)
		if len(events) != 1 {
			t.Fatalf("there are %d events", len(events))
		}
		e := events[0]
		if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != "bad" || e.InvolvedObject.UID != "u2" || e.Type != corev1.EventTypeWarning ||
			e.Reason != "InvalidAnnotation" || e.Source.Component != "weft-agent" || e.Source.Host != "node1" || !strings.Contains(e.Message, "fast") {
			t.Errorf("the event is %+v", e)
		}
		if n := w.reg.count(); n != 1 {
			t.Errorf("%d calls to write one event", n)
		}
	})
}

func TestAnEventThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchPods(t)
		w.reg.fail(registry.ErrUnavailable)
		w.create(t, api.Pod, pod("bad", "u2", "node1", invalid))
		synctest.Wait()
		if n := len(w.events(t)); n != 0 {
			t.Fatalf("there are %d events", n)
		}
		w.reg.fail(nil)
		time.Sleep(eventRetry + time.Second)
		if n := len(w.events(t)); n != 1 {
			t.Errorf("there are %d events", n)
		}
	})
}

func TestEventNames(t *testing.T) {
	now := metav1.Now()
	a := podWarning(pod("web", "u1", "", nil), "R", "m", "node1", now)
	for _, same := range []*corev1.Event{podWarning(pod("web", "u1", "", nil), "R", "m", "node2", now)} {
		if same.Name != a.Name {
			t.Errorf("%s is not %s", same.Name, a.Name)
		}
	}
	for _, other := range []*corev1.Event{podWarning(pod("web", "u2", "", nil), "R", "m", "node1", now),
		podWarning(pod("web", "u1", "", nil), "R", "n", "node1", now), podWarning(pod("web", "u1", "", nil), "S", "m", "node1", now)} {
		if other.Name == a.Name {
			t.Errorf("two events are called %s", a.Name)
		}
	}
	for _, name := range []string{strings.Repeat("a", 253), strings.Repeat("a", 235) + "-b", strings.Repeat("a", 234) + "-." + "b"} {
		e := podWarning(pod(name, "u1", "", nil), "R", strings.Repeat("m", 5000), "node1", now)
		if err := api.Event.Validate(e); err != nil || len(e.Message) > 1024 {
			t.Errorf("%v, the message has %d bytes", err, len(e.Message))
		}
	}
}

// TestWhatARuntimeForgotIsFreed walks through the ways in which an attachment
// can be without an interface.
func TestWhatARuntimeForgotIsFreed(t *testing.T) {
	for _, test := range []struct {
		name   string
		exists *corev1.Pod
		lost   ipam.Attachment
		err    error
		want   bool
	}{
		{name: "the pod is gone", lost: attachment("web", "u1"), want: true},
		{name: "the pod is there", exists: pod("web", "u1", "node1", nil), lost: attachment("web", "u1")},
		{name: "its UID is not known", exists: pod("web", "u1", "node1", nil), lost: attachment("web", "")},
		{name: "another pod has its name", exists: pod("web", "u2", "node1", nil), lost: attachment("web", "u1"), want: true},
		{name: "it is on another node", exists: pod("web", "u1", "node2", nil), lost: attachment("web", "u1"), want: true},
		{name: "it is a static pod", lost: attachment("web", "hash"),
			exists: pod("web", "u1", "node1", map[string]string{corev1.MirrorPodAnnotationKey: "hash"})},
		{name: "nobody knows whose it is", lost: ipam.Attachment{Request: ipam.Request{Key: ipam.Key{ContainerID: "c", IfName: "eth0"}}}},
		{name: "the registry does not answer", lost: attachment("web", "u1"), err: registry.ErrUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pods []*corev1.Pod
				if test.exists != nil {
					pods = append(pods, test.exists)
				}
				w := watchPods(t, pods...)
				w.reg.fail(test.err)
				w.mu.Lock()
				w.none = []ipam.Attachment{test.lost}
				w.mu.Unlock()
				time.Sleep(lostGrace)
				if len(w.freed()) > 0 {
					t.Error("forgotten before its time")
				}
				time.Sleep(2 * lookForLostEvery)
				synctest.Wait()
				if got := len(w.freed()) == 1; got != test.want {
					t.Errorf("forgotten: %v", w.freed())
				}
				if test.err != nil {
					w.reg.fail(nil)
					time.Sleep(2 * lookForLostEvery)
					if len(w.freed()) != 1 {
						t.Error("not forgotten when the registry was back")
					}
				}
			})
		})
	}
}

func TestTheNodeIsWrittenOnlyWhenThereIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := newFlaky()
		var mu sync.Mutex
		state := nodeState{Addresses: addresses("172.30.0.11")}
		var problems []string
		r := &registrar{registry: reg, name: "node1", kick: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			leased: func() bool { return true },
			state: func() nodeState {
				mu.Lock()
				defer mu.Unlock()
				return state
			}}
		r.problem = func(s string) {
			mu.Lock()
			defer mu.Unlock()
			if len(problems) == 0 || problems[len(problems)-1] != s {
				problems = append(problems, s)
				r.Kick() // as the agent does
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.Run(ctx) })
		defer wg.Wait()
		defer cancel()

		// The kubelet has not made it yet.
		time.Sleep(5500 * time.Millisecond)
		if n := reg.count(); n < 5 || n > 7 {
			t.Errorf("%d calls in 5.5 s of waiting for the Node", n)
		}
		if _, err := reg.Registry.Create(ctx, api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.99"}}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		o, err := reg.Registry.Get(ctx, api.Node, registry.Key{Name: "node1"})
		if err != nil {
			t.Fatal(err)
		}
		if n := o.(*corev1.Node); len(n.Status.Conditions) != 2 || n.Status.Addresses[0].Address != "172.30.0.99" {
			t.Errorf("the kubelet's Node says %+v", n.Status)
		}

		// Pods come and go; the Node stays as it is.
		reg.count()
		for range 60 {
			r.Kick()
			synctest.Wait()
		}
		if n := reg.count(); n != 0 {
			t.Errorf("%d calls though there was no news", n)
		}

		mu.Lock()
		state.OutOfSync = "registry: not following hostsubnets"
		mu.Unlock()
		r.Kick()
		synctest.Wait()
		if n := reg.count(); n != 2 {
			t.Errorf("%d calls for one change, want a read and a write", n)
		}

		// What others take away is back at once, and is not fought for.
		others := func(edit func(*corev1.Node)) {
			o, err := reg.Registry.Get(ctx, api.Node, registry.Key{Name: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			edit(o.(*corev1.Node))
			if _, err := reg.Registry.Update(ctx, api.Node, o); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		said := func() string {
			o, err := reg.Registry.Get(ctx, api.Node, registry.Key{Name: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			return o.(*corev1.Node).Annotations[api.MTUAnnotation]
		}
		mu.Lock()
		state.MTU = 1450
		mu.Unlock()
		r.Kick()
		time.Sleep(amendEvery)
		reg.count()
		before := said()
		others(func(n *corev1.Node) { n.Annotations = nil })
		if got := said(); got != "1450" || got != before || reg.count() != 2 {
			t.Errorf("behind others' write the Node says MTU %q, it said %q", got, before)
		}
		for range 100 {
			others(func(n *corev1.Node) { n.Annotations[api.MTUAnnotation] = "x" })
		}
		if n := reg.count(); n != 0 {
			t.Errorf("%d calls at once against who goes on writing", n)
		}
		time.Sleep(2 * amendEvery) // as it is the second time
		synctest.Wait()
		if got := said(); got != before || reg.count() != 2 {
			t.Errorf("in the end the Node says MTU %q, it said %q", got, before)
		}
		others(func(n *corev1.Node) { n.Labels = map[string]string{"zone": "a"} })
		if n := reg.count(); n != 0 {
			t.Errorf("%d calls for what others may write", n)
		}

		// A right that is missing is named, and not asked for without pause.
		reg.fail(errors.New("nodes/status is forbidden"))
		mu.Lock()
		state.OutOfSync, problems = "", nil
		mu.Unlock()
		for range 100 {
			r.Kick()
			synctest.Wait()
		}
		if n := reg.count(); n != 1 {
			t.Errorf("%d calls at once though they are refused", n)
		}
		if len(problems) != 1 || !strings.Contains(problems[0], "nodes/status is forbidden") {
			t.Errorf("the problem is given as %q", problems)
		}
		reg.fail(nil)
		time.Sleep(retryAfter + time.Millisecond)
		synctest.Wait()
		if len(problems) != 2 || problems[1] != "" {
			t.Errorf("the problem is still %q", problems)
		}
	})
}
