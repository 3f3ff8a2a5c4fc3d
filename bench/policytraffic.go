package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/lab"
	"github.com/weftnet/weft/registry"
)

// What traffic costs with policies is measured with as many policies as these.
// Of the most, one in a hundred is about the pods that are measured, half of
// those about what they receive and half about what they send.
const (
	fewPolicies  = 10
	manyPolicies = 10000
	// concerning is how many policies of many are about each pod.
	concerning    = 100
	policySamples = 300 * time.Millisecond
)

var policyLoads = []load{{doRoundTrip, true}, {doConnect, true}}

// policyQuantities are those of quantities that policies could change.
var policyQuantities = func() []quantity {
	var list []quantity
	for _, q := range quantities {
		if q.load == policyLoads[0] || q.load == policyLoads[1] {
			list = append(list, q)
		}
	}
	return list
}()

// The names of the variants by hand.
const (
	handNone    = "by hand, no rules"
	handChains  = "by hand, a chain for each pod"
	handForward = "by hand, a chain for each policy"
)

// trafficPolicies are n policies, concerning at most about the pods of the
// default namespace. Most of them allow what does not come.
func trafficPolicies(n int) []registry.Object {
	var list []registry.Object
	for i := range n {
		namespace, k := namespaceName(i/concerning), i%concerning
		if i < concerning {
			namespace = lab.DefaultNamespace
		}
		others := []networkingv1.NetworkPolicyPeer{
			{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.0.0/16", 100+k), Except: []string{fmt.Sprintf("10.%d.%d.0/24", 100+k, k)}}},
			{PodSelector: apps(role(k % roles))},
		}
		ports := tcp(int32(10000 + k))
		if k < 2 { // one for either direction
			others = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}
			ports = policyPorts(corev1.ProtocolTCP, intstr.FromInt32(streamPort), connectPort)
		}
		p := newPolicy(namespace, fmt.Sprintf("policy%d", i), &metav1.LabelSelector{}, from(ports, others...), nil)
		if k%2 == 1 {
			p = newPolicy(namespace, p.Name, &metav1.LabelSelector{}, nil, []networkingv1.NetworkPolicyEgressRule{{To: others, Ports: ports}})
		}
		list = append(list, p)
	}
	return list
}

// policyTraffic measures labs with different numbers of policies, and nodes by
// hand with and without rules, in turns.
func (s settings) policyTraffic(ctx context.Context) (variants []variant, t traffic, err error) {
	say("policy: building the networks for traffic")
	var same, across [2]string
	for _, n := range []int{0, fewPolicies, manyPolicies} {
		c, e := bringUp(ctx, s.weft, 2, policyPlugin)
		if e != nil {
			return nil, nil, e
		}
		defer func() { err = errors.Join(err, c.close()) }()
		a, b, e := c.policedPairs(ctx, n)
		if e != nil {
			return nil, nil, e
		}
		same[0], across[0] = fmt.Sprintf("same node, %d policies", n), fmt.Sprintf("across nodes, %d policies", n)
		variants = append(variants, variant{same[0], same[1], a}, variant{across[0], across[1], b})
		if n == 0 {
			same[1], across[1] = same[0], across[0]
		}
	}
	for _, v := range []struct{ name, against, rules string }{
		{handNone, "", ""},
		{handChains, handNone, rulesByPod(routedServer, routedClient)},
		{handForward, handNone, rulesByPolicy(routedServer, routedClient)},
	} {
		h, p := handRouted(v.name, v.rules)
		if err := h.done(); err != nil {
			return nil, nil, err
		}
		defer h.close()
		variants = append(variants, variant{v.name, v.against, p})
	}
	t, err = measureTraffic(ctx, variants, policyLoads, s.rounds, policySamples, say)
	return variants, t, err
}

// policedPairs makes policies and then pods, and returns when the policies are
// in force.
func (c *cluster) policedPairs(ctx context.Context, n int) (same, across pair, err error) {
	reg, err := c.lab.Registry()
	if err != nil {
		return same, across, err
	}
	defer reg.Close()
	if err := create(ctx, reg, api.NetworkPolicy, trafficPolicies(n)); err != nil {
		return same, across, err
	}
	if same, across, err = c.pairs(ctx); err != nil || n == 0 {
		return same, across, err
	}
	// The last that is about these pods is in force when all before it are.
	last := newPolicy(lab.DefaultNamespace, "last", &metav1.LabelSelector{}, from(tcp(1)), nil)
	o, err := reg.Create(ctx, api.NetworkPolicy, last)
	if err != nil {
		return same, across, err
	}
	return same, across, awaitEnforced(ctx, reg, o.GetResourceVersion(), c.lab.Nodes()...)
}

// A node by hand that routes between two pods, as Weft does.
var (
	routedClient = netip.MustParseAddr("10.244.1.2")
	routedServer = netip.MustParseAddr("10.244.1.3")
)

func handRouted(name, rules string) (*handmade, pair) {
	h := new(handmade)
	h.add(name)
	h.forward(name)
	h.ip(name, "link set lo up\n")
	addresses := []netip.Addr{routedClient, routedServer}
	for i, a := range addresses {
		pod := fmt.Sprintf("%s pod %d", name, i)
		h.add(pod)
		h.ip(name, fmt.Sprintf(`link add veth%d mtu %d type veth peer name eth0 mtu %[2]d netns %d
link set veth%[1]d up
address add 169.254.1.1/32 dev veth%[1]d
route add %[4]s dev veth%[1]d
`, i, underlayMTU, h.pid(pod), a))
		h.ip(pod, fmt.Sprintf(`link set lo up
address add %s/32 dev eth0
link set eth0 up
route add 169.254.1.1 dev eth0 scope link
route add default via 169.254.1.1 dev eth0
`, a))
	}
	if rules != "" {
		h.pipe(name, rules, "nft", "-f", "-")
	}
	return h, pair{h.workers[name+" pod 0"], h.workers[name+" pod 1"], routedServer}
}

// policyChains are manyPolicies chains, one for each policy, of which one in a
// hundred is about the server and the last of these lets the client in.
func policyChains(b *strings.Builder, client netip.Addr) {
	for i := range manyPolicies {
		if i == manyPolicies-1 {
			fmt.Fprintf(b, "\tchain policy%d {\n\t\tip saddr %s tcp dport %d-%d accept\n\t}\n", i, client, streamPort, connectPort)
			continue
		}
		fmt.Fprintf(b, "\tchain policy%d {\n\t\tip saddr 10.%d.0.0/16 tcp dport %d accept\n\t}\n", i, i%concerning+100, 10000+i%concerning)
	}
}

// subjectOf is the pod that a policy is about.
func subjectOf(i int, server netip.Addr) netip.Addr {
	if k := i % concerning; k < concerning-1 {
		return netip.AddrFrom4([4]byte{10, 245, 0, byte(k)})
	}
	return server
}

const establishedRule = "\t\tct state established,related accept\n"

// rulesByPolicy asks every policy in turn whether it is about the packet's
// destination, until one lets it through.
func rulesByPolicy(server, client netip.Addr) string {
	var b strings.Builder
	b.WriteString("table ip policies {\n")
	policyChains(&b, client)
	b.WriteString("\tchain forward {\n\t\ttype filter hook forward priority filter\n" + establishedRule)
	for i := range manyPolicies {
		fmt.Fprintf(&b, "\t\tip daddr %s jump policy%d\n", subjectOf(i, server), i)
	}
	fmt.Fprintf(&b, "\t\tip daddr %s drop\n\t}\n}\n", server)
	return b.String()
}

// rulesByPod asks those policies alone that are about the destination, by way
// of a map.
func rulesByPod(server, client netip.Addr) string {
	var b, pods strings.Builder
	b.WriteString("table ip policies {\n")
	policyChains(&b, client)
	for k := range concerning {
		fmt.Fprintf(&b, "\tchain pod%d {\n", k)
		for i := k; i < manyPolicies; i += concerning {
			fmt.Fprintf(&b, "\t\tjump policy%d\n", i)
		}
		b.WriteString("\t\tdrop\n\t}\n")
		fmt.Fprintf(&pods, "%s : jump pod%d, ", subjectOf(k, server), k)
	}
	fmt.Fprintf(&b, "\tchain forward {\n\t\ttype filter hook forward priority filter\n%s\t\tip daddr vmap { %s }\n\t}\n}\n",
		establishedRule, strings.TrimSuffix(pods.String(), ", "))
	return b.String()
}
