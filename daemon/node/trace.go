package node

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/trace"
)

func newTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Look for a probe on this node",
		Long: `trace has the agent of this node look for a probe of weft why --live, and prints a
line of JSON for each thing that the kernel does with it; or has the agent send the
probe that it looks for, or end looking for it. It needs root. What it looks for is in the form of
trace.Watch; the agent stops when its time is over, or when this command ends.`,
		Example: "  weft-agent trace --watch '{\"id\": \"0123abcd\", \"source\": \"10.1.1.2\", \"destination\": \"10.1.2.2\", \"protocol\": \"tcp\", \"port\": 80, \"for\": 5000000000}'\n  weft-agent trace --send 0123abcd",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	runDir := f.String("run-dir", defaultRunDir, "`DIRECTORY` of the agent's own")
	watch := f.String("watch", "", "look for a `PROBE`, in JSON")
	send := f.String("send", "", "send the probe of this `ID`")
	end := f.String("end", "", "tell what there is yet of the probe of this `ID`, and end looking for it")
	cmd.MarkFlagsOneRequired("watch", "send", "end")
	cmd.MarkFlagsMutuallyExclusive("watch", "send", "end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		socket := filepath.Join(*runDir, agent.HTTPSocketName)
		switch {
		case cmd.Flags().Changed("send"):
			return trace.Send(cmd.Context(), socket, *send)
		case cmd.Flags().Changed("end"):
			return trace.End(cmd.Context(), socket, *end)
		}
		var w trace.Watch
		if err := json.Unmarshal([]byte(*watch), &w); err != nil {
			return fmt.Errorf("--watch: %w", err)
		}
		answer, err := trace.Open(cmd.Context(), socket, w)
		if err != nil {
			return err
		}
		defer answer.Close()
		encode := json.NewEncoder(cmd.OutOrStdout())
		return trace.ReadEvents(answer, func(e trace.Event) error { return encode.Encode(e) })
	}
	return cmd
}
