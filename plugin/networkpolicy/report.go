package networkpolicy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
)

// The reports of nodes say how far along the history of a kind of policies a node
// is, which is all that can be said in a few bytes: Enforced is the greatest
// resource version among the policies that concern the node and that its data
// plane does. What was changed before that is in the data plane as well, since
// changes to one kind come in order.
//
// So versions of one kind must be decimal numbers that grow, which is what
// Kubernetes promises since 1.35, and what etcd's revisions are. An agent that
// starts says anew where it is, in case that somebody turned a registry back.
//
// To write a policy's status changes its resource version, though nothing about
// the policy. An agent does not know whether the controller knows that, so it
// reports such versions, too; what the controller waits for is the version at
// which it saw the spec change, so that its own writes make it wait for nothing. A
// controller that starts waits for the version that it finds.

// maxProblems bounds a report.
const maxProblems = 100

// reportOf returns what a node says whose data plane does what v shows.
func reportOf(v *view, problems []plugin.Problem) *api.NodeReport {
	r := &api.NodeReport{}
	for _, t := range v.concerned(func(*translated) bool { return true }) {
		if r.Enforced == nil {
			r.Enforced = map[string]string{}
		}
		if now := r.Enforced[t.kind.Plural]; now == "" || !reached(now, t.version()) {
			r.Enforced[t.kind.Plural] = t.version()
		}
	}
	for _, p := range problems {
		if slices.Contains(policyKinds, p.Kind) {
			r.Problems = append(r.Problems, api.PolicyProblem{Kind: p.Kind.Kind, Namespace: p.Key.Namespace, Name: p.Key.Name, Message: truncate(p.Message)})
		}
	}
	slices.SortFunc(r.Problems, compareProblems)
	r.Problems, r.Untold = told(slices.Compact(r.Problems))
	return r
}

// told returns as many problems as a report may have, those of each namespace in
// turns, so that one with many does not hide the others', and the namespaces of
// which some are left out.
func told(all []api.PolicyProblem) (told []api.PolicyProblem, untold []string) {
	if len(all) <= maxProblems {
		return all, nil
	}
	place := make(map[api.PolicyProblem]int, len(all)) // within its namespace
	count := map[string]int{}
	for _, p := range all {
		place[p] = count[p.Namespace]
		count[p.Namespace]++
	}
	byTurn := slices.SortedStableFunc(slices.Values(all), func(a, b api.PolicyProblem) int { return place[a] - place[b] })
	told = byTurn[:maxProblems]
	slices.SortFunc(told, compareProblems)
	for _, p := range byTurn[maxProblems:] {
		untold = append(untold, p.Namespace)
	}
	if untold = sorted(untold); len(untold) > maxProblems {
		untold = []string{api.UntoldAnywhere}
	}
	return told, untold
}

func compareProblems(a, b api.PolicyProblem) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Message, b.Message))
}

// news reports whether a report must be written in the place of what was said.
// That the node does no longer what it did is no news, unless it was said by
// somebody else.
func news(said, now *api.NodeReport, stranger bool) bool {
	if !slices.Equal(said.Problems, now.Problems) || !slices.Equal(said.Untold, now.Untold) || stranger && !maps.Equal(said.Enforced, now.Enforced) {
		return true
	}
	for kind, version := range now.Enforced {
		if !reached(said.Enforced[kind], version) {
			return true
		}
	}
	return false
}

// reached reports whether a node that says that it is at a resource version is at
// another one, too.
func reached(at, version string) bool {
	if at == version {
		return true
	}
	a, isNumber := decimal(at)
	v, isNumber2 := decimal(version)
	return isNumber && isNumber2 && cmp.Or(cmp.Compare(len(a), len(v)), strings.Compare(a, v)) >= 0
}

// decimal returns a number of any length without leading zeros.
func decimal(s string) (string, bool) {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		return "", false
	}
	return strings.TrimLeft(s, "0"), true
}

// maxMessage is how much is said of a problem, in bytes.
const maxMessage = 1024

func truncate(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len("…")], "") + "…"
}
