package plan_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weftnet/weft/plan"
	"golang.org/x/tools/txtar"
)

// stories returns the inputs of all stories.
func stories(f *testing.F) []string {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(paths) == 0 {
		f.Fatalf("no stories (%v)", err)
	}
	var texts []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range txtar.Parse(content).Files {
			texts = append(texts, string(file.Data))
		}
	}
	return texts
}

// What Parse accepts, String writes in a form that Parse reads as the same
// plan; validating and explaining it does not crash.
func FuzzParse(f *testing.F) {
	for _, text := range stories(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := plan.Parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "line ") {
				t.Errorf("no line number: %v", err)
			}
			return
		}
		back, err := plan.Parse(p.String())
		if err != nil {
			t.Fatalf("%v in:\n%s", err, p)
		}
		if d := p.Diff(back); !d.Empty() {
			t.Fatalf("read back, it differs:\n%s", d)
		}
		_ = p.Validate()
		plans := map[string]*plan.Plan{p.Local.Node: p}
		for k, e := range p.Endpoints.All() {
			for _, a := range e.Addresses {
				for r := range p.Routes.All() {
					plan.Explain(plans, plan.Flow{Node: p.Local.Node, Interface: k.Interface, Source: a, Destination: r.Prefix.Addr()})
				}
			}
		}
	})
}

func FuzzParseFlow(f *testing.F) {
	for _, text := range []string{"10.1.1.2 to 10.1.2.2 tcp 80", "fd00::1 to fd00::2", `10.1.1.2 to 10.1.2.2 network "a b" node n interface weft1 enters n`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		flow, err := plan.ParseFlow(text)
		if err != nil {
			return
		}
		back, err := plan.ParseFlow(flow.String())
		if err != nil || back != flow {
			t.Fatalf("%q is %s, and that read back %s (%v)", text, flow, back, err)
		}
	})
}
