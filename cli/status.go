package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// clusterStatus is how the cluster's network is.
type clusterStatus struct {
	// Plugin is the one that nodes use, and Change how far they are on the way to
	// another, nil where they are on none.
	Plugin    string        `json:"plugin"`
	Change    *pluginChange `json:"change,omitempty"`
	DataPlane string        `json:"dataPlane"`
	// Leader is the controller that leads; empty if none does.
	Leader string            `json:"leader,omitempty"`
	Nodes  []nodeStatusEntry `json:"nodes"`
	// KubeProxy are the nodes on which kube-proxy does Services beside Weft.
	KubeProxy []string `json:"kubeProxy,omitempty"`
	// NoKubeProxy says that Services are left to kube-proxy, of which no pod is known. It may run in
	// another way.
	NoKubeProxy bool `json:"noKubeProxy,omitempty"`
	// Problems are what is wrong, each once. It is not nil.
	Problems []api.Problem `json:"problems"`
}

// pluginChange is a change of the plug-in that is going on.
type pluginChange struct {
	To string `json:"to"`
	// Back says that it is being taken back: To is what nodes used before it.
	Back  bool     `json:"back,omitempty"`
	Nodes []string `json:"nodes,omitempty"`
	// State and Message are the reason and the message of the condition PluginChanged, empty
	// where no controller has begun.
	State   string `json:"state,omitempty"`
	Message string `json:"message,omitempty"`
}

type nodeStatusEntry struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Subnets   []string `json:"subnets"`
	// Agent is "running", "lost", or "none" where none can run.
	Agent string `json:"agent"`
	// DataPlane is the one that the node uses, empty where that is not known, and
	// NextDataPlane the one that is to take over, empty where none is.
	DataPlane     string `json:"dataPlane,omitempty"`
	NextDataPlane string `json:"nextDataPlane,omitempty"`
	// Ready says that pods can be networked, and InSync that the node does all
	// that its plan says. Both are null where that is not known, as of a node
	// whose agent is lost.
	Ready  *bool `json:"ready"`
	InSync *bool `json:"inSync"`
	Pods   int   `json:"pods"`
}

func newStatus(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the cluster's network is, and what is wrong with it",
		Long: `status shows the nodes with their addresses and subnets, whether their agents
run and do what the cluster's objects say, which of them have, or are to have,
another data plane than the cluster, and all that is wrong, a line each with what
to do about it. Of a node whose agent does not run it says that how the
node is is not known.

The exit code is 0 if nothing is, 1 if something is, and 2 if that cannot be said.`,
		Example: "  weft status\n  weft status -o json",
		Args:    noArgs,
	}
	c.AddFlags(cmd)
	output := outputFlag(cmd, valueFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		s, err := readStatus(cmd.Context(), reg)
		if err != nil {
			return err
		}
		if l := c.lab(); l != nil {
			startInLab(s.Problems, func(nodes ...string) map[string]int { return l.Hung(cmd.Context(), nodes...) })
		}
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, s)
		} else {
			err = s.print(cmd.OutOrStdout())
		}
		if err == nil && len(s.Problems) > 0 {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

// startInLab names the command that starts an agent or a name server of a lab, or what to do about an
// agent that hangs, of which hung returns the process, by node.
func startInLab(problems []api.Problem, hung func(nodes ...string) (pids map[string]int)) {
	var lost []string
	for _, p := range problems {
		if p.Remedy == startAgent {
			lost = append(lost, p.Name)
		}
	}
	pids := hung(lost...)
	for i, p := range problems {
		if before, is := strings.CutSuffix(p.Message, plugin.StartNameServer); is && p.Kind == api.Node.Kind {
			problems[i].Message = before + "start it with weft lab start-node " + p.Name
		}
		if p.Remedy != startAgent {
			continue
		}
		start := "start it with weft lab start-node " + p.Name
		if pid, hangs := pids[p.Name]; hangs {
			start = lab.RemedyOfHung(pid, p.Name)
		}
		problems[i].Remedy = strings.Replace(startAgent, "start the agent", start, 1)
	}
}

func readStatus(ctx context.Context, reg registry.Registry) (clusterStatus, error) {
	cluster, err := readCluster(ctx, reg, servicesKinds...)
	if err != nil {
		return clusterStatus{}, err
	}
	if reg.Serves(service.GrantKind) {
		// It may say where Services get their addresses under plug-ins that do not read it, too.
		if err := readInto(ctx, reg, cluster.Objects.(registry.Snapshot), api.ClusterNetwork); err != nil {
			return clusterStatus{}, err
		}
	}
	held, err := reg.Holders(ctx, "")
	if err != nil {
		return clusterStatus{}, err
	}
	// Policies concern the cluster whether its plug-in reads them or not, though
	// one may then have no right to.
	var unknown problemList
	for _, k := range append([]*registry.Kind{api.Service, api.AddressPoolKind, api.AddressGrantKind, api.VirtualAddressKind}, api.PolicyKinds...) {
		if (k == api.VirtualAddressKind || k == api.AddressGrantKind) && !reg.Serves(k) {
			continue // as before the first that knows of them was installed
		}
		if err := readInto(ctx, reg, cluster.Objects.(registry.Snapshot), k); err != nil {
			what := "enforced"
			switch k {
			case api.Service:
				what = "served"
			case api.AddressPoolKind:
				what = "usable"
			case api.AddressGrantKind, api.VirtualAddressKind:
				what = "answered for"
			}
			unknown.about(nil, registry.Key{Name: k.Plural}, "whether all are "+what+" is not known: "+err.Error(), "")
		}
	}
	for _, k := range api.Kinds {
		if !k.Optional {
			continue
		}
		if _, err := reg.Get(ctx, k, registry.Key{Name: api.DefaultName}); errors.Is(err, registry.ErrNotInstalled) {
			unknown.about(nil, registry.Key{Name: k.Plural}, "the cluster goes on as if there were none: "+err.Error(), "")
		}
	}
	s := statusOf(cluster, held)
	membersProblem(ctx, &unknown, reg, held)
	s.Problems = append(s.Problems, unknown.list...)
	return s, nil
}

// membersProblem says that one machine has all there is of the registry, where
// several controllers are to bear the loss of one.
func membersProblem(ctx context.Context, l *problemList, reg registry.Registry, held map[string]string) {
	etcd, ok := reg.(interface {
		Members(context.Context) ([]string, error)
	})
	var controllers []string
	for lease := range held {
		if name, ok := strings.CutPrefix(lease, api.LivingControllerPrefix); ok {
			controllers = append(controllers, name)
		}
	}
	if !ok || len(controllers) < 2 {
		return
	}
	slices.Sort(controllers)
	switch members, err := etcd.Members(ctx); {
	case err != nil:
		l.about(nil, registry.Key{Name: "etcd"}, "whether it bears the loss of a machine is not known: "+err.Error(), "")
	case len(members) == 1:
		l.about(nil, registry.Key{Name: "etcd"}, fmt.Sprintf("it has one member, %s, under %d controllers (%s): who loses that machine loses the registry",
			members[0], len(controllers), printable.Few(controllers, 0)), "run three members, and back etcd up")
	}
}

// statusOf says how a cluster is, where held are the leases that somebody holds.
func statusOf(c explain.Cluster, held map[string]string) clusterStatus {
	config := configOf(c.Objects)
	s := clusterStatus{Plugin: usedPlugin(config), DataPlane: config.Spec.DataPlane, Leader: held[api.ControllerLease], KubeProxy: kubeProxyBeside(c.Objects)}
	missing, ended := kubeProxyMissing(c.Objects)
	s.NoKubeProxy = missing && !ended // else it is a problem
	if change := pluginStatusOf(c.Objects, c.Lost); !change.Settled && change.Wanted != "" {
		s.Change = &pluginChange{To: change.Wanted, Back: change.Back, Nodes: change.WantedNodes, State: change.State, Message: change.Message}
	}
	plans, wrong := problemsOf(c, held)
	s.Problems = append([]api.Problem{}, wrong.list...)
	pods := make(map[string]int)
	for o := range c.Objects.All(api.Pod) {
		if pod := o.(*corev1.Pod); !api.Ended(pod) {
			pods[pod.Spec.NodeName]++
		}
	}
	for o := range c.Objects.All(api.Node) {
		node := o.(*corev1.Node)
		entry := nodeStatusEntry{Name: node.Name, Addresses: internalIPs(node), Agent: "running", Pods: pods[node.Name]}
		switch {
		case c.Agentless(node):
			entry.Agent = "none"
		case c.Lost[node.Name]:
			entry.Agent = "lost"
		default:
			ready, inSync := explain.Ready(node), explain.InSync(node)
			entry.Ready, entry.InSync = &ready, &inSync
		}
		if r, err := api.NodeDataPlane(node); err == nil { // else it is a problem
			entry.DataPlane, entry.NextDataPlane = r.Uses, r.Wants
		}
		if p := plans[node.Name]; p != nil {
			for _, pool := range p.Local.Pools {
				entry.Subnets = append(entry.Subnets, pool.Prefix.String())
			}
		}
		s.Nodes = append(s.Nodes, entry)
	}
	return s
}

func (s clusterStatus) print(w io.Writer) error {
	printable.Fprintf(w, "Plug-in %s on data plane %s. Leading controller: %s.\n", s.Plugin, s.DataPlane, cmp.Or(s.Leader, "none"))
	if c := s.Change; c != nil {
		to, what := c.To, "The plug-in is being changed"
		if c.Back {
			what = "A change of the plug-in is being taken back,"
		}
		if len(c.Nodes) > 0 {
			to += " on " + printable.Few(c.Nodes, 0)
		}
		switch c.State {
		case api.PluginRefused: // why is among the problems
			printable.Fprintf(w, "A change to %s is refused (see: weft plugin status).\n", to)
		case api.PluginClashing: // the same
			printable.Fprintf(w, "%s to %s (clashing; see: weft plugin status).\n", what, to)
		case "":
			printable.Fprintf(w, "%s to %s (no controller has taken this up yet; see: weft plugin status).\n", what, to)
		default:
			printable.Fprintf(w, "%s to %s (%s: %s; see: weft plugin status).\n", what, to, strings.ToLower(c.State), printable.Brief(c.Message))
		}
	}
	for _, n := range s.Nodes {
		switch {
		case n.NextDataPlane != "":
			printable.Fprintf(w, "Node %s is to change its data plane from %s to %s.\n", n.Name, cmp.Or(n.DataPlane, "none"), n.NextDataPlane)
		case n.DataPlane != "" && n.DataPlane != s.DataPlane:
			printable.Fprintf(w, "Node %s is on data plane %s.\n", n.Name, n.DataPlane)
		}
	}
	if len(s.KubeProxy) > 0 {
		printable.Fprintf(w, "kube-proxy does Services, too, on %s (see: weft kube-proxy).\n", printable.Few(s.KubeProxy, 0))
	}
	if s.NoKubeProxy {
		printable.Fprintf(w, "%s (see: weft kube-proxy).\n", noKubeProxy)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tADDRESS\tSUBNET\tAGENT\tREADY\tIN-SYNC\tPODS")
	for _, n := range s.Nodes {
		printable.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", n.Name, cmp.Or(strings.Join(n.Addresses, ","), "-"),
			cmp.Or(strings.Join(n.Subnets, ","), "-"), n.Agent, yesNo(n.Ready), yesNo(n.InSync), n.Pods)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Problems) == 0 {
		_, err := fmt.Fprintln(w, "\nNo problems.")
		return err
	}
	fmt.Fprintln(w, "\nProblems:")
	for _, p := range s.Problems {
		if _, err := printable.Fprintf(w, "  %s\n", p); err != nil {
			return err
		}
	}
	return nil
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return "unknown"
	case *b:
		return "yes"
	}
	return "no"
}

// nodeStatus is what kubectl would call a node's status.
func nodeStatus(n *corev1.Node) string {
	switch {
	case explain.Unknown(n):
		return "Unknown"
	case !explain.Ready(n):
		return "NotReady"
	case !explain.InSync(n):
		return "Ready,OutOfSync"
	default:
		return "Ready"
	}
}

// isProblem reports whether a condition of a ClusterConfig says that something is wrong.
// That the cluster changes its plug-in is nothing wrong, unless that is refused, or
// addresses are given twice.
func isProblem(c metav1.Condition) bool {
	return c.Status == metav1.ConditionFalse && (c.Type != api.PluginChanged || c.Reason == api.PluginRefused || c.Reason == api.PluginClashing)
}

// conditionProblems joins what the conditions of a ClusterConfig say is wrong.
func conditionProblems(conditions []metav1.Condition) string {
	var words []string
	for _, c := range conditions {
		if isProblem(c) {
			words = append(words, cmp.Or(c.Message, c.Reason))
		}
	}
	return strings.Join(words, "; ")
}
