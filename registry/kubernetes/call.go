package kubernetes

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/weftnet/weft/registry"
)

// call is what is known of a call while it runs: for its metrics and its
// errors. It travels in the request's context.
type call struct {
	// verb is that of the API: list, watch, get, create, patch, delete.
	verb string
	// resource is the plural, "nodes", or that of a subresource,
	// "nodes/status".
	resource  string
	kind      *registry.Kind // nil for none
	namespace string         // empty for all, and for what has none
	code      int            // the status code of the last answer; 0 for none
}

type callKey struct{}

// within runs a request with a bound on its time, which ends with the
// registry, too, and returns what its failure means.
func (r *Registry) within(ctx context.Context, bound time.Duration, request func(context.Context, *call) error) error {
	if r.ctx.Err() != nil {
		return r.errClosed()
	}
	c := &call{}
	bounded, cancel := context.WithTimeout(context.WithValue(ctx, callKey{}, c), bound)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	if err := request(bounded, c); err != nil {
		return r.failure(ctx, c, err)
	}
	return nil
}

// request is a request about objects of a kind.
type request struct {
	verb   string
	kind   *registry.Kind
	key    registry.Key // without a name where it is about many
	status bool         // it is about the status subresource
	params url.Values
	accept string
	body   []byte
}

// methods are the HTTP methods of the API's verbs.
var methods = map[string]string{
	"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet,
	"create": http.MethodPost, "patch": http.MethodPatch, "delete": http.MethodDelete,
}

// open sends a request and returns the body of what it was answered with.
func (r *Registry) open(ctx context.Context, c *call, q request) (io.ReadCloser, error) {
	c.verb, c.resource, c.kind, c.namespace = q.verb, q.kind.Plural, q.kind, q.key.Namespace
	api := "/apis/" + q.kind.Group
	if q.kind.Group == "" {
		api = "/api"
	}
	out := r.client.Verb(methods[q.verb]).AbsPath(api, q.kind.Version).
		NamespaceIfScoped(q.key.Namespace, q.key.Namespace != "").
		Resource(q.kind.Plural).
		SetHeader("Accept", q.accept)
	if q.key.Name != "" && q.verb != "create" {
		out.Name(q.key.Name)
	}
	if q.status {
		c.resource += "/status"
		out.SubResource("status")
	}
	for name, values := range q.params {
		for _, value := range values {
			out.Param(name, value)
		}
	}
	if q.body != nil {
		kind := "application/json"
		if q.verb == "patch" {
			kind = string(types.MergePatchType)
		}
		out.Body(q.body).SetHeader("Content-Type", kind)
	}
	return out.Stream(ctx)
}

// object sends a request that is answered with one object, and returns that.
func (r *Registry) object(ctx context.Context, q request, f format) ([]byte, error) {
	q.accept = f.accept(false)
	var data []byte
	err := r.within(ctx, requestTimeout, func(ctx context.Context, c *call) error {
		body, err := r.open(ctx, c, q)
		if err != nil {
			return err
		}
		defer body.Close()
		data, err = f.object(body)
		return err
	})
	return data, err
}

// metrics count requests.
type metrics struct {
	requests *prometheus.CounterVec
	waited   prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_api_requests_total",
			Help: "Requests to the Kubernetes API server, by verb, resource and status code; the code is \"error\" where there was no answer.",
		}, []string{"verb", "resource", "code"}),
		waited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weft_api_throttled_seconds_total",
			Help: "How long requests to the Kubernetes API server waited for the process' own bound on requests per second.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.requests.Describe(ch)
	m.waited.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.waited.Collect(ch)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// count returns a transport that counts what another sends: each attempt of a
// call that is repeated.
func (m *metrics) count(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(q *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(q)
		if c, ok := q.Context().Value(callKey{}).(*call); ok {
			code := "error"
			if err == nil {
				c.code = response.StatusCode
				code = strconv.Itoa(c.code)
			}
			m.requests.WithLabelValues(c.verb, c.resource, code).Inc()
		}
		return response, err
	})
}

// limiter is a rate limiter that does not keep silent.
type limiter struct {
	flowcontrol.RateLimiter
	log    *slog.Logger
	waited prometheus.Counter
}

// Wait implements flowcontrol.RateLimiter.
func (l *limiter) Wait(ctx context.Context) error {
	began := time.Now()
	err := l.RateLimiter.Wait(ctx)
	d := time.Since(began)
	l.waited.Add(d.Seconds())
	if c, ok := ctx.Value(callKey{}).(*call); ok && d >= time.Second {
		l.log.Warn("the bound on requests per second held up a call to the API server",
			"verb", c.verb, "resource", c.resource, "for", d.Round(time.Millisecond), "qps", l.QPS())
	}
	return err
}

// warnings hands on what an API server warns of, not twice in a row.
type warnings struct {
	log  *slog.Logger
	mu   sync.Mutex
	last string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	const miscellaneous = 299 // RFC 7234, the only one that API servers use
	w.mu.Lock()
	defer w.mu.Unlock()
	if code != miscellaneous || text == "" || text == w.last {
		return
	}
	w.last = text
	var resource string
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		resource = c.resource
	}
	w.log.Warn("the API server warns", "resource", resource, "text", text)
}
