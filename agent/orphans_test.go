package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// orphanScene is a node's endpoints and the objects of their pods.
type orphanScene struct {
	endpoints []plugin.Endpoint
	objects   map[registry.Key]*corev1.Pod
	outage    error
	// unreadable are the pods whose objects cannot be read.
	unreadable map[string]bool
	asked      int
	told       api.Orphans
	tellings   int
}

func (s *orphanScene) watch() *orphanWatch {
	return &orphanWatch{node: "node1", log: slog.New(slog.DiscardHandler),
		endpoints: func() []plugin.Endpoint { return s.endpoints },
		known:     func(string, string, string) bool { return false },
		get: func(_ context.Context, key registry.Key) (registry.Object, error) {
			s.asked++
			if s.outage != nil {
				return nil, s.outage
			}
			if s.unreadable[key.Name] {
				return nil, fmt.Errorf("pod %s cannot be read", key)
			}
			if p := s.objects[key]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("pod %s: %w", key, registry.ErrNotFound)
		},
		tell: func(o api.Orphans) { s.told, s.tellings = o, s.tellings+1 }}
}

func endpoint(i int) plugin.Endpoint {
	name := fmt.Sprintf("web-%03d", i)
	return plugin.Endpoint{Interface: "weft" + name, Network: plan.DefaultNetwork, Namespace: "default", Pod: name, UID: "u1",
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i / 200), byte(2 + i%200)})}}
}

// TestOrphans looks at which pods are told to have no object, and when.
func TestOrphans(t *testing.T) {
	key := registry.Key{Namespace: "default", Name: "web-000"}
	elsewhere := pod(key.Name, "u1", "node2", nil)
	for name, test := range map[string]struct {
		object *corev1.Pod
		e      func(*plugin.Endpoint)
		known  bool
		want   bool
	}{
		"the object is there":                 {object: pod(key.Name, "u1", "node1", nil)},
		"what is followed shows the object":   {known: true},
		"there is no object":                  {want: true},
		"there is one of another pod":         {object: pod(key.Name, "u2", "node1", nil), want: true},
		"it is another node's":                {object: elsewhere, want: true},
		"it is not known whose interface":     {e: func(e *plugin.Endpoint) { e.Pod = "" }},
		"it is in another network":            {e: func(e *plugin.Endpoint) { e.Network = "red" }},
		"no UID is known, there is an object": {object: pod(key.Name, "u1", "node1", nil), e: func(e *plugin.Endpoint) { e.UID = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			e := endpoint(0)
			if test.e != nil {
				test.e(&e)
			}
			s := &orphanScene{endpoints: []plugin.Endpoint{e}, objects: map[registry.Key]*corev1.Pod{key: test.object}}
			w, start := s.watch(), time.Now()
			if test.known {
				w.known = func(string, string, string) bool { return true }
			}
			w.look(t.Context(), start)
			w.look(t.Context(), start.Add(orphanGrace-1))
			if told := s.tellings != 0; told == test.want || len(s.told.Pods) != 0 {
				t.Fatalf("before the grace period is over, %v is told", s.told)
			}
			w.look(t.Context(), start.Add(orphanGrace))
			if got := len(s.told.Pods) == 1; got != test.want {
				t.Fatalf("told is %v", s.told)
			}
			if !test.want {
				return
			}
			if got, want := s.told.Text(), `{"pods":[{"namespace":"default","name":"web-000","uid":"u1","addresses":["10.1.0.2"]}]}`; got != want {
				t.Errorf("told is %s, want %s", got, want)
			}
			s.outage = registry.ErrUnavailable
			w.look(t.Context(), start.Add(2*orphanGrace))
			if s.tellings != 1 {
				t.Error("what is told changes while the registry is away")
			}
			s.outage, s.endpoints = nil, nil
			if w.look(t.Context(), start.Add(3*orphanGrace)); len(s.told.Pods) != 0 || s.tellings != 2 {
				t.Errorf("after the DEL, told is %v", s.told)
			}
		})
	}
}

// A pod that goes in the normal course, and whose name comes back at once, is never
// told of.
func TestOrphansAreNotPodsThatGo(t *testing.T) {
	s, start := &orphanScene{objects: map[registry.Key]*corev1.Pod{}}, time.Now()
	w := s.watch()
	for i := range 50 { // each looks at another pod, just deleted, of the same name
		e := endpoint(0)
		e.UID, e.Interface = fmt.Sprint("u", i), fmt.Sprint("weft", i)
		s.endpoints = []plugin.Endpoint{e}
		w.look(t.Context(), start.Add(time.Duration(i)*orphanGrace))
	}
	if len(s.told.Pods) != 0 {
		t.Errorf("told is %v", s.told)
	}
}

// A new agent says nothing of orphans before it knows of each pod that it found
// whether it is one, so that what the one before it said stays until then.
func TestOrphansAreKnownOnlyOnceAllWereAskedAbout(t *testing.T) {
	const n = 2*orphansAsked + 1 // so that each has been asked about after three looks
	scene := func() (*orphanScene, *orphanWatch) {
		s := &orphanScene{objects: map[registry.Key]*corev1.Pod{}}
		for i := range n {
			e := endpoint(i)
			s.endpoints = append(s.endpoints, e)
			s.objects[registry.Key{Namespace: e.Namespace, Name: e.Pod}] = pod(e.Pod, e.UID, "node1", nil)
		}
		return s, s.watch()
	}
	start := time.Now()
	last := endpoint(n - 1)
	lastKey := registry.Key{Namespace: last.Namespace, Name: last.Pod}
	t.Run("none", func(t *testing.T) {
		s, w := scene()
		for i, want := range []int{0, 0, 1, 1} {
			if w.look(t.Context(), start); s.tellings != want || len(s.told.Pods) != 0 {
				t.Errorf("look %d: told %d times of %v", i, s.tellings, s.told)
			}
		}
	})
	t.Run("no pods at all", func(t *testing.T) {
		s, w := scene()
		s.endpoints = nil
		if w.look(t.Context(), start); s.tellings != 1 || len(s.told.Pods) != 0 {
			t.Errorf("told %d times of %v", s.tellings, s.told)
		}
	})
	t.Run("the last", func(t *testing.T) {
		s, w := scene()
		delete(s.objects, lastKey)
		for range 3 {
			w.look(t.Context(), start)
		}
		if w.look(t.Context(), start.Add(orphanGrace-1)); s.tellings != 0 {
			t.Fatalf("before the grace period is over, %v is told", s.told)
		}
		for range 3 { // its turn need not come again
			w.look(t.Context(), start.Add(orphanGrace))
		}
		if s.tellings != 1 || len(s.told.Pods) != 1 || s.told.Pods[0].Name != last.Pod {
			t.Errorf("told %d times of %v", s.tellings, s.told)
		}
	})
	t.Run("the last, which goes", func(t *testing.T) {
		s, w := scene()
		delete(s.objects, lastKey)
		for range 3 {
			w.look(t.Context(), start)
		}
		s.endpoints = s.endpoints[:n-1]
		if w.look(t.Context(), start); s.tellings != 1 || len(s.told.Pods) != 0 {
			t.Errorf("told %d times of %v", s.tellings, s.told)
		}
	})
	t.Run("the registry is away", func(t *testing.T) {
		s, w := scene()
		s.outage = registry.ErrUnavailable
		for i := range 5 {
			w.look(t.Context(), start.Add(time.Duration(i)*orphanGrace))
		}
		if s.tellings != 0 || s.asked != 5 {
			t.Errorf("told %d times of %v, and asked %d times", s.tellings, s.told, s.asked)
		}
	})
	t.Run("others come", func(t *testing.T) {
		s, w := scene()
		for i := range 4 {
			w.look(t.Context(), start)
			s.endpoints = append(s.endpoints, endpoint(n+i))
		}
		if s.tellings != 1 {
			t.Errorf("told %d times of %v", s.tellings, s.told)
		}
	})
}

// A pod whose object cannot be read hides no other.
func TestUnreadablePodHidesNoOrphan(t *testing.T) {
	s, start := &orphanScene{unreadable: map[string]bool{}}, time.Now()
	for i := range orphansAsked + 2 { // the last is the only one of which there is no object
		e := endpoint(i)
		s.endpoints = append(s.endpoints, e)
		s.unreadable[e.Pod] = i <= orphansAsked
	}
	w := s.watch()
	for _, now := range []time.Time{start, start, start.Add(orphanGrace)} {
		w.look(t.Context(), now)
	}
	if want := endpoint(orphansAsked + 1).Pod; len(s.told.Pods) != 1 || s.told.Pods[0].Name != want {
		t.Errorf("told is %v, and not %s", s.told, want)
	}
}

// Of many pods each is asked about in its turn, and what is told of many is bounded.
func TestManyOrphans(t *testing.T) {
	const n = 10*orphansAsked + 3
	s, start := &orphanScene{}, time.Now()
	for i := range n {
		s.endpoints = append(s.endpoints, endpoint(i))
	}
	w := s.watch()
	for range n/orphansAsked + 1 {
		before := s.asked
		if w.look(t.Context(), start); s.asked-before > orphansAsked {
			t.Fatalf("asked about %d pods at once", s.asked-before)
		}
	}
	w.look(t.Context(), start.Add(orphanGrace))
	if len(s.told.Pods) != n {
		t.Fatalf("told of %d pods, not %d", len(s.told.Pods), n)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.OrphansAnnotation: s.told.Text()}}}
	got, err := api.NodeOrphans(node)
	if err != nil || len(got.Pods) != api.MaxOrphans || got.More != n-api.MaxOrphans {
		t.Errorf("the Node says %d and %d more, %v", len(got.Pods), got.More, err)
	}
}

// The Node says who has no object, which is nothing that the node fails to do. While
// the agent does not know of any, what the Node says stays.
func TestNodeTellsOrphans(t *testing.T) {
	a := &agent{Config: Config{Node: "node1"}, trouble: map[string]string{}, node: &registrar{kick: make(chan struct{}, 1)}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.OrphansAnnotation: "of before"}}}
	says := func(want string) nodeState {
		t.Helper()
		state := a.nodeState()
		state.describe(node, metav1.Now())
		if got := node.Annotations[api.OrphansAnnotation]; got != want || state.OutOfSync != "" {
			t.Errorf("the Node says %q, not %q; out of sync: %q", got, want, state.OutOfSync)
		}
		return state
	}
	w := newOrphanWatch(a)
	unknown := says("of before")
	w.tell(api.Orphans{More: 1})
	some := says(`{"more":1}`)
	w.tell(api.Orphans{})
	if none := says(""); unknown.equal(some) || unknown.equal(none) || some.equal(none) {
		t.Error("what the Node has to say is another, and counts as the same")
	}
}
