package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// connection is how a command reaches the registry.
type connection struct {
	daemon.Connection
	// settled is what Settings said, nil before it was asked.
	settled *daemon.Settings
	// inNamespace is the value of the flag -n.
	inNamespace string
}

// settings returns which registry is meant.
func (c *connection) settings() (daemon.Settings, error) {
	if c.settled == nil {
		s, err := c.Settings(os.Getenv, labNearby)
		if err != nil {
			return s, err
		}
		c.settled = &s
	}
	return *c.settled, nil
}

// How many requests a second the client of dynamicClient sends at most, on average and after it was
// idle, where its configuration does not say: as many as a registry. With client-go's own 5 a command
// that writes to each Node of a large cluster does not end in time.
const (
	dynamicQPS   = 50
	dynamicBurst = 100
)

// dynamicClient returns a client for what is no registry's, as DaemonSets and roles.
func dynamicClient(cluster *daemon.Cluster) (dynamic.Interface, error) {
	config := rest.CopyConfig(cluster.REST)
	config.UserAgent = daemon.UserAgent("weft")
	config.QPS, config.Burst = cmp.Or(config.QPS, dynamicQPS), cmp.Or(config.Burst, dynamicBurst)
	return dynamic.NewForConfig(config)
}

// namespaceFlag gives a command the flag -n and returns what tells the
// namespace: the flag's, or else the one that the kubeconfig names.
func (c *connection) namespaceFlag(cmd *cobra.Command) func() string {
	cmd.Flags().StringVarP(&c.inNamespace, "namespace", "n", "", "the `NAMESPACE` of pods and services (default: that of the kubeconfig's context, or default)")
	return func() string {
		if c.inNamespace != "" {
			return c.inNamespace
		}
		// An error shows when the registry is opened.
		if s, err := c.settings(); err == nil && s.Kubernetes != nil {
			return s.Kubernetes.Default
		}
		return corev1.NamespaceDefault
	}
}

// labNearby returns the endpoint of the lab that is up, if one is.
func labNearby() (endpoints []string, why string, err error) {
	l, err := lab.Open("")
	switch {
	case err == nil:
		return []string{l.Endpoint()}, "", nil
	case errors.Is(err, lab.ErrNoLab):
		return nil, "no lab is up in " + lab.Dir() + " (weft lab up starts one; " + lab.Elsewhere + ")", nil
	default:
		return nil, "", err
	}
}

// open connects to the registry for a command that asks or changes, and fails
// if it does not answer. It must be closed.
func (c *connection) open(ctx context.Context) (daemon.Registry, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	log := warningsTo(os.Stderr)
	daemon.LogClient(log)
	reg, err := settings.Open(daemon.Use{Program: "weft", Log: log})
	if err != nil {
		return nil, err
	}
	if err := reg.Ping(ctx); err != nil {
		reg.Close()
		return nil, c.inLab(err)
	}
	return reg, nil
}

// lab returns the lab whose registry is meant, or nil where it is none's.
func (c *connection) lab() *lab.Lab {
	settings, err := c.settings()
	if err != nil || settings.Etcd == nil {
		return nil
	}
	l, err := lab.Open("")
	if err != nil || !slices.Contains(settings.Etcd.Endpoints, l.Endpoint()) {
		return nil
	}
	return l
}

// inLab adds to an error of a registry that does not answer what starts it again, where it
// is that of a lab.
func (c *connection) inLab(err error) error {
	l := c.lab()
	if l == nil || !errors.Is(err, registry.ErrUnavailable) {
		return err
	}
	if name, remedy := l.RegistryRemedy(); remedy != "" {
		return fmt.Errorf("%w: %s of the lab, which has it, does not run: start it with: %s", err, name, remedy)
	}
	return fmt.Errorf("%w: it is that of the lab in %s (see: weft lab status)", err, lab.Dir())
}
