package linux

import (
	"testing"

	"github.com/google/nftables"

	"github.com/weftnet/weft/datapath/linux/stamps"
	"github.com/weftnet/weft/plan"
)

// TestLimitsComeLast checks that what passes through the node meets limits behind
// all that may forbid it, in whichever order the tables are written.
func TestLimitsComeLast(t *testing.T) {
	p, err := plan.Parse(`node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1
endpoint a network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 egress-policy none ingress-policy none
route default 10.1.1.2/32 endpoint a
egress default any 0.0.0.0/0 drop
`)
	if err != nil {
		t.Fatal(err)
	}
	own := compileRuleset(stamps.Default, p, compileFor(t, p).sourcesOf(), usualConnections, true)
	limits := own.Chains["crossing"].Hook.Priority
	before := map[string]bool{"discard": false, throughNode: false}
	for _, r := range []*ruleset{own, policyRules(stamps.Default, true)} {
		for name, c := range r.Chains {
			if c.Hook == nil || c.Hook.Number != *nftables.ChainHookForward || name == "crossing" {
				continue
			}
			if before[name] = true; c.Hook.Priority >= limits {
				t.Errorf("chain %s has priority %d, and limits have %d", name, c.Hook.Priority, limits)
			}
		}
	}
	for name, found := range before {
		if !found {
			t.Errorf("nothing passes chain %s", name)
		}
	}
}
