package cli

import (
	"testing"

	"github.com/weftnet/weft/api"
)

// TestLiveAgents has agents hold the leases of nodes, and others wait for them. One that waits
// for what it has itself by now is nobody's rival.
func TestLiveAgents(t *testing.T) {
	const first, second = "node1 at 172.30.0.11", "node1 at 172.30.0.12"
	for what, test := range map[string]struct{ holds, waits, rival string }{
		"nobody waits":         {first, "", ""},
		"another waits":        {first, second, second},
		"the same waits":       {first, first, ""},
		"one waits for no one": {"", second, second},
	} {
		held := map[string]string{api.ControllerLease: "c1"}
		for lease, holder := range map[string]string{api.NodeLease("node1"): test.holds, api.RivalLease("node1"): test.waits} {
			if holder != "" {
				held[lease] = holder
			}
		}
		agents, rivals := liveAgents(held)
		if agents["node1"] != test.holds || rivals["node1"] != test.rival {
			t.Errorf("%s: agents are %q, and rivals %q", what, agents, rivals)
		}
	}
}
