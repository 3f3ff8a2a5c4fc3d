package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

func TestWhatIsIssuedVerifies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	made, err := NewPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := OpenPKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(made.CA()) {
		t.Fatal("the authority's certificate does not parse")
	}
	for name, pki := range map[string]*PKI{"made": made, "opened": opened} {
		t.Run(name, func(t *testing.T) {
			server := leaf(t, pki, Certificate{User: "server", Names: []string{"kubernetes"}, Addresses: []netip.Addr{netip.MustParseAddr("fd30::10")}})
			for _, host := range []string{"kubernetes", "[fd30::10]"} {
				if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
					t.Errorf("as %s: %v", host, err)
				}
			}
			if _, err := server.Verify(x509.VerifyOptions{Roots: roots, DNSName: "elsewhere"}); err == nil {
				t.Error("the certificate holds for a name that it was not issued for")
			}
			client := leaf(t, pki, Certificate{User: "system:node:n1", Groups: []string{"system:nodes", "others"}})
			if _, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Error(err)
			}
			if _, err := client.Verify(x509.VerifyOptions{Roots: roots}); err == nil {
				t.Error("a user's certificate holds for a server")
			}
			if got := client.Subject.String(); got != "CN=system:node:n1,O=others+O=system:nodes" && got != "CN=system:node:n1,O=system:nodes+O=others" {
				t.Errorf("subject %s", got)
			}
		})
	}
}

func leaf(t *testing.T, p *PKI, c Certificate) *x509.Certificate {
	t.Helper()
	cert, key, err := p.Issue(c)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestTwoAuthoritiesDoNotTrustEachOther(t *testing.T) {
	p, err := NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, _, err := p.issueFiles(p.frontProxy, "front-proxy-client", Certificate{User: "front-proxy-client"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := readPEM(cert)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.ca.cert)
	if _, err := parsed.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("a user could pass as the front proxy")
	}
}

func TestAnAuthorityIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewPKI(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := NewPKI(dir); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("made again over the first: %v", err)
	}
	if _, err := OpenPKI(t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("opened where there is none: %v", err)
	}
}

func TestKubeconfig(t *testing.T) {
	p, err := NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Kubeconfig("https://172.30.0.10:6443", "somebody", "readers")
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://172.30.0.10:6443" || string(c.CAData) != string(p.CA()) {
		t.Errorf("server %s", c.Host)
	}
	pair, err := tls.X509KeyPair(c.CertData, c.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	if s := pair.Leaf.Subject; s.CommonName != "somebody" || len(s.Organization) != 1 || s.Organization[0] != "readers" {
		t.Errorf("user %s", s)
	}
}
