package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/networkpolicy"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

func newWhy(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why SRC DST",
		Short: "Say whether a connection would work, and why",
		Long: `why follows the first packet of a connection through the plans of the nodes and
prints the entry that decides at each step.

SRC and DST are pods (web, shop/web, pod/web), nodes (node/node1, or node1 where
no pod is called so) or addresses.

Where policies decide it names the policy and the rule; of what is denied, also
the rule that came nearest to allowing it and the smallest change that would.

The exit code is 0 if the connection is allowed, 1 if it is denied, and 2 if
that cannot be said.`,
		Example: `  weft why web db --port 5432
  weft why -n shop web node/node2 --protocol icmp
  weft why web 8.8.8.8 --protocol udp --port 53 -o json`,
		Args: exactArgs("SRC and DST", 2),
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	port := cmd.Flags().Uint16("port", 8080, "destination `PORT`")
	protocolName := cmd.Flags().String("protocol", "tcp", "`PROTOCOL`: tcp, udp, sctp, icmp or a number")
	cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"tcp", "udp", "sctp", "icmp"}, cobra.ShellCompDirectiveNoFileComp))
	output := outputFlag(cmd, "json")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := c.names(cmd, api.Pod, namespace())
		for _, n := range c.names(cmd, api.Node, "") {
			names = append(names, "node/"+n)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		protocol, err := plan.ParseProtocol(*protocolName)
		if err != nil {
			return err
		}
		if protocol.HasPorts() && *port == 0 {
			return errors.New("--port 0: a port is from 1 to 65535")
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		cluster, err := readCluster(cmd.Context(), reg)
		if err != nil {
			return err
		}
		answer, err := cluster.Why(explain.Question{Namespace: namespace(), Source: args[0], Destination: args[1], Protocol: protocol, Port: *port})
		if err != nil {
			return err
		}
		answer.Warnings = append(answer.Warnings, notInForce(cluster.Objects, answer.Policies)...)
		out := cmd.OutOrStdout()
		if format == "json" {
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			err = e.Encode(answer)
		} else {
			_, err = fmt.Fprint(out, answer)
		}
		if err == nil && !answer.Allowed {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}

// readCluster reads what explaining takes out of the registry.
func readCluster(ctx context.Context, reg registry.Registry) (explain.Cluster, error) {
	c := explain.Cluster{Plugin: plugins.Finder(reg.Serves)}
	snapshot := make(explain.Snapshot)
	if err := readInto(ctx, reg, snapshot, api.ClusterConfigKind, api.Node, api.Pod); err != nil {
		return c, err
	}
	// That there is no such plug-in is for Cluster.Plans to say: status has
	// more to tell.
	if plug, err := pluginOf(snapshot, c.Plugin); err == nil {
		kinds := plug.Kinds()
		if explain.Enforces(plug) {
			kinds = slices.Concat(kinds, networkpolicy.StateKinds())
		}
		if err := readInto(ctx, reg, snapshot, kinds...); err != nil {
			return c, err
		}
	}
	c.Objects = snapshot
	var err error
	c.Lost, err = lostAgents(ctx, reg, snapshot)
	return c, err
}

// readInto reads those kinds that were not read yet.
func readInto(ctx context.Context, reg registry.Registry, into explain.Snapshot, kinds ...*registry.Kind) error {
	for _, k := range kinds {
		if _, done := into[k]; done {
			continue
		}
		objects, _, err := reg.List(ctx, k)
		if err != nil {
			return err
		}
		into[k] = objects
	}
	return nil
}

// pluginOf returns the plug-in that the cluster's configuration names.
func pluginOf(objects explain.Snapshot, find func(string) (plugin.Plugin, error)) (plugin.Plugin, error) {
	config := api.Effective(objects.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	return find(config.Spec.Plugin)
}

// notInForce says where policies that decide are not in force yet, or not as
// they are written, on the node of the pod for which they decide.
func notInForce(objects plugin.Objects, decided []explain.Judgement) []string {
	if len(decided) == 0 {
		return nil
	}
	states := networkpolicy.States(objects)
	var warnings []string
	for _, j := range decided {
		kind, key, ok := plugin.ParseOrigin(explain.PolicyKinds, j.Rule)
		if !ok {
			continue
		}
		i := slices.IndexFunc(states, func(s networkpolicy.State) bool { return s.Kind == kind && s.Key == key })
		if i < 0 {
			continue
		}
		namespace, name, _ := strings.Cut(j.Pod, "/")
		pod := registry.GetAs[*corev1.Pod](objects, api.Pod, registry.Key{Namespace: namespace, Name: name})
		if pod != nil && slices.Contains(states[i].Pending, pod.Spec.NodeName) {
			warnings = append(warnings, fmt.Sprintf("node %s: it has not said yet that %s %s is in force", pod.Spec.NodeName, kind.Kind, key))
		}
		for _, p := range states[i].Problems {
			warnings = append(warnings, fmt.Sprintf("%s %s: %s", kind.Kind, key, p))
		}
	}
	slices.Sort(warnings)
	return slices.Compact(warnings)
}

// askAtOnce bounds how many leases are asked for at the same time.
const askAtOnce = 10

// lostAgents returns the nodes whose agent does not live.
func lostAgents(ctx context.Context, reg registry.Registry, objects explain.Snapshot) (map[string]bool, error) {
	var mu sync.Mutex
	lost := make(map[string]bool)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askAtOnce)
	for node := range objects.All(api.Node) {
		group.Go(func() error {
			holder, err := reg.Holder(ctx, api.NodeLease(node.GetName()))
			mu.Lock()
			defer mu.Unlock()
			lost[node.GetName()] = holder == ""
			return err
		})
	}
	return lost, group.Wait()
}

// exactArgs wants n arguments, called what.
func exactArgs(what string, n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s wants %s, but %d arguments were given (see: %s --help)", cmd.CommandPath(), what, len(args), cmd.CommandPath())
		}
		return nil
	}
}

// oneOf joins alternatives for people.
func oneOf(values []string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
