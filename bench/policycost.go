package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/weftnet/weft/policy/worst"
)

// The targets for the policy that first was too large.
const (
	worstSize           = 43 << 10
	worstCompileTarget  = 50 * time.Millisecond
	worstVerdictsTarget = 2000
	costRounds          = 20
)

// costResult is what costly policies add to a node.
type costResult struct {
	Name string
	worst.Cost
	Compiles []time.Duration
	// judged says that the targets are for it.
	judged bool
}

// policyCosts compiles the costly policies that are known.
func policyCosts() (results []costResult) {
	say("policy: the worst policies")
	measure := func(name string, r worst.Recipe, judged bool) {
		c := costResult{Name: name, judged: judged}
		for range costRounds {
			c.Cost = worst.Measure(r)
			c.Compiles = append(c.Compiles, c.Compile)
		}
		slices.Sort(c.Compiles)
		results = append(results, c)
	}
	measure("all but an exception, for a port each", worst.Issue(worstSize), true)
	for i, r := range worst.Found {
		measure(fmt.Sprintf("found by search, %d", i+1), r, false)
	}
	return results
}

func (r *report) policyCosts(costs []costResult) {
	r.line("\n## Policies made to cost much\n")
	r.line("On a node with pods of %d other tenants, each under a policy of its own. The first is %d KiB large; the", worst.Others, worstSize>>10)
	r.line("others are the worst that a search found within the limits of a namespace ([policy/worst](../policy/worst)). Each is compiled")
	r.line("%d times as something new.", costRounds)
	r.head("", "rules", "Classes", "Verdicts", "target", "", "compile p50", "longest", "target", "")
	for _, c := range costs {
		cells := []string{c.Name, fmt.Sprint(c.Rules), fmt.Sprint(c.Classes), fmt.Sprint(c.Verdicts), "", "",
			duration(quantile(c.Compiles, 0.5)), duration(quantile(c.Compiles, 1)), "", ""}
		if c.judged {
			cells[4], cells[5] = fmt.Sprintf("≤ %d", worstVerdictsTarget), r.judged(atMost(c.Verdicts, worstVerdictsTarget))
			cells[8], cells[9] = fmt.Sprintf("≤ %v", worstCompileTarget), r.judged(atMost(quantile(c.Compiles, 0.5), worstCompileTarget))
		}
		r.row(cells...)
	}
}
