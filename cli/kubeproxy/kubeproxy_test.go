package kubeproxy

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// clusterOf is a registry with some objects, where the agents of some nodes live.
func clusterOf(t *testing.T, agents []string, objects map[*registry.Kind][]registry.Object) registry.Registry {
	t.Helper()
	r := memory.New()
	for k, all := range objects {
		for _, o := range all {
			if _, err := r.Create(t.Context(), k, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range agents {
		if _, err := r.Acquire(t.Context(), api.NodeLease(name), name, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// node is one whose agent says who does Services there, where it has said anything.
func node(name, by string) registry.Object {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if by != "" {
		n.Annotations = map[string]string{api.ServiceProxyAnnotation: by}
	}
	return n
}

// as gives a node the word on whether it is ready.
func as(ready corev1.ConditionStatus, o registry.Object) registry.Object {
	n := o.(*corev1.Node)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

func config(by string) []registry.Object {
	c := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
	c.Spec.ServiceProxy = by
	return []registry.Object{c}
}

// TestLeave leaves Services to kube-proxy where agents live, where they have died, and where Weft
// was taken out, with its objects or without.
func TestLeave(t *testing.T) {
	for name, test := range map[string]struct {
		config []registry.Object
		nodes  []registry.Object
		agents []string
		said   string
		err    string
	}{
		"agents say so":           {config(api.KubeProxy), []registry.Object{node("node1", "kube-proxy"), node("node2", "kube-proxy")}, []string{"node1", "node2"}, "all nodes say that Services are done by kube-proxy", ""},
		"one never had an agent":  {config(api.KubeProxy), []registry.Object{node("node1", "kube-proxy"), node("node2", "")}, []string{"node1"}, "all nodes say that Services are done by kube-proxy", ""},
		"an agent has died":       {config(api.KubeProxy), []registry.Object{node("node1", "kube-proxy"), node("node2", "weft")}, []string{"node1"}, "", "node2 has no agent that lives"},
		"all agents have died":    {config(api.KubeProxy), []registry.Object{node("node1", "weft")}, nil, "", "node1 has no agent that lives"},
		"Weft was taken out":      {config(api.KubeProxy), []registry.Object{node("node1", ""), node("node2", "")}, nil, "no node has an agent of Weft, so that Services are done by kube-proxy alone", ""},
		"and with it its objects": {nil, []registry.Object{node("node1", "")}, nil, "no node has an agent of Weft, so that Services are done by kube-proxy alone", ""},
		"nobody tells agents":     {nil, []registry.Object{node("node1", "weft")}, []string{"node1"}, "", `nothing can tell them to: node1 says "weft": read the ClusterConfig: `},
	} {
		var said []string
		c := New(clusterOf(t, test.agents, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: test.config, api.Node: test.nodes}), nil,
			Options{DryRun: true, Progress: func(line string) { said = append(said, line) }})
		err := c.serveBy(t.Context(), api.KubeProxy)
		if got := strings.Join(said, "\n"); got != test.said {
			t.Errorf("%s: it is said %q, want %q", name, got, test.said)
		}
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: it fails with %v, want %q", name, err, test.err)
		}
	}
	// Nobody does Services where no agent is.
	c := New(clusterOf(t, nil, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy), api.Node: {node("node1", "")}}), nil, Options{DryRun: true})
	if err := c.serveBy(t.Context(), api.WeftProxy); err == nil || !strings.Contains(err.Error(), "node1 has no agent that lives") {
		t.Errorf("Services are left to Weft where it is not: %v", err)
	}
}

// TestCleaner makes of kube-proxy's DaemonSet, as it is while it has no pods, the one that cleans
// up: on the same nodes, with the same image and the same sight of the node.
func TestCleaner(t *testing.T) {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-proxy"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"k8s-app": "kube-proxy"}}, Spec: corev1.PodSpec{
			HostNetwork: true, NodeSelector: map[string]string{"kubernetes.io/os": "linux", nowhere: removed},
			InitContainers: []corev1.Container{{Name: "modprobe", Command: []string{"/modprobe"}}},
			Containers: []corev1.Container{{Name: "sidecar", Command: []string{"/log"}},
				{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v1", Command: []string{"/usr/local/bin/kube-proxy", "--config=/var/lib/config.conf"},
					Args: []string{"--v=2"}, LivenessProbe: &corev1.Probe{}, SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}},
		}}}}
	before := d.DeepCopy()
	c, err := cleanerOf(d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := c.Spec.Template.Spec
	if len(s.InitContainers) > 0 || len(s.Containers) != 1 || strings.Join(s.Containers[0].Command, " ") != "/usr/local/bin/kube-proxy --cleanup" || len(s.Containers[0].Args) > 0 ||
		s.Containers[0].LivenessProbe != nil || s.Containers[0].Image != "registry.k8s.io/kube-proxy:v1" || !*s.Containers[0].SecurityContext.Privileged || !s.HostNetwork {
		t.Errorf("it runs %+v", s)
	}
	if len(s.NodeSelector) != 1 || s.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("it runs on %v", s.NodeSelector)
	}
	// A DaemonSet that selected another's pods would end them.
	if c.Spec.Selector.MatchLabels["k8s-app"] != "" || c.Spec.Template.Labels["k8s-app"] != "" || c.Name == d.Name {
		t.Errorf("its pods may be taken for kube-proxy's: %v", c.Spec.Template.Labels)
	}
	if d.String() != before.String() {
		t.Error("what it was made from is changed")
	}
	d.Spec.Template.Spec.Containers = d.Spec.Template.Spec.Containers[:1]
	if _, err := cleanerOf(d, time.Now()); err == nil || !strings.Contains(err.Error(), "kube-proxy --cleanup on each node") || !strings.HasPrefix(err.Error(), "nothing was changed") {
		t.Errorf("of a DaemonSet without kube-proxy it is said: %v", err)
	}
}

// TestAddressesOnLink leaves Services to kube-proxy, which answers for no address on the link: where
// nodes do and a Service has one, that is said, and nothing is done by mistake.
func TestAddressesOnLink(t *testing.T) {
	of := func(announce string) map[*registry.Kind][]registry.Object {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		pool := &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}, Spec: api.AddressPoolSpec{Addresses: []string{"192.0.2.0/24"}, Announce: announce}}
		grant := &api.AddressGrant{ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.1"}, Spec: api.AddressGrantSpec{Namespace: "shop", Name: "web", UID: "u", Pool: "public"}}
		return map[*registry.Kind][]registry.Object{api.Service: {svc}, api.AddressPoolKind: {pool}, api.AddressGrantKind: {grant}, api.Node: {node("node1", "weft")}}
	}
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	const cutOff, would = "192.0.2.1 of Service shop/web", "would set spec.serviceProxy of the ClusterConfig to kube-proxy, and wait until all nodes say so"
	for name, test := range map[string]struct {
		objects map[*registry.Kind][]registry.Object
		config  string
		agents  []string
		force   bool
		said    string
	}{
		"nodes answer for it":         {of(""), api.WeftProxy, []string{"node1"}, false, ""},
		"it is forced":                {of(""), api.WeftProxy, []string{"node1"}, true, "with kube-proxy no node answers on the link for " + cutOff + "\n" + would},
		"others lead there":           {of(api.AnnounceNone), api.WeftProxy, []string{"node1"}, false, would},
		"there is no agent":           {of(""), api.WeftProxy, nil, false, would},
		"Services are left to it now": {of(""), api.KubeProxy, []string{"node1"}, false, ""},
	} {
		test.objects[api.ClusterConfigKind] = config(test.config)
		d := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: DaemonSet.Namespace, Name: DaemonSet.Name}}
		var said []string
		c := New(clusterOf(t, test.agents, test.objects), fake.NewSimpleDynamicClient(scheme, d),
			Options{DaemonSet: DaemonSet, DryRun: true, Force: test.force, Progress: func(line string) { said = append(said, line) }})
		err := c.Restore(t.Context())
		if got := strings.Join(said, "\n"); got != test.said {
			t.Errorf("%s: it is said %q, want %q", name, got, test.said)
		}
		refused := err != nil && strings.HasPrefix(err.Error(), "nothing was changed") && strings.Contains(err.Error(), cutOff)
		if want := name == "nodes answer for it"; refused != want {
			t.Errorf("%s: it is refused: %t: %v", name, refused, err)
		}
	}
}

// TestMark has the ClusterConfig say that kube-proxy is to run nowhere, and no more once it is back,
// also where Weft has no ClusterConfig any more.
func TestMark(t *testing.T) {
	r := clusterOf(t, nil, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy)})
	other := registry.Key{Namespace: "infra", Name: "kube-proxy-x"}
	for i, d := range []registry.Key{DaemonSet, DaemonSet, other, other} {
		ended := i%2 == 0
		if err := New(r, nil, Options{DaemonSet: d}).mark(t.Context(), ended); err != nil {
			t.Fatal(err)
		}
		c, err := New(r, nil, Options{}).config(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if of, is := Removed(c); is != ended || is && of != d || c.Spec.ServiceProxy != api.WeftProxy {
			t.Errorf("it says %v, and %s is ended: %t", c.Annotations, d, ended)
		}
	}
	if err := New(clusterOf(t, nil, nil), nil, Options{}).mark(t.Context(), false); err != nil {
		t.Error(err)
	}
}

// TestMarkBehind ends kube-proxy where nobody may change its DaemonSet: it runs on, and is not called
// one that was ended.
func TestMarkBehind(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	d := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Namespace: DaemonSet.Namespace, Name: DaemonSet.Name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "kube-proxy", Command: []string{"kube-proxy"}}}
	client := fake.NewSimpleDynamicClient(scheme, d)
	client.PrependReactor("patch", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	c := New(clusterOf(t, []string{"node1"}, map[*registry.Kind][]registry.Object{api.ClusterConfigKind: config(api.WeftProxy), api.Node: {node("node1", api.WeftProxy)}}), client,
		Options{DaemonSet: DaemonSet, Force: true, Progress: func(string) {}})
	if err := c.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "change the nodeSelector") {
		t.Fatalf("it ends with %v", err)
	}
	said, err := c.config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, is := Removed(said); is {
		t.Errorf("it is said to have ended: %v", said.Annotations)
	}
}
