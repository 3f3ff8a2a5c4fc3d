package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/kubernetes"
)

// Settings say which registry is used and how it is reached. One of the two is
// set.
type Settings struct {
	Etcd       *etcd.Config
	Kubernetes *Cluster
}

// Registry is a registry that is somewhere else, and may not answer.
type Registry interface {
	registry.Registry
	// Ping fails, and says why, if the registry does not answer.
	Ping(ctx context.Context) error
}

// Use is what a process does with a registry.
type Use struct {
	// Program is who it is to the API server of Kubernetes, as "weft-agent".
	Program string
	// Fields restrict, for some kinds, what List and Watch deliver, where the
	// registry is Kubernetes; see kubernetes.Config.
	Fields map[*registry.Kind]string
	Log    *slog.Logger
}

// Open opens the registry. It need not answer yet. It must be closed.
func (s Settings) Open(use Use) (Registry, error) {
	if s.Kubernetes == nil {
		config := *s.Etcd
		config.Log = use.Log
		return etcd.Open(config)
	}
	config := rest.CopyConfig(s.Kubernetes.REST)
	config.UserAgent = UserAgent(use.Program)
	return kubernetes.Open(kubernetes.Config{REST: config, Namespace: s.Kubernetes.Namespace, Fields: use.Fields, Log: use.Log})
}

// LeaseTTL returns the time of a lease that a flag --lease-ttl gave, or that of
// the kind of registry where it gave none. On Kubernetes each renewal is a request to an API server
// that serves others, too.
func (s Settings) LeaseTTL(given, onEtcd, onKubernetes time.Duration) (time.Duration, error) {
	switch {
	case given == 0 && s.Kubernetes != nil:
		return onKubernetes, nil
	case given == 0:
		return onEtcd, nil
	case given < time.Second:
		return 0, fmt.Errorf("--lease-ttl %s must be at least a second", given)
	}
	return given, nil
}

// UserAgent is what a program calls itself in its requests to an API server.
func UserAgent(program string) string {
	return fmt.Sprintf("%s/%s (%s/%s)", program, Version, runtime.GOOS, runtime.GOARCH)
}

// Collectors returns the metrics that a registry has of its own.
func Collectors(r registry.Registry) []prometheus.Collector {
	if c, ok := r.(interface{ Collector() prometheus.Collector }); ok {
		return []prometheus.Collector{c.Collector()}
	}
	return nil
}
