package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

func TestNodeStateIsWrittenOnce(t *testing.T) {
	early := metav1.NewTime(time.Unix(1000, 0))
	late := metav1.NewTime(time.Unix(2000, 0))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	state := nodeState{Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("fd30::11")}}

	if !state.describe(node, early) {
		t.Fatal("the first description changed nothing")
	}
	want := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}, {Type: corev1.NodeInternalIP, Address: "fd30::11"},
		{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeHostName, Address: "node1"}}
	if len(node.Status.Addresses) != len(want) {
		t.Fatalf("addresses are %v, want %v", node.Status.Addresses, want)
	}
	for i := range want {
		if node.Status.Addresses[i] != want[i] {
			t.Errorf("address %d is %v, want %v", i, node.Status.Addresses[i], want[i])
		}
	}
	if state.describe(node, late) {
		t.Error("the same description changed something: agents would write for ever")
	}
	if len(node.Status.Conditions) != 3 || node.Status.Conditions[0].Type != corev1.NodeReady {
		t.Errorf("conditions of others were not kept: %v", node.Status.Conditions)
	}

	state.NotReady = "the node has no subnet yet"
	if !state.describe(node, late) {
		t.Fatal("a change of readiness changed nothing")
	}
	c := node.Status.Conditions[1]
	if c.Type != corev1.NodeNetworkUnavailable || c.Status != corev1.ConditionTrue || c.Message != state.NotReady || !c.LastTransitionTime.Equal(&late) {
		t.Errorf("condition is %v", c)
	}
	state.NotReady = "something else"
	later := metav1.NewTime(time.Unix(3000, 0))
	state.describe(node, later)
	if c := node.Status.Conditions[1]; c.Message != "something else" || !c.LastTransitionTime.Equal(&late) {
		t.Errorf("a new reason for the same status is no transition: %v", c)
	}
}

func addresses(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// TestWhatEarlierAgentsWrote has a Node say what an agent of an earlier version wrote
// where a user asks for a data plane now.
func TestWhatEarlierAgentsWrote(t *testing.T) {
	for text, stays := range map[string]bool{`{"IPv6":true}`: false, "ovs": true} {
		node := &corev1.Node{}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, api.DataPlaneAnnotation, text)
		state := nodeState{Capabilities: `{"IPv6":false}`, DataPlane: api.DataPlaneReport{Uses: "linux"}.Text()}
		state.describe(node, metav1.Now())
		if got, there := node.Annotations[api.DataPlaneAnnotation]; there != stays || there && got != text {
			t.Errorf("of %q there is %q", text, got)
		}
		if node.Annotations[api.CapabilitiesAnnotation] != state.Capabilities || node.Annotations[api.DataPlaneReportAnnotation] != state.DataPlane {
			t.Errorf("the Node says %v", node.Annotations)
		}
		if state.describe(node, metav1.Now()) {
			t.Error("there is always something to write")
		}
	}
}

// TestFirstWord has an agent that has loaded nothing yet say so: by that it is told from
// those of earlier versions. What one said before it is not taken back.
func TestFirstWord(t *testing.T) {
	node := &corev1.Node{}
	if api.KnowsNoStages(node) {
		t.Error("a Node without an agent has one of an earlier version")
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: api.NodeInSync, Status: corev1.ConditionTrue}}
	if !api.KnowsNoStages(node) {
		t.Error("an agent that says nothing of plug-ins is not of an earlier version")
	}
	nodeState{}.describe(node, metav1.Now())
	if r, err := api.NodePlugins(node); err != nil || r == nil || r.Revision != 0 || r.Uses != "" || len(r.Ready)+len(r.Needs) > 0 || api.KnowsNoStages(node) {
		t.Errorf("its first word is %+v, %v", r, err)
	}
	says := api.PluginReport{Revision: 7, Uses: "flannel"}.Text()
	nodeState{Plugins: says}.describe(node, metav1.Now())
	nodeState{}.describe(node, metav1.Now())
	if got := node.Annotations[api.PluginsAnnotation]; got != says {
		t.Errorf("the next agent says %s", got)
	}
}

// argument is a Node of an agent, and another who writes a condition there that is the agent's.
type argument struct {
	t   *testing.T
	reg *flaky
	// mtu is what the agent has to say besides, announces for which address it answers, and said what it says of the
	// argument.
	mtu, announces atomic.Int64
	said           atomic.Value
	kick           func()
}

// haveArgument runs do beside an agent that keeps its Node.
func haveArgument(t *testing.T, do func(*argument)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		a := &argument{t: t, reg: newFlaky()}
		r := &registrar{registry: a.reg, name: "node1", register: true, kick: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
			leased: func() bool { return true }, problem: func(string) {},
			state: func() nodeState {
				return nodeState{Addresses: addresses("172.30.0.11"), MTU: int(a.mtu.Load()), Announces: fmt.Sprint("192.0.2.", a.announces.Load())}
			},
			contested: func(message string) { a.said.Store(message) }}
		a.kick = r.Kick
		wg.Go(func() { r.Run(ctx) })
		do(a)
	})
}

// news gives the agent something else to say.
func (a *argument) news() {
	a.mtu.Add(1)
	a.kick()
	synctest.Wait()
}

// read returns the Node.
func (a *argument) read() *corev1.Node {
	a.t.Helper()
	synctest.Wait()
	o, err := a.reg.Registry.Get(a.t.Context(), api.Node, registry.Key{Name: "node1"})
	if err != nil {
		a.t.Fatal(err)
	}
	return o.(*corev1.Node)
}

// change has the node answer for another address each time, for a while, and returns how often the Node was written.
func (a *argument) change(d, every time.Duration) (writes int) {
	before := a.read().ResourceVersion
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
		a.announces.Add(1)
		a.kick()
		if now := a.read().ResourceVersion; now != before {
			writes, before = writes+1, now
		}
	}
	return writes
}

// isWritten reports whether the Node says for which address the node answers.
func (a *argument) isWritten() bool {
	return a.read().Annotations[api.AnnouncesAnnotation] == fmt.Sprint("192.0.2.", a.announces.Load())
}

// write has the other write the condition, and reports whether the agent's was there.
func (a *argument) write() bool {
	a.t.Helper()
	synctest.Wait()
	o, err := a.reg.Registry.Get(a.t.Context(), api.Node, registry.Key{Name: "node1"})
	if err != nil {
		a.t.Fatal(err)
	}
	node := o.(*corev1.Node)
	if !setCondition(node, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"}, metav1.Now()) {
		return false
	}
	if _, err := a.reg.Registry.Update(a.t.Context(), api.Node, node); err != nil {
		a.t.Fatal(err)
	}
	synctest.Wait()
	return true
}

// says is what the agent says of the argument.
func (a *argument) says() string {
	synctest.Wait()
	said, _ := a.said.Load().(string)
	return said
}

// argue has the other write for a while as soon as the agent has, and returns how often.
func (a *argument) argue(d time.Duration) (answers int) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if a.write() {
			answers++
		}
	}
	return answers
}

// isOver sees that nothing is said of an argument, and that the agent answers at once.
func (a *argument) isOver() {
	a.t.Helper()
	if said := a.says(); said != "" {
		a.t.Errorf("long after the argument it says %q", said)
	}
	if !a.write() {
		a.t.Error("after the argument the agent's condition is not there")
	}
	time.Sleep(amendEvery)
	if !a.write() {
		a.t.Error("what was written once is not answered within a second any more")
	}
}

// TestAnotherWritesTheSameCondition has somebody write a condition that is the agent's as
// soon as the agent has written it. The agent answers ever less often, and says what is
// written. Once that ends, it says so no more, and answers at once again.
func TestAnotherWritesTheSameCondition(t *testing.T) {
	haveArgument(t, func(a *argument) {
		if n := a.argue(amendEvery + 500*time.Millisecond); n != 2 || a.says() != "" {
			t.Errorf("the agent wrote %d times at first, want its first word and one answer; it says %q", n, a.says())
		}
		if n := a.argue(time.Hour); n < 60 || n > 66 {
			t.Errorf("the agent answered %d times in an hour of argument, want once in %s in the end", n, recheckEvery)
		}
		if !strings.Contains(a.says(), "(condition NetworkUnavailable: False, RouteCreated)") {
			t.Errorf("of the argument it says %q", a.says())
		}
		time.Sleep(3 * recheckEvery)
		a.isOver()
	})
}

// TestNewsOfTheLink has the addresses for which a node answers change all the time. It writes so at once, once in a second
// at most for a while, and then ever less often. Other news is written at once, and an answer to others in its time.
func TestNewsOfTheLink(t *testing.T) {
	haveArgument(t, func(a *argument) {
		a.read()
		time.Sleep(10 * time.Minute)
		if n := a.change(amendEvery, amendEvery); n != 1 || !a.isWritten() {
			t.Errorf("the first change is written %d times", n)
		}
		if n := a.change(time.Minute, 100*time.Millisecond); n < newsBurst || n > newsBurst+int(time.Minute/newsEvery)+1 {
			t.Errorf("in a minute of changes it is written %d times", n)
		}
		if n := a.change(time.Hour, 100*time.Millisecond); n > int(time.Hour/newsEvery+time.Hour/recheckEvery) {
			t.Errorf("in an hour of changes it is written %d times", n)
		}
		a.news()
		if got := a.read().Annotations[api.MTUAnnotation]; got != fmt.Sprint(a.mtu.Load()) {
			t.Errorf("amid changes other news is not written at once: MTU %s", got)
		}
		a.change(amendEvery, 100*time.Millisecond)
		if a.isWritten() || !a.write() {
			t.Error("amid changes the agent writes all of them, or others have written over its own")
		}
		time.Sleep(2 * amendEvery)
		if !a.write() {
			t.Error("amid changes others are not answered")
		}
		a.change(amendEvery, 100*time.Millisecond)
		if time.Sleep(newsEvery); !a.isWritten() {
			t.Error("the last change is not written")
		}
		time.Sleep(10 * time.Minute)
		if n := a.change(amendEvery, amendEvery); n != 1 || !a.isWritten() {
			t.Errorf("long after that a change is written %d times", n)
		}
	})
}

// TestAnArgumentAmidNews has an agent whose Node others write have news of its own all the
// time. It says that others write there for as long as they do, and no longer, and what it
// writes itself is none of that.
func TestAnArgumentAmidNews(t *testing.T) {
	for _, every := range []time.Duration{time.Second, 20 * time.Second, 50 * time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			haveArgument(t, func(a *argument) {
				for range int(10 * time.Minute / every) {
					time.Sleep(every)
					if a.news(); a.says() != "" {
						t.Fatalf("nobody else writes, and it says %q", a.says())
					}
				}
				for range int(10 * time.Minute / every) {
					a.argue(every)
					a.news()
				}
				if !strings.Contains(a.says(), "(condition NetworkUnavailable: False, RouteCreated)") {
					t.Errorf("of the argument it says %q", a.says())
				}
				for range int(2*recheckEvery/every) + 1 {
					time.Sleep(every)
					a.news()
				}
				a.isOver()
			})
		})
	}
}
