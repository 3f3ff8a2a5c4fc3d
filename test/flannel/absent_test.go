package flannel

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/await"
	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

// optional are the definitions of kinds without which agents and controllers go on, as behind an
// update before somebody has applied them.
var optional = []string{"addresspools.weft.network", "addressgrants.weft.network", "virtualaddresses.weft.network"}

// TestWithoutOptionalKinds has an API server lack the definitions of optional kinds: agents have
// pods and Services work, the controller leads, and the nodes say what they go on without. Once they
// are there, both use them, with no restart.
func TestWithoutOptionalKinds(t *testing.T) {
	k := newKubernetesCluster(t, `{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`, true)
	admin := filepath.Join(k.dir, "admin.kubeconfig")
	bin, err := controlplane.Bin()
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) (string, error) {
		out, err := k.command(filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig", admin}, args...)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return string(out), err
	}
	apply := func(name, text string) {
		t.Helper()
		k.write(name, []byte(text))
		eventually(t, "apply "+name, func() error {
			_, err := kubectl("apply", "-f", filepath.Join(k.dir, name))
			return err
		})
	}
	if _, err := kubectl(append([]string{"delete", "--wait", "crd"}, optional...)...); err != nil {
		t.Fatal(err)
	}
	a, b := k.newKubernetesNode("a", 0, 1), k.newKubernetesNode("b", 0, 2)
	a.startWeft()
	b.startWeft()
	a.start(filepath.Join(k.weft, "weft-controller"), append(k.rightsOf("weft-controller", a, nil), "--name", "first")...)
	nodes, pods := []*node{a, b}, map[*node]*pod{a: a.weftPod("pa"), b: b.weftPod("pb")}
	k.meet("without optional kinds", nodes, pods)
	apply("service.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalIPs: [203.0.113.7], ports: [{port: %[1]d}]}
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {externalIPs: [203.0.113.7], ports: [{port: %[1]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: %[1]d}]
endpoints: [{addresses: [%[2]s], nodeName: b}]
`, podPort, pods[b].address))
	service := func(name string) *corev1.Service {
		t.Helper()
		svc, err := k.client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return svc
	}
	eventually(t, "a Service", func() error {
		return pods[a].reach(netip.MustParseAddr(service("web").Spec.ClusterIP), podPort, pods[a].address)
	})
	eventually(t, "the controller leads", func() error {
		out, err := kubectl("get", "clusterconfig", "default", "-o", "jsonpath={.status.conditions}")
		if err == nil && !strings.Contains(out, "Settled") {
			err = fmt.Errorf("the ClusterConfig says %q", out)
		}
		return err
	})
	await.NoError(t, time.Minute, "the controller tells of two Services which one lacks what both claim", func() error {
		all := append(service("web").Status.Conditions, service("other").Status.Conditions...)
		if !strings.Contains(fmt.Sprint(all), "203.0.113.7") {
			return fmt.Errorf("their conditions are %v", all)
		}
		return nil
	})
	says := func(n *node) string { return k.node(n).Annotations[api.ProblemsAnnotation] }
	for _, n := range nodes {
		for _, kind := range optional {
			plural, _, _ := strings.Cut(kind, ".")
			await.NoError(t, time.Minute, "what is lacking is told", func() error {
				if said := says(n); !strings.Contains(said, "the node goes on as if there were no "+plural) {
					return fmt.Errorf("node %s says %q of %s", n.name, said, plural)
				}
				return nil
			})
		}
	}

	all, err := filepath.Abs(manifest)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "apply the definitions", func() error {
		_, err := kubectl("apply", "--server-side", "-f", all)
		return err
	})
	// They ask again for what was not there each half minute.
	later := func(what string, f func() error) {
		t.Helper()
		await.NoError(t, 3*time.Minute, what, f)
	}
	later("an AddressPool", func() error {
		k.write("pool.yaml", []byte(`{"apiVersion": "weft.network/v1", "kind": "AddressPool", "metadata": {"name": "public"}, "spec": {"addresses": ["172.30.0.200-172.30.0.210"]}}`))
		_, err := kubectl("apply", "-f", filepath.Join(k.dir, "pool.yaml"))
		return err
	})
	later("the Service gets an address", func() error {
		if in := service("web").Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != "172.30.0.200" {
			return fmt.Errorf("it has %v", in)
		}
		return nil
	})
	later("a node answers for it", func() error {
		var all []string
		for _, n := range nodes {
			addresses, _ := api.Announces(k.node(n))
			all = append(all, fmt.Sprint(n.name, addresses))
		}
		if !strings.Contains(fmt.Sprint(all), "172.30.0.200") {
			return fmt.Errorf("they answer for %v", all)
		}
		return nil
	})
	for _, n := range nodes {
		later("nothing is lacking", func() error {
			if said := says(n); strings.Contains(said, "as if there were no") {
				return fmt.Errorf("node %s says %q", n.name, said)
			}
			return nil
		})
	}
}
