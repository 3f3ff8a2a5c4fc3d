package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cni"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// TestInterlude has an agent come from one choice of plug-ins to another. Who may think
// that pods lost their network hears nothing of it, unless the next does not come.
func TestInterlude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		networked := func(*plan.Plan) (plugin.Applied, error) {
			pool := plan.Pool{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.0.0/24"), Gateway: netip.MustParseAddr("10.1.0.1")}
			return plugin.Applied{Input: plugin.Input{Config: api.Effective(nil)}, Plan: &plan.Plan{Local: plan.Local{Node: "node1", MTU: 1450, Pools: []plan.Pool{pool}}}}, nil
		}
		a := &agent{Config: Config{Log: slog.New(slog.DiscardHandler), Node: "node1"}, trouble: map[string]string{}, node: &registrar{kick: make(chan struct{}, 1)}}
		is := func(what string, ready, mtu bool) {
			t.Helper()
			if s := a.nodeState(); (s.NotReady == "") != ready || (s.MTU != 0) != mtu {
				t.Errorf("%s: the Node says %q and an MTU of %d", what, s.NotReady, s.MTU)
			}
		}
		a.beginInterlude()
		is("an agent that never worked", false, false)

		run := func() *syncer { return start(t, &recorder{}, networked) }
		a.setRunning(run(), nil, nil)
		synctest.Wait()
		is("one that works", true, true)

		a.beginInterlude()
		a.setRunning(nil, nil, nil)
		a.problem("flannel")("the registry has not been read yet")
		is("no plug-in, for a moment", true, true)
		if err := a.Ready(); !errors.Is(err, cni.ErrChanging) {
			t.Errorf("a new pod is told: %v", err)
		}
		if err := a.Publish(t.Context()); err.Error() != cni.ErrChanging.Error() {
			t.Errorf("a pod on its way is told: %v", err)
		}
		a.problem("flannel")("")
		a.setRunning(run(), nil, nil)
		synctest.Wait()
		a.endInterlude(a.running())
		is("the next one", true, true)
		if err := a.Ready(); err != nil {
			t.Errorf("a new pod is told: %v", err)
		}

		former := a.running()
		a.beginInterlude()
		a.endInterlude(former) // by its last round, which was under way
		a.setRunning(nil, nil, nil)
		is("the one before had a round more", true, true)
		a.setRunning(run(), nil, nil)
		time.Sleep(mostInterlude / 2)
		a.beginInterlude()
		a.endInterlude(a.running())
		a.setRunning(nil, nil, nil)
		is("yet another one, before a round of the next", true, true)
		time.Sleep(mostInterlude / 2)
		is("none that comes in time", false, false)

		a.setRunning(run(), nil, nil)
		synctest.Wait()
		a.beginInterlude()
		a.setRunning(nil, nil, nil)
		a.problem(rivalPart)("another agent has the name")
		if err := a.Ready(); err == nil || errors.Is(err, cni.ErrChanging) {
			t.Errorf("another agent has the node's name, and a new pod is told: %v", err)
		}
	})
}
