package policy_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
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

// objects are those of a story.
type objects struct {
	policies   []*policy.Policy
	namespaces []*policy.Namespace
	pods       []*corev1.Pod
	machines   []*policy.Machine
}

// read reads YAML documents.
func (o *objects) read(t *testing.T, text []byte) {
	t.Helper()
	for document := range bytes.SplitSeq(text, []byte("---\n")) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatal(err)
		}
		into := func(v any) {
			if err := yaml.UnmarshalStrict(document, v); err != nil {
				t.Fatal(err)
			}
		}
		put := func(p *policy.Policy, problems []string) {
			if len(problems) > 0 {
				t.Fatalf("%s: %v", p.Name, problems)
			}
			o.policies = append(o.policies, p)
		}
		switch head.Kind {
		case "NetworkPolicy":
			var np networkingv1.NetworkPolicy
			into(&np)
			put(kubernetes.NetworkPolicy(&np))
		case "ClusterNetworkPolicy":
			var cnp policyv1alpha2.ClusterNetworkPolicy
			into(&cnp)
			put(kubernetes.ClusterNetworkPolicy(&cnp))
		case "Namespace":
			var ns corev1.Namespace
			into(&ns)
			set := labels.Merge(ns.Labels, labels.Set{corev1.LabelMetadataName: ns.Name})
			o.namespaces = append(o.namespaces, &policy.Namespace{Name: ns.Name, Labels: set})
		case "Pod":
			var pod corev1.Pod
			into(&pod)
			o.pods = append(o.pods, &pod)
		case "Node":
			var node corev1.Node
			into(&node)
			m := &policy.Machine{Name: node.Name, Labels: node.Labels}
			for _, a := range node.Status.Addresses {
				m.Addresses = append(m.Addresses, netip.MustParseAddr(a.Address))
			}
			o.machines = append(o.machines, m)
		default:
			t.Fatalf("no kind %q in\n%s", head.Kind, document)
		}
	}
}

func (o *objects) party(t *testing.T, name string) (string, policy.Party) {
	t.Helper()
	for _, p := range o.pods {
		if p.Namespace+"/"+p.Name != name {
			continue
		}
		party := policy.Party{Identity: kubernetes.Identity(p, kubernetes.Named(o.policies)), Address: netip.MustParseAddr(p.Status.PodIP)}
		for _, ns := range o.namespaces {
			if ns.Name == p.Namespace {
				party.NamespaceLabels = ns.Labels
			}
		}
		return "pod " + name, party
	}
	party := policy.Party{Address: netip.MustParseAddr(name)}
	for _, m := range o.machines {
		if slices.Contains(m.Addresses, party.Address) {
			party.Machines = append(party.Machines, m.Labels)
		}
	}
	return name, party
}

// TestAdvice asks, for each question "SOURCE DESTINATION PROTOCOL [PORT]" of the
// stories, the policies of those that are pods.
func TestAdvice(t *testing.T) {
	golden.Archives(t, "testdata/advise-*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var o objects
		for i, f := range story {
			if f.Name == "objects" {
				o.read(t, f.Data)
				continue
			}
			words := strings.Fields(f.Name)
			protocol, err := plan.ParseProtocol(words[2])
			if err != nil {
				t.Fatal(err)
			}
			c := policy.Connection{Protocol: protocol}
			if len(words) > 3 {
				if _, err := fmt.Sscan(words[3], &c.Port); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			for _, side := range []struct {
				direction     plan.Direction
				subject, peer string
			}{{plan.Outgoing, words[0], words[1]}, {plan.Incoming, words[1], words[0]}} {
				c.Direction = side.direction
				c.SubjectName, c.Subject = o.party(t, side.subject)
				c.PeerName, c.Peer = o.party(t, side.peer)
				if c.Subject.Identity == nil {
					continue
				}
				a := policy.Advise(o.policies, c)
				if want := c.Decide(o.policies); a.Decision != want {
					t.Errorf("%s: Advise says %v, Decide %v", f.Name, a.Decision, want)
				}
				result := "denied"
				if a.Decision.Allow {
					result = "allowed"
				}
				fmt.Fprintf(&out, "%s %s: %s\n", c.Direction, result, a.Decision.Origin)
				if a.Text != "" {
					fmt.Fprintf(&out, "  %s\n", a.Text)
				}
			}
			story[i].Data = []byte(out.String())
		}
		return story
	})
}
