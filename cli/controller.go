package cli

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/weftnet/weft/daemon/control"
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
	var e etcdFlags
	cmd := control.New(&c.Connection, func(ctx context.Context, log *slog.Logger) (context.Context, func(), error) {
		return e.start(ctx, c, log)
	})
	cmd.Use = "controller"
	cmd.Long = `controller does what is done once for the cluster, such as giving subnets to
nodes. Several may run; one of them leads. With --embedded-etcd it also runs the
etcd that the cluster's objects are kept in.`
	cmd.Example = `  weft controller --etcd-endpoints https://10.0.0.1:2379 --etcd-cacert ca.pem
  weft controller --embedded-etcd --etcd-data-dir /var/lib/weft/etcd --etcd-listen unix:///run/weft/etcd.sock`
	// That is for programs; here it is a command of its own.
	cmd.Version = ""
	f := cmd.Flags()
	e = etcdFlags{
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
	return cmd
}

// start starts the embedded etcd if it is wanted; see control.Prepare.
func (e etcdFlags) start(ctx context.Context, c *connection, log *slog.Logger) (context.Context, func(), error) {
	if !*e.enabled {
		return ctx, func() {}, nil
	}
	if err := c.Embed(); err != nil {
		return nil, nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	server, err := embedded.Start(ctx, embedded.Config{
		Dir: *e.dir, Name: *e.name, ListenClient: *e.listen, ListenPeer: *e.peers,
		InitialCluster: *e.cluster, Joining: *e.joining,
		ClientTLS:     embedded.TLS{CertFile: *e.cert, KeyFile: *e.key, CAFile: *e.clientCA},
		AllowInsecure: *e.insecure, Log: log,
	})
	if err != nil {
		fail(nil)
		return nil, nil, err
	}
	go func() {
		if err, failed := <-server.Failed(); failed {
			fail(fmt.Errorf("embedded etcd: %w", err))
		}
	}()
	// The local socket needs no certificate.
	c.Embedded(server.Endpoints()[len(server.Endpoints())-1])
	return ctx, func() {
		server.Close()
		fail(nil)
	}, nil
}
