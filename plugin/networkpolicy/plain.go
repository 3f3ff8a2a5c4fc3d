package networkpolicy

import (
	"reflect"
	"slices"

	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// plainCompiler compiles with the plug-in that knows no policies, as long as
// anything that it reads changes: policies and other nodes' pods change far more
// often than what it goes by.
type plainCompiler struct {
	plugin plugin.Plugin
	plugin.Compiler
	// What was compiled last, and what came of it.
	sources  map[*registry.Kind]derived.Seen
	in       plugin.Input
	plan     *plan.Plan
	problems []plugin.Problem
}

func (c *plainCompiler) compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	if c.plan != nil && c.same(in) {
		return c.plan, c.problems
	}
	c.in, c.sources = in, map[*registry.Kind]derived.Seen{}
	for _, k := range c.plugin.Kinds() {
		c.sources[k] = slices.Collect(in.Objects.All(k))
	}
	// A snapshot of everything need not be kept for this.
	c.in.Objects, c.in.Previous = nil, nil
	in.Previous = c.plan
	c.plan, c.problems = c.Compile(in)
	return c.plan, c.problems
}

// same reports whether all that the plug-in reads is what it was.
func (c *plainCompiler) same(in plugin.Input) bool {
	for _, k := range c.plugin.Kinds() {
		if !c.sources[k].Same(in.Objects.All(k)) {
			return false
		}
	}
	return reflect.DeepEqual(c.in.Config, in.Config) && reflect.DeepEqual(c.in.Node, in.Node)
}
