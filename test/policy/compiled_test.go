package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/openshift"
	"github.com/weftnet/weft/plugin/plugins"
	compiler "github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/policy/kubernetes"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/test/policy/oracle"
)

// compiled is the subject that matters: the plans that the agents of a cluster
// compile from the objects they see, and the interpreter.
type compiled struct {
	plugin  plugin.Plugin
	network *networkv1.ClusterNetwork
	hosts   map[string]*networkv1.HostSubnet
	agents  map[string]*agent
	// What agents and the controller write. An object that did not change is
	// the same pointer.
	tags     map[string]*api.Tag
	nodePods map[string]*api.NodePods
	domains  map[string]*api.DomainName
	plans    map[string]*plan.Plan
}

// agent is what one remembers from state to state.
type agent struct {
	compiler plugin.Compiler
	previous *plan.Plan
}

func newCompiled() subject {
	p, err := plugins.Get("openshift-networkpolicy")
	if err != nil {
		panic(err)
	}
	network := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
	for family, bits := range []uint32{8, 64} {
		network.ClusterNetworks = append(network.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: podNetworks[family].String(), HostSubnetLength: bits})
	}
	return &compiled{plugin: p, network: network, hosts: map[string]*networkv1.HostSubnet{}, agents: map[string]*agent{},
		tags: map[string]*api.Tag{}, nodePods: map[string]*api.NodePods{}, domains: map[string]*api.DomainName{}}
}

// become implements subject.
func (s *compiled) become(c *oracle.Cluster) error {
	s.write(c)
	shared := registry.Snapshot{}
	shared.Put(api.ClusterNetwork, s.network)
	for _, o := range c.Namespaces {
		shared.Put(api.Namespace, o)
	}
	for _, o := range c.Nodes {
		shared.Put(api.Node, o)
		shared.Put(api.HostSubnet, s.host(o))
		if pods := s.nodePods[o.Name]; pods != nil {
			shared.Put(api.NodePodsKind, pods)
		}
	}
	for _, o := range c.NetworkPolicies {
		shared.Put(api.NetworkPolicy, o)
	}
	for _, o := range c.ClusterNetworkPolicies {
		shared.Put(api.ClusterNetworkPolicy, o)
	}
	for _, o := range s.tags {
		shared.Put(api.TagKind, o)
	}
	for _, o := range s.domains {
		shared.Put(api.DomainNameKind, o)
	}
	s.plans = map[string]*plan.Plan{}
	for _, n := range c.Nodes {
		in := plugin.Input{Config: api.Effective(nil), Node: plugin.Node{Name: n.Name, MTU: 1500}}
		for _, address := range internal(n) {
			in.Node.Addresses = append(in.Node.Addresses, address)
			in.Node.Prefixes = append(in.Node.Prefixes, underlays[family(address)])
		}
		objects := maps.Clone(shared)
		for _, p := range c.Pods {
			if p.Spec.NodeName != n.Name {
				continue
			}
			objects.Put(api.Pod, p)
			if isAttached(c, p) {
				addresses := addressesOf(p)
				mac := plan.MACOf(addresses[0])
				in.Node.Endpoints = append(in.Node.Endpoints, plugin.Endpoint{Interface: fmt.Sprintf("weft%x", mac[1:]), Network: plan.DefaultNetwork, Addresses: addresses,
					MAC: mac, Namespace: p.Namespace, Pod: p.Name})
			}
		}
		in.Objects = objects
		a := s.agents[n.Name]
		if a == nil {
			a = &agent{compiler: plugin.CompilerOf(s.plugin)}
			s.agents[n.Name] = a
			if gradual, ok := a.compiler.(plugin.Gradual); ok {
				gradual.LeaveForLater() // as agents do
			}
		}
		for finished := false; !finished; {
			in.Previous = a.previous
			p, _ := a.compiler.Compile(in)
			if err := p.ValidateAfter(a.previous); err != nil {
				return fmt.Errorf("the plan of %s: %w", n.Name, err)
			}
			a.previous, s.plans[n.Name] = p, p
			gradual, ok := a.compiler.(plugin.Gradual)
			if finished = !ok || len(gradual.Waiting()) == 0; !finished {
				gradual.Advance(gradual.Waiting()[0])
			}
		}
	}
	return nil
}

// isAttached reports whether a pod has an interface: that of one that has ended
// is there until its address is another's.
func isAttached(c *oracle.Cluster, p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && (!ended(p) || !slices.ContainsFunc(c.Pods, func(o *corev1.Pod) bool {
		return o != p && !o.Spec.HostNetwork && slices.Contains(addressesOf(o), addressesOf(p)[0])
	}))
}

func (s *compiled) host(n *corev1.Node) *networkv1.HostSubnet {
	if h := s.hosts[n.Name]; h != nil {
		return h
	}
	addresses := internal(n)
	h := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{openshift.NodeUID: n.Name}},
		Host: n.Name, HostIP: addresses[0].String(), Subnet: n.Spec.PodCIDRs[0]}
	if len(n.Spec.PodCIDRs) > 1 {
		h.Annotations[api.AdditionalHostIPs] = addresses[1].String()
		h.Annotations[api.AdditionalSubnets] = n.Spec.PodCIDRs[1]
	}
	s.hosts[n.Name] = h
	return h
}

// write writes what agents and the controller write for each other.
func (s *compiled) write(c *oracle.Cluster) {
	var policies []*compiler.Policy
	for _, o := range c.NetworkPolicies {
		p, _ := kubernetes.NetworkPolicy(o)
		policies = append(policies, p)
	}
	for _, o := range c.ClusterNetworkPolicies {
		p, _ := kubernetes.ClusterNetworkPolicy(o)
		policies = append(policies, p)
	}
	seen := kubernetes.Named(policies)
	for _, n := range c.Nodes {
		byTag := map[int32][]netip.Addr{}
		for _, p := range c.Pods {
			if p.Spec.NodeName == n.Name && !p.Spec.HostNetwork && !ended(p) {
				tag := s.tagOf(n.Name, kubernetes.Identity(p, seen))
				byTag[tag] = append(byTag[tag], addressesOf(p)...)
			}
		}
		o := &api.NodePods{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
		for _, tag := range slices.Sorted(maps.Keys(byTag)) {
			t := api.TaggedPods{Tag: tag}
			for _, a := range slices.SortedFunc(slices.Values(byTag[tag]), netip.Addr.Compare) {
				t.Addresses = append(t.Addresses, a.String())
			}
			o.Pods = append(o.Pods, t)
		}
		put(s.nodePods, o)
	}
	for name := range s.domains {
		if _, ok := c.Domains[name]; !ok {
			delete(s.domains, name)
		}
	}
	for name, addresses := range c.Domains {
		o := &api.DomainName{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, a := range addresses {
			o.Addresses = append(o.Addresses, a.String())
		}
		put(s.domains, o)
	}
}

// put stores an object unless it is as it was.
func put[O registry.Object](objects map[string]O, o O) {
	if before, ok := objects[o.GetName()]; !ok || !reflect.DeepEqual(before, o) {
		objects[o.GetName()] = o
	}
}

// tagOf returns the tag of a node's pods of an identity. The last node has Tags of
// its own, as if it did not hear of others in time. Tags that nobody uses any more
// stay, as they do for a while in a cluster.
func (s *compiled) tagOf(node string, id *compiler.Identity) int32 {
	spec := api.TagSpec{Namespace: id.Namespace, Labels: id.Labels}
	maker := map[string]string{}
	if node == nodeName(3) {
		maker["maker"] = node
	}
	for _, p := range id.Ports {
		spec.Ports = append(spec.Ports, api.TagPort{Name: p.Name, Protocol: strings.ToUpper(p.Protocol.String()), Port: int32(p.Port)})
	}
	for name, t := range s.tags {
		if maps.Equal(t.Annotations, maker) && t.Spec.Namespace == spec.Namespace && maps.Equal(t.Spec.Labels, spec.Labels) && slices.Equal(t.Spec.Ports, spec.Ports) {
			number, _ := strconv.ParseInt(name, 10, 32)
			return int32(number)
		}
	}
	number := api.MinTag + len(s.tags)
	name := strconv.Itoa(number)
	s.tags[name] = &api.Tag{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: maker}, Spec: spec}
	return int32(number)
}

// evaluate implements subject.
func (s *compiled) evaluate(p oracle.Packet) (a oracle.Answer, why string) {
	x := plan.Explain(s.plans, flowOf(p))
	a.Allowed = x.Allowed
	for _, step := range x.Steps {
		if step.Table != "verdicts" || step.Origin == compiler.Unrestricted {
			continue
		}
		if strings.HasPrefix(step.Decision, string(plan.Outgoing)) {
			a.Egress = step.Origin
		} else {
			a.Ingress = step.Origin
		}
	}
	return a, x.String()
}

func flowOf(p oracle.Packet) plan.Flow {
	f := plan.Flow{Source: p.Source, Destination: p.Destination, Port: p.Port}
	switch p.Protocol {
	case corev1.ProtocolTCP:
		f.Protocol = plan.TCP
	case corev1.ProtocolUDP:
		f.Protocol = plan.UDP
	case corev1.ProtocolSCTP:
		f.Protocol = plan.SCTP
	case "ICMP":
		f.Protocol = plan.ICMP
		if p.Source.Is6() {
			f.Protocol = plan.ICMPv6
		}
	default:
		f.Protocol = 47 // GRE
	}
	return f
}
