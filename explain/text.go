package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weftnet/weft/internal/printable"
	"github.com/weftnet/weft/plan"
)

// String returns the answer for people, in brief: the verdict, who talks to
// whom, a line for each decision on the way that matters, and what would allow
// what is denied.
func (a Answer) String() string {
	var b strings.Builder
	a.begin(&b)
	width := 0
	steps := a.brief()
	for _, s := range steps {
		width = max(width, len(s.Node))
	}
	for _, s := range steps {
		printable.Fprintf(&b, "  %-*s  %s", width, s.Node, s.Decision)
		if s.Origin != "" {
			printable.Fprintf(&b, " (%s)", s.Origin)
		}
		b.WriteByte('\n')
	}
	if a.SeenSource.IsValid() && (a.SeenSource != a.Source.Address || a.SeenDestination != a.Destination.Address) {
		b.WriteString(a.seenBy())
	}
	a.end(&b, Answer.String)
	return b.String()
}

// Verbose returns the answer with all steps and the entries of the plans that
// decide them.
func (a Answer) Verbose() string {
	var b strings.Builder
	a.begin(&b)
	// The first line of the explanation is the verdict.
	_, steps, _ := strings.Cut(a.Explanation.String(), "\n")
	b.WriteString(printable.Lines(steps))
	a.end(&b, Answer.Verbose)
	return b.String()
}

// begin writes the verdict, and who talks to whom.
func (a Answer) begin(b *strings.Builder) {
	printable.Fprintf(b, "%s: %s\n", a.Verdict, a.Sentence())
	printable.Fprintf(b, "%s -> %s, %s\n", a.Source, a.Destination, a.service())
	for _, p := range []Party{a.Source, a.Destination} {
		if p.Resolved != "" {
			printable.Fprintf(b, "  %s\n", p.Resolved)
		}
	}
}

// Sentence says why in one sentence.
func (a Answer) Sentence() string {
	reason := a.Reason
	if s := a.stopped(); s != nil && s.Origin != "" {
		for _, j := range a.Policies {
			if !j.Allowed && !j.Unasked {
				reason = fmt.Sprintf("by %s, the %s policy of pod %s", s.Origin, j.Direction, j.Pod)
			}
		}
	}
	if len(a.Doubts) == 0 {
		return reason
	}
	known := "as far as is known, "
	if !a.SeenSource.IsValid() && a.Service == nil && len(a.Backends) == 0 && !a.Unknown {
		known += "denied: "
	}
	var doubts []string
	for _, d := range a.Doubts {
		doubts = append(doubts, printable.Brief(d))
	}
	return strings.Join(doubts, ", ") + "; " + known + reason
}

// stopped returns the step in which a policy ends the packet's way, or nil.
func (a Answer) stopped() *plan.Step {
	if n := len(a.Steps); n > 0 && a.Steps[n-1].Table == "verdicts" && !a.SeenSource.IsValid() && len(a.Policies) > 0 {
		return &a.Steps[n-1]
	}
	return nil
}

// service is the protocol and port asked for.
func (a Answer) service() string {
	if a.Port == 0 {
		return a.Protocol.String()
	}
	return fmt.Sprintf("%s %d", a.Protocol, a.Port)
}

func (a Answer) seenBy() string {
	text := fmt.Sprintf("the receiver sees %s to %s", a.SeenSource, a.SeenDestination)
	if a.SeenPort != 0 {
		text += fmt.Sprintf(" port %d", a.SeenPort)
	}
	return text + "\n"
}

// brief returns the steps that say how the packet goes: not those that only say
// that nothing is in its way, nor those that policies explain better.
func (a Answer) brief() []plan.Step {
	var steps []plan.Step
	for i, s := range a.Steps {
		last := i == len(a.Steps)-1
		switch {
		case last && a.stopped() != nil:
			steps = append(steps, plan.Step{Node: s.Node, Decision: "stopped by a policy"})
		case i == len(a.Steps)-2 && a.stopped() != nil && s.Table == "routes" && !s.Tunnels():
		case s.Table == "verdicts" && len(a.Policies) > 0:
		case last && s.Table != "endpoints":
			steps = append(steps, s)
		case s.Table == "endpoints" && (!last || a.SeenSource.IsValid()):
		case s.Table == "node" && i == 0 && !last && a.Source.Name == "node "+s.Node:
		case s.Table == "egress" && strings.HasPrefix(s.Decision, plan.SourceStays):
		default:
			steps = append(steps, s)
		}
	}
	return steps
}

// end writes what is known besides the way.
func (a Answer) end(b *strings.Builder, whole func(Answer) string) {
	for _, j := range a.Policies {
		printable.Fprintf(b, "policy: %s\n", j)
		if j.Advice != "" {
			printable.Fprintf(b, "  %s\n", j.Advice)
		}
	}
	for _, w := range a.Warnings {
		printable.Fprintf(b, "warning: %s\n", printable.Brief(w))
	}
	for _, same := range alike(a.Backends) {
		b.WriteByte('\n')
		if n := len(same) - 1; n > 0 {
			printable.Fprintf(b, "%s and %d more like it:\n", same[0].Destination.Name, n)
		}
		b.WriteString(whole(same[0]))
	}
}

// alike groups answers that say the same for another pod of the same node, in
// the order of their first.
func alike(answers []Answer) [][]Answer {
	var groups [][]Answer
	for _, a := range answers {
		key := a.likeness()
		i := slices.IndexFunc(groups, func(g []Answer) bool { return g[0].likeness() == key })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], a)
	}
	return groups
}

func (a Answer) likeness() string {
	var rules []string
	for _, j := range a.Policies {
		rules = append(rules, fmt.Sprint(j.Direction, j.Allowed, j.Rule))
	}
	return fmt.Sprint(a.Verdict, a.Doubts, a.Port, a.Destination.Node, rules, a.Policies == nil && a.Verdict != Allowed && a.Reason != "")
}
