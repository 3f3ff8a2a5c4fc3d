package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

const (
	// clusterPause is the least time between two looks at the cluster; besides,
	// the controller rests four times as long as a look took.
	clusterPause = 50 * time.Millisecond
	// slowPause is that time for what nobody waits for.
	slowPause = time.Second
)

// cluster is one run of RunCluster.
type cluster struct {
	registry  registry.Registry
	log       *slog.Logger
	metrics   *metrics
	collector collector
	domains   domains
	judge     judge
	// warned are the names of Events that were written.
	warned map[string]bool
	now    func() time.Time
}

func newCluster(env plugin.ClusterEnv) *cluster {
	return &cluster{
		registry: env.Registry, log: env.Log, metrics: newMetrics(env.Metrics),
		collector: collector{keep: DefaultKeepTags},
		domains:   domains{resolver: net.DefaultResolver},
		warned:    map[string]bool{},
		now:       time.Now,
	}
}

// run works until ctx ends. Its parts have nothing to do with each other, so that
// a name server that does not answer keeps nobody from learning what is in force.
func (c *cluster) run(ctx context.Context) error {
	var kinds []*registry.Kind
	for _, k := range slices.Concat(StateKinds(), collectorKinds, domainKinds) {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	cache := registry.NewCache(c.registry, kinds, c.log)
	g.Go(func() error { cache.Run(ctx); return ctx.Err() })
	keep := func(part string, pause time.Duration, round func(context.Context, registry.Objects) (time.Time, error)) {
		g.Go(func() error {
			changes, cancel := cache.Subscribe()
			defer cancel()
			if err := cache.WaitSynced(ctx); err != nil {
				return err
			}
			return retry.Loop{Changed: changes, Pause: pause, AfterError: backoff.First, Backoff: backoff, Told: c.failed(part)}.Run(ctx, func(ctx context.Context) (time.Duration, error) {
				next, err := round(ctx, cache.Snapshot())
				if next.IsZero() {
					return 0, err
				}
				return max(next.Sub(c.now()), time.Millisecond), err
			})
		})
	}
	keep("tags", slowPause, c.collect)
	keep("domain names", slowPause, c.resolve)
	keep("status", clusterPause, c.say)
	return g.Wait()
}

// failed returns what says in the log what keeps a part from working, once.
func (c *cluster) failed(part string) func(error) {
	said := ""
	return func(err error) {
		message := ""
		if err != nil {
			message = err.Error()
		}
		switch {
		case message == said:
		case err != nil:
			c.log.Warn("policies: "+part+": trying again", "error", err)
		default:
			c.log.Info("policies: " + part + ": all is well again")
		}
		said = message
	}
}

// collect sees to Tags that nobody uses and to what gone nodes left.
func (c *cluster) collect(ctx context.Context, objects registry.Objects) (time.Time, error) {
	d := c.collector.decide(objects, c.now())
	c.metrics.tags.Set(float64(d.total))
	c.metrics.unused.Set(float64(d.unused))
	return d.next, d.carryOut(ctx, c.registry, c.now())
}

// resolve sees to domain names.
func (c *cluster) resolve(ctx context.Context, objects registry.Objects) (time.Time, error) {
	tooMany := c.domains.update(objects, c.now())
	next := c.domains.resolve(ctx, c.now)
	err := c.domains.write(ctx, c.registry, objects)
	if len(tooMany) > 0 {
		err = errors.Join(err, fmt.Errorf("there are %d domain names in policies, more than %d: rules do not hold for %s and all after it",
			len(tooMany)+maxDomains, maxDomains, tooMany[0]))
	}
	return next, err
}

// say sees to what is said of policies.
func (c *cluster) say(ctx context.Context, objects registry.Objects) (time.Time, error) {
	began := time.Now()
	d := c.judge.decide(objects, c.now())
	for _, delay := range d.delays {
		c.metrics.enforcement.Observe(delay.Seconds())
	}
	c.metrics.pending.Set(float64(d.pending))
	rest := 4 * time.Since(began)
	err := errors.Join(c.write(ctx, d.conditions), c.warn(ctx, d))
	retry.Sleep(ctx, rest)
	return d.next, err
}

func (c *cluster) write(ctx context.Context, conditions []judged) error {
	var failed []error
	for _, j := range conditions {
		err := j.write(ctx, c.registry)
		if err == nil {
			c.log.Info("a policy's condition changed", "clusternetworkpolicy", j.policy.Name, "status", j.condition.Status, "reason", j.condition.Reason, "message", j.condition.Message)
			continue
		}
		failed = append(failed, err)
		if errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// warn writes the Events that were not written yet.
func (c *cluster) warn(ctx context.Context, d judgment) error {
	var failed []error
	there := map[string]bool{}
	for _, e := range d.warnings {
		name := registry.KeyOf(e).String()
		there[name] = true
		if c.warned[name] {
			continue
		}
		err := call(ctx, func(ctx context.Context) error {
			_, err := c.registry.Create(ctx, api.Event, e)
			return err
		})
		switch {
		case err == nil || errors.Is(err, registry.ErrExists):
			c.warned[name] = true
		case errors.Is(err, registry.ErrUnavailable) || ctx.Err() != nil:
			return errors.Join(append(failed, err)...)
		default:
			failed = append(failed, err)
		}
	}
	// What is not there any more need not be remembered.
	for name := range c.warned {
		if !there[name] {
			delete(c.warned, name)
		}
	}
	return errors.Join(failed...)
}

// metrics are RunCluster's.
type metrics struct {
	enforcement           prometheus.Histogram
	tags, unused, pending prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		enforcement: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weft_policy_enforcement_seconds",
			Help:    "From the controller seeing that a policy changed to every node with a pod that it selects saying that it is in force.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14)}),
		tags: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_tags", Help: "Tags that there are."}),
		unused: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_tags_unused",
			Help: "Tags that no node uses, which are removed if that lasts."}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_policy_pending",
			Help: "Policies that are not yet in force on every node with a pod that they select."}),
	}
	if r != nil {
		r.MustRegister(m.enforcement, m.tags, m.unused, m.pending)
	}
	return m
}
