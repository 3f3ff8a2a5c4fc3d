package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/etcd/embedded"
	"github.com/weftnet/weft/registry/registrytest"
)

// server is an etcd to test against.
type server struct {
	config      etcd.Config
	admin       clientv3.Config
	stop, start func(t *testing.T)
	// ca signs certificates, where the server asks for them.
	ca *authority
}

// connect returns a client that may do everything, until the end of the test.
func (s *server) connect(t *testing.T) *clientv3.Client {
	c, err := clientv3.New(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var prefixes atomic.Int32

// harness returns one whose registries have a prefix of their own on a server.
func (s *server) harness(t *testing.T, log *slog.Logger) registrytest.Harness {
	config := s.config
	config.Prefix = fmt.Sprintf("/weft-%d", prefixes.Add(1))
	config.Log = log
	open := func(t *testing.T) registry.Registry {
		r, err := etcd.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	return registrytest.Harness{
		Registry: open(t),
		Another:  open,
		Stop:     s.stop,
		Start:    s.start,
		Compact: func(t *testing.T) {
			// Only what is before the given revision is forgotten.
			admin := s.connect(t)
			put, err := admin.Put(t.Context(), "/compaction", "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := admin.Compact(t.Context(), put.Header.Revision); err != nil {
				t.Fatal(err)
			}
		},
		PutValue: func(t *testing.T, k *registry.Kind, key registry.Key, value string) {
			path, ok := k.Path(config.Prefix, key)
			if !ok {
				t.Fatalf("there is no such key as %v", key)
			}
			if _, err := s.connect(t).Put(t.Context(), path, value); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// embeddedServer starts one on a Unix socket.
func embeddedServer(t *testing.T) *server {
	dir, err := os.MkdirTemp("", "weft-etcd-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := "unix://" + filepath.Join(dir, "run", "etcd.sock")
	var running *embedded.Server
	s := &server{
		config: etcd.Config{Endpoints: []string{socket}},
		start: func(t *testing.T) {
			running, err = embedded.Start(t.Context(), embedded.Config{
				Dir: filepath.Join(dir, "data"), ListenClient: []string{socket}, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
		},
		stop: func(*testing.T) { running.Close() },
	}
	s.start(t)
	t.Cleanup(func() { running.Close() })
	s.admin = clientv3.Config{Endpoints: s.config.Endpoints, Logger: zap.NewNop()}
	return s
}

func TestRegistryEmbedded(t *testing.T) {
	registrytest.Run(t, embeddedServer(t).harness)
}

// Agents start while etcd is away, and find it when it comes.
func TestOpenBeforeServer(t *testing.T) {
	s := embeddedServer(t)
	s.stop(t)
	r, err := etcd.Open(s.config)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), s.config.Endpoints[0]) {
		t.Errorf("Ping of nobody says %v; want the endpoint", err)
	}
	c := registry.NewCache(r, []*registry.Kind{api.Node}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	s.start(t)
	bounded, cancelWait := context.WithTimeout(t.Context(), time.Minute)
	defer cancelWait()
	if err := c.WaitSynced(bounded); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}

// A server that was restored from an old backup knows less than its watchers.
func TestWatchAfterLossOfHistory(t *testing.T) {
	s := embeddedServer(t)
	r, err := etcd.Open(s.config)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Watch(t.Context(), api.Node, "1000000"); err == nil || !strings.Contains(err.Error(), registry.ErrCompacted.Error()) {
		t.Errorf("a watch from the future says %v, want %v", err, registry.ErrCompacted)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	rubbish := filepath.Join(dir, "rubbish.pem")
	if err := os.WriteFile(rubbish, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	https := []string{"https://127.0.0.1:2379"}
	for _, c := range []struct {
		config etcd.Config
		want   string
	}{
		{etcd.Config{}, "no endpoint"},
		{etcd.Config{Endpoints: []string{"127.0.0.1:2379"}}, "127.0.0.1:2379"},
		{etcd.Config{Endpoints: []string{"ftp://127.0.0.1:2379"}}, "want https://host:port"},
		{etcd.Config{Endpoints: []string{"https://127.0.0.1"}}, "want https://host:port"},
		{etcd.Config{Endpoints: []string{"unix://"}}, "want https://host:port"},
		{etcd.Config{Endpoints: []string{"https://127.0.0.1:1", "http://127.0.0.1:1"}}, "scheme of the first"},
		{etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}, CAFile: rubbish}, "does not use TLS"},
		{etcd.Config{Endpoints: https, CAFile: rubbish}, "no PEM certificate"},
		{etcd.Config{Endpoints: https, CAFile: filepath.Join(dir, "none.pem")}, "none.pem"},
		{etcd.Config{Endpoints: https, CertFile: rubbish}, "needs both"},
		{etcd.Config{Endpoints: https, CertFile: rubbish, KeyFile: rubbish}, "rubbish.pem"},
		{etcd.Config{Endpoints: https, Username: "weft"}, "user \"weft\" has no password: give it as --etcd-user weft:PASSWORD"},
		{etcd.Config{Endpoints: https, Prefix: "weft"}, "must begin with /"},
	} {
		r, err := etcd.Open(c.config)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open(%+v): %v, want %q", c.config, err, c.want)
		}
	}
}

func TestMembers(t *testing.T) {
	s := embeddedServer(t)
	r, err := etcd.Open(s.config)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if members, err := r.Members(t.Context()); err != nil || len(members) != 1 || members[0] != "weft" {
		t.Errorf("its members are %q, %v", members, err)
	}
}

// TestTheOnlyOneIsAllThatIsRead has a kind of which one object matters. Nothing is heard of
// the others.
func TestTheOnlyOneIsAllThatIsRead(t *testing.T) {
	r := embeddedServer(t).harness(t, slog.New(slog.DiscardHandler)).Registry
	ctx := t.Context()
	mine := *api.Node
	mine.Only = registry.Key{Name: "node1"}
	write := func(name string) {
		node := &corev1.Node{}
		node.Name = name
		if _, err := r.Create(ctx, api.Node, node); err != nil {
			t.Fatal(err)
		}
	}
	write("node10")
	objects, revision, err := r.List(ctx, &mine)
	if err != nil || len(objects) != 0 {
		t.Fatalf("listed %v, %v", objects, err)
	}
	w, err := r.Watch(ctx, &mine, revision)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node11", "node1", "node12"} {
		write(name)
	}
	if e := <-w.Events(); e.Object.GetName() != "node1" {
		t.Errorf("it is told of %s", e.Object.GetName())
	}
	if objects, _, err := r.List(ctx, &mine); err != nil || len(objects) != 1 || objects[0].GetName() != "node1" {
		t.Errorf("listed %v, %v", objects, err)
	}
}
