package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry/etcd"
)

// connection is how a command reaches the registry.
type connection struct{ daemon.Connection }

// labNearby returns the endpoint of the lab that is up, if one is.
func labNearby() (endpoints []string, why string, err error) {
	l, err := lab.Open("")
	switch {
	case err == nil:
		return []string{l.Endpoint()}, "", nil
	case errors.Is(err, lab.ErrNoLab):
		return nil, "no lab is up in " + lab.Dir(), nil
	default:
		return nil, "", err
	}
}

// open connects to the registry for a command that asks or changes, and fails
// if it does not answer. It must be closed.
func (c *connection) open(ctx context.Context) (*etcd.Registry, error) {
	config, err := c.Settings(os.Getenv, labNearby)
	if err != nil {
		return nil, err
	}
	config.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	reg, err := etcd.Open(config)
	if err != nil {
		return nil, err
	}
	if err := reg.Ping(ctx); err != nil {
		reg.Close()
		return nil, err
	}
	return reg, nil
}
