package explain

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestServing asks how the Services in each file are served: those that its parts are called by.
func TestServing(t *testing.T) {
	golden.Archives(t, "testdata/serving/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
				continue
			}
			namespace, name, _ := strings.Cut(f.Name, "/")
			said, err := cluster.Serving(registry.Key{Namespace: namespace, Name: name})
			if story[i].Data = []byte("\n" + said.String()); err != nil {
				story[i].Data = []byte("\nerror: " + err.Error() + "\n")
			}
		}
		return story
	})
}
