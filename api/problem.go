package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/internal/printable"
)

// Problem is something that is wrong with a cluster's network. Whoever finds it
// says it in this form, so that it is shown once, however many found it.
type Problem struct {
	// Kind, Namespace and Name are those of the object to blame. Kind is empty
	// where it is no object, and then Name says in a word what it is.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Message says what is wrong, with the value that is.
	Message string `json:"message"`
	// Remedy says what to do about it. It is empty where Message says so.
	Remedy string `json:"remedy,omitempty"`
}

// Object names the object for people, as "hostsubnet node1".
func (p Problem) Object() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + name
	}
	return strings.TrimSpace(strings.ToLower(p.Kind) + " " + name)
}

// ProblemKey is what a problem is known by: two of the same key say the same of one
// object, whatever is to be done about it.
type ProblemKey struct{ Object, Message string }

// Key returns what the problem is known by.
func (p Problem) Key() ProblemKey { return ProblemKey{p.Object(), p.Message} }

// Same reports whether two say the same of one object.
func (p Problem) Same(o Problem) bool { return p.Key() == o.Key() }

// String is the problem in one line.
func (p Problem) String() string {
	line := p.Object() + ": " + p.Message
	if p.Remedy != "" {
		line += "; " + p.Remedy
	}
	return line
}

// ProblemsAnnotation holds, on a Node, what its agent says is wrong, as a JSON
// list of Problems. The Node's conditions say the same to people.
const ProblemsAnnotation = "weft.network/problems"

// MaxNodeProblems is how many problems an agent says at once. Of one that says more
// no more are read.
const MaxNodeProblems = 20

// SetNodeProblems has a Node say what is wrong, and reports whether that
// changed anything.
func SetNodeProblems(node *corev1.Node, problems []Problem) (changed bool) {
	before := node.Annotations[ProblemsAnnotation]
	if len(problems) == 0 {
		delete(node.Annotations, ProblemsAnnotation)
		return before != ""
	}
	text, err := json.Marshal(problems)
	if err != nil {
		panic(err) // strings alone
	}
	if before == string(text) {
		return false
	}
	if node.Annotations == nil {
		node.Annotations = make(map[string]string)
	}
	node.Annotations[ProblemsAnnotation] = string(text)
	return true
}

// NotReported is the message of NodeProblems for a Node of which no agent has
// said anything.
const NotReported = "no agent has reported yet"

// UnreadyFor is what the message of a Node's problem begins with that says what keeps
// the node from being ready for a plug-in that it has loaded.
func UnreadyFor(plugin string) string { return unreadyFor + plugin + ": " }

const unreadyFor = "not ready for "

// What is said between the names of the nodes to which one knows no way.
const (
	noWayTo   = "it knows no way yet to the pods of "
	andOthers = " and others"
	noWayEnd  = " under it; if that does not pass, see what their agents say, and delete Nodes that are gone"
)

// NoWayTo is what keeps a node from being ready for a plug-in that knows no way to others,
// whose names are in order.
// How many more there are than the first it does not say: while all nodes load a plug-in each
// of them becomes known to each, and no node is to write that into its Node every time.
func NoWayTo(names []string) string {
	more := ""
	if len(names) > printable.MaxNamed {
		names, more = names[:printable.MaxNamed], andOthers
	}
	return noWayTo + printable.Few(names, 0) + more + noWayEnd
}

// LacksWayTo returns the nodes that a problem names to which its node knows no way under a
// plug-in, in the order of their names, none where it says something else. With more it means
// others behind them in that order as well.
func LacksWayTo(message string) (plugin string, names []string, more bool) {
	unready, text, found := strings.Cut(message, ": "+noWayTo)
	plugin, is := strings.CutPrefix(unready, unreadyFor)
	text, whole := strings.CutSuffix(text, noWayEnd)
	if !found || !is || !whole {
		return "", nil, false
	}
	text, more = strings.CutSuffix(text, andOthers)
	return plugin, strings.Split(text, ", "), more
}

// NodeProblems returns what a Node's agent said is wrong.
func NodeProblems(node *corev1.Node) []Problem {
	var problems []Problem
	if text := node.Annotations[ProblemsAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &problems); err != nil {
			problems = []Problem{{Message: "what its agent says cannot be read: " + err.Error()}}
		}
	}
	if more := len(problems) - MaxNodeProblems; more > 0 {
		problems = append(problems[:MaxNodeProblems], Problem{Message: fmt.Sprintf("its agent says %d more problems, which no agent of Weft's does: look who writes the Node", more)})
	}
	own := func(message string) Problem { return Problem{Message: message} }
	if len(problems) == 0 {
		// It must not look well because it does not say what is wrong.
		told := false
		for _, c := range node.Status.Conditions {
			switch {
			case c.Type == corev1.NodeNetworkUnavailable:
				if told = true; c.Status != corev1.ConditionFalse {
					problems = append(problems, own("not ready: "+cmp.Or(c.Message, c.Reason)))
				}
			case c.Type == NodeInSync:
				if told = true; c.Status != corev1.ConditionTrue {
					problems = append(problems, own("out of sync: "+cmp.Or(c.Message, c.Reason)))
				}
			}
		}
		if !told {
			problems = append(problems, own(NotReported))
		}
	}
	for i, p := range problems {
		if strings.TrimSpace(p.Message) == "" {
			problems[i] = own("its agent says a problem without a message, which no agent of Weft's does: look who writes the Node")
		}
		if problems[i].Kind == "" {
			problems[i].Kind, problems[i].Name = Node.Kind, node.Name
		}
	}
	return problems
}
