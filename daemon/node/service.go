package node

import (
	"encoding/json"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/service/counts"
)

func newService() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "service NAMESPACE/NAME",
		Short: "Show what this node has counted of a Service",
		Long: `service asks the agent of this node how many connections each frontend and backend of a
Service was given there, and how many packets to its frontends were refused and dropped, and
prints that in the form of counts.Report, in JSON. It needs root. weft service shows it for
all nodes.`,
		Example: "  weft-agent service shop/web",
		Args:    cobra.ExactArgs(1),
	}
	runDir := cmd.Flags().String("run-dir", defaultRunDir, "`DIRECTORY` of the agent's own")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answer, err := counts.Open(cmd.Context(), filepath.Join(*runDir, agent.HTTPSocketName), args[0])
		if err != nil {
			return err
		}
		defer answer.Close()
		report, err := counts.Read(answer)
		if err != nil {
			return err
		}
		encode := json.NewEncoder(cmd.OutOrStdout())
		encode.SetIndent("", "  ")
		return encode.Encode(report)
	}
	return cmd
}
