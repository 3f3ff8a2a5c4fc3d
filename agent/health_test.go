package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// refusing is a registry that does not let anyone watch.
type refusing struct {
	registry.Registry
	err error
}

func (r refusing) Watch(context.Context, *registry.Kind, registry.Revision) (registry.Watch, error) {
	return nil, r.err
}

// TestARightTakenAwayIsSaid looks at what the agent says when it may follow a
// kind no longer, and when the registry is merely away.
func TestARightTakenAwayIsSaid(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		node bool // whether it is said at the Node, too
	}{
		"a right is missing":   {errors.New("pods is forbidden"), true},
		"the registry is away": {registry.ErrUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				a := &agent{Config: Config{Log: log}, trouble: map[string]string{nodePart: "cannot write Node node1"}, caches: map[*registry.Cache]bool{}}
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					a.follow(ctx, registry.NewCache(refusing{newFlaky(), test.err}, []*registry.Kind{api.Pod}, log))
				})
				synctest.Wait()
				said := strings.Join(a.degraded(), "\n")
				if !strings.Contains(said, "not following pods") || !strings.Contains(said, test.err.Error()) || !strings.Contains(said, "cannot write Node") {
					t.Errorf("/readyz says %q", said)
				}
				state := a.nodeState()
				if strings.Contains(state.OutOfSync, "not following pods") != test.node || strings.Contains(state.OutOfSync, "cannot write Node") {
					t.Errorf("the Node says %q", state.OutOfSync)
				}
				cancel()
				wg.Wait()
				if left := a.outages(false); len(left) != 0 {
					t.Errorf("of what is not followed any more, this is said: %v", left)
				}
			})
		})
	}
}

// withoutKinds is a registry that knows no kinds.
type withoutKinds struct{ registry.Registry }

func (withoutKinds) List(context.Context, *registry.Kind) ([]registry.Object, registry.Revision, error) {
	return nil, "", fmt.Errorf("%w: the CustomResourceDefinition %w", registry.ErrUnavailable, registry.ErrNotInstalled)
}

// TestAKindThatIsNotInstalledIsSaid has the node go on without a kind, once however many follow it:
// it is said at the Node, which is in sync.
func TestAKindThatIsNotInstalledIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		a := &agent{Config: Config{Log: log, Node: "node1"}, trouble: map[string]string{}, caches: map[*registry.Cache]bool{}}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				a.follow(ctx, registry.NewCache(withoutKinds{newFlaky()}, []*registry.Kind{api.AddressPoolKind}, log))
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		undone, found := a.problems()
		if len(undone) > 0 || len(found) != 1 || !strings.Contains(found[0].Message, "as if there were no addresspools") || !strings.Contains(found[0].Message, "not installed") {
			t.Errorf("the Node says that it does not do %v, and found %v", undone, found)
		}
		if said := strings.Join(a.degraded(), "\n"); !strings.Contains(said, "not installed") {
			t.Errorf("/readyz says %q", said)
		}
		cancel()
		wg.Wait()
	})
}

// TestWhatIsWrongWithAnObject has a plan that leaves out what an object says, and
// then one that the data plane cannot wholly do. The first the node does.
func TestWhatIsWrongWithAnObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bogus := plugin.Problem{Kind: api.HostSubnet, Key: registry.Key{Name: "node9"}, Message: "subnet 10.1.2.0/24 overlaps"}
		a := &agent{Config: Config{Log: slog.New(slog.DiscardHandler), Node: "node1"}, trouble: map[string]string{}}
		a.syncer = start(t, &recorder{}, func(*plan.Plan) (plugin.Applied, error) {
			return plugin.Applied{Input: plugin.Input{Config: api.Effective(nil)}, Plan: &plan.Plan{Local: plan.Local{Node: "node1"}}, Problems: []plugin.Problem{bogus}}, nil
		})
		synctest.Wait()
		want := api.Problem{Kind: api.HostSubnet.Kind, Name: "node9", Message: bogus.Message}
		if s := a.nodeState(); s.OutOfSync != "" || !slices.Equal(s.Problems, []api.Problem{want}) {
			t.Errorf("the Node says that it is out of sync, %q, and %v", s.OutOfSync, s.Problems)
		}
		a.syncer.mu.Lock()
		a.syncer.last.Undone = []plugin.Problem{{Message: "no IPv6 here"}}
		a.syncer.mu.Unlock()
		if s := a.nodeState(); s.OutOfSync != "no IPv6 here" || len(s.Problems) != 2 {
			t.Errorf("the Node says that it is out of sync, %q, and %v", s.OutOfSync, s.Problems)
		}
		// Of names its plan says where they are answered, and no more.
		a.syncer.mu.Lock()
		a.syncer.last.Undone = nil
		a.syncer.mu.Unlock()
		a.trouble[namesPart] = "nobody is there to be asked"
		if s := a.nodeState(); s.OutOfSync != "" || !slices.Contains(s.Problems, a.own("name server: nobody is there to be asked")) {
			t.Errorf("the Node says that it is out of sync, %q, and %v", s.OutOfSync, s.Problems)
		}
		delete(a.trouble, namesPart)
		// Others could make the problems of their objects many: this one is not lost.
		a.unready = []string{api.UnreadyFor("flannel") + "it knows no way"}
		many := make([]plugin.Problem, 2*api.MaxNodeProblems)
		for i := range many {
			many[i] = bogus
		}
		a.syncer.mu.Lock()
		a.syncer.last.Undone, a.syncer.last.Problems = nil, many
		a.syncer.mu.Unlock()
		if s := a.nodeState(); s.OutOfSync != "" || s.Problems[0] != a.own("not ready for flannel: it knows no way") {
			t.Errorf("the Node says that it is out of sync, %q, and %v", s.OutOfSync, s.Problems)
		}
	})
}

// The Node tells the MTU of the last plan that the data plane did wholly, and that of
// an earlier agent until there is one.
func TestNodeTellsMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{Config: Config{Log: slog.New(slog.DiscardHandler), Node: "node1"}, trouble: map[string]string{}}
		node := &corev1.Node{}
		tells := func(what, want string) {
			t.Helper()
			a.nodeState().describe(node, metav1.Now())
			if got := node.Annotations[api.MTUAnnotation]; got != want {
				t.Errorf("%s: the Node says %q, not %q", what, got, want)
			}
		}
		tells("before the first round", "")
		plane, mtu := &recorder{}, 1350
		a.syncer = start(t, plane, func(*plan.Plan) (plugin.Applied, error) {
			return plugin.Applied{Input: plugin.Input{Config: api.Effective(nil)}, Plan: &plan.Plan{Local: plan.Local{Node: "node1", MTU: mtu}}}, nil
		})
		synctest.Wait()
		tells("a whole round", "1350")
		plane.set(errors.New("no buffer space"))
		mtu = 1450
		a.syncer.Publish(t.Context())
		tells("a round that fails", "1350")
		plane.set(nil)
		a.syncer.Publish(t.Context())
		tells("one that works", "1450")
		now := a.nodeState()
		other := now
		if other.MTU = 1350; !now.equal(a.nodeState()) || now.equal(other) {
			t.Error("a new MTU would not be written, or always")
		}
		a.syncer = nil
		tells("an agent that starts", "1450")
	})
}
