package grafana

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// documented is the name of a metric as the tables write it, with its labels.
var documented = regexp.MustCompile("`((?:weft|kubeproxy)_[a-z_]+)(?:{([a-z,]+)})?`")

// Each metric stands in a table of docs/operations.md, with its labels, and nothing else does.
func TestMetricsStandInTheTables(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	written, inside := map[string]string{}, false
	for line := range strings.Lines(string(text)) {
		if inside = strings.HasPrefix(line, "|") && (inside || strings.HasPrefix(line, "| Metric of ")); !inside {
			continue
		}
		name, meaning, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, found := range documented.FindAllStringSubmatch(name, -1) {
			if meaning, _, _ := strings.Cut(meaning, "|"); strings.TrimSpace(meaning) == "" {
				t.Errorf("nothing says what %s means", found[1])
			}
			written[found[1]] = found[2]
		}
	}
	all, labels := registered(t)
	for name := range all {
		said, is := written[name]
		if !is {
			t.Errorf("docs/operations.md does not have %s", name)
		} else if want := strings.Join(labels[name], ","); said != want {
			t.Errorf("docs/operations.md says that the labels of %s are %q, and they are %q", name, said, want)
		}
	}
	for name := range written {
		if all[name] == "" {
			t.Errorf("docs/operations.md has %s, which there is not", name)
		}
	}
}
