package networkpolicy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weftnet/weft/policy"
)

// sized is a policy with so many rules and peers.
func sized(namespace, name string, rules, peers int) *translated {
	p := &policy.Policy{Name: "NetworkPolicy " + namespace + "/" + name, Tier: policy.Isolating, Subject: policy.Selector{Namespace: namespace}, IsolatesIngress: true}
	for i := range rules {
		p.Ingress = append(p.Ingress, policy.Rule{Origin: fmt.Sprint(p.Name, " ", i)})
	}
	p.Ingress[0].Peers = make([]policy.Peer, peers)
	return &translated{policy: p}
}

// What is too large alone, or with what comes before it in its namespace, allows
// nothing and still isolates; others are as they were, those of other namespaces
// and those that there is still room for.
func TestTooLargePoliciesAreClosed(t *testing.T) {
	one, all := policy.MaxOfPolicy, policy.MaxOfNamespace
	list := []*translated{
		sized("a", "fits", one.Rules, one.Peers),
		sized("a", "large", one.Rules+1, 1),
		sized("a", "wide", 1, one.Peers+1),
		sized("a", "fits, too", 1, all.Peers-one.Peers-1),
		sized("a", "with others", 1, 2),
		sized("a", "small", 1, 1),
		sized("b", "fits", one.Rules, one.Peers),
	}
	closed := map[*policy.Policy]*policy.Policy{}
	first, why := limited(slices.Values(list), closed)
	for i, want := range []string{"", "501 rules, more than 500", "1001 peers and exceptions, more than 1000", "", "the policies of namespace a have 2001 peers", "", ""} {
		got := why[list[i]]
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("of %s it says %q, want %q", list[i].policy.Name, got, want)
		}
		switch p := first[i]; {
		case want == "" && p != list[i].policy:
			t.Errorf("%s is another", p.Name)
		case want != "" && (len(p.Ingress) > 0 || !p.IsolatesIngress || p.Subject.Namespace != "a" || p.Name != list[i].policy.Name):
			t.Errorf("%s is not closed: %+v", p.Name, p)
		}
	}
	if second, _ := limited(slices.Values(list), closed); !slices.Equal(first, second) {
		t.Error("what did not change is another policy")
	}
}
