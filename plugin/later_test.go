package plugin_test

import (
	"slices"
	"testing"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// owing is what owes some things to owners.
type owing struct {
	owed    map[string]int
	advance string
	resting map[string]bool
}

func (o *owing) Advance(owner string)        { o.advance = owner }
func (o *owing) Rest(owners map[string]bool) { o.resting = owners }
func (o *owing) Hasty() []string             { return []string{"a"} }

func (o *owing) Waiting() (all []string) {
	for owner, n := range o.owed {
		if n > 0 {
			all = append(all, owner)
		}
	}
	slices.Sort(all)
	return all
}

// layer is a plug-in, and its compiler, that owes some things in slices, and has nothing below it that
// owes anything.
type layer struct {
	counting
	plugin.Later
	owing
}

func newLayer(times *int, owed map[string]int) *layer {
	l := &layer{counting: counting{times}, owing: owing{owed: owed}}
	l.Later = plugin.Later{Of: "services", Slices: true, Own: &l.owing, Below: plugin.Sparing(counting{new(int)})}
	return l
}

func (l *layer) NewCompiler() plugin.Compiler    { return l }
func (l *layer) LeaveForLater()                  {}
func (l *layer) Waiting() []plugin.Debt          { return l.Later.Waiting() }
func (l *layer) Hasty() []plugin.Debt            { return l.Later.Hasty() }
func (l *layer) Advance(d plugin.Debt)           { l.Later.Advance(d) }
func (l *layer) Rest(debts map[plugin.Debt]bool) { l.Later.Rest(debts) }
func (l *layer) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	if l.owed[l.advance] > 0 {
		l.owed[l.advance]--
	}
	l.advance = ""
	return l.counting.Compile(in)
}

// Each layer's debts are its own, also where both owe something to one owner.
func TestLayersOweEachForItself(t *testing.T) {
	below := newLayer(new(int), map[string]int{"a": 1, "d": 1})
	own := &owing{owed: map[string]int{"a": 2, "b": 1}}
	l := plugin.Later{Of: "networkpolicy", Own: own, Below: below}
	of := func(owner string) plugin.Debt { return plugin.Debt{Of: "networkpolicy", Owner: owner} }
	slice := func(owner string) plugin.Debt { return plugin.Debt{Of: "services", Owner: owner, Slices: true} }
	if got := l.Waiting(); !slices.Equal(got, []plugin.Debt{of("a"), of("b"), slice("a"), slice("d")}) {
		t.Errorf("waiting are %v", got)
	}
	if got := l.Hasty(); !slices.Equal(got, []plugin.Debt{of("a"), slice("a")}) {
		t.Errorf("hasty are %v", got)
	}
	l.Rest(map[plugin.Debt]bool{of("a"): true, slice("d"): true})
	if !own.resting["a"] || own.resting["d"] || below.resting["a"] || !below.resting["d"] {
		t.Errorf("of one %v rest, and of the other %v", own.resting, below.resting)
	}
	if l.Advance(slice("a")); own.advance != "" || below.advance != "a" {
		t.Errorf("it is the turn of %q and of %q", own.advance, below.advance)
	}
	if l.Advance(of("b")); own.advance != "b" || below.advance != "a" {
		t.Errorf("it is the turn of %q and of %q", own.advance, below.advance)
	}
}

// A turn of what is left for later compiles, though nothing changed, and nobody was hasty where nothing
// was compiled.
func TestSparingWorksOff(t *testing.T) {
	times := 0
	c := plugin.Sparing(newLayer(&times, map[string]int{"a": 1}))
	in := plugin.Input{Objects: registry.NewSnapshot(nil)}
	for i, step := range []struct {
		advance bool
		times   int
		hasty   int
	}{{false, 1, 1}, {false, 1, 0}, {true, 2, 1}, {false, 2, 0}} {
		if step.advance {
			c.Advance(c.Waiting()[0])
		}
		if c.Compile(in); times != step.times || len(c.Hasty()) != step.hasty {
			t.Errorf("after step %d it compiled %d times, and hasty are %v", i, times, c.Hasty())
		}
	}
	if len(c.Waiting()) > 0 {
		t.Errorf("waiting are %v", c.Waiting())
	}
}
