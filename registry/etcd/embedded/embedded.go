// Package embedded runs an etcd server in the process, so that a controller or
// a lab needs no other program. It is the ordinary server with its data in a
// directory: several make a cluster, and any etcd tool can be used with it.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Config says how a server runs.
type Config struct {
	// Dir holds the data. It is made where there is none.
	Dir string
	// Name is the member's own among those of InitialCluster, "weft" by
	// default.
	Name string
	// ListenClient are the URLs that clients connect to:
	// "https://10.0.0.1:2379", "http://127.0.0.1:2379", "unix:///run/etcd.sock".
	ListenClient []string
	// ListenPeer are the URLs that other members connect to; none is needed
	// without others.
	ListenPeer []string
	// InitialCluster names all members of a new cluster and their peer URLs,
	// "a=https://10.0.0.1:2380,b=https://10.0.0.2:2380". Empty for one member.
	InitialCluster string
	// Joining says that the cluster exists already and this member was added
	// to it.
	Joining bool
	// ClientTLS and PeerTLS are for https URLs.
	ClientTLS, PeerTLS TLS
	// AllowInsecure permits to listen beyond loopback without asking clients
	// for certificates.
	AllowInsecure bool
	// Quota is the most bytes that the database may have, 2 GiB by default.
	Quota int64
	// History is how long old revisions are kept, an hour by default. Who
	// watches from an older one must list again.
	History time.Duration
	// Log hears of errors, and at level debug of warnings; slog.Default() by
	// default.
	Log *slog.Logger
}

// TLS names files with PEM.
type TLS struct {
	// CertFile and KeyFile are the server's own.
	CertFile, KeyFile string
	// CAFile is who must have signed the certificates that the other side has
	// to show. Without it, none is asked for.
	CAFile string
}

func (t TLS) info() transport.TLSInfo {
	return transport.TLSInfo{CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.CAFile, ClientCertAuth: t.CAFile != ""}
}

// Server is a running server.
type Server struct {
	etcd      *embed.Etcd
	lock      *os.File
	endpoints []string
	close     sync.Once
	closing   *atomic.Bool
	serving   func() []*grpc.Server
}

// Start starts a server and returns when it serves, or with an error.
func Start(ctx context.Context, c Config) (*Server, error) {
	e, err := c.embed()
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	for _, u := range e.ListenClientUrls {
		if u.Scheme != "unix" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(u.Path), 0o700); err != nil {
			return nil, fmt.Errorf("embedded etcd: %w", err)
		}
	}
	closing := new(atomic.Bool)
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(cmp.Or(c.Log, slog.Default()), closing))
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	if err := checkSockets(ctx, slices.Concat(e.ListenClientUrls, e.ListenPeerUrls)); err != nil {
		lock.Close()
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	var mu sync.Mutex
	var serving []*grpc.Server
	e.ServiceRegister = func(g *grpc.Server) {
		mu.Lock()
		defer mu.Unlock()
		serving = append(serving, g)
	}
	started, err := embed.StartEtcd(e)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", c.Dir, err)
	}
	s := &Server{etcd: started, lock: lock, endpoints: c.ListenClient, closing: closing, serving: func() []*grpc.Server {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(serving)
	}}
	select {
	case <-started.Server.ReadyNotify():
	case err = <-started.Err():
	case <-started.Server.StopNotify():
		err = errors.New("stopped while it started")
	case <-ctx.Done():
		err = fmt.Errorf("not ready: %w", ctx.Err())
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", c.Dir, err)
	}
	return s, nil
}

// Endpoints are the URLs that clients can use.
func (s *Server) Endpoints() []string { return s.endpoints }

// Failed delivers an error if the server ends by itself.
func (s *Server) Failed() <-chan error { return s.etcd.Err() }

// Close stops the server. It can be started again in the same directory.
func (s *Server) Close() {
	s.close.Do(func() {
		s.closing.Store(true)
		// etcd gives clients seconds to end their calls, but watches never
		// end.
		for _, g := range s.serving() {
			go g.Stop()
		}
		s.etcd.Close()
		s.lock.Close()
	})
}

// lockDir makes sure that no other server works on a directory, for which etcd
// itself would wait without a word.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another server has its data in %s: give each a directory of its own, or use its --etcd-endpoints", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// checkSockets refuses Unix sockets on which somebody listens, which etcd would
// take away from them. One that a server left behind when it was killed refuses
// connections, and etcd replaces it.
func checkSockets(ctx context.Context, urls []url.URL) error {
	for _, u := range urls {
		if u.Scheme != "unix" {
			continue
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", u.Path)
		switch {
		case err == nil:
			conn.Close()
			return fmt.Errorf("another process listens on %s: give each server a socket of its own, or use that one's with --etcd-endpoints %s", u.Path, u.String())
		case errors.Is(err, unix.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded):
			// Somebody listens, and has no room for more connections.
			return fmt.Errorf("another process seems to listen on %s: %w", u.Path, err)
		}
	}
	return nil
}

// embed translates the configuration.
func (c Config) embed() (*embed.Config, error) {
	if c.Dir == "" {
		return nil, errors.New("no directory is given for the data")
	}
	if len(c.ListenClient) == 0 {
		return nil, errors.New("no URL is given to listen on for clients")
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	client, err := c.urls(c.ListenClient, c.ClientTLS, "client")
	if err != nil {
		return nil, err
	}
	peer, err := c.urls(c.ListenPeer, c.PeerTLS, "peer")
	if err != nil {
		return nil, err
	}
	e := embed.NewConfig()
	e.Dir = c.Dir
	e.Name = cmp.Or(c.Name, "weft")
	e.ListenClientUrls, e.AdvertiseClientUrls = client, client
	e.ListenPeerUrls = peer
	e.ClientTLSInfo, e.PeerTLSInfo = c.ClientTLS.info(), c.PeerTLS.info()
	e.ClusterState = embed.ClusterStateFlagNew
	if c.Joining {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	e.InitialCluster = c.InitialCluster
	switch {
	case len(peer) > 0:
		e.AdvertisePeerUrls = peer
	case c.InitialCluster != "":
		return nil, errors.New("a cluster of several needs a URL to listen on for peers")
	default:
		// Nobody else elects: the first heartbeat may come soon. The address
		// is only a name that is stored, nothing listens there.
		e.TickMs, e.ElectionMs = 20, 200
	}
	if e.InitialCluster == "" {
		e.InitialCluster = e.InitialClusterFromName(e.Name)
	}
	e.AutoCompactionMode = embed.CompactorModePeriodic
	e.AutoCompactionRetention = cmp.Or(c.History, time.Hour).String()
	e.QuotaBackendBytes = cmp.Or(c.Quota, 2<<30)
	e.CORS, e.HostWhitelist = nil, nil
	return e, nil
}

// urls parses what to listen on, and refuses what would let strangers in.
func (c Config) urls(from []string, t TLS, what string) ([]url.URL, error) {
	var urls []url.URL
	for _, s := range from {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("%s URL %q: %w", what, s, err)
		}
		switch u.Scheme {
		case "unix":
			if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
				return nil, fmt.Errorf("%s URL %q: want unix:///path", what, s)
			}
		case "http", "https":
			if err := c.checkAddress(u, t); err != nil {
				return nil, fmt.Errorf("%s URL %q: %w", what, s, err)
			}
		default:
			return nil, fmt.Errorf("%s URL %q: want https://address:port, http://address:port or unix:///path", what, s)
		}
		urls = append(urls, *u)
	}
	return urls, nil
}

func (c Config) checkAddress(u *url.URL, t TLS) error {
	if u.Port() == "" {
		return errors.New("a port is missing")
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil && u.Hostname() != "localhost" {
		return errors.New("want an IP address to listen on")
	}
	if u.Scheme == "https" && (t.CertFile == "" || t.KeyFile == "") {
		return errors.New("https needs a certificate file and a key file")
	}
	if ip == nil || ip.IsLoopback() || c.AllowInsecure {
		return nil
	}
	if u.Scheme != "https" || t.CAFile == "" {
		return errors.New("beyond loopback, use https and a CA file that clients' certificates must be signed by, or allow insecure listeners explicitly")
	}
	return nil
}
