// Package control is the command line of a controller, which is that of the
// program weft-controller and, with an etcd in the same process, of "weft
// controller". It is apart from package daemon because agents need none of it.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/controller"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/plugin/plugins"
)

// Prepare starts what a controller needs before it runs. The context that it
// returns ends, with a cause, when that fails; stop ends it.
type Prepare func(ctx context.Context, log *slog.Logger) (prepared context.Context, stop func(), err error)

// New returns the command that runs a controller, on the registry
// that c names once prepare, if not nil, is done.
func New(c *daemon.Connection, prepare Prepare) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "weft-controller",
		Short: "Run a controller",
		Long: `weft-controller does what is done once for the cluster, such as giving subnets
to nodes. Several may run; one of them leads.`,
		Example: `  weft-controller --kubeconfig /etc/kubernetes/weft.conf
  weft-controller --etcd-endpoints https://10.0.0.1:2379 --etcd-cacert ca.pem`,
		Args:          cobra.NoArgs,
		Version:       daemon.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddFlags(cmd)
	logger := daemon.LogFlag(cmd)
	f := cmd.Flags()
	name := f.String("name", "", "the controller's `NAME`, unlike the others' (default: the host name)")
	listen := f.String("listen", "", "`ADDRESS` of /healthz, /readyz and /metrics, as 0.0.0.0:9881 (default: none)")
	ttl := f.Duration("lease-ttl", 0, "`TIME` after which another controller leads when this one dies (default 15s on Kubernetes, 5s on etcd)")
	seed := f.String("seed", "", "`DIRECTORY` of YAML files with objects to create at the start, as far as there are none of their names")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logger()
		if err != nil {
			return err
		}
		config := controller.Config{Identity: *name, LeaseTTL: *ttl, Log: log}
		if config.Identity == "" {
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("the host's name for the controller: %w (give --name)", err)
			}
			config.Identity = strings.ToLower(host)
		}
		ctx := cmd.Context()
		if prepare != nil {
			prepared, stop, err := prepare(ctx, log)
			if err != nil {
				return err
			}
			defer stop()
			ctx = prepared
		}
		settings, err := c.Settings(os.Getenv, nil)
		if err != nil {
			return err
		}
		if config.LeaseTTL, err = settings.LeaseTTL(*ttl, 5*time.Second, 15*time.Second); err != nil {
			return err
		}
		reg, err := settings.Open(daemon.Use{Program: "weft-controller", Log: log})
		if err != nil {
			return err
		}
		defer reg.Close()
		config.Registry, config.Plugin, config.Collectors = reg, plugins.Finder(reg.Serves), daemon.Collectors(reg)
		config.Beside, config.Enforcers = plugins.Beside, plugins.Enforcers
		config.Announce = settings.Etcd != nil // of others the pods tell
		return run(ctx, config, *listen, *seed)
	}
	return cmd
}

// run runs a controller until ctx ends.
func run(ctx context.Context, config controller.Config, listen, seed string) error {
	ctl := controller.New(config)
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		s := &http.Server{Handler: ctl.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
		go s.Serve(l)
		defer s.Close()
	}
	var err error
	if seed != "" {
		// First, because a plug-in may make objects of its own where there are
		// none.
		err = controller.Seed(ctx, config.Registry, seed, config.Log)
	}
	if err == nil {
		err = ctl.Run(ctx)
	}
	if ctx.Err() == nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
