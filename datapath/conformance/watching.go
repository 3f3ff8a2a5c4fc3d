package conformance

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan/plantest"
)

// telling is how long a data plane has to tell that somebody disturbed it.
const telling = 2 * time.Second

// watching is what a node's data plane tells of others, from a moment on. A nil one is of
// a data plane that tells nothing.
type watching struct {
	t    *testing.T
	stop func()

	mu   sync.Mutex
	told []datapath.Disturbance
	more chan struct{} // has something where more was told
}

// watch begins to follow what a node's data plane tells, which must end before the data
// plane is closed.
func watch(t *testing.T, n *node) *watching {
	t.Helper()
	p, ok := n.dataPlane.(datapath.Watcher)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{t: t, more: make(chan struct{}, 1)}
	following, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- p.Watch(ctx, sync.OnceFunc(func() { close(following) }), w.tell) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch %s: %v", n.name, err)
		}
	})
	t.Cleanup(w.stop)
	select {
	case <-following:
	case err := <-ended:
		ended <- nil
		t.Fatalf("watch %s: it ended before anything was followed: %v", n.name, err)
	case <-time.After(patience):
		t.Fatalf("watch %s: after %v nothing is followed", n.name, patience)
	}
	return w
}

func (w *watching) tell(d datapath.Disturbance) {
	w.mu.Lock()
	w.told = append(w.told, d)
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// end ends it.
func (w *watching) end() {
	if w != nil {
		w.stop()
	}
}

// mustTell checks that something is told in time of what somebody just did, and returns
// when all of that was told.
func (w *watching) mustTell(what string) {
	if w == nil {
		return
	}
	w.t.Helper()
	select {
	case <-w.more:
	case <-time.After(telling):
		w.t.Errorf("%s: for %v nothing of it was told", what, telling)
	}
	for before := -1; before < len(w.all()); time.Sleep(disappointment) {
		before = len(w.all())
	}
	w.forget()
}

// mustNotTell checks that nothing is told of what the data plane itself just did.
func (w *watching) mustNotTell(what string) {
	if w == nil {
		return
	}
	w.t.Helper()
	time.Sleep(disappointment)
	if told := w.all(); len(told) > 0 {
		w.t.Errorf("%s: nobody disturbed anything, and it was told %+v", what, told)
	}
	w.forget()
}

func (w *watching) all() []datapath.Disturbance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

func (w *watching) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = nil
	select {
	case <-w.more:
	default:
	}
}

// unwatched checks that a data plane does not tell of what it does itself: it goes from
// one plan to others, which have another pod, tunnel, way and policy, and back.
func (l *topology) unwatched(t *testing.T, n *node, shape plantest.Shape) {
	t.Helper()
	w := watch(t, n)
	defer w.end()
	mine := shape.Plans()[n.name]
	changes := map[string]func(*plantest.Shape){
		"a pod comes and goes":          func(s *plantest.Shape) { s.Endpoints = []int{s.Endpoints[0] + 1, s.Endpoints[1]} },
		"a tunnel comes and goes":       func(s *plantest.Shape) { s.Preferring = []bool{true, false} },
		"a node comes and goes":         func(s *plantest.Shape) { s.Endpoints = append(slices.Clone(s.Endpoints), 1) },
		"egress rules go and come":      func(s *plantest.Shape) { s.Masquerade = false },
		"policies go and come":          func(s *plantest.Shape) { s.Policed, s.Verdicts = nil, nil },
		"a prefix is dropped, and not":  func(s *plantest.Shape) { s.Drop = true },
		"ways to nodes' addresses move": func(s *plantest.Shape) { s.NodesThroughTunnel = false },
	}
	for _, what := range slices.Sorted(maps.Keys(changes)) {
		other := shape
		changes[what](&other)
		p := other.Plans()[n.name]
		l.plug(n, p)
		l.apply(n, p)
		l.apply(n, mine)
		l.plug(n, mine)
		w.mustNotTell(what)
	}
}
