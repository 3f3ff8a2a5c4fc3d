package removal

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/cli/kubeproxy"
)

// TestPreviewWithout has a cluster that never had kube-proxy and CoreDNS, and others: what nobody does
// without Weft is told before it is taken out, and nothing where somebody does it.
func TestPreviewWithout(t *testing.T) {
	node := func(name string, annotations map[string]string) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	nodes := []runtime.Object{
		node("node1", map[string]string{api.ServiceProxyAnnotation: api.WeftProxy, api.NameServerAnnotation: "10.96.0.10", api.AnnouncesAnnotation: "192.0.2.1,192.0.2.2"}),
		node("node2", map[string]string{api.ServiceProxyAnnotation: api.WeftProxy, api.NameServerAnnotation: "", api.AnnouncesAnnotation: "192.0.2.3"}),
	}
	proxy := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: kubeproxy.DaemonSet.Namespace, Name: kubeproxy.DaemonSet.Name}}
	slice := func(ready bool) runtime.Object {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns-x", Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}}}
	more := node("node3", map[string]string{api.NameServerAnnotation: "10.96.0.10,169.254.20.10"})
	const beside = "nodes answer for names at 169.254.20.10, beside Service kube-system/kube-dns: without Weft"
	const services, names, addresses = "nodes do Services, and there is no DaemonSet kube-system/kube-proxy", "nodes answer for names, and Service kube-system/kube-dns has no endpoint", "nodes answer on the link for 3 addresses"
	const off = "would take Weft's annotations and conditions off"
	for name, test := range map[string]struct {
		objects []runtime.Object
		ended   bool
		want    []string
	}{
		"nobody else does":         {nodes, false, []string{off, services, names, addresses}},
		"kube-proxy was ended":     {nodes, true, []string{off, names, addresses}},
		"others do":                {append(slices.Clone(nodes), proxy, service, slice(true)), false, []string{off, addresses}},
		"CoreDNS is not ready":     {append(slices.Clone(nodes), proxy, service, slice(false)), false, []string{off, names, addresses}},
		"pods ask elsewhere, too":  {append(slices.Clone(nodes), more, proxy, service, slice(true)), false, []string{off, beside, addresses}},
		"Weft does nothing of it":  {[]runtime.Object{node("node1", map[string]string{api.ServiceProxyAnnotation: api.KubeProxy})}, false, []string{off}},
		"Weft was never on a node": {[]runtime.Object{node("node1", nil)}, false, nil},
	} {
		var said []string
		r := New(server(t, test.objects...), Options{Progress: func(line string) { said = append(said, line) }})
		if err := r.previewNodes(t.Context(), test.ended); err != nil {
			t.Fatal(name, err)
		}
		if !slices.EqualFunc(said, test.want, strings.HasPrefix) {
			t.Errorf("%s: it is said %q, want %q", name, said, test.want)
		}
	}
}
