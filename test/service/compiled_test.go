package service

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
	"github.com/weftnet/weft/test/service/oracle"
)

var (
	cases = flag.Int("cases", 30_000, "how many packets to ask about, at least")
	seed  = flag.Uint64("seed", 1, "seed of the random worlds")
)

// packetsEach is how many packets are asked about in each state of a world.
const packetsEach = 30

// TestMain gives the flags to rapid, unless rapid's own say otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set := func(name string, value uint64) {
		if !given[name] {
			if err := flag.Set(name, strconv.FormatUint(value, 10)); err != nil {
				panic(err)
			}
		}
	}
	// Who asks rapid for more wants other worlds, too.
	if given["seed"] || !given["rapid.checks"] {
		set("rapid.seed", *seed)
	}
	set("rapid.checks", uint64((*cases+packetsEach-1)/packetsEach))
	os.Exit(m.Run())
}

// bare are the plans of the nodes without Services.
var bare = plantest.Shape{Endpoints: []int{2, 1, 1}, IPv4: true, IPv6: true, Tunnel: true, NodesThroughTunnel: true, Gateway: true}.Plans()

// compiled is what the agent of a node makes of a world, state by state.
type compiled struct {
	node     string
	compiler service.Compiler
	ports    plugin.Ports
	plan     *plan.Plan
	// made are the objects of what the oracle has types of its own for.
	made map[any]registry.Object
}

func (c *compiled) become(w *oracle.World) error {
	objects := registry.Snapshot{}
	for _, o := range w.Services {
		objects.Put(api.Service, o)
	}
	for _, o := range w.Slices {
		objects.Put(api.EndpointSlice, o)
	}
	for _, o := range w.Nodes {
		objects.Put(api.Node, o)
	}
	for i, o := range w.Pools {
		objects.Put(api.AddressPoolKind, made(c, o, func() *api.AddressPool {
			return &api.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pool", i)}, Spec: api.AddressPoolSpec{Addresses: o.Addresses}}
		}))
	}
	for _, o := range w.AddressGrants {
		objects.Put(api.AddressGrantKind, made(c, o, func() *api.AddressGrant {
			namespace, name, _ := strings.Cut(o.Service, "/")
			return &api.AddressGrant{ObjectMeta: metav1.ObjectMeta{Name: api.GrantName(netip.MustParseAddr(o.What))}, Spec: api.AddressGrantSpec{Namespace: namespace, Name: name, UID: o.UID}}
		}))
	}
	for _, o := range w.Grants {
		objects.Put(service.GrantKind, made(c, o, func() *service.Grant {
			namespace, name, _ := strings.Cut(o.Service, "/")
			return &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: o.What}, Spec: service.GrantSpec{Namespace: namespace, Name: name, UID: o.UID}}
		}))
	}
	p := *bare[c.node]
	if c.compiler.Grants != w.Granting {
		c.compiler = service.Compiler{Grants: w.Granting} // a registry is of one kind
	}
	if !w.ServicesLeft {
		tables := c.compiler.Compile(objects, p.Local)
		p.Services, p.Backends, p.Sources = tables.Services, tables.Backends, tables.Sources
	}
	var servers []plan.ServiceKey
	if !w.Granting {
		servers = service.APIServers(objects)
	}
	c.plan, _ = c.ports.Put(&p, c.withPods(w), servers)
	config := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}}
	if w.ServicesLeft {
		config.Spec.ServiceProxy = api.KubeProxy
	}
	c.plan = plugin.ChoiceOf("", config).Leave(c.plan)
	if w.Names != nil {
		config.Spec.DNS = api.DNSSpec{Server: api.NamesByNodes, Service: w.Names.Service, Addresses: w.Names.Addresses}
		names := plugin.NameServerOf(config, objects, p.Local.Addresses)
		c.plan = plugin.PutNames(c.plan, names.Within(w.Names.Answering[c.node]))
		c.plan = plugin.KeepOthersOut(c.plan, names.More, names.MoreOrigin)
	}
	return c.plan.Validate()
}

// made returns the object that stands for what the oracle has a type of its own for, each time
// the same one, as a cache of a registry's objects does.
func made[T registry.Object](c *compiled, of any, make func() T) registry.Object {
	if c.made == nil {
		c.made = map[any]registry.Object{}
	}
	if c.made[of] == nil {
		c.made[of] = make()
	}
	return c.made[of]
}

// withPods returns the node with those of its pods that a world has.
func (c *compiled) withPods(w *oracle.World) plugin.Node {
	n := plugin.Node{Name: c.node, Addresses: bare[c.node].Local.Addresses, Others: w.Others[c.node]}
	for _, pod := range w.Pods {
		if pod.Spec.NodeName != c.node {
			continue
		}
		e := plugin.Endpoint{Network: plan.DefaultNetwork, Namespace: pod.Namespace, Pod: pod.Name, Created: pod.CreationTimestamp.Time, Ports: plugin.HostPorts(pod)}
		for _, ip := range pod.Status.PodIPs {
			e.Addresses = append(e.Addresses, netip.MustParseAddr(ip.IP))
		}
		for k, is := range bare[c.node].Endpoints.All() {
			if slices.Contains(is.Addresses, e.Addresses[0]) {
				e.Interface = k.Interface
			}
		}
		n.Endpoints = append(n.Endpoints, e)
	}
	return n
}

// owner is whose an entry of a plan is, as the oracle says it.
func owner(origin string) string { return strings.TrimPrefix(origin, "Service ") }

// evaluate says what a data plane that has the tables does with a packet.
func (c *compiled) evaluate(p oracle.Packet) oracle.Answer {
	side, who := plan.Inside, plan.FromEndpoints
	switch p.Sender {
	case oracle.NodeItself:
		who = 0
	case oracle.PodElsewhere:
		side = plan.Outside
	case oracle.Outsider:
		side, who = plan.Outside, plan.FromStrangers
	}
	key, s, ok := c.plan.Service(plan.DefaultNetwork, p.Destination, planned[p.Protocol], p.Port, side)
	switch {
	case !ok && c.plan.AnswersAt(plan.DefaultNetwork, p.Destination):
		return oracle.Answer{Fate: oracle.Dropped}
	case !ok:
		return oracle.Answer{Fate: oracle.Unserved}
	case key.Protocol == plan.AnyProtocol:
		return oracle.Answer{Fate: fates[s.Otherwise]}
	}
	a := oracle.Answer{Service: owner(s.Origin)}
	if s.Here {
		a.Fate = oracle.AnsweredHere
		return a
	}
	if !c.plan.Admits(plan.DefaultNetwork, s.Sources, p.Source) {
		a.Fate = oracle.Dropped
		return a
	}
	for k, b := range c.plan.BackendsOf(plan.DefaultNetwork, s.Set) {
		if b.Weight > 0 && k.Address.Is4() == p.Destination.Is4() {
			masqueraded := p.Sender == oracle.NodeItself ||
				!c.plan.Owns(plan.DefaultNetwork, k.Address) && (s.Masquerade&who != 0 || k.Address == p.Source)
			a.Backends = append(a.Backends, oracle.Backend{AddrPort: netip.AddrPortFrom(k.Address, k.Port), Masqueraded: masqueraded})
		}
	}
	if len(a.Backends) == 0 {
		a.Fate = fates[s.Otherwise]
		return a
	}
	a.Fate, a.Affinity = oracle.Served, s.Affinity
	return a
}

var (
	planned = map[corev1.Protocol]plan.Protocol{corev1.ProtocolTCP: plan.TCP, corev1.ProtocolUDP: plan.UDP, corev1.ProtocolSCTP: plan.SCTP}
	fates   = map[plan.Refusal]oracle.Fate{plan.Refuse: oracle.Refused, plan.Silence: oracle.Dropped}
)

// TestTables asks the oracle, and the tables of a node that follows a world through some
// changes, about the same packets.
func TestTables(t *testing.T) {
	answers := tally{}
	rapid.Check(t, func(t *rapid.T) {
		c := &compiled{node: here}
		w := drawWorld(t)
		for changes := number(t, "more states", 3); ; changes-- {
			if err := c.become(w); err != nil {
				t.Fatalf("the plan is not valid: %v\n%s", err, format(w))
			}
			for range packetsEach {
				p := drawPacket(t, w)
				want, got := w.Evaluate(p), c.evaluate(p)
				if !reflect.DeepEqual(want, got) {
					t.Fatalf("%+v\nthe oracle: %+v\nit is:      %+v\n%s%s", p, want, got, c.plan, format(w))
				}
				answers.add(p, want)
			}
			if changes == 0 {
				return
			}
			w = change(t, w)
		}
	})
	answers.check(t)
}

// tally counts answers.
type tally map[string]int

// kinds are the answers that worlds must say enough of.
var kinds = []string{"unserved", "no port of any", "refused", "dropped", "served", "several", "masqueraded", "not masqueraded", "affinity", "of a pod's port", "answered here"}

func (n tally) add(p oracle.Packet, a oracle.Answer) {
	n["all"]++
	switch {
	case a.Fate == oracle.Refused && a.Service == "":
		n["no port of any"]++
	default:
		n[string(a.Fate)]++
	}
	if strings.HasPrefix(a.Service, "Pod ") {
		n["of a pod's port"]++
	}
	if len(a.Backends) > 1 {
		n["several"]++
	}
	if a.Affinity > 0 {
		n["affinity"]++
	}
	for _, b := range a.Backends {
		switch {
		case b.Masqueraded && p.Sender != oracle.NodeItself:
			n["masqueraded"]++
		case !b.Masqueraded:
			n["not masqueraded"]++
		}
	}
}

// check fails a test whose worlds say little of some kind.
func (n tally) check(t *testing.T) {
	t.Helper()
	t.Logf("seed %d: %v", *seed, map[string]int(n))
	for _, kind := range kinds {
		if !t.Failed() && n[kind] < n["all"]/120 {
			t.Errorf("of %d packets, only %d are %s: the worlds say little of such Services", n["all"], n[kind], kind)
		}
	}
}

// format writes a world as who looks into a difference wants it.
func format(w *oracle.World) string {
	var out strings.Builder
	write := func(kind string, o any) {
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&out, "--- # %s\n%s", kind, text)
	}
	for _, o := range w.Services {
		write("Service", o)
	}
	for _, o := range w.Slices {
		write("EndpointSlice", o)
	}
	for _, o := range w.Nodes {
		fmt.Fprintf(&out, "--- # Node %s %v\n", o.Name, o.Labels)
	}
	for _, o := range w.Pods {
		write("Pod", o)
	}
	for _, o := range w.Pools {
		fmt.Fprintf(&out, "--- # AddressPool %q\n", o.Addresses)
	}
	for _, o := range w.AddressGrants {
		fmt.Fprintf(&out, "--- # AddressGrant %+v\n", *o)
	}
	for _, o := range w.Grants {
		fmt.Fprintf(&out, "--- # ServiceGrant %+v\n", *o)
	}
	if w.Names != nil {
		fmt.Fprintf(&out, "--- # names %+v\n", *w.Names)
	}
	fmt.Fprintf(&out, "--- # with ServiceGrants: %t, Services are left to another program: %t, other addresses of nodes: %v\n", w.Granting, w.ServicesLeft, w.Others)
	return out.String()
}
