package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
)

// Where a single change would allow a connection, that is the advice, and where
// the advice is a single change, there is one: all changes that there can be are
// tried, by other code than that which looks for them.
func TestAdviceIsTheLeast(t *testing.T) {
	seen := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		keys, values := []string{"a", "b"}, []string{"x", "y"}
		set := rapid.Custom(func(t *rapid.T) labels.Set {
			s := labels.Set{}
			for _, k := range keys {
				if v := rapid.SampledFrom(append(values, "")).Draw(t, k); v != "" {
					s[k] = v
				}
			}
			return s
		})
		selector := rapid.Custom(func(t *rapid.T) labels.Selector {
			s := labels.NewSelector()
			for range rapid.IntRange(0, 2).Draw(t, "requirements") {
				op := rapid.SampledFrom([]selection.Operator{selection.In, selection.NotIn, selection.Exists, selection.DoesNotExist}).Draw(t, "operator")
				var vs []string
				if op == selection.In || op == selection.NotIn {
					vs = rapid.SliceOfNDistinct(rapid.SampledFrom(values), 1, 2, rapid.ID[string]).Draw(t, "values")
				}
				r, err := labels.NewRequirement(rapid.SampledFrom(keys).Draw(t, "key"), op, vs)
				if err != nil {
					t.Fatal(err)
				}
				s = s.Add(*r)
			}
			return s
		})
		namespaces := map[string]labels.Set{"n1": set.Draw(t, "n1"), "n2": set.Draw(t, "n2")}
		peerSelector := rapid.Custom(func(t *rapid.T) Peer {
			s := &Selector{Namespace: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "namespace")}
			if rapid.Bool().Draw(t, "by namespace") {
				s.Namespaces = selector.Draw(t, "namespaces")
			}
			if rapid.Bool().Draw(t, "by pod") {
				s.Pods = selector.Draw(t, "pods")
			}
			return Peer{Pods: s}
		})
		port := rapid.SampledFrom([]Port{
			{Protocol: plan.TCP, Range: plan.PortRange{First: 1, Last: 1}}, {Protocol: plan.TCP, Range: plan.PortRange{First: 2, Last: 3}},
			{Protocol: plan.UDP, Range: plan.AllPorts}, {Protocol: plan.TCP, Name: "p"}, {Protocol: plan.UDP, Name: "p"},
		})
		var policies []*Policy
		for i := range rapid.IntRange(1, 3).Draw(t, "policies") {
			p := &Policy{Name: fmt.Sprint("p", i), Tier: Isolating, IsolatesIngress: true}
			for j := range rapid.IntRange(0, 2).Draw(t, "rules") {
				r := Rule{Origin: fmt.Sprintf("%s ingress[%d]", p.Name, j), Action: Allow, Ports: rapid.SliceOfN(port, 1, 2).Draw(t, "ports")}
				r.Peers = rapid.SliceOfN(peerSelector, 1, 2).Draw(t, "peers")
				p.Ingress = append(p.Ingress, r)
			}
			policies = append(policies, p)
		}
		identity := func(name string) *Identity {
			id := &Identity{Namespace: rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, name), Labels: set.Draw(t, name)}
			if rapid.Bool().Draw(t, "has the port") {
				id.Ports = []NamedPort{{Name: "p", Protocol: plan.TCP, Port: 1}}
			}
			return id
		}
		subject, peer := identity("subject"), identity("peer")
		c := Connection{
			Direction: plan.Incoming, Protocol: plan.TCP, Port: rapid.Uint16Range(1, 3).Draw(t, "port"),
			SubjectName: "pod s", Subject: Party{Identity: subject, NamespaceLabels: namespaces[subject.Namespace], Address: netip.MustParseAddr("10.1.1.2")},
			PeerName: "pod p", Peer: Party{Identity: peer, NamespaceLabels: namespaces[peer.Namespace], Address: netip.MustParseAddr("10.1.1.3")},
		}
		advice := Advise(policies, c)
		if advice.Decision.Allow {
			return
		}

		possible := false
		try := func(p []*Policy, c Connection) { possible = possible || c.Decide(p).Allow }
		relabeled := func(s labels.Set, with func(labels.Set)) {
			for _, k := range keys {
				for _, v := range append([]string{"", "z"}, values...) {
					changed := labels.Merge(s, labels.Set{k: v})
					if v == "" {
						delete(changed, k)
					}
					with(changed)
				}
			}
		}
		relabeled(peer.Labels, func(s labels.Set) {
			c, id := c, *peer
			id.Labels, c.Peer.Identity = s, &id
			try(policies, c)
		})
		relabeled(c.Peer.NamespaceLabels, func(s labels.Set) {
			c := c
			c.Peer.NamespaceLabels = s
			if subject.Namespace == peer.Namespace {
				c.Subject.NamespaceLabels = s
			}
			try(policies, c)
		})
		if len(subject.Ports) == 0 {
			c, id := c, *subject
			id.Ports = []NamedPort{{Name: "p", Protocol: plan.TCP, Port: c.Port}}
			c.Subject.Identity = &id
			try(policies, c)
		}
		for i, p := range policies {
			for j := range p.Ingress {
				q := *p
				q.Ingress = slices.Clone(p.Ingress)
				q.Ingress[j].Ports = append(slices.Clone(q.Ingress[j].Ports), Port{Protocol: plan.TCP, Range: plan.PortRange{First: c.Port, Last: c.Port}})
				with := slices.Clone(policies)
				with[i] = &q
				try(with, c)
			}
		}
		if possible != (advice.Nearest != "" && advice.cost == 1) {
			t.Fatalf("that one change is enough is %v, but the advice costs %d: %s", possible, advice.cost, advice.Text)
		}
		seen[possible]++
	})
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("the cases are all alike: %v", seen)
	}
}
