package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
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
	cmd.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions([]string{"tcp", "udp", "icmp"}, cobra.ShellCompDirectiveNoFileComp))
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
	read := func(kinds ...*registry.Kind) error {
		for _, k := range kinds {
			if _, done := snapshot[k]; done {
				continue
			}
			objects, _, err := reg.List(ctx, k)
			if err != nil {
				return err
			}
			snapshot[k] = objects
		}
		return nil
	}
	if err := read(api.ClusterConfigKind, api.Node, api.Pod); err != nil {
		return c, err
	}
	config := api.Effective(snapshot.Get(api.ClusterConfigKind, registry.Key{Name: api.DefaultName}))
	// That there is no such plug-in is for Cluster.Plans to say: status has
	// more to tell.
	if plug, err := c.Plugin(config.Spec.Plugin); err == nil {
		if err := read(plug.Kinds()...); err != nil {
			return c, err
		}
	}
	c.Objects = snapshot
	var err error
	c.Lost, err = lostAgents(ctx, reg, snapshot)
	return c, err
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
