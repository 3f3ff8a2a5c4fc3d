package cli

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// lostAgents returns the nodes whose agent does not live, where held are the
// leases that somebody holds.
func lostAgents(objects registry.Snapshot, held map[string]string) map[string]bool {
	lost := make(map[string]bool)
	for node := range objects.All(api.Node) {
		lost[node.GetName()] = held[api.NodeLease(node.GetName())] == ""
	}
	return lost
}

// liveAgents returns the nodes whose agent lives, whether there is such a Node
// or not, with what the agent calls itself, and of those who wait for the name
// of a node that has an agent, what they call themselves.
func liveAgents(held map[string]string) (agents, rivals map[string]string) {
	agents, rivals = make(map[string]string), make(map[string]string)
	for lease, holder := range held {
		name, isNode := strings.CutPrefix(lease, api.NodeLease(""))
		if !isNode {
			continue
		}
		if node, rival := strings.CutSuffix(name, api.RivalSuffix); rival {
			rivals[node] = holder
		} else {
			agents[name] = holder
		}
	}
	// An agent that has got the name may not have been able to say that it no longer waits.
	maps.DeleteFunc(rivals, func(node, rival string) bool { return agents[node] == rival })
	return agents, rivals
}

// forgetLost has Nodes and NodeReports whose agent does not live say that nothing
// is known of them: what they say is what was so.
func forgetLost(objects []registry.Object, held map[string]string) {
	for _, o := range objects {
		if held[api.NodeLease(o.GetName())] != "" {
			continue
		}
		if report, ok := o.(*api.NodeReport); ok {
			report.Problems = append([]api.PolicyProblem{{Kind: api.Node.Kind, Name: o.GetName(), Message: "its agent does not run; this is what it said last"}}, report.Problems...)
			continue
		}
		node := o.(*corev1.Node)
		others := slices.DeleteFunc(slices.Clone(node.Status.Conditions), func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable || c.Type == api.NodeInSync
		})
		node.Status.Conditions = append(others, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionUnknown, Reason: "its agent does not run"})
	}
}
