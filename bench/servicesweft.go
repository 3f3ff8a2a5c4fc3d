package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// servicesPlugin gives the pods their addresses.
const servicesPlugin = "openshift-subnet"

// weftCluster is a lab, with a node for each number of Services, and one without any.
type weftCluster struct {
	*cluster
	reg    registry.Registry
	loaded []*serviceNode
	bare   *serviceNode
}

func (c *weftCluster) registry() registry.Registry { return c.reg }

func (c *weftCluster) nodes(i int) []*serviceNode { return c.loaded[i : i+1] }

func (c *weftCluster) close() error {
	if c.reg != nil {
		c.reg.Close()
	}
	if c.cluster == nil {
		return nil
	}
	return c.cluster.close()
}

// weftNodes makes the lab. Its agents are ended, so that Services come to none yet.
func (s settings) weftNodes(ctx context.Context) (_ *weftCluster, err error) {
	c := &weftCluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	var nodes []*serviceNode
	if c.cluster, nodes, err = labNodes(ctx, s.weft, 1+len(s.services)); err != nil {
		return nil, err
	}
	if c.reg, err = c.lab.Registry(); err != nil {
		return nil, err
	}
	for i, name := range c.lab.Nodes() {
		n := nodes[i]
		n.by = byWeft
		n.start = func(ctx context.Context) error { return c.lab.StartNode(ctx, name) }
		n.stop = func() error { return c.lab.Kill(name) }
		n.pid = func() int { return c.lab.PID(name) }
	}
	c.bare, c.loaded = nodes[0], nodes[1:]
	return c, nil
}

// labNodes makes a lab whose nodes have a client each and two pods to be behind a Service, and
// ends its agents.
func labNodes(ctx context.Context, weft string, n int, objects ...lab.Object) (c *cluster, nodes []*serviceNode, err error) {
	if c, err = bringUp(ctx, weft, n, servicesPlugin, objects...); err != nil {
		return nil, nil, err
	}
	for i, name := range c.lab.Nodes() {
		n := &serviceNode{}
		if n.itself, err = newWorker(name, c.network(name)); err != nil {
			return c, nil, err
		}
		c.workers = append(c.workers, n.itself)
		if n.client, _, err = c.pod(ctx, fmt.Sprintf("client%d", i), name); err != nil {
			return c, nil, err
		}
		for j := range n.behind {
			if n.behind[j], n.addresses[j], err = c.pod(ctx, fmt.Sprintf("behind%d-%d", i, j), name); err != nil {
				return c, nil, err
			}
		}
		nodes = append(nodes, n)
	}
	for _, name := range c.lab.Nodes() {
		if err := c.lab.Kill(name); err != nil {
			return c, nil, err
		}
	}
	return c, nodes, nil
}

// ready waits until the controller has granted all their addresses.
func (c *weftCluster) ready(ctx context.Context, n int) error {
	const often, patience = 500 * time.Millisecond, 10 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		granted, _, err := c.reg.List(ctx, service.GrantKind)
		if err != nil {
			return err
		}
		addresses := 0
		for _, o := range granted {
			if _, err := netip.ParseAddr(o.GetName()); err == nil {
				addresses++
			}
		}
		if addresses >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d Services have their address granted: %w", addresses, n, ctx.Err())
		case <-time.After(often):
		}
	}
}
