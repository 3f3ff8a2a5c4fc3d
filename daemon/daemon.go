// Package daemon is what Weft's processes have in common: how they are told
// which registry there is and where (Connection), how they log, and how they
// end (Main). Below it, package node is the command line of the agent, control
// that of the controller.
//
// These are apart from package cli so that agents and controllers are programs
// of their own: they carry neither an etcd server nor a lab with them, which
// halves what the agent takes of every node's memory.
package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Version is the version of this build; the linker sets it.
var Version = "unknown"

// Main runs a command and returns the exit code, 2 for any error. The first
// SIGINT or SIGTERM asks the command to end, the second ends it.
func Main(cmd *cobra.Command, args []string) int {
	ctx, stop := Signals()
	defer stop()
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 2
	}
	return 0
}

// Signals returns a context that the first SIGINT or SIGTERM ends. The second
// has its usual effect.
func Signals() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// LogFlag gives a daemon the flag --log-level and returns what makes its log.
func LogFlag(cmd *cobra.Command) func() (*slog.Logger, error) {
	level := cmd.Flags().String("log-level", "info", "least `LEVEL` to log: debug, info, warn or error")
	return func() (*slog.Logger, error) {
		var l slog.Level
		if err := l.UnmarshalText([]byte(*level)); err != nil {
			return nil, fmt.Errorf("--log-level %q: the levels are debug, info, warn and error", *level)
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: l}))
		slog.SetDefault(log)
		LogClient(log)
		return log, nil
	}
}

// LogClient has the client of Kubernetes log to log. It must be called before
// a registry is opened.
func LogClient(log *slog.Logger) { klog.SetSlogLogger(log.With("from", "client-go")) }
