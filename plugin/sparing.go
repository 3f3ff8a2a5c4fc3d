package plugin

import (
	"reflect"
	"slices"

	"github.com/weftnet/weft/internal/derived"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// Sparing returns a compiler of a plug-in that compiles where anything changes that the
// plug-in reads, and else returns what it compiled last. A layer reads kinds of which objects
// change far more often than what the plug-in below it goes by. What it is to share with, it
// knows itself: Previous of what it is given does not count. What the plug-in leaves for later,
// if anything, it works off as if something had changed.
func Sparing(p Plugin) Gradual { return &sparing{plugin: p, Compiler: CompilerOf(p)} }

type sparing struct {
	plugin Plugin
	Compiler
	// advancing says that the next call is to do some of what is left for later, and spared
	// that the last one did nothing.
	advancing, spared bool
	// What was compiled last, and what came of it.
	sources  map[*registry.Kind]derived.Seen
	in       Input
	plan     *plan.Plan
	problems []Problem
}

// Compile implements Compiler.
func (c *sparing) Compile(in Input) (*plan.Plan, []Problem) {
	if c.spared = c.plan != nil && !c.advancing && c.same(in); c.spared {
		return c.plan, c.problems
	}
	c.advancing = false
	c.in, c.sources = in, map[*registry.Kind]derived.Seen{}
	for _, k := range c.plugin.Kinds() {
		c.sources[k] = slices.Collect(in.Objects.All(k))
	}
	// A snapshot of everything need not be kept for this.
	c.in.Objects, c.in.Previous = nil, nil
	in.Previous = c.plan
	c.plan, c.problems = c.Compiler.Compile(in)
	return c.plan, c.problems
}

// same reports whether all that the plug-in reads is what it was.
func (c *sparing) same(in Input) bool {
	for _, k := range c.plugin.Kinds() {
		if !c.sources[k].Same(in.Objects.All(k)) {
			return false
		}
	}
	return reflect.DeepEqual(c.in.Config, in.Config) && reflect.DeepEqual(c.in.Node, in.Node)
}

// LeaveForLater implements Gradual.
func (c *sparing) LeaveForLater() {
	if g, ok := c.Compiler.(Gradual); ok {
		g.LeaveForLater()
	}
}

// Waiting implements Gradual.
func (c *sparing) Waiting() []Debt {
	if g, ok := c.Compiler.(Gradual); ok {
		return g.Waiting()
	}
	return nil
}

// Advance implements Gradual.
func (c *sparing) Advance(d Debt) {
	if g, ok := c.Compiler.(Gradual); ok {
		g.Advance(d)
		c.advancing = true
	}
}

// Hasty implements Gradual.
func (c *sparing) Hasty() []Debt {
	if g, ok := c.Compiler.(Gradual); ok && !c.spared {
		return g.Hasty()
	}
	return nil
}

// Rest implements Gradual.
func (c *sparing) Rest(debts map[Debt]bool) {
	if g, ok := c.Compiler.(Gradual); ok {
		g.Rest(debts)
	}
}
