package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// podAt is an endpoint with addresses, "web 10.1.1.2", of the default network.
func podAt(t *testing.T, text string) plugin.Endpoint {
	name, addresses, _ := strings.Cut(text, " ")
	e := plugin.Endpoint{Interface: "weft" + name, Network: plan.DefaultNetwork, Namespace: "default", Pod: name}
	for _, a := range strings.Fields(addresses) {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		e.Addresses = append(e.Addresses, ip)
	}
	return e
}

// planOf is that of a node with pods and with pools, of which those after "closed" give
// no addresses.
func planOf(pools string, pods ...plugin.Endpoint) *plan.Plan {
	b := plan.NewBuilder(nil)
	b.Local.Node = "node1"
	open, closed, _ := strings.Cut(pools, "closed")
	for _, prefix := range strings.Fields(open) {
		plugin.PutPool(b, netip.MustParsePrefix(prefix), "", "HostSubnet node1")
	}
	for _, prefix := range strings.Fields(closed) {
		plugin.PutPool(b, netip.MustParsePrefix(prefix), "", "HostSubnet node1")
		b.Local.Pools[len(b.Local.Pools)-1].Closed = true
	}
	plugin.PutEndpoints(b, plugin.Node{Name: "node1", Endpoints: pods})
	return b.Build()
}

func TestStrands(t *testing.T) {
	for _, test := range []struct {
		what, before, after string
		pods                []string
		says                string
	}{
		{"the subnet is gone", "10.1.1.0/24", "", []string{"web 10.1.1.2"}, "(default/web 10.1.1.2)"},
		{"both are gone", "10.1.1.0/24 fd01::/64", "", []string{"web 10.1.1.2 fd01::2", "db fd01::3"}, "(default/db fd01::3, default/web 10.1.1.2)"},
		{"the one that pods have left is gone", "10.9.1.0/24 closed 10.1.1.0/24", "", []string{"web 10.1.1.2"}, "(default/web 10.1.1.2)"},
		{"no pod is there", "10.1.1.0/24", "", nil, ""},
		{"a pod has an address of one that was lost before", "10.1.1.0/24", "", []string{"web 10.7.1.2"}, "(default/web 10.7.1.2)"},
		{"it is still there", "10.1.1.0/24", "10.1.1.0/24", []string{"web 10.1.1.2"}, ""},
		{"it gives no addresses any more", "10.1.1.0/24", "closed 10.1.1.0/24", []string{"web 10.1.1.2"}, ""},
		{"it gives no addresses any more, and a pod has one of one that was lost before", "10.1.1.0/24", "closed 10.1.1.0/24", []string{"web 10.7.1.2"}, ""},
		{"there is another", "10.1.1.0/24", "10.1.3.0/24", []string{"web 10.1.1.2"}, ""},
		{"there is another, which gives no addresses", "10.1.1.0/24 closed 10.9.1.0/24", "closed 10.9.1.0/24", []string{"web 10.1.1.2"}, "(default/web 10.1.1.2)"},
		{"there was none", "", "", []string{"web 10.1.1.2"}, ""},
		{"many are there", "10.1.1.0/24", "", []string{"a 10.1.1.2", "b 10.1.1.3", "c 10.1.1.4", "d 10.1.1.5"}, "(default/a 10.1.1.2, default/b 10.1.1.3, default/c 10.1.1.4 and 1 more)"},
	} {
		var pods []plugin.Endpoint
		for _, text := range test.pods {
			pods = append(pods, podAt(t, text))
		}
		before := func() ([]netip.Addr, error) { return gatewaysOf(planOf(test.before, pods...)), nil }
		err := strands(before, planOf(test.after, pods...), pods)
		if said := fmt.Sprint(err); (err == nil) != (test.says == "") || err != nil && !strings.Contains(said, test.says) {
			t.Errorf("%s: %s", test.what, said)
		}
	}
}

// TestWhatTheNodeHasIsAskedWhereItDecides has it not be seen which subnets the node has. A plan
// that may take them from pods is not loaded then; for others nobody asks.
func TestWhatTheNodeHasIsAskedWhereItDecides(t *testing.T) {
	unseen := errors.New("no buffer space")
	asked := func() ([]netip.Addr, error) { return nil, unseen }
	web := podAt(t, "web 10.1.1.2")
	if err := strands(asked, planOf("", web), []plugin.Endpoint{web}); !errors.Is(err, unseen) {
		t.Errorf("of a plan without a subnet: %v", err)
	}
	if err := strands(asked, planOf("10.1.3.0/24", web), []plugin.Endpoint{web}); err != nil {
		t.Errorf("of a plan with a subnet: %v", err)
	}
}

// TestPodsKeepTheirNetwork has a node lose its subnet under its pods. They have what they had
// until the last of them is gone, and a pod that comes meanwhile is told why it cannot. All
// of this is so wherever the agent is killed, or the choice of plug-ins changes.
func TestPodsKeepTheirNetwork(t *testing.T) {
	const steps = 6
	for kills := range 1 << steps {
		synctest.Test(t, func(t *testing.T) { keepTheirNetwork(t, kills) })
	}
}

// keepTheirNetwork kills the agent before each step whose bit is set in kills.
func keepTheirNetwork(t *testing.T, kills int) {
	pods, pools := []plugin.Endpoint{podAt(t, "web 10.1.1.2"), podAt(t, "db 10.1.1.3")}, "10.1.1.0/24"
	compile := func(*plan.Plan) (plugin.Applied, error) {
		return plugin.Applied{Input: plugin.Input{Node: plugin.Node{Name: "node1", Endpoints: pods}}, Plan: planOf(pools, pods...)}, nil
	}
	node := &recorder{}
	var s *syncer
	var wg sync.WaitGroup
	kill := func() {}
	begin := func() {
		kill()
		s = newSyncer(node, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, compile, func(round) {})
		s.gateways = node.gateways
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() { s.Run(ctx) })
		kill = func() { cancel(); wg.Wait() }
	}
	begin()
	defer func() { kill() }()
	step := 0
	check := func(what, said, has string, interfaces ...string) {
		t.Helper()
		if kills>>step&1 == 1 {
			begin()
		}
		step++
		err := s.Publish(t.Context(), interfaces...)
		synctest.Wait()
		if is, _ := node.gateways(); fmt.Sprint(is) != has || (err == nil) != (said == "") || said != "" && !strings.Contains(err.Error(), said) {
			t.Errorf("kills %b: %s: the node has the gateways %v, and it is said: %v", kills, what, is, err)
		}
	}
	check("at first", "", "[10.1.1.1]")
	pools = ""
	check("the subnet is gone", "(default/db 10.1.1.3, default/web 10.1.1.2)", "[10.1.1.1]")
	pods = pods[1:]
	check("one pod is gone", "(default/db 10.1.1.3)", "[10.1.1.1]")
	pods = []plugin.Endpoint{podAt(t, "new 10.1.1.4")}
	check("all are gone, and one comes", "by it node node1 has no subnet", "[10.1.1.1]", "weftnew")
	pods = nil
	check("that is gone again", "", "[]")
	pools = "10.1.1.0/24"
	check("the subnet is back", "", "[10.1.1.1]")
}

// gateways are those of the plan that was applied last, as of a kernel.
func (r *recorder) gateways() ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.applied) == 0 {
		return nil, nil
	}
	return gatewaysOf(r.applied[len(r.applied)-1]), nil
}

// TestWhatAnotherPluginGaveStays has a node use a plug-in that gives it no subnet, as after
// a change that was forced: the one of before keeps its subnet, and gives no addresses.
func TestWhatAnotherPluginGaveStays(t *testing.T) {
	was := gives{"a", netip.MustParsePrefix("10.1.1.0/24")}
	p, _ := plugin.Mix(gives{name: "b"}, was).Compile(plugin.Input{Objects: registry.Snapshot{}, Node: plugin.Node{Name: "node1"}})
	if pool, has := p.PoolOf(plan.DefaultNetwork, netip.MustParseAddr("10.1.1.2")); !has || !pool.Closed {
		t.Errorf("the plan is\n%s", p)
	}
}
