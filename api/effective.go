package api

import (
	"cmp"

	"github.com/weftnet/weft/registry"
)

// What holds where a ClusterConfig says nothing. DefaultPlugin is for a cluster that uses no
// plug-in yet, see AskedPlugin.
const (
	DefaultPlugin    = "openshift-subnet"
	DefaultDataPlane = "linux"
)

// Who may do Services, see ClusterConfigSpec.ServiceProxy; NoProxy is what a node says that can
// not, see ServiceProxyAnnotation.
const (
	WeftProxy = "weft"
	KubeProxy = "kube-proxy"
	NoProxy   = "none"
)

// Effective returns the cluster's configuration with defaults filled in. o is
// the ClusterConfig named DefaultName, or nil if there is none. It is not
// changed.
func Effective(o registry.Object) *ClusterConfig {
	c, ok := o.(*ClusterConfig)
	if !ok || c == nil {
		c = &ClusterConfig{}
		c.Name = DefaultName
	}
	c = c.DeepCopyObject().(*ClusterConfig)
	c.Spec.Plugin, c.Spec.PluginNodes = AskedPlugin(c)
	c.Spec.DataPlane = cmp.Or(c.Spec.DataPlane, DefaultDataPlane)
	c.Spec.ServiceProxy = cmp.Or(c.Spec.ServiceProxy, WeftProxy)
	c.Spec.DNS = c.Spec.DNS.effective()
	return c
}
