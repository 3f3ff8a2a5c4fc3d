package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/internal/retry"
)

// metrics are those of the server itself. CoreDNS's plug-ins have their own, under the names
// that dashboards know.
type metrics struct{ drops, lefts *prometheus.CounterVec }

// newMetrics registers what is told of a server.
func newMetrics(s *Server, to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		drops: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weft_dns_dropped_total",
			Help: "Queries and connections that were one too many, by where: queue, outside or connection. A query for outside that is answered with what is remembered is none."}, []string{"at"}),
		lefts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weft_dns_left_total",
			Help: "Queries that the server before had read and not answered when it was killed, by what became of them: taken-over; late, as nobody waits any more; or given-up, as servers ended again and again while they answered it."}, []string{"became"}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	all := []prometheus.Collector{m.drops, m.lefts,
		gauge("weft_dns_services", "Services that are answered for.", func() float64 { return float64(s.records.State().Services) }),
		gauge("weft_dns_clients", "Addresses of the node's pods whose searches are answered for.", func() float64 { return float64(s.records.State().Clients) }),
		gauge("weft_dns_records_age_seconds", "Time since the agent wrote the records last by which is answered; -1 where there are none.", func() float64 {
			if written := s.records.State().Written; !written.IsZero() {
				return time.Since(written).Seconds()
			}
			return -1
		}),
		gauge("weft_dns_outside_queries", "Queries that others are being asked for.", func() float64 { return float64(s.outside.Load().rooms.all.count()) }),
		gauge("weft_dns_connections", "Connections of clients.", func() float64 { return float64(s.connections.count()) }),
		gauge("weft_dns_receive_buffer_bytes", "How much of the kernel's memory queries may take that wait to be read, at the address where that is least; 0 where there is none.",
			func() float64 { size, _ := s.buffers(); return float64(size) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_dns_unread_total", Help: "Queries that the kernel dropped, as it had no room for more that wait to be read."},
			func() float64 { _, dropped := s.buffers(); return float64(dropped) }),
		gauge("weft_dns_problem", "1 while something keeps queries from being answered as they should, else 0.", func() float64 {
			if s.problem() != "" {
				return 1
			}
			return 0
		}),
	}
	for _, c := range all {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// dropped counts what was one too many.
func (m *metrics) dropped(at string) {
	if m != nil {
		m.drops.WithLabelValues(at).Inc()
	}
}

// left counts a query that the server before has left.
func (m *metrics) left(became string) {
	if m != nil {
		m.lefts.WithLabelValues(became).Inc()
	}
}

// listenAgain is when the address for metrics is tried again. The server of the keeper before
// may have it still.
const listenAgain = time.Second

// serveMetrics answers at an address, until ctx ends.
func serveMetrics(ctx context.Context, address string, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.Handler())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	for told := false; ; told = true {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			err = srv.Serve(l)
		}
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return
		}
		if !told {
			log.Warn("metrics are not told, which is tried again", "address", address, "error", err)
		}
		retry.Sleep(ctx, listenAgain)
	}
}
