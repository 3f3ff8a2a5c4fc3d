package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/registry/etcd"
)

// Connection is how the registry is reached. What flags leave open, the
// environment says, and what that leaves open, the configuration file.
type Connection struct {
	config       string
	endpoints    []string
	ca           string
	cert, key    string
	user         string
	passwordFile string
	prefix       string
}

// configFile is the form of the configuration file.
type configFile struct {
	Etcd struct {
		Endpoints    []string `json:"endpoints,omitempty"`
		CACert       string   `json:"caCert,omitempty"`
		Cert         string   `json:"cert,omitempty"`
		Key          string   `json:"key,omitempty"`
		User         string   `json:"user,omitempty"`
		PasswordFile string   `json:"passwordFile,omitempty"`
		Prefix       string   `json:"prefix,omitempty"`
	} `json:"etcd,omitempty"`
}

// AddFlags gives a command the flags of the connection.
func (c *Connection) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.config, "config", "", "configuration `FILE` ($WEFT_CONFIG; else ~/.config/weft/config.yaml or /etc/weft/config.yaml)")
	f.StringSliceVar(&c.endpoints, "etcd-endpoints", nil, "etcd's `URLs`, as https://10.0.0.1:2379 or unix:///run/etcd.sock ($WEFT_ETCD_ENDPOINTS)")
	f.StringVar(&c.ca, "etcd-cacert", "", "`FILE` with the certificates that etcd's must be signed by ($WEFT_ETCD_CACERT)")
	f.StringVar(&c.cert, "etcd-cert", "", "`FILE` with the client certificate for etcd ($WEFT_ETCD_CERT)")
	f.StringVar(&c.key, "etcd-key", "", "`FILE` with its key ($WEFT_ETCD_KEY)")
	f.StringVar(&c.user, "etcd-user", "", "`USER` of etcd, or USER:PASSWORD ($WEFT_ETCD_USER); the password better in $WEFT_ETCD_PASSWORD or a file")
	f.StringVar(&c.passwordFile, "etcd-password-file", "", "`FILE` with the password for etcd ($WEFT_ETCD_PASSWORD_FILE)")
	f.StringVar(&c.prefix, "etcd-prefix", "", "`PREFIX` of Weft's keys in etcd ($WEFT_ETCD_PREFIX; default "+etcd.DefaultPrefix+")")
}

// SetEndpoints says where etcd is, unless flags do.
func (c *Connection) SetEndpoints(endpoints ...string) {
	if len(c.endpoints) == 0 {
		c.endpoints = endpoints
	}
}

// Settings returns how to reach etcd. nearby, if not nil, is asked for
// endpoints where neither flags nor the environment name any; it returns none,
// and why, where it knows of none either.
func (c *Connection) Settings(getenv func(string) string, nearby func() (endpoints []string, why string, err error)) (etcd.Config, error) {
	explicit := cmp.Or(c.config, getenv("WEFT_CONFIG"))
	var file configFile
	files := []string{explicit}
	if explicit == "" {
		files = []string{filepath.Join(cmp.Or(getenv("XDG_CONFIG_HOME"), filepath.Join(getenv("HOME"), ".config")), "weft/config.yaml"), "/etc/weft/config.yaml"}
	}
	endpoints := c.endpoints
	if e := getenv("WEFT_ETCD_ENDPOINTS"); len(endpoints) == 0 && e != "" {
		endpoints = strings.Split(e, ",")
	}
	var where string
	if len(endpoints) == 0 && explicit == "" && nearby != nil {
		found, why, err := nearby()
		if err != nil || len(found) > 0 {
			return etcd.Config{Endpoints: found}, err
		}
		where = why + ", "
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) && explicit == "" {
			continue
		}
		if err == nil {
			err = yaml.UnmarshalStrict(b, &file)
		}
		if err != nil {
			return etcd.Config{}, fmt.Errorf("configuration file %s: %w", f, err)
		}
		break
	}
	if len(endpoints) == 0 {
		endpoints = file.Etcd.Endpoints
	}
	if len(endpoints) == 0 {
		return etcd.Config{}, fmt.Errorf("no registry to talk to: --etcd-endpoints and WEFT_ETCD_ENDPOINTS are not set, %sand no endpoints are in %s (start a lab with: weft lab up)",
			where, strings.Join(files, " or "))
	}
	user, password, _ := strings.Cut(cmp.Or(c.user, getenv("WEFT_ETCD_USER"), file.Etcd.User), ":")
	if p := getenv("WEFT_ETCD_PASSWORD"); password == "" && p != "" {
		password = p
	}
	if f := cmp.Or(c.passwordFile, getenv("WEFT_ETCD_PASSWORD_FILE"), file.Etcd.PasswordFile); password == "" && f != "" {
		b, err := os.ReadFile(f)
		if err != nil {
			return etcd.Config{}, fmt.Errorf("password for etcd: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	return etcd.Config{
		Endpoints: endpoints,
		CAFile:    cmp.Or(c.ca, getenv("WEFT_ETCD_CACERT"), file.Etcd.CACert),
		CertFile:  cmp.Or(c.cert, getenv("WEFT_ETCD_CERT"), file.Etcd.Cert),
		KeyFile:   cmp.Or(c.key, getenv("WEFT_ETCD_KEY"), file.Etcd.Key),
		Username:  user, Password: password,
		Prefix: cmp.Or(c.prefix, getenv("WEFT_ETCD_PREFIX"), file.Etcd.Prefix),
	}, nil
}
