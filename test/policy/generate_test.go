package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/weftnet/weft/test/policy/oracle"
)

// What addresses are from. Node i has 172.30.0.<i+1> and fd01::<i+1>, and its
// pods are in 10.1.<i>.0/24 and fd00:<i>::/64.
var (
	podNetworks = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/16")}
	externals   = netip.MustParsePrefix("192.0.2.0/24")
	underlays   = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd01::/64")}
)

// hosts are the numbers of pods in their node's subnet: close together, and on
// both sides of where prefixes of many lengths end.
var hosts = []int{2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 129, 191, 192, 254}

// elsewhere are addresses outside of the cluster.
var elsewhere = []netip.Addr{
	netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("198.51.100.128"), netip.MustParseAddr("203.0.113.9"),
	netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("2001:db8::1:0"), netip.MustParseAddr("fe00::1"),
}

// Few labels of few values, so that selectors select some and not others. One
// is of those that replicas differ in.
var (
	podLabels       = map[string][]string{"app": {"web", "db", "api"}, "tier": {"front", "back"}, "pod-template-hash": {"1f", "2e"}}
	namespaceLabels = map[string][]string{"team": {"red", "blue"}, "env": {"prod", "test"}, corev1.LabelMetadataName: {"ns1", "ns2"}}
	nodeLabels      = map[string][]string{"role": {"edge", "core"}, "zone": {"a", "b"}}
)

// named are ports whose names pods share, while numbers and protocols differ.
var named = []corev1.ContainerPort{
	{Name: "http", ContainerPort: 80}, {Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}, {Name: "http", ContainerPort: 80, Protocol: corev1.ProtocolUDP},
	{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolTCP}, {Name: "dns", ContainerPort: 8080, Protocol: corev1.ProtocolSCTP},
	{ContainerPort: 9090},
}

var domains = []string{"www.example.com", "api.example.com"}

var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// generator makes clusters and packets. What it makes follows from its source
// alone.
type generator struct {
	*rand.Rand
	// families are 0 for IPv4 and 1 for IPv6.
	families []int
	// made counts names.
	made int
	// resolved are the addresses that domain names have stood for.
	resolved []netip.Addr
}

// newGenerator returns the generator of a cluster of a run.
func newGenerator(seed, cluster uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, cluster))}
	g.families = [][]int{{0}, {0}, {0, 1}, {0, 1}, {1}}[g.IntN(5)]
	return g
}

func pick[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

// chance is true in so many of a hundred cases.
func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func (g *generator) name(prefix string) string {
	g.made++
	return fmt.Sprintf("%s%d", prefix, g.made)
}

// nodeName, subnet and nodeAddress describe node i, from 1, in a family.
func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

func subnet(i, family int) netip.Prefix {
	if family == 0 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: byte(i)}), 64)
}

func nodeAddress(i, family int) netip.Addr { return host(underlays[family], i+1) }

// host returns the address of that number in a prefix.
func host(p netip.Prefix, number int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] += byte(number)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// cluster makes one of 1 to 3 nodes, 1 to 4 namespaces, up to 8 pods and the
// policies for them.
func (g *generator) cluster() *oracle.Cluster {
	c := &oracle.Cluster{}
	for i := range 1 + g.IntN(3) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i + 1), Labels: g.labels(nodeLabels, 50)}}
		for _, family := range g.families {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, subnet(i+1, family).String())
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: nodeAddress(i+1, family).String()})
		}
		if g.families[0] == 0 && g.chance(40) {
			// What the world knows the node by; the node itself does not.
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: host(externals, i+1).String()})
		}
		c.Nodes = append(c.Nodes, n)
	}
	for i := range 1 + g.IntN(4) {
		name := fmt.Sprintf("ns%d", i+1)
		c.Namespaces = append(c.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.namespaceLabels(name)}})
	}
	for range 1 + g.IntN(8) {
		g.addPod(c)
	}
	g.resolve(c)
	for range pick(g, []int{0, 0, 1, 2, 3, 4, 6, 8}) {
		c.NetworkPolicies = append(c.NetworkPolicies, g.networkPolicy(c))
	}
	if g.chance(75) {
		for range 1 + g.IntN(4) {
			c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, g.clusterNetworkPolicy(c))
		}
	}
	return c
}

// labels picks each of some keys with a chance.
func (g *generator) labels(from map[string][]string, percent int) map[string]string {
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if g.chance(percent) {
			out[key] = pick(g, from[key])
		}
	}
	return out
}

func (g *generator) namespaceLabels(name string) map[string]string {
	l := g.labels(namespaceLabels, 50)
	l[corev1.LabelMetadataName] = name
	return l
}

// addPod adds a pod if there is an address left for it. Some share their node's
// network and some have ended; the address of one that has ended may be another's.
func (g *generator) addPod(c *oracle.Cluster) {
	node := g.IntN(len(c.Nodes)) + 1
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pick(g, c.Namespaces).Name, Name: g.name("pod"), Labels: g.labels(podLabels, 55)}}
	p.Spec.NodeName = nodeName(node)
	p.Status.Phase = corev1.PodRunning
	if g.chance(50) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "main", Ports: []corev1.ContainerPort{pick(g, named)}})
		if g.chance(40) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side", Ports: []corev1.ContainerPort{pick(g, named), pick(g, named)}})
		}
	}
	if g.chance(6) {
		p.Spec.HostNetwork = true
		for _, a := range internal(c.Nodes[node-1]) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		c.Pods = append(c.Pods, p)
		return
	}
	number := pick(g, hosts)
	taken := slices.ContainsFunc(c.Pods, func(o *corev1.Pod) bool {
		return !ended(o) && slices.Contains(addressesOf(o), host(subnet(node, g.families[0]), number))
	})
	if taken && !g.chance(20) {
		return
	}
	if taken || g.chance(6) {
		p.Status.Phase = pick(g, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
	}
	for _, family := range g.families {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: host(subnet(node, family), number).String()})
	}
	c.Pods = append(c.Pods, p)
}

func addressesOf(p *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	for _, ip := range p.Status.PodIPs {
		out = append(out, netip.MustParseAddr(ip.IP))
	}
	return out
}

// internal returns the addresses that a node has itself.
func internal(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, netip.MustParseAddr(a.Address))
		}
	}
	return out
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// resolve says what domain names stand for.
func (g *generator) resolve(c *oracle.Cluster) {
	c.Domains = map[string][]netip.Addr{}
	for _, name := range domains {
		for range g.IntN(3) {
			if a := g.address(c); !slices.Contains(c.Domains[name], a) {
				c.Domains[name] = append(c.Domains[name], a)
				g.resolved = append(g.resolved, a)
			}
		}
		slices.SortFunc(c.Domains[name], netip.Addr.Compare)
	}
}

// address returns one that means something.
func (g *generator) address(c *oracle.Cluster) netip.Addr {
	switch g.IntN(5) {
	case 0:
		return pick(g, elsewhere)
	case 1:
		i, family := g.IntN(len(c.Nodes))+1, pick(g, g.families)
		if g.chance(50) {
			return host(subnet(i, family), 1)
		}
		return nodeAddress(i, family)
	}
	if len(c.Pods) == 0 {
		return pick(g, elsewhere)
	}
	return pick(g, addressesOf(pick(g, c.Pods)))
}

// prefix returns one around an address that means something, no shorter than
// that.
func (g *generator) prefix(c *oracle.Cluster, shortest int, within netip.Prefix) (netip.Prefix, bool) {
	for range 10 {
		a := g.address(c)
		if within.IsValid() && !within.Contains(a) {
			continue
		}
		length := a.BitLen() - pick(g, []int{0, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 16, 24, 32, 64, 96, 112, 128})
		if length < max(shortest, 0) {
			continue
		}
		p := netip.PrefixFrom(a, length)
		if !g.chance(15) {
			p = p.Masked()
		}
		return p, true
	}
	return netip.Prefix{}, false
}

func (g *generator) selector(from map[string][]string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if g.chance(20) {
		return s
	}
	keys := slices.Sorted(maps.Keys(from))
	if g.chance(60) {
		key := pick(g, keys)
		s.MatchLabels = map[string]string{key: pick(g, from[key])}
		if g.chance(70) {
			return s
		}
	}
	for range 1 + g.IntN(2) {
		key := pick(g, keys)
		r := metav1.LabelSelectorRequirement{Key: key, Operator: pick(g, []metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist})}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + g.IntN(2) {
				r.Values = append(r.Values, pick(g, from[key]))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (g *generator) networkPolicy(c *oracle.Cluster) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(g, c.Namespaces).Name, Name: g.name("np")}}
	p.Spec.PodSelector = *g.selector(podLabels)
	p.Spec.PolicyTypes = pick(g, [][]networkingv1.PolicyType{nil, nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}})
	for range g.IntN(4) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers(c), Ports: g.ports()})
	}
	for range g.IntN(4) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.peers(c), Ports: g.ports()})
	}
	return p
}

func (g *generator) peers(c *oracle.Cluster) []networkingv1.NetworkPolicyPeer {
	if g.chance(15) {
		return pick(g, [][]networkingv1.NetworkPolicyPeer{nil, {}})
	}
	var peers []networkingv1.NetworkPolicyPeer
	for range 1 + g.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch g.IntN(50) {
		case 0: // of a later version, as far as can be told
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10:
			p.PodSelector = g.selector(podLabels)
		case 11, 12, 13, 14, 15, 16, 17, 18, 19, 20:
			p.NamespaceSelector = g.selector(namespaceLabels)
		case 21, 22, 23, 24, 25, 26, 27, 28, 29, 30:
			p.PodSelector, p.NamespaceSelector = g.selector(podLabels), g.selector(namespaceLabels)
		default:
			p.IPBlock = g.block(c)
		}
		peers = append(peers, p)
	}
	return peers
}

func (g *generator) block(c *oracle.Cluster) *networkingv1.IPBlock {
	cidr, ok := g.prefix(c, 0, netip.Prefix{})
	if !ok {
		cidr = netip.MustParsePrefix("0.0.0.0/0")
	}
	b := &networkingv1.IPBlock{CIDR: cidr.String()}
	for range max(0, g.IntN(5)-1) {
		if except, ok := g.prefix(c, cidr.Bits()+1, cidr.Masked()); ok {
			b.Except = append(b.Except, except.String())
		}
	}
	return b
}

// portNumbers overlap when ranges are made of them.
var portNumbers = []int32{1, 53, 79, 80, 81, 8079, 8080, 8081, 9090, 65534, 65535}

func (g *generator) ports() []networkingv1.NetworkPolicyPort {
	if g.chance(35) {
		return pick(g, [][]networkingv1.NetworkPolicyPort{nil, {}})
	}
	var ports []networkingv1.NetworkPolicyPort
	for range 1 + g.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if g.chance(75) {
			protocol := pick(g, protocols)
			p.Protocol = &protocol
		}
		switch g.IntN(8) {
		case 0: // all
		case 1, 2, 3:
			name := intstr.FromString(pick(g, named[:6]).Name)
			p.Port = &name
		default:
			first := pick(g, portNumbers)
			number := intstr.FromInt32(first)
			p.Port = &number
			if last := pick(g, portNumbers); last >= first && g.chance(60) {
				p.EndPort = &last
			}
		}
		ports = append(ports, p)
	}
	return ports
}

func (g *generator) clusterNetworkPolicy(c *oracle.Cluster) *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: g.name("cnp")}}
	p.Spec.Tier = pick(g, []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier})
	p.Spec.Priority = pick(g, []int32{0, 1, 1, 9, 10, 1000})
	switch g.IntN(5) {
	case 0:
		p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
	case 1, 2:
		p.Spec.Subject.Namespaces = g.selector(namespaceLabels)
	default:
		p.Spec.Subject.Pods = g.namespacedPod()
	}
	for range g.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Name: g.ruleName(), Action: g.action(), Protocols: g.protocols(true)}
		for range 1 + g.IntN(2) {
			peer := g.clusterPeer()
			r.From = append(r.From, policyv1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods})
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range g.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Name: g.ruleName(), Action: g.action()}
		onlyPods := true
		for range 1 + g.IntN(2) {
			peer := g.clusterPeer()
			if g.chance(60) {
				peer, onlyPods = g.machinePeer(c), false
			}
			if len(peer.DomainNames) > 0 && g.chance(80) {
				r.Action = policyv1alpha2.ClusterNetworkPolicyRuleActionAccept
			}
			r.To = append(r.To, peer)
		}
		r.Protocols = g.protocols(onlyPods)
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

func (g *generator) ruleName() string {
	if g.chance(30) {
		return `say "no"`
	}
	return ""
}

func (g *generator) action() policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return pick(g, []policyv1alpha2.ClusterNetworkPolicyRuleAction{policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
		policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass})
}

func (g *generator) namespacedPod() *policyv1alpha2.NamespacedPod {
	return &policyv1alpha2.NamespacedPod{NamespaceSelector: *g.selector(namespaceLabels), PodSelector: *g.selector(podLabels)}
}

// clusterPeer makes a peer of pods, or now and then one of a later version.
func (g *generator) clusterPeer() (p policyv1alpha2.ClusterNetworkPolicyEgressPeer) {
	switch {
	case g.chance(2):
	case g.chance(50):
		p.Namespaces = g.selector(namespaceLabels)
	default:
		p.Pods = g.namespacedPod()
	}
	return p
}

// machinePeer makes a peer of what need not be pods.
func (g *generator) machinePeer(c *oracle.Cluster) (p policyv1alpha2.ClusterNetworkPolicyEgressPeer) {
	switch g.IntN(4) {
	case 0:
		p.Nodes = g.selector(nodeLabels)
	case 1:
		for range 1 + g.IntN(2) {
			p.DomainNames = append(p.DomainNames, pick(g, []policyv1alpha2.DomainName{"www.example.com", "API.example.com", "api.example.com.", "gone.example.com", "*.example.com"}))
		}
	default:
		for range 1 + g.IntN(2) {
			if cidr, ok := g.prefix(c, 0, netip.Prefix{}); ok {
				p.Networks = append(p.Networks, policyv1alpha2.CIDR(cidr.String()))
			}
		}
		if p.Networks == nil {
			p.Networks = []policyv1alpha2.CIDR{"::/0"}
		}
	}
	return p
}

func (g *generator) protocols(names bool) []policyv1alpha2.ClusterNetworkPolicyProtocol {
	if g.chance(40) {
		return nil
	}
	var out []policyv1alpha2.ClusterNetworkPolicyProtocol
	for range 1 + g.IntN(2) {
		port := &policyv1alpha2.Port{Number: pick(g, portNumbers)}
		if last := pick(g, portNumbers); last > port.Number && g.chance(60) {
			port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: port.Number, End: last}}
		}
		var p policyv1alpha2.ClusterNetworkPolicyProtocol
		switch g.IntN(10) {
		case 0, 1, 2:
			p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 3, 4:
			p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 5, 6:
			p.SCTP = &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			switch {
			case g.chance(4): // of a later version
			case names:
				p.DestinationNamedPort = pick(g, named[:6]).Name
			default:
				p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{}
			}
		}
		out = append(out, p)
	}
	return out
}
