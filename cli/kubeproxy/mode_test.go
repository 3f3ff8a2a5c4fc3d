package kubeproxy

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// proxyWith is a DaemonSet of kube-proxy with some flags, which has ConfigMaps at paths.
func proxyWith(mounts map[string]corev1.ConfigMapVolumeSource, flags ...string) *appsv1.DaemonSet {
	d := daemonSet(DaemonSet.Name)
	s := &d.Spec.Template.Spec
	s.Containers[0].Command = append([]string{"/usr/local/bin/kube-proxy"}, flags...)
	for at, of := range mounts {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: of.Name, VolumeSource: corev1.VolumeSource{ConfigMap: &of}})
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: of.Name, MountPath: at})
	}
	return d
}

// configMap is one in kube-proxy's namespace.
func configMap(namespace, name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
}

// removing is a Change that only says what it would do, of a cluster with a kube-proxy and a ConfigMap beside those that Weft needs.
func removing(t *testing.T, said *[]string, force bool, objects ...runtime.Object) (*Change, *fake.FakeDynamicClient) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	client := fake.NewSimpleDynamicClient(scheme, append(objects, configMap("weft-system", weftConfig, map[string]string{"config.yaml": "kubernetes: {api: 'https://192.0.2.1:6443'}"}))...)
	r := clusterOf(t, []string{"node1"}, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy), api.Node: {node("node1", api.WeftProxy)}})
	return New(r, client, Options{Namespace: "weft-system", DaemonSet: DaemonSet, DryRun: true, Force: force, Progress: func(line string) { *said = append(*said, line) }}), client
}

// TestMode finds out in which mode kube-proxy is, wherever that is said, and what is not known of it.
func TestMode(t *testing.T) {
	maps := map[string]corev1.ConfigMapVolumeSource{
		"/var/lib/kube-proxy/":       {LocalObjectReference: corev1.LocalObjectReference{Name: "kube-proxy"}},
		"/var/lib/kube-proxy/config": {LocalObjectReference: corev1.LocalObjectReference{Name: "kube-proxy-config"}},
		"/etc/some":                  {LocalObjectReference: corev1.LocalObjectReference{Name: "some"}, Items: []corev1.KeyToPath{{Key: "proxy", Path: "proxy.yaml"}}},
		"/etc/gone":                  {LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}},
	}
	one := proxyWith(maps, "--config", "/etc/one.yaml")
	one.Spec.Template.Spec.Containers[0].VolumeMounts = append(one.Spec.Template.Spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "kube-proxy-config", MountPath: "/etc/one.yaml", SubPath: "config"})
	args := proxyWith(nil)
	args.Spec.Template.Spec.Containers[0].Args = []string{"--v=2", "--proxy-mode", "ipvs"}
	elsewhere := proxyWith(nil, "--config=/etc/kubernetes/kube-proxy.yaml")
	elsewhere.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/kubernetes"}}}}
	elsewhere.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: "/etc/kubernetes"}}
	const of = "kube-system/kube-proxy"
	for name, test := range map[string]struct {
		d                *appsv1.DaemonSet
		mode, where, err string
	}{
		"as kubeadm has it":           {proxyWith(maps, "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=$(NODE_NAME)"), "iptables", "the ConfigMap kube-system/kube-proxy", ""},
		"a file, and a flag":          {proxyWith(maps, "--proxy-mode=ipvs", "--config=/var/lib/kube-proxy/config.conf"), "iptables", "the ConfigMap kube-system/kube-proxy", ""},
		"another ConfigMap, below it": {proxyWith(maps, "--v=2", "--config=/var/lib/kube-proxy/config/config"), "ipvs", "the ConfigMap kube-system/kube-proxy-config", ""},
		"one key of it":               {one, "ipvs", "the ConfigMap kube-system/kube-proxy-config", ""},
		"a key of another name":       {proxyWith(maps, "--config=/etc/some/proxy.yaml"), "nftables", "the ConfigMap kube-system/some", ""},
		"a flag":                      {proxyWith(nil, "--v=2", "--masquerade-all", "--proxy_mode=ipvs"), "ipvs", "DaemonSet " + of, ""},
		"a flag among its arguments":  {args, "ipvs", "DaemonSet " + of, ""},
		"nothing says it":             {proxyWith(maps, "--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf"), "", "DaemonSet " + of, ""},
		"the file says nothing of it": {proxyWith(maps, "--config=/var/lib/kube-proxy/default.conf"), "", "the ConfigMap kube-system/kube-proxy", ""},
		"a variable":                  {proxyWith(nil, "--proxy-mode=$(MODE)"), "", "", `DaemonSet kube-system/kube-proxy says mode "$(MODE)"`},
		"a mode that is none":         {proxyWith(maps, "--config=/var/lib/kube-proxy/old.conf"), "", "", `the ConfigMap kube-system/kube-proxy says mode "userspace"`},
		"a flag without a value":      {proxyWith(nil, "--proxy-mode"), "", "", "the command of DaemonSet kube-system/kube-proxy: flag needs an argument: --proxy-mode"},
		"a file of the node":          {elsewhere, "", "", "its configuration is /etc/kubernetes/kube-proxy.yaml, which DaemonSet kube-system/kube-proxy has of no ConfigMap"},
		"a file of the image":         {proxyWith(maps, "--config=/var/lib/kube-proxy.conf"), "", "", "its configuration is /var/lib/kube-proxy.conf, which DaemonSet kube-system/kube-proxy has of no ConfigMap"},
		"a file that is not mounted":  {proxyWith(maps, "--config=/etc/some/proxy"), "", "", "its configuration is /etc/some/proxy, which DaemonSet kube-system/kube-proxy has of no ConfigMap"},
		"a key that is gone":          {proxyWith(maps, "--config=/var/lib/kube-proxy/no.conf"), "", "", "the ConfigMap kube-system/kube-proxy has no no.conf, which is to be its configuration"},
		"a ConfigMap that is gone":    {proxyWith(maps, "--config=/etc/gone/config"), "", "", `read the ConfigMap kube-system/gone, which has its configuration: configmaps "gone" not found`},
		"no configuration":            {proxyWith(maps, "--config=/var/lib/kube-proxy/bad.conf"), "", "", "the ConfigMap kube-system/kube-proxy: bad.conf: error converting YAML to JSON: yaml: line 1: did not find expected node content"},
	} {
		c, _ := removing(t, nil, false, configMap(DaemonSet.Namespace, "kube-proxy", map[string]string{
			"config.conf": "kind: KubeProxyConfiguration\nmode: iptables", "default.conf": "mode: ''", "old.conf": "mode: userspace", "bad.conf": "["}),
			configMap(DaemonSet.Namespace, "kube-proxy-config", map[string]string{"config": "mode: ipvs"}), configMap(DaemonSet.Namespace, "some", map[string]string{"proxy": "mode: nftables"}))
		mode, where, err := c.mode(t.Context(), test.d)
		if said := message(err); mode != test.mode || where != test.where || said != test.err {
			t.Errorf("%s: the mode is %q, as %q says: %q; want %q, %q, %q", name, mode, where, said, test.mode, test.where, test.err)
		}
	}
}

// message is what an error says.
func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestIPVS takes kube-proxy away, with which connections break where it is in mode ipvs: that is said, and
// not done by mistake, nor where the mode is not known; but where it has been ended already, they are broken.
func TestIPVS(t *testing.T) {
	const breaks, would = "connections that kube-proxy has translated break, as it is in mode ipvs", "all nodes say that Services are done by weft\nwould have the pods of DaemonSet kube-system/kube-proxy ended"
	const may = "connections that kube-proxy has translated break if it is in mode ipvs, which is not known: read the ConfigMap kube-system/kube-proxy, which has its configuration: forbidden"
	for name, test := range map[string]struct {
		config                  string
		force, ended, forbidden bool
		said, refused           string
	}{
		"mode ipvs":                    {"mode: ipvs", false, false, false, "", "nothing was changed: kube-proxy is in mode ipvs, as the ConfigMap kube-system/kube-proxy says, "},
		"it is forced":                 {"mode: ipvs", true, false, false, breaks + "\n" + would, ""},
		"it has been ended":            {"mode: ipvs", false, true, false, "all nodes say that Services are done by weft", ""},
		"another mode":                 {"mode: iptables", false, false, false, would, ""},
		"nobody may read it":           {"mode: iptables", false, false, true, "", "nothing was changed: whether kube-proxy is in mode ipvs, so that connections that it has translated break without it, is not known: "},
		"nor may who forces it":        {"mode: iptables", true, false, true, may + "\n" + would, ""},
		"nor may who has ended it all": {"mode: ipvs", false, true, true, "all nodes say that Services are done by weft", ""},
	} {
		d := proxyWith(map[string]corev1.ConfigMapVolumeSource{"/var/lib/kube-proxy": {LocalObjectReference: corev1.LocalObjectReference{Name: "kube-proxy"}}}, "--config=/var/lib/kube-proxy/config.conf")
		if test.ended {
			d.Spec.Template.Spec.NodeSelector = map[string]string{nowhere: removed}
		}
		var said []string
		c, client := removing(t, &said, test.force, d, configMap(DaemonSet.Namespace, "kube-proxy", map[string]string{"config.conf": test.config}))
		client.PrependReactor("get", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return test.forbidden && a.GetNamespace() == DaemonSet.Namespace, nil, errors.New("forbidden")
		})
		err := c.Remove(t.Context())
		if got := strings.Join(said, "\n"); got != test.said {
			t.Errorf("%s: it is said %q, want %q", name, got, test.said)
		}
		if got := message(err); !strings.HasPrefix(got, test.refused) || (got == "") != (test.refused == "") {
			t.Errorf("%s: it ends with %q, want %q", name, got, test.refused)
		}
	}
}
