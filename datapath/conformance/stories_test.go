package conformance

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// TestStories holds what stories say of their flows against the interpreter, also those
// that no data plane of this tree can play: that their plans are valid, that each flow
// has a sender, and who gets it.
func TestStories(t *testing.T) {
	names, err := fs.Glob(stories, "testdata/*.txtar")
	must(t, err)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			data, err := stories.ReadFile(name)
			must(t, err)
			var plans map[string]*plan.Plan
			for _, part := range txtar.Parse(data).Files {
				switch kind, _, _ := strings.Cut(part.Name, " "); kind {
				case "plans":
					plans, err = plan.ParseAll(string(part.Data))
					must(t, err)
					for node, p := range plans {
						if err := p.Validate(); err != nil {
							t.Errorf("%s: plan of %s: %v", part.Name, node, err)
						}
					}
				case "flows":
					l := onPaper(plans)
					for _, f := range parseFlows(t, plans, string(part.Data)) {
						if l.sender(plans, f) == nil {
							t.Errorf("%s: %s: nobody can send that", part.Name, f)
						}
					}
				}
			}
		})
	}
}

// onPaper is the topology of plans without namespaces.
func onPaper(plans map[string]*plan.Plan) *topology {
	l := &topology{out: &host{name: outsideName}, nodes: map[string]*node{}}
	for name, p := range plans {
		n := &node{host: &host{name: name}, pods: map[string]*pod{}}
		for k, e := range p.Endpoints.All() {
			n.pods[k.Interface] = &pod{host: &host{name: k.Interface}, addresses: e.Addresses}
		}
		l.nodes[name] = n
	}
	return l
}

// TestNetworksStory checks of the story of several networks that it tells what it is
// about: the same two addresses have other senders and receivers in each network, and
// nothing that one network allows ends in the other.
func TestNetworksStory(t *testing.T) {
	for _, name := range []string{"testdata/networks.txtar", "testdata/networks-tags.txtar"} {
		data, err := stories.ReadFile(name)
		must(t, err)
		var plans map[string]*plan.Plan
		allowed, denied := map[string]int{}, map[string]int{}
		for _, part := range txtar.Parse(data).Files {
			switch kind, _, _ := strings.Cut(part.Name, " "); kind {
			case "plans":
				plans, err = plan.ParseAll(string(part.Data))
				must(t, err)
			case "flows":
				for _, f := range parseFlows(t, plans, string(part.Data)) {
					network := f.Network
					if network == "" {
						network = plan.DefaultNetwork
					}
					says := plan.Explain(plans, f)
					if !says.Allowed {
						denied[network]++
						continue
					}
					allowed[network]++
					sender, _ := plans[says.Steps[0].Node].Endpoints.Get(plan.EndpointKey{Interface: onPaper(plans).sender(plans, f).name})
					if sender.Network != "" && sender.Network != network {
						t.Errorf("%s: %s is sent by an endpoint of network %s", name, f, sender.Network)
					}
					if says.Interface == "" {
						continue
					}
					if e, _ := plans[says.Node].Endpoints.Get(plan.EndpointKey{Interface: says.Interface}); e.Network != network {
						t.Errorf("%s: %s ends at %s, which is in network %s", name, f, says.Interface, e.Network)
					}
				}
			}
		}
		if networks := slices.Sorted(maps.Keys(allowed)); !slices.Equal(networks, []string{plan.DefaultNetwork, "red"}) || len(denied) != 2 {
			t.Errorf("%s: allowed are %v and denied %v by network; expected some of each in default and in red", name, allowed, denied)
		}
	}
}

// TestNetworkClusters has random flows of several networks sent by somebody of the network.
func TestNetworkClusters(t *testing.T) {
	sent := map[string]int{}
	for seed := range 20 {
		plans := plantest.Networked().Example(seed)
		l := onPaper(plans)
		for i := range flowsPerCluster {
			f := plantest.Flows(plans).Example(i)
			f.Network = networkOf(plans, f.Source, i+i/4)
			from := l.sender(plans, f)
			if from == nil {
				t.Fatalf("%s: nobody can send that in:\n%s", f, plan.FormatAll(plans))
			}
			for _, p := range plans {
				if e, ok := p.Endpoints.Get(plan.EndpointKey{Interface: from.name}); ok {
					if sent[e.Network]++; e.Network != f.Network {
						t.Fatalf("%s is sent by %s of network %s", f, from.name, e.Network)
					}
				}
			}
		}
	}
	if sent[plan.DefaultNetwork] == 0 || sent[plantest.OtherNetwork] == 0 {
		t.Errorf("endpoints send %v by network; expected some of each", sent)
	}
}

// idle is a data plane that can do everything, and does nothing.
type idle struct{ datapath.DataPlane }

func (idle) Apply(context.Context, *plan.Plan) error  { return nil }
func (idle) Repair(context.Context) ([]string, error) { return nil, nil }
func (idle) Remove(context.Context) error             { return nil }
func (idle) Close() error                             { return nil }
func (idle) Name() string                             { return "idle" }
func (idle) Capabilities() (able datapath.Capabilities) {
	return datapath.Capabilities{OverlappingNetworks: true}
}

// TestNetworksTopology makes the nodes and pods of several networks with the same
// addresses, and sends what stays with its sender.
func TestNetworksTopology(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	data, err := stories.ReadFile("testdata/networks.txtar")
	must(t, err)
	l := newTopology(t, func(Namespace) (datapath.DataPlane, error) { return idle{}, nil })
	for _, part := range txtar.Parse(data).Files {
		if !strings.HasPrefix(part.Name, "plans") {
			continue
		}
		plans, err := plan.ParseAll(string(part.Data))
		must(t, err)
		l.load(plans)
		var own []plan.Flow
		for name, p := range plans {
			for k, e := range p.Endpoints.All() {
				if l.nodes[name].pods[k.Interface] == nil {
					t.Errorf("%s: there is no pod %s", part.Name, k.Interface)
				}
				own = append(own, plan.Flow{Network: e.Network, Source: e.Addresses[0], Destination: e.Addresses[0], Protocol: plan.UDP, Port: 8080})
			}
		}
		l.try(t, plans, own)
	}
}
