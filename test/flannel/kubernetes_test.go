package flannel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

const (
	// manifest is what installs Weft in a cluster.
	manifest = "../../deploy/weft.yaml"
	// annotation is what flannel's annotations begin with.
	annotation = "flannel.alpha.coreos.com/"
	// systemNamespace is that of Weft's own objects.
	systemNamespace = "weft-system"
)

// kubernetesCluster is a cluster whose nodes share an API server. There are no
// kubelets: the test makes the Nodes, with the podCIDRs that
// kube-controller-manager would give them.
type kubernetesCluster struct {
	*cluster
	plane  *controlplane.ControlPlane
	client kubernetes.Interface
	// config is flannel's net-conf.json as flanneld reads it from its file.
	config string
	v6     bool
}

// newKubernetesCluster makes a cluster in which Weft is installed, with the
// plug-in flannel. configured says whether flannel's ConfigMap is there.
func newKubernetesCluster(t *testing.T, config string, configured bool) *kubernetesCluster {
	t.Helper()
	bin, err := controlplane.Bin(controlplane.Etcd, controlplane.APIServer)
	if err != nil {
		t.Skip(err)
	}
	kubectl := filepath.Join(bin, "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		t.Skip(err)
	}
	k := &kubernetesCluster{cluster: newUnderlayCluster(t), config: config, v6: strings.Contains(config, "EnableIPv6")}
	k.flanneldCommand, k.weftFlags, k.held = k.flanneldOnKubernetes, k.weftOnKubernetes, k.annotations
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k.plane, err = controlplane.Start(ctx, controlplane.Config{Bin: bin, Dir: filepath.Join(k.dir, "plane"), NetNS: k.path(),
		Address: netip.MustParseAddr("172.30.0.254"), Components: []controlplane.Component{controlplane.Etcd, controlplane.APIServer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.plane.Stop)
	if k.client, err = kubernetes.NewForConfig(k.plane.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	admin, err := k.plane.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	k.write("admin.kubeconfig", admin)
	k.write("net-conf.json", []byte(config))
	weft, err := filepath.Abs(manifest)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(file string) {
		eventually(t, "apply "+file, func() error {
			out, err := k.command(kubectl, "--kubeconfig", filepath.Join(k.dir, "admin.kubeconfig"), "apply", "--server-side", "-f", file).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	apply(weft)
	k.write("clusterconfig.yaml", []byte("apiVersion: weft.network/v1\nkind: ClusterConfig\nmetadata: {name: default}\nspec: {plugin: flannel}\n"))
	apply(filepath.Join(k.dir, "clusterconfig.yaml"))
	if configured {
		key := flannel.ConfigMap.Only
		if _, err := k.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: key.Namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key.Name}, Data: map[string]string{flannel.NetConf: config}}
		if _, err := k.client.CoreV1().ConfigMaps(key.Namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

func (k *kubernetesCluster) write(name string, content []byte) {
	k.t.Helper()
	if err := os.WriteFile(filepath.Join(k.dir, name), content, 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubernetesCluster) flanneldOnKubernetes(n *node) []string {
	return []string{"env", "NODE_NAME=" + n.name, k.flanneld, "-kube-subnet-mgr", "-kubeconfig-file", filepath.Join(k.dir, "admin.kubeconfig"),
		"-net-config-path", filepath.Join(k.dir, "net-conf.json")}
}

// weftOnKubernetes gives the agent the rights that it has in a pod: those of
// its ServiceAccount, with a token that holds for its node.
func (k *kubernetesCluster) weftOnKubernetes(n *node) []string {
	k.t.Helper()
	o := k.node(n)
	return k.rightsOf("weft-agent", n, &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: o.Name, UID: o.UID})
}

// rightsOf are the flags that give a process on a machine the rights of a ServiceAccount of Weft's, with
// a token that holds for as long as an object is there.
func (k *kubernetesCluster) rightsOf(account string, n *node, of *authenticationv1.BoundObjectReference) []string {
	k.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: of}}
	token, err := k.client.CoreV1().ServiceAccounts(systemNamespace).CreateToken(k.t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["k"] = &clientcmdapi.Cluster{Server: k.plane.Server(), CertificateAuthorityData: k.plane.PKI().CA()}
	c.AuthInfos["k"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	c.Contexts["k"], c.CurrentContext = &clientcmdapi.Context{Cluster: "k", AuthInfo: "k"}, "k"
	file := filepath.Join(n.dir, account+".kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		k.t.Fatal(err)
	}
	return []string{"--registry", "kubernetes", "--kubeconfig", file}
}

// newKubernetesNode makes a machine and its Node.
func (k *kubernetesCluster) newKubernetesNode(name string, link, host int) *node {
	k.t.Helper()
	n := k.newNode(name, link, host)
	k.createNode(n, link, host)
	return n
}

func (k *kubernetesCluster) createNode(n *node, link, host int) {
	k.t.Helper()
	o := &corev1.Node{}
	// flanneld does not bear a Node without annotations; every kubelet writes some.
	o.Name, o.Annotations = n.name, map[string]string{"example.com/test": "true"}
	o.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", 16*link+host)
	o.Spec.PodCIDRs = []string{o.Spec.PodCIDR}
	if k.v6 {
		o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, fmt.Sprintf("fd00:10:244:%x::/64", 16*link+host))
	}
	made, err := k.client.CoreV1().Nodes().Create(k.t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	// What a node's own agent says of its address counts for less than what its kubelet does.
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.ip.String()}}
	if k.v6 {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.ip6.String()})
	}
	if _, err := k.client.CoreV1().Nodes().UpdateStatus(k.t.Context(), made, metav1.UpdateOptions{}); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubernetesCluster) node(n *node) *corev1.Node {
	k.t.Helper()
	o, err := k.client.CoreV1().Nodes().Get(k.t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return o
}

// annotations are those by which the node says how it is reached.
func (k *kubernetesCluster) annotations(n *node) (string, error) {
	all := k.node(n).Annotations
	maps.DeleteFunc(all, func(name, _ string) bool { return !strings.HasPrefix(name, annotation) })
	if len(all) == 0 {
		return "", fmt.Errorf("node %s has not said how it is reached", n.name)
	}
	return fmt.Sprint(all), nil
}

// Nodes that run flanneld's kube subnet manager and nodes that run Weft form
// one network.
func TestInteropOnKubernetes(t *testing.T) {
	for name, backend := range map[string]string{
		"host-gw":       `{"Type":"host-gw"}`,
		"vxlan":         `{"Type":"vxlan"}`,
		"directrouting": `{"Type":"vxlan","VNI":7,"Port":4789,"DirectRouting":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			k := newKubernetesCluster(t, fmt.Sprintf(`{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":%s}`, backend), true)
			a, b := k.newKubernetesNode("a", 0, 1), k.newKubernetesNode("b", 0, 2)
			a.startFlanneld()
			b.startWeft()
			nodes, pods := []*node{a, b}, map[*node]*pod{a: a.flannelPod("pa"), b: b.weftPod("pb")}
			if name != "host-gw" { // which needs one link
				d, e := k.newKubernetesNode("d", 1, 1), k.newKubernetesNode("e", 1, 2)
				d.startFlanneld()
				e.startWeft()
				nodes = append(nodes, d, e)
				pods[d], pods[e] = d.flannelPod("pd"), e.weftPod("pe")
			}
			k.meet("at first", nodes, pods)
			k.checkWay(name, a, b, pods)
			k.restarts(a, b, nodes, pods)
			k.nodeGoes(a, b, nodes, pods)
			k.takeover(a, nodes, pods)
		})
	}
}

// nodeGoes deletes the Node of a flanneld, upon which Weft must not send to it
// any more; then the Node comes back, and flanneld with it.
func (k *kubernetesCluster) nodeGoes(a, b *node, nodes []*node, pods map[*node]*pod) {
	k.t.Helper()
	a.daemon.stop(syscall.SIGTERM)
	if err := k.client.CoreV1().Nodes().Delete(k.t.Context(), a.name, metav1.DeleteOptions{}); err != nil {
		k.t.Fatal(err)
	}
	eventually(k.t, "Node a is gone", func() error {
		out, err := b.command("ip", "route", "get", pods[a].address.String()).CombinedOutput()
		if err == nil {
			return fmt.Errorf("b still has a route: %s", out)
		}
		return nil
	})
	k.createNode(a, 0, 1)
	a.startFlanneld()
	k.meet("after Node a was gone", nodes, pods)
}

// takeover replaces flanneld by Weft on a node.
func (k *kubernetesCluster) takeover(a *node, nodes []*node, pods map[*node]*pod) {
	k.t.Helper()
	a.daemon.stop(syscall.SIGTERM)
	if err := pods[a].remove(); err != nil {
		k.t.Error(err)
	}
	a.sh("for i in cni0 flannel.1 flannel.7 flannel-v6.1; do ip link delete $i 2>/dev/null || true; done; ip route flush root 10.244.0.0/16; ip -6 route flush root fd00:10:244::/56; nft flush ruleset")
	a.startWeft()
	eventually(k.t, "Weft says how the node is reached", func() error {
		data := k.node(a).Annotations[annotation+"backend-data"]
		if data != "null" && !strings.HasSuffix(data, fmt.Sprintf(`"VtepMAC":%q}`, plan.MACOf(a.ip))) {
			return errors.New("backend-data is " + data)
		}
		return nil
	})
	pods[a] = a.weftPod("pa2")
	k.meet("after Weft took over", nodes, pods)
}

// With both families, what holds for IPv4 holds for IPv6, as with leases in etcd.
func TestDualStackOnKubernetes(t *testing.T) {
	for _, backend := range []string{"host-gw", "vxlan"} {
		t.Run(backend, func(t *testing.T) {
			k := newKubernetesCluster(t, fmt.Sprintf(`{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/56","EnableNFTables":true,"Backend":{"Type":%q}}`, backend), true)
			a, b, d := k.newKubernetesNode("a", 0, 1), k.newKubernetesNode("b", 0, 2), k.newKubernetesNode("d", 0, 3)
			a.startFlanneld()
			b.startWeft()
			d.startWeft()
			nodes, pods := []*node{a, b, d}, map[*node]*pod{a: a.flannelPod("pa"), b: b.weftPod("pb"), d: d.weftPod("pd")}
			k.meet("at first", nodes, pods)
			k.checkWay(backend, a, b, pods)
			for _, complaint := range []string{"error decoding", "to lease"} {
				if strings.Contains(a.daemon.output(), complaint) {
					t.Errorf("flanneld could not read a Node")
				}
			}
			k.takeover(a, nodes, pods)
		})
	}
}

// Without flannel's ConfigMap Weft does what flanneld does with the
// configuration of its manifest.
func TestWithoutConfigMap(t *testing.T) {
	k := newKubernetesCluster(t, `{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`, false)
	a, b, e := k.newKubernetesNode("a", 0, 1), k.newKubernetesNode("b", 0, 2), k.newKubernetesNode("e", 1, 2)
	b.startWeft()
	e.startWeft()
	nodes, pods := []*node{b, e}, map[*node]*pod{b: b.weftPod("pb"), e: e.weftPod("pe")}
	k.meet("Weft alone", nodes, pods)
	a.startFlanneld()
	pods[a] = a.flannelPod("pa")
	k.meet("with a flanneld", append(nodes, a), pods)
}
