package flannel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// world is a registry and nodes that decide by turns, without clock or disk.
type world struct {
	t      *rapid.T
	config string
	leases map[string]*Lease
	// created is how many leases were made.
	created int64
	nodes   map[string]*plugin.Node
	former  map[string]Subnet
}

func (w *world) objects() registry.Objects {
	objects := map[*registry.Kind][]registry.Object{}
	for _, l := range w.leases {
		objects[LeaseKind] = append(objects[LeaseKind], l)
	}
	for _, n := range w.nodes {
		o := &corev1.Node{}
		o.Name = n.Name
		for _, a := range n.Addresses {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		objects[api.Node] = append(objects[api.Node], o)
	}
	return registry.NewSnapshot(objects)
}

// settle lets a node decide until it keeps what it has, and returns that.
func (w *world) settle(name string) (Subnet, error) {
	n := w.nodes[name]
	settings, err := ParseSettings([]byte(w.config))
	if err != nil {
		w.t.Fatal(err)
	}
	// Each lease that it has and may not keep takes a step; then it takes one more for one
	// of its own, and maybe to say who it is.
	for range len(w.leases) + 3 {
		objects := w.objects()
		leases, _ := Plugin{}.withDefaults().readLeases(objects)
		v := view{settings: settings, config: []byte(w.config), node: *n, owner: ownerOf(*n, objects), leases: leases,
			former: w.former[name], pick: func(n int) int { return rapid.IntRange(0, n-1).Draw(w.t, "pick") }}
		s, err := v.decide()
		if err != nil {
			return Subnet{}, err
		}
		switch s.verb {
		case keep:
			w.former[name] = s.subnet
			return s.subnet, nil
		case release:
			if v.inUse(s.subnet) {
				w.t.Fatalf("node %s gives %s back, where pods live", name, s.object.Name)
			}
			delete(w.leases, s.object.Name)
		case create:
			if !v.free(s.subnet) && !(v.inUse(s.subnet) && v.settings.Bears(s.subnet) && v.unclaimed(s.subnet)) {
				w.t.Fatalf("node %s takes %s, which is not free", name, s.subnet)
			}
			if !v.spares(s.subnet) && !v.inUse(s.subnet) {
				w.t.Fatalf("node %s takes %s, which has one of the nodes' own network", name, s.subnet)
			}
			w.created++
			s.object.Created = w.created
			w.leases[s.object.Name] = s.object
		case update:
			w.leases[s.object.Name] = s.object
		}
	}
	w.t.Fatalf("node %s does not come to rest", name)
	return Subnet{}, nil
}

// Whatever happens to nodes, leases and configuration, and whatever leases say: nodes come
// to rest, never have addresses in common, give way to an older lease before they have pods, keep
// a subnet on which pods live for as long as nobody takes it from them, and agree with
// Compile on which lease is theirs.
func TestNodesAndLeases(t *testing.T) {
	configs := []string{
		`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`,
		`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`,
		`{"Network":"10.5.0.0/16","SubnetLen":20,"Backend":{"Type":"vxlan","VNI":9}}`,
		`{"Network":"10.6.0.0/26","SubnetLen":29,"Backend":{"Type":"vxlan"}}`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, config: configs[0], leases: map[string]*Lease{}, nodes: map[string]*plugin.Node{}, former: map[string]Subnet{}}
		addresses := func() []netip.Addr {
			i := rapid.IntRange(1, 200).Draw(t, "address")
			return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.30.0.%d", i)), netip.MustParseAddr(fmt.Sprintf("fd00:30::%d", i))}
		}
		name := rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("node%d", rapid.IntRange(0, 7).Draw(t, "node")) })
		leaseName := func() string {
			names := append([]string{""}, slices.Sorted(maps.Keys(w.leases))...)
			return rapid.SampledFrom(names).Draw(t, "lease")
		}
		t.Repeat(map[string]func(*rapid.T){
			"start": func(t *rapid.T) {
				if n := name.Draw(t, "start"); w.nodes[n] == nil {
					w.nodes[n] = &plugin.Node{Name: n, Addresses: addresses(), MTU: 1500, Prefixes: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24")}}
				}
			},
			"forget subnet file": func(t *rapid.T) { delete(w.former, name.Draw(t, "forget")) },
			"remove":             func(t *rapid.T) { delete(w.nodes, name.Draw(t, "remove")) },
			"lose lease":         func(t *rapid.T) { delete(w.leases, leaseName()) },
			"steal lease": func(t *rapid.T) {
				if l := w.leases[leaseName()]; l != nil {
					stolen := l.DeepCopyObject().(*Lease)
					stolen.Spec = []byte(`{"PublicIP":"172.30.9.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}}`)
					w.leases[l.Name] = stolen
				}
			},
			"take a part": func(t *rapid.T) {
				s, err := ParseSubnet(leaseName())
				if err != nil || s.V4.Bits() > 30 {
					return
				}
				l := &Lease{Expires: true, Spec: []byte(`{"PublicIP":"172.30.9.8","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:98"}}`)}
				l.Name = Subnet{V4: netip.PrefixFrom(s.V4.Addr(), s.V4.Bits()+1)}.String()
				if w.created++; rapid.Bool().Draw(t, "younger") {
					l.Created = w.created
				}
				w.leases[l.Name] = l
			},
			"say that a lease is a node's": func(t *rapid.T) {
				n := name.Draw(t, "say")
				address := "192.0.2.1"
				if o := w.nodes[n]; o != nil && rapid.Bool().Draw(t, "with its address") {
					address = o.Addresses[0].String()
				}
				l := &Lease{Expires: rapid.Bool().Draw(t, "expires"), Spec: fmt.Appendf(nil, `{"PublicIP":%q,"BackendType":"vxlan","Weft":{"Node":%q,"Config":{}}}`, address, n)}
				l.Name = rapid.SampledFrom([]string{"10.5.10.0-24", "10.5.10.0-24&fd00:5:0:1::-64", "10.5.1.0-25", "10.7.1.0-24", "172.30.0.0-24"}).Draw(t, "lease")
				if w.leases[l.Name] == nil {
					w.created++
					l.Created = w.created
					w.leases[l.Name] = l
				}
			},
			"change address": func(t *rapid.T) {
				if n := w.nodes[name.Draw(t, "readdress")]; n != nil {
					n.Addresses = addresses()
				}
			},
			"pods": func(t *rapid.T) {
				n := w.nodes[name.Draw(t, "pods")]
				if n == nil {
					return
				}
				n.Endpoints = nil
				if s := w.former[n.Name]; s.V4.IsValid() && rapid.Bool().Draw(t, "run") {
					a := s.V4.Addr().Next().Next()
					n.Endpoints = []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: []netip.Addr{a}, MAC: plan.MACOf(a)}}
				}
			},
			"pods of another network": func(t *rapid.T) {
				if n := w.nodes[name.Draw(t, "pods")]; n != nil {
					a := netip.AddrFrom4([4]byte{10, 5, byte(rapid.IntRange(0, 4).Draw(t, "subnet")), 2})
					n.Endpoints = []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: []netip.Addr{a, netip.MustParseAddr("fd00:5::2")}, MAC: plan.MACOf(a)}}
				}
			},
			"configure": func(t *rapid.T) { w.config = rapid.SampledFrom(configs).Draw(t, "config") },
			"": func(t *rapid.T) {
				w.t = t
				held := map[string]Subnet{}
				// behind reports whether an older lease has a part of a subnet.
				behind := func(s Subnet) bool {
					for name, l := range w.leases {
						if o, err := ParseSubnet(name); err == nil && o != s && o.Overlaps(s) && l.Created < w.leases[s.String()].Created {
							return true
						}
					}
					return false
				}
				inUse := func(n string, s Subnet) bool { return (view{node: *w.nodes[n]}).inUse(s) }
				for _, n := range slices.Sorted(maps.Keys(w.nodes)) {
					before := w.former[n]
					lease := w.leases[before.String()]
					s, err := w.settle(n)
					if err != nil {
						continue // no subnet, or two nodes with one address
					}
					for other, o := range held {
						if o.Overlaps(s) && !(behind(s) && inUse(n, s)) && !(behind(o) && inUse(other, o)) {
							t.Fatalf("%s has %s and %s has %s", n, s, other, o)
						}
					}
					held[n] = s
					if behind(s) && !inUse(n, s) {
						t.Fatalf("%s stays on %s, though another is older and no pod lives there", n, s)
					}
					if lease != nil && s != before && strings.Contains(string(lease.Spec), fmt.Sprintf(`"Node":%q`, n)) && inUse(n, before) && !behind(before) && !inUse(n, s) {
						t.Fatalf("%s moved from %s, where pods live, to %s", n, before, s)
					}
				}
				for _, n := range slices.Sorted(maps.Keys(held)) {
					s := held[n]
					if w.leases[s.String()] == nil {
						t.Fatalf("%s believes to have %s", n, s)
					}
					// What others gave back meanwhile may have been in the way of an older one.
					again, err := w.settle(n)
					if err != nil || again != s && inUse(n, s) && !inUse(n, again) {
						t.Fatalf("%s had %s, and then has %s: %v", n, s, again, err)
					}
					w.compile(n, again)
				}
			},
		})
	})
}

// Whoever has pods keeps their subnet when flannel comes, the first of the network as
// well, which flannel gives to nobody: from there another is taken once they are gone.
func TestSubnetsOfPodsAreAdopted(t *testing.T) {
	for _, config := range []string{`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`,
		`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`} {
		w := &world{config: config, leases: map[string]*Lease{}, nodes: map[string]*plugin.Node{}, former: map[string]Subnet{}}
		for i := range 3 {
			addresses := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.5.%d.2", i)), netip.MustParseAddr(fmt.Sprintf("fd00:5:0:%d::2", i))}
			w.nodes[fmt.Sprint("node", i)] = &plugin.Node{Name: fmt.Sprint("node", i), MTU: 1500,
				Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.30.0.%d", i+1)), netip.MustParseAddr(fmt.Sprintf("fd00:30::%d", i+1))},
				Endpoints: []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: addresses, MAC: plan.MACOf(addresses[0])}}}
		}
		rapid.Check(t, func(rt *rapid.T) {
			w.t, w.leases, w.former = rt, map[string]*Lease{}, map[string]Subnet{}
			for _, name := range rapid.Permutation([]string{"node0", "node1", "node2"}).Draw(rt, "order") {
				s, err := w.settle(name)
				if a := w.nodes[name].Endpoints[0].Addresses[0]; err != nil || !s.V4.Contains(a) {
					rt.Fatalf("%s, whose pod has %s, takes %s: %v", name, a, s, err)
				}
				w.compile(name, s)
			}
			first := *w.nodes["node0"]
			first.Endpoints = nil
			w.nodes = map[string]*plugin.Node{"node0": &first, "node1": w.nodes["node1"], "node2": w.nodes["node2"]}
			if s, err := w.settle("node0"); err != nil || s.V4.Contains(netip.MustParseAddr("10.5.0.2")) {
				rt.Fatalf("without pods node0 stays on %s: %v", s, err)
			}
			pod := netip.MustParseAddr("10.5.0.2")
			first.Endpoints = []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: []netip.Addr{pod, netip.MustParseAddr("fd00:5::2")}, MAC: plan.MACOf(pod)}}
		})
	}
}

// A node's subnet is never on the nodes' own network, whatever names it: the configuration,
// a reservation, what the node had, or what is free; neither while the cluster changes nor
// without. But what pods live on stays. Where the network has room beside, the node gets a
// subnet of that. Nor is it on the network that another node says it is on, where there is
// room beside that one, too, and nothing is reserved for the node. Else it has what it had.
func TestNoSubnetIsOnTheNodesOwnNetwork(t *testing.T) {
	taken, onOthers := map[bool]int{}, map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		within := func(name string, from, to int) string { return fmt.Sprint(rapid.IntRange(from, to).Draw(t, name)) }
		subnet := func(name string) Subnet {
			return Subnet{V4: netip.MustParsePrefix("172.30." + within(name, 0, 7) + ".0/24")}
		}
		bits := rapid.SampledFrom([]int{16, 21, 24, 26, 32}).Draw(t, "bits")
		node := plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30." + within("third", 0, 7) + ".9")}, MTU: 1500, Beside: rapid.Bool().Draw(t, "beside")}
		if bits < 32 {
			p, _ := node.Addresses[0].Prefix(bits)
			node.Prefixes = []netip.Prefix{p}
		}
		other := netip.MustParseAddr("172.30." + within("other's third", 0, 7) + ".8")
		settings, err := ParseSettings([]byte(`{"Network":"172.30.0.0/` + within("network", 20, 21) + `","Backend":{"Type":"vxlan"}}`))
		if err != nil {
			t.Fatal(err)
		}
		v := view{settings: settings, config: []byte("{}"), node: node, forced: rapid.Bool().Draw(t, "forced"), reserved: reservations{},
			owner: owner{name: node.Name, addresses: node.Addresses, nodes: map[string][]netip.Addr{"node2": {other}}}, pick: func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }}
		said := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2"}}
		if bits := rapid.SampledFrom([]int{0, 16, 21, 22, 24, 26}).Draw(t, "other's bits"); bits > 0 {
			p, _ := other.Prefix(bits)
			said.Annotations = map[string]string{api.OnLinkAnnotation: p.String()}
			v.owner.others = []*corev1.Node{said}
		}
		if rapid.Bool().Draw(t, "had") {
			v.former = subnet("former")
		}
		if rapid.Bool().Draw(t, "is reserved") {
			s := subnet("reserved")
			v.reserved[s] = &reservation{Node: node.Name}
		}
		if rapid.Bool().Draw(t, "has a pod") {
			v.node.Endpoints = []plugin.Endpoint{{Addresses: []netip.Addr{subnet("pod's").V4.Addr().Next().Next()}}}
		}
		room, roomBeside := false, false
		for i := range 16 {
			s := Subnet{V4: netip.MustParsePrefix(fmt.Sprintf("172.30.%d.0/24", i))}
			if v.free(s) && v.spares(s) {
				room = true
				roomBeside = roomBeside || !slices.ContainsFunc(api.OnLink(said), s.V4.Overlaps)
			}
		}
		s, err := v.decide()
		if err != nil {
			if room && len(v.reserved) == 0 && (!node.Beside || v.forced) {
				t.Fatalf("there is room, and the node says %v", err)
			}
			return
		}
		on := node.Prefixes
		for _, a := range append(node.Addresses, other) {
			on = append(on, netip.PrefixFrom(a, 32))
		}
		touches := slices.ContainsFunc(on, s.subnet.V4.Overlaps)
		if lives := v.inUse(s.subnet); touches && !lives {
			t.Fatalf("%s is taken (%s); the nodes' own network is %v", s.subnet, s.reason, on)
		}
		others := slices.ContainsFunc(api.OnLink(said), s.subnet.V4.Overlaps)
		if others && roomBeside && len(v.reserved) == 0 && !v.inUse(s.subnet) {
			t.Fatalf("%s is taken (%s), and node2 says that it is on %v", s.subnet, s.reason, api.OnLink(said))
		}
		had := v.free(v.former) && v.spares(v.former)
		if had && len(v.reserved)+len(v.node.Endpoints) == 0 && s.subnet != v.former && (!roomBeside || !slices.ContainsFunc(api.OnLink(said), v.former.V4.Overlaps)) {
			t.Fatalf("%s is taken (%s), and the node could have %s again", s.subnet, s.reason, v.former)
		}
		taken[touches]++
		onOthers[others && !touches]++
	})
	if taken[true] == 0 || taken[false] == 0 || onOthers[true] == 0 {
		t.Errorf("on the nodes' own network, for pods, and beside it: %v; on that of another alone: %v", taken, onOthers)
	}
}

// A node that got the address of several that are gone, whose leases the configuration
// does not allow any more, gives back one after the other before it takes its own.
func TestManyLeasesToGiveBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, config: `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`, leases: map[string]*Lease{}, nodes: map[string]*plugin.Node{}, former: map[string]Subnet{}}
		address := []netip.Addr{netip.MustParseAddr("172.30.0.1")}
		many := rapid.IntRange(0, 6).Draw(t, "many")
		for i := range many {
			name := fmt.Sprintf("gone%d", i)
			w.nodes[name] = &plugin.Node{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.30.1.%d", i+1))}, MTU: 1500}
			if _, err := w.settle(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range w.leases {
			l.Spec = bytes.ReplaceAll(l.Spec, fieldsOf(l.Spec)["PublicIP"], []byte(`"172.30.0.1"`))
		}
		w.config = `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}`
		w.nodes = map[string]*plugin.Node{"node1": {Name: "node1", Addresses: address, MTU: 1500}}
		s, err := w.settle("node1")
		if err != nil || len(w.leases) != 1 || w.leases[s.String()] == nil {
			t.Fatalf("of %d leases, and %s, %d are left: %v", many, s, len(w.leases), err)
		}
	})
}

// The free subnets of a range are those that share no address with what somebody has,
// however wide or narrow that is.
func TestFreeSubnets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		network := netip.MustParsePrefix("255.255.0.0/16")
		if rapid.Bool().Draw(t, "in the middle") {
			network = netip.MustParsePrefix("10.5.0.0/16")
		}
		within := func(label string, least, most int) netip.Prefix {
			a := network.Addr().As4()
			a[2], a[3] = rapid.Byte().Draw(t, label), rapid.Byte().Draw(t, label)
			return netip.PrefixFrom(netip.AddrFrom4(a), rapid.IntRange(least, most).Draw(t, label)).Masked()
		}
		r := Range{Network: network, Bits: rapid.IntRange(18, 26).Draw(t, "length")}
		r.Min, r.Max = within("first", r.Bits, r.Bits).Addr(), within("last", r.Bits, r.Bits).Addr()
		v := view{reserved: reservations{}, node: plugin.Node{Taken: map[netip.Prefix]string{}}}
		var taken, networks []netip.Prefix
		for range rapid.IntRange(0, 20).Draw(t, "many") {
			p := within("taken", 16, 30)
			taken = append(taken, p)
			switch rapid.IntRange(0, 4).Draw(t, "by") {
			case 0:
				v.leases = append(v.leases, &lease{subnet: Subnet{V4: p}})
			case 1:
				v.reserved[Subnet{V4: p}] = &reservation{}
			case 2:
				v.node.Taken[p] = "another"
			case 3:
				networks = append(networks, p)
			default:
				v.node.Kept = append(v.node.Kept, p)
			}
		}
		var want []netip.Prefix
		for p, ok := netip.PrefixFrom(r.Min, r.Bits), true; ok && r.Allows(p) && len(want) < candidates; p, ok = next(p) {
			if !slices.ContainsFunc(taken, p.Overlaps) {
				want = append(want, p)
			}
		}
		if got := v.freeIn(r, networks); !slices.Equal(got, want) {
			t.Fatalf("from %s to %s of length %d, without %s, the first free ones are %s, want %s", r.Min, r.Max, r.Bits, taken, got, want)
		}
	})
}

// compile holds Compile against what the node has.
func (w *world) compile(name string, s Subnet) {
	config := &Config{Spec: []byte(w.config)}
	config.Name = ConfigName
	snapshot := w.objects().(registry.Snapshot)
	snapshot[ConfigKind] = []registry.Object{config}
	p, _ := Plugin{}.Compile(plugin.Input{Config: &api.ClusterConfig{}, Objects: snapshot, Node: *w.nodes[name]})
	if err := p.Validate(); err != nil {
		w.t.Fatalf("the plan of %s: %v\n%s", name, err, p)
	}
	settings, _ := ParseSettings([]byte(w.config))
	want := 0
	for _, prefix := range s.Prefixes() {
		if prefix.Addr().Is4() || !settings.V6.IsZero() {
			want++
		}
	}
	if len(p.Local.Pools) != want {
		w.t.Fatalf("%s has lease %s and pools %v", name, s, p.Local.Pools)
	}
	for _, pool := range p.Local.Pools {
		if pool.Prefix != s.V4 && pool.Prefix != s.V6 {
			w.t.Fatalf("%s has lease %s and pool %s", name, s, pool.Prefix)
		}
		if pool.Closed {
			w.t.Fatalf("%s keeps lease %s, and gives no addresses of %s", name, s, pool.Prefix)
		}
	}
}

// Nothing that is in the registry makes Compile fail, or state an entry that
// a data plane could not load.
func FuzzCompile(f *testing.F) {
	f.Add(goodConfig, "10.5.2.0-24", `{"PublicIP":"172.30.0.2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}}`)
	f.Add(`{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan","DirectRouting":true}}`,
		"10.5.2.0-24&fd00:5:0:2::-64", `{"PublicIP":"172.30.0.2","PublicIPv6":"fd00:30::2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"},"BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}}`)
	f.Add(`{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}`, "10.5.2.0-24", `{"PublicIP":"172.30.0.255","BackendType":"host-gw"}`)
	f.Add(goodConfig, "224.0.0.0-8", `{"PublicIP":"224.0.0.1","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}}`)
	f.Fuzz(func(t *testing.T, config, name, value string) {
		own := decode(t, LeaseKind, "10.5.1.0-24", []byte(`{"PublicIP":"172.30.0.1","BackendType":"vxlan"}`), true)
		other := decode(t, LeaseKind, name, []byte(value), true)
		in := plugin.Input{
			Config: &api.ClusterConfig{},
			Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{
				ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(config), false)},
				LeaseKind:  {own, other},
			}),
			Node: plugin.Node{Name: "node1", MTU: 1500,
				Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")},
				Prefixes:  []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd00:30::/64")}},
		}
		p, _ := Plugin{}.Compile(in)
		if err := p.Validate(); err != nil {
			t.Errorf("%v\n%s", err, p)
		}
	})
}

// Of several nodes that have the node's address the first is named, whoever asks.
func TestSeveralNodesWithOneAddress(t *testing.T) {
	settings, err := ParseSettings([]byte(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	own := []netip.Addr{netip.MustParseAddr("172.30.0.1")}
	nodes := map[string][]netip.Addr{"node1": own, "node2": {netip.MustParseAddr("172.30.0.2")}}
	for i := 3; i <= 9; i++ {
		nodes[fmt.Sprint("node", i)] = own
	}
	for range 50 {
		v := view{settings: settings, node: plugin.Node{Name: "node1", Addresses: own}, owner: owner{name: "node1", addresses: own, nodes: nodes}}
		if _, err := v.decide(); err == nil || !strings.HasPrefix(err.Error(), "node node3 has the address of node node1;") {
			t.Fatalf("it is said that %v", err)
		}
	}
}

// Of leases that overlap the older stays, and of those that an administrator reserved for
// their nodes; the other goes while no pod lives on it. One without an end stays where it is,
// for an administrator, and its node takes another.
func TestLeasesThatOverlap(t *testing.T) {
	const config = `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`
	settings, err := ParseSettings([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	const mine, beside = "10.5.1.0-24&fd00:5:0:1::-64", "10.5.2.0-24&fd00:5:0:1::-64"
	subnet := func(name string) Subnet {
		s, err := ParseSubnet(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const older, younger = 4, 6 // than the node's own
	for name, test := range map[string]struct {
		other             string
		born              int64
		mineFor, otherFor string // whom they are reserved for
		permanent         bool
		pod, about        bool // one lives on it, or is about to
		want              verb
	}{
		"the other is older":                      {other: beside, born: older, want: release},
		"it is younger":                           {other: beside, born: younger, want: keep},
		"it is older, and elsewhere":              {other: "10.5.2.0-24&fd00:5:0:2::-64", born: older, want: keep},
		"it is older, of one family":              {other: "10.5.1.0-24", born: older, want: release},
		"it is older, of all":                     {other: "10.5.0.0-17", born: older, want: release},
		"it is older, and a pod lives on this":    {other: beside, born: older, pod: true, want: keep},
		"it is older, and one is about to":        {other: beside, born: older, about: true, want: keep},
		"it is older, and this one has no end":    {other: beside, born: older, permanent: true, want: create},
		"and a pod lives on this":                 {other: beside, born: older, permanent: true, pod: true, want: keep},
		"it is older, and this one is reserved":   {other: beside, born: older, mineFor: "node1", want: keep},
		"it is older, and both are reserved":      {other: beside, born: older, mineFor: "node1", otherFor: "node2", want: release},
		"it is younger, and it alone is reserved": {other: beside, born: younger, otherFor: "node2", want: release},
		"it is younger, and both are reserved":    {other: beside, born: younger, mineFor: "node1", otherFor: "node2", want: keep},
	} {
		t.Run(name, func(t *testing.T) {
			node := plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")}}
			v := view{settings: settings, config: []byte(config), node: node, owner: owner{name: node.Name, addresses: node.Addresses}, former: subnet(mine), pick: func(int) int { return 0 }}
			s, err := v.decide()
			if err != nil || s.verb != create || s.object.Name != mine {
				t.Fatalf("first it is to %s %s, %v", s.verb, s.subnet, err)
			}
			a, err := ParseAttributes(s.object.Spec)
			if err != nil {
				t.Fatal(err)
			}
			own, other := &lease{subnet: s.subnet, Attributes: a, Lease: s.object, born: 5}, &lease{subnet: subnet(test.other), Lease: &Lease{Expires: true}, born: test.born}
			own.Expires = !test.permanent
			for l, who := range map[*lease]string{own: test.mineFor, other: test.otherFor} {
				if who != "" {
					l.reserved = &reservation{Node: who}
				}
			}
			v.leases = []*lease{own, other}
			pod := s.subnet.V6.Addr().Next().Next()
			if test.pod {
				v.node.Endpoints = []plugin.Endpoint{{Pod: "pod", Addresses: []netip.Addr{pod}}}
			}
			if test.about {
				v.node.Held = []plan.Address{{Network: plan.DefaultNetwork, IP: pod}}
			}
			if s, err = v.decide(); err != nil || s.verb != test.want {
				t.Errorf("it is to %s %s, %v, and not to %s it", s.verb, s.subnet, err, test.want)
			}
		})
	}
}

// Which lease is a node's follows from what is reserved for it, from where its pods live, from
// the addresses in leases and from their age. Who makes a lease that says that it is the
// node's has the node leave no lease that it had. Where there is nothing else, the node takes
// what names it, as it may have been at another address when it wrote that.
func TestWhichLeaseIsTheNodes(t *testing.T) {
	type said struct {
		subnet        string
		born          int64
		address, node string // node is in the stamp, "" without one
		permanent     bool
		reserved      string // whom it is reserved for
	}
	const own, others, nobodys, before = "172.30.0.1", "172.30.0.9", "192.0.2.1", "172.30.0.77"
	weft := said{subnet: "10.5.2.0-24", born: 10, address: own, node: "node1"}
	moved := said{subnet: "10.5.2.0-24", born: 10, address: before, node: "node1"}
	flanneld := said{subnet: "10.5.2.0-24", born: 10, address: own}
	former := said{subnet: "10.4.2.0-24", born: 10, address: own, node: "node1"} // of another network
	for what, c := range map[string]struct {
		mine string // the lease that is the node's
		all  []said
		pods []string
	}{
		"its own":                              {"10.5.2.0-24", []said{weft}, nil},
		"one of flanneld's":                    {"10.5.2.0-24", []said{flanneld}, nil},
		"one from when it was elsewhere":       {"10.5.2.0-24", []said{moved}, nil},
		"not one of another's address":         {"", []said{{subnet: "10.5.2.0-24", address: others, node: "node1"}}, nil},
		"nor one that another has, there too":  {"", []said{{subnet: "10.5.2.0-24", address: own, node: "twin"}}, nil},
		"nor one that is reserved for another": {"", []said{{subnet: "10.5.2.0-24", address: own, node: "node1", reserved: "node9"}}, nil},

		"its own, not a younger that is alike":         {"10.5.2.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 20, address: own, node: "node1"}}, nil},
		"where its pods live, not a younger":           {"10.5.2.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 20, address: own, node: "node1"}}, []string{"10.5.2.2"}},
		"where its pods live, not an older":            {"10.5.2.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 1, address: own, node: "node1"}}, []string{"10.5.2.2"}},
		"its own, not a younger with its name":         {"10.5.2.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 20, address: nobodys, node: "node1"}}, nil},
		"its own, not an older that got its address":   {"10.5.2.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 1, address: own, node: "node9"}}, nil},
		"from elsewhere, not another's at its address": {"10.5.2.0-24", []said{moved, {subnet: "10.5.10.0-24", born: 1, address: own, node: "node9"}}, nil},
		"one from when it had another name":            {"10.5.10.0-24", []said{{subnet: "10.5.10.0-24", address: own, node: "gone"}}, nil},
		"flanneld's, not one with its name":            {"10.5.2.0-24", []said{flanneld, {subnet: "10.5.10.0-24", born: 1, address: nobodys, node: "node1"}}, nil},
		"flanneld's, not a younger with both":          {"10.5.2.0-24", []said{flanneld, {subnet: "10.5.10.0-24", born: 20, address: own, node: "node1"}}, nil},
		"flanneld's, not one of another network":       {"10.5.2.0-24", []said{flanneld, {subnet: "10.4.1.0-24", born: 1, address: own, node: "node1"}}, nil},
		"flanneld's, not one of the nodes' network":    {"10.5.2.0-24", []said{flanneld, {subnet: "172.30.0.0-24", born: 1, address: nobodys, node: "node1"}}, nil},
		"an administrator's, not one with its name":    {"10.5.2.0-24", []said{{subnet: "10.5.2.0-24", born: 10, address: own, permanent: true}, {subnet: "10.5.10.0-24", born: 20, address: nobodys, node: "node1"}}, nil},
		"from elsewhere, not a younger from there":     {"10.5.2.0-24", []said{moved, {subnet: "10.5.10.0-24", born: 20, address: nobodys, node: "node1"}}, nil},
		"from elsewhere, with pods, not its address":   {"10.5.2.0-24", []said{moved, {subnet: "10.5.10.0-24", born: 1, address: own, node: "node1"}}, []string{"10.5.2.2"}},
		"its own, not where lost pods live":            {"10.5.2.0-24", []said{weft, {subnet: "10.5.3.0-24", born: 11, address: others}, {subnet: "10.5.0.0-17", born: 20, address: own, node: "node1"}}, []string{"10.5.3.2"}},
		"of a former network, while its pods live":     {"10.4.2.0-24", []said{former, {subnet: "10.5.10.0-24", born: 20, address: own, node: "node1"}}, []string{"10.4.2.2"}},
		"and then one of the network":                  {"10.5.10.0-24", []said{former, {subnet: "10.5.10.0-24", born: 20, address: own, node: "node1"}}, nil},
		"what is reserved for it, be it younger":       {"10.5.10.0-24", []said{weft, {subnet: "10.5.10.0-24", born: 20, address: own, permanent: true, reserved: "node1"}}, []string{"10.5.2.2"}},

		"where there is nothing else, what names it":     {"10.5.10.0-24", []said{{subnet: "10.5.10.0-24", address: nobodys, node: "node1"}}, nil},
		"not with the node itself in its subnet, though": {"", []said{{subnet: "172.30.0.0-24", address: nobodys, node: "node1"}}, nil},
		"and not even at its address":                    {"", []said{{subnet: "172.30.0.0-24", address: own, node: "node1"}}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			objects := map[*registry.Kind][]registry.Object{
				ConfigKind: {decode(t, ConfigKind, ConfigName, []byte(goodConfig), false)},
				api.Node:   {coreNode("node1", own), coreNode("node9", others), coreNode("twin", own)},
			}
			for _, l := range c.all {
				value := map[string]any{"PublicIP": l.address}
				if l.node != "" {
					value["Weft"] = Stamp{Node: l.node, Config: []byte("{}")}
				}
				text, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(t, LeaseKind, l.subnet, text, !l.permanent, l.born))
				if l.reserved != "" {
					objects[ReservationKind] = append(objects[ReservationKind], decode(t, ReservationKind, l.subnet, fmt.Appendf(nil, `{"node":%q,"publicIP":"172.30.0.1"}`, l.reserved), false))
				}
			}
			snapshot := registry.NewSnapshot(objects)
			node := plugin.Node{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr(own)}}
			for _, pod := range c.pods {
				putPod(&node, pod)
			}
			leases, _ := Plugin{}.withDefaults().readLeases(snapshot)
			settings, err := readSettings(snapshot, ConfigKind)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if l := ownerOf(node, snapshot).find(leases, &settings); l != nil {
				got = l.Name
			}
			if got != c.mine {
				t.Errorf("it is %q, and not %q", got, c.mine)
			}
		})
	}
}

// A Node that lists another node's address keeps that one from a lease, unless an
// administrator has said whose it is.
func TestListedAddress(t *testing.T) {
	settings, err := ParseSettings([]byte(`{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`))
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr("172.30.0.1")
	node := plugin.Node{Name: "node1", Addresses: []netip.Addr{own}, MTU: 1500}
	reserved := Subnet{V4: netip.MustParsePrefix("10.5.7.0/24")}
	for name, test := range map[string]struct {
		reservation *reservation
		want        string
	}{
		"nobody has said whose it is": {nil, ""},
		"it is the node's":            {&reservation{Node: "node1", PublicIP: own}, "10.5.7.0-24"},
		"another is the node's":       {&reservation{Node: "node1", PublicIP: netip.MustParseAddr("172.30.0.9")}, ""},
		"it is another's":             {&reservation{Node: "liar", PublicIP: own}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{settings: settings, node: node, pick: func(int) int { return 0 },
				owner: owner{name: "node1", addresses: node.Addresses, nodes: map[string][]netip.Addr{"node1": {own}, "liar": {own}}}}
			if test.reservation != nil {
				v.reserved = map[Subnet]*reservation{reserved: test.reservation}
			}
			s, err := v.decide()
			if test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "node liar has the address of node node1") {
					t.Errorf("it is not said who has the address: %v, %v", s, err)
				}
				return
			}
			if err != nil || s.object.Name != test.want {
				t.Errorf("the node gets %v (%v), not %s", s, err, test.want)
			}
		})
	}
}
