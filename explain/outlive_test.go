package explain

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
)

// changingCluster is one that changes from openshift-subnet to flannel, as plugin/change has it.
type changingCluster map[*registry.Kind][]registry.Object

func newChangingCluster(flannelConfig string) changingCluster {
	config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: "flannel"},
		Status: api.ClusterConfigStatus{Plugin: "flannel", PreparedPlugin: "flannel", PreviousPlugin: "openshift-subnet", Plugins: []string{"flannel", "openshift-subnet"}, PluginRevision: 2}}
	return changingCluster{
		api.ClusterConfigKind: {config},
		api.ClusterNetwork: {&networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
			ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/10", HostSubnetLength: 8}}}},
		flannel.ConfigKind: {&flannel.Config{ObjectMeta: metav1.ObjectMeta{Name: flannel.ConfigName}, Spec: json.RawMessage(flannelConfig)}},
	}
}

const vxlan = `{"Network":"10.64.0.0/10","SubnetLen":24,"Backend":{"Type":"vxlan"}}`

// address is that of the i-th node, and subnet the one that it may have from a range.
func address(i int) string { return fmt.Sprintf("172.30.%d.%d", i/250, i%250+1) }
func subnet(first, i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(first + i/256), byte(i), 0}), 24)
}

// put adds the i-th node, which uses a plug-in.
func (c changingCluster) put(i int, uses string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%05d", i),
		Annotations: map[string]string{api.PluginsAnnotation: api.PluginReport{Revision: 2, Uses: uses, Ready: []string{uses}}.Text()}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address(i)}}
	c[api.Node] = append(c[api.Node], node)
	return node
}

// putHostSubnet gives the i-th node a subnet of openshift-subnet, putLease one of flannel, and
// putPodCIDR one of flannel as Kubernetes gives it.
func (c changingCluster) putHostSubnet(i int) netip.Prefix {
	p, name := subnet(128, i), fmt.Sprintf("node%05d", i)
	c[api.HostSubnet] = append(c[api.HostSubnet], &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: address(i), Subnet: p.String()})
	return p
}

func (c changingCluster) putLease(i int) netip.Prefix {
	p := subnet(64, i)
	c[flannel.LeaseKind] = append(c[flannel.LeaseKind], &flannel.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-24", p.Addr())}, Expires: true,
		Spec: json.RawMessage(fmt.Sprintf(`{"PublicIP":%q,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":%q}}`, address(i), plan.MACOf(netip.MustParseAddr(address(i)))))})
	return p
}

func putPodCIDR(node *corev1.Node, i int) netip.Prefix {
	p := subnet(64, i)
	node.Spec.PodCIDRs = []string{p.String()}
	for name, value := range map[string]string{"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": address(i),
		"backend-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, plan.MACOf(netip.MustParseAddr(address(i))))} {
		node.Annotations["flannel.alpha.coreos.com/"+name] = value
	}
	return p
}

// putPod adds a pod of a node.
func (c changingCluster) putPod(node *corev1.Node, a netip.Addr) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("pod%d", len(c[api.Pod]))}, Spec: corev1.PodSpec{NodeName: node.Name}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: a.String()}}
	c[api.Pod] = append(c[api.Pod], pod)
}

// TestOldPodsAreThoseOfEachNodesPlans has nodes with and without subnets of either plug-in, of
// which others may not know: of each the old pods are those that its own plans tell.
func TestOldPodsAreThoseOfEachNodesPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		podCIDRs := rapid.Bool().Draw(t, "flannel in the form with podCIDRs")
		find := plugins.Finder(func(k *registry.Kind) bool { return !podCIDRs || k.Layout == nil })
		objects := newChangingCluster(rapid.SampledFrom([]string{vxlan, vxlan, "{}"}).Draw(t, "configuration of flannel"))
		for i := range 4 {
			uses := rapid.SampledFrom([]string{"flannel", "openshift-subnet"}).Draw(t, "it uses")
			node := objects.put(i, uses)
			from := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), subnet(64, (i+1)%4), subnet(128, (i+1)%4), subnet(64, i), subnet(128, i)}
			if rapid.Bool().Draw(t, "it has a HostSubnet") {
				objects.putHostSubnet(i)
			}
			if rapid.Bool().Draw(t, "it has a lease") {
				if podCIDRs {
					putPodCIDR(node, i)
				} else {
					objects.putLease(i)
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "an address that others cannot use") == 0 {
				node.Status.Addresses[0].Address = fmt.Sprintf("fd00::%d", i+1)
			}
			for range rapid.IntRange(0, 3).Draw(t, "pods") {
				objects.putPod(node, rapid.SampledFrom(from).Draw(t, "from").Addr().Next().Next())
			}
		}
		c := Cluster{Objects: registry.NewSnapshot(objects), Plugin: find}
		if got, want := c.OldPods(), oldPodsByPlans(t, c); !cmp.Equal(got, want) {
			t.Fatalf("they are %v, and by the plans %v", got, want)
		}
	})
}

// oldPodsByPlans is OldPods by the plans of each node.
func oldPodsByPlans(t *rapid.T, c Cluster) map[string]OldPods {
	var all []plugin.Plugin
	for _, name := range []string{"flannel", "openshift-subnet"} {
		p, err := c.Plugin(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	old := make(map[string]OldPods)
	for node := range registry.Each[*corev1.Node](c.Objects, api.Node) {
		report, err := api.NodePlugins(node)
		if err != nil {
			t.Fatal(err)
		}
		addresses := api.NodeAddresses(node)
		parts := plugin.Parts(all...)(plugin.Input{Config: Config(c.Objects, c.Plugin), Objects: c.Objects,
			Node: plugin.Node{Name: node.Name, Addresses: addresses, Prefixes: onLink(node, addresses)}})
		var names []string
		for _, e := range c.endpoints()[node.Name] {
			if outlives(parts, report.Uses, plan.Address{Network: e.Network, IP: e.Addresses[0]}) {
				names = append(names, e.Name())
			}
		}
		slices.Sort(names)
		old[node.Name] = OldPods{Names: names}
	}
	return old
}

// looks are objects that count how many of them were looked at.
type looks struct {
	registry.Objects
	n int
}

func (l *looks) All(k *registry.Kind) iter.Seq[registry.Object] {
	return func(yield func(registry.Object) bool) {
		for o := range l.Objects.All(k) {
			if l.n++; !yield(o) {
				return
			}
		}
	}
}

// TestOldPodsOfManyNodes asks for the old pods of all nodes, as weft plugin status does: what
// that costs for each must not grow with their number.
func TestOldPodsOfManyNodes(t *testing.T) {
	count := func(nodes int) int {
		objects := newChangingCluster(vxlan)
		for i := range nodes {
			node := objects.put(i, "flannel")
			objects.putPod(node, objects.putHostSubnet(i).Addr().Next().Next())
			if i%2 == 0 { // the others have none yet
				objects.putLease(i)
			}
		}
		l := &looks{Objects: registry.NewSnapshot(objects)}
		old := Cluster{Objects: l, Plugin: plugins.Get}.OldPods()
		for name, o := range old {
			if len(o.Names) != 1 || o.Unknown != "" {
				t.Fatalf("of %s they are %+v", name, o)
			}
		}
		if len(old) != nodes {
			t.Fatalf("of %d nodes they are said of %d", nodes, len(old))
		}
		return l.n
	}
	if few, many := count(50), count(400); many > 9*few {
		t.Errorf("of 50 nodes it looks at %d objects, and of 400 at %d", few, many)
	}
}
