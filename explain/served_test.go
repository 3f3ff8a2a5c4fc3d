package explain

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service/counts"
)

// TestCounted has nodes tell what they counted of the Service shop/web: each
// part that is called by a node is what that told, or, behind "error: ", why it told nothing. The last
// part is what is said then.
func TestCounted(t *testing.T) {
	golden.Archives(t, "testdata/counted/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		cluster := read(t, story[0].Data)
		serving, err := cluster.Serving(registry.Key{Namespace: "shop", Name: "web"}, "")
		if err != nil {
			t.Fatal(err)
		}
		last := len(story) - 1
		for _, f := range story[1:last] {
			if problem, fails := strings.CutPrefix(strings.TrimSpace(string(f.Data)), "error: "); fails {
				serving.NotCounted(f.Name, problem)
				continue
			}
			var report counts.Report
			if err := json.Unmarshal(f.Data, &report); err != nil {
				t.Fatal(err)
			}
			serving.Count(f.Name, report)
		}
		story[last].Data = []byte("\n" + serving.String())
		return story
	})
}
