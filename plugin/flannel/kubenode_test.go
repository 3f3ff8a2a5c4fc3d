package flannel

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

func newKubernetesNode(t *testing.T, r *memory.Registry, name string, addresses ...string) *testNode {
	n := newNode(t, r, name, addresses[0])
	n.runner = Kubernetes{}
	for _, a := range addresses[1:] {
		n.node.Addresses = append(n.node.Addresses, netip.MustParseAddr(a))
	}
	return n
}

func createObject(t *testing.T, r registry.Registry, k *registry.Kind, o registry.Object) {
	t.Helper()
	if _, err := r.Create(t.Context(), k, o); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// alter changes a Node as an administrator or kube-controller-manager does.
func alter(t *testing.T, r registry.Registry, name string, f func(*corev1.Node)) {
	t.Helper()
	if _, err := registry.Modify(t.Context(), r, api.Node, registry.Key{Name: name}, func(n *corev1.Node) error { f(n); return nil }); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func annotationsOf(t *testing.T, r registry.Registry, name string) map[string]string {
	t.Helper()
	o, err := r.Get(t.Context(), api.Node, registry.Key{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return o.GetAnnotations()
}

// checkAnnotations compares a Node's annotations with what is wanted, given as
// a name without flannel's prefix and a value, by turns.
func checkAnnotations(t *testing.T, r registry.Registry, name string, others map[string]string, pairs ...string) {
	t.Helper()
	want := maps.Clone(others)
	if want == nil {
		want = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		want[annotationPrefix+pairs[i]] = pairs[i+1]
	}
	if got := annotationsOf(t, r, name); !maps.Equal(got, want) {
		t.Errorf("Node %s has the annotations\n%v, want\n%v", name, got, want)
	}
}

const weftData = `{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:01"}`

// A node without a podCIDR waits, and says how it is reached when it has one.
func TestPodCIDRComesLater(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		n := newKubernetesNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		n.says("there is no Node node1 yet")
		node := coreNode("node1", "172.30.0.1")
		node.Annotations = map[string]string{"example.com/rack": "7"}
		createObject(t, r, api.Node, node)
		n.says("has no podCIDR: kube-controller-manager must run with --allocate-node-cidrs")
		rack := map[string]string{"example.com/rack": "7"}
		checkAnnotations(t, r, "node1", rack)

		alter(t, r, "node1", func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.1.0/24", []string{"10.244.1.0/24"} })
		n.says("")
		told := []string{"kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", weftData, "public-ip", "172.30.0.1"}
		checkAnnotations(t, r, "node1", rack, told...)
		checkSubnetFile(t, n, "FLANNEL_NETWORK=10.244.1.0/24\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n")

		// What is true is not written again; what others spoil is put right,
		// also when it happens while nobody looks.
		version := func() string {
			o, _ := r.Get(t.Context(), api.Node, registry.Key{Name: "node1"})
			return o.GetResourceVersion()
		}
		before := version()
		time.Sleep(3 * lookAgain)
		synctest.Wait()
		if version() != before {
			t.Error("the Node was written though nothing had changed")
		}
		spoil := func(n *corev1.Node) {
			n.Annotations[backendDataAnnotation] = "elephant"
			delete(n.Annotations, publicIPAnnotation)
			n.Annotations[publicIPv6Annotation] = "fd00::1"
		}
		alter(t, r, "node1", spoil)
		checkAnnotations(t, r, "node1", rack, told...)
		n.stop()
		alter(t, r, "node1", spoil)
		n.start()
		checkAnnotations(t, r, "node1", rack, told...)
	})
}

func checkSubnetFile(t *testing.T, n *testNode, want string) {
	t.Helper()
	if got, err := os.ReadFile(n.subnetFile()); err != nil || string(got) != want {
		t.Errorf("the subnet file has %q, want %q; %v", got, want, err)
	}
}

// The ConfigMap of flannel's manifest comes, changes, goes wrong and goes.
func TestConfigMapComesAndGoes(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		node := coreNode("node1", "172.30.0.1", "fd00:30::1")
		node.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
		createObject(t, r, api.Node, node)
		n := newKubernetesNode(t, r, "node1", "172.30.0.1", "fd00:30::1")
		n.start()
		defer func() { n.stop() }()
		defaults := []string{"kube-subnet-manager", "true", "backend-type", "vxlan", "backend-data", weftData, "public-ip", "172.30.0.1",
			"backend-v6-data", `{"VNI":1,"VtepMAC":"0e:8d:0c:af:40:1b"}`, "public-ipv6", "fd00:30::1"}
		checkAnnotations(t, r, "node1", nil, defaults...)

		createObject(t, r, ConfigMap, configMap(map[string]string{NetConf: `{ "Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"} }`}))
		n.says("")
		hostGW := []string{"kube-subnet-manager", "true", "backend-type", "host-gw", "backend-data", "null", "public-ip", "172.30.0.1"}
		kept := map[string]string{configAnnotation: `{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`}
		checkAnnotations(t, r, "node1", kept, hostGW...)
		checkSubnetFile(t, n, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n")

		setNetConf := func(value string) {
			t.Helper()
			_, err := registry.Modify(t.Context(), r, ConfigMap, ConfigMap.Only, func(m *corev1.ConfigMap) error {
				m.Data[NetConf] = value
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		setNetConf("elephant")
		n.says("")
		checkAnnotations(t, r, "node1", kept, hostGW...)
		if err := r.Delete(t.Context(), ConfigMap, ConfigMap.Only, ""); err != nil {
			t.Fatal(err)
		}
		n.stop()
		n.start()
		n.says("")
		checkAnnotations(t, r, "node1", kept, hostGW...)

		alter(t, r, "node1", func(n *corev1.Node) { delete(n.Annotations, configAnnotation) })
		checkAnnotations(t, r, "node1", nil, defaults...)
	})
}

// A node that sees its Node as it was does not write it a second time, and does
// not undo what was done to it meanwhile.
func TestTheNodeIsBehindItsNode(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		node := coreNode("node1", "172.30.0.1")
		node.Spec.PodCIDR = "10.244.1.0/24"
		node.Annotations = map[string]string{configAnnotation: `{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`}
		createObject(t, r, api.Node, node)
		n := newKubernetesNode(t, r, "node1", "172.30.0.1")
		n.freeze()
		n.start()
		defer func() { n.stop() }()
		n.says("")
		checkAnnotations(t, r, "node1", node.Annotations, "kube-subnet-manager", "true", "backend-type", "host-gw", "backend-data", "null", "public-ip", "172.30.0.1")
		version := func() string {
			o, err := r.Get(t.Context(), api.Node, registry.Key{Name: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			return o.GetResourceVersion()
		}
		before := version()
		for range 3 {
			n.change(func(*plugin.Node) {})
			n.says("")
		}
		if version() != before {
			t.Error("the Node was written again")
		}

		alter(t, r, "node1", func(n *corev1.Node) { delete(n.Annotations, configAnnotation) })
		n.change(func(p *plugin.Node) { p.Addresses = []netip.Addr{netip.MustParseAddr("172.30.0.77")} })
		checkAnnotations(t, r, "node1", nil, "kube-subnet-manager", "true", "backend-type", "vxlan",
			"backend-data", `{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:4d"}`, "public-ip", "172.30.0.77")
	})
}

// The subnet file follows the ClusterConfig.
func TestClusterConfigChangesTheMTU(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		node := coreNode("node1", "172.30.0.1")
		node.Spec.PodCIDR = "10.244.1.0/24"
		createObject(t, r, api.Node, node)
		n := newKubernetesNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		const file = "FLANNEL_NETWORK=10.244.1.0/24\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n"
		checkSubnetFile(t, n, fmt.Sprintf(file, 1450))
		n.mu.Lock()
		n.config = &api.ClusterConfig{}
		n.config.Spec.MTU = 1400
		n.mu.Unlock()
		n.change(func(*plugin.Node) {})
		checkSubnetFile(t, n, fmt.Sprintf(file, 1400))
	})
}

// A configuration that never meant anything is waited for.
func TestFirstConfigMapIsWrong(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		node := coreNode("node1", "172.30.0.1")
		node.Spec.PodCIDR = "10.244.1.0/24"
		createObject(t, r, api.Node, node)
		createObject(t, r, ConfigMap, configMap(map[string]string{NetConf: `{"Network":"10.244.0.0/16"}`}))
		n := newKubernetesNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		n.says("ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json: no Backend is given")
		checkAnnotations(t, r, "node1", nil)
		if _, err := os.Stat(n.subnetFile()); err == nil {
			t.Error("there is a subnet file")
		}
	})
}

// The address that an administrator gives a node is what it says, and what is
// no address is not.
func TestPublicAddressIsOverwritten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		node := coreNode("node1", "172.30.0.1")
		node.Spec.PodCIDR = "10.244.1.0/24"
		node.Annotations = map[string]string{publicIPOverwriteAnnotation: "203.0.113.1"}
		createObject(t, r, api.Node, node)
		n := newKubernetesNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		check := func(publicIP string) {
			t.Helper()
			if got := annotationsOf(t, r, "node1"); got[publicIPAnnotation] != publicIP || got[backendDataAnnotation] != weftData {
				t.Errorf("the annotations are %v, want public-ip %s", got, publicIP)
			}
		}
		check("203.0.113.1")
		alter(t, r, "node1", func(n *corev1.Node) { n.Annotations[publicIPOverwriteAnnotation] = "elephant" })
		n.says(`node node1: annotation flannel.alpha.coreos.com/public-ip-overwrite: "elephant" is not a node's address`)
		check("203.0.113.1")
		alter(t, r, "node1", func(n *corev1.Node) { delete(n.Annotations, publicIPOverwriteAnnotation) })
		n.says("")
		check("172.30.0.1")
		n.change(func(p *plugin.Node) { p.Addresses[0] = netip.MustParseAddr("172.30.0.77") })
		if got := annotationsOf(t, r, "node1"); got[publicIPAnnotation] != "172.30.0.77" || got[backendDataAnnotation] != `{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:4d"}` {
			t.Errorf("with another address the annotations are %v", got)
		}
	})
}

// A node that ran flanneld says where Weft is reached instead, and each node
// that Weft runs on compiles the way to it.
func TestTakeoverOnKubernetes(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		for i := range 2 {
			name := fmt.Sprintf("node%d", i+1)
			node := coreNode(name, fmt.Sprintf("172.30.0.%d", i+1))
			node.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", i+1)
			node.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: BackendVXLAN,
				backendDataAnnotation: `{"VNI":1,"VtepMAC":"3e:23:4f:b6:47:8a"}`, publicIPAnnotation: fmt.Sprintf("172.30.0.%d", i+1)}
			createObject(t, r, api.Node, node)
			n := newKubernetesNode(t, r, name, fmt.Sprintf("172.30.0.%d", i+1))
			n.start()
			defer func() { n.stop() }()
			n.says("")
		}
		nodes, _, err := r.List(t.Context(), api.Node)
		if err != nil {
			t.Fatal(err)
		}
		p, problems := Kubernetes{}.Compile(plugin.Input{Config: &api.ClusterConfig{},
			Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Node: nodes}),
			Node:    plugin.Node{Name: "node1", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}}})
		if len(problems) > 0 {
			t.Error(problems)
		}
		route, ok := p.Routes.Get(key(netip.MustParsePrefix("10.244.2.0/24")))
		end, _ := p.Peer(route.Peer()).End(Name)
		own, _ := p.Local.Tunnel(Name)
		if !ok || end.MAC.String() != "0a:58:ac:1e:00:02" || own.MAC.String() != "0a:58:ac:1e:00:01" {
			t.Errorf("the way to node2 is %+v, and the own end %+v", end, own)
		}
	})
}
