// Package services adds Services to a plug-in: On returns a plug-in that does what the other
// does, and states what package service makes of Services. So a node has them whatever
// plug-in gives its pods addresses, without kube-proxy.
package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/service/control"
)

// On returns a plug-in of a given name that does what base does, and has Services. The
// tables Services, Backends and Sources are stated here, of which a base says nothing.
func On(base plugin.Plugin, name string) plugin.Plugin { return &withServices{base: base, name: name} }

// WithGrants returns the form of the same for registries that keep Grants: they decide there
// which of several Services has an address.
func WithGrants(base plugin.Plugin, name string) plugin.Plugin {
	return &withServices{base: base, name: name, grants: true}
}

// withServices is a plug-in with Services.
type withServices struct {
	base   plugin.Plugin
	name   string
	grants bool
}

var (
	_ plugin.Layer         = (*withServices)(nil)
	_ plugin.Incremental   = (*withServices)(nil)
	_ plugin.NodeRunner    = (*withServices)(nil)
	_ plugin.ClusterRunner = (*withServices)(nil)
)

// Name implements plugin.Plugin.
func (p *withServices) Name() string { return p.name }

// Base implements plugin.Layer.
func (p *withServices) Base() plugin.Plugin { return p.base }

// On implements plugin.Layer.
func (p *withServices) On(base plugin.Plugin, name string) plugin.Plugin {
	return &withServices{base: base, name: name, grants: p.grants}
}

// Adds implements plugin.Layer.
func (p *withServices) Adds() string { return plugin.Services }

// Standby implements plugin.Layer: nobody else has to know anything before.
func (p *withServices) Standby() plugin.Layer { return p }

// Announced implements plugin.Layer.
func (p *withServices) Announced(plugin.Input) bool { return true }

// Kinds implements plugin.Plugin.
func (p *withServices) Kinds() []*registry.Kind {
	kinds, more := slices.Clone(p.base.Kinds()), slices.Clone(service.Kinds)
	if p.grants {
		more = append(more, service.GrantKind)
	}
	for _, k := range more {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// RunNode implements plugin.NodeRunner: Services are no work of their own.
func (p *withServices) RunNode(ctx context.Context, env plugin.NodeEnv) error {
	if base, ok := p.base.(plugin.NodeRunner); ok {
		return base.RunNode(ctx, env)
	}
	<-ctx.Done()
	return ctx.Err()
}

// RunCluster implements plugin.ClusterRunner.
func (p *withServices) RunCluster(ctx context.Context, env plugin.ClusterEnv) error {
	return control.Run(ctx, env.Registry, env.Log, env.Metrics)
}

// Compile implements plugin.Plugin.
func (p *withServices) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	return p.NewCompiler().Compile(in)
}

// NewCompiler implements plugin.Incremental.
func (p *withServices) NewCompiler() plugin.Compiler {
	c := &compiler{kinds: p.base.Kinds(), tables: service.Compiler{Grants: p.grants}}
	c.Later = plugin.Later{Of: plugin.Services, Slices: true, Own: &c.tables, Below: plugin.Sparing(p.base)}
	return c
}

// compiler compiles the plans of a node.
type compiler struct {
	plugin.Later
	// kinds are those that the base reads.
	kinds  []*registry.Kind
	tables service.Compiler
}

var _ plugin.Gradual = (*compiler)(nil)

// Compile implements plugin.Compiler. What is wrong with a Service the cluster's work tells,
// as all nodes find the same.
func (c *compiler) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	without, problems := c.Below.Compile(in)
	c.tables.Names = service.NameServersOf(in.Config, without.Local.Addresses)
	tables := c.tables.Compile(in.Objects, without.Local)
	p := *without
	p.Services, p.Backends, p.Sources = tables.Services, tables.Backends, tables.Sources
	problems = append(slices.Clone(problems), c.late()...)
	for _, network := range in.Config.Spec.ServiceNetworks {
		if prefix, err := netip.ParsePrefix(network); err == nil {
			problems = append(problems, c.putNetwork(&p, prefix.Masked(), in.Config.Name)...)
		}
	}
	return &p, problems
}

// LeaveForLater implements plugin.Gradual.
func (c *compiler) LeaveForLater() {
	c.tables.Gradual = true
	c.Below.LeaveForLater()
}

// late says of which namespaces not all Services are loaded yet as they are written.
func (c *compiler) late() (problems []plugin.Problem) {
	for _, namespace := range c.tables.Late() {
		problems = append(problems, plugin.Problem{Kind: api.Namespace, Key: registry.Key{Name: namespace}, Passing: true, Message: "much of its Services changed, so that they are loaded in slices beside what else changes: " +
			"not all of them is served yet as it is written"})
	}
	return problems
}

// putNetwork states that nothing leaves for where Services have their addresses, unless the
// base says something else of it. What counts is what the node itself and its pods have in
// there: that another machine has an address in there is not believed, as any could say so.
func (c *compiler) putNetwork(p *plan.Plan, network netip.Prefix, name string) (problems []plugin.Problem) {
	config := registry.Key{Name: name}
	for _, pool := range p.Local.Pools {
		if pool.Network == plan.DefaultNetwork && pool.Prefix.Overlaps(network) {
			return []plugin.Problem{{Kind: api.ClusterConfigKind, Key: config, Message: fmt.Sprintf(
				"spec.serviceNetworks: %s overlaps with the subnet %s of %s's pods, so that a Service may get a pod's address: give Services another range", network, pool.Prefix, p.Local.Node)}}
		}
	}
	if i := slices.IndexFunc(p.Local.Addresses, network.Contains); i >= 0 {
		return []plugin.Problem{{Kind: api.ClusterConfigKind, Key: config, Message: fmt.Sprintf(
			"spec.serviceNetworks: %s has the address %s of %s, so that what leads nowhere in there may go astray: give Services another range", network, p.Local.Addresses[i], p.Local.Node)}}
	}
	for k, peer := range p.Peers.All() {
		var said netip.Addr
		for _, a := range peer.Addresses {
			if !network.Contains(a) {
				continue
			}
			if !said.IsValid() {
				said = a
			}
			at := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(a, a.BitLen())}
			if r, there := p.Routes.Get(at); there && r.EndpointsOnly && r.Peer() == k.Name {
				p.Routes = p.Routes.Delete(at)
			}
		}
		if said.IsValid() {
			problem := plugin.Problem{Message: fmt.Sprintf("%s says that it has the address %s, and is not reached there, as %s of spec.serviceNetworks is where Services get theirs: give it another, or Services another range", k.Name, said, network)}
			problem.Kind, problem.Key, _ = plugin.ParseOrigin(c.kinds, peer.Origin)
			problems = append(problems, problem)
		}
	}
	k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: network}
	if _, there := p.Routes.Get(k); !there {
		p.Routes = p.Routes.Set(k, plan.Route{Way: plan.ToDrop, Origin: "ClusterConfig " + config.Name})
	}
	return problems
}
