package kubernetes_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/kubernetes"
	"github.com/weftnet/weft/registry/registrytest"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// server is an etcd and an API server, which all tests with the same flags
// share: each takes 300 MiB.
type server struct {
	start   sync.Once
	flags   []string
	running *controlplane.ControlPlane
	dir     string
	err     error
}

var (
	// cached is as API servers are.
	cached = &server{}
	// uncached asks etcd for each watch, and so forgets when that does.
	uncached = &server{flags: []string{"--watch-cache=false"}}
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range []*server{cached, uncached} {
		s.stop()
	}
	os.Exit(code)
}

// controlPlane returns the server's control plane, and skips the test where the
// programs were not built.
func (s *server) controlPlane(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	bin, err := controlplane.Bin(controlplane.Etcd, controlplane.APIServer)
	if err != nil {
		t.Skip(err)
	}
	s.start.Do(func() {
		if s.dir, s.err = os.MkdirTemp("", "weft-apiserver-"); s.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		s.running, s.err = controlplane.Start(ctx, controlplane.Config{
			Bin: bin, Dir: s.dir,
			Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer},
			Flags: map[controlplane.Component][]string{controlplane.APIServer: append([]string{
				// The suite's namespaces need not exist, and nobody is there
				// to let go of what these protect.
				"--disable-admission-plugins=NamespaceLifecycle,ServiceAccount,StorageObjectInUseProtection",
			}, s.flags...)},
		})
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.running
}

func (s *server) stop() {
	if s.running != nil {
		s.running.Stop()
	}
	os.RemoveAll(s.dir)
}

var namespaces atomic.Int32

// harness returns one whose registries reach the server through a gate, on a
// server without objects of the suite's kinds.
func (s *server) harness(t *testing.T, log *slog.Logger) registrytest.Harness {
	cp := s.controlPlane(t)
	s.clean(t)
	gate := newGate(t, cp.RESTConfig())
	namespace := fmt.Sprintf("leases%d", namespaces.Add(1))
	open := func(t *testing.T) registry.Registry {
		return open(t, kubernetes.Config{
			REST:      gate.config(cp.RESTConfig()),
			Namespace: namespace,
			Fields:    map[*registry.Kind]string{registrytest.Setting: notSystem},
			Log:       log,
		})
	}
	return registrytest.Harness{
		Registry: open(t),
		Another:  open,
		Stop:     func(*testing.T) { gate.close() },
		Start:    func(*testing.T) { gate.open(t) },
		Lacks: []registrytest.Clause{
			registrytest.TimeToLive, registrytest.GivenUIDs, registrytest.AllNames, registrytest.AllKinds,
			registrytest.AllHistory, registrytest.LastVersions,
		},
	}
}

// notSystem leaves out the objects of the API server's own making.
const notSystem = "metadata.namespace!=kube-system"

func open(t *testing.T, c kubernetes.Config) *kubernetes.Registry {
	t.Helper()
	r, err := kubernetes.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// clean deletes all objects of the suite's kinds.
func (s *server) clean(t *testing.T) {
	t.Helper()
	volume := &registry.Kind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PersistentVolume"),
		Plural:           "persistentvolumes", Singular: "persistentvolume",
		New: func() registry.Object { return &corev1.PersistentVolume{} },
	}
	r := open(t, kubernetes.Config{REST: s.running.RESTConfig(), Fields: map[*registry.Kind]string{registrytest.Setting: notSystem}})
	defer r.Close()
	for _, k := range []*registry.Kind{registrytest.Setting, volume} {
		objects, _, err := r.List(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		turns := make(chan struct{}, 16)
		for _, o := range objects {
			turns <- struct{}{}
			wg.Go(func() {
				if err := r.Delete(t.Context(), k, registry.KeyOf(o), ""); err != nil {
					t.Error(err)
				}
				<-turns
			})
		}
		wg.Wait()
	}
}

// compact makes etcd forget its history.
func (s *server) compact(t *testing.T) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.running.Etcd()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Only what is before the given revision is forgotten.
	put, err := c.Put(t.Context(), "/compaction", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), put.Header.Revision); err != nil {
		t.Fatal(err)
	}
}

// An API server remembers what it saw happen, whatever etcd forgets.
func TestRegistry(t *testing.T) {
	registrytest.Run(t, cached.harness)
}

func TestRegistryWithoutWatchCache(t *testing.T) {
	registrytest.Run(t, func(t *testing.T, log *slog.Logger) registrytest.Harness {
		h := uncached.harness(t, log)
		h.Compact = uncached.compact
		return h
	})
}

// gate is a network between clients and an API server: while it is closed,
// that cannot be reached.
type gate struct {
	address string // its own
	server  string

	mu          sync.Mutex
	listener    net.Listener
	connections map[net.Conn]bool
}

func newGate(t *testing.T, to *rest.Config) *gate {
	u, err := url.Parse(to.Host)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{address: "127.0.0.1:0", server: u.Host, connections: map[net.Conn]bool{}}
	g.open(t)
	t.Cleanup(g.close)
	return g
}

// config returns a configuration of clients that go through the gate.
func (g *gate) config(c *rest.Config) *rest.Config {
	c.Host = "https://" + g.address
	return c
}

func (g *gate) open(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.listener, g.address = l, l.Addr().String()
	g.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.forward(c, l)
		}
	}()
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		g.listener.Close()
		g.listener = nil
	}
	for c := range g.connections {
		c.Close()
	}
	clear(g.connections)
}

// forward carries a connection that came through a listener.
func (g *gate) forward(client net.Conn, through net.Listener) {
	defer client.Close()
	server, err := net.Dial("tcp", g.server)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	open := g.listener == through
	for _, c := range []net.Conn{client, server} {
		if open {
			g.connections[c] = true
		}
	}
	g.mu.Unlock()
	if !open {
		return
	}
	go func() {
		io.Copy(server, client)
		server.Close()
	}()
	io.Copy(client, server)
	g.mu.Lock()
	delete(g.connections, client)
	delete(g.connections, server)
	g.mu.Unlock()
}
