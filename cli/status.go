package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// clusterStatus is how the cluster's network is.
type clusterStatus struct {
	Plugin    string `json:"plugin"`
	DataPlane string `json:"dataPlane"`
	// Leader is the controller that leads; empty if none does.
	Leader string            `json:"leader,omitempty"`
	Nodes  []nodeStatusEntry `json:"nodes"`
	// Problems are what is wrong, the object first.
	Problems []string `json:"problems,omitempty"`
}

type nodeStatusEntry struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Subnets   []string `json:"subnets"`
	// Agent is "running" or "lost".
	Agent string `json:"agent"`
	Ready bool   `json:"ready"`
	// InSync says that the node does all that its plan says.
	InSync bool `json:"inSync"`
	Pods   int  `json:"pods"`
}

func newStatus(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the cluster's network is, and what is wrong with it",
		Long: `status shows the nodes with their addresses and subnets, whether their agents
run and do what the cluster's objects say, and all that is wrong.

The exit code is 0 if nothing is, 1 if something is, and 2 if that cannot be said.`,
		Example: "  weft status\n  weft status -o json",
		Args:    cobra.NoArgs,
	}
	c.AddFlags(cmd)
	output := outputFlag(cmd, "json")
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
		if format == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			err = e.Encode(s)
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

func readStatus(ctx context.Context, reg registry.Registry) (clusterStatus, error) {
	cluster, err := readCluster(ctx, reg)
	if err != nil {
		return clusterStatus{}, err
	}
	leader, err := reg.Holder(ctx, api.ControllerLease)
	if err != nil {
		return clusterStatus{}, err
	}
	return statusOf(cluster, leader), nil
}

// statusOf says how a cluster is whose controller leader leads.
func statusOf(c explain.Cluster, leader string) clusterStatus {
	config := api.Effective(c.Objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	s := clusterStatus{Plugin: config.Spec.Plugin, DataPlane: config.Spec.DataPlane, Leader: leader}
	problem := func(object, message string) {
		if line := object + ": " + message; !slices.Contains(s.Problems, line) {
			s.Problems = append(s.Problems, line)
		}
	}
	if leader == "" {
		problem("controller", "none leads; new nodes get no subnet until one runs")
	}
	if p := conditionProblems(config.Status.Conditions); p != "" {
		problem("clusterconfig "+config.Name, p)
	}
	unpoliced := c
	unpoliced.Objects = withoutPolicies{c.Objects}
	plans, compiled, err := unpoliced.Plans()
	if err != nil {
		problem("clusterconfig "+config.Name, err.Error())
	}
	pods := make(map[string]int)
	for o := range c.Objects.All(api.Pod) {
		pods[o.(*corev1.Pod).Spec.NodeName]++
	}
	for o := range c.Objects.All(api.Node) {
		node := o.(*corev1.Node)
		entry := nodeStatusEntry{Name: node.Name, Addresses: internalIPs(node), Agent: "running", Pods: pods[node.Name]}
		entry.Ready, entry.InSync = explain.Ready(node), explain.InSync(node)
		if c.Lost[node.Name] {
			entry.Agent = "lost"
			problem("node "+node.Name, "its agent does not run; its pods keep the network they have")
		}
		for _, p := range explain.NodeProblems(node) {
			problem("node "+node.Name, p)
		}
		for _, p := range compiled[node.Name] {
			if p.Kind == nil {
				problem("node "+node.Name, p.Message)
			} else {
				problem(p.Kind.Singular+" "+p.Key.String(), p.Message)
			}
		}
		if p := plans[node.Name]; p != nil {
			for _, pool := range p.Local.Pools {
				entry.Subnets = append(entry.Subnets, pool.Prefix.String())
			}
		}
		s.Nodes = append(s.Nodes, entry)
	}
	if len(s.Nodes) == 0 {
		problem("nodes", "there are none")
	}
	for _, k := range kinds() {
		for o := range c.Objects.All(k) {
			if p := o.GetAnnotations()[api.ProblemAnnotation]; p != "" {
				problem(k.Singular+" "+registry.KeyOf(o).String(), p)
			}
		}
	}
	return s
}

// withoutPolicies are the objects without those that say who may talk to whom,
// which weft policy status tells of: to compile them for every node of a large
// cluster takes minutes.
type withoutPolicies struct{ plugin.Objects }

func (o withoutPolicies) All(k *registry.Kind) iter.Seq[registry.Object] {
	switch k {
	case api.NetworkPolicy, api.ClusterNetworkPolicy, api.TagKind, api.NodePodsKind, api.DomainNameKind:
		return func(func(registry.Object) bool) {}
	}
	return o.Objects.All(k)
}

func (s clusterStatus) print(w io.Writer) error {
	fmt.Fprintf(w, "Plug-in %s on data plane %s. Leading controller: %s.\n\n", s.Plugin, s.DataPlane, cmp.Or(s.Leader, "none"))
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tADDRESS\tSUBNET\tAGENT\tREADY\tIN-SYNC\tPODS")
	for _, n := range s.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", n.Name, cmp.Or(strings.Join(n.Addresses, ","), "-"),
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
		if _, err := fmt.Fprintln(w, "  "+p); err != nil {
			return err
		}
	}
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// nodeStatus is what kubectl would call a node's status.
func nodeStatus(n *corev1.Node) string {
	switch {
	case !explain.Ready(n):
		return "NotReady"
	case !explain.InSync(n):
		return "Ready,OutOfSync"
	default:
		return "Ready"
	}
}

// conditionProblems joins what the conditions of a ClusterConfig say is wrong.
func conditionProblems(conditions []metav1.Condition) string {
	var words []string
	for _, c := range conditions {
		if c.Status == metav1.ConditionFalse {
			words = append(words, cmp.Or(c.Message, c.Reason))
		}
	}
	return strings.Join(words, "; ")
}
