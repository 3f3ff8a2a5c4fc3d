package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/registry/etcd"
)

// Kind is a kind of registry.
type Kind string

// The kinds of registries, as --registry calls them.
const (
	Etcd       Kind = "etcd"
	Kubernetes Kind = "kubernetes"
)

// Connection is which registry is used and how it is reached, as flags, the
// environment, a lab nearby and the configuration file say, in this order: the
// first that names a registry decides which it is, and each setting comes from
// the first that has it. Where none of them names one, it is that of the pod
// the process runs in, or of the kubeconfig.
//
// The zero value is for all kinds of registries.
type Connection struct {
	// Only, if not empty, is the kind that it always is. For Kubernetes, that
	// leaves the flags and variables that kubectl has.
	Only Kind

	config   string
	registry string
	// embedding says that an etcd runs in this process, embedded where.
	embedding bool
	embedded  string
	etcd      etcdSettings
	cluster   clusterSettings
}

// configFile is the form of the configuration file.
type configFile struct {
	Registry   string          `json:"registry,omitempty"`
	Etcd       etcdSettings    `json:"etcd,omitempty"`
	Kubernetes clusterSettings `json:"kubernetes,omitempty"`
}

// AddFlags gives a command the flags of the connection.
func (c *Connection) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	if c.Only == "" {
		f.StringVar(&c.config, "config", "", "configuration `FILE` ($WEFT_CONFIG; else ~/.config/weft/config.yaml or /etc/weft/config.yaml)")
		f.StringVar(&c.registry, "registry", "", "`KIND` of the registry, etcd or kubernetes ($WEFT_REGISTRY; default: that which other settings name)")
		cmd.RegisterFlagCompletionFunc("registry", cobra.FixedCompletions([]string{string(Etcd), string(Kubernetes)}, cobra.ShellCompDirectiveNoFileComp))
	}
	if c.Only != Kubernetes {
		c.etcd.addFlags(f)
	}
	if c.Only != Etcd {
		c.cluster.addFlags(f)
	}
}

// Embed says that an etcd is to run in this process, and fails if flags say
// that the registry is another.
func (c *Connection) Embed() error {
	c.embedding = true
	_, _, err := c.kindByFlags()
	return err
}

// Embedded says where the etcd in this process is. It is used unless flags name
// another.
func (c *Connection) Embedded(endpoint string) { c.embedded = endpoint }

// Nearby finds a lab: its etcd's endpoints, or none and why.
type Nearby func() (endpoints []string, why string, err error)

// Settings returns which registry is used and how it is reached. nearby is nil
// for daemons; commands that people type say with it where a lab is, and take
// the cluster of the user's own kubeconfig where nothing else is said.
func (c *Connection) Settings(getenv func(string) string, nearby Nearby) (Settings, error) {
	kind, by, err := c.kindByFlags()
	if err != nil {
		return Settings{}, err
	}
	if c.Only == Kubernetes {
		cluster, err := c.cluster.connect(getenv)
		return Settings{Kubernetes: cluster}, err
	}
	if kind == "" {
		if kind, by, err = kindByEnvironment(getenv); err != nil {
			return Settings{}, err
		}
	}

	explicit := cmp.Or(c.config, getenv("WEFT_CONFIG"))
	var lab []string
	var where string
	if nearby != nil && explicit == "" && kind != Kubernetes && !c.namesEtcd(getenv) {
		found, why, err := nearby()
		if err != nil {
			return Settings{}, err
		}
		if len(found) > 0 {
			kind, lab = Etcd, found
		} else {
			where = why + ", "
		}
	}
	if len(lab) > 0 {
		// It is a whole cluster, and has nothing to do with what the file says. Who asks
		// flags and variables say, as its etcd may want to know.
		settings := c.etcd.over(environmentEtcd(getenv))
		settings.Endpoints = lab
		config, err := settings.connect(getenv)
		return Settings{Etcd: config}, err
	}

	file, files, err := readConfig(explicit, getenv)
	if err != nil {
		return Settings{}, err
	}
	if kind == "" {
		if kind, by, err = file.kind(); err != nil {
			return Settings{}, err
		}
	}
	if kind == "" && (getenv("KUBERNETES_SERVICE_HOST") != "" || c.cluster.over(file.Kubernetes).inKubeconfig(getenv, nearby != nil)) {
		kind = Kubernetes
	}
	switch kind {
	case Kubernetes:
		cluster, err := c.cluster.over(file.Kubernetes).connect(getenv)
		return Settings{Kubernetes: cluster}, err
	case Etcd:
		settings := c.etcd
		if c.embedded != "" {
			settings = settings.over(etcdSettings{Endpoints: []string{c.embedded}})
		}
		settings = settings.over(environmentEtcd(getenv)).over(file.Etcd)
		if len(settings.Endpoints) == 0 {
			return Settings{}, fmt.Errorf("%s says that the registry is etcd, but --etcd-endpoints and WEFT_ETCD_ENDPOINTS are not set, %sand no endpoints are in %s",
				by, where, strings.Join(files, " or "))
		}
		config, err := settings.connect(getenv)
		return Settings{Etcd: config}, err
	default:
		return Settings{}, fmt.Errorf("no registry to talk to: no flag names one, as --etcd-endpoints or --kubeconfig do, WEFT_REGISTRY, WEFT_ETCD_ENDPOINTS and KUBECONFIG are not set, %sand none is in %s",
			where, strings.Join(append(files, homeKubeconfig(getenv)), " or "))
	}
}

// namesEtcd reports whether flags or the environment say where etcd is.
func (c *Connection) namesEtcd(getenv func(string) string) bool {
	return c.embedded != "" || len(c.etcd.Endpoints) > 0 || getenv("WEFT_ETCD_ENDPOINTS") != ""
}

// kindByFlags returns the kind that flags name, and the flag that does.
func (c *Connection) kindByFlags() (kind Kind, by string, err error) {
	ofEtcd, ofCluster := c.etcd.given(), c.cluster.given()
	if c.embedding {
		ofEtcd = "--embedded-etcd"
	}
	if c.registry != "" {
		by = "--registry"
		if kind, err = parseKind(by, c.registry); err != nil {
			return "", "", err
		}
	} else if c.Only != "" {
		kind = c.Only
	}
	switch {
	case ofEtcd != "" && ofCluster != "":
		return "", "", fmt.Errorf("%s is for the registry etcd and %s for Kubernetes: leave one of them out", ofEtcd, ofCluster)
	case ofEtcd != "" && kind == Kubernetes:
		return "", "", fmt.Errorf("%s is for the registry etcd, but --registry is kubernetes: leave one of them out", ofEtcd)
	case ofCluster != "" && kind == Etcd:
		return "", "", fmt.Errorf("%s is for the registry Kubernetes, but --registry is etcd: leave one of them out", ofCluster)
	case kind != "":
		return kind, by, nil
	case ofEtcd != "":
		return Etcd, ofEtcd, nil
	case ofCluster != "":
		return Kubernetes, ofCluster, nil
	}
	return "", "", nil
}

// kindByEnvironment returns the kind that Weft's own variables name, and the
// variable that does. KUBECONFIG is not among them: it is there for kubectl,
// and says where a cluster is, not that it is to be used.
func kindByEnvironment(getenv func(string) string) (kind Kind, by string, err error) {
	if r := getenv("WEFT_REGISTRY"); r != "" {
		kind, err = parseKind("WEFT_REGISTRY", r)
		return kind, "WEFT_REGISTRY", err
	}
	if getenv("WEFT_ETCD_ENDPOINTS") != "" {
		return Etcd, "WEFT_ETCD_ENDPOINTS", nil
	}
	return "", "", nil
}

// kind returns the kind that the file names.
func (f configFile) kind() (kind Kind, by string, err error) {
	ofEtcd, ofCluster := len(f.Etcd.Endpoints) > 0, f.Kubernetes != clusterSettings{}
	switch {
	case f.Registry != "":
		kind, err = parseKind("registry in the configuration file", f.Registry)
		return kind, "the configuration file", err
	case ofEtcd && ofCluster:
		return "", "", errors.New("the configuration file has settings of etcd and of Kubernetes: say with the key registry which of them it is")
	case ofEtcd:
		return Etcd, "the configuration file", nil
	case ofCluster:
		return Kubernetes, "the configuration file", nil
	}
	return "", "", nil
}

func parseKind(by, text string) (Kind, error) {
	switch k := Kind(text); k {
	case Etcd, Kubernetes:
		return k, nil
	}
	return "", fmt.Errorf("%s %q: the registries are etcd and kubernetes", by, text)
}

// readConfig reads the configuration file, which need not be there unless it
// was named, and says where it looked.
func readConfig(explicit string, getenv func(string) string) (file configFile, files []string, err error) {
	files = []string{explicit}
	if explicit == "" {
		files = []string{filepath.Join(cmp.Or(getenv("XDG_CONFIG_HOME"), filepath.Join(getenv("HOME"), ".config")), "weft/config.yaml"), "/etc/weft/config.yaml"}
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
			return file, files, fmt.Errorf("configuration file %s: %w", f, err)
		}
		break
	}
	return file, files, nil
}

// setting is one that a flag sets.
type setting struct {
	flag  string
	value string
}

// firstGiven returns the first flag that has a value, or "".
func firstGiven(settings ...setting) string {
	for _, s := range settings {
		if s.value != "" {
			return "--" + s.flag
		}
	}
	return ""
}

// etcdSettings say how etcd is reached.
type etcdSettings struct {
	Endpoints    []string `json:"endpoints,omitempty"`
	CACert       string   `json:"caCert,omitempty"`
	Cert         string   `json:"cert,omitempty"`
	Key          string   `json:"key,omitempty"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"passwordFile,omitempty"`
	Prefix       string   `json:"prefix,omitempty"`
}

func (s *etcdSettings) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&s.Endpoints, "etcd-endpoints", nil, "etcd's `URLs`, as https://10.0.0.1:2379 or unix:///run/etcd.sock ($WEFT_ETCD_ENDPOINTS)")
	f.StringVar(&s.CACert, "etcd-cacert", "", "`FILE` with the certificates that etcd's must be signed by ($WEFT_ETCD_CACERT)")
	f.StringVar(&s.Cert, "etcd-cert", "", "`FILE` with the client certificate for etcd ($WEFT_ETCD_CERT)")
	f.StringVar(&s.Key, "etcd-key", "", "`FILE` with its key ($WEFT_ETCD_KEY)")
	f.StringVar(&s.User, "etcd-user", "", "`USER` of etcd, or USER:PASSWORD ($WEFT_ETCD_USER); the password better in $WEFT_ETCD_PASSWORD or a file")
	f.StringVar(&s.PasswordFile, "etcd-password-file", "", "`FILE` with the password for etcd ($WEFT_ETCD_PASSWORD_FILE)")
	f.StringVar(&s.Prefix, "etcd-prefix", "", "`PREFIX` of Weft's keys in etcd ($WEFT_ETCD_PREFIX; default "+etcd.DefaultPrefix+")")
}

// given returns the first flag that is set, or "".
func (s *etcdSettings) given() string {
	return firstGiven(setting{"etcd-endpoints", strings.Join(s.Endpoints, ",")}, setting{"etcd-cacert", s.CACert}, setting{"etcd-cert", s.Cert},
		setting{"etcd-key", s.Key}, setting{"etcd-user", s.User}, setting{"etcd-password-file", s.PasswordFile}, setting{"etcd-prefix", s.Prefix})
}

func environmentEtcd(getenv func(string) string) etcdSettings {
	s := etcdSettings{CACert: getenv("WEFT_ETCD_CACERT"), Cert: getenv("WEFT_ETCD_CERT"), Key: getenv("WEFT_ETCD_KEY"),
		User: getenv("WEFT_ETCD_USER"), PasswordFile: getenv("WEFT_ETCD_PASSWORD_FILE"), Prefix: getenv("WEFT_ETCD_PREFIX")}
	if e := getenv("WEFT_ETCD_ENDPOINTS"); e != "" {
		s.Endpoints = strings.Split(e, ",")
	}
	return s
}

// over returns s with what it leaves open taken from rest.
func (s etcdSettings) over(rest etcdSettings) etcdSettings {
	if len(s.Endpoints) == 0 {
		s.Endpoints = rest.Endpoints
	}
	s.CACert, s.Cert, s.Key = cmp.Or(s.CACert, rest.CACert), cmp.Or(s.Cert, rest.Cert), cmp.Or(s.Key, rest.Key)
	s.User, s.PasswordFile, s.Prefix = cmp.Or(s.User, rest.User), cmp.Or(s.PasswordFile, rest.PasswordFile), cmp.Or(s.Prefix, rest.Prefix)
	return s
}

func (s etcdSettings) connect(getenv func(string) string) (*etcd.Config, error) {
	user, password, _ := strings.Cut(s.User, ":")
	password = cmp.Or(password, getenv("WEFT_ETCD_PASSWORD"))
	if password == "" && s.PasswordFile != "" {
		b, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("password for etcd: %w", err)
		}
		password = strings.TrimRight(string(b), "\r\n")
	}
	return &etcd.Config{Endpoints: s.Endpoints, CAFile: s.CACert, CertFile: s.Cert, KeyFile: s.Key,
		Username: user, Password: password, Prefix: s.Prefix}, nil
}
