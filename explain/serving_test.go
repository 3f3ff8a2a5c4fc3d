package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/plugin/plugins"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/service"
)

// TestServing asks how the Services in each file are served: those that its parts are called by, on all
// nodes, or on the one behind an @.
func TestServing(t *testing.T) {
	golden.Archives(t, "testdata/serving/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var cluster Cluster
		for i, f := range story {
			if f.Name == "objects" {
				cluster = read(t, f.Data)
				continue
			}
			of, only, _ := strings.Cut(f.Name, "@")
			namespace, name, _ := strings.Cut(of, "/")
			said, err := cluster.Serving(registry.Key{Namespace: namespace, Name: name}, only)
			if story[i].Data = []byte("\n" + said.String()); err != nil {
				story[i].Data = []byte("\nerror: " + err.Error() + "\n")
			}
			if err == nil && said.On == nil {
				t.Errorf("of %s there is no list of nodes, not even an empty one", f.Name)
			}
		}
		return story
	})
}

// counting counts what is compiled.
type counting struct {
	nodes, services int
}

func (c *counting) Name() string { return "counting" }

func (c *counting) Kinds() []*registry.Kind { return service.Kinds }

func (c *counting) Compile(in plugin.Input) (*plan.Plan, []plugin.Problem) {
	c.nodes++
	for range in.Objects.All(api.Service) {
		c.services++
	}
	return &plan.Plan{Local: plan.Local{Node: in.Node.Name, Addresses: in.Node.Addresses}}, nil
}

// TestServingOfMany asks how one of many Services is served on many nodes: of each node that is asked
// about a plan is compiled of what concerns the Service.
func TestServingOfMany(t *testing.T) {
	config := &api.ClusterConfig{Spec: api.ClusterConfigSpec{Plugin: "counting"}}
	config.Name = api.DefaultName
	objects := map[*registry.Kind][]registry.Object{api.ClusterConfigKind: {config}}
	const many = 100
	for i := range many {
		node := &corev1.Node{}
		node.Name = fmt.Sprint("node", i)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.30.0.%d", i+1)}}
		objects[api.Node] = append(objects[api.Node], node)
		svc := &corev1.Service{}
		svc.Namespace, svc.Name, svc.Spec.ClusterIP = fmt.Sprint("tenant", i), "web", fmt.Sprintf("10.96.0.%d", i+1)
		objects[api.Service] = append(objects[api.Service], svc)
	}
	for only, nodes := range map[string]int{"": many, "node7": 1} {
		c := &counting{}
		cluster := Cluster{Objects: registry.NewSnapshot(objects), Plugin: func(string) (plugin.Plugin, error) { return c, nil }}
		if _, err := cluster.Serving(registry.Key{Namespace: "tenant1", Name: "web"}, only); err != nil {
			t.Error(err)
		}
		if c.nodes != nodes || c.services != nodes {
			t.Errorf("of node %q, %d plans are compiled, of %d Services together", only, c.nodes, c.services)
		}
	}
}

// TestAnnounceProblems has several nodes answer for addresses, and none for some.
func TestAnnounceProblems(t *testing.T) {
	node := func(name, announces string) registry.Object {
		n := &corev1.Node{}
		n.Name = name
		api.SetAnnounces(n, announces)
		return n
	}
	virtual := func(name, address string) registry.Object {
		v := &api.VirtualAddress{Spec: api.VirtualAddressSpec{Address: address}}
		v.Name = name
		return v
	}
	objects := map[*registry.Kind][]registry.Object{
		api.Node:               {node("node1", "192.0.2.1,192.0.2.2,192.0.2.3"), node("node2", "192.0.2.1,192.0.2.2"), node("node3", "192.0.2.3")},
		api.VirtualAddressKind: {virtual("router", "192.0.2.1"), virtual("silent", "192.0.2.9"), virtual("wrong", "nowhere")},
	}
	c := Cluster{Objects: registry.NewSnapshot(objects), Lost: map[string]bool{"node3": true}, Plugin: plugins.Get}
	said := func(want ...string) {
		t.Helper()
		var got []string
		for _, p := range c.AddressProblems() {
			text, _, _ := strings.Cut(p.String(), ": see ")
			text, _, _ = strings.Cut(text, ": either the agent")
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it is said %q, want %q", got, want)
		}
	}
	both := "addresses: 192.0.2.1, 192.0.2.2 are each answered for on the link by node1, node2"
	var many []netip.Addr
	for i := range api.MaxAnnounced {
		many = append(many, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	named := api.AnnouncesText(many)
	silent := "virtualaddress silent: no node says that it answers for 192.0.2.9 on the link"
	said(silent, both)
	// One that does not name all that it answers for may answer for that, too.
	objects[api.Node] = append(objects[api.Node], node("node4", named+",+1"))
	c.Objects = registry.NewSnapshot(objects)
	said(both)
	// Where such nodes answer for more than there are, it is told all the same, and so it is where one says what no
	// agent does.
	objects[api.Node][3] = node("node4", named+",+2")
	c.Objects = registry.NewSnapshot(objects)
	said(silent, both)
	if text := fmt.Sprint(c.AddressProblems()); !strings.Contains(text, "; or one does of those that do not name all of theirs (node4), which say that they answer for 2 others, and there are 1") {
		t.Errorf("it is said %s", text)
	}
	objects[api.Node][3] = node("node4", "192.0.2.4,+60000")
	c.Objects = registry.NewSnapshot(objects)
	said(`node node4: its annotation weft.network/announces is not what an agent writes, and is believed of the addresses that it names alone: `+
		`it says that it answers for "+60000" addresses beside 1 that it names, and a node has 4096 at most`, silent, both)
	objects[api.Node][3] = node("node4", named+",+1")
	// Where not all can be among those, it is told how many are not.
	objects[api.VirtualAddressKind] = append(objects[api.VirtualAddressKind], virtual("second", "192.0.2.10"), virtual("third", "192.0.2.11"))
	c.Objects = registry.NewSnapshot(objects)
	said("addresses: of 3 addresses that nodes are to answer for on the link and that no Node names, nodes answer for 1, and so for 2 nobody does", both)
	// One address of two nodes is told of as the object that it is of.
	for name, address := range map[string]string{"virtualaddress router": "192.0.2.1", "addressgrant 192.0.2.2": "192.0.2.2"} {
		objects[api.Node] = []registry.Object{node("node1", address), node("node2", address)}
		objects[api.VirtualAddressKind] = objects[api.VirtualAddressKind][:1]
		if address == "192.0.2.2" {
			objects[api.VirtualAddressKind] = nil
		}
		c.Objects = registry.NewSnapshot(objects)
		said(name + ": " + address + " is answered for on the link by node1, node2")
		objects[api.VirtualAddressKind] = []registry.Object{virtual("router", "192.0.2.1")}
	}
}

// TestAddressProblems shows what status says of addresses outside of the cluster.
func TestAddressProblems(t *testing.T) {
	golden.Archives(t, "testdata/addresses/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		var said string
		for i, f := range story {
			if f.Name != "problems" {
				said = ""
				for _, p := range read(t, f.Data).AddressProblems() {
					said += p.String() + "\n"
				}
				continue
			}
			story[i].Data = []byte("\n" + said)
		}
		return story
	})
}

// TestManyAddresses has tenants have many Services: what is said of their addresses is a few
// lines, and status costs in proportion to how many there are.
func TestManyAddresses(t *testing.T) {
	objects := map[*registry.Kind][]registry.Object{}
	pool := &api.AddressPool{}
	pool.Name = "public"
	objects[api.AddressPoolKind] = []registry.Object{pool}
	const many = 10000
	for i := range many {
		svc := &corev1.Service{}
		svc.Namespace, svc.Name, svc.UID, svc.Spec.Type = fmt.Sprint("tenant", i%100), fmt.Sprint("web", i), "u1", corev1.ServiceTypeLoadBalancer
		if i%2 == 0 {
			class := fmt.Sprint("example.com/", i)
			svc.Spec.LoadBalancerClass = &class
		} else {
			a := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.String()}}
			g := &api.AddressGrant{Spec: api.AddressGrantSpec{Namespace: svc.Namespace, Name: svc.Name, UID: "u1", Pool: "public"}}
			g.Name = api.GrantName(a)
			objects[api.AddressGrantKind] = append(objects[api.AddressGrantKind], g)
		}
		objects[api.Service] = append(objects[api.Service], svc)
	}
	c := Cluster{Objects: registry.NewSnapshot(objects), Plugin: plugins.Get}
	all := c.AddressProblems()
	if len(all) != 2 || !strings.Contains(all[0].Message, " and 4997 more)") || !strings.Contains(all[1].Message, " and 4997 more on the link") {
		t.Errorf("it is said: %v", all)
	}
}

// A frontend whose ranges are all in vain is for nobody.
func TestFrontendForNobody(t *testing.T) {
	for want, sources := range map[string][]string{"refused": nil, "refused; for nobody": {}, "refused; for 192.0.2.0/24 alone": {"192.0.2.0/24"}} {
		if said := (ServedFrontend{Family: 4, Port: "80/tcp", Otherwise: "refused", Sources: sources}).String(); !strings.HasSuffix(said, "\t"+want) {
			t.Errorf("it is %q instead of %s", said, want)
		}
	}
}
