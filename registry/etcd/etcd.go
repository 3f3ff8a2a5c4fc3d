// Package etcd is the registry on etcd v3, by the official client.
//
// An object is the JSON of its API type under
// <prefix>/<group>/<plural>/[<namespace>/]<name>, with "core" for the group
// without a name, or where its kind's Layout says. Its resource version is the
// key's modification revision, its time to live an etcd lease of its own. A
// lease of the registry is the key <prefix>/leases/<name>, whose value is the
// holder.
//
// Open needs no server: agents start while etcd is away. Package embedded runs
// a server in the process.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"github.com/weftnet/weft/registry"
)

// How calls behave; the caller's context bounds them further.
const (
	requestTimeout = 5 * time.Second
	pageSize       = 500 // objects
	// A server that does not answer pings for keepAliveTime+keepAliveTimeout
	// counts as lost. gRPC servers allow a ping each 5 s by default.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 5 * time.Second
)

// Registry is a registry.Registry on etcd. Make one with Open.
type Registry struct {
	config Config
	log    *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	connecting chan struct{} // holds one token for who makes the client
	client     atomic.Pointer[clientv3.Client]
}

var _ registry.Registry = (*Registry)(nil)

// Open returns a registry for a configuration, or what is wrong with that. It
// does not connect; see Ping.
func Open(c Config) (*Registry, error) {
	c.Prefix = strings.TrimRight(cmp.Or(c.Prefix, DefaultPrefix), "/")
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 2 * time.Second
	}
	r := &Registry{config: c, log: c.Log, connecting: make(chan struct{}, 1)}
	if r.log == nil {
		r.log = slog.Default()
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// connect returns the client, which it makes where there is none yet. The
// client's constructor asks etcd for a token when there is a user name; that
// is why it is not called before it is needed.
func (r *Registry) connect(ctx context.Context) (*clientv3.Client, error) {
	if r.ctx.Err() != nil {
		return nil, r.errClosed()
	}
	if c := r.client.Load(); c != nil {
		return c, nil
	}
	select {
	case r.connecting <- struct{}{}:
		defer func() { <-r.connecting }()
	case <-ctx.Done():
		return nil, r.failure(ctx, ctx.Err())
	}
	if c := r.client.Load(); c != nil {
		return c, nil
	}
	tls, err := r.config.tls()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	c, err := clientv3.New(clientv3.Config{
		Context:              r.ctx,
		Endpoints:            r.config.Endpoints,
		TLS:                  tls,
		Username:             r.config.Username,
		Password:             r.config.Password,
		DialTimeout:          r.config.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxUnaryRetries:      3, // the last error says why, a time-out does not
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: r.config.DialTimeout,
			}),
			grpc.WithChainUnaryInterceptor(failFast),
		},
	})
	if err != nil {
		return nil, r.failure(ctx, err)
	}
	r.client.Store(c)
	if r.ctx.Err() != nil { // Close came first and did not see it
		c.Close()
	}
	return c, nil
}

// failFast makes a request fail when there is no connection to be had, and say
// why there is none. The client would have it wait until its time is over.
func failFast(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoke(ctx, method, request, reply, connection, append(options, grpc.WaitForReady(false))...)
}

// call runs a request within the time-out of one.
func (r *Registry) call(ctx context.Context, request func(context.Context, *clientv3.Client) error) error {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client, err := r.connect(bounded)
	if err != nil {
		return err
	}
	if err := request(bounded, client); err != nil {
		return r.failure(ctx, err)
	}
	return nil
}

// Ping returns nil if etcd answers and lets the user in. Otherwise the error
// says why: the connection, the certificate, the password.
func (r *Registry) Ping(ctx context.Context) error {
	return r.call(ctx, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Get(ctx, r.config.Prefix+"/", clientv3.WithCountOnly())
		return err
	})
}

// Close implements registry.Registry. Leases are not given back: release
// those that others should have at once.
func (r *Registry) Close() error {
	r.cancel()
	if c := r.client.Load(); c != nil {
		c.Close()
	}
	return nil
}

// unavailable wraps ErrUnavailable and names the endpoints.
func (r *Registry) unavailable(err error) error {
	return fmt.Errorf("%w: etcd at %s: %w", registry.ErrUnavailable, r.config.where(), err)
}

func (r *Registry) errClosed() error { return r.unavailable(errors.New("the connection was closed")) }

// failure returns what a failed request means. ctx is the caller's.
func (r *Registry) failure(ctx context.Context, err error) error {
	unavailable := func(format string, args ...any) error { return r.unavailable(fmt.Errorf(format, args...)) }
	if ended := ctx.Err(); ended != nil {
		if errors.Is(ended, context.Canceled) {
			return ended
		}
		return unavailable("no answer in time: %w", ended)
	}
	var known rpctypes.EtcdError
	errors.As(rpctypes.Error(err), &known)
	switch error(known) {
	case rpctypes.ErrCompacted:
		return registry.ErrCompacted
	case rpctypes.ErrRequestTooLarge:
		return fmt.Errorf("%w: larger than etcd at %s takes", registry.ErrInvalid, r.config.where())
	case rpctypes.ErrAuthFailed:
		return unavailable("wrong password, or no such user as %q", r.config.Username)
	case rpctypes.ErrUserEmpty:
		return unavailable("it wants a user name and a password, or a client certificate")
	case rpctypes.ErrPermissionDenied:
		return unavailable("user %q may not do this; grant it readwrite on the prefix %s/", r.config.Username, r.config.Prefix)
	case rpctypes.ErrNoSpace:
		return unavailable("its database is full; compact and defragment it, then disarm its alarm")
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return unavailable("no answer in time")
	}
	return unavailable("%s", cause(err))
}

// cause digs what went wrong out of the layers of a gRPC error.
func cause(err error) string {
	message := err.Error()
	if s, ok := status.FromError(err); ok {
		message = s.Message()
	}
	const description = "desc = "
	if i := strings.LastIndex(message, description); i >= 0 {
		message = message[i+len(description):]
		if quoted, err := strconv.QuotedPrefix(message); err == nil {
			message, _ = strconv.Unquote(quoted)
		}
	}
	message = strings.TrimPrefix(message, "transport: ")
	switch {
	case strings.Contains(message, "x509:"):
		return message + "; is the CA file the one that signed its certificate, and is the address in that?"
	case strings.Contains(message, "certificate required"), strings.Contains(message, "bad certificate"), strings.Contains(message, "unknown certificate authority"):
		return message + "; it refuses the client certificate"
	}
	return message
}
