package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/change"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/policy"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestStories asks the questions in each file of testdata about the objects in
// it. A question is a line "SRC DST [PROTOCOL [PORT]] [namespace NAME] [-4|-6] [-v]".
func TestStories(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
			} else {
				story[i].Data = []byte("\n" + ask(t, cluster, f.Name))
			}
		}
		return story
	})
}

// read makes a cluster of YAML documents. A line "lost: NODE" says that the
// node's agent is gone, and one "now: TIME" when the objects were read.
func read(t *testing.T, text []byte) Cluster {
	t.Helper()
	c := Cluster{Plugin: plugins.Get, Lost: make(map[string]bool)}
	kinds := append(plugins.Kinds(), api.Kinds...)
	snapshot := make(registry.Snapshot)
	for _, doc := range bytes.Split(text, []byte("---\n")) {
		if node, ok := bytes.CutPrefix(bytes.TrimSpace(doc), []byte("lost: ")); ok {
			c.Lost[string(node)] = true
			continue
		}
		if now, ok := bytes.CutPrefix(bytes.TrimSpace(doc), []byte("now: ")); ok {
			var err error
			if c.Now, err = time.Parse(time.RFC3339, string(now)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var head struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, k := range kinds {
			if version, kind := k.GroupVersionKind.ToAPIVersionAndKind(); found || version != head.APIVersion || kind != head.Kind {
				continue
			}
			o := k.New()
			if err := yaml.UnmarshalStrict(doc, o); err != nil {
				t.Fatal(err)
			}
			snapshot.Put(k, o)
			found = true
		}
		if !found {
			t.Fatalf("no kind %s %s", head.APIVersion, head.Kind)
		}
	}
	grant(snapshot)
	c.Objects = snapshot
	return c
}

// grant gives Services what they say that they have, the older ones first, as a controller does.
func grant(objects registry.Snapshot) {
	all := slices.SortedStableFunc(registry.Each[*corev1.Service](objects, api.Service), func(a, b *corev1.Service) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, svc := range all {
		var names []string
		for _, ip := range append(slices.Clone(svc.Spec.ClusterIPs), svc.Spec.ClusterIP) {
			if ip != "" && ip != corev1.ClusterIPNone {
				names = append(names, ip)
			}
		}
		for _, p := range svc.Spec.Ports {
			if p.NodePort != 0 {
				names = append(names, service.NodePortGrant(p.NodePort, p.Protocol))
			}
		}
		for _, name := range names {
			if objects.Get(service.GrantKind, registry.Key{Name: name}) == nil {
				objects.Put(service.GrantKind, &service.Grant{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: service.GrantSpec{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID}})
			}
		}
	}
}

func ask(t *testing.T, c Cluster, question string) string {
	t.Helper()
	words := strings.Fields(question)
	q := Question{Namespace: "default", Source: words[0], Destination: words[1], Protocol: plan.TCP, Assumed: true}
	verbose := false
	for i := 2; i < len(words); i++ {
		var err error
		switch word := words[i]; {
		case word == "namespace":
			i++
			q.Namespace = words[i]
		case word == "-4" || word == "-6":
			q.Family = int(word[1] - '0')
		case word == "-v":
			verbose = true
		case i == 2:
			q.Protocol, err = plan.ParseProtocol(word)
			q.Assumed = false
		default:
			_, err = fmt.Sscan(word, &q.Port)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a, err := c.Why(q)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	for _, b := range append([]Answer{a}, a.Backends...) {
		if len(b.Steps) > 0 {
			sameWithAllPlans(t, c, a, b)
		}
	}
	if verbose {
		return a.Verbose()
	}
	return a.String()
}

// sameWithAllPlans checks that which plans were compiled makes no difference to an answer,
// or to that about one of its backends.
func sameWithAllPlans(t *testing.T, c Cluster, whole, a Answer) {
	t.Helper()
	all, err := c.planner()
	if err != nil {
		t.Fatal(err)
	}
	for o := range c.Objects.All(api.Node) {
		all.compile(o.GetName())
	}
	of := a
	if a.behind.IsValid() {
		of = whole
	}
	flow := plan.Flow{Network: plan.DefaultNetwork, Source: of.Source.Address, Destination: of.Destination.Address, Protocol: of.Protocol, Port: of.Port, Node: of.Source.Node, Enters: of.enters}
	want := seenFrom(all.explain(flow), a.behind)
	want.Backends = nil // Answer.Backends has them
	want.Allowed = want.Allowed && a.Verdict != NotKnown
	if !a.behind.IsValid() {
		whole := Answer{Source: a.Source, Destination: a.Destination, Service: a.Service, Verdict: Allowed, Explanation: want}
		if !want.Allowed {
			whole.Verdict = a.Verdict
		}
		c.unserved(&whole, flow)
		want = whole.Explanation
	}
	if diff := cmp.Diff(want.String(), a.Explanation.String()); diff != "" {
		t.Errorf("with the plans of all nodes, the answer about %s is another one (-all +some):\n%s", flow, diff)
	}
}

// crowded is a plug-in that adds a network of its own to what another compiles: all of
// the addresses that the other speaks of are there, and lead elsewhere.
type crowded struct{ plugin.Plugin }

func (c crowded) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	p, problems := c.Plugin.Compile(in)
	with := *p
	everything, node17 := netip.MustParsePrefix("0.0.0.0/0"), []string{"node17"}
	// Some pods of the stories have the addresses that are the node's own there.
	gateways := []netip.Addr{netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.1.5")}
	with.Local.Pools = slices.Clone(with.Local.Pools)
	for _, a := range gateways {
		with.Local.Pools = append(with.Local.Pools, plan.Pool{Network: "red", Prefix: netip.PrefixFrom(a, 30).Masked(), Gateway: a})
	}
	with.Peers = p.Peers.Set(plan.PeerKey{Name: node17[0]}, plan.Peer{Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.17"), netip.MustParseAddr("2001:db8::17")}})
	for k := range p.Routes.All() {
		with.Routes = with.Routes.Set(plan.RouteKey{Network: "red", Prefix: k.Prefix}, plan.Route{Way: plan.ToNextHop, Peers: node17})
	}
	with.Egress = p.Egress.Set(plan.EgressKey{Network: "red", Destination: everything}, plan.Egress{Action: plan.ViaNode, Node: node17[0]})
	for k, e := range p.Endpoints.All() {
		if !slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return slices.Contains(gateways, a) }) {
			e.Network, e.Name = "red", "red/"+e.Name
			with.Endpoints = with.Endpoints.Set(plan.EndpointKey{Interface: "red-" + k.Interface}, e)
		}
	}
	return &with, problems
}

// TestAnotherNetworkChangesNothing asks the questions of the stories where each node
// has another network with the same addresses, too.
func TestAnotherNetworkChangesNothing(t *testing.T) {
	golden.Archives(t, "testdata/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name != "objects" {
				story[i].Data = []byte("\n" + ask(t, cluster, f.Name))
				continue
			}
			cluster = read(t, f.Data)
			get := cluster.Plugin
			cluster.Plugin = func(name string) (plugin.Plugin, error) {
				plug, err := get(name)
				return crowded{plug}, err
			}
		}
		return story
	})
}

// Of a large cluster only the nodes on the way are compiled for, and not those on the
// way in another network.
func TestOnlyNodesOnTheWayAreCompiledFor(t *testing.T) {
	text, err := os.ReadFile("testdata/networkpolicy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	c := read(t, txtar.Parse(text).Files[0].Data)
	for i := 3; i < 30; i++ {
		node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("172.30.0.", i+10)}}}}
		node.Name = fmt.Sprint("node", i)
		c.Objects.(registry.Snapshot).Put(api.Node, node)
	}
	plug, err := plugins.Get("openshift-networkpolicy")
	if err != nil {
		t.Fatal(err)
	}
	for question, want := range map[string]string{
		"client web tcp 80": "node1 node2", "client frontend tcp 80": "node1", "web 192.0.2.1 udp 53": "node2",
		"192.0.2.1 web tcp 80": "node2", "node/node17 web tcp 80": "node17 node2",
		"10.1.1.99 10.1.2.99 tcp 80": "node1 node2", "192.0.2.1 192.0.2.2 tcp 1": "node1",
	} {
		counting := &counter{Plugin: crowded{plug}, nodes: map[string]bool{}}
		c.Plugin = func(string) (plugin.Plugin, error) { return counting, nil }
		words := strings.Fields(question)
		if _, err := c.Why(Question{Namespace: "default", Source: words[0], Destination: words[1], Protocol: plan.TCP, Port: 80}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(counting.nodes)), " "); got != want {
			t.Errorf("%s: compiled for %s, want %s", question, got, want)
		}
	}
}

// Where it may come in at very many nodes, some of them are looked at alone, and nothing is claimed of all.
func TestFewOfManyEntrancesAreLookedAt(t *testing.T) {
	text, err := os.ReadFile("testdata/entering.txtar")
	if err != nil {
		t.Fatal(err)
	}
	c := read(t, txtar.Parse(text).Files[0].Data)
	for i := 3; i <= 100; i++ {
		node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("172.30.0.", i+10)}}}}
		node.Name = fmt.Sprint("node", i)
		c.Objects.(registry.Snapshot).Put(api.Node, node)
	}
	plug, err := plugins.Get("openshift-subnet")
	if err != nil {
		t.Fatal(err)
	}
	counting := &counter{Plugin: plug, nodes: map[string]bool{}}
	c.Plugin = func(string) (plugin.Plugin, error) { return counting, nil }
	a, err := c.Why(Question{Namespace: "default", Source: "172.30.0.1", Destination: "198.51.100.11", Protocol: plan.TCP, Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(counting.nodes); n != maxEntrances {
		t.Errorf("compiled for %d nodes", n)
	}
	if said := a.String(); a.Verdict != NotKnown || !strings.Contains(said, "84 of the 100 nodes where it may come in were not looked at") {
		t.Errorf("the verdict is %s:\n%s", a.Verdict, said)
	}
}

// counter remembers which nodes a plug-in compiled for.
type counter struct {
	plugin.Plugin
	nodes map[string]bool
}

func (c *counter) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	c.nodes[in.Node.Name] = true
	return c.Plugin.Compile(in)
}

// Every order of putting objects into a snapshot gives the same one.
func TestSnapshotIsOrdered(t *testing.T) {
	names := []string{"b", "a", "c", "a"}
	s := make(registry.Snapshot)
	for _, n := range names {
		node := api.Node.New()
		node.SetName(n)
		s.Put(api.Node, node)
	}
	var got []string
	for o := range s.All(api.Node) {
		got = append(got, o.GetName())
	}
	if strings.Join(got, "") != "abc" {
		t.Errorf("order is %v", got)
	}
	if s.Get(api.Node, registry.Key{Name: "d"}) != nil || s.Get(api.Node, registry.Key{Name: "b"}) == nil {
		t.Error("Get does not find what is there, or finds what is not")
	}
}

// What is wrong with a node on the way to several backends is said once, and so is
// what several nodes say.
func TestWarningsAreSaidOnce(t *testing.T) {
	text, err := os.ReadFile("testdata/service.txtar")
	if err != nil {
		t.Fatal(err)
	}
	c := read(t, txtar.Parse(text).Files[0].Data)
	c.Lost["node1"] = true
	shared := api.Problem{Kind: "ClusterConfig", Name: "default", Message: "no data plane"}
	for _, name := range []string{"node1", "node2"} {
		node := c.Objects.Get(api.Node, registry.Key{Name: name}).(*corev1.Node)
		api.SetNodeProblems(node, []api.Problem{shared})
	}
	a, err := c.Why(Question{Namespace: "default", Source: "client", Destination: "svc/web", Protocol: plan.TCP, Assumed: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Backends) < 2 {
		t.Fatalf("there are %d backends, so that nothing could be said twice", len(a.Backends))
	}
	encoded, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"node node1: its agent does not run; what it was told last holds, if the node runs at all",
		"nodes node1, node2: clusterconfig default: no data plane",
	} {
		for form, said := range map[string]string{"brief": a.String(), "verbose": a.Verbose(), "JSON": string(encoded)} {
			if n := strings.Count(said, want); n != 1 {
				t.Errorf("%s: %q is said %d times in:\n%s", form, want, n, said)
			}
		}
	}
}

// What goes to a Service is judged by the pod and port that it really goes to,
// and so is the advice.
func TestPoliciesSeeTheRealDestination(t *testing.T) {
	text, err := os.ReadFile("testdata/networkpolicy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	c := read(t, txtar.Parse(text).Files[0].Data)
	plug, err := plugins.Get("openshift-networkpolicy")
	if err != nil {
		t.Fatal(err)
	}
	c.Plugin = func(string) (plugin.Plugin, error) { return single{plug}, nil }
	for source, want := range map[string]string{
		"frontend": "ingress to pod default/web is allowed by NetworkPolicy default/web ingress[1]",
		"client":   "ingress to pod default/web is denied by NetworkPolicy default/deny ingress isolation",
	} {
		a, err := c.Why(Question{Namespace: "default", Source: source, Destination: "10.96.0.1", Protocol: plan.TCP, Port: 80})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Policies) != 1 || a.Policies[0].String() != want {
			t.Errorf("%s: policies say %v, want %s\n%s", source, a.Policies, want, a)
			continue
		}
		if advised := strings.HasSuffix(a.Policies[0].Advice, "it would hold if pod default/client had the label role=frontend"); advised == a.Allowed {
			t.Errorf("%s: the advice is %q", source, a.Policies[0].Advice)
		}
	}
}

// single is a plug-in with a Service, port 80 of which is port 8080 of a pod.
type single struct{ plugin.Plugin }

func (s single) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	p, problems := s.Plugin.Compile(in)
	with := *p
	with.Services = p.Services.Set(
		plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: plan.TCP},
		plan.Service{Set: "default/web"})
	with.Backends = p.Backends.Set(
		plan.BackendKey{Network: plan.DefaultNetwork, Set: "default/web", Address: netip.MustParseAddr("10.1.2.2"), Port: 8080},
		plan.Backend{Node: "node2", Weight: 1})
	return &with, problems
}

// popular is a plug-in with a Service that has more backends outside than are followed.
type popular struct{ plugin.Plugin }

func (s popular) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	p, problems := s.Plugin.Compile(in)
	with := *p
	with.Services = p.Services.Set(
		plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: plan.TCP},
		plan.Service{Set: "default/web"})
	for i := range plan.MaxFollowed + 1 {
		with.Backends = with.Backends.Set(
			plan.BackendKey{Network: plan.DefaultNetwork, Set: "default/web", Address: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Port: 8080},
			plan.Backend{Weight: 1})
	}
	return &with, problems
}

// Of a Service that has more backends than are followed nothing is claimed that is not
// known.
func TestBackendsThatAreNotFollowed(t *testing.T) {
	text, err := os.ReadFile("testdata/networkpolicy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	c := read(t, txtar.Parse(text).Files[0].Data)
	plug, err := plugins.Get("openshift-networkpolicy")
	if err != nil {
		t.Fatal(err)
	}
	c.Plugin = func(string) (plugin.Plugin, error) { return popular{plug}, nil }
	a, err := c.Why(Question{Namespace: "default", Source: "frontend", Destination: "10.96.0.1", Protocol: plan.TCP, Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	const want = "unknown: the Service has more backends than are looked at; as far as is known, " +
		"of the 1001 backends of the service at 10.96.0.1:80, 1000 may be reached, and of the others it is not known (1 not looked at)\n"
	if got := a.String(); a.Verdict != NotKnown || a.Explanation.Allowed || !strings.HasPrefix(got, want) {
		t.Errorf("the verdict is %s:\n%s", a.Verdict, got)
	}
}

// Where a limit of policies decides, it is the reason that is given, and no other.
func TestLimitsDecide(t *testing.T) {
	text, err := os.ReadFile("testdata/networkpolicy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	all := networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}
	rule := func(i, ports int, peers ...int) (r networkingv1.NetworkPolicyIngressRule) {
		for _, peer := range peers {
			r.From = append(r.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("203.0.%d.%d/32", 110+peer/250, peer%250)}})
		}
		for j := range ports {
			port := intstr.FromInt(1 + 2*(i*ports+j))
			r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Port: &port})
		}
		return r
	}
	var few, many, square []networkingv1.NetworkPolicyIngressRule
	for i := range policy.MaxOfPolicy.Rules + 1 {
		many = append(many, rule(i, 0, i))
	}
	few = append(slices.Clone(many[:2]), all)
	many = append(many, all)
	// Each peer is in one row and one column, and what it may do is like no other's.
	const side = 10
	for i := range side {
		var row, column []int
		for j := range side {
			row, column = append(row, i*side+j), append(column, j*side+i)
		}
		square = append(square, rule(2*i, 25, row...), rule(2*i+1, 25, column...))
	}
	square = append(square, all)
	for name, test := range map[string]struct {
		rules        []networkingv1.NetworkPolicyIngressRule
		rule, advice string
	}{
		"no limit": {few, "NetworkPolicy default/web ingress[2]", ""},
		"too many rules": {many, "NetworkPolicy default/deny ingress isolation",
			"NetworkPolicy default/web is too large, so that none of its rules holds"},
		"too many verdicts": {square, "NetworkPolicy default/deny and others of the same pod (their rules make more than 2048 verdicts)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := read(t, txtar.Parse(text).Files[0].Data)
			web := c.Objects.Get(api.NetworkPolicy, registry.Key{Namespace: "default", Name: "web"}).(*networkingv1.NetworkPolicy)
			web.Spec.Ingress = test.rules
			a, err := c.Why(Question{Namespace: "default", Source: "client", Destination: "web", Protocol: plan.TCP, Port: 80})
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Policies) != 1 || a.Policies[0].Rule != test.rule || a.Policies[0].Advice != test.advice {
				t.Errorf("policies say %+v, want %q and %q", a.Policies, test.rule, test.advice)
			}
			if strings.Contains(strings.Join(a.Warnings, "\n"), "by the objects as they are") {
				t.Errorf("the answer is\n%s", a)
			}
		})
	}
}

// What no policy decides is no rule's.
func TestJudgementOfNoPolicy(t *testing.T) {
	j := Judgement{Pod: "default/local", Direction: plan.Outgoing, Allowed: true, Rule: policy.Unrestricted}
	if got, want := j.String(), "egress from pod default/local is allowed: no policy decides"; got != want {
		t.Errorf("it says %q, not %q", got, want)
	}
}

// The gateway of a pool is the node's, in the network of the pool.
func TestWhichAddressesAreANodes(t *testing.T) {
	p, err := plan.Parse("pool default 10.1.1.0/24 gateway 10.1.1.1\npool red 10.1.2.0/24 gateway 10.1.2.1\n")
	if err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{}
	for text, want := range map[string]bool{"10.1.1.1": true, "10.1.2.1": false, "10.1.1.2": false} {
		if got := isNode(n, netip.MustParseAddr(text), "node2", p); got != want {
			t.Errorf("%s is the node's: %v", text, got)
		}
	}
}

// TestConfigOfALostStatus says of a cluster whose status is lost what the controller writes
// then: both go by the same. Of five nodes two say that they use flannel, and three nothing, which
// counts for what is asked for.
func TestConfigOfALostStatus(t *testing.T) {
	for asked, want := range map[string]string{"": "flannel [flannel]", "flannel": "flannel [flannel]", "openshift-subnet": "openshift-subnet [flannel openshift-subnet]"} {
		objects := make(registry.Snapshot)
		lost := &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Spec: api.ClusterConfigSpec{Plugin: asked}}
		objects.Put(api.ClusterConfigKind, lost)
		var nodes []*corev1.Node
		for _, name := range []string{"node1", "node2", "node3", "node4", "node5"} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if name <= "node2" {
				node.Annotations = map[string]string{api.PluginsAnnotation: api.PluginReport{Revision: 5, Uses: "flannel", Ready: []string{"flannel"}}.Text()}
			}
			nodes = append(nodes, node)
			objects.Put(api.Node, node)
		}
		said := Config(objects, plugins.Get)
		written := change.Next(change.Cluster{Config: lost, Nodes: nodes, Unknown: func(string) error { return nil },
			Against: func(change.Question) (change.Objections, error) { return change.Objections{}, nil }})
		if got := fmt.Sprint(said.Status.Plugin, " ", said.Status.Plugins); got != want {
			t.Errorf("%q is asked for: it says that nodes use %s, and not %s", asked, got, want)
		}
		if got := fmt.Sprint(written.Plugin, " ", written.Plugins); got != want {
			t.Errorf("%q is asked for: the controller writes that nodes use %s, and not %s", asked, got, want)
		}
		if asked == "" && said.Spec.Plugin != "flannel" {
			t.Errorf("nothing is asked for, and it says that %s is", said.Spec.Plugin)
		}
	}
}

// TestKubernetesStories is TestStories for clusters in which Kubernetes itself gives Services
// their addresses.
func TestKubernetesStories(t *testing.T) {
	golden.Archives(t, "testdata/kubernetes/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
				cluster.Plugin = plugins.Finder(func(k *registry.Kind) bool { return k != service.GrantKind })
			} else {
				story[i].Data = []byte("\n" + ask(t, cluster, f.Name))
			}
		}
		return story
	})
}
