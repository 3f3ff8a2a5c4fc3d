package networkpolicy

import (
	"fmt"
	"iter"
	"maps"
	"strings"

	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
)

// limited returns the policies as they are enforced: those of namespaces that are
// too large, alone or with those before them in the order of their names,
// allow nothing. It says why. closed are those that were closed before, and is
// kept up.
func limited(all iter.Seq[*translated], closed map[*policy.Policy]*policy.Policy) (list []*policy.Policy, tooLarge map[*translated]string) {
	list, tooLarge = []*policy.Policy{}, map[*translated]string{}
	before := maps.Clone(closed)
	clear(closed)
	oversized := policy.Oversized(func(yield func(*policy.Policy) bool) {
		all(func(t *translated) bool { return yield(t.policy) })
	})
	for t := range all {
		p := t.policy
		if why := oversized[p]; why != "" {
			tooLarge[t] = "spec: " + why
			if closed[p] = before[p]; closed[p] == nil {
				closed[p] = p.Closed()
			}
			p = closed[p]
		}
		list = append(list, p)
	}
	return list, tooLarge
}

// notYet is said of a policy that the compiler has left for later.
const notYet = "spec: it is large, so that it is worked out beside what else changes: it is not in force yet for some pod of the node, or towards some peer"

// limits are the problems of policies that are too large, or large.
func (c *compiler) limits() []plugin.Problem {
	var problems []plugin.Problem
	say := func(t *translated, message string) {
		problems = append(problems, plugin.Problem{Kind: t.kind, Key: t.key(), Message: message, Told: true})
	}
	if len(c.tooLarge) > 0 {
		for _, t := range c.view.concerned(func(t *translated) bool { return c.tooLarge[t] != "" }) {
			say(t, c.tooLarge[t])
		}
	}
	if len(c.made.Costly)+len(c.made.Waiting) == 0 {
		return problems
	}
	byName := map[string]*translated{}
	for t := range c.view.policies.all() {
		byName[t.policy.Name] = t
	}
	for _, p := range c.made.Waiting {
		if t := byName[p.Name]; t != nil {
			say(t, notYet)
		}
	}
	said := map[registry.Key]bool{}
	for _, set := range c.made.Costly {
		var names []string
		for _, p := range set.Policies {
			names = append(names, p.Name)
		}
		for _, name := range names {
			if t := byName[name]; t != nil && !said[t.key()] {
				said[t.key()] = true
				say(t, fmt.Sprintf("spec: for some pod, the rules of %s %s: the pod gets, or sends, nothing; use fewer kinds of peers or ports",
					strings.Join(names[:min(len(names), maxNamed)], ", "), set.Why))
			}
		}
	}
	return problems
}
