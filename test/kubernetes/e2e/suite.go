package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// area is the owner, in upstream's words, of the specs that concern a network.
const area = "[sig-network]"

// parseList returns the names of the area's specs out of what e2e.test
// --list-tests prints: a line for each, "FILE:LINE: NAME".
func parseList(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if i := strings.Index(line, area); i >= 0 {
			names = append(names, strings.TrimSpace(line[i:]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rule leaves specs out.
type rule struct {
	// Text occurs in the names of the specs.
	Text string
	// Reason is a sentence.
	Reason string
}

// parseRules reads left-out.txt: a reason begins a line, and under it, each
// indented, are the texts that it holds for. A line that begins with # says
// something to its reader.
func parseRules(text string) ([]rule, error) {
	var rules []rule
	reason := ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		switch content := strings.TrimSpace(line); {
		case content == "", strings.HasPrefix(line, "#"):
		case content == line:
			reason = content
		case reason == "":
			return nil, fmt.Errorf("line %d: %q has no reason above it", n, content)
		default:
			rules = append(rules, rule{Text: content, Reason: reason})
		}
	}
	return rules, nil
}

// parseSmoke reads smoke.txt, a name without the area in each line.
func parseSmoke(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			names = append(names, area+" "+line)
		}
	}
	return names
}

// suite is what to run of the specs there are.
type suite struct {
	Name string
	Run  []string
	// LeftOut holds the reasons by name.
	LeftOut map[string]string
}

// choose returns the suite of a name. Rules and names that fit no spec are
// errors: upstream's names change, and then nobody would notice.
func choose(specs []string, name string, smoke []string, rules []rule) (suite, error) {
	s := suite{Name: name, LeftOut: make(map[string]string)}
	var in func(spec string) bool
	switch name {
	case "all":
		in = func(string) bool { return true }
	case "conformance":
		in = func(spec string) bool { return strings.Contains(spec, "[Conformance]") }
	case "networkpolicy":
		in = ofPolicies
	case "beyond":
		in = func(spec string) bool { return !strings.Contains(spec, "[Conformance]") && !ofPolicies(spec) }
	case "smoke":
		in = func(spec string) bool { return slices.Contains(smoke, spec) }
		for _, wanted := range smoke {
			if !slices.Contains(specs, wanted) {
				return s, fmt.Errorf("smoke.txt: there is no spec %q", wanted)
			}
		}
	default:
		return s, fmt.Errorf("there is no suite %q: there are smoke, conformance, networkpolicy, beyond and all", name)
	}
	used := make(map[rule]bool)
	for _, spec := range specs {
		reason := ""
		for _, r := range rules {
			if strings.Contains(spec, r.Text) {
				used[r] = true
				if reason == "" {
					reason = r.Reason
				}
			}
		}
		switch {
		case !in(spec):
		case reason != "":
			s.LeftOut[spec] = reason
		default:
			s.Run = append(s.Run, spec)
		}
	}
	for _, r := range rules {
		if !used[r] {
			return s, fmt.Errorf("left-out.txt: no spec has %q in its name; remove it", r.Text)
		}
	}
	return s, nil
}

// ofPolicies reports whether a spec is one of NetworkPolicy.
func ofPolicies(spec string) bool {
	return strings.HasPrefix(spec, area+" Netpol ") || strings.HasPrefix(spec, area+" NetworkPolicy")
}

// only reduces a suite to the specs with a text in their names.
func (s suite) only(text string) suite {
	s.Run = slices.DeleteFunc(slices.Clone(s.Run), func(name string) bool { return !strings.Contains(name, text) })
	return s
}

// focus is the regular expression that has ginkgo run these specs alone. It is
// matched against the name after that of the whole suite; some names end in a
// space.
func (s suite) focus() string {
	quoted := make([]string, len(s.Run))
	for i, name := range s.Run {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "(" + strings.Join(quoted, "|") + ") *$"
}

func (s suite) String() string {
	var b strings.Builder
	for _, name := range s.Run {
		fmt.Fprintf(&b, "run       %s\n", name)
	}
	b.WriteString(reasons(s.LeftOut))
	return b.String()
}

// reasons lists what is left out by reason.
func reasons(leftOut map[string]string) string {
	byReason := make(map[string][]string)
	for name, reason := range leftOut {
		byReason[reason] = append(byReason[reason], name)
	}
	var b strings.Builder
	for _, reason := range sortedKeys(byReason) {
		fmt.Fprintf(&b, "left out: %s\n", reason)
		slices.Sort(byReason[reason])
		for _, name := range byReason[reason] {
			fmt.Fprintf(&b, "          %s\n", name)
		}
	}
	return b.String()
}
