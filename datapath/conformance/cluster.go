package conformance

import (
	"testing"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// Round is what the nodes of a cluster do, and flows to try while they do it.
type Round struct {
	// Plans are those of all nodes. The addresses of a node are the same in
	// every round.
	Plans map[string]*plan.Plan
	// Flows begin at a pod, at a node, or outside at one of plantest.Outside, and
	// are of TCP, UDP or ICMP.
	Flows []plan.Flow
}

// Cluster makes one cluster out of namespaces, on data planes that make returns,
// takes it through the rounds, and holds in each what arrives of its flows
// against the interpreter. A data plane that cannot do a plan, as
// datapath.Enforceable makes it, fails the test. It needs root.
func Cluster(t *testing.T, make func(node Namespace) (datapath.DataPlane, error), rounds []Round) {
	t.Helper()
	probe, err := make(newNamespace(t))
	must(t, err)
	able := probe.Capabilities()
	must(t, probe.Close())
	l := newTopology(t, make)
	var enforced map[string]*plan.Plan
	for _, r := range rounds {
		plans := map[string]*plan.Plan{}
		for name, p := range r.Plans {
			plans[name], _ = datapath.Enforceable(p, able, enforced[name])
		}
		enforced = plans
		l.load(plans)
		if untried := l.try(t, plans, r.Flows); len(untried) > 0 {
			t.Errorf("these end at nodes without a plan: %v", untried)
		}
	}
}
