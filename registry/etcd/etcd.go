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
	"slices"
	"strconv"
	"strings"
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

	auth   *auth
	client *clientv3.Client
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
	tls, err := c.tls()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	r := &Registry{config: c, log: c.Log, auth: newAuth(c.Username, c.Password)}
	if r.log == nil {
		r.log = slog.Default()
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	dial := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: c.DialTimeout,
		}),
		grpc.WithChainUnaryInterceptor(r.auth.unary),
		grpc.WithChainStreamInterceptor(r.auth.stream),
	}
	if c.ServerName != "" { // gRPC does not look at the name in tls.Config
		dial = append(dial, grpc.WithAuthority(c.ServerName))
	}
	r.client, err = clientv3.New(clientv3.Config{
		Context:              r.ctx,
		Endpoints:            c.Endpoints,
		TLS:                  tls,
		DialTimeout:          c.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxUnaryRetries:      1, // the caller tries again, and knows better
		Logger:               zap.NewNop(),
		DialOptions:          dial,
	})
	if err != nil {
		r.cancel()
		return nil, fmt.Errorf("etcd at %s: %w", c.where(), err)
	}
	return r, nil
}

// call runs a request within the time-out of one.
func (r *Registry) call(ctx context.Context, request func(context.Context, *clientv3.Client) error) error {
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if r.ctx.Err() != nil {
		return r.errClosed()
	}
	if err := request(bounded, r.client); err != nil {
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

// Members returns the names of etcd's members, in order.
func (r *Registry) Members(ctx context.Context) ([]string, error) {
	var list *clientv3.MemberListResponse
	err := r.call(ctx, func(ctx context.Context, c *clientv3.Client) (err error) {
		list, err = c.MemberList(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list etcd's members: %w", err)
	}
	var names []string
	for _, m := range list.Members {
		// A learner has nothing that it could give back.
		if !m.IsLearner {
			names = append(names, cmp.Or(m.Name, fmt.Sprintf("%x", m.ID)))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Close implements registry.Registry. Leases are not given back: release
// those that others should have at once.
func (r *Registry) Close() error {
	r.cancel()
	r.client.Close() // what it returns is that its context has ended
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
		return unavailable(wantsUser)
	case rpctypes.ErrPermissionDenied:
		if r.config.Username == "" {
			return unavailable(wantsUser + "; weft etcd grant gives these")
		}
		return unavailable("user %q may not do this; grant it what it needs below %s/, as weft etcd grant does", r.config.Username, r.config.Prefix)
	case rpctypes.ErrNoSpace:
		return unavailable("its database is full; compact and defragment it, then disarm its alarm")
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return unavailable("no answer in time")
	}
	return unavailable("%s", cause(err, strings.HasPrefix(r.config.where(), "https:")))
}

// wantsUser is of an etcd that asks who one is.
const wantsUser = "it wants to know who asks: name a user with --etcd-user and --etcd-password-file, or with --etcd-cert and --etcd-key a client certificate of one with rights"

// cause digs what went wrong out of the layers of a gRPC error.
func cause(err error, useTLS bool) string {
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
	contains := func(part string) bool { return strings.Contains(message, part) }
	switch {
	case contains("server preface") && (contains("closed network connection") || contains("timeout") || contains("deadline")):
		return "it takes connections and does not answer: its process may hang"
	case contains("x509:"):
		return message + "; is the CA file the one that signed its certificate, and is the address in that?"
	// A server that refuses a client certificate closes the connection, and
	// its reason may get lost.
	case contains("certificate required"), contains("bad certificate"), contains("unknown certificate authority"),
		useTLS && (contains("broken pipe") || contains("connection reset") || contains("EOF")):
		return message + "; does it want a client certificate, or one of another CA?"
	}
	return message
}
