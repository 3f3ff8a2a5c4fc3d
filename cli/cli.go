// Package cli is the command line of weft: what users type, and the controller
// as a process. The agent is a program of its own (package daemon).
//
// Main runs a command. Each command is in a file of its name; connect.go finds
// the registry to talk to, print.go has the tables, kubectl.go makes a plug-in
// of kubectl of it all. Commands that ask and
// change know the registry only; what they find in there is the same whoever
// wrote it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/internal/printable"
)

// exitError ends the command with a code of its own. An empty message prints
// nothing.
type exitError struct {
	code    int
	message string
}

func (e exitError) Error() string { return e.message }

// exitFailed is the exit code of errors. 1 means that a question was answered
// with no: denied, not healthy.
const exitFailed = 2

// Main runs the command that args, whose first is the program's name, say and
// returns the exit code. The first SIGINT or SIGTERM asks the command to end,
// the second ends it.
func Main(args []string) int {
	ctx, stop := daemon.Signals()
	defer stop()
	return run(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRoot()
	switch filepath.Base(args[0]) {
	case kubectlPlugin:
		root = newKubectl()
	case kubectlCompletion:
		root, args = newKubectl(), slices.Insert(args, 1, cobra.ShellCompRequestCmd)
	}
	root.SetArgs(args[1:])
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.message != "" {
			fmt.Fprintln(errs, "error:", printable.Lines(exit.message))
		}
		return exit.code
	default:
		fmt.Fprintln(errs, "error:", printable.Lines(err.Error()))
		return exitFailed
	}
}

func newRoot() *cobra.Command {
	c := &connection{}
	root := &cobra.Command{
		Use:   "weft",
		Short: "The network of a cluster, whichever plug-in it uses",
		Long: `weft shows, changes and explains the network of a cluster, runs its controller,
and makes clusters on one machine to try things in.

Commands that ask talk to the registry that flags or the variables WEFT_REGISTRY
and WEFT_ETCD_ENDPOINTS name, or else to the lab if one is up, or else to what the
configuration file says, or else to the Kubernetes cluster of the kubeconfig.`,
		Example: `  weft lab up                      # a cluster of three nodes on this machine
  weft lab run web --node node1    # a pod
  weft status                      # how is the cluster's network?
  weft why node/node2 web          # would this connection work, and why?`,
	}
	setUp(root)
	root.AddCommand(ofCluster(c)...)
	root.AddCommand(newEtcd(c), newLab(), newController(c), newVersion())
	return root
}

// ofCluster returns the commands about a cluster, whatever keeps its objects.
func ofCluster(c *connection) []*cobra.Command {
	return []*cobra.Command{
		newStatus(c), newGet(c), newApply(c), newDelete(c), newWhy(c), newService(c), newKubeProxy(c), newDrops(c), newPolicy(c), newPlugin(c), newUninstall(c),
	}
}

// setUp makes a root command.
func setUp(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = noSuchCommand
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.Version = daemon.Version
	root.SetVersionTemplate("weft {{.Version}}\n")
	// As of flags that there are not, it is said where to read which there are.
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := cmd.ValidateRequiredFlags()
		if err == nil {
			err = cmd.ValidateFlagGroups()
		}
		if err != nil {
			return fmt.Errorf("%w (see: %s --help)", err, cmd.CommandPath())
		}
		return nil
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see: %s --help)", inWords(err), cmd.CommandPath())
	})
}

// noSuchCommand refuses arguments to a command that only has commands below.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), args[0])
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += ", but " + strings.Join(near, ", ")
	}
	return fmt.Errorf("%s (see: %s --help)", message, cmd.CommandPath())
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  weft version", Args: noArgs,
		Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "weft", daemon.Version) },
	}
}
