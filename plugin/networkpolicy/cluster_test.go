package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/registry"
)

// TestCollectorLosesToAllocator lets an agent take a Tag into use after the
// controller has decided to remove it.
func TestCollectorLosesToAllocator(t *testing.T) {
	now := time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
	for name, meanwhile := range map[string]func(w *world){
		"the mark is gone": func(w *world) {
			if _, err := allocate(context.Background(), w.registry, identity("shop"), nil); err != nil {
				w.t.Fatal(err)
			}
		},
		"what the controller knows is old": func(w *world) {
			w.create(api.NodePodsKind, &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: "node1"},
				Pods: []api.TaggedPods{{Tag: int32(candidate(identity("shop"))), Addresses: []string{"10.1.1.1"}}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			mark := metav1.NewTime(now.Add(-DefaultKeepTags))
			o := &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: tagName(candidate(identity("shop")))}, Spec: specOf(identity("shop"))}
			o.Spec.UnusedSince = &mark
			w.create(api.TagKind, o)
			k := &collector{keep: DefaultKeepTags}
			if d := k.decide(w.snapshot(collectorKinds), now.Add(-idle)); len(d.remove) != 0 {
				t.Fatalf("decided when the mark was seen first: %+v", d)
			}
			d := k.decide(w.snapshot(collectorKinds), now)
			if len(d.remove) != 1 {
				t.Fatalf("decided: %+v", d)
			}
			meanwhile(w)
			if err := d.carryOut(t.Context(), w.registry, now); err != nil {
				t.Fatal(err)
			}
			if n := len(all[*api.Tag](w, api.TagKind)); n != 1 {
				t.Errorf("%d Tags are left", n)
			}
		})
	}
}

// A node whose object is back when its leavings are about to go keeps them.
func TestNodeIsBack(t *testing.T) {
	w := newWorld(t)
	now := time.Date(2026, 1, 5, 10, 0, 0, 0, time.UTC)
	w.create(api.NodePodsKind, &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	k := &collector{keep: DefaultKeepTags}
	if d := k.decide(w.snapshot(collectorKinds), now); len(d.gone) != 0 || !d.next.Equal(now.Add(idle)) {
		t.Fatalf("at once: %+v", d)
	}
	now = now.Add(idle)
	d := k.decide(w.snapshot(collectorKinds), now)
	if !slices.Equal(d.gone, []string{"node1"}) {
		t.Fatalf("after a while: %+v", d)
	}
	w.create(api.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	if err := d.carryOut(t.Context(), w.registry, now); err != nil || len(all[*api.NodePods](w, api.NodePodsKind)) != 1 {
		t.Errorf("%v\n%s", err, w.state())
	}
}

const denyAll = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: db}
spec:
  tier: Admin
  priority: %d
  subject: {namespaces: {}}
  ingress: [{action: Deny, from: [{namespaces: {}}]}]
`

// Conditions and reports answer each other for one round, not for ever: a change
// of a policy costs a condition and two reports of each node.
func TestQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := newAgents(t, w)
		defer c.end()
		w.apply(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
		for i := range 3 {
			c.do([]string{"node", fmt.Sprint("node", i)})
			c.nodes[fmt.Sprint("node", i)].start(fmt.Sprint("shop/pod-", i), fmt.Sprint("10.1.1.", i))
		}
		settle(time.Second) // a controller cannot tell when what it finds was made
		w.apply(fmt.Sprintf(denyAll, 1))
		settle(time.Minute)
		revision := func() (n int) {
			_, r, err := w.registry.List(t.Context(), api.TagKind)
			if err == nil {
				_, err = fmt.Sscan(string(r), &n)
			}
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := revision()
		settle(2 * recheck)
		if now := revision(); now != before {
			t.Errorf("with nothing to say there were %d writes", now-before)
		}
		w.apply(fmt.Sprintf(denyAll, 2))
		settle(time.Minute)
		// In the registry in memory every write raises every kind's revision.
		if n := revision() - before; n > 1+1+2*3 {
			t.Errorf("a change and what follows are %d writes", n)
		}
		for _, s := range States(w.snapshot(StateKinds())) {
			if len(s.Nodes) != 3 || len(s.Pending) > 0 {
				t.Errorf("in the end: %+v", s)
			}
		}
		families, err := c.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "weft_policy_enforcement_seconds" && f.GetMetric()[0].GetHistogram().GetSampleCount() != 2 {
				t.Errorf("two changes came into force, and the metric says %v", f)
			}
		}
	})
}

// Two controllers at once say the same, and come to rest.
func TestTwoControllers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		c := newAgents(t, w)
		defer c.end()
		c.start("second", func(ctx context.Context) { w.run(ctx, c.names, nil) })
		c.names.set("example.com.", "203.0.113.7")
		c.do([]string{"node", "node1"})
		c.nodes["node1"].start("shop/pod", "10.1.1.2")
		w.apply(fmt.Sprintf(denyAll, 1) + `  egress: [{action: Accept, to: [{domainNames: [example.com]}]}]`)
		settle(time.Minute)
		want := w.state()
		if !strings.Contains(want, "Enforced True") || !strings.Contains(want, "domainname example.com [203.0.113.7]") {
			t.Errorf("got\n%s", want)
		}
		c.nodes["node1"].stop("shop/pod")
		w.remove(api.ClusterNetworkPolicy, registry.Key{Name: "db"})
		settle(2 * DefaultKeepTags)
		if got := w.state(); got != "nodepods node1\nnodereport node1 of []\n" && got != "nodepods node1\nnodereport node1 of [clusternetworkpolicies]\n" {
			t.Errorf("in the end\n%s", got)
		}
	})
}

func TestCondition(t *testing.T) {
	nodes := []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"}
	for _, c := range []struct {
		state State
		want  string
	}{
		{State{}, "True InForce it is in force on every node with a pod that it selects"},
		{State{Nodes: nodes}, "True InForce it is in force on every node with a pod that it selects"},
		{State{Nodes: nodes, Pending: nodes[:2]}, "False Pending waiting for 2 of 7 nodes: n1, n2"},
		{State{Nodes: nodes, Pending: nodes}, "False Pending waiting for 7 of 7 nodes: n1, n2, n3, n4, n5 and 2 others"},
		{State{Nodes: nodes, Pending: nodes, Problems: []string{"a", "b"}}, "False NotEnforceable a; b"},
	} {
		got := conditionOf(c.state, 7)
		if text := fmt.Sprint(got.Status, " ", got.Reason, " ", got.Message); text != c.want || got.ObservedGeneration != 7 || got.Type != Enforced {
			t.Errorf("%+v gives %+v", c.state, got)
		}
	}
}

// What a controller decided about a policy is not said of one that has changed.
func TestStaleJudgment(t *testing.T) {
	w := newWorld(t)
	w.apply(fmt.Sprintf(denyAll, 1))
	var j judge
	d := j.decide(w.snapshot(StateKinds()), time.Now())
	if len(d.conditions) != 1 {
		t.Fatalf("decided %+v", d)
	}
	w.apply(fmt.Sprintf(denyAll, 2))
	if err := d.conditions[0].write(t.Context(), w.registry); err != nil {
		t.Fatal(err)
	}
	if p := all[*policyv1alpha2.ClusterNetworkPolicy](w, api.ClusterNetworkPolicy)[0]; len(p.Status.Conditions) > 0 {
		t.Errorf("it says %+v", p.Status.Conditions)
	}
}

func TestDomainsAreBounded(t *testing.T) {
	var n domain
	n.seen = map[netip.Addr]time.Time{}
	now := time.Now()
	address := netip.MustParseAddr("203.0.0.0")
	var first, rest []netip.Addr
	for range maxAddresses {
		address = address.Next()
		first = append(first, address)
	}
	for range 10 {
		address = address.Next()
		rest = append(rest, address)
	}
	n.answer(first, nil, now)
	if len(n.addresses()) != maxAddresses || n.problem != "" {
		t.Fatalf("%d addresses, %q", len(n.addresses()), n.problem)
	}
	n.answer(rest, nil, now.Add(time.Minute))
	got := n.addresses()
	if len(got) != maxAddresses || n.problem == "" || !slices.Contains(got, rest[0]) {
		t.Errorf("%d addresses, %q", len(got), n.problem)
	}
	n.answer(nil, errors.New("away"), now.Add(time.Hour))
	if len(n.addresses()) != maxAddresses || !strings.Contains(n.problem, "away") {
		t.Errorf("%d addresses, %q", len(n.addresses()), n.problem)
	}

	w := newWorld(t)
	for i := range maxDomains/20 + 1 {
		var names []string
		for j := range 20 {
			names = append(names, fmt.Sprintf("n%05d.example.com", i*20+j))
		}
		w.apply(fmt.Sprintf(`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: p%d}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress: [{action: Accept, to: [{domainNames: [%s]}]}]
`, i, strings.Join(names, ", ")))
	}
	d := domains{resolver: &names{}}
	if tooMany := d.update(w.snapshot(domainKinds), now); len(d.names) != maxDomains || len(tooMany) != 20 || tooMany[0] != "n01000.example.com" {
		t.Errorf("%d names, too many are %v", len(d.names), tooMany)
	}
}

// The same message about the same policy is one Event; all else is another.
func TestWarning(t *testing.T) {
	of := func(uid, name, message string) *corev1.Event {
		o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}}
		return warning(api.NetworkPolicy, o, message, time.Now())
	}
	e := of("u1", "web", "bad")
	if again := of("u1", "web", "bad"); again.Name != e.Name {
		t.Errorf("%s and %s", e.Name, again.Name)
	}
	for _, other := range []*corev1.Event{of("u2", "web", "bad"), of("u1", "web", "worse"), of("u1", "db", "bad")} {
		if other.Name == e.Name {
			t.Errorf("%+v and %+v have one name", e, other)
		}
	}
	w := newWorld(t)
	w.create(api.Event, of("u1", strings.Repeat("a", 235)+"-.b", strings.Repeat("é", maxMessage)))
}
