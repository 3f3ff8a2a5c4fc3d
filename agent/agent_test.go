package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

func TestRunDirIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, filepath.Join(dir, "there", "is", "none")} {
		if err := makeRunDir(path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := makeRunDir(file); err == nil || !strings.Contains(err.Error(), "run directory: ") || !strings.Contains(err.Error(), file) {
		t.Errorf("of a file in its place: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o644 {
		t.Errorf("the file became %v, %v", info, err)
	}
}

// counted is a registry that counts who follows what, and has no Nodes to list
// before somebody made one.
type counted struct {
	registry.Registry
	mu      sync.Mutex
	watched map[string]int
	made    bool
}

var errNoNodes = errors.New("there are no Nodes yet")

func (c *counted) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	c.mu.Lock()
	made := c.made
	c.mu.Unlock()
	if k == api.Node && !made {
		return nil, "", errNoNodes
	}
	return c.Registry.List(ctx, k)
}

func (c *counted) Watch(ctx context.Context, k *registry.Kind, after registry.Revision) (registry.Watch, error) {
	c.mu.Lock()
	c.watched[k.Plural]++
	c.mu.Unlock()
	return c.Registry.Watch(ctx, k, after)
}

func (c *counted) Create(ctx context.Context, k *registry.Kind, o registry.Object, opts ...registry.WriteOption) (registry.Object, error) {
	c.mu.Lock()
	c.made = c.made || k == api.Node
	c.mu.Unlock()
	return c.Registry.Create(ctx, k, o, opts...)
}

// worker is a plug-in that notes what it compiles from, and what its own work
// is told. That work makes a Node where the agent could not read the Nodes.
type worker struct {
	mu       sync.Mutex
	compiled plugin.Input
	told     []plugin.Input
	complete []bool
	applied  *plugin.Applied
}

func (*worker) Name() string { return "worker" }

func (*worker) Kinds() []*registry.Kind { return []*registry.Kind{api.Node, api.Pod} }

func (w *worker) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compiled = in
	return &plan.Plan{Local: plan.Local{Node: in.Node.Name}}, nil
}

func (w *worker) RunNode(ctx context.Context, n plugin.NodeEnv) error {
	for {
		in, complete := n.Input()
		w.mu.Lock()
		w.told, w.complete, w.applied = append(w.told, in), append(w.complete, complete), n.Applied()
		w.mu.Unlock()
		if !complete {
			time.Sleep(time.Minute)
			if _, err := n.Registry.Create(ctx, api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: in.Node.Name}}); err != nil {
				return err
			}
		}
		select {
		case <-n.Changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// last is what the plug-in saw last, in Compile and in its own work.
func (w *worker) last() (compiled, told plugin.Input, complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := len(w.told) - 1
	return w.compiled, w.told[i], w.complete[i]
}

func (*recorder) Name() string                          { return "recorder" }
func (*recorder) Close() error                          { return nil }
func (*recorder) Present(context.Context) (bool, error) { return false, nil }

// TestAPluginsWorkSeesWhatItCompilesFrom runs a plug-in whose own work is what
// makes its objects complete, and changes each thing that it is told of. Pods
// are among that, whether the agent follows them for itself or not.
func TestAPluginsWorkSeesWhatItCompilesFrom(t *testing.T) {
	t.Run("where a kubelet makes pods", func(t *testing.T) { seesWhatItCompilesFrom(t, true) })
	t.Run("where none does", func(t *testing.T) { seesWhatItCompilesFrom(t, false) })
}

func seesWhatItCompilesFrom(t *testing.T, kubelet bool) {
	synctest.Test(t, func(t *testing.T) {
		reg := &counted{Registry: memory.New(), watched: map[string]int{}}
		w := &worker{}
		a := &agent{
			Config: Config{Node: "node1", Registry: reg, Log: slog.New(slog.DiscardHandler), RepairEvery: time.Hour,
				Plugin:     func(string) (plugin.Plugin, error) { return w, nil },
				DataPlanes: []string{api.DefaultDataPlane},
				DataPlane:  func(string, *slog.Logger) (datapath.DataPlane, error) { return &recorder{}, nil }},
			metrics: newMetrics(), trouble: map[string]string{}, caches: map[*registry.Cache]bool{}, first: make(chan struct{}),
			node: &registrar{kick: make(chan struct{}, 1)}, names: nobodyAnswers(),
		}
		var endpoints atomic.Value
		a.endpoints = func() []plugin.Endpoint { e, _ := endpoints.Load().([]plugin.Endpoint); return e }
		a.held = func() []plan.Address { return nil }
		a.underlay.Addresses = addresses("172.30.0.11")
		close(a.first)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		if kubelet {
			a.pods = newPodWatch(a)
			wg.Go(func() { a.follow(ctx, a.pods.pods) })
		}
		wg.Go(func() { a.followConfig(ctx) })
		defer func() { cancel(); wg.Wait() }()
		synctest.Wait()
		if _, told, complete := w.last(); complete || told.Config == nil || told.Node.Name != "node1" {
			t.Fatalf("before the Nodes were read the work is told %+v, complete: %v", told, complete)
		}
		time.Sleep(2 * time.Minute)

		check := func(what string, holds func(plugin.Input) bool) {
			t.Helper()
			time.Sleep(2 * time.Second) // what changes may be let gather
			synctest.Wait()
			compiled, told, complete := w.last()
			if !complete || !holds(told) || !holds(compiled) {
				t.Errorf("%s: the work is told %+v (complete: %v), and Compile %+v", what, told, complete, compiled)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.applied == nil || !holds(w.applied.Input) || w.applied.Input.Previous != nil || w.applied.Plan == nil {
				t.Errorf("%s: the work is told that applied is %+v", what, w.applied)
			}
		}
		check("a Node", func(in plugin.Input) bool { return in.Objects.Get(api.Node, registry.Key{Name: "node1"}) != nil })
		if _, err := reg.Create(ctx, api.Pod, pod("web", "u1", "node1", nil)); err != nil {
			t.Fatal(err)
		}
		check("a Pod", func(in plugin.Input) bool {
			return in.Objects.Get(api.Pod, registry.Key{Namespace: "default", Name: "web"}) != nil
		})
		config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
		config.Spec.MTU = 1400
		if _, err := reg.Create(ctx, api.ClusterConfigKind, config); err != nil {
			t.Fatal(err)
		}
		check("the ClusterConfig", func(in plugin.Input) bool { return in.Config.Spec.MTU == 1400 })
		a.mu.Lock()
		a.underlay.MTU = 9000
		a.mu.Unlock()
		a.kick()
		check("the node's own network", func(in plugin.Input) bool { return in.Node.MTU == 9000 })

		// An endpoint is in the data plane though no Pod tells of it.
		endpoints.Store([]plugin.Endpoint{{Interface: "weft1", Pod: "unknown"}})
		if err := a.Publish(ctx, "weft1"); err != nil {
			t.Error(err)
		}
		check("an endpoint", func(in plugin.Input) bool { return len(in.Node.Endpoints) == 1 })
		// The work is told of what changed, and then has its peace.
		w.mu.Lock()
		times := len(w.told)
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.mu.Lock()
		if len(w.told) != times {
			t.Errorf("the work looked %d times more, though nothing changed", len(w.told)-times)
		}
		w.mu.Unlock()

		reg.mu.Lock()
		defer reg.mu.Unlock()
		if want := map[string]int{"nodes": 1, "pods": 1, "clusterconfigs": 1, "services": 1, "endpointslices": 1, "namespaces": 1}; !maps.Equal(reg.watched, want) {
			t.Errorf("followed are %v, want %v", reg.watched, want)
		}
	})
}
