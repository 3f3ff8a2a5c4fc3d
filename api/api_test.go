package api_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/registry"
)

// TestGolden reads each *.yaml of testdata/*.txtar and holds what Decode and
// the kinds' rules make of it against the file of that name ending in .out.
func TestGolden(t *testing.T) {
	golden.Answers(t, "testdata/*.txtar", func(_ *testing.T, _, text string) string { return describe([]byte(text)) })
}

func describe(text []byte) string {
	decoded, err := api.Decode(text, api.Kinds)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if len(decoded) == 0 {
		return "no object\n"
	}
	var b strings.Builder
	for _, d := range decoded {
		fmt.Fprintf(&b, "line %d: ", d.Line)
		if _, _, err := d.Kind.Admit(d.Object); err != nil {
			if !errors.Is(err, registry.ErrInvalid) {
				return "wrong error: " + err.Error()
			}
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", d.Kind.Singular, registry.KeyOf(d.Object))
	}
	return b.String()
}

// Policies select namespaces by name with a label that an API server sets, and
// other registries do not.
func TestNamespacesWearTheirNames(t *testing.T) {
	for _, text := range []string{
		"{apiVersion: v1, kind: Namespace, metadata: {name: dev}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: dev, labels: {kubernetes.io/metadata.name: prod}}}",
	} {
		decoded, err := api.Decode([]byte(text), api.Kinds)
		if err != nil {
			t.Fatal(err)
		}
		fields, _ := decoded[0].Fields["metadata"].(map[string]any)["labels"].(map[string]any)
		if got := decoded[0].Object.GetLabels()["kubernetes.io/metadata.name"]; got != "dev" || fields["kubernetes.io/metadata.name"] != "dev" {
			t.Errorf("%s: the label is %q, among the fields %v", text, got, fields)
		}
	}
}

// FuzzDecode: whatever it is given, Decode returns, and what it accepts comes
// out the same after it was written and read once more.
func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, a := range archive.Files {
			f.Add(a.Data)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		decoded, err := api.Decode(text, api.Kinds)
		if err != nil && decoded != nil {
			t.Fatal("something was returned beside an error")
		}
		for _, d := range decoded {
			_, _, _ = d.Kind.Admit(d.Object) // must not panic
			again, err := yaml.Marshal(d.Object)
			if err != nil {
				continue // a quantity or time that JSON cannot hold
			}
			second, err := api.Decode(again, api.Kinds)
			if err != nil || len(second) != 1 {
				t.Fatalf("%s\nbecame\n%s\nand then %v, %v", text, again, second, err)
			}
		}
	})
}

// TestDeepCopySharesNothing changes all that a copy refers to.
func TestDeepCopySharesNothing(t *testing.T) {
	for _, test := range []struct {
		text   string
		change func(registry.Object)
	}{
		{`
apiVersion: weft.network/v1
kind: ClusterConfig
metadata: {name: default, labels: {a: b}}
spec: {pluginNodes: [node1]}
status:
  plugins: [flannel]
  conditions: [{type: Known, status: "True", reason: r, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]
  subnets:
    pending: [{subnet: 10.1.0.0/24, node: a, until: "2026-01-01T00:00:00Z"}]
    quarantined: [{subnet: 10.1.1.0/24, node: b, until: "2026-01-01T00:00:00Z"}]
    cursor: {10.1.0.0/16: 10.1.0.0/24}
`, func(o registry.Object) {
			c := o.(*api.ClusterConfig)
			c.Spec.PluginNodes[0], c.Status.Plugins[0] = "changed", "changed"
			c.Status.Conditions[0].Message = "changed"
			c.Status.Subnets.Pending[0].Until.Time = c.Status.Subnets.Pending[0].Until.AddDate(1, 0, 0)
			c.Status.Subnets.Quarantined[0].Node = "changed"
			c.Status.Subnets.Cursor["10.1.0.0/16"] = "changed"
		}},
		{`
apiVersion: weft.network/v1
kind: Tag
metadata: {name: "10", labels: {a: b}}
spec:
  namespace: shop
  labels: {a: b}
  ports: [{name: http, protocol: TCP, port: 80}]
  unusedSince: "2026-01-01T00:00:00Z"
`, func(o registry.Object) {
			s := &o.(*api.Tag).Spec
			s.Labels["a"] = "changed"
			s.Ports[0].Port++
			s.UnusedSince.Time = s.UnusedSince.AddDate(1, 0, 0)
		}},
		{`
apiVersion: weft.network/v1
kind: NodePods
metadata: {name: node1, labels: {a: b}}
pods: [{tag: 10, addresses: [10.1.1.2]}]
`, func(o registry.Object) {
			p := o.(*api.NodePods)
			p.Pods[0].Addresses[0] = "changed"
			p.Pods[0].Tag++
		}},
		{`
apiVersion: weft.network/v1
kind: NodeReport
metadata: {name: node1, labels: {a: b}}
enforced: {networkpolicies: "1"}
problems: [{kind: NetworkPolicy, namespace: shop, name: web, message: m}]
`, func(o registry.Object) {
			r := o.(*api.NodeReport)
			r.Enforced["networkpolicies"] = "changed"
			r.Problems[0].Message = "changed"
		}},
		{`
apiVersion: weft.network/v1
kind: DomainName
metadata: {name: example.com, labels: {a: b}}
addresses: [192.0.2.1]
`, func(o registry.Object) { o.(*api.DomainName).Addresses[0] = "changed" }},
	} {
		original, unchanged := decodeOne(t, test.text), decodeOne(t, test.text)
		t.Run(original.GetObjectKind().GroupVersionKind().Kind, func(t *testing.T) {
			copied := original.DeepCopyObject().(registry.Object)
			if !reflect.DeepEqual(original, copied) {
				t.Fatalf("copied %+v, want %+v", copied, original)
			}
			copied.GetLabels()["a"] = "changed"
			test.change(copied)
			if reflect.DeepEqual(original, copied) {
				t.Fatal("nothing was changed")
			}
			if !reflect.DeepEqual(original, unchanged) {
				t.Errorf("a change of the copy changed the original: %+v", original)
			}
		})
	}
}

func decodeOne(t *testing.T, text string) registry.Object {
	t.Helper()
	decoded, err := api.Decode([]byte(text), api.Kinds)
	if err != nil {
		t.Fatal(err)
	}
	return decoded[0].Object
}

// TestKeep holds what is left of objects against what they were; the policies
// keep all that they say.
func TestKeep(t *testing.T) {
	for _, test := range []struct {
		kind        *registry.Kind
		whole, kept string
	}{
		{api.Pod, `
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web}
  managedFields: [{manager: kubelet}]
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
spec:
  nodeName: node1
  serviceAccountName: web
  initContainers:
  - {name: first, image: a}
  - {name: sidecar, image: b, restartPolicy: Always, ports: [{name: proxy, containerPort: 15001}]}
  containers:
  - {name: web, image: c, ports: [{name: http, containerPort: 80}]}
  - {name: other, image: d}
status: {phase: Running, podIP: 10.1.1.2, podIPs: [{ip: 10.1.1.2}], qosClass: BestEffort}
`, `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node1
  initContainers: [{name: sidecar, restartPolicy: Always, ports: [{name: proxy, containerPort: 15001}]}]
  containers: [{name: web, ports: [{name: http, containerPort: 80}]}]
status: {phase: Running, podIP: 10.1.1.2, podIPs: [{ip: 10.1.1.2}]}
`},
		{api.Pod, `
apiVersion: v1
kind: Pod
metadata: {name: reopens, namespace: shop}
spec: {dnsPolicy: ClusterFirst, dnsConfig: {nameservers: [192.0.2.1], options: [{name: single-request-reopen}, {name: timeout, value: "1"}]}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: reopens, namespace: shop}
spec: {dnsPolicy: ClusterFirst}
`},
		{api.Pod, `
apiVersion: v1
kind: Pod
metadata: {name: dots, namespace: shop}
spec: {dnsConfig: {options: [{name: timeout, value: "1"}, {name: ndots, value: "2"}]}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: dots, namespace: shop}
spec: {dnsConfig: {}}
`},
		{api.Pod, `
apiVersion: v1
kind: Pod
metadata: {name: written, namespace: shop}
spec: {dnsConfig: {options: [{name: "rotate ndots:1"}]}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: written, namespace: shop}
spec: {dnsConfig: {}}
`},
		{api.Pod, `
apiVersion: v1
kind: Pod
metadata: {name: searches, namespace: shop}
spec: {dnsConfig: {searches: [corp.example]}}
`, `
apiVersion: v1
kind: Pod
metadata: {name: searches, namespace: shop}
spec: {dnsConfig: {}}
`},
		{api.NetworkPolicy, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop, managedFields: [{manager: kubectl}], annotations: {a: b, kubectl.kubernetes.io/last-applied-configuration: "{}"}}
spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}
`, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop, annotations: {a: b}}
spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}
`},
		{api.ClusterNetworkPolicy, `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin, managedFields: [{manager: kubectl}]}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [10.0.0.0/8]}]}]}
status: {conditions: [{type: Enforced, status: "True", reason: r, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`, `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [10.0.0.0/8]}]}]}
status: {conditions: [{type: Enforced, status: "True", reason: r, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`},
	} {
		t.Run(test.kind.Kind, func(t *testing.T) {
			o := decodeOne(t, test.whole)
			test.kind.Keep(o)
			if diff := cmp.Diff(decodeOne(t, test.kept), o); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestManyNodeProblems has somebody write more problems into a Node than an agent
// does: nobody who reads them works on all.
func TestManyNodeProblems(t *testing.T) {
	node := &corev1.Node{}
	node.Name = "node1"
	var said []api.Problem
	for i := range api.MaxNodeProblems + 7 {
		said = append(said, api.Problem{Message: fmt.Sprint("problem ", i)})
	}
	api.SetNodeProblems(node, said)
	got := api.NodeProblems(node)
	if last := got[len(got)-1]; len(got) != api.MaxNodeProblems+1 || last.Name != "node1" || !strings.Contains(last.Message, "7 more") {
		t.Errorf("%d problems, the last of which is %v", len(got), last)
	}
	api.SetNodeProblems(node, said[:api.MaxNodeProblems])
	if got := api.NodeProblems(node); len(got) != api.MaxNodeProblems {
		t.Errorf("of as many as an agent says %d are read", len(got))
	}
}

// TestNodeProblemsWithoutWords has somebody write problems into a Node that say nothing. Each
// is told with words, of the Node.
func TestNodeProblemsWithoutWords(t *testing.T) {
	for _, text := range []string{`[{"object":"x"}]`, `[{}]`, `[null]`, `[{"kind":"Pod","name":"web","message":" "}]`} {
		node := &corev1.Node{}
		node.Name, node.Annotations = "node1", map[string]string{api.ProblemsAnnotation: text}
		if got := api.NodeProblems(node); len(got) != 1 || got[0].Object() != "node node1" || !strings.Contains(got[0].Message, "look who writes the Node") {
			t.Errorf("of %s it is said %v", text, got)
		}
	}
}

// TestManyNodeAddresses tries which addresses of a Node are believed.
func TestManyNodeAddresses(t *testing.T) {
	n := &corev1.Node{}
	put := func(kind corev1.NodeAddressType, text string) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: text})
	}
	for _, text := range []string{"172.30.0.1", "172.30.0.1", "127.0.0.1", "nonsense", "fd00:30::1"} {
		put(corev1.NodeInternalIP, text)
	}
	put(corev1.NodeExternalIP, "198.51.100.1")
	if got := fmt.Sprint(api.NodeAddresses(n)); got != "[172.30.0.1 fd00:30::1]" {
		t.Errorf("internal addresses %s", got)
	}
	if got, err := api.AddressesOf(n, corev1.NodeInternalIP, corev1.NodeExternalIP); fmt.Sprint(got) != "[172.30.0.1 fd00:30::1 198.51.100.1]" || err != nil {
		t.Errorf("internal and external addresses %v, error %v", got, err)
	}
	for i := range 100 {
		put(corev1.NodeInternalIP, fmt.Sprintf("172.30.1.%d", i+1))
	}
	got, err := api.AddressesOf(n, corev1.NodeInternalIP)
	if len(got) != api.MaxNodeAddresses || err == nil || !strings.Contains(err.Error(), "172.30.1.15") {
		t.Errorf("of 102 internal addresses %v are believed, error %v", got, err)
	}
	// What is there again is not one more.
	put(corev1.NodeInternalIP, "172.30.0.1")
	n.Status.Addresses = slices.Concat(n.Status.Addresses[:20], n.Status.Addresses[len(n.Status.Addresses)-1:])
	if got, err := api.AddressesOf(n, corev1.NodeInternalIP); len(got) != api.MaxNodeAddresses || err != nil {
		t.Errorf("addresses %v, error %v", got, err)
	}
}

// Who reads objects gets those, too, that were stored before there was a rule that they break.
func TestStoredServicesAreReadAsTheyAre(t *testing.T) {
	old := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}, Spec: corev1.ServiceSpec{Type: "Foo"}}
	if api.Service.Validate(old) == nil {
		t.Fatal("it breaks no rule")
	}
	old.SetGroupVersionKind(api.Service.GroupVersionKind)
	value, err := api.Service.Encode(old)
	if err != nil {
		t.Fatal(err)
	}
	read, err := api.Service.Decode(registry.KeyOf(old), value, registry.Stored{}, "1")
	if err != nil || read.(*corev1.Service).Spec.Type != "Foo" {
		t.Errorf("it is read as %v, %v", read, err)
	}
}
