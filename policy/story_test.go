package policy

import (
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
)

// A story begins with a world. Each of its other files is a merge patch
// (RFC 7396) of the world as it is then, and what comes out is what each changes.
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/compile-*.txtar", func(t *testing.T, files []txtar.File) []txtar.File {
		known := worldMaker{}
		document := map[string]any{}
		var c Compiler
		var was *plan.Plan
		return golden.Answer(files, func(name, question string) string {
			var patch map[string]any
			if err := yaml.Unmarshal([]byte(question), &patch); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			merge(document, patch)
			text, err := yaml.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			var spec worldSpec
			if err := yaml.UnmarshalStrict(text, &spec); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			is := c.Compile(known.of(spec)).planOf()
			defer func() { was = is }()
			d := was.Diff(is)
			d.Local = false
			if d.Empty() {
				return "nothing changes\n"
			}
			return d.String()
		})
	})
}

func merge(into, patch map[string]any) {
	for k, v := range patch {
		of, nested := v.(map[string]any)
		at, there := into[k].(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case nested && there:
			merge(at, of)
		default:
			into[k] = v
		}
	}
}
