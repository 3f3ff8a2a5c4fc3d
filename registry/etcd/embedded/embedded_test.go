package embedded

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/etcd"
)

var quiet = slog.New(slog.DiscardHandler)

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "weft-etcd-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A server serves on each URL, and has its objects again after a restart.
func TestRestart(t *testing.T) {
	dir := shortDir(t)
	c := Config{
		Dir:          filepath.Join(dir, "data"),
		ListenClient: []string{"unix://" + filepath.Join(dir, "run", "etcd.sock"), "http://" + freePort(t)},
		Log:          quiet,
	}
	for i, endpoint := range c.ListenClient {
		s, err := Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		r, err := etcd.Open(etcd.Config{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Get(t.Context(), api.Node, registry.Key{Name: "n"}); err != nil {
			t.Errorf("by %s: %v", endpoint, err)
		}
		r.Close()
		s.Close()
		s.Close() // twice does no harm
	}
	if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory: %v, %v", info, err)
	}
}

// Three members form a cluster that goes on without one of them.
func TestCluster(t *testing.T) {
	names := []string{"a", "b", "c"}
	var configs []Config
	var cluster []string
	for _, name := range names {
		peer := "http://" + freePort(t)
		cluster = append(cluster, name+"="+peer)
		configs = append(configs, Config{
			Dir: t.TempDir(), Name: name, Log: quiet,
			ListenClient: []string{"http://" + freePort(t)}, ListenPeer: []string{peer},
		})
	}
	servers := make(chan *Server)
	var endpoints []string
	for _, c := range configs {
		c.InitialCluster = strings.Join(cluster, ",")
		endpoints = append(endpoints, c.ListenClient...)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			s, err := Start(ctx, c)
			if err != nil {
				t.Error(err)
			}
			servers <- s
		}()
	}
	var running []*Server
	for range configs {
		if s := <-servers; s != nil {
			running = append(running, s)
			t.Cleanup(s.Close)
		}
	}
	if t.Failed() {
		return
	}
	r, err := etcd.Open(etcd.Config{Endpoints: endpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	write := func(name string) error {
		_, err := r.Create(t.Context(), api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if errors.Is(err, registry.ErrExists) {
			return nil // an attempt before took effect
		}
		return err
	}
	if err := write("before"); err != nil {
		t.Fatal(err)
	}
	running[0].Close()
	deadline := time.Now().Add(time.Minute)
	for err = write("after"); errors.Is(err, registry.ErrUnavailable) && time.Now().Before(deadline); err = write("after") {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	if objects, _, err := r.List(t.Context(), api.Node); err != nil || len(objects) != 2 {
		t.Errorf("listed %v, %v", objects, err)
	}
}

func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cert := TLS{CertFile: file, KeyFile: file}
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "no directory"},
		{Config{Dir: dir}, "no URL"},
		{Config{Dir: filepath.Join(file, "x"), ListenClient: []string{"http://127.0.0.1:1"}}, "not a directory"},
		{Config{Dir: dir, ListenClient: []string{"127.0.0.1:2379"}}, "127.0.0.1:2379"},
		{Config{Dir: dir, ListenClient: []string{"unix://etcd.sock"}}, "want unix:///path"},
		{Config{Dir: dir, ListenClient: []string{"http://127.0.0.1"}}, "port is missing"},
		{Config{Dir: dir, ListenClient: []string{"http://example.test:1"}}, "IP address"},
		{Config{Dir: dir, ListenClient: []string{"https://127.0.0.1:1"}}, "certificate file"},
		{Config{Dir: dir, ListenClient: []string{"http://0.0.0.0:1"}}, "beyond loopback"},
		{Config{Dir: dir, ListenClient: []string{"http://[::]:1"}}, "beyond loopback"},
		{Config{Dir: dir, ListenClient: []string{"https://10.0.0.1:1"}, ClientTLS: cert}, "beyond loopback"},
		{Config{Dir: dir, ListenClient: []string{"http://127.0.0.1:1"}, ListenPeer: []string{"http://10.0.0.1:1"}}, "beyond loopback"},
		{Config{Dir: dir, ListenClient: []string{"http://127.0.0.1:1"}, InitialCluster: "a=http://127.0.0.1:2"}, "peers"},
		{Config{Dir: dir, ListenClient: []string{"http://" + taken.Addr().String()}, Log: quiet}, "in use"},
	} {
		s, err := Start(t.Context(), c.config)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Start(%+v): %v, want %q", c.config, err, c.want)
		}
	}
	if _, err := (Config{Dir: dir, ListenClient: []string{"http://0.0.0.0:1"}, AllowInsecure: true}).embed(); err != nil {
		t.Errorf("with AllowInsecure: %v", err)
	}
}

// A second server on the same data says so, rather than wait until the first has
// gone.
func TestOneServerForADirectory(t *testing.T) {
	dir := shortDir(t)
	c := Config{Dir: filepath.Join(dir, "data"), ListenClient: []string{"unix://" + filepath.Join(dir, "1.sock")}, Log: quiet}
	first, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	c.ListenClient = []string{"unix://" + filepath.Join(dir, "2.sock")}
	if second, err := Start(t.Context(), c); err == nil {
		second.Close()
		t.Error("two servers have one directory")
	} else if !strings.Contains(err.Error(), c.Dir) {
		t.Errorf("it does not name the directory: %v", err)
	}
	first.Close()
	second, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

// A server takes no socket away from one that listens on it; what a killed one left
// behind it replaces.
func TestOneServerForASocket(t *testing.T) {
	dir := shortDir(t)
	socket := filepath.Join(dir, "etcd.sock")
	config := func(data string) Config {
		return Config{Dir: filepath.Join(dir, data), ListenClient: []string{"unix://" + socket}, Log: quiet}
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	first, err := Start(t.Context(), config("1"))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := Start(t.Context(), config("2"))
	if err == nil {
		second.Close()
		t.Error("two servers have one socket")
	} else if !strings.Contains(err.Error(), "another process listens on "+socket) {
		t.Errorf("it does not name the socket: %v", err)
	}
	r, err := etcd.Open(etcd.Config{Endpoints: []string{"unix://" + socket}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Ping(t.Context()); err != nil {
		t.Errorf("the first is not reached any more: %v", err)
	}
}
