// Package networkpolicy adds Kubernetes' policies to a plug-in that knows none:
// On returns a plug-in that does what the other does, and enforces NetworkPolicy
// and ClusterNetworkPolicy.
//
// The agents make it possible together. Each tells the others, in one object for
// all of its pods (NodePods), which addresses have which tag, and makes the Tags
// that say what these stand for; each compiles the policies for its own pods. The
// leading controller collects Tags that nobody uses, resolves domain names, and
// says of each ClusterNetworkPolicy whether it is in force.
//
// What is compiled is in world.go and compile.go; what an agent writes in node.go,
// tags.go and report.go; what the controller does in cluster.go, collect.go,
// domains.go and status.go. All of them decide with functions of values, and the
// loops carry out what was decided.
package networkpolicy

import (
	"context"
	"slices"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/retry"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// On returns a plug-in of a given name that does what base does, and enforces
// policies. All that base says stays, its Tags and what its endpoints wear included. Which
// policies endpoints have, and all of Classes, Within and Verdicts, is said here: a base
// says nothing of these, and another language of policies goes into the same
// policy.World.
//
// All kinds of its own have their ordinary place in every registry. A Kubernetes
// cluster must have the definitions of all of them, ClusterNetworkPolicy's
// included, which Weft's chart brings: nothing is compiled before each kind was
// read once.
func On(base plugin.Plugin, name string) plugin.Plugin { return &withPolicies{base: base, name: name} }

// policyKinds are the kinds of policies, in the order of their names.
var policyKinds = []*registry.Kind{api.ClusterNetworkPolicy, api.NetworkPolicy}

// withPolicies is a plug-in with policies, which are not in force on standby.
type withPolicies struct {
	base    plugin.Plugin
	name    string
	standby bool
}

var (
	_ plugin.Layer         = (*withPolicies)(nil)
	_ plugin.Incremental   = (*withPolicies)(nil)
	_ plugin.NodeRunner    = (*withPolicies)(nil)
	_ plugin.ClusterRunner = (*withPolicies)(nil)
)

// Name implements plugin.Plugin.
func (p *withPolicies) Name() string { return p.name }

// Base implements plugin.Layer.
func (p *withPolicies) Base() plugin.Plugin { return p.base }

// On implements plugin.Layer.
func (p *withPolicies) On(base plugin.Plugin, name string) plugin.Plugin {
	return &withPolicies{base: base, name: name, standby: p.standby}
}

// Standby implements plugin.Layer: others are told of the node's pods, of which they know
// nothing else when their own policies come into force.
func (p *withPolicies) Standby() plugin.Layer {
	return &withPolicies{base: p.base, name: p.name, standby: true}
}

// Announced implements plugin.Layer.
func (p *withPolicies) Announced(in plugin.Input) bool { return announced(in) }

// Adds implements plugin.Layer.
func (p *withPolicies) Adds() string { return adds }

// adds is what the layer adds.
const adds = "networkpolicy"

// Kinds implements plugin.Plugin.
func (p *withPolicies) Kinds() []*registry.Kind {
	kinds := slices.Clone(p.base.Kinds())
	for _, k := range []*registry.Kind{api.NetworkPolicy, api.ClusterNetworkPolicy, api.Namespace, api.Node, api.Pod,
		api.TagKind, api.NodePodsKind, api.DomainNameKind} {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Compile implements plugin.Plugin.
func (p *withPolicies) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	return p.NewCompiler().Compile(in)
}

// NewCompiler implements plugin.Incremental.
func (p *withPolicies) NewCompiler() plugin.Compiler {
	if p.standby {
		return plugin.CompilerOf(p.base)
	}
	c := &compiler{on: p.base}
	c.begin("")
	return c
}

// RunNode implements plugin.NodeRunner.
func (p *withPolicies) RunNode(ctx context.Context, env plugin.NodeEnv) error {
	works := []plugin.NodeWork{func(ctx context.Context, env plugin.NodeEnv) error {
		r := newRunner(env)
		r.standby = p.standby
		return r.run(ctx)
	}}
	if base, ok := p.base.(plugin.NodeRunner); ok {
		works = append(works, base.RunNode)
	}
	return plugin.RunTogether(ctx, env, works...)
}

// RunCluster implements plugin.ClusterRunner.
func (p *withPolicies) RunCluster(ctx context.Context, env plugin.ClusterEnv) error {
	return newCluster(env).run(ctx)
}

// Durations that are no user's to choose.
const (
	// callTimeout bounds each call to the registry.
	callTimeout = 10 * time.Second
)

// backoff is the time between attempts after an error.
var backoff = retry.Backoff{First: 100 * time.Millisecond, Last: 10 * time.Second}
