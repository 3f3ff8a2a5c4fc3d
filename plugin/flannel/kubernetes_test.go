package flannel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// Each file in testdata/kubernetes is a story: the ConfigMap's net-conf.json
// (or its data, as configmap.yaml), the Nodes as nodes.yaml, the node to
// compile for, and then the plan and the problems that follow.
func TestCompileOnKubernetes(t *testing.T) {
	tell(t, "testdata/kubernetes/*.txtar", Kubernetes{}, readKubernetesStory)
}

func readKubernetesStory(t *testing.T, files []txtar.File) plugin.Input {
	t.Helper()
	in := plugin.Input{Config: &api.ClusterConfig{}}
	objects := map[*registry.Kind][]registry.Object{}
	for _, f := range files {
		switch f.Name {
		case NetConf:
			objects[ConfigMap] = append(objects[ConfigMap], configMap(map[string]string{NetConf: string(f.Data)}))
		case "configmap.yaml":
			m := configMap(nil)
			if err := yaml.UnmarshalStrict(f.Data, &m.Data); err != nil {
				t.Fatal(err)
			}
			objects[ConfigMap] = append(objects[ConfigMap], m)
		case "nodes.yaml":
			for _, document := range bytes.Split(f.Data, []byte("---\n")) {
				n := &corev1.Node{}
				if err := yaml.UnmarshalStrict(document, n); err != nil {
					t.Fatal(err)
				}
				objects[api.Node] = append(objects[api.Node], n)
			}
		case "clusterconfig.yaml":
			if err := yaml.UnmarshalStrict(f.Data, in.Config); err != nil {
				t.Fatal(err)
			}
		case "node":
			in.Node = readNode(t, string(bytes.TrimSpace(f.Data)))
		default:
			t.Fatalf("a story has no section %q", f.Name)
		}
	}
	in.Objects = registry.NewSnapshot(objects)
	return in
}

func configMap(data map[string]string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{Data: data}
	m.Namespace, m.Name = ConfigMap.Only.Namespace, ConfigMap.Only.Name
	return m
}

// These values are what flanneld writes and reads.
func TestAnnotationsOfFlanneld(t *testing.T) {
	settings, err := ParseSettings([]byte(`{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/56","Backend":{"Type":"vxlan"}}`))
	if err != nil {
		t.Fatal(err)
	}
	node := plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")}}
	c := configuration{settings: settings}
	got, err := c.announcement(node, map[string]string{
		publicIPOverwriteAnnotation: "192.0.2.7", nodePublicIPAnnotation: "192.0.2.8", nodePublicIPv6Annotation: "2001:db8::8"})
	want := map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/backend-type":        "vxlan",
		"flannel.alpha.coreos.com/backend-data":        `{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:01"}`,
		"flannel.alpha.coreos.com/public-ip":           "192.0.2.7",
		"flannel.alpha.coreos.com/backend-v6-data":     `{"VNI":1,"VtepMAC":"0e:8d:0c:af:40:1b"}`,
		"flannel.alpha.coreos.com/public-ipv6":         "2001:db8::8",
		"weft.network/flannel-config":                  "",
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("announced\n%v, want\n%v; %v", got, want, err)
	}

	c.settings.Backend, c.settings.V6 = BackendHostGW, Range{}
	if got, err = c.announcement(node, nil); err != nil || got[backendDataAnnotation] != "null" || got[publicIPv6Annotation] != "" {
		t.Errorf("announced %v, %v", got, err)
	}
	for _, wrong := range []string{"elephant", "2001:db8::8", "0.0.0.0", "224.0.0.1"} {
		if got, err := c.announcement(node, map[string]string{publicIPOverwriteAnnotation: wrong}); err == nil {
			t.Errorf("with the public address %s announced %v", wrong, got)
		}
	}
}

// What ConfigMap keeps of an object is what configurationOf reads.
func TestConfigMapKeepsTheConfiguration(t *testing.T) {
	m := configMap(map[string]string{NetConf: goodConfig, "cni-conf.json": "{}"})
	m.Labels, m.Annotations = map[string]string{"app": "flannel"}, map[string]string{"a": "b"}
	ConfigMap.Keep(m)
	got, _ := json.Marshal(m)
	want, _ := json.Marshal(configMap(map[string]string{NetConf: goodConfig}))
	if !bytes.Equal(got, want) {
		t.Errorf("kept %s, want %s", got, want)
	}
}

// Nothing that a Node or the ConfigMap says makes Compile fail, or state an
// entry that a data plane could not load.
func FuzzCompileOnKubernetes(f *testing.F) {
	vxlan := `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}`
	f.Add(vxlan, "10.244.2.0/24", "", "vxlan", `{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`, "null", "172.30.0.2", "")
	f.Add("", "10.244.2.0/24", "fd00:10:244:2::/64", "vxlan", `{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`, `{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`, "172.30.0.2", "fd00:30::2")
	f.Add(`{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/56","Backend":{"Type":"vxlan","DirectRouting":true}}`,
		"10.244.2.0/24", "fd00:10:244:2::/64", "vxlan", `{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}`, `{"VNI":1,"VtepMAC":"02:00:00:00:00:03"}`, "172.31.0.2", "fd00:31::2")
	f.Add(`{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}`, "10.244.1.0/25", "", "host-gw", "null", "null", "172.30.0.255", "")
	f.Add("", "172.30.0.0/24", "224.0.0.0/8", "vxlan", "7", `"`, "224.0.0.1", "::")
	f.Fuzz(func(t *testing.T, config, cidr, cidr6, backend, data, data6, ip, ip6 string) {
		own, peer := coreNode("node1", "172.30.0.1", "fd00:30::1"), coreNode("node2", "172.30.0.2")
		own.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
		peer.Spec.PodCIDRs = []string{cidr, cidr6}
		peer.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: backend, backendDataAnnotation: data,
			backendV6Annotation: data6, publicIPAnnotation: ip, publicIPv6Annotation: ip6}
		objects := map[*registry.Kind][]registry.Object{api.Node: {own, peer}}
		if config != "" {
			objects[ConfigMap] = []registry.Object{configMap(map[string]string{NetConf: config})}
		}
		in := plugin.Input{Config: &api.ClusterConfig{}, Objects: registry.NewSnapshot(objects), Node: plugin.Node{
			Name: "node1", MTU: 1500,
			Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")},
			Prefixes:  []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd00:30::/64")}}}
		p, _ := Kubernetes{}.Compile(in)
		if err := p.Validate(); err != nil {
			t.Errorf("%v\n%s", err, p)
		}
		// What the peer says of itself must not cost the node its own pods.
		if len(p.Local.Pools) == 0 && objects[ConfigMap] == nil {
			t.Errorf("the node has no pool:\n%s", p)
		}
	})
}

// BenchmarkCompileOnKubernetes is BenchmarkCompile with Nodes for leases.
func BenchmarkCompileOnKubernetes(b *testing.B) {
	var nodes []registry.Object
	for i := range 1000 {
		address := netip.AddrFrom4([4]byte{172, 30, byte(i / 250), byte(i%250 + 1)})
		n := coreNode(fmt.Sprintf("node%d", i), address.String())
		n.Spec.PodCIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", i/256+1, i%256)}
		n.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: BackendVXLAN,
			backendDataAnnotation: (&TunnelEnd{1, plan.MACOf(address)}).annotation(), publicIPAnnotation: address.String()}
		nodes = append(nodes, n)
	}
	in := plugin.Input{Config: &api.ClusterConfig{}, Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{api.Node: nodes}),
		Node: plugin.Node{Name: "node0", MTU: 1500, Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1")}}}
	for b.Loop() {
		in.Previous, _ = Kubernetes{}.Compile(in)
	}
}
