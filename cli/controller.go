package cli

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
	"github.com/weftnet/weft/registry/etcd"
	"github.com/weftnet/weft/registry/etcd/embedded"
)

// etcdFlags are those of the embedded etcd.
type etcdFlags struct {
	enabled  *bool
	dir      *string
	listen   *[]string
	insecure *bool
	cert     *string
	key      *string
	clientCA *string
	name     *string
	peers    *[]string
	cluster  *string
	joining  *bool
}

func newController(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run a controller",
		Long: `controller does what is done once for the cluster, such as giving subnets to
nodes. Several may run; one of them leads. With --embedded-etcd it also runs the
etcd that the cluster's objects are kept in.`,
		Example: `  weft controller --etcd-endpoints https://10.0.0.1:2379 --etcd-cacert ca.pem
  weft controller --embedded-etcd --etcd-data-dir /var/lib/weft/etcd --etcd-listen unix:///run/weft/etcd.sock`,
		Args: cobra.NoArgs,
	}
	c.AddFlags(cmd)
	logger := daemon.LogFlag(cmd)
	f := cmd.Flags()
	name := f.String("name", "", "the controller's `NAME`, unlike the others' (default: the host name)")
	listen := f.String("listen", "", "`ADDRESS` of /healthz, /readyz and /metrics, as 0.0.0.0:9881 (default: none)")
	ttl := f.Duration("lease-ttl", 5*time.Second, "`TIME` after which another controller leads when this one dies")
	e := etcdFlags{
		enabled:  f.Bool("embedded-etcd", false, "run an etcd in this process, and use it unless --etcd-endpoints says otherwise"),
		dir:      f.String("etcd-data-dir", "/var/lib/weft/etcd", "`DIRECTORY` of the embedded etcd's data"),
		listen:   f.StringSlice("etcd-listen", []string{"unix:///run/weft/etcd.sock"}, "`URLs` at which the embedded etcd serves clients"),
		insecure: f.Bool("etcd-allow-insecure", false, "let the embedded etcd serve clients without certificates beyond loopback"),
		cert:     f.String("etcd-server-cert", "", "`FILE` with the embedded etcd's certificate"),
		key:      f.String("etcd-server-key", "", "`FILE` with its key"),
		clientCA: f.String("etcd-client-ca", "", "`FILE` with the certificates that clients' must be signed by"),
		name:     f.String("etcd-name", "", "`NAME` of the embedded etcd among its peers"),
		peers:    f.StringSlice("etcd-listen-peers", nil, "`URLs` at which the embedded etcd serves its peers"),
		cluster:  f.String("etcd-initial-cluster", "", "all members of a new etcd cluster, as `NAME=URL,...`"),
		joining:  f.Bool("etcd-join", false, "join an etcd cluster that exists"),
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logger()
		if err != nil {
			return err
		}
		if *name == "" {
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("the host's name for the controller: %w (give --name)", err)
			}
			*name = strings.ToLower(host)
		}
		return runController(cmd.Context(), c, e, *name, *ttl, *listen, log)
	}
	return cmd
}

func runController(ctx context.Context, c *connection, e etcdFlags, name string, ttl time.Duration, listen string, log *slog.Logger) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if *e.enabled {
		server, err := embedded.Start(ctx, embedded.Config{
			Dir: *e.dir, Name: *e.name, ListenClient: *e.listen, ListenPeer: *e.peers,
			InitialCluster: *e.cluster, Joining: *e.joining,
			ClientTLS:     embedded.TLS{CertFile: *e.cert, KeyFile: *e.key, CAFile: *e.clientCA},
			AllowInsecure: *e.insecure, Log: log,
		})
		if err != nil {
			return err
		}
		defer server.Close()
		go func() {
			if err, failed := <-server.Failed(); failed {
				stop(fmt.Errorf("embedded etcd: %w", err))
			}
		}()
		// The local socket needs no certificate.
		c.SetEndpoints(server.Endpoints()[len(server.Endpoints())-1:]...)
	}
	settings, err := c.Settings(os.Getenv, nil)
	if err != nil {
		return err
	}
	settings.Log = log
	reg, err := etcd.Open(settings)
	if err != nil {
		return err
	}
	defer reg.Close()
	ctl := controller.New(controller.Config{Registry: reg, Identity: name, Plugin: plugins.Finder(reg.Serves), LeaseTTL: ttl, Log: log})
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		s := &http.Server{Handler: ctl.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
		go s.Serve(l)
		defer s.Close()
	}
	if err := ctl.Run(ctx); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
