package daemon

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/weftnet/weft/registry/kubernetes"
)

// Cluster is a Kubernetes cluster and how it is reached.
type Cluster struct {
	// REST says how the API server is reached, and by whom. Tokens in files
	// are read again as they are renewed.
	REST *rest.Config
	// Namespace is that of Weft's own objects.
	Namespace string
	// Default is the namespace of objects that are named without one, as the
	// kubeconfig's context says.
	Default string
}

// clusterSettings say how a Kubernetes cluster is reached.
type clusterSettings struct {
	Kubeconfig string `json:"kubeconfig,omitempty"`
	Context    string `json:"context,omitempty"`
	API        string `json:"api,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
}

func (s *clusterSettings) addFlags(f *pflag.FlagSet) {
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "`FILE` that says how the Kubernetes cluster is reached ($KUBECONFIG, several files; else ~/.kube/config; else that of the pod)")
	f.StringVar(&s.Context, "context", "", "`NAME` of the context in the kubeconfig (default: its current one)")
	f.StringVar(&s.API, "kubernetes-api", "", "`URL` of Kubernetes' API server, where it is not that in the kubeconfig or, in a pod, that of the Service")
	f.StringVar(&s.Namespace, "kubernetes-namespace", "", "`NAMESPACE` of Weft's own objects (default "+kubernetes.DefaultNamespace+")")
}

// given returns the first flag that is set, or "".
func (s *clusterSettings) given() string {
	return firstGiven(setting{"kubeconfig", s.Kubeconfig}, setting{"context", s.Context},
		setting{"kubernetes-api", s.API}, setting{"kubernetes-namespace", s.Namespace})
}

// over returns s with what it leaves open taken from the configuration file.
func (s clusterSettings) over(file clusterSettings) clusterSettings {
	return clusterSettings{Kubeconfig: cmp.Or(s.Kubeconfig, file.Kubeconfig), Context: cmp.Or(s.Context, file.Context),
		API: cmp.Or(s.API, file.API), Namespace: cmp.Or(s.Namespace, file.Namespace)}
}

// homeKubeconfig is the user's own kubeconfig.
func homeKubeconfig(getenv func(string) string) string {
	return filepath.Join(getenv("HOME"), clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)
}

// kubeconfigs are the files that are read as one.
func kubeconfigs(getenv func(string) string) []string {
	if list := filepath.SplitList(getenv(clientcmd.RecommendedConfigPathEnvVar)); len(list) > 0 {
		return list
	}
	return []string{homeKubeconfig(getenv)}
}

// inKubeconfig reports whether there is a kubeconfig though nothing said that
// the registry is Kubernetes: one that KUBECONFIG names, or for people their
// own.
func (s clusterSettings) inKubeconfig(getenv func(string) string, people bool) bool {
	if getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return true
	}
	_, err := os.Stat(homeKubeconfig(getenv))
	return people && err == nil
}

// connect says how the cluster is reached, by the kubeconfig or else by the
// pod's own service account.
func (s clusterSettings) connect(getenv func(string) string) (*Cluster, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig, Precedence: kubeconfigs(getenv)}
	raw, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	c := &Cluster{Namespace: cmp.Or(s.Namespace, kubernetes.DefaultNamespace), Default: corev1.NamespaceDefault}
	if clientcmdapi.IsConfigEmpty(raw) {
		if c.REST, err = s.inPod(getenv); err != nil {
			return nil, err
		}
	} else {
		overrides := &clientcmd.ConfigOverrides{CurrentContext: s.Context, ClusterInfo: clientcmdapi.Cluster{Server: s.API}}
		config := clientcmd.NewNonInteractiveClientConfig(*raw, s.Context, overrides, rules)
		if c.REST, err = config.ClientConfig(); err == nil {
			c.Default, _, err = config.Namespace()
		}
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", cmp.Or(s.Kubeconfig, strings.Join(rules.Precedence, ", ")), err)
		}
	}
	return c, nil
}

// inPod says how the cluster is reached from within a pod.
func (s clusterSettings) inPod(getenv func(string) string) (*rest.Config, error) {
	switch {
	case s.Kubeconfig != "":
		return nil, fmt.Errorf("kubeconfig %s: there is no cluster in it", s.Kubeconfig)
	case s.Context != "":
		return nil, fmt.Errorf("there is no context %q: no kubeconfig is in %s", s.Context, strings.Join(kubeconfigs(getenv), " or "))
	}
	config, err := rest.InClusterConfig()
	if err == rest.ErrNotInCluster {
		return nil, fmt.Errorf("no Kubernetes cluster to talk to: no kubeconfig is in %s, and this is not a pod (give --kubeconfig)", strings.Join(kubeconfigs(getenv), " or "))
	}
	if err != nil {
		return nil, fmt.Errorf("the pod's service account: %w", err)
	}
	if s.API != "" {
		config.Host = s.API
	}
	return config, nil
}
