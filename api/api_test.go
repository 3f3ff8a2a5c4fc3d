package api_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestGolden reads each *.yaml of testdata/*.txtar and holds what Decode and
// the kinds' rules make of it against the file of that name ending in .out.
func TestGolden(t *testing.T) {
	golden.Answers(t, "testdata/*.txtar", func(_ *testing.T, _, text string) string { return describe([]byte(text)) })
}

func describe(text []byte) string {
	decoded, err := api.Decode(text, api.Kinds)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if len(decoded) == 0 {
		return "no object\n"
	}
	var b strings.Builder
	for _, d := range decoded {
		fmt.Fprintf(&b, "line %d: ", d.Line)
		if _, _, err := d.Kind.Admit(d.Object); err != nil {
			if !errors.Is(err, registry.ErrInvalid) {
				return "wrong error: " + err.Error()
			}
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", d.Kind.Singular, registry.KeyOf(d.Object))
	}
	return b.String()
}

// FuzzDecode: whatever it is given, Decode returns, and what it accepts comes
// out the same after it was written and read once more.
func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, a := range archive.Files {
			f.Add(a.Data)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		decoded, err := api.Decode(text, api.Kinds)
		if err != nil && decoded != nil {
			t.Fatal("something was returned beside an error")
		}
		for _, d := range decoded {
			_, _, _ = d.Kind.Admit(d.Object) // must not panic
			again, err := yaml.Marshal(d.Object)
			if err != nil {
				continue // a quantity or time that JSON cannot hold
			}
			second, err := api.Decode(again, api.Kinds)
			if err != nil || len(second) != 1 {
				t.Fatalf("%s\nbecame\n%s\nand then %v, %v", text, again, second, err)
			}
		}
	})
}

func TestDeepCopySharesNothing(t *testing.T) {
	text := `
apiVersion: weft.network/v1
kind: ClusterConfig
metadata: {name: default, labels: {a: b}}
status:
  conditions: [{type: Known, status: "True", reason: r, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]
  subnets:
    pending: [{subnet: 10.1.0.0/24, node: a, until: "2026-01-01T00:00:00Z"}]
    quarantined: [{subnet: 10.1.1.0/24, node: b, until: "2026-01-01T00:00:00Z"}]
    cursor: {10.1.0.0/16: 10.1.0.0/24}
`
	decoded, err := api.Decode([]byte(text), api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	original := decoded[0].Object.(*api.ClusterConfig)
	copied := original.DeepCopyObject().(*api.ClusterConfig)
	if !reflect.DeepEqual(original, copied) {
		t.Fatalf("copied %+v, want %+v", copied, original)
	}
	copied.Labels["a"] = "changed"
	copied.Status.Conditions[0].Message = "changed"
	copied.Status.Subnets.Pending[0].Until.Time = copied.Status.Subnets.Pending[0].Until.AddDate(1, 0, 0)
	copied.Status.Subnets.Quarantined[0].Node = "changed"
	copied.Status.Subnets.Cursor["10.1.0.0/16"] = "changed"
	unchanged, err := api.Decode([]byte(text), api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(original, unchanged[0].Object) {
		t.Errorf("a change of the copy changed the original: %+v", original)
	}
}
