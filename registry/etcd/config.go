package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"
)

// DefaultPrefix is the start of all of Weft's own keys.
const DefaultPrefix = "/weft"

// Config says how etcd is reached.
type Config struct {
	// Endpoints are URLs of the servers, all of the same scheme:
	// "https://10.0.0.1:2379", "http://…", "unix:///run/etcd.sock".
	Endpoints []string
	// CAFile holds the certificates, PEM, that servers must be signed by;
	// without it those of the system do.
	CAFile string
	// CertFile and KeyFile hold the client certificate, PEM. They are read
	// again for each connection, so they may be renewed.
	CertFile, KeyFile string
	// ServerName is the name to expect in the servers' certificates, where it
	// is not that in the endpoint.
	ServerName string
	// Username and Password are those of etcd's own authentication.
	Username, Password string
	// Prefix is what Weft's keys begin with, DefaultPrefix by default.
	Prefix string
	// DialTimeout bounds one attempt to connect, 2 s by default.
	DialTimeout time.Duration
	// Log hears of values that do not decode; slog.Default() by default.
	Log *slog.Logger
}

func (c *Config) check() error {
	if len(c.Endpoints) == 0 {
		return errors.New("no endpoint is given")
	}
	first := ""
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", e, err)
		}
		switch {
		case u.Scheme == "unix" && u.Host+u.Path != "":
		case (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.Port() != "" && strings.Trim(u.Path, "/") == "":
		default:
			return fmt.Errorf("endpoint %q: want https://host:port, http://host:port or unix:///path", e)
		}
		if first == "" {
			first = u.Scheme
		}
		if u.Scheme != first {
			return fmt.Errorf("endpoint %q: all must have the scheme of the first, %s", e, first)
		}
	}
	switch {
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("a client certificate needs both a certificate file and a key file")
	case first != "https" && c.CAFile+c.CertFile+c.ServerName != "":
		return fmt.Errorf("certificates are given, but the endpoint %s does not use TLS", c.Endpoints[0])
	case c.Username != "" && c.Password == "":
		return fmt.Errorf("user %q has no password: give it as --etcd-user %s:PASSWORD, or better in $WEFT_ETCD_PASSWORD or a file, --etcd-password-file", c.Username, c.Username)
	case c.Username == "" && c.Password != "":
		return errors.New("there is a password, but no user: name one with --etcd-user")
	case !strings.HasPrefix(c.Prefix, "/"):
		return fmt.Errorf("prefix %q: it must begin with / and be more than that", c.Prefix)
	}
	_, err := c.tls()
	return err
}

// where names the endpoints.
func (c *Config) where() string { return strings.Join(c.Endpoints, ", ") }

// tls reads the certificates. It returns nil where TLS is not used.
func (c *Config) tls() (*tls.Config, error) {
	if !strings.HasPrefix(c.Endpoints[0], "https:") {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s: no PEM certificate in it", c.CAFile)
		}
	}
	if c.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("client certificate %s, key %s: %w", c.CertFile, c.KeyFile, err)
			}
			return &cert, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return t, nil
}

// commonName returns that of the client certificate, which an etcd with
// --client-cert-auth takes for a user's name; empty where none is shown.
func (c *Config) commonName() (string, error) {
	t, err := c.tls()
	if err != nil || t == nil || t.GetClientCertificate == nil {
		return "", err
	}
	cert, err := t.GetClientCertificate(nil)
	if err != nil {
		return "", err
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return "", fmt.Errorf("client certificate %s: %w", c.CertFile, err)
	}
	return leaf.Subject.CommonName, nil
}
