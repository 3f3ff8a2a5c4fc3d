package explain

import (
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
)

// warning is a problem, and the nodes of which it is known: those that tell it,
// and those whose plans show it. There are none where nobody but who asks knows.
type warning struct {
	api.Problem
	nodes []string
}

// Warn adds a problem that a node is known to have; node is empty where it is no
// node's. What is there already, of another node too, is not said again.
func (a *Answer) Warn(node string, p api.Problem) {
	i, known := a.warnedOf[p.Key()]
	if !known {
		i = len(a.warned)
		if a.warnedOf == nil {
			a.warnedOf = make(map[api.ProblemKey]int)
		}
		a.warnedOf[p.Key()] = i
		a.warned, a.Warnings = append(a.warned, warning{Problem: p}), append(a.Warnings, "")
	}
	w := &a.warned[i]
	if node != "" && !slices.Contains(w.nodes, node) {
		w.nodes = append(w.nodes, node)
	}
	a.Warnings[i] = w.String()
}

// String is the warning in one line.
func (w warning) String() string {
	var about string
	switch {
	case len(w.nodes) == 0 || w.Kind == api.Node.Kind && slices.Contains(w.nodes, w.Name):
	case len(w.nodes) == 1:
		about = "node " + w.nodes[0] + ": "
	default:
		about = "nodes " + strings.Join(w.nodes, ", ") + ": "
	}
	if w.Object() == "" {
		return about + w.Message
	}
	return about + w.Problem.String()
}

// inherit takes over what another answer warns of, which warns of it no more.
func (a *Answer) inherit(from *Answer) {
	for _, w := range from.warned {
		a.Warn("", w.Problem)
		for _, node := range w.nodes {
			a.Warn(node, w.Problem)
		}
	}
	from.Warnings, from.warned, from.warnedOf = nil, nil, nil
}

// Told returns a problem of a node's plan as the node's agent tells it. One that
// names no object is the node's own.
func Told(node string, p plugin.Problem) api.Problem {
	if p.Kind == nil {
		return ofNode(node, p.Message)
	}
	return api.Problem{Kind: p.Kind.Kind, Namespace: p.Key.Namespace, Name: p.Key.Name, Message: p.Message}
}

// agentLost is what is said of a node whose agent does not hold its lease.
const agentLost = "its agent does not run; what it was told last holds, if the node runs at all"

// ofNode is a problem of a node itself.
func ofNode(node, message string) api.Problem {
	return api.Problem{Kind: api.Node.Kind, Name: node, Message: message}
}
