package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// diary is what the plug-ins of a test did, and checks that no work is done twice at
// once.
type diary struct {
	t       *testing.T
	mu      sync.Mutex
	entries []string
	// working says which controller does a plug-in's work.
	working map[string]string
}

func (d *diary) begin(controller, work string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other := d.working[work]; other != "" {
		d.t.Errorf("%s begins with %s while %s does that", controller, work, other)
	}
	if d.working == nil {
		d.working = make(map[string]string)
	}
	d.working[work] = controller
	d.entries = append(d.entries, "+"+controller+":"+work)
}

func (d *diary) end(controller, work string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.working, work)
	d.entries = append(d.entries, "-"+controller+":"+work)
}

// wants holds what was written since the last time against a line.
func (d *diary) wants(want string) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := strings.Join(d.entries, " "); got != want {
		d.t.Errorf("got %q, want %q", got, want)
	}
	d.entries = nil
}

// worker is a plug-in whose work is to write a diary, as the controller that
// runs it.
type worker struct {
	name, controller string
	diary            *diary
	fail             func() error
}

func (w worker) Name() string { return w.name }

func (w worker) Kinds() []*registry.Kind { return nil }

func (w worker) Compile(plugin.Input) (*plan.Plan, []plugin.Problem) { return &plan.Plan{}, nil }

func (w worker) RunCluster(ctx context.Context, env plugin.ClusterEnv) error {
	w.diary.begin(w.controller, w.name)
	defer w.diary.end(w.controller, w.name)
	works := prometheus.NewGauge(prometheus.GaugeOpts{Name: "works", ConstLabels: prometheus.Labels{"plugin": w.name}})
	env.Metrics.MustRegister(works)
	if w.fail != nil {
		if err := w.fail(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// idle is a plug-in without work for the cluster.
type idle struct{ worker }

func (idle) RunCluster() {}

// layer is a plug-in on another whose work is its own.
type layer struct {
	worker
	name string
	base plugin.Plugin
}

func (l layer) Name() string { return l.name }

func (l layer) Base() plugin.Plugin { return l.base }

func (l layer) Adds() string { return l.worker.name }

func (l layer) On(base plugin.Plugin, name string) plugin.Plugin {
	l.base, l.name = base, name
	return l
}

func (l layer) Standby() plugin.Layer { return l }

func (l layer) Announced(plugin.Input) bool { return true }

var _ plugin.Layer = layer{}

const ttl = 10 * time.Second

// Each says that it lives, whether it leads or not, until it ends.
func TestAllThatLiveSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		d := &diary{t: t}
		living := func(want string) {
			t.Helper()
			synctest.Wait()
			held, err := r.Holders(t.Context(), api.LivingControllerPrefix)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(slices.Sorted(maps.Values(held)), " "); got != want {
				t.Errorf("%q say that they live, want %q", got, want)
			}
		}
		_, stopA := start(r, "a", d, nil)
		_, stopB := start(r, "b", d, nil)
		living("a b")
		stopA()
		living("b")
		stopB()
		living("")
	})
}

func start(r registry.Registry, identity string, d *diary, fail func() error) (c *Controller, stop func()) {
	c = New(Config{Registry: r, Identity: identity, LeaseTTL: ttl, Announce: true, Log: slog.New(slog.DiscardHandler),
		Plugin: func(name string) (plugin.Plugin, error) {
			switch name {
			case "openshift-subnet", "other":
				return worker{name, identity, d, fail}, nil
			case "idle":
				return idle{worker{name: name}}, nil
			case "other-policy", "idle-policy":
				var base plugin.Plugin = worker{"other", identity, d, fail}
				if name == "idle-policy" {
					base = idle{worker{name: "idle"}}
				}
				return layer{worker{"policy", identity, d, fail}, name, base}, nil
			}
			return nil, fmt.Errorf("plug-in %q is unknown", name)
		}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.Run(ctx); err != nil {
			d.t.Error(err)
		}
	}()
	return c, func() { cancel(); <-ended }
}

func configure(t *testing.T, r registry.Registry, name string) {
	t.Helper()
	config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
	config.Spec.Plugin = name
	_, err := r.Create(t.Context(), api.ClusterConfigKind, config)
	if errors.Is(err, registry.ErrExists) {
		_, err = registry.Modify(t.Context(), r, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(c *api.ClusterConfig) error {
			c.Spec.Plugin = name
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestOneLeadsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		d := &diary{t: t}
		a, stopA := start(r, "a", d, nil)
		d.wants("+a:openshift-subnet")
		b, stopB := start(r, "b", d, nil)
		d.wants("")
		for _, c := range []*Controller{a, b} {
			if err := c.Ready(); err != nil {
				t.Errorf("%s: %v", c.Identity, err)
			}
		}
		if holder, err := r.Holder(t.Context(), api.ControllerLease); holder != "a" || err != nil {
			t.Errorf("holder %q, %v", holder, err)
		}
		stopA()
		d.wants("-a:openshift-subnet +b:openshift-subnet")
		stopB()
		d.wants("-b:openshift-subnet")
		if holder, err := r.Holder(t.Context(), api.ControllerLease); holder != "" || err != nil {
			t.Errorf("holder %q, %v", holder, err)
		}
	})
}

// reads is a plug-in that reads some kinds.
type reads struct {
	idle
	kinds []*registry.Kind
}

func (r reads) Kinds() []*registry.Kind { return r.kinds }

func (r reads) Name() string { return "policies" }

func TestWorkThatFailsStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{t: t}
		failures := 3
		began := time.Now()
		var last time.Time
		c, stop := start(memory.New(), "a", d, func() error {
			last = time.Now()
			if failures--; failures >= 0 {
				return errors.New("broken")
			}
			return nil
		})
		time.Sleep(time.Minute)
		d.wants("+a:openshift-subnet -a:openshift-subnet +a:openshift-subnet -a:openshift-subnet " +
			"+a:openshift-subnet -a:openshift-subnet +a:openshift-subnet")
		if pause := last.Sub(began); pause != 7*firstRetry {
			t.Errorf("it took %s to start three times again", pause)
		}
		if text := get(c, "/metrics"); !strings.Contains(text, `weft_controller_plugin_failures_total{plugin="openshift-subnet"} 3`) {
			t.Errorf("metrics:\n%s", text)
		}
		stop()
		d.wants("-a:openshift-subnet")
	})
}

// TestRegistryAway holds that the work is over when the lease may be
// another's, and goes on when the registry is back.
func TestRegistryAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		d := &diary{t: t}
		c, stop := start(r, "a", d, nil)
		d.wants("+a:openshift-subnet")
		r.Stop()
		time.Sleep(ttl + time.Second)
		d.wants("-a:openshift-subnet")
		if c.Ready() == nil {
			t.Error("ready without a registry")
		}
		r.Start()
		time.Sleep(time.Minute)
		d.wants("+a:openshift-subnet")
		if err := c.Ready(); err != nil {
			t.Error(err)
		}
		stop()
		d.wants("-a:openshift-subnet")
	})
}

func get(c *Controller, path string) string {
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return fmt.Sprint(w.Code, " ", w.Body)
}

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{t: t}
		c := New(Config{Identity: "new"})
		if got := get(c, "/readyz"); got != "503 the controller has not started\n" {
			t.Errorf("before Run: %q", got)
		}
		r := memory.New()
		a, stopA := start(r, "a", d, nil)
		d.wants("+a:openshift-subnet")
		b, stopB := start(r, "b", d, nil)
		synctest.Wait()
		for _, c := range []*Controller{a, b} {
			for _, path := range []string{"/healthz", "/readyz"} {
				if got := get(c, path); got != "200 ok\n" {
					t.Errorf("%s of %s: %q", path, c.Identity, got)
				}
			}
		}
		if text := get(a, "/metrics"); !strings.Contains(text, "weft_controller_leader 1") || !strings.Contains(text, "\nworks{plugin=\"openshift-subnet\"} 0") {
			t.Errorf("the leader's metrics:\n%s", text)
		}
		if text := get(b, "/metrics"); !strings.Contains(text, "weft_controller_leader 0") || strings.Contains(text, "\nworks{") {
			t.Errorf("the other's metrics:\n%s", text)
		}
		stopB()
		stopA()
	})
}
