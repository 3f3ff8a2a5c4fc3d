package explain

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
)

func condition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// Ready reports whether a node's agent said that pods can be networked.
func Ready(node *corev1.Node) bool {
	c := condition(node, corev1.NodeNetworkUnavailable)
	return c != nil && c.Status == corev1.ConditionFalse
}

// InSync reports whether a node's agent said that the node does all that the
// plan says.
func InSync(node *corev1.Node) bool {
	c := condition(node, api.NodeInSync)
	return c != nil && c.Status == corev1.ConditionTrue
}

// NodeProblems returns what a node's agent said is wrong, if anything.
func NodeProblems(node *corev1.Node) []string {
	ready, sync := condition(node, corev1.NodeNetworkUnavailable), condition(node, api.NodeInSync)
	if ready == nil && sync == nil {
		return []string{"no agent has reported yet"}
	}
	var problems []string
	if ready != nil && !Ready(node) {
		problems = append(problems, "not ready: "+cmp.Or(ready.Message, ready.Reason))
	}
	if sync != nil && !InSync(node) {
		problems = append(problems, "out of sync: "+cmp.Or(sync.Message, sync.Reason))
	}
	return problems
}
