package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

func TestExplainStories(t *testing.T) {
	golden.Archives(t, "testdata/explain-*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var plans map[string]*plan.Plan
		return golden.Answer(files, func(name, in string) string {
			if strings.HasPrefix(name, "plans") {
				var err error
				if plans, err = plan.ParseAll(in); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for node, p := range plans {
					if err := p.Validate(); err != nil {
						t.Errorf("%s: plan of %s: %v", name, node, err)
					}
				}
				return ""
			}
			var out strings.Builder
			for i, l := range lines(in) {
				f, err := plan.ParseFlow(l)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if i > 0 {
					out.WriteByte('\n')
				}
				fmt.Fprintf(&out, "%s\n%s", f, plan.Explain(plans, f))
			}
			return out.String()
		})
	})
}

func TestParseStories(t *testing.T) {
	golden.Answers(t, "testdata/parse-*.txtar", func(_ *testing.T, _, in string) string {
		p, err := plan.Parse(in)
		if err != nil {
			return err.Error() + "\n"
		}
		return p.String()
	})
}

func TestParseAllStories(t *testing.T) {
	golden.Answers(t, "testdata/all-*.txtar", func(_ *testing.T, _, in string) string {
		plans, err := plan.ParseAll(in)
		if err != nil {
			return err.Error() + "\n"
		}
		return plan.FormatAll(plans)
	})
}

func TestParseFlowErrors(t *testing.T) {
	golden.Answers(t, "testdata/flows-*.txtar", func(_ *testing.T, _, in string) string {
		var out strings.Builder
		for _, l := range lines(in) {
			f, err := plan.ParseFlow(l)
			if err != nil {
				fmt.Fprintf(&out, "%v\n", err)
			} else {
				fmt.Fprintf(&out, "%s\n", f)
			}
		}
		return out.String()
	})
}

// Every line of these files is wrong in a way of its own.
func TestParseErrors(t *testing.T) {
	golden.Answers(t, "testdata/errors-*.txtar", func(t *testing.T, name, in string) string {
		var out strings.Builder
		for _, l := range lines(in) {
			_, err := plan.Parse(l)
			if err == nil {
				t.Errorf("%s: accepted: %s", name, l)
				continue
			}
			fmt.Fprintf(&out, "%s\n  %v\n", l, strings.TrimPrefix(err.Error(), "line 1: "))
		}
		return out.String()
	})
}

func TestValidateStories(t *testing.T) {
	golden.Answers(t, "testdata/validate-*.txtar", func(t *testing.T, name, in string) string {
		p, err := plan.Parse(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := p.Validate(); err != nil {
			return err.Error() + "\n"
		}
		return "valid\n"
	})
}

// Each file of a diff story is the plan after the one before.
func TestDiffStories(t *testing.T) {
	golden.Archives(t, "testdata/diff-*.txtar", func(t *testing.T, plans []txtar.File) []txtar.File {
		var previous *plan.Plan
		return golden.Answer(plans, func(name, in string) string {
			next, err := plan.Parse(in)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			d := previous.Diff(next)
			previous = next
			if d.Empty() {
				return "the same\n"
			}
			return d.String()
		})
	})
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
