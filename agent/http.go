package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/service/counts"
	"github.com/weftnet/weft/trace"
)

// serveHTTP serves health and metrics to all who reach Listen, and these, the
// plan, what is dropped, what Services count, probes, and profiles to root on the node.
func (a *agent) serveHTTP(ctx context.Context, wg *sync.WaitGroup) error {
	public := http.NewServeMux()
	public.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	public.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.Ready(); err != nil && !errors.Is(err, cni.ErrChanging) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
		// Pods can be networked, yet not all is as it should be.
		for _, line := range a.degraded() {
			fmt.Fprintln(w, line)
		}
	})
	public.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	public.Handle("GET "+servicesMetrics, promhttp.HandlerFor(a.metrics.services, promhttp.HandlerOpts{}))

	local := http.NewServeMux()
	local.Handle("/", public)
	local.HandleFunc("GET /plan", func(w http.ResponseWriter, _ *http.Request) {
		p := a.plan()
		if p == nil {
			http.Error(w, "no plan yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, p)
	})
	local.Handle("GET /drops", a.denials)
	local.Handle("GET "+counts.Path, a.served)
	local.HandleFunc("POST "+trace.Path, a.tracer.watch)
	local.HandleFunc("POST "+trace.SendPath, a.tracer.send)
	local.HandleFunc("POST "+trace.EndPath, a.tracer.end)
	local.HandleFunc("GET /debug/pprof/", pprof.Index)
	local.HandleFunc("GET /debug/pprof/profile", pprof.Profile)

	path := filepath.Join(a.RunDir, HTTPSocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of an agent before: %w", err)
	}
	// RunDir is root's alone, so the socket is too.
	socket, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	a.serve(ctx, wg, socket, local)
	if a.Listen == "" {
		return nil
	}
	tcp, err := net.Listen("tcp", a.Listen)
	if err != nil {
		socket.Close()
		return fmt.Errorf("listen for health and metrics: %w", err)
	}
	a.serve(ctx, wg, tcp, public)
	return nil
}

func (a *agent) serve(ctx context.Context, wg *sync.WaitGroup, l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	wg.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.Log.Error("HTTP server ended", "address", l.Addr(), "error", err)
		}
	})
	context.AfterFunc(ctx, func() { s.Close() })
}
