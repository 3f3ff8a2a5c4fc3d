package explain

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
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

// What a node answers itself is told apart from what has no backend.
func TestServedByTheNodeItself(t *testing.T) {
	p, err := plan.Parse(`node node1 addresses 172.30.0.2
service default 10.3.0.10 udp 53 from inside sources pods here # Service kube-system/dns
service default 10.3.0.10 udp 53 from outside # Service kube-system/dns
source default pods 10.1.0.0/16
`)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, f := range (Cluster{}).servedBy(p, "Service kube-system/dns").Frontends {
		told = append(told, f.String())
	}
	if got, want := strings.Join(told, "\n"), "10.3.0.10\t53/udp from inside\tthe node itself; for 10.1.0.0/16 alone\n10.3.0.10\t53/udp from outside\trefused"; got != want {
		t.Errorf("it is told as\n%s\nexpected\n%s", got, want)
	}
}
