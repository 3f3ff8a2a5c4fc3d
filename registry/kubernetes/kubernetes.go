// Package kubernetes is the registry on a Kubernetes API server, through
// client-go's REST client.
//
// It holds no copies: registry.Cache does that. Lists and watches are decoded
// object by object, reduced at once by their kind's Keep, and travel as
// protobuf where the API server offers it, so that an agent's memory is that
// of what it uses. Writes are merge patches of what differs, so that what Weft
// does not know of an object stays.
//
// A lease of the registry is an object of coordination.k8s.io/v1 in
// Config.Namespace.
//
// Open needs no server: agents start while the API server is away. What is
// wrong with a cluster rather than with a call, such as a
// CustomResourceDefinition that is not installed or a rule that a role lacks,
// is registry.ErrUnavailable and says what to do: callers try again, and go on
// once it was done.
package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weftnet/weft/registry"
)

// DefaultNamespace is where leases are kept.
const DefaultNamespace = "weft-system"

// How many requests a second a registry sends at most, on average and after it
// was idle, where Config.REST does not say. The API server has limits of its
// own; these keep a mistake of Weft's from using them up.
const (
	defaultQPS   = 50
	defaultBurst = 100
)

// How calls behave; the caller's context bounds them further.
const (
	requestTimeout = 10 * time.Second
	pageTimeout    = 30 * time.Second // of a page of a list
	pageSize       = 500              // objects
)

// Config says which API server to use, and how.
type Config struct {
	// REST is where the API server is and who Weft is to it. QPS and Burst
	// bound the requests per second, 50 and 100 where they are 0; a negative
	// QPS sets no bound. A call that the bound holds up for a second or more
	// is logged. Its Timeout is not used.
	REST *rest.Config
	// Namespace holds the leases; default DefaultNamespace. It must exist.
	Namespace string
	// Fields are field selectors that restrict List and Watch of a kind, as
	// "spec.nodeName=node1".
	Fields map[*registry.Kind]string
	// Log hears of objects that do not decode and of what the API server
	// warns of. Default slog.Default().
	Log *slog.Logger
}

// Registry is a registry.Registry on a Kubernetes API server. Make one with
// Open.
type Registry struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	client  *rest.RESTClient
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

var _ registry.Registry = (*Registry)(nil)

// Open returns a registry for a configuration, or what is wrong with that. It
// does not connect; see Ping.
func Open(c Config) (*Registry, error) {
	if c.REST == nil {
		return nil, errors.New("kubernetes: no API server is configured")
	}
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	r := &Registry{config: c, log: c.Log, metrics: newMetrics()}
	config := rest.CopyConfig(c.REST)
	config.Timeout = 0 // it would end watches; calls have bounds of their own
	config.UserAgent = cmp.Or(config.UserAgent, rest.DefaultKubernetesUserAgent())
	// A decompressor for each response costs more memory than what it saves
	// between machines of one cluster.
	config.DisableCompression = true
	config.WarningHandler = nil
	config.WarningHandlerWithContext = &warnings{log: c.Log}
	config.RateLimiter = r.limiter(config)
	config.NegotiatedSerializer = statusSerializer()
	config.Wrap(r.metrics.count)
	var err error
	if r.client, err = rest.UnversionedRESTClientFor(config); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// statusSerializer decodes what an API server says in place of objects. They
// themselves have formats; see format.
func statusSerializer() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}

// limiter returns what bounds the requests per second, nil for no bound.
func (r *Registry) limiter(config *rest.Config) flowcontrol.RateLimiter {
	switch {
	case config.RateLimiter != nil:
		return config.RateLimiter
	case config.QPS < 0:
		return nil
	}
	return &limiter{
		RateLimiter: flowcontrol.NewTokenBucketRateLimiter(cmp.Or(config.QPS, defaultQPS), cmp.Or(config.Burst, defaultBurst)),
		log:         r.log,
		waited:      r.metrics.waited,
	}
}

// Collector returns the metrics of the requests sent: counters by verb,
// resource and status code, and of the seconds that the own bound on requests
// held them up.
func (r *Registry) Collector() prometheus.Collector { return r.metrics }

// Serves implements registry.Registry.
func (r *Registry) Serves(k *registry.Kind) bool { return k.Layout == nil }

// served returns why a kind is not served, or nil.
func served(k *registry.Kind) error {
	if k.Layout == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: Kubernetes does not have this kind; it is kept in etcd alone", k.Plural, registry.ErrInvalid)
}

// Ping returns nil if the API server answers and knows who asks. Otherwise the
// error says why not.
func (r *Registry) Ping(ctx context.Context) error {
	return r.within(ctx, requestTimeout, func(ctx context.Context, c *call) error {
		c.verb, c.resource = "get", "version"
		_, err := r.client.Verb(http.MethodGet).AbsPath("/version").DoRaw(ctx)
		return err
	})
}

// Close implements registry.Registry. Leases are not given back: release
// those that others should have at once.
func (r *Registry) Close() error {
	r.cancel()
	return nil
}

// where names the API server.
func (r *Registry) where() string {
	where := url.URL{Scheme: "https", Host: r.config.REST.Host}
	if u, err := url.Parse(r.config.REST.Host); err == nil && u.Host != "" {
		where = *u
	}
	return where.Redacted()
}
