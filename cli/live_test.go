package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/daemon"
	"github.com/weftnet/weft/explain"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
	"github.com/weftnet/weft/trace"
)

// looking makes an agent that tells first, then atSend once the probe is sent there,
// and then atEnd once it is asked to end, after which it has ended; it has died
// where an event is the zero one.
func looking(node string, first, atSend, atEnd []trace.Event, end error) func() askedAgent {
	return func() askedAgent {
		in, out := io.Pipe()
		told := make(chan struct{})
		close(told)
		// tell has it tell events, once it has told all that it was to tell before.
		tell := func(events ...trace.Event) {
			before, now := told, make(chan struct{})
			told = now
			go func() {
				<-before
				defer close(now)
				for _, e := range events {
					if e.Kind == "" {
						out.CloseWithError(io.ErrUnexpectedEOF)
						return
					}
					if json.NewEncoder(out).Encode(e); e.Kind == trace.Ended {
						out.Close()
					}
				}
			}()
		}
		return askedAgent{node: node, trace: func(ctx context.Context, w trace.Watch) (io.ReadCloser, error) {
			context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
			tell(append([]trace.Event{{Kind: trace.Watching, Source: w.Source, SourcePort: 4711}}, first...)...)
			return in, nil
		}, send: func(context.Context, string) error {
			tell(atSend...)
			return nil
		}, end: func(context.Context, string) error {
			if end == nil {
				tell(append(slices.Clone(atEnd), trace.Event{Kind: trace.Ended})...)
			}
			return end
		}}
	}
}

// frozen makes an agent that takes requests and answers none from a step on:
// "look", "send" or "end".
func frozen(step string, agent func() askedAgent) func() askedAgent {
	return func() askedAgent {
		a := agent()
		hang := func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		switch step {
		case "look":
			a.trace = func(ctx context.Context, _ trace.Watch) (io.ReadCloser, error) { return nil, hang(ctx, "") }
			fallthrough
		case "send":
			a.send = hang
			fallthrough
		case "end":
			a.end = hang
		}
		return a
	}
}

// TestProbe has agents look for a probe that do not tell all, and wants what is
// missing not to be taken for what did not happen.
func TestProbe(t *testing.T) {
	flow := plan.Flow{Source: netip.MustParseAddr("10.1.1.2"), Destination: netip.MustParseAddr("10.1.2.2"), Protocol: plan.TCP, Port: 80}
	a := explain.Answer{Source: explain.Party{Name: "pod default/a", Node: "node1", Address: flow.Source},
		Destination: explain.Party{Name: "pod default/c", Node: "node2", Address: flow.Destination},
		Protocol:    flow.Protocol, Port: flow.Port,
		Explanation: plan.Explanation{Allowed: true, Reason: "delivered to default/c on node2", Node: "node2", Interface: "default/c",
			SeenSource: flow.Source, SeenDestination: flow.Destination, Steps: []plan.Step{{Node: "node1"}, {Node: "node2"}}}}
	watch := trace.Watch{ID: "0123abcd", Source: flow.Source, Destination: flow.Destination, Protocol: flow.Protocol, Port: flow.Port, For: probeTime}
	sender := watch
	sender.Pod = "default/a"

	left := trace.Event{Kind: trace.Seen, Device: "weft-vxlan", Out: true}
	silence := trace.Event{Kind: trace.Answered, Answer: trace.Silence, Text: "nothing came back"}
	delivered := trace.Event{Kind: trace.Seen, Device: "weft-c", Endpoint: "default/c", Out: true}
	died := trace.Event{}
	type events = []trace.Event
	sends := looking("node1", nil, events{left, silence}, nil, nil)
	for name, test := range map[string]struct {
		agents []func() askedAgent
		want   string
	}{
		"all told":             {[]func() askedAgent{sends, looking("node2", events{delivered}, nil, nil, nil)}, "agree"},
		"told at the end":      {[]func() askedAgent{looking("node1", nil, events{silence}, events{left}, nil), looking("node2", nil, nil, events{delivered}, nil)}, "agree"},
		"nothing came":         {[]func() askedAgent{sends, looking("node2", nil, nil, nil, nil)}, "lost between node1 and node2"},
		"died":                 {[]func() askedAgent{sends, looking("node2", events{died}, nil, nil, nil)}, "not known"},
		"died at the end":      {[]func() askedAgent{sends, looking("node2", nil, nil, events{died}, nil)}, "not known"},
		"cannot be ended":      {[]func() askedAgent{sends, looking("node2", nil, nil, nil, errors.New("404 Not Found"))}, "not known"},
		"missed something":     {[]func() askedAgent{sends, looking("node2", events{{Kind: trace.Failed, Text: "lost"}}, nil, nil, nil)}, "not known"},
		"not there":            {[]func() askedAgent{sends}, "not known"},
		"sender missed":        {[]func() askedAgent{looking("node1", events{{Kind: trace.Failed, Text: "lost"}}, events{silence}, nil, nil), looking("node2", nil, nil, nil, nil)}, "not known"},
		"sender died":          {[]func() askedAgent{looking("node1", nil, events{died}, nil, nil), looking("node2", nil, nil, nil, nil)}, "error: node node1, which sends: its answer ended before"},
		"frozen":               {[]func() askedAgent{sends, frozen("look", looking("node2", nil, nil, nil, nil))}, "not known"},
		"frozen is named":      {[]func() askedAgent{sends, frozen("look", looking("node2", nil, nil, nil, nil))}, "warning: node node2: it has not answered in 5s"},
		"frozen at the end":    {[]func() askedAgent{sends, frozen("end", looking("node2", nil, nil, nil, nil))}, "warning: node node2: it has not answered in 5s"},
		"sender died then":     {[]func() askedAgent{looking("node1", nil, events{left, died}, nil, nil), looking("node2", nil, nil, nil, nil)}, "error: node node1, which sends: its answer ended before"},
		"sender frozen":        {[]func() askedAgent{frozen("look", sends), looking("node2", nil, nil, nil, nil)}, "error: node node1, which sends: it has not answered in 5s"},
		"frozen at sending":    {[]func() askedAgent{frozen("send", sends), looking("node2", nil, nil, nil, nil)}, "error: node node1, which sends: it has not answered in 5s"},
		"cannot be sent":       {[]func() askedAgent{looking("node1", nil, events{{Kind: trace.Unsent, Text: "no buffers"}}, nil, nil)}, "live: not sent: no buffers"},
		"sender does not tell": {[]func() askedAgent{looking("node1", nil, nil, nil, nil)}, "error: node node1, which sends: it has not told in 5s what came back"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var agents []askedAgent
				for _, begin := range test.agents {
					agents = append(agents, begin())
				}
				begun := time.Now()
				report, err := probe(t.Context(), agents, a, sender, watch)
				if took := time.Since(begun); took > probeTime { // the clock is synctest's
					t.Errorf("it took %s, more than %s", took, probeTime)
				}
				text := report.String()
				if err != nil {
					text = "error: " + err.Error()
				}
				if err == nil && !report.Agree && test.want != "agree" && len(report.Blind) > 0 && !report.Open {
					t.Errorf("something is missing, and it is not said to be open:\n%s", text)
				}
				if !strings.Contains(text, test.want) || strings.Contains(text, "agree") != (test.want == "agree") {
					t.Errorf("it is said, without %q:\n%s", test.want, text)
				}
			})
		})
	}
}

// TestInterrupted ends the asking while an agent does not answer: no node is to
// blame for that.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { interrupt(errors.New("terminated")) })
		silent := frozen("look", looking("node2", nil, nil, nil, nil))()
		a := explain.Answer{Source: explain.Party{Node: "node1"}, Destination: explain.Party{Node: "node2"}}
		_, err := probe(ctx, []askedAgent{looking("node1", nil, nil, nil, nil)(), silent}, a, trace.Watch{}, trace.Watch{})
		if err == nil || err.Error() != "terminated" {
			t.Errorf("the error is %v", err)
		}
	})
}

// hanging is a registry that answers some lists, each after a while, and then none.
type hanging struct {
	daemon.Registry
	answers int
	after   time.Duration
}

func (h *hanging) List(ctx context.Context, k *registry.Kind) ([]registry.Object, registry.Revision, error) {
	wait := time.NewTimer(h.after)
	if h.answers--; h.answers < 0 {
		wait.Stop()
	}
	select {
	case <-ctx.Done():
		return nil, "", ctx.Err()
	case <-wait.C:
		return h.Registry.List(ctx, k)
	}
}

// pinged is a registry in memory as commands want it.
type pinged struct{ registry.Registry }

func (pinged) Ping(context.Context) error { return nil }
func (pinged) Close() error               { return nil }

// TestHangingRegistry has the registry hang before and after the probe: it is not
// waited for longer than is said, and what the kernels did is told all the same.
func TestHangingRegistry(t *testing.T) {
	const many = 1000
	question := explain.Question{Namespace: "default", Source: "node1", Destination: "node2", Protocol: plan.TCP, Port: 80}
	lost := []func() askedAgent{
		looking("node1", nil, []trace.Event{{Kind: trace.Answered, Answer: trace.Silence, Text: "nothing came back"}}, nil, nil),
		looking("node2", nil, nil, nil, nil)}
	// A first run counts the lists of one answer.
	counted := &hanging{answers: many}
	for name, test := range map[string]struct {
		answers func() int
		after   time.Duration
		want    string
	}{
		"answers":          {func() int { return many }, 0, "interpreter and kernel differ"},
		"hangs at first":   {func() int { return 0 }, 0, "error: the registry has not told in 15s all"},
		"is slow":          {func() int { return many }, readTime - time.Second, "error: the registry has not told in 15s all"},
		"hangs afterwards": {func() int { return many - counted.answers }, 0, "the registry has not told in 15s all"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := pinged{memory.New()}
				decoded, err := api.Decode([]byte(twoNodes), kinds())
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range decoded {
					if _, err := reg.Create(t.Context(), d.Kind, d.Object); err != nil {
						t.Fatal(err)
					}
				}
				counted.Registry, counted.answers = reg, many
				if _, err := askWhy(t.Context(), counted, question); err != nil {
					t.Fatal(err)
				}
				l := live{question,
					func(context.Context) (daemon.Registry, error) {
						return &hanging{reg, test.answers(), test.after}, nil
					},
					func(context.Context, registry.Registry) ([]askedAgent, error) {
						return []askedAgent{lost[0](), lost[1]()}, nil
					}}
				begun := time.Now()
				_, report, err := l.run(t.Context())
				if took := time.Since(begun); took > mostLive { // the clock is synctest's
					t.Errorf("it took %s, more than %s", took, mostLive)
				}
				text := report.String()
				if err != nil {
					text = "error: " + err.Error()
				}
				if !strings.Contains(text, test.want) || err == nil && !strings.Contains(text, "nothing came back") {
					t.Errorf("it is said, without %q:\n%s", test.want, text)
				}
			})
		})
	}
}

const twoNodes = `
apiVersion: v1
kind: Node
metadata: {name: node1}
status:
  addresses: [{type: InternalIP, address: 172.30.0.11}]
  conditions: [{type: NetworkUnavailable, status: "False"}, {type: weft.network/InSync, status: "True"}]
---
apiVersion: v1
kind: Node
metadata: {name: node2}
status:
  addresses: [{type: InternalIP, address: 172.30.0.12}]
  conditions: [{type: NetworkUnavailable, status: "False"}, {type: weft.network/InSync, status: "True"}]
`

// TestExitCodeOfLive ends with what became of the packet: what came to somebody else than
// whom it was sent to has not arrived.
func TestExitCodeOfLive(t *testing.T) {
	for name, test := range map[string]struct {
		report trace.Report
		want   int
	}{
		"arrived":            {trace.Report{Arrived: true, Agree: true}, 0},
		"lost the answer":    {trace.Report{Arrived: true, Lost: "lost on node1"}, 1},
		"did not arrive":     {trace.Report{Difference: "delivered to node2 itself"}, 1},
		"was lost sight of":  {trace.Report{Open: true}, exitFailed},
		"seems to have come": {trace.Report{Open: true, Arrived: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var exit exitError
			err := showLive(io.Discard, explain.Answer{}, test.report, "", false)
			if errors.As(err, &exit); exit.code != test.want || err != nil && exit.code == 0 {
				t.Errorf("it ends with %d (%v), not %d", exit.code, err, test.want)
			}
		})
	}
}
