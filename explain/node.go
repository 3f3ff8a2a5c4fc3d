package explain

import (
	"slices"
	"strings"

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

// Unknown reports whether it is said that nothing is known of a node.
func Unknown(node *corev1.Node) bool {
	c := condition(node, corev1.NodeNetworkUnavailable)
	return c != nil && c.Status == corev1.ConditionUnknown
}

// Agentless reports whether a node has no agent because none can run there, so that nothing is wrong
// with that.
func (c Cluster) Agentless(node *corev1.Node) bool {
	return c.Lost[node.Name] && !api.CanHaveAgent(node)
}

// Reported reports whether an agent has said anything of a node.
func Reported(node *corev1.Node) bool {
	return condition(node, corev1.NodeNetworkUnavailable) != nil || condition(node, api.NodeInSync) != nil
}

// InSync reports whether a node's agent said that the node does all that the
// plan says.
func InSync(node *corev1.Node) bool {
	c := condition(node, api.NodeInSync)
	return c != nil && c.Status == corev1.ConditionTrue
}

// Unloaded reports whether a node's agent said that the data plane may not hold
// the plan, so that policies may not be in force there.
func Unloaded(node *corev1.Node) bool {
	c := condition(node, api.NodeInSync)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == api.PlanNotLoaded
}

// NodeProblems returns what a node's agent said is wrong, if anything, a line
// each, which names the object if that is another than the node.
func NodeProblems(node *corev1.Node) []string {
	var lines []string
	for _, p := range api.NodeProblems(node) {
		line := p.String()
		if p.Kind == api.Node.Kind && p.Name == node.Name {
			line = strings.TrimPrefix(line, p.Object()+": ")
		}
		lines = append(lines, line)
	}
	return lines
}
