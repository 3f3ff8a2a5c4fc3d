package policy

import (
	"github.com/weftnet/weft/plan"
)

// Tables are what a World means for the node.
type Tables struct {
	Tags     plan.Table[plan.TagKey, plan.Tagging]
	Verdicts plan.Table[plan.VerdictKey, plan.Verdict]
	// Endpoints holds, by interface, the policies of those pods of the node for
	// which there are any.
	Endpoints map[string]EndpointPolicies
}

// EndpointPolicies are the names of the sets of verdicts that hold for a pod;
// empty where everything is allowed.
type EndpointPolicies struct{ Ingress, Egress string }

// Compiler compiles the tables of one node, World after World. The zero Compiler
// is ready to use. It is not safe for concurrent use.
type Compiler struct{}

// Compile returns the tables of a world.
func (c *Compiler) Compile(w *World) Tables { return Tables{} }
