package policy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weftnet/weft/test/policy/oracle"
	"github.com/weftnet/weft/test/policy/story"
)

// broken is a subject that is wrong on purpose: it answers as the oracle would
// in a cluster that is a little different.
type broken struct {
	instead func(before, c *oracle.Cluster) *oracle.Cluster
	c       *oracle.Cluster
}

func (b *broken) become(c *oracle.Cluster) error {
	b.c = b.instead(b.c, c)
	return nil
}

func (b *broken) evaluate(p oracle.Packet) (oracle.Answer, string) { return b.c.Evaluate(p), "" }

// Whoever is wrong is found out, and the story of it is no longer than it must
// be.
func TestWrongOnesAreFound(t *testing.T) {
	for _, c := range []struct {
		name    string
		instead func(before, c *oracle.Cluster) *oracle.Cluster
		// states and policies are how many the story needs.
		states, policies int
		// needs reports whether an object is what the story is about.
		needs func(metav1.Object) bool
	}{
		{"ignores except", func(_, c *oracle.Cluster) *oracle.Cluster {
			return change(c, func(o metav1.Object) metav1.Object {
				if p, ok := o.(*networkingv1.NetworkPolicy); ok {
					p = p.DeepCopy()
					for _, r := range p.Spec.Ingress {
						for i := range r.From {
							if r.From[i].IPBlock != nil {
								r.From[i].IPBlock.Except = nil
							}
						}
					}
					return p
				}
				return o
			})
		}, 1, 1, func(o metav1.Object) bool {
			p, ok := o.(*networkingv1.NetworkPolicy)
			return ok && len(p.Spec.Ingress) == 1 && len(p.Spec.Ingress[0].From) == 1 && len(p.Spec.Ingress[0].From[0].IPBlock.Except) == 1
		}},
		{"never hears of new policies", func(before, c *oracle.Cluster) *oracle.Cluster {
			if before == nil {
				return c
			}
			next := copyOf(c)
			next.NetworkPolicies = before.NetworkPolicies
			return next
		}, 2, 1, func(o metav1.Object) bool {
			_, ok := o.(*networkingv1.NetworkPolicy)
			return ok
		}},
		{"fails where there is a policy for all pods", func(_, c *oracle.Cluster) *oracle.Cluster {
			for _, p := range c.NetworkPolicies {
				if len(p.Spec.PodSelector.MatchLabels)+len(p.Spec.PodSelector.MatchExpressions) == 0 {
					panic("of all pods")
				}
			}
			return c
		}, 1, 1, func(o metav1.Object) bool {
			p, ok := o.(*networkingv1.NetworkPolicy)
			return ok && len(p.Spec.Ingress)+len(p.Spec.Egress) == 0
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := func() subject { return &broken{instead: c.instead} }
			for i := uint64(0); ; i++ {
				if i == 2000 {
					t.Fatal("it was not found in 2,000 clusters")
				}
				first, _ := try(*seed, i, start)
				if first == nil {
					continue
				}
				found, d := shrink(*first, start)
				if d == nil {
					t.Fatal("the difference does not show again")
				}
				last := found.states[len(found.states)-1]
				policies := map[string]bool{}
				about := false
				for _, o := range found.objects() {
					if _, ok := o.(*networkingv1.NetworkPolicy); ok {
						policies[o.GetName()] = true
					}
					about = about || c.needs(o)
				}
				if len(found.states) != c.states || len(policies) != c.policies || len(last.ClusterNetworkPolicies) > 0 || len(last.Pods) > 2 || !about {
					t.Errorf("the story has more in it than needed, or is another:\n%s\n%s", d, found)
				}
				s, err := story.Parse([]byte(found.String()))
				if err != nil {
					t.Fatal(err)
				}
				if d := replay(s, start()); len(d) == 0 {
					t.Errorf("the story shows no difference when it is told again:\n%s", found)
				}
				return
			}
		})
	}
}
