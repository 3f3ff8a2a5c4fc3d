package networkpolicy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
)

// TestUntoldPods has policies deny something to pods of a namespace, and pods come there of
// which other nodes are told, or are not, as they have too many labels or too many others.
// At no moment does one get past the rule: what others do not know of it denies it to its
// own node.
func TestUntoldPods(t *testing.T) {
	const db, evil = "10.1.1.2", "10.1.2.2"
	const namespaces = "{apiVersion: v1, kind: Namespace, metadata: {name: evil}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n"
	rule := func(action, direction, peer string) string {
		return fmt.Sprintf("---\n{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: keep-out}, spec: {tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}, %s: [{name: evil, action: %s, %s: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: %s}}}]}]}}",
			direction, action, map[string]string{"ingress": "from", "egress": "to"}[direction], peer)
	}
	large := make([]string, 300)
	for i := range large {
		large[i] = fmt.Sprintf("%d/%s=%s", i, strings.Repeat("k", 20), strings.Repeat("v", 60))
	}
	for _, c := range []struct {
		name, rule string
		labels     []string
		churn      int
		// denied says that the rule denies the pod something, told that others come to know
		// it by its labels.
		denied, told bool
	}{
		{"a pod like any", rule("Deny", "ingress", "evil"), nil, 0, true, true},
		{"others are denied", rule("Deny", "ingress", "other"), large, 0, false, false},
		{"nothing is denied", rule("Accept", "ingress", "evil"), large, 0, false, false},
		{"too many labels", rule("Deny", "ingress", "evil"), large, 0, true, false},
		{"too many labels, and nobody may go there", rule("Deny", "egress", "evil"), large, 0, true, false},
		{"too many others before it", rule("Deny", "ingress", "evil"), []string{"n=last"}, 110, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				for o := range strings.SplitSeq(namespaces+c.rule, "---\n") {
					w.apply(o)
				}
				victim, m := &machine{world: w, name: "node1"}, &machine{world: w, name: "node2"}
				victim.start("shop/db", "app=db", db)
				r := newRunner(m.env(w.registry))
				for i := range c.churn {
					m.start("evil/pod", fmt.Sprint("n=", i), evil)
					_, _ = r.round(t.Context(), m.input(), nil)
					m.stop("evil/pod")
					time.Sleep(gather)
				}
				m.start("evil/pod", append(c.labels, evil)...)
				atVictim, atOwn := plugin.CompilerOf(On(flat{}, "policies")), plugin.CompilerOf(On(flat{}, "policies"))
				var kept, known bool
				for i := range 200 {
					its, _ := atOwn.Compile(m.input())
					others, _ := atVictim.Compile(victim.input())
					kept = !passes(its, plan.Outgoing, db) && !passes(its, plan.Incoming, db)
					known = !passes(others, plan.Incoming, evil) || !passes(others, plan.Outgoing, evil)
					if c.denied && !kept && !known {
						t.Fatalf("in round %d nobody denies the pod what the rule does", i)
					}
					if !c.denied && (kept || known) {
						t.Fatalf("in round %d the pod is kept from what nothing denies it", i)
					}
					time.Sleep(gather)
					_, _ = r.round(t.Context(), m.input(), nil)
				}
				if c.denied && (known != c.told || kept == c.told) {
					t.Errorf("in the end others know the pod: %t, and it gets nothing: %t", known, kept)
				}
			})
		})
	}
}

// passes reports whether a plan lets connections of its only pod with an address pass.
func passes(p *plan.Plan, d plan.Direction, other string) bool {
	for _, e := range p.Endpoints.All() {
		set := e.IngressPolicy
		if d == plan.Outgoing {
			set = e.EgressPolicy
		}
		class, _ := p.ClassAt(plan.DefaultNetwork, netip.MustParseAddr(other))
		if _, v, ok := p.Verdict(set, d, class, plan.TCP, 80); set != "" && !(ok && v.Allow) {
			return false
		}
	}
	return true
}
