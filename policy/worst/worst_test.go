package worst

import (
	"testing"

	"github.com/weftnet/weft/policy"
)

// grown returns what a recipe's policies add to the tables of a node.
func grown(r Recipe) (rules, tags, verdicts, within int) {
	with := Scene(r)
	without := *with
	without.Policies = with.Policies[:Others]
	var c policy.Compiler
	before := c.Compile(&without)
	after := c.Compile(with)
	for _, p := range with.Policies[Others:] {
		rules += len(p.Ingress) + len(p.Egress)
	}
	return rules, after.Classes.Len() - before.Classes.Len(), after.Verdicts.Len() - before.Verdicts.Len(), after.Within.Len() - before.Within.Len()
}

// What a policy costs grows with its size and not with the square of it, nor with
// how many other tenants there are.
func TestCostGrowsWithSize(t *testing.T) {
	rules, tags, verdicts, within := grown(Issue(43 << 10))
	if rules < 400 || verdicts > 2000 || tags > 2*rules || within > 2*rules {
		t.Errorf("%d rules make %d verdicts, %d tags and %d that are within wider ones; want no more than 2000 verdicts", rules, verdicts, tags, within)
	}
	twice, _, more, _ := grown(Issue(86 << 10))
	if more > 5*verdicts/2 {
		t.Errorf("%d rules make %d verdicts, but %d make %d", rules, verdicts, twice, more)
	}
}
