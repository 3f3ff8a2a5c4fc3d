package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/agent"
	"github.com/weftnet/weft/drops"
)

func newDrops() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show which packets are dropped on this node",
		Long: `drops asks the agent of this node which rules of policies denied how many packets,
how many were dropped for other reasons and who sent them, and shows the last of these
packets: 20, or as --tail and --since say. Counts are of all packets since the agent started,
and, of before, what the kernel still had then. It needs root.`,
		Example: "  weft-agent drops\n  weft-agent drops -f\n  weft-agent drops -o json",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	runDir := f.String("run-dir", defaultRunDir, "`DIRECTORY` of the agent's own")
	follow := f.BoolP("follow", "f", false, "show packets as they are dropped, until interrupted")
	choice := drops.ChoiceFlags(f)
	cmd.MarkFlagsMutuallyExclusive("follow", "tail")
	cmd.MarkFlagsMutuallyExclusive("follow", "since")
	limit := f.Duration("for", 0, "with -f, `TIME` after which to end")
	output := f.StringP("output", "o", "text", "output `FORMAT`: text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *output != "text" && *output != "json" {
			return fmt.Errorf("-o %q: the formats are text and json", *output)
		}
		chosen, err := choice(time.Now(), *output == "text")
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		if *limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, *limit)
			defer cancel()
		}
		answer, err := drops.Open(ctx, filepath.Join(*runDir, agent.HTTPSocketName), *follow)
		if err != nil {
			return err
		}
		defer answer.Close()
		err = showDrops(cmd.OutOrStdout(), answer, *follow, *output == "json", time.Local, chosen)
		if *follow && ctx.Err() != nil {
			return nil // as it is meant to end
		}
		return err
	}
	return cmd
}

// showDrops writes what an agent answers.
func showDrops(out io.Writer, answer io.Reader, follow, asJSON bool, zone *time.Location, chosen drops.Choice) error {
	switch {
	case follow && asJSON:
		encode := json.NewEncoder(out)
		return drops.ReadRecords(answer, func(r drops.Record) error { return encode.Encode(r) })
	case follow:
		if err := drops.PrintTitles(out); err != nil {
			return err
		}
		return drops.ReadRecords(answer, func(r drops.Record) error { return r.Print(out, zone) })
	}
	report, err := drops.ReadReport(answer)
	if err != nil {
		return err
	}
	if asJSON {
		report.Recent = chosen.Of(report.Recent)
		encode := json.NewEncoder(out)
		encode.SetIndent("", "  ")
		return encode.Encode(report)
	}
	if err := report.Print(out, zone, chosen); err != nil || len(report.Missing) == 0 {
		return err
	}
	return errors.New("this is not all that was dropped")
}
