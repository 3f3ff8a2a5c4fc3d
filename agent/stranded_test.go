package agent

import (
	"context"
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
		pods, come          []string
		says                string
	}{
		{"the subnet is gone", "10.1.1.0/24", "", []string{"web 10.1.1.2"}, nil, "pods live on [10.1.1.0/24] (default/web)"},
		{"both are gone", "10.1.1.0/24 fd01::/64", "", []string{"web 10.1.1.2 fd01::2", "db fd01::3"}, nil, "pods live on [10.1.1.0/24 fd01::/64] (default/db, default/web)"},
		{"the one that pods have left is gone", "10.9.1.0/24 closed 10.1.1.0/24", "", []string{"web 10.1.1.2"}, nil, "pods live on [10.1.1.0/24] (default/web)"},
		{"no pod has an address of it", "10.1.1.0/24", "", nil, nil, ""},
		{"a pod has one of another", "10.1.1.0/24", "", []string{"web 10.7.1.2"}, nil, ""},
		{"it is still there", "10.1.1.0/24", "10.1.1.0/24", []string{"web 10.1.1.2"}, nil, ""},
		{"it gives no addresses any more", "10.1.1.0/24", "closed 10.1.1.0/24", []string{"web 10.1.1.2"}, nil, ""},
		{"there is another", "10.1.1.0/24", "10.1.3.0/24", []string{"web 10.1.1.2"}, nil, ""},
		{"there is another, which gives no addresses", "10.1.1.0/24 closed 10.9.1.0/24", "closed 10.9.1.0/24", []string{"web 10.1.1.2"}, nil, "pods live on [10.1.1.0/24] (default/web)"},
		{"the pod comes with it", "10.1.1.0/24", "", nil, []string{"web 10.1.1.2"}, ""},
		{"there was none", "", "", []string{"web 10.1.1.2"}, nil, ""},
	} {
		var pods, all []plugin.Endpoint
		for _, text := range test.pods {
			pods = append(pods, podAt(t, text))
		}
		all = append(all, pods...)
		for _, text := range test.come {
			all = append(all, podAt(t, text))
		}
		err := strands(planOf(test.before, pods...), planOf(test.after, all...), all)
		if said := fmt.Sprint(err); (err == nil) != (test.says == "") || err != nil && !strings.Contains(said, test.says) {
			t.Errorf("%s: %s", test.what, said)
		}
	}
	if err := strands(nil, planOf(""), []plugin.Endpoint{podAt(t, "web 10.1.1.2")}); err != nil {
		t.Errorf("the first plan: %v", err)
	}
}

// TestPodsKeepTheirNetwork has a node lose its subnet under its pods. They have what they had
// until the last of them is gone; a pod that would come meanwhile does not keep that up.
func TestPodsKeepTheirNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods, pools := []plugin.Endpoint{podAt(t, "web 10.1.1.2"), podAt(t, "db 10.1.1.3")}, "10.1.1.0/24"
		compile := func(*plan.Plan) (plugin.Applied, error) {
			return plugin.Applied{Input: plugin.Input{Node: plugin.Node{Name: "node1", Endpoints: pods}}, Plan: planOf(pools, pods...)}, nil
		}
		s := newSyncer(&recorder{}, slog.New(slog.DiscardHandler), time.Minute, newMetrics(), nil, compile, func(round) {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		check := func(what, said string, left int) {
			t.Helper()
			s.Publish(ctx)
			last := s.Last()
			if len(last.Plan.Local.Pools) != left || (last.Err == nil) != (said == "") || said != "" && !strings.Contains(last.Err.Error(), said) {
				t.Errorf("%s: %d pools, and it is said: %v", what, len(last.Plan.Local.Pools), last.Err)
			}
		}
		check("at first", "", 1)
		pools = ""
		check("the subnet is gone", "(default/db, default/web)", 1)
		pods = pods[1:]
		check("one pod is gone", "(default/db)", 1)
		pods = []plugin.Endpoint{podAt(t, "new 10.1.1.4")}
		check("but for one that comes, all are gone", "", 0)
		pools = "10.1.1.0/24"
		check("the subnet is back", "", 1)
	})
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
