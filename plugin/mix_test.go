package plugin

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

// TestMerge shows what becomes of the plans that several plug-ins make for a node: each
// file of testdata has the one of the plug-in that is used, then those of others, and the
// plan of all with what is wrong.
func TestMerge(t *testing.T) {
	golden.Archives(t, "testdata/merge-*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		var plans []*plan.Plan
		var out []txtar.File
		for _, f := range files {
			if !strings.HasPrefix(f.Name, "plan") {
				continue
			}
			p, err := plan.Parse(string(f.Data))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Validate(); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			plans, out = append(plans, p), append(out, f)
		}
		merged, problems := merge(nil, plans)
		if err := merged.Validate(); err != nil {
			t.Errorf("the plan of all is invalid: %v", err)
		}
		if again, _ := merge(merged, plans); !again.Equal(merged) {
			t.Error("another plan comes of the same, made from the one before")
		}
		var said strings.Builder
		for _, p := range problems {
			said.WriteString(p.String() + "\n")
		}
		return append(out, txtar.File{Name: "all", Data: []byte(merged.String())}, txtar.File{Name: "problems", Data: []byte(said.String())})
	})
}
