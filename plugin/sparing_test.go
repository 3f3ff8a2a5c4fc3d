package plugin_test

import (
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// counting is a plug-in that reads HostSubnets, and counts how often it compiles.
type counting struct{ times *int }

func (counting) Name() string            { return "counting" }
func (counting) Kinds() []*registry.Kind { return []*registry.Kind{api.HostSubnet} }

func (c counting) Compile(plugin.Input) (*plan.Plan, []plugin.Problem) {
	*c.times++
	return &plan.Plan{}, nil
}

// TestSparing checks that the plug-in compiles when something that it reads changes, and not when
// anything else does.
func TestSparing(t *testing.T) {
	times := 0
	base := counting{&times}
	c := plugin.Sparing(base)
	subnet := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	objects := map[*registry.Kind][]registry.Object{api.HostSubnet: {subnet}, api.NodePodsKind: nil}
	in := plugin.Input{Config: api.Effective(nil), Node: plugin.Node{Name: "n1"}}
	for _, step := range []struct {
		what   string
		change func()
		want   int
	}{
		{"the first time", func() {}, 1},
		{"nothing", func() { in.Config = api.Effective(nil) }, 1},
		{"another kind", func() {
			objects[api.NodePodsKind] = []registry.Object{&api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}}
		}, 1},
		{"an object", func() { objects[api.HostSubnet] = []registry.Object{subnet.DeepCopy()} }, 2},
		{"one more", func() {
			objects[api.HostSubnet] = append(objects[api.HostSubnet], &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
		}, 3},
		{"one less", func() { objects[api.HostSubnet] = objects[api.HostSubnet][:1] }, 4},
		{"the configuration", func() { in.Config.Spec.MTU = 1400 }, 5},
		{"an endpoint", func() {
			in.Node.Endpoints = []plugin.Endpoint{{Interface: "weft1", Network: plan.DefaultNetwork, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.2")}}}
		}, 6},
	} {
		config := *in.Config
		in.Config = &config
		step.change()
		in.Objects = registry.NewSnapshot(objects)
		c.Compile(in)
		if times != step.want {
			t.Errorf("after a change of %s it compiled %d times, not %d", step.what, times, step.want)
		}
	}
}
