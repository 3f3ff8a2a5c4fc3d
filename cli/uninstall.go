package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/cli/removal"
)

func newUninstall(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take Weft out of a Kubernetes cluster",
		Long: `uninstall ends Weft's agents and controllers, has every node take away what the
agents left there, and deletes Weft's own objects. The pods of the cluster have no
network afterwards until another one is installed, so it refuses while there are
pods that have theirs from Weft, unless --force is given. So it does where weft
kube-proxy remove has ended kube-proxy, as nobody does Services then. Without --yes it says
what else nobody does then, of Services, names and addresses on the link. It waits for all
nodes, with --force not for those of whose kubelets nothing is heard.

What users asked for, the custom resources and their definitions and the annotation
weft.network/data-plane of Nodes, stays unless --purge is given. It may be run again: it goes on where it was.`,
		Example: `  weft uninstall
  weft uninstall --yes
  weft uninstall --purge
  weft uninstall --yes --force --purge`,
		Args: noArgs,
	}
	c.AddFlags(cmd)
	f := cmd.Flags()
	yes := f.Bool("yes", false, "do it; without it, only say what would be done")
	force := f.Bool("force", false, "also where pods have their network from Weft, which cuts them off, nobody else does Services, or nodes are down, which are left out")
	purge := f.Bool("purge", false, "delete custom resources and their definitions as well, and what users wrote on Nodes")
	timeout := f.Duration("timeout", 5*time.Minute, "`TIME` to wait for the nodes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings, err := c.settings()
		if err != nil {
			return err
		}
		if settings.Kubernetes == nil {
			return errors.New("uninstall is for Kubernetes, and the registry is etcd: stop the agent of each node and run there: weft-agent uninstall")
		}
		client, err := dynamicClient(settings.Kubernetes)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		r := removal.New(client, removal.Options{Namespace: settings.Kubernetes.Namespace, Force: *force, Purge: *purge,
			Progress: func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) }})
		if !*yes {
			if err := r.Preview(ctx); err != nil {
				return err
			}
			return errors.New("nothing was changed: give --yes to do this")
		}
		return r.Run(ctx)
	}
	return cmd
}
