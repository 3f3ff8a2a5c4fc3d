package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cli/kubeproxy"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/registry"
)

func newKubeProxy(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kube-proxy",
		Short: "Show who does Services on each node, and take kube-proxy away or bring it back",
		Long: `kube-proxy says who does Services on each node, by what the nodes' agents say of the
plan that is in force there, and on which nodes kube-proxy runs beside Weft. Where Services are
left to kube-proxy, and that has no pod, it says so.

kube-proxy remove has all nodes do Services by themselves, ends kube-proxy, and has it
clean up what it left on them. kube-proxy restore brings it back. Both can be done while
connections go on, and be run again where they were stopped. Where kube-proxy is in mode
ipvs, connections break without it, so remove refuses unless --force is given. So it does
where the mode is not known: it is read from the flags of the DaemonSet and from the ConfigMap
that the DaemonSet has the file of --config of. With kube-proxy no node answers on the link
for addresses of AddressPools, so restore refuses where Services have some, unless --force is
given. Nodes that are down are left out and named: run it again once they are back.`,
		Example: `  weft kube-proxy
  weft kube-proxy remove --dry-run
  weft kube-proxy remove
  weft kube-proxy restore`,
		Args: noArgs,
	}
	c.AddFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		list, _, err := reg.List(cmd.Context(), api.Node)
		if err != nil {
			return err
		}
		held, err := reg.Holders(cmd.Context(), api.NodeLease(""))
		if err != nil {
			return err
		}
		objects := registry.Snapshot{api.Node: list}
		if err := readInto(cmd.Context(), reg, objects, api.ClusterConfigKind, api.Pod); err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
		fmt.Fprintln(w, "NODE\tSERVICES")
		for _, o := range list {
			n := o.(*corev1.Node)
			said := n.Annotations[api.ServiceProxyAnnotation]
			if _, lives := held[api.NodeLease(n.Name)]; said == "" {
				said = "not known"
				if !lives && !api.CanHaveAgent(n) {
					said = "not done by Weft: no agent can run there"
				}
			} else if !lives {
				said = "not known: its agent does not run, and said " + said
			}
			printable.Fprintf(w, "%s\t%s\n", n.Name, printable.Line(said))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if text := ofKubeProxy(objects); text != "" {
			printable.Fprintf(cmd.OutOrStdout(), "\n%s\n", text)
		}
		return nil
	}
	cmd.AddCommand(
		c.kubeProxyChange("remove", "Have all nodes do Services by themselves, and take kube-proxy away", (*kubeproxy.Change).Remove),
		c.kubeProxyChange("restore", "Bring kube-proxy back, and leave Services to it", (*kubeproxy.Change).Restore))
	return cmd
}

// kubeProxyBeside returns the nodes on which kube-proxy runs though Weft does Services.
func kubeProxyBeside(objects registry.Objects) []string {
	if configOf(objects).Spec.ServiceProxy == api.KubeProxy {
		return nil
	}
	return kubeproxy.On(objects)
}

// kubeProxyMissing reports whether Services are left to kube-proxy, and it has no pod where most
// clusters have it. ended says that weft kube-proxy remove has ended it: else it may run in another way.
func kubeProxyMissing(objects registry.Objects) (missing, ended bool) {
	config := configOf(objects)
	missing = config.Spec.ServiceProxy == api.KubeProxy && len(kubeproxy.On(objects)) == 0
	_, removed := kubeproxy.Removed(config)
	return missing, missing && removed
}

// ofKubeProxy says what weft kube-proxy tells beside what nodes say; "" where kube-proxy is where it
// is to be.
func ofKubeProxy(objects registry.Objects) string {
	on := kubeProxyBeside(objects)
	switch missing, ended := kubeProxyMissing(objects); {
	case len(on) > 0:
		return fmt.Sprintf("kube-proxy runs on %s, and does Services beside Weft there, %s: weft kube-proxy remove ends it.", printable.Few(on, 0), unguarded)
	case ended:
		of, _ := kubeproxy.Removed(configOf(objects))
		return "Services are left to kube-proxy, which weft kube-proxy remove has ended, so that nobody does them: " + kubeproxy.Command("restore", of) + " brings it back."
	case missing:
		return noKubeProxy + "."
	}
	return ""
}

// noKubeProxy says that nobody may do Services.
var noKubeProxy = "Services are left to kube-proxy, which has no pod in " + kubeproxy.DaemonSet.Namespace + ": unless it runs in another way, nobody does them"

// unguarded is how kube-proxy does Services.
const unguarded = "also at addresses that Weft refuses them, as those of an AddressPool without an AddressGrant, or of name servers"

// kubeProxyProblem says that weft kube-proxy remove has ended kube-proxy, and that it runs again, or is
// to do Services; and that it runs where there are AddressPools, or nodes answer for names, as it keeps
// no Service from these addresses.
func kubeProxyProblem(l *problemList, objects registry.Objects) {
	config := configOf(objects)
	of, removed := kubeproxy.Removed(config)
	if _, ended := kubeProxyMissing(objects); ended {
		l.about(nil, registry.Key{Name: "kube-proxy"}, "spec.serviceProxy of the ClusterConfig leaves Services to it, and weft kube-proxy remove has ended it, so that nobody does them",
			"run "+kubeproxy.Command("restore", of)+", or set spec.serviceProxy to "+api.WeftProxy)
	}
	on := kubeProxyBeside(objects)
	if len(on) == 0 {
		return
	}
	where := printable.Few(on, 0)
	switch {
	case removed:
		l.about(nil, registry.Key{Name: "kube-proxy"}, fmt.Sprintf("it runs again on %s, though weft kube-proxy remove had ended it, and does Services beside Weft there, %s", where, unguarded),
			"run "+kubeproxy.Command("remove", of)+" again, and have what brought it back leave it out: for kubeadm, set proxy: {disabled: true} in ClusterConfiguration of the ConfigMap kube-system/kubeadm-config, "+
				"or give --skip-phases=addon/kube-proxy to kubeadm upgrade apply and to kubeadm upgrade node")
	case config.Spec.DNS.Server == api.NamesByNodes || hasAny(objects, api.AddressPoolKind):
		l.about(nil, registry.Key{Name: "kube-proxy"}, fmt.Sprintf("it does Services beside Weft on %s, %s", where, unguarded),
			"run weft kube-proxy remove, or leave Services to it: set spec.serviceProxy of the ClusterConfig to "+api.KubeProxy)
	}
}

// hasAny reports whether there are objects of a kind.
func hasAny(objects registry.Objects, k *registry.Kind) bool {
	for range objects.All(k) {
		return true
	}
	return false
}

func (c *connection) kubeProxyChange(verb, short string, do func(*kubeproxy.Change, context.Context) error) *cobra.Command {
	cmd := &cobra.Command{Use: verb, Short: short, Args: noArgs}
	c.AddFlags(cmd)
	f := cmd.Flags()
	daemonSet := f.String("daemonset", kubeproxy.DaemonSet.String(), "`NAMESPACE/NAME` of kube-proxy's DaemonSet")
	dryRun := f.Bool("dry-run", false, "only say what would be done")
	force := f.Bool("force", false, "also where agents may not find the API server without kube-proxy, connections break as it is in mode ipvs, or may be, it runs in another way, nobody else answers for addresses of AddressPools, or nodes without an agent are not known to be down")
	timeout := f.Duration("timeout", 5*time.Minute, "`TIME` to wait for the nodes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		namespace, name, ok := strings.Cut(*daemonSet, "/")
		if !ok || namespace == "" || name == "" {
			return fmt.Errorf("--daemonset %q is not of the form NAMESPACE/NAME", *daemonSet)
		}
		settings, err := c.settings()
		if err != nil {
			return err
		}
		if settings.Kubernetes == nil {
			return errors.New("kube-proxy is Kubernetes', and the registry is etcd: there spec.serviceProxy of the ClusterConfig says who does Services")
		}
		client, err := dynamicClient(settings.Kubernetes)
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return do(kubeproxy.New(reg, client, kubeproxy.Options{Namespace: settings.Kubernetes.Namespace, DaemonSet: registry.Key{Namespace: namespace, Name: name},
			Force: *force, DryRun: *dryRun, Progress: func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }}), ctx)
	}
	return cmd
}
