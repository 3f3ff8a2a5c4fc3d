package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/registrytest"
)

// authority makes certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// issue writes <name>.crt and <name>.key.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(err)
	check(os.WriteFile(a.path(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(os.WriteFile(a.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	cert, err := x509.ParseCertificate(der)
	check(err)
	return cert, key
}

func (a *authority) issueServer(t *testing.T, name string) {
	a.issue(t, name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
}

func (a *authority) issueClient(t *testing.T, name string) {
	a.issue(t, name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// externalServer runs the etcd that is installed, with TLS both ways and with
// users.
func externalServer(t *testing.T) *server {
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("needs etcd in the PATH (Debian: apt-get install etcd-server)")
	}
	ca := newAuthority(t, "ca")
	ca.issueServer(t, "server")
	ca.issueClient(t, "client")
	address, peer, data := freePort(t), freePort(t), t.TempDir()
	endpoint := "https://" + address

	certificate, err := tls.LoadX509KeyPair(ca.path("client.crt"), ca.path("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	admin := clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: time.Minute,
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
	}
	var running *exec.Cmd
	s := &server{
		ca: ca,
		config: etcd.Config{
			Endpoints: []string{endpoint},
			CAFile:    ca.path("ca.crt"), CertFile: ca.path("client.crt"), KeyFile: ca.path("client.key"),
			Username: "weft", Password: "secret",
		},
		start: func(t *testing.T) {
			running = exec.Command(binary, "--name", "n", "--data-dir", data, "--log-level", "error",
				"--heartbeat-interval", "20", "--election-timeout", "200",
				"--listen-client-urls", endpoint, "--advertise-client-urls", endpoint,
				"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
				"--initial-cluster", "n=http://"+peer,
				"--cert-file", ca.path("server.crt"), "--key-file", ca.path("server.key"),
				"--trusted-ca-file", ca.path("ca.crt"), "--client-cert-auth")
			running.Stderr = os.Stderr
			running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := running.Start(); err != nil {
				t.Fatal(err)
			}
		},
		stop: func(*testing.T) {
			running.Process.Kill()
			running.Wait()
		},
	}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })

	first, err := clientv3.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(first.UserAdd(ctx, "root", "toor"))
	must(first.UserGrantRole(ctx, "root", "root"))
	must(first.RoleAdd(ctx, "weft"))
	must(first.RoleGrantPermission(ctx, "weft", "/", "0", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(first.UserAdd(ctx, "weft", "secret"))
	must(first.UserGrantRole(ctx, "weft", "weft"))
	must(first.UserAdd(ctx, "stranger", "secret"))
	must(first.AuthEnable(ctx))
	first.Close()

	admin.Username, admin.Password = "root", "toor"
	s.admin = admin
	return s
}

func TestRegistryExternal(t *testing.T) {
	registrytest.Run(t, externalServer(t).harness)
}

// What is wrong with the way to etcd is said in so many words.
func TestPingSays(t *testing.T) {
	s := externalServer(t)
	other := newAuthority(t, "other")
	other.issueClient(t, "client")
	for _, c := range []struct {
		name   string
		change func(*etcd.Config)
		want   []string
	}{
		{"all is well", func(*etcd.Config) {}, nil},
		{"wrong password", func(c *etcd.Config) { c.Password = "guess" }, []string{"wrong password", `"weft"`}},
		{"unknown user", func(c *etcd.Config) { c.Username = "nobody" }, []string{"wrong password", `"nobody"`}},
		{"user without a role", func(c *etcd.Config) { c.Username = "stranger" }, []string{`"stranger" may not`, "/weft/"}},
		{"no user", func(c *etcd.Config) { c.Username, c.Password = "", "" }, []string{"name a user with --etcd-user"}},
		{"server of another authority", func(c *etcd.Config) { c.CAFile = other.path("other.crt") }, []string{"unknown authority", "CA file"}},
		{"wrong name", func(c *etcd.Config) { c.ServerName = "example.test" }, []string{"example.test", "x509"}},
		{"client of another authority", func(c *etcd.Config) {
			c.CertFile, c.KeyFile = other.path("client.crt"), other.path("client.key")
		}, []string{"does it want a client certificate"}},
		{"no client certificate", func(c *etcd.Config) { c.CertFile, c.KeyFile = "", "" }, []string{"does it want a client certificate"}},
		{"no TLS", func(c *etcd.Config) {
			c.Endpoints = []string{strings.Replace(c.Endpoints[0], "https", "http", 1)}
			c.CAFile, c.CertFile, c.KeyFile = "", "", ""
		}, []string{"http://"}},
		{"nobody there", func(c *etcd.Config) { c.Endpoints = []string{"https://" + freePort(t)} }, []string{"connection refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := s.config
			c.change(&config)
			r, err := etcd.Open(config)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.Ping(t.Context())
			t.Log(err)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("Ping: %v, want %q", err, c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Ping: %v, want %q", err, want)
				}
			}
		})
	}
}

// A client certificate whose common name is a user's needs no password, and may
// do what the user may and nothing else.
func TestAccountByCertificate(t *testing.T) {
	s := externalServer(t)
	config := s.config
	config.Username, config.Password = "root", "toor"
	root, err := etcd.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	steps, err := root.Missing(t.Context(), etcd.Account{Name: "weft-node-node1", Permissions: []etcd.Permission{
		{Key: "/weft/", Prefix: true}, {Key: "/weft/leases/node/node1", Write: true}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		t.Log(step)
		if err := root.Do(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		if err := root.Do(t.Context(), step); err != nil {
			t.Fatalf("again: %v", err)
		}
	}
	s.ca.issueClient(t, "weft-node-node1")
	s.ca.issueClient(t, "weft-node-node2") // whom nobody made
	agent := func(name string) *etcd.Registry {
		config := s.config
		config.Username, config.Password = "", ""
		config.CertFile, config.KeyFile = s.ca.path(name+".crt"), s.ca.path(name+".key")
		r, err := etcd.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	one := agent("weft-node-node1")
	lease, err := one.Acquire(t.Context(), "node/node1", "me", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := one.Acquire(t.Context(), "node/node2", "me", 5*time.Second); err == nil || !strings.Contains(err.Error(), "weft etcd grant") {
		t.Errorf("the lease of another node: %v", err)
	}
	if err := agent("weft-node-node2").Ping(t.Context()); err == nil {
		t.Error("a certificate that is no user's is let in")
	}
	// What a role should no longer be able to do, it no longer can.
	steps, err = root.Missing(t.Context(), etcd.Account{Name: "weft-node-node1", Permissions: []etcd.Permission{{Key: "/weft/", Prefix: true}}}, "")
	if err != nil || len(steps) != 1 {
		t.Fatalf("%v, %v", steps, err)
	}
	if err := root.Do(t.Context(), steps[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Acquire(t.Context(), "node/node1", "me", 5*time.Second); err == nil {
		t.Error("a right that was taken away is still there")
	}
	if err := one.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// Without a password, root's way in is the certificate that the connection shows.
func TestRootByCertificate(t *testing.T) {
	s := externalServer(t)
	admin, err := clientv3.New(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.AuthDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserDelete(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	s.ca.issueClient(t, "root")
	as := func(name string) *etcd.Registry {
		config := s.config
		config.Username, config.Password = "", ""
		config.CertFile, config.KeyFile = s.ca.path(name+".crt"), s.ca.path(name+".key")
		r, err := etcd.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	if steps, err := as("client").Authentication(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "could log in as root") {
		t.Errorf("nobody could log in as root: %v, %v", steps, err)
	}
	root := as("root")
	steps, err := root.Authentication(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		t.Log(step)
		if err := root.Do(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	if on, err := root.Authenticates(t.Context()); !on || err != nil {
		t.Errorf("etcd asks: %v, %v", on, err)
	}
	// etcd takes a password for a user that was made without one, and drops it.
	steps, err = root.Authentication(t.Context(), "toor")
	if err != nil || len(steps) != 1 {
		t.Fatalf("%v, %v", steps, err)
	}
	if err := root.Do(t.Context(), steps[0]); err == nil || !strings.Contains(err.Error(), "etcdctl auth disable") {
		t.Errorf("a password that root does not get: %v", err)
	}
	if users, err := root.Users(t.Context()); err != nil || len(users) != 3 {
		t.Errorf("root sees %q, %v", users, err)
	}
	if _, err := as("client").Users(t.Context()); err == nil {
		t.Error("a certificate that is not root's sees users")
	}
}
