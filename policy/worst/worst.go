// Package worst makes policies that cost much for their size, for tests, for the
// benchmark and for the search that found them. It consists of pure functions:
// the same Recipe makes the same policies.
//
// A Recipe says in a few numbers of what the rules of a policy are made, so that
// what a search finds is kept in a line instead of a megabyte.
package worst

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PeerKinds and PortKinds are how many ways there are to make a rule's peers and
// its ports.
const (
	PeerKinds = 9
	PortKinds = 7
)

// Recipe says what a tenant's policies are made of.
type Recipe struct {
	// Seed is that of what is left to chance.
	Seed uint64
	// Size is how large the policies are in JSON, in bytes, at most, all together.
	Size int
	// Policies is how many share that size.
	Policies int
	// Peers and Ports weigh how often rules have each kind.
	Peers [PeerKinds]int
	Ports [PortKinds]int
	// PeersOfRule and PortsOfRule are how many peers and ports a rule has at most.
	PeersOfRule, PortsOfRule int
	// Labels is of how many values the tenant's pods have one each.
	Labels int
	// Egress says that the rules are about what goes out.
	Egress bool
}

// Issue is the recipe of the policy that first was too large: rules from all but
// an exception each, for a port each.
func Issue(size int) Recipe {
	return Recipe{Size: size, Policies: 1, Peers: [PeerKinds]int{1}, Ports: [PortKinds]int{1}, PeersOfRule: 1, PortsOfRule: 1}
}

// Namespace is the tenant's, and Label the label of its pods that the recipes'
// selectors are about. Pod i has the value Value(i).
const (
	Namespace = "worst"
	Label     = "w"
)

// Value is one of the values of Label.
func Value(i int) string { return fmt.Sprintf("v%d", i) }

// Make returns the policies of a recipe, about all pods of the namespace.
func (r Recipe) Make() []*networkingv1.NetworkPolicy {
	g := generator{Recipe: r, Rand: rand.New(rand.NewPCG(r.Seed, 0))}
	var all []*networkingv1.NetworkPolicy
	for n := range max(1, r.Policies) {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: fmt.Sprintf("worst%d", n)}}
		p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if r.Egress {
			p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		}
		left := r.Size/max(1, r.Policies) - Size(p)
		for {
			peers, ports := g.rule()
			var rule any = networkingv1.NetworkPolicyIngressRule{From: peers, Ports: ports}
			if r.Egress {
				rule = networkingv1.NetworkPolicyEgressRule{To: peers, Ports: ports}
			}
			if left -= Size(rule) + 1; left < 0 {
				break
			}
			if r.Egress {
				p.Spec.Egress = append(p.Spec.Egress, rule.(networkingv1.NetworkPolicyEgressRule))
			} else {
				p.Spec.Ingress = append(p.Spec.Ingress, rule.(networkingv1.NetworkPolicyIngressRule))
			}
		}
		all = append(all, p)
	}
	return all
}

// Size is how large something is in JSON, in bytes.
func Size(o any) int {
	b, err := json.Marshal(o)
	if err != nil {
		return 0
	}
	return len(b)
}

type generator struct {
	Recipe
	*rand.Rand
	// rules counts what was made.
	rules int
}

// pick returns a number by weight, 0 where nothing weighs.
func (g *generator) pick(weights []int) int {
	total := 0
	for _, w := range weights {
		total += w
	}
	if total == 0 {
		return 0
	}
	n := g.IntN(total)
	for i, w := range weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return 0
}

func (g *generator) rule() (peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	i := g.rules
	g.rules++
	for range 1 + g.IntN(max(1, g.PeersOfRule)) {
		peers = append(peers, g.peer(i))
	}
	for range 1 + g.IntN(max(1, g.PortsOfRule)) {
		if p, some := g.port(i); some {
			ports = append(ports, p)
		} else {
			return peers, nil
		}
	}
	return peers, ports
}

// prefix returns the i-th prefix of a length, with bits set far apart first.
func prefix(i, length int) string {
	n := uint32(i+1) * 2654435761 // so that one lies far from the next
	n &= ^uint32(0) << (32 - length)
	return fmt.Sprintf("%d.%d.%d.%d/%d", n>>24, n>>16&0xff, n>>8&0xff, n&0xff, length)
}

// step returns the i-th prefix of a ladder of which each holds the next.
func step(i int, six bool) string {
	if six {
		i %= 128
		var b [16]byte
		for bit := range i {
			b[bit/8] |= 0x80 >> (bit % 8)
		}
		s := ""
		for j := 0; j < 16; j += 2 {
			s += fmt.Sprintf(":%x", uint16(b[j])<<8|uint16(b[j+1]))
		}
		return fmt.Sprintf("%s/%d", s[1:], i)
	}
	i %= 32
	n := ^uint32(0) << (32 - i)
	return fmt.Sprintf("%d.%d.%d.%d/%d", n>>24, n>>16&0xff, n>>8&0xff, n&0xff, i)
}

func (g *generator) peer(i int) networkingv1.NetworkPolicyPeer {
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	selector := func(op metav1.LabelSelectorOperator, everywhere bool, values ...string) networkingv1.NetworkPolicyPeer {
		p := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: Label, Operator: op, Values: values}}}}
		if everywhere {
			p.NamespaceSelector = &metav1.LabelSelector{}
		}
		return p
	}
	value := func(n int) string { return Value(n % max(1, g.Labels)) }
	const all4, all6 = "0.0.0.0/0", "::/0"
	switch g.pick(g.Peers[:]) {
	case 0: // all but one
		return block(all4, prefix(i, 24))
	case 1: // a ladder
		return block(step(i, false))
	case 2:
		return block(step(i, true))
	case 3: // all but what is left of a ladder
		if g.IntN(2) == 0 {
			return block(all6, step(1+i%127, true))
		}
		return block(all4, step(1+i%31, false))
	case 4: // all but some
		var except []string
		for range 1 + g.IntN(8) {
			except = append(except, prefix(g.IntN(64), 8+g.IntN(24)))
		}
		return block(all4, except...)
	case 5: // blocks in one another
		return block(prefix(g.IntN(1+i), 1+g.IntN(32)))
	case 6: // all pods but those of a value
		return selector(metav1.LabelSelectorOpNotIn, g.IntN(2) == 0, value(i))
	case 7: // those of some values
		var values []string
		for range 1 + g.IntN(8) {
			values = append(values, value(g.IntN(max(1, g.Labels))))
		}
		return selector(metav1.LabelSelectorOpIn, false, values...)
	default: // many of one
		return block(prefix(i, 32))
	}
}

func (g *generator) port(i int) (p networkingv1.NetworkPolicyPort, some bool) {
	number := func(n int) *intstr.IntOrString { v := intstr.FromInt32(int32(1 + n%65535)); return &v }
	end := func(n int) *int32 { v := int32(1 + n%65535); return &v }
	protocol := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}[g.IntN(3)]
	switch g.pick(g.Ports[:]) {
	case 0: // one each, with room between
		return networkingv1.NetworkPolicyPort{Port: number(2 * i)}, true
	case 1: // a ladder of ranges from the first port on
		return networkingv1.NetworkPolicyPort{Port: number(0), EndPort: end(65534 - 7*i)}, true
	case 2: // the same, the shortest first
		return networkingv1.NetworkPolicyPort{Port: number(0), EndPort: end(7 * (i + 1))}, true
	case 3: // a ladder that moves
		return networkingv1.NetworkPolicyPort{Port: number(7 * i % 30000), EndPort: end(7*i%30000 + 30000)}, true
	case 4:
		first := g.IntN(65000)
		return networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: number(first), EndPort: end(first + g.IntN(65535-first))}, true
	case 5:
		name := intstr.FromString(fmt.Sprintf("p%d", i%16))
		return networkingv1.NetworkPolicyPort{Port: &name}, true
	default: // all
		return p, false
	}
}
