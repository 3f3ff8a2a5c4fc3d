package deploy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// table returns the rows of the tables in docs/kubernetes.md with the given
// first columns, without their marks of code.
func table(t *testing.T, header ...string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	inside := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "`", "")
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case len(cells) >= len(header) && slices.Equal(cells[:len(header)], header):
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("docs/kubernetes.md has no table with the columns %v", header)
	}
	return rows
}

// same holds what is written against what is.
func same(t *testing.T, what string, written, is map[string]bool) {
	t.Helper()
	for _, s := range slices.Sorted(maps.Keys(is)) {
		if !written[s] {
			t.Errorf("docs/kubernetes.md does not have the %s %s", what, s)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(written)) {
		if !is[s] {
			t.Errorf("docs/kubernetes.md has the %s %s, which is not there", what, s)
		}
	}
}

func TestTheTablesOfRightsAreTheRoles(t *testing.T) {
	written, is := map[string]bool{}, map[string]bool{}
	for _, row := range table(t, "Who", "Resource", "Where", "Verbs", "Why") {
		if row[4] == "" {
			t.Errorf("nothing says why %s may %s %s", row[0], row[3], row[1])
		}
		for resource := range strings.SplitSeq(row[1], ", ") {
			for verb := range strings.SplitSeq(row[3], ", ") {
				written[fmt.Sprintf("%s: %s %s (%s)", row[0], verb, resource, row[2])] = true
			}
		}
	}
	add := func(role, where string, rules []rbacv1.PolicyRule) {
		for _, r := range rules {
			where := where
			if len(r.ResourceNames) > 0 {
				where += ", named " + strings.Join(r.ResourceNames, " ")
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						name := strings.TrimSuffix(resource+"."+group, ".")
						is[fmt.Sprintf("%s: %s %s (%s)", role, verb, name, where)] = true
						if verb == "*" || group == "*" || strings.Contains(resource, "*") || len(r.NonResourceURLs) > 0 {
							t.Errorf("%s may do more than can be said: %v", role, r)
						}
					}
				}
			}
		}
	}
	all := manifest(t)
	for name, r := range of[*rbacv1.ClusterRole](all) {
		add(name, "cluster", r.Rules)
	}
	for name, r := range of[*rbacv1.Role](all) {
		add(name, r.Namespace, r.Rules)
	}
	same(t, "right", written, is)
}

func TestTheTablesOfTheNodeAreTheAgents(t *testing.T) {
	agent, _ := pods(t, manifest(t))
	written, is := map[string]bool{}, map[string]bool{}
	for _, row := range table(t, "Capability", "Why") {
		written[row[0]] = true
	}
	for _, c := range agent.template.Spec.Containers[0].SecurityContext.Capabilities.Add {
		is[string(c)] = true
	}
	same(t, "capability", written, is)

	written, is = map[string]bool{}, map[string]bool{}
	for _, row := range table(t, "Path of the node", "Why") {
		written[row[0]] = true
	}
	for _, v := range agent.template.Spec.Volumes {
		if v.HostPath != nil {
			is[v.HostPath.Path] = true
		}
	}
	same(t, "path", written, is)
}
