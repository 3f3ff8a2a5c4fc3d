package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestTables prints the objects of each *.yaml of testdata/tables.txtar, which
// are of one kind, as get does and as get -o wide does.
func TestTables(t *testing.T) {
	golden.Answers(t, "testdata/tables.txtar", func(t *testing.T, _, text string) string {
		decoded, err := api.Decode([]byte(text), kinds())
		if err != nil {
			t.Fatal(err)
		}
		var objects []registry.Object
		for _, d := range decoded {
			objects = append(objects, d.Object)
		}
		var out strings.Builder
		for _, wide := range []bool{false, true} {
			if err := printTable(&out, decoded[0].Kind, objects, wide, decoded[0].Kind.Namespaced, time.Unix(0, 0)); err != nil {
				t.Fatal(err)
			}
		}
		return out.String()
	})
}

func TestShortNamesAreThoseOfKinds(t *testing.T) {
	for short, plural := range shortNames {
		k, err := kindNamed(strings.ToUpper(short))
		if err != nil || k.Plural != plural {
			t.Errorf("%s is %v, %v; want %s", short, k, err, plural)
		}
	}
}
