package kubernetes_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
)

// TestTranslation reads each *.yaml of testdata/*.txtar and holds what becomes
// of the policies in it against the file of that name ending in .out.
func TestTranslation(t *testing.T) {
	golden.Answers(t, "testdata/*.txtar", func(t *testing.T, _, text string) string {
		var out strings.Builder
		var policies []*policy.Policy
		for document := range strings.SplitSeq(text, "---\n") {
			p, problems := translate(t, []byte(document))
			if p == nil {
				out.WriteString(identity(t, []byte(document), kubernetes.Named(policies)))
				continue
			}
			policies = append(policies, p)
			describe(&out, p, problems)
		}
		return out.String()
	})
}

func kindOf(t *testing.T, document []byte) string {
	var o struct{ Kind string }
	if err := yaml.Unmarshal(document, &o); err != nil {
		t.Fatal(err)
	}
	return o.Kind
}

// translate translates a policy; of another object there is none.
func translate(t *testing.T, document []byte) (p *policy.Policy, problems []string) {
	switch kindOf(t, document) {
	case "NetworkPolicy":
		var o networkingv1.NetworkPolicy
		read(t, document, &o)
		return kubernetes.NetworkPolicy(&o)
	case "ClusterNetworkPolicy":
		var o policyv1alpha2.ClusterNetworkPolicy
		read(t, document, &o)
		return kubernetes.ClusterNetworkPolicy(&o)
	}
	return nil, nil
}

func read(t *testing.T, document []byte, o any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, o); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
}

func identity(t *testing.T, document []byte, named map[string]bool) string {
	var p corev1.Pod
	read(t, document, &p)
	id := kubernetes.Identity(&p, named)
	out := fmt.Sprintf("Pod %s/%s\n  labels %v\n", id.Namespace, p.Name, id.Labels)
	for _, port := range id.Ports {
		out += fmt.Sprintf("  port %s is %s %d\n", port.Name, port.Protocol, port.Port)
	}
	return out
}

var (
	tiers   = map[policy.Tier]string{policy.Admin: "admin", policy.Isolating: "isolating", policy.Baseline: "baseline"}
	actions = map[policy.Action]string{policy.Allow: "allow", policy.Deny: "deny", policy.Pass: "pass"}
)

// describe writes a policy down, with a line for each of its parts.
func describe(out *strings.Builder, p *policy.Policy, problems []string) {
	fmt.Fprintf(out, "%s, tier %s", p.Name, tiers[p.Tier])
	if p.Tier != policy.Isolating {
		fmt.Fprintf(out, ", priority %d", p.Priority)
	}
	fmt.Fprintf(out, "\n  subject %s\n", selector(&p.Subject))
	if p.IsolatesIngress {
		out.WriteString("  isolates ingress\n")
	}
	if p.IsolatesEgress {
		out.WriteString("  isolates egress\n")
	}
	for _, rules := range [][]policy.Rule{p.Ingress, p.Egress} {
		for _, r := range rules {
			fmt.Fprintf(out, "  %s: %s\n", r.Origin, actions[r.Action])
			if r.Peers == nil {
				out.WriteString("    peers: all\n")
			}
			for _, peer := range r.Peers {
				fmt.Fprintf(out, "    peer: %s\n", peerText(peer))
			}
			if r.Ports == nil {
				out.WriteString("    ports: all\n")
			}
			for _, port := range r.Ports {
				what := port.Range.String()
				if port.Name != "" {
					what = "named " + port.Name
				}
				fmt.Fprintf(out, "    port: %s %s\n", port.Protocol, what)
			}
		}
	}
	for _, problem := range problems {
		fmt.Fprintf(out, "  problem: %s\n", problem)
	}
}

func selector(s *policy.Selector) string {
	namespaces, pods := "all namespaces", "all pods"
	switch {
	case s.Namespace != "":
		namespaces = "namespace " + s.Namespace
	case s.Namespaces != nil:
		namespaces = "namespaces with " + s.Namespaces.String()
	}
	if s.Pods != nil {
		pods = "pods with " + s.Pods.String()
	}
	return pods + " in " + namespaces
}

func peerText(p policy.Peer) string {
	switch {
	case p.Pods != nil:
		return selector(p.Pods)
	case p.Block != nil && p.Block.Except != nil:
		return fmt.Sprintf("%s without %v", p.Block.Prefix, p.Block.Except)
	case p.Block != nil:
		return p.Block.Prefix.String()
	case p.Nodes != nil:
		return strings.TrimSuffix("nodes with "+p.Nodes.String(), " with ")
	case p.Domain != "":
		return "domain " + p.Domain
	}
	return "nobody"
}

// FuzzNetworkPolicy: whatever an object says, what becomes of it is a policy
// that isolates at most pods of its namespace, and allows nothing of which it
// says that it has a problem.
func FuzzNetworkPolicy(f *testing.F) {
	f.Add([]byte(`{"spec":{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":80,"endPort":90},{"port":"http","protocol":"UDP"}]}]}}`))
	f.Add([]byte(`{"spec":{"policyTypes":["Both"],"egress":[{"to":[{"ipBlock":{"cidr":"::ffff:10.0.0.0/8","except":["x","0.0.0.0/0"]}},{}],"ports":[{"port":0},{"endPort":1},{"port":70000},{"port":2,"endPort":1},{"protocol":"ICMP"},{"port":""}]}]}}`))
	f.Add([]byte(`{"spec":{"podSelector":{"matchExpressions":[{"key":"a b","operator":"Is"}]},"ingress":[{}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var o networkingv1.NetworkPolicy
		if json.Unmarshal(text, &o) != nil {
			return
		}
		o.Namespace, o.Name = "default", "fuzz"
		p, problems := kubernetes.NetworkPolicy(&o)
		check(t, p, problems)
		if p.Subject.Namespace != "default" || !p.IsolatesIngress && !p.IsolatesEgress {
			t.Errorf("%+v", p)
		}
		for _, r := range slices.Concat(p.Ingress, p.Egress) {
			if r.Action != policy.Allow {
				t.Errorf("%s: %v", r.Origin, r.Action)
			}
		}
	})
}

// FuzzClusterNetworkPolicy: whatever an object says, what becomes of it is a
// policy, and each of its rules is there.
func FuzzClusterNetworkPolicy(f *testing.F) {
	f.Add([]byte(`{"spec":{"tier":"Admin","priority":7,"subject":{"namespaces":{}},"ingress":[{"name":"a","action":"Pass","from":[{"pods":{"podSelector":{}}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}}]}],"egress":[{"action":"Accept","to":[{"domainNames":["Example.com.","*.example.com"]},{"nodes":{}}],"protocols":[{"destinationNamedPort":"http"}]}]}}`))
	f.Add([]byte(`{"spec":{"tier":"?","subject":{},"ingress":[{"action":"Deny","from":[{}]}],"egress":[{"action":"Log","to":[],"protocols":[{},{"udp":{}},{"sctp":{"destinationPort":{"range":{"start":9,"end":1}}}},{"tcp":{"destinationPort":{"number":-1}}}]},{"action":"Deny","to":[{"networks":["x"]},{"domainNames":["a.b"]}]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var o policyv1alpha2.ClusterNetworkPolicy
		if json.Unmarshal(text, &o) != nil {
			return
		}
		p, problems := kubernetes.ClusterNetworkPolicy(&o)
		check(t, p, problems)
		if len(p.Ingress) != len(o.Spec.Ingress) || len(p.Egress) != len(o.Spec.Egress) {
			t.Errorf("of %d and %d rules there are %d and %d", len(o.Spec.Ingress), len(o.Spec.Egress), len(p.Ingress), len(p.Egress))
		}
		for _, r := range slices.Concat(p.Ingress, p.Egress) {
			if r.Action == policy.Allow && r.Peers == nil {
				t.Errorf("%s allows all, which no rule can say", r.Origin)
			}
		}
	})
}

// check holds a policy against what every policy is.
func check(t *testing.T, p *policy.Policy, problems []string) {
	t.Helper()
	for _, problem := range problems {
		if !strings.HasPrefix(problem, "spec.") {
			t.Errorf("the problem %q names no field", problem)
		}
	}
	for _, r := range slices.Concat(p.Ingress, p.Egress) {
		if !strings.HasPrefix(r.Origin, p.Name+" ") {
			t.Errorf("a rule of %s is called %s", p.Name, r.Origin)
		}
		if r.Peers != nil && len(r.Peers) == 0 || r.Ports != nil && len(r.Ports) == 0 {
			t.Errorf("%s has an empty list", r.Origin)
		}
		nobody := len(r.Peers) == 1 && r.Peers[0] == policy.Peer{}
		for _, peer := range r.Peers {
			if b := peer.Block; b != nil {
				for _, prefix := range append([]netip.Prefix{b.Prefix}, b.Except...) {
					if !prefix.IsValid() || prefix != prefix.Masked() || !b.Prefix.Contains(prefix.Addr()) {
						t.Errorf("%s has the block %+v", r.Origin, b)
					}
				}
			}
			if peer == (policy.Peer{}) && !nobody {
				t.Errorf("%s has nobody among its peers: %v", r.Origin, r.Peers)
			}
			if nobody && len(problems) == 0 {
				t.Errorf("%s matches nothing, and nothing is said", r.Origin)
			}
		}
		for _, port := range r.Ports {
			if port.Range.First > port.Range.Last || port.Range.Last == 0 || port.Protocol == plan.AnyProtocol && port.Name == "" {
				t.Errorf("%s has the port %+v", r.Origin, port)
			}
		}
	}
}

func TestIdentitySharesWhatItMay(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Labels = map[string]string{"app": "web", "pod-template-hash": "1"}
	if id := kubernetes.Identity(pod, nil); !maps.Equal(id.Labels, labels.Set{"app": "web"}) {
		t.Errorf("got the labels %v", id.Labels)
	}
	if len(pod.Labels) != 2 {
		t.Errorf("the pod was changed: %v", pod.Labels)
	}
	delete(pod.Labels, "app")
	if id := kubernetes.Identity(pod, nil); id.Labels != nil {
		t.Errorf("got the labels %v, not nil", id.Labels)
	}
}
