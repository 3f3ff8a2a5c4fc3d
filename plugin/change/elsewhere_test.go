package change_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// TestElsewhere says what plug-ins give besides one. The first line of a question is a
// comment with the name of that one, and then come the objects. With "on Kubernetes" at its
// end, plug-ins are in the form that they have there.
func TestElsewhere(t *testing.T) {
	kinds := slices.Clone(api.Kinds)
	for _, k := range plugins.Kinds() {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	golden.Answers(t, "testdata/elsewhere.txtar", func(t *testing.T, _, text string) string {
		first, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		base, there := strings.CutSuffix(first, " on Kubernetes")
		decoded, err := api.Decode([]byte(text), kinds)
		if err != nil {
			t.Fatal(err)
		}
		r := memory.New()
		for _, d := range decoded {
			if _, err := r.Create(t.Context(), d.Kind, d.Object); err != nil {
				t.Fatal(err)
			}
		}
		all, err := change.Elsewhere(t.Context(), r, base, plugins.Finder(func(k *registry.Kind) bool { return !there || k.Layout == nil }))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for p, holder := range all.Holdings {
			lines = append(lines, fmt.Sprintf("%s is %s's\n", p, holder))
		}
		slices.Sort(lines)
		for _, p := range all.Ranges {
			lines = append(lines, fmt.Sprintf("gives from: %s\n", p))
		}
		for _, p := range all.Foreign {
			lines = append(lines, fmt.Sprintf("foreign: %s\n", p))
		}
		if len(lines) == 0 {
			return "nothing\n"
		}
		return strings.Join(lines, "")
	})
}
