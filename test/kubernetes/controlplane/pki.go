package controlplane

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// PKI is the certificate authorities and keys of a cluster, kept as PEM files
// in a directory: ca, front-proxy-ca and what was issued to files, each with
// .crt and .key, and sa.key and sa.pub, which sign and verify the tokens of
// service accounts.
type PKI struct {
	dir            string
	ca, frontProxy authority
}

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Certificate is what a certificate says of its holder.
type Certificate struct {
	// User is the common name: to the API server, the name of a user.
	User string
	// Groups are the organizations: to the API server, the user's groups.
	Groups []string
	// Names and Addresses are for what a server is dialled as. A certificate
	// without any is a client's only.
	Names     []string
	Addresses []netip.Addr
}

// validity is how long certificates hold, from an hour ago on: clusters made
// for tests end before.
const validity = 365 * 24 * time.Hour

// NewPKI makes the authorities and keys of a new cluster in dir, which must
// not hold any yet.
func NewPKI(dir string) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &PKI{dir: dir}
	for _, a := range []struct {
		name string
		to   *authority
	}{{"ca", &p.ca}, {"front-proxy-ca", &p.frontProxy}} {
		made, err := newAuthority(a.name)
		if err != nil {
			return nil, err
		}
		key, err := encodeKey(made.key)
		if err != nil {
			return nil, err
		}
		if err := p.write(a.name, encodeCertificate(made.cert.Raw), key); err != nil {
			return nil, err
		}
		*a.to = made
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	private, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	return p, errors.Join(
		create(p.file("sa.key"), private),
		create(p.file("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
}

// OpenPKI reads what NewPKI made in dir.
func OpenPKI(dir string) (*PKI, error) {
	p := &PKI{dir: dir}
	var err1, err2 error
	p.ca, err1 = p.readAuthority("ca")
	p.frontProxy, err2 = p.readAuthority("front-proxy-ca")
	return p, errors.Join(err1, err2)
}

// CA returns the certificate of the authority that issues to users and
// servers, in PEM.
func (p *PKI) CA() []byte { return encodeCertificate(p.ca.cert.Raw) }

// Issue makes a key and a certificate for it, both in PEM.
func (p *PKI) Issue(c Certificate) (cert, key []byte, err error) { return p.ca.issue(c) }

// IssueFiles is Issue into the files NAME.crt and NAME.key of the PKI's
// directory, whose paths it returns.
func (p *PKI) IssueFiles(name string, c Certificate) (cert, key string, err error) {
	return p.issueFiles(p.ca, name, c)
}

func (p *PKI) issueFiles(a authority, name string, c Certificate) (string, string, error) {
	cert, key, err := a.issue(c)
	if err == nil {
		err = p.write(name, cert, key)
	}
	return p.file(name + ".crt"), p.file(name + ".key"), err
}

func (p *PKI) file(name string) string { return filepath.Join(p.dir, name) }

func (p *PKI) write(name string, cert, key []byte) error {
	return errors.Join(create(p.file(name+".crt"), cert), create(p.file(name+".key"), key))
}

func (p *PKI) readAuthority(name string) (authority, error) {
	var a authority
	cert, err := readPEM(p.file(name + ".crt"))
	if err == nil {
		a.cert, err = x509.ParseCertificate(cert)
	}
	if err != nil {
		return a, fmt.Errorf("certificate of %s: %w", name, err)
	}
	key, err := readPEM(p.file(name + ".key"))
	if err == nil {
		a.key, err = x509.ParseECPrivateKey(key)
	}
	if err != nil {
		return a, fmt.Errorf("key of %s: %w", name, err)
	}
	return a, nil
}

func newAuthority(name string) (authority, error) {
	key, err := newKey()
	if err != nil {
		return authority{}, err
	}
	template, err := template(name, nil)
	if err != nil {
		return authority{}, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(raw)
	return authority{cert, key}, err
}

func (a authority) issue(c Certificate) (cert, key []byte, err error) {
	if c.User == "" {
		return nil, nil, errors.New("a certificate needs a user")
	}
	template, err := template(c.User, c.Groups)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(c.Names)+len(c.Addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = c.Names
		for _, address := range c.Addresses {
			template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
		}
	}
	own, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, own.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue a certificate to %s: %w", c.User, err)
	}
	key, err = encodeKey(own)
	return encodeCertificate(raw), key, err
}

func template(user string, groups []string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
	}, nil
}

func newKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func encodeKey(key crypto.Signer) ([]byte, error) {
	raw, err := x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), err
}

func encodeCertificate(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func readPEM(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(b)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s does not hold one PEM block", path)
	}
	return block.Bytes, nil
}

// create writes a new file that only its owner reads.
func create(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
