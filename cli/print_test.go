package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// What a node reported whose agent has gone is not shown as what is so.
func TestReportsOfLostAgents(t *testing.T) {
	var reports []registry.Object
	for _, name := range []string{"node1", "node2"} {
		reports = append(reports, &api.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Enforced: map[string]string{"networkpolicies": "7"}})
	}
	forgetLost(reports, map[string]string{api.NodeLease("node1"): "one"})
	var text strings.Builder
	if err := printTable(&text, api.NodeReportKind, reports, false, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text.String(), "\n")
	if !strings.Contains(lines[0], "PROBLEM") || strings.Contains(lines[1], "its agent") || !strings.Contains(lines[2], "its agent does not run; this is what it said last") {
		t.Errorf("it is\n%s", text.String())
	}
}

// Nor is what such a node's Node says of itself, which may be that all is well.
func TestNodesOfLostAgents(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Message: "pods can be networked"},
		{Type: api.NodeInSync, Status: corev1.ConditionTrue, Message: "the data plane holds the plan"},
	}
	forgetLost([]registry.Object{node}, nil)
	var text strings.Builder
	if err := printTable(&text, api.Node, []registry.Object{node}, true, false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if line := strings.Split(text.String(), "\n")[1]; !strings.Contains(line, "Unknown") || !strings.Contains(line, "not ready: its agent does not run ") || strings.Contains(line, "plan") {
		t.Errorf("it is\n%s", text.String())
	}
}

// All commands that have formats of what they say have the same, and get those of objects besides.
func TestFormats(t *testing.T) {
	found := make(map[string][]string)
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		if complete, has := cmd.GetFlagCompletionFunc("output"); has {
			found[cmd.CommandPath()], _ = complete(cmd, nil, "")
		}
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(newRoot())
	if len(found) < 8 {
		t.Errorf("there are but %v", found)
	}
	for command, formats := range found {
		want := []string{"json", "yaml"}
		if command == "weft get" {
			want = []string{"json", "yaml", "wide", "name"}
		}
		if !slices.Equal(formats, want) {
			t.Errorf("%s has %v, and not %v", command, formats, want)
		}
	}
}

// Warnings are read by people: a line each that says what happens, to what and why, and once.
// The same of several kinds of objects is the same.
func TestWarnings(t *testing.T) {
	var text strings.Builder
	log := warningsTo(&text)
	log.Info("following the registry again", "kind", "nodes")
	for _, kind := range []string{"nodes", "clusterconfigs"} {
		log.Warn("cannot follow the registry, going on with what is known", "kind", kind, "error", errors.New("connection\nrefused"))
	}
	log.With("error", "it is late").Error("cannot write")
	for _, key := range []string{"/weft/a", "/weft/b", "/weft/a"} {
		log.Warn("skipped a key that is no name", "kind", "nodes", "key", key)
		log.With("key", key).Warn("skipped", "error", "it is no JSON")
	}
	for _, warning := range []string{"a is deprecated", "b is unknown"} {
		log.Warn("the API server warns", "resource", "pods", "text", warning)
		log.Warn("the API server warns", "resource", "", "text", warning)
	}
	if want := `warning: cannot follow the registry, going on with what is known: connection; refused
warning: cannot write: it is late
warning: skipped a key that is no name (key /weft/a)
warning: skipped (key /weft/a): it is no JSON
warning: skipped a key that is no name (key /weft/b)
warning: skipped (key /weft/b): it is no JSON
warning: the API server warns (resource pods): a is deprecated
warning: the API server warns: a is deprecated
warning: the API server warns (resource pods): b is unknown
warning: the API server warns: b is unknown
`; text.String() != want {
		t.Errorf("it is said\n%s", text.String())
	}
}
