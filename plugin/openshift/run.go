package openshift

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// clusterKinds are what RunCluster reads, in the order that reconcile wants.
var clusterKinds = []*registry.Kind{api.ClusterConfigKind, api.HostSubnet, api.Node, api.ClusterNetwork}

// backoff is how long RunCluster waits after a failure.
var backoff = retry.Backoff{First: 50 * time.Millisecond, Last: 5 * time.Second}

// RunCluster implements plugin.ClusterRunner: it gives each node its subnet.
//
// A local copy of the objects says when there is something to do, and costs
// the registry nothing while there is not. What is then written is decided
// anew from what the registry says at that moment.
func (s Subnet) RunCluster(ctx context.Context, env plugin.ClusterEnv) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c := &cluster{
		registry: env.Registry, log: env.Log, metrics: newMetrics(env.Metrics),
		quarantine: cmp.Or(s.Quarantine, DefaultQuarantine), now: time.Now, elsewhere: env.Elsewhere,
	}
	cache := registry.NewCache(env.Registry, clusterKinds, env.Log)
	changes, cancel := cache.Subscribe()
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cache.Run(ctx)
	}()
	defer func() { stop(); <-ended }()
	if err := cache.WaitSynced(ctx); err != nil {
		return err
	}
	return retry.Loop{Changed: changes, Backoff: backoff}.Run(ctx, func(ctx context.Context) (next time.Duration, err error) {
		d := reconcile(cache.Snapshot(), plugin.Elsewhere{}, c.now(), c.quarantine) // whether there is anything to write
		if len(d.writes) > 0 {
			d, err = c.round(ctx)
		}
		c.report(d, err)
		if !d.next.IsZero() {
			next = max(d.next.Sub(c.now()), backoff.First)
		}
		return next, err
	})
}

// cluster carries out what reconcile decides.
type cluster struct {
	registry   registry.Registry
	log        *slog.Logger
	metrics    *metrics
	quarantine time.Duration
	now        func() time.Time
	// elsewhere is plugin.ClusterEnv.Elsewhere.
	elsewhere func(context.Context) (plugin.Elsewhere, error)
	// said are the problems that the log has.
	said map[string]string
}

// round reads what there is, decides, and writes.
func (c *cluster) round(ctx context.Context) (decision, error) {
	start := time.Now()
	d, err := c.decide(ctx)
	if err == nil {
		err = c.perform(ctx, d.writes)
		c.metrics.rounds.Observe(time.Since(start).Seconds())
	}
	return d, err
}

// decide reads what there is, and decides.
func (c *cluster) decide(ctx context.Context) (decision, error) {
	objects := map[*registry.Kind][]registry.Object{}
	for _, k := range clusterKinds {
		list, _, err := c.registry.List(ctx, k)
		if err != nil {
			return decision{}, err
		}
		objects[k] = list
	}
	var elsewhere plugin.Elsewhere
	if c.elsewhere != nil {
		var err error
		if elsewhere, err = c.elsewhere(ctx); err != nil {
			return decision{}, err
		}
	}
	return reconcile(registry.NewSnapshot(objects), elsewhere, c.now(), c.quarantine), nil
}

// errRaced says that somebody else wrote first, which is no failure: what is
// left to do is decided again.
var errRaced = errors.New("somebody else wrote meanwhile")

// perform carries out writes in their order. One that fails does not keep the
// others from being done, unless it is a barrier or the registry is away.
func (c *cluster) perform(ctx context.Context, writes []write) error {
	var raced error
	var failed []error
	for _, w := range writes {
		key := registry.KeyOf(w.object)
		var err error
		switch w.verb {
		case doCreate:
			_, err = c.registry.Create(ctx, w.kind, w.object)
		case doUpdate:
			_, err = c.registry.Update(ctx, w.kind, w.object)
		case doDelete:
			err = c.registry.Delete(ctx, w.kind, key, w.object.GetResourceVersion())
		case doCheck:
			var now registry.Object
			now, err = c.registry.Get(ctx, w.kind, key)
			if err == nil && now.GetResourceVersion() != w.object.GetResourceVersion() {
				err = w.kind.Errorf(key, registry.ErrConflict, nil)
			}
		}
		if err == nil && w.verb == doCheck {
			continue
		}
		if err == nil {
			c.log.Info(string(w.verb)+"d", "kind", w.kind.Singular, "name", key, "why", w.why)
			continue
		}
		if errors.Is(err, registry.ErrConflict) || errors.Is(err, registry.ErrExists) || errors.Is(err, registry.ErrNotFound) {
			raced = errRaced
		} else {
			failed = append(failed, fmt.Errorf("%s: %w", w.verb, err))
		}
		if w.barrier || ctx.Err() != nil || errors.Is(err, registry.ErrUnavailable) {
			break
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	return raced
}

// report says in log and metrics what a decision found.
func (c *cluster) report(d decision, err error) {
	if err != nil && !errors.Is(err, errRaced) && !errors.Is(err, context.Canceled) {
		c.metrics.errors.Inc()
		c.log.Warn("cannot write what nodes' subnets need; trying again", "error", err)
	}
	if d.problems == nil {
		return // nothing could be read
	}
	for _, object := range slices.Sorted(maps.Keys(d.problems)) {
		if message := d.problems[object]; c.said[object] != message {
			c.log.Warn("problem", "object", object, "problem", message)
		}
	}
	for _, object := range slices.Sorted(maps.Keys(c.said)) {
		if d.problems[object] == "" {
			c.log.Info("problem is over", "object", object)
		}
	}
	c.said = d.problems
	c.metrics.show(d)
}

// metrics are RunCluster's.
type metrics struct {
	rounds      prometheus.Histogram
	errors      prometheus.Counter
	subnets     *prometheus.GaugeVec
	quarantined prometheus.Gauge
	problems    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		rounds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weft_controller_reconcile_seconds",
			Help: "How long it took to bring objects to what they should be.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: "weft_controller_reconcile_errors_total",
			Help: "Reconciliations that failed in part and were tried again."}),
		subnets: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_controller_subnets",
			Help: "Node subnets of each cluster CIDR, by state: taken or free."}, []string{"cidr", "state"}),
		quarantined: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_controller_subnets_quarantined",
			Help: "Subnets that were taken back and are not yet given to other nodes."}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_controller_problems",
			Help: "HostSubnets, Nodes and the ClusterNetwork of which the controller says that something is wrong."}),
	}
	if r != nil {
		r.MustRegister(m.rounds, m.errors, m.subnets, m.quarantined, m.problems)
	}
	return m
}

func (m *metrics) show(d decision) {
	m.subnets.Reset()
	for _, u := range d.usage {
		m.subnets.WithLabelValues(u.cidr.String(), "taken").Set(u.Taken)
		m.subnets.WithLabelValues(u.cidr.String(), "free").Set(u.Total - u.Taken)
	}
	m.quarantined.Set(float64(d.quarantined))
	m.problems.Set(float64(len(d.problems)))
}
