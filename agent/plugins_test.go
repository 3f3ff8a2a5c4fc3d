package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/registry"
)

// gives is a plug-in that gives the node a subnet; none where that is the zero value.
type gives struct {
	name   string
	subnet netip.Prefix
}

func (g gives) Name() string            { return g.name }
func (g gives) Kinds() []*registry.Kind { return nil }

func (g gives) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	b := plan.NewBuilder(nil)
	plugin.PutNode(b, in.Node)
	if g.subnet.IsValid() {
		plugin.PutPool(b, g.subnet, "", g.name)
	}
	return b.Build(), nil
}

// tells is a plug-in with a layer whose nodes must tell each other something.
type tells struct {
	gives
	told *bool
}

func (p tells) Base() plugin.Plugin                    { return p.gives }
func (tells) Adds() string                             { return "telling" }
func (p tells) On(plugin.Plugin, string) plugin.Plugin { return p }
func (p tells) Standby() plugin.Layer                  { return p }
func (p tells) Announced(plugin.Input) bool            { return *p.told }

// TestReadyOnceAnnounced has a node get ready for a plug-in that is loading once others
// know of its pods; of one that comes later they need not know before it says so.
func TestReadyOnceAnnounced(t *testing.T) {
	config := &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, LoadingPlugins: []string{"b"}}}
	told := false
	all := []plugin.Plugin{gives{"a", netip.MustParsePrefix("10.1.1.0/24")}, tells{gives{"b", netip.MustParsePrefix("10.2.1.0/24")}, &told}}
	in := plugin.Input{Config: config, Objects: registry.Snapshot{}, Node: plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}}
	made, _ := plugin.Mix(all[0], all[1:]...).Compile(in)
	m := mixedOf(choiceOf(config, "node1"), all)
	is := func(want bool) {
		t.Helper()
		if r, _ := m.report(in, choiceOf(in.Config, "node1"), made, nil); !r.IsReady("a") || r.IsReady("b") != want {
			t.Errorf("others know: %v; the node says %+v", told, r)
		}
	}
	is(false)
	told = true
	is(true)
	told = false
	is(true)

	config = config.DeepCopyObject().(*api.ClusterConfig)
	config.Status.LoadingPlugins = nil
	in.Config = config
	if r, _ := m.report(in, choiceOf(in.Config, "node1"), made, nil); r != nil {
		t.Errorf("of what is not loading any more it says %+v", r)
	}
	m = mixedOf(choiceOf(config, "node1"), all)
	is(true)
}

// leads is a plug-in whose nodes reach another's subnet by a tunnel on a port.
type leads struct {
	gives
	port uint16
	to   netip.Prefix
}

func (l leads) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	b := plan.NewBuilder(nil)
	plugin.PutNode(b, in.Node)
	plugin.PutPool(b, l.subnet, l.name, l.name)
	own, other := in.Node.Addresses[0], netip.MustParseAddr("172.30.0.12")
	b.Local.Tunnels = []plan.Tunnel{{Name: l.name, VTEP: own, MAC: plan.MACOf(own), Port: l.port}}
	b.PutNetwork(plan.NetworkKey{Name: plan.DefaultNetwork, Tunnel: l.name}, plan.Network{Origin: l.name})
	b.PutPeer(plan.PeerKey{Name: "node2"}, plan.Peer{Addresses: []netip.Addr{other}, Ends: []plan.TunnelEnd{{Tunnel: l.name, VTEP: other, MAC: plan.MACOf(other)}}})
	b.PutRoute(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: l.to}, plan.Route{Way: plan.ToTunnel, Peers: []string{"node2"}, Origin: l.name})
	return b.Build(), nil
}

// TestReadyForWhatThePlanHas has a node compile two plug-ins, and the data plane do what is
// left of both: the node is ready for one of which all that leads to other nodes is there.
func TestReadyForWhatThePlanHas(t *testing.T) {
	config := &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}}}
	in := plugin.Input{Config: config, Objects: registry.Snapshot{}, Node: plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}}
	for _, test := range []struct {
		name     string
		portOfB  uint16
		subnetOf string // what b leads to
		leftOut  string // what the data plane cannot do
		want     []string
	}{
		{"nothing is in the way", 8472, "10.2.2.0/24", "", []string{"a", "b"}},
		{"another node has one subnet by both", 8472, "10.1.2.0/24", "", []string{"a", "b"}},
		{"their tunnels are one", 4789, "10.2.2.0/24", "", []string{"a"}},
		{"their tunnels are one, as are another node's subnets", 4789, "10.1.2.0/24", "", []string{"a"}},
		{"the data plane cannot do a route", 8472, "10.2.2.0/24", "10.2.2.0/24", []string{"a"}},
		{"the data plane cannot do one of the plug-in in use", 8472, "10.2.2.0/24", "10.1.2.0/24", []string{"b"}},
	} {
		all := []plugin.Plugin{
			leads{gives{"a", netip.MustParsePrefix("10.1.1.0/24")}, 4789, netip.MustParsePrefix("10.1.2.0/24")},
			leads{gives{"b", netip.MustParsePrefix("10.2.1.0/24")}, test.portOfB, netip.MustParsePrefix(test.subnetOf)}}
		made, _ := plugin.Mix(all[0], all[1:]...).Compile(in)
		if test.leftOut != "" {
			less := *made
			less.Routes = less.Routes.Delete(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix(test.leftOut)})
			made = &less
		}
		if r, _ := mixedOf(choiceOf(config, "node1"), all).report(in, choiceOf(config, "node1"), made, nil); !slices.Equal(r.Ready, test.want) {
			t.Errorf("%s: the node is ready for %v, and not %v", test.name, r.Ready, test.want)
		}
	}
}

// TestNotReadyForWantOfAWay has a node know no way to others under a plug-in, as these do not
// say what they must: it names them, a few at most, until it knows them.
func TestNotReadyForWantOfAWay(t *testing.T) {
	config := &api.ClusterConfig{Status: api.ClusterConfigStatus{Plugin: "openshift-subnet", Plugins: []string{"openshift-subnet", "flannel"}, PluginRevision: 2}}
	hosts := map[string]registry.Object{}
	nodes := map[string]*corev1.Node{}
	for i := range 7 {
		name, ip, subnet := fmt.Sprintf("node%d", i), fmt.Sprintf("172.30.0.1%d", i), fmt.Sprintf("10.1.%d.0/24", i)
		hosts[name] = &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: ip, Subnet: subnet}
		cidr := fmt.Sprintf("10.5.%d.0/24", i)
		nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/public-ip": ip,
			"flannel.alpha.coreos.com/backend-type": "vxlan", "flannel.alpha.coreos.com/backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"%s"}`, plan.MACOf(netip.MustParseAddr(ip)))}},
			Spec:   corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}}}
	}
	network := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Network: "10.1.0.0/16", HostSubnetLength: 8,
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/16", HostSubnetLength: 8}}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: flannel.ConfigMap.Only.Namespace, Name: flannel.ConfigMap.Only.Name},
		Data: map[string]string{flannel.NetConf: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`}}
	sorted := func(of map[string]registry.Object) []registry.Object {
		var all []registry.Object
		for _, name := range slices.Sorted(maps.Keys(of)) {
			all = append(all, of[name])
		}
		return all
	}
	all := []plugin.Plugin{openshift.Subnet{}, flannel.Kubernetes{}}
	m := mixedOf(choiceOf(config, "node0"), all)
	for _, test := range []struct {
		silent string
		want   []string
	}{
		{"", nil},
		{"3", []string{"not ready for flannel: it knows no way yet to the pods of node3 under it; if that does not pass, see what their agents say, and delete Nodes that are gone"}},
		{"654321", []string{"not ready for flannel: it knows no way yet to the pods of node1, node2, node3 and others under it; if that does not pass, see what their agents say, and delete Nodes that are gone"}},
		{"", nil},
	} {
		said := map[string]registry.Object{}
		for name, n := range nodes {
			n := n.DeepCopy()
			if strings.Contains(test.silent, strings.TrimPrefix(name, "node")) {
				delete(n.Annotations, "flannel.alpha.coreos.com/backend-type")
			}
			said[name] = n
		}
		in := plugin.Input{Config: config, Node: plugin.Node{Name: "node0", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.10")}, MTU: 1500},
			Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.ClusterNetwork: {network}, flannel.ConfigMap: {settings}, api.HostSubnet: sorted(hosts), api.Node: sorted(said)})}
		made, _ := plugin.Mix(all[0], all[1:]...).Compile(in)
		r, unready := m.report(in, choiceOf(config, "node0"), made, nil)
		if !slices.Equal(unready, test.want) || !r.IsReady("openshift-subnet") || r.IsReady("flannel") != (test.want == nil) {
			t.Errorf("where nodes %q do not say how they are reached, the node is ready for %v, and says %q", test.silent, r.Ready, unready)
		}
	}
}

// TestReport has a node whose pods have addresses of some plug-ins, of which the first is
// used, say what it does of which. The others may have lost their subnets.
func TestReport(t *testing.T) {
	subnets := map[string]netip.Prefix{"a": netip.MustParsePrefix("10.1.1.0/24"), "b": netip.MustParsePrefix("10.2.1.0/24"), "c": netip.MustParsePrefix("10.3.1.0/24")}
	for _, test := range []struct {
		// without are the plug-ins of the mix that give no subnet.
		name, mix, without string
		held               string
		want               api.PluginReport
	}{
		{"one, before it gives a subnet", "a", "a", "", api.PluginReport{}},
		{"one that has lost its subnet", "a", "a", "10.1.1.2", api.PluginReport{Needs: []string{"a"}}},
		{"one", "a", "", "10.1.1.2", api.PluginReport{Uses: "a", Ready: []string{"a"}}},
		{"pods of the one in use", "ab", "", "10.1.1.2", api.PluginReport{Uses: "a", Ready: []string{"a", "b"}}},
		{"pods of another", "ab", "", "10.1.1.2 10.2.1.2", api.PluginReport{Uses: "a", Ready: []string{"a", "b"}, Needs: []string{"b"}}},
		{"pods of nobody", "ab", "", "10.9.9.2", api.PluginReport{Uses: "a", Ready: []string{"a", "b"}}},
		{"another without a subnet", "ab", "b", "10.1.1.2", api.PluginReport{Uses: "a", Ready: []string{"a"}}},
		{"another without the subnet that its pods have", "ab", "b", "10.1.1.2 10.2.1.2", api.PluginReport{Uses: "a", Ready: []string{"a"}, Needs: []string{"b"}}},
		{"two without subnets", "abc", "bc", "10.2.1.2", api.PluginReport{Uses: "a", Ready: []string{"a"}, Needs: []string{"b", "c"}}},
		{"one of two without a subnet, and not the one of the pods", "abc", "b", "10.3.1.2", api.PluginReport{Uses: "a", Ready: []string{"a", "c"}, Needs: []string{"c"}}},
		{"none has a subnet", "ab", "ab", "10.1.1.2", api.PluginReport{Needs: []string{"a", "b"}}},
		{"the one in use has lost its subnet, and pods have it", "ab", "a", "10.1.1.2", api.PluginReport{Ready: []string{"b"}, Needs: []string{"a"}}},
		{"the one in use has lost its subnet, and no pod has it", "ab", "a", "10.2.1.2", api.PluginReport{Ready: []string{"b"}, Needs: []string{"b"}}},
	} {
		config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: "a"},
			Status: api.ClusterConfigStatus{Plugin: "a", Plugins: strings.Split(test.mix, ""), PluginRevision: 7}}
		var all []plugin.Plugin
		for _, name := range config.Status.Plugins {
			g := gives{name, subnets[name]}
			if strings.Contains(test.without, name) {
				g.subnet = netip.Prefix{}
			}
			all = append(all, g)
		}
		m := mixedOf(choiceOf(config, "node1"), all)
		var held []plan.Address
		for _, a := range strings.Fields(test.held) {
			held = append(held, plan.Address{Network: plan.DefaultNetwork, IP: netip.MustParseAddr(a)})
		}
		in := plugin.Input{Config: config, Objects: registry.Snapshot{}, Node: plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.11")}}}
		made, _ := plugin.Mix(all[0], all[1:]...).Compile(in)
		test.want.Revision = 7
		if got, _ := m.report(in, choiceOf(in.Config, "node1"), made, held); got == nil || got.Text() != test.want.Text() {
			t.Errorf("%s: the node says %+v, not %+v", test.name, got, test.want)
		}
		other := *config
		other.Status.LoadingPlugins = config.Status.Plugins
		in.Config = &other
		if got, _ := m.report(in, choiceOf(in.Config, "node1"), made, held); got != nil {
			t.Errorf("%s: of another choice it says %+v", test.name, got)
		}
	}
}

// TestLastStatus has the status of the ClusterConfig be lost: the node goes by the last
// one that it heard, or by what it said before its agent started.
func TestLastStatus(t *testing.T) {
	written := func(status api.ClusterConfigStatus) *api.ClusterConfig {
		return &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: "b", PluginNodes: []string{"node1"}}, Status: status}
	}
	lost := api.ClusterConfigStatus{}
	preparing := api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, LoadingPlugins: []string{"b"}, PluginRevision: 7}
	prepared := api.ClusterConfigStatus{Plugin: "a", Plugins: []string{"a", "b"}, PreparedPlugin: "b", PluginNodes: []string{"node1"}, PluginRevision: 8}
	var l lastStatus
	is := func(what string, c *api.ClusterConfig, want plugin.Choice, revision int64) {
		t.Helper()
		c = l.heard(c)
		if got := choiceOf(c, "node1"); !got.Equal(want) || c.Status.PluginRevision != revision {
			t.Errorf("%s: the node runs %+v of revision %d, and not %+v of %d", what, got, c.Status.PluginRevision, want, revision)
		}
	}
	is("no status yet", written(lost), plugin.Choice{Used: "b", Mix: []string{"b"}}, 0)
	l.reported(&api.PluginReport{})
	is("no plug-in in use yet", written(lost), plugin.Choice{Used: "b", Mix: []string{"b"}}, 0)
	l.reported(nil)
	without := lastStatus{}
	without.reported(&api.PluginReport{Revision: 5, Ready: []string{"b"}, Needs: []string{"a"}})
	if c := choiceOf(without.heard(written(lost)), "node1"); c.Used != "a" || !slices.Equal(c.Mix, []string{"a", "b"}) {
		t.Errorf("a node whose plug-in had no subnet, and whose pods need it, runs %+v", c)
	}
	l.reported(&api.PluginReport{Revision: 5, Uses: "a", Ready: []string{"b", "a"}, Needs: []string{"c"}})
	is("what it said before", written(lost), plugin.Choice{Used: "a", Mix: []string{"a", "b", "c"}}, 5)
	is("what it said before, and no plug-in asked for", &api.ClusterConfig{}, plugin.Choice{Used: "a", Mix: []string{"a", "b", "c"}}, 5)
	is("a status", written(preparing), plugin.Choice{Used: "a", Mix: []string{"a", "b"}, Loading: []string{"b"}}, 7)
	is("it is lost", written(lost), plugin.Choice{Used: "a", Mix: []string{"a", "b"}, Loading: []string{"b"}}, 7)
	l.reported(&api.PluginReport{Revision: 7, Uses: "a", Ready: []string{"a"}})
	is("what it says then", written(lost), plugin.Choice{Used: "a", Mix: []string{"a", "b"}, Loading: []string{"b"}}, 7)
	is("the next status", written(prepared), plugin.Choice{Used: "b", Mix: []string{"a", "b"}}, 8)
	is("it is lost as well", written(lost), plugin.Choice{Used: "b", Mix: []string{"a", "b"}}, 8)
}
