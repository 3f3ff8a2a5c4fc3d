package plan_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weftnet/weft/plan"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write what comes out into the files under testdata")

// story runs the txtar files that match pattern. Each file in them is given to
// tell; what tell returns must be in the file that follows, whose name is the
// first's and ".out". A file for which tell returns nothing has none.
func story(t *testing.T, pattern string, tell func(t *testing.T) func(name, in string) string) {
	paths, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file matches %s (%v)", pattern, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := txtar.Parse(content)
			got := &txtar.Archive{Comment: want.Comment}
			next := tell(t)
			for _, f := range want.Files {
				if strings.HasSuffix(f.Name, ".out") {
					continue
				}
				got.Files = append(got.Files, f)
				if out := next(f.Name, string(f.Data)); out != "" {
					got.Files = append(got.Files, txtar.File{Name: f.Name + ".out", Data: []byte(out)})
				}
			}
			text := txtar.Format(got)
			if *update && !bytes.Equal(text, content) {
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(content), string(text)); diff != "" {
				t.Errorf("%s differs from what comes out (-update takes that):\n%s", path, diff)
			}
		})
	}
}

func TestExplainStories(t *testing.T) {
	story(t, "explain-*.txtar", func(t *testing.T) func(name, in string) string {
		var plans map[string]*plan.Plan
		return func(name, in string) string {
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
		}
	})
}

func TestParseStories(t *testing.T) {
	story(t, "parse-*.txtar", func(t *testing.T) func(name, in string) string {
		return func(name, in string) string {
			p, err := plan.Parse(in)
			if err != nil {
				return err.Error() + "\n"
			}
			return p.String()
		}
	})
}

func TestParseAllStories(t *testing.T) {
	story(t, "all-*.txtar", func(t *testing.T) func(name, in string) string {
		return func(name, in string) string {
			plans, err := plan.ParseAll(in)
			if err != nil {
				return err.Error() + "\n"
			}
			return plan.FormatAll(plans)
		}
	})
}

func TestParseFlowErrors(t *testing.T) {
	story(t, "flows-*.txtar", func(t *testing.T) func(name, in string) string {
		return func(name, in string) string {
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
		}
	})
}

// Every line of these files is wrong in a way of its own.
func TestParseErrors(t *testing.T) {
	story(t, "errors-*.txtar", func(t *testing.T) func(name, in string) string {
		return func(name, in string) string {
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
		}
	})
}

func TestValidateStories(t *testing.T) {
	story(t, "validate-*.txtar", func(t *testing.T) func(name, in string) string {
		return func(name, in string) string {
			p, err := plan.Parse(in)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := p.Validate(); err != nil {
				return err.Error() + "\n"
			}
			return "valid\n"
		}
	})
}

// Each file of a diff story is the plan after the one before.
func TestDiffStories(t *testing.T) {
	story(t, "diff-*.txtar", func(t *testing.T) func(name, in string) string {
		var previous *plan.Plan
		return func(name, in string) string {
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
		}
	})
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
