package explain

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// A node that cannot give its pods the MTU that was asked for says so, and who asks
// does not know of it, as no object has the MTU of the node's network. That is told,
// and puts no answer in doubt: the node does what its plan says.
func TestUnfitMTU(t *testing.T) {
	text, err := os.ReadFile("testdata/openshift.txtar")
	if err != nil {
		t.Fatal(err)
	}
	const network = 1500
	for name, test := range map[string]struct {
		config  int
		cluster uint32
		network int
		want    string
	}{
		"of the ClusterConfig":      {config: 1500, network: network, want: "ClusterConfig default: mtu 1500 is more than node node1 can carry"},
		"of the ClusterNetwork":     {cluster: 1500, network: network, want: "ClusterNetwork default: mtu 1500 is more than node node1 can carry"},
		"too small":                 {cluster: 500, network: network, want: "an mtu of 500 is too small for pods on node node1"},
		"of a network that is less": {network: 600, want: "an mtu of 550 is too small for pods on node node1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := read(t, txtar.Parse(text).Files[0].Data)
			objects := c.Objects.(registry.Snapshot)
			config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: "openshift-subnet", MTU: test.config}}
			objects.Put(api.ClusterConfigKind, config)
			if test.cluster != 0 {
				c.Objects.Get(api.ClusterNetwork, registry.Key{Name: api.DefaultName}).(*networkv1.ClusterNetwork).MTU = &test.cluster
			}
			plug, err := c.Plugin(config.Spec.Plugin)
			if err != nil {
				t.Fatal(err)
			}
			// The agent's own compilation knows the MTU, and goes into its Node.
			_, problems := plug.Compile(plugin.Input{Config: config, Objects: objects,
				Node: plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}, MTU: test.network}})
			var said []api.Problem
			for _, p := range problems {
				said = append(said, Told("node1", p))
			}
			api.SetNodeProblems(c.Objects.Get(api.Node, registry.Key{Name: "node1"}).(*corev1.Node), said)
			a, err := c.Why(Question{Namespace: "default", Source: "web", Destination: "api", Protocol: plan.TCP, Port: 80})
			if err != nil {
				t.Fatal(err)
			}
			if a.Verdict != Allowed {
				t.Errorf("the answer is\n%s", a)
			}
			if n := strings.Count(fmt.Sprint(a.Warnings), test.want); n != 1 {
				t.Errorf("%q is said %d times in %q", test.want, n, a.Warnings)
			}
			if !slices.ContainsFunc(said, func(p api.Problem) bool { return strings.HasPrefix(p.Message, test.want) }) {
				t.Errorf("the agent says %q", said)
			}
		})
	}
}
