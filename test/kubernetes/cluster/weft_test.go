package cluster

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/test/kubernetes/controlplane"
)

func TestValuesOfTheChart(t *testing.T) {
	common := []string{"--namespace=weft-system", "--set=namespace.create=true",
		"--set=image.repository=docker.io/weftnet/weft", "--set-string=image.tag=6781030"}
	for plugin, want := range map[string][]string{
		"openshift-subnet": {"--set=network.plugin=openshift-subnet", "--set=kubernetes.api=https://172.30.0.10:6443",
			`--set-json=network.clusterNetworks=[{"CIDR":"10.244.0.0/16","hostSubnetLength":8},{"CIDR":"fd00:10:244::/56","hostSubnetLength":64}]`,
			"--set=logLevel=debug"},
		"flannel": {"--set=network.plugin=flannel", "--set=kubernetes.api=https://172.30.0.10:6443",
			`--set-json=flannel.netConf={"Backend":{"Type":"vxlan"},"EnableIPv4":true,"EnableIPv6":true,"IPv6Network":"fd00:10:244::/56","Network":"10.244.0.0/16"}`,
			"--set=logLevel=debug"},
	} {
		got, err := Weft{Plugin: plugin, Set: []string{"logLevel=debug"}}.values("docker.io/weftnet/weft:6781030", "https://172.30.0.10:6443", controlplane.DefaultPodCIDRs)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(append(common[:len(common):len(common)], want...), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", plugin, d)
		}
	}
	if _, err := (Weft{Plugin: "other"}).values("weft:v1", "", nil); err == nil || !strings.Contains(err.Error(), `plug-in "other"`) {
		t.Errorf("got %v", err)
	}
}

func TestNameOfAnImage(t *testing.T) {
	for manifest, want := range map[string]string{
		`[{"RepoTags":["docker.io/weftnet/weft:v1","other:v2"]}]`: "docker.io/weftnet/weft:v1",
		`[{"RepoTags":[]}]`:           "does not name one image",
		`[{"RepoTags":["untagged"]}]`: "does not name one image",
		`[`:                           "unexpected EOF",
		"":                            "holds no manifest.json",
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		files := map[string]string{"oci-layout": "{}"}
		if manifest != "" {
			files["manifest.json"] = manifest
		}
		for name, content := range files {
			if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			w.Write([]byte(content))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := imageName(path)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", manifest, got, want)
		}
	}
}

func TestReadiness(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, message string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
				{Type: corev1.NodeReady, Status: ready, Message: message}}}}
	}
	want := []Node{{Name: "node1"}, {Name: "node2"}}
	if err := readiness(want, []corev1.Node{node("node2", corev1.ConditionTrue, "ready"), node("node1", corev1.ConditionTrue, "ready"), {}}); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		have []corev1.Node
		want string
	}{
		{[]corev1.Node{node("node1", corev1.ConditionTrue, "")}, "node2 has not registered"},
		{[]corev1.Node{node("node1", corev1.ConditionTrue, ""), node("node2", corev1.ConditionFalse, "no network")}, "node2 is not ready: no network"},
		{[]corev1.Node{node("node1", corev1.ConditionTrue, ""), {ObjectMeta: metav1.ObjectMeta{Name: "node2"}}}, "node2 is not ready: says nothing"},
		{[]corev1.Node{node("node1", corev1.ConditionUnknown, ""), node("node2", corev1.ConditionTrue, "")}, "node1 is not ready"},
	} {
		if err := readiness(want, c.have); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
