package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/weftnet/weft/lab"
)

// TestNoRegistry names a registry that nobody serves.
func TestNoRegistry(t *testing.T) {
	t.Parallel()
	needRoot(t)
	endpoint := "unix://" + filepath.Join(shortDir(t), "nobody.sock")
	a := startAgent(t, oneAddress, "--node-name", "alone", "--etcd-endpoints", endpoint)
	run(t, nsenter(a.pid, bin+"weft", "status", "--etcd-endpoints", endpoint), "").want(t, 2, "registry unavailable", endpoint)
	run(t, nsenter(a.pid, bin+"weft", "get", "nodes", "--etcd-endpoints", endpoint), "").want(t, 2, "registry unavailable", endpoint)
	run(t, nsenter(a.pid, bin+"weft", "why", "a", "b", "--etcd-endpoints", endpoint), "").want(t, 2, "registry unavailable", endpoint)
	a.wantUnready("registry", endpoint)
	if ok, said := ask(t, a.runDir, "/healthz"); !ok {
		t.Errorf("an agent without a registry is not healthy: %s", said)
	}
	run(t, nsenter(a.pid, "ip", "-br", "link"), "").want(t, 0, "eth0")
	if out := run(t, nsenter(a.pid, "sh", "-c", "ip -o link | grep weft; nft list tables; ip route show table all proto 87"), ""); out.stdout != "" {
		t.Errorf("an agent that knows nothing did something:\n%s", out.stdout)
	}
}

// TestPassword gives etcd a password, and weft another one.
func TestPassword(t *testing.T) {
	t.Parallel()
	c := up(t, lab.Options{Nodes: 1})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.lab.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.UserAdd(t.Context(), "root", "right"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	get := func(user ...string) outcome {
		return c.weft("", append([]string{"get", "nodes", "--etcd-endpoints", c.lab.Endpoint()}, user...)...)
	}
	get("--etcd-user", "root:right").want(t, 0, "node1")
	get("--etcd-user", "root:wrong").want(t, 2, "user", "root", "password")
	get("--etcd-user", "root").want(t, 2, "password")
	get().want(t, 2, "user")
	a := startAgent(t, oneAddress, "--node-name", "wrong", "--etcd-endpoints", c.lab.Endpoint(), "--etcd-user", "root:wrong")
	a.wantUnready("registry", "password")
}

// TestCertificates serves etcd with TLS, and comes with the wrong certificates.
func TestCertificates(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := shortDir(t)
	ours, others := newAuthority(t, dir, "ours"), newAuthority(t, dir, "others")
	ours.issue(t, "server")
	ours.issue(t, "client")
	others.issue(t, "stranger")
	file := func(name string) string { return filepath.Join(dir, name) }
	const endpoint = "https://127.0.0.1:2379"
	setup := oneAddress + fmt.Sprintf("%sweft controller --name controller1 --embedded-etcd --etcd-data-dir %s --etcd-listen %s --etcd-server-cert %s --etcd-server-key %s --etcd-client-ca %s &\n",
		bin, file("etcd"), endpoint, file("server.crt"), file("server.key"), file("ours.crt"))
	a := startAgent(t, setup, "--node-name", "wrong", "--etcd-endpoints", endpoint,
		"--etcd-cacert", file("others.crt"), "--etcd-cert", file("client.crt"), "--etcd-key", file("client.key"))
	get := func(args ...string) outcome {
		return run(t, nsenter(a.pid, append([]string{bin + "weft", "get", "nodes", "--etcd-endpoints", endpoint}, args...)...), "")
	}
	eventually(t, func() error {
		o := get("--etcd-cacert", file("ours.crt"), "--etcd-cert", file("client.crt"), "--etcd-key", file("client.key"))
		if o.code != 0 {
			return fmt.Errorf("weft get ends with %d: %s", o.code, o.stderr)
		}
		return nil
	})
	get("--etcd-cacert", file("others.crt"), "--etcd-cert", file("client.crt"), "--etcd-key", file("client.key")).
		want(t, 2, endpoint, "certificate signed by unknown authority")
	get("--etcd-cacert", file("ours.crt"), "--etcd-cert", file("stranger.crt"), "--etcd-key", file("stranger.key")).
		want(t, 2, endpoint, "certificate")
	get("--etcd-cacert", file("ours.crt")).want(t, 2, endpoint, "certificate")
	get("--etcd-cacert", file("server.key")).want(t, 2, file("server.key"), "no PEM certificate in it")
	get("--etcd-cacert", file("nothing.crt")).want(t, 2, file("nothing.crt"), "no such file")
	a.wantUnready("registry", endpoint, "certificate signed by unknown authority")
}

// authority makes certificates.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{dir: dir}
	a.cert, a.key = a.sign(t, name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes NAME.crt and NAME.key, for a server at 127.0.0.1 or a client.
func (a *authority) issue(t *testing.T, name string) {
	t.Helper()
	a.sign(t, name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
}

func (a *authority) sign(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}
