package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

func newService(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service NAME",
		Short: "Show how nodes serve a Service",
		Long: `service says where a Service is reached on each node, who may use it, and which of
its endpoints get connections from where: by the nodes' plans, as they follow from
the objects in the registry. Nodes that serve it alike are told together. What becomes of
one connection says weft why SRC svc/NAME.

The exit code is 1 where something is wrong with the Service, or with a node that is to
serve it.`,
		Example: `  weft service web
  weft service -n shop web -o yaml`,
		Args: exactArgs("NAME", 1),
	}
	c.AddFlags(cmd)
	namespace := c.namespaceFlag(cmd)
	output := outputFlag(cmd, valueFormats...)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd, api.Service, namespace()), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		reg, err := c.open(cmd.Context())
		if err != nil {
			return err
		}
		defer reg.Close()
		cluster, err := readCluster(cmd.Context(), reg)
		if err == nil {
			err = readInto(cmd.Context(), reg, cluster.Objects.(registry.Snapshot), api.Service, api.EndpointSlice, api.AddressPoolKind, api.AddressGrantKind)
		}
		if err != nil {
			return err
		}
		serving, err := cluster.Serving(registry.Key{Namespace: namespace(), Name: args[0]})
		if err != nil {
			return err
		}
		if format != "" {
			err = printValue(cmd.OutOrStdout(), format, serving)
		} else {
			_, err = fmt.Fprint(cmd.OutOrStdout(), serving)
		}
		if err == nil && len(serving.Problems) > 0 {
			return exitError{code: 1}
		}
		return err
	}
	return cmd
}
