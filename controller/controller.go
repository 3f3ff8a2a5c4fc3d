// Package controller does what is done once for the cluster. Several may run;
// the one that holds the lease "controller" leads. It runs the cluster-wide work of
// the plug-ins that nodes use (plugin.ClusterRunner), and brings the cluster to the one
// that the ClusterConfig names (package change).
//
// Make one with New; Run works until it is told to stop, and Handler tells how
// it is doing.
//
// The lease keeps two leaders from working against each other for long, not
// at all: a leader that was stopped for a while may wake up believing that it
// leads. So whatever the work writes must bear a second writer, which
// compare-and-swap is for.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/registry"
)

// PluginKnown is the condition of the ClusterConfig that says whether there is
// a plug-in of the name in it.
const PluginKnown = "PluginKnown"

// Config is what a controller is told. All fields but Collectors are required.
type Config struct {
	Registry registry.Registry
	// Identity is the controller's name, unlike that of any other.
	Identity string
	// Plugin finds a plug-in by name; its error names those there are.
	Plugin func(name string) (plugin.Plugin, error)
	// Beside returns what runs for the cluster beside the work of the plug-ins that it
	// uses, of which the one of that name is that of most nodes; there are none where
	// it is unknown. It says of what they leave undone that it is. Beside may be nil,
	// and return nil for nothing.
	Beside func(name string, mix []plugin.Plugin) plugin.ClusterRunner
	// Enforcers returns the names of all plug-ins that enforce a kind of policies, for what
	// is said of a change. It may be nil.
	Enforcers func(*registry.Kind) []string
	// LeaseTTL is how long after the end of a leader another may lead.
	LeaseTTL time.Duration
	// Announce has the controller hold a lease of its own while it lives, for
	// others to know how many there are where nothing else tells.
	Announce bool
	// Collectors are metrics of others to serve with the controller's own.
	Collectors []prometheus.Collector
	Log        *slog.Logger
}

// Controller is one of the cluster's controllers.
type Controller struct {
	Config
	metrics *prometheus.Registry
	leading prometheus.Gauge
	failed  *prometheus.CounterVec
	// work holds the metrics of plug-ins' work that runs, each a *prometheus.Registry,
	// by its name. No two have one of the same name.
	work sync.Map
	// trouble says why the controller can neither lead nor wait for its turn,
	// nil while it can.
	trouble atomic.Pointer[error]
}

// New returns a controller, which does nothing before Run.
func New(c Config) *Controller {
	n := &Controller{
		Config:  c,
		metrics: prometheus.NewRegistry(),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_controller_leader", Help: "1 if this controller leads."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weft_controller_plugin_failures_total",
			Help: "How often a plug-in's work for the cluster ended with an error and was started again."}, []string{"plugin"}),
	}
	n.setTrouble(errors.New("the controller has not started"))
	n.metrics.MustRegister(n.leading, n.failed,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.metrics.MustRegister(c.Collectors...)
	return n
}

// Ready says why the controller can neither lead nor take over, or nil. One
// that waits for its turn is as ready as the one that leads.
func (c *Controller) Ready() error {
	if err := c.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *Controller) setTrouble(err error) {
	if err == nil {
		c.trouble.Store(nil)
		return
	}
	c.trouble.Store(&err)
}

// Handler serves /healthz, /readyz and /metrics.
func (c *Controller) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		gatherers := prometheus.Gatherers{c.metrics}
		c.work.Range(func(_, work any) bool {
			gatherers = append(gatherers, work.(*prometheus.Registry))
			return true
		})
		promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	})
	return mux
}

// Run takes its turn at leading until ctx ends. What ends a turn is no error.
func (c *Controller) Run(ctx context.Context) error {
	var announcing sync.WaitGroup
	defer announcing.Wait()
	if c.Announce {
		announcing.Go(func() { c.announce(ctx) })
	}
	wait, said := retry.Backoff{First: firstRetry, Last: longestAcquireRetry}, ""
	for ctx.Err() == nil {
		lease, err := c.acquire(ctx)
		if err != nil {
			if ctx.Err() == nil {
				c.setTrouble(err)
				if said != err.Error() {
					said = err.Error()
					c.Log.Warn("cannot take the lease to lead; trying again", "error", err)
				}
				retry.Sleep(ctx, wait.Next())
			}
			continue
		}
		wait.Reset()
		said = ""
		c.Log.Info("leading", "identity", c.Identity)
		c.leading.Set(1)
		c.lead(ctx, lease)
		c.leading.Set(0)
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.LeaseTTL)
		if err := lease.Release(release); err != nil {
			c.Log.Debug("cannot release the lease to lead", "error", err)
		}
		cancel()
		c.Log.Info("no longer leading", "identity", c.Identity)
	}
	return nil
}

// announce holds the lease that says that the controller lives, until ctx ends.
func (c *Controller) announce(ctx context.Context) {
	said := ""
	for ; ctx.Err() == nil; retry.Sleep(ctx, longestAcquireRetry) {
		lease, err := c.Registry.Acquire(ctx, api.LivingControllerLease(c.Identity), c.Identity, c.LeaseTTL)
		if err != nil {
			if ctx.Err() == nil && said != err.Error() {
				said = err.Error()
				c.Log.Warn("cannot say that this controller lives; trying again", "error", err)
			}
			continue
		}
		said = ""
		select {
		case <-lease.Lost():
		case <-ctx.Done():
		}
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.LeaseTTL)
		if err := lease.Release(release); err != nil {
			c.Log.Debug("cannot release the lease of this controller", "error", err)
		}
		cancel()
	}
}

// acquire waits for the lease. It asks for its holder first, because the wait
// does not tell whether the registry answers.
func (c *Controller) acquire(ctx context.Context) (registry.Lease, error) {
	if _, err := c.Registry.Holder(ctx, api.ControllerLease); err != nil {
		return nil, err
	}
	c.setTrouble(nil)
	return c.Registry.Acquire(ctx, api.ControllerLease, c.Identity, c.LeaseTTL)
}

// lead works until the lease is lost or ctx ends.
func (c *Controller) lead(ctx context.Context, lease registry.Lease) {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		defer stop()
		select {
		case <-lease.Lost():
		case <-ctx.Done():
		}
	})
	objects := registry.NewCache(c.Registry, changedKinds, c.Log)
	changes, cancel := objects.Subscribe()
	defer cancel()
	wg.Go(func() { objects.Run(ctx) })
	if objects.WaitSynced(ctx) != nil {
		return
	}
	wg.Go(func() { (&changer{Controller: c, objects: objects, known: make(map[string]*answer)}).run(ctx) })
	running := make(jobs)
	defer running.keep(ctx, nil)
	retry.Loop{Changed: changes, Pause: changePause}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
		// Where no status says which plug-ins nodes use, they do: what is made for one that none
		// uses would stay.
		running.keep(ctx, c.jobs(change.Config(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}),
			registry.Each[*corev1.Node](objects, api.Node), c.unknown)))
		return 0, nil
	})
}

// longestAcquireRetry is how long the controller waits at most before it asks for
// the lease again. It is short, because it is also what a recovery takes.
const longestAcquireRetry = time.Second

// How long the controller waits before it starts a plug-in's work again, at
// first and at most.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// backoff has those.
var backoff = retry.Backoff{First: firstRetry, Last: lastRetry}

// jobs are what a leading controller does at once, by what they are known by.
type jobs map[string]job

type job struct {
	stop  context.CancelFunc
	ended <-chan struct{}
}

// keep has the jobs run that are wanted, and no others: it stops those that are not,
// waits for their end, and starts those that do not run, until ctx ends.
func (j jobs) keep(ctx context.Context, wanted map[string]func(context.Context)) {
	for name, job := range j {
		if wanted[name] == nil {
			job.stop()
		}
	}
	for name, job := range j {
		if wanted[name] == nil {
			<-job.ended
			delete(j, name)
		}
	}
	for name, run := range wanted {
		if _, runs := j[name]; runs || ctx.Err() != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			run(ctx)
		}()
		j[name] = job{stop, ended}
	}
}

// jobs returns what is to be done by a configuration: the work of the plug-ins of the
// mix that have any, see workingOf, what is beside it, and to say whether there is the plug-in
// that is asked for. What two plug-ins share is done once, and goes on as others come and go.
func (c *Controller) jobs(config *api.ClusterConfig) map[string]func(context.Context) {
	wanted := make(map[string]func(context.Context))
	asked := config.Spec.Plugin
	_, unknown := c.Plugin(asked)
	wanted["say "+asked] = func(ctx context.Context) {
		if unknown != nil {
			c.Log.Error("the ClusterConfig names a plug-in that there is not", "error", unknown)
		}
		c.keep(ctx, asked, func() (bool, error) {
			err := c.say(ctx, unknown)
			return err == nil, err
		})
	}
	working := workingOf(config)
	mix := c.pluginsNamed(working)
	for name, runner := range plugin.ClusterWork(mix...) {
		wanted["work "+name] = func(ctx context.Context) {
			c.keep(ctx, name, func() (bool, error) { return false, c.runCluster(ctx, name, runner) })
		}
	}
	if c.Beside == nil {
		return wanted
	}
	used := cmp.Or(config.Status.Plugin, asked)
	if beside := c.Beside(used, mix); beside != nil {
		wanted[fmt.Sprint("beside ", used, working)] = func(ctx context.Context) {
			c.keep(ctx, used, func() (bool, error) {
				return false, beside.RunCluster(ctx, plugin.ClusterEnv{Registry: c.Registry, Log: c.Log, Metrics: prometheus.NewRegistry()})
			})
		}
	}
	return wanted
}

// keep does work for a plug-in, again whenever it ends before it is done, until
// ctx ends.
func (c *Controller) keep(ctx context.Context, name string, work func() (done bool, err error)) {
	wait := backoff
	for ctx.Err() == nil {
		began := time.Now()
		done, err := work()
		if done || ctx.Err() != nil {
			return
		}
		c.failed.WithLabelValues(name).Inc()
		c.Log.Warn("the work for the cluster failed; starting it again", "plugin", name, "error", err)
		if time.Since(began) > lastRetry {
			wait.Reset()
		}
		retry.Sleep(ctx, wait.Next())
	}
}

func (c *Controller) runCluster(ctx context.Context, name string, runner plugin.ClusterRunner) error {
	metrics := prometheus.NewRegistry()
	c.work.Store(name, metrics)
	defer c.work.Delete(name)
	return runner.RunCluster(ctx, plugin.ClusterEnv{Registry: c.Registry, Log: c.Log.With("plugin", name), Metrics: metrics,
		Elsewhere: func(ctx context.Context) (plugin.Elsewhere, error) {
			return change.Elsewhere(ctx, c.Registry, name, c.Plugin)
		}})
}

// say has the ClusterConfig, if there is one, say whether its plug-in is known.
func (c *Controller) say(ctx context.Context, unknown error) error {
	condition := metav1.Condition{Type: PluginKnown, Status: metav1.ConditionTrue, Reason: "Known", Message: "the plug-in is known"}
	if unknown != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, "Unknown", unknown.Error()
	}
	_, err := registry.Modify(ctx, c.Registry, api.ClusterConfigKind, registry.Key{Name: api.DefaultName}, func(config *api.ClusterConfig) error {
		// No news is good news.
		if unknown != nil || meta.FindStatusCondition(config.Status.Conditions, PluginKnown) != nil {
			meta.SetStatusCondition(&config.Status.Conditions, condition)
		}
		return nil
	})
	if errors.Is(err, registry.ErrNotFound) {
		return nil
	}
	return err
}
