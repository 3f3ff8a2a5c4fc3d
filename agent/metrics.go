package agent

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the agent's own; those of the CNI server are in package cni.
type metrics struct {
	registry *prometheus.Registry
	// services are those of single Services, which are served apart.
	services *prometheus.Registry
	compiled prometheus.Histogram
	applied  prometheus.Histogram
	enforced prometheus.Histogram
	failed   prometheus.Counter
	repaired prometheus.Counter
	ready    prometheus.Gauge
	// connections are those that the node tracks, of maxConnections; limited are
	// the pods that have too many.
	connections, maxConnections, limited prometheus.Gauge
	entries                              *prometheus.GaugeVec
	requests                             *prometheus.HistogramVec
	// programmed, synced, queued and done are under kube-proxy's names, as its dashboards have
	// them: from when an endpoint changed to when it was in force, a round, and when, in seconds
	// since 1970, the last change came and the last round had all.
	programmed, synced prometheus.Histogram
	queued, done       prometheus.Gauge
}

// newMetrics returns the agent's metrics, which are served with those of others.
func newMetrics(others ...prometheus.Collector) *metrics {
	// 100 µs to about 3 s.
	buckets := prometheus.ExponentialBuckets(0.0001, 2, 16)
	m := &metrics{
		registry: prometheus.NewRegistry(),
		services: prometheus.NewRegistry(),
		compiled: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weft_compile_seconds", Help: "Time to compile the node's plan.", Buckets: buckets}),
		applied:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weft_apply_seconds", Help: "Time to bring the data plane to a plan.", Buckets: buckets}),
		// 1 ms to about 30 s.
		enforced:       prometheus.NewHistogram(prometheus.HistogramOpts{Name: "weft_policy_enforcement_seconds", Help: "Time from when a change of the cluster's objects reached the agent to when the data plane did what follows.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}),
		failed:         prometheus.NewCounter(prometheus.CounterOpts{Name: "weft_apply_failures_total", Help: "Plans that could not be loaded wholly."}),
		repaired:       prometheus.NewCounter(prometheus.CounterOpts{Name: "weft_repairs_total", Help: "Things that others changed in the data plane and that were put right."}),
		ready:          prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_ready", Help: "1 if pods can be networked on this node."}),
		connections:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_connections", Help: "Connections that the node tracks."}),
		maxConnections: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_connections_max", Help: "How many connections the node can track (net.netfilter.nf_conntrack_max)."}),
		limited:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "weft_limited_pods", Help: "Pods, of this node and others, that may begin no connections here, because they have begun more than their share of those that the node can track."}),
		entries:        prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "weft_plan_entries", Help: "Entries in each table of the node's plan."}, []string{"table"}),
		requests:       prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weft_cni_seconds", Help: "Time to answer a CNI request.", Buckets: buckets}, []string{"command", "result"}),
	}
	m.programmed = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubeproxy_network_programming_duration_seconds", Help: "Time from when a Pod or Service changed to when the node had what follows for its Services.",
		Buckets: slices.Concat(prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59), prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))})
	m.synced = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubeproxy_sync_proxy_rules_duration_seconds", Help: "Time of a round in which the node was brought to its plan.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)})
	m.queued = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", Help: "When the last change came."})
	m.done = prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds", Help: "When the node last had all that was known."})
	m.registry.MustRegister(m.programmed, m.synced, m.queued, m.done, m.compiled, m.applied, m.enforced, m.failed, m.repaired, m.ready, m.connections, m.maxConnections, m.limited, m.entries, m.requests,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(others...)
	return m
}

func (m *metrics) report(r round, ready bool) {
	if r.Told != nil {
		m.failed.Inc()
	}
	value := 0.
	if ready {
		value = 1
	}
	m.ready.Set(value)
	if p := r.Plan; p != nil {
		for table, n := range map[string]int{"networks": p.Networks.Len(), "peers": p.Peers.Len(), "endpoints": p.Endpoints.Len(), "routes": p.Routes.Len(), "tags": p.Tags.Len(),
			"classes": p.Classes.Len(), "within": p.Within.Len(), "verdicts": p.Verdicts.Len(), "services": p.Services.Len(), "backends": p.Backends.Len(), "sources": p.Sources.Len(), "egress": p.Egress.Len()} {
			m.entries.WithLabelValues(table).Set(float64(n))
		}
	}
}
