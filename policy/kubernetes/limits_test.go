package kubernetes_test

import (
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/policy/kubernetes"
)

// TestManyWords tries policies whose selectors say more than they may.
func TestManyWords(t *testing.T) {
	values := func(n int) *metav1.LabelSelector {
		r := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn}
		for i := range n {
			r.Values = append(r.Values, fmt.Sprint("v", i))
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
	}
	of := func(subject int, peers ...int) *networkingv1.NetworkPolicy {
		o := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
		o.Spec.PodSelector = *values(subject)
		for i, n := range peers {
			r := networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: values(n)}}}
			if i%2 == 1 {
				r.From[0] = networkingv1.NetworkPolicyPeer{NamespaceSelector: values(n)}
			}
			o.Spec.Ingress = append(o.Spec.Ingress, r)
		}
		return o
	}
	for _, c := range []struct {
		what            string
		policy          *networkingv1.NetworkPolicy
		rules           int
		everybody       bool
		problem, follow string
	}{
		{"as many as there may be", of(999, 499, 499), 2, false, "", ""},
		{"one more", of(999, 500, 499), 0, false, "spec: its selectors have 2001 labels", "isolates its pods and allows nothing"},
		{"all in the subject", of(2000, 1), 0, true, "spec.podSelector: it has 2001 labels", "isolates all pods of its namespace"},
	} {
		p, problems := kubernetes.NetworkPolicy(c.policy)
		all := strings.Join(problems, "\n")
		if len(p.Ingress) != c.rules || !p.IsolatesIngress || (p.Subject.Pods == nil) != c.everybody {
			t.Errorf("%s: %d rules, isolates %t, subject %v", c.what, len(p.Ingress), p.IsolatesIngress, p.Subject.Pods)
		}
		if (len(problems) > 0) != (c.problem != "") || !strings.Contains(all, c.problem) || !strings.Contains(all, c.follow) {
			t.Errorf("%s: problems %q", c.what, problems)
		}
	}
}
