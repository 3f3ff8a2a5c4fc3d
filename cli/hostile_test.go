package cli

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/drops"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/trace"
)

// hostile is what somebody may say who has got hold of an agent: it clears the
// screen, goes to another column and begins a line that looks like Weft's.
const hostile = "\x1b[2J\u009b2J\u202e\tcolumn\nallowed: by the plans"

// TestHostileAgent has every text form show what an agent says: it is one line there,
// and nothing in it reaches the terminal but text.
func TestHostileAgent(t *testing.T) {
	objects := registry.Snapshot{}
	decoded, err := api.Decode([]byte(twoNodes), kinds())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range decoded {
		node := d.Object.(*corev1.Node)
		api.SetNodeProblems(node, []api.Problem{{Message: hostile}, {Kind: hostile, Name: hostile, Message: hostile, Remedy: hostile}})
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].Status = corev1.ConditionFalse
		}
		objects.Put(api.Node, node)
	}
	cluster := explain.Cluster{Objects: objects, Plugin: plugins.Finder(func(*registry.Kind) bool { return true })}
	answer, err := cluster.Why(explain.Question{Namespace: "default", Source: "node1", Destination: "node2", Protocol: plan.TCP, Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Warnings) == 0 || len(answer.Doubts) == 0 {
		t.Fatalf("the answer is %+v", answer)
	}
	answer.Doubt(hostile)
	status := statusOf(cluster, map[string]string{api.ControllerLease: hostile})
	report := &api.NodeReport{Problems: []api.PolicyProblem{{Kind: "NetworkPolicy", Namespace: hostile, Name: hostile, Message: hostile}}}
	report.Name = "node1"
	// A problem of each text that an agent's answer has.
	blind := map[string]string{"node2": hostile}
	events := []trace.Event{
		{Node: "node1", Kind: trace.Seen, Out: true, Device: hostile, Endpoint: hostile},
		{Node: "node1", Kind: trace.Decided, Verdict: "drop", Family: hostile, Table: hostile, Chain: hostile, Hook: hostile},
		{Node: "node1", Kind: trace.Answered, Answer: trace.Silence, Text: hostile},
	}
	dropped := drops.Report{
		Counts:  []drops.Count{{Packets: 1, Direction: plan.Direction(hostile), Rule: hostile}},
		Recent:  []drops.Record{{Node: hostile, Source: drops.End{Pod: hostile}, Protocol: hostile, Rule: hostile}, {Reason: datapath.Reason(hostile), From: hostile}},
		Missing: []drops.Missing{{Node: "node1", Problem: hostile}},
	}
	serving := explain.Serving{
		Service: hostile,
		On: []explain.ServingNodes{{
			Nodes:     []string{hostile},
			Frontends: []explain.ServedFrontend{{Set: hostile, Otherwise: "refused"}},
			Sets:      []explain.ServedSet{{Name: hostile, Backends: []explain.ServedBackend{{Who: hostile, Node: hostile, Weight: 1}}}},
		}},
		Announced: []explain.Announced{{Nodes: []string{hostile}}},
		Uncounted: []explain.Uncounted{{Node: hostile, Problem: hostile}},
		Problems:  []string{hostile},
	}
	text := func(s fmt.Stringer) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s.String()); return err }
	}
	for form, print := range map[string]func(io.Writer) error{
		"status":      status.print,
		"status json": func(w io.Writer) error { return printValue(w, "json", status) },
		"status yaml": func(w io.Writer) error { return printValue(w, "yaml", status) },
		"why":         text(answer),
		"why verbose": func(w io.Writer) error { _, err := io.WriteString(w, answer.Verbose()); return err },
		"policy status": func(w io.Writer) error {
			return printPolicyStates(w, []policyState{{Name: hostile, Problems: []string{hostile}, Pending: []string{hostile}}}, "")
		},
		"policy try": func(w io.Writer) error { return trial{Warnings: []string{hostile}}.print(w, w) },
		"reports": func(w io.Writer) error {
			return printTable(w, api.NodeReportKind, []registry.Object{report}, true, false, time.Now())
		},
		"reports json": func(w io.Writer) error { return printJSON(w, []registry.Object{report}, true) },
		"live":         text(trace.Compare(plan.Explanation{}, trace.Owner{}, events, blind)),
		"live blind":   text(trace.Compare(plan.Explanation{}, trace.Owner{}, nil, map[string]string{hostile: hostile})),
		"service":      text(serving),
		"drops":        func(w io.Writer) error { return dropped.Print(w, time.UTC, drops.All) },
		"drops follow": func(w io.Writer) error { return dropped.Recent[0].Print(w, time.UTC) },
	} {
		t.Run(form, func(t *testing.T) {
			var out strings.Builder
			if err := print(&out); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "allowed: by the plans") {
				t.Errorf("what the agent says is not shown:\n%q", out.String())
			}
			for l := range strings.Lines(out.String()) {
				if strings.ContainsAny(l, "\x1b\t\u009b\u202e") || strings.HasPrefix(l, "allowed") {
					t.Errorf("the terminal gets %q", l)
				}
			}
		})
	}
}
