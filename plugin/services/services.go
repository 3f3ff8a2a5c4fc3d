// Package services adds Services to a plug-in: On returns a plug-in that does what the other
// does, and states what package service makes of Services. So a node has them whatever
// plug-in gives its pods addresses, without kube-proxy.
package services

import (
	"slices"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// On returns a plug-in of a given name that does what base does, and has Services. The
// tables Services, Backends and Sources are stated here, of which a base says nothing.
func On(base plugin.Plugin, name string) plugin.Plugin { return &withServices{base: base, name: name} }

// withServices is a plug-in with Services.
type withServices struct {
	base plugin.Plugin
	name string
}

var (
	_ plugin.Layer       = (*withServices)(nil)
	_ plugin.Incremental = (*withServices)(nil)
)

// Name implements plugin.Plugin.
func (p *withServices) Name() string { return p.name }

// Base implements plugin.Layer.
func (p *withServices) Base() plugin.Plugin { return p.base }

// On implements plugin.Layer.
func (p *withServices) On(base plugin.Plugin, name string) plugin.Plugin { return On(base, name) }

// Adds implements plugin.Layer.
func (p *withServices) Adds() string { return "services" }

// Standby implements plugin.Layer: nobody else has to know anything before.
func (p *withServices) Standby() plugin.Layer { return p }

// Announced implements plugin.Layer.
func (p *withServices) Announced(plugin.Input) bool { return true }

// Kinds implements plugin.Plugin.
func (p *withServices) Kinds() []*registry.Kind {
	kinds := slices.Clone(p.base.Kinds())
	for _, k := range service.Kinds {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Compile implements plugin.Plugin.
func (p *withServices) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	return p.NewCompiler().Compile(in)
}

// NewCompiler implements plugin.Incremental.
func (p *withServices) NewCompiler() plugin.Compiler {
	return &compiler{base: plugin.Sparing(p.base)}
}

// compiler compiles the plans of a node.
type compiler struct {
	base   plugin.Compiler
	tables service.Compiler
}

// Compile implements plugin.Compiler. What is wrong with a Service every node says that has
// it so: those that agree are shown as one.
func (c *compiler) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	without, problems := c.base.Compile(in)
	tables, said := c.tables.Compile(in.Objects, without.Local)
	p := *without
	p.Services, p.Backends, p.Sources = tables.Services, tables.Backends, tables.Sources
	problems = slices.Clone(problems)
	for _, s := range said {
		problems = append(problems, plugin.Problem{Kind: s.Kind, Key: s.Key, Message: s.Message})
	}
	return &p, problems
}
