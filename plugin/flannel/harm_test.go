package flannel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// What an attacker's agent may say: what is its own, what is others', and
// nonsense.
var (
	attackAddresses = []string{"172.30.0.9", "172.30.0.1", "172.30.0.2", "172.30.0.3", "10.5.1.2", "10.5.2.7", "10.5.3.1", "10.5.9.9", "192.0.2.1", "", "elephant",
		"fe80::1%eth0", "::ffff:172.30.0.2", "0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"}
	attackMACs  = []string{"0a:58:ac:1e:00:09", "0a:58:ac:1e:00:01", "0a:58:ac:1e:00:02", "02:00:00:00:00:03", "02:00:00:00:00:99", "elephant"}
	attackNames = []string{"", "attacker", "node1", "node2", "node3"}
)

// withoutFlannelds leaves out the MAC address of node3, which flanneld made up:
// whose such an address is, nothing tells but the leases' age.
func withoutFlannelds(macs []string) []string {
	return slices.DeleteFunc(slices.Clone(macs), func(m string) bool { return m == "02:00:00:00:00:03" })
}

// harmless holds two plans of a node against each other: with what an attacker
// says, each entry that comes of others' objects must be as it is without.
func harmless(t *rapid.T, node, attacker string, without, with *plan.Plan) {
	if !slices.Equal(without.Local.Pools, with.Local.Pools) || !slices.Equal(without.Local.Tunnels, with.Local.Tunnels) {
		t.Fatalf("%s: the attacker changed what is the node's own:\n%s\nwith it:\n%s", node, without, with)
	}
	for k, r := range without.Routes.All() {
		got, ok := with.Routes.Get(k)
		before, after := without.Peer(r.Peer()), with.Peer(got.Peer())
		same := slices.Equal(before.Ends, after.Ends) && slices.Equal(before.Addresses, after.Addresses)
		if got.Peer() == "172.30.0.3" && r.Peer() == "node3" {
			got.Peers = r.Peers // the lease of flanneld names no node, and two say that they are it
		}
		if !ok || !same || !got.Equal(r) {
			t.Fatalf("%s: the attacker changed the route to %v from %v to %v:\n%s\nwith it:\n%s", node, k, r, got, without, with)
		}
	}
	for k, e := range without.Egress.All() {
		if got, ok := with.Egress.Get(k); !ok || got.Action != e.Action {
			t.Fatalf("%s: the attacker changed the way out %v from %v to %v:\n%s\nwith it:\n%s", node, k, e, got, without, with)
		}
	}
	for k, r := range with.Routes.All() {
		if _, had := without.Routes.Get(k); had || r.Origin == attacker {
			continue
		}
		if end, _ := with.Peer(r.Peer()).End(Name); r.Way != plan.ToTunnel || end.VTEP == netip.MustParseAddr("172.30.0.9") {
			t.Fatalf("%s: the attacker made a route of %s: %v %v", node, r.Origin, k, r)
		}
	}
}

func factsOf(i int) plugin.Node {
	own := netip.AddrFrom4([4]byte{172, 30, 0, byte(i)})
	pod := netip.AddrFrom4([4]byte{10, 5, byte(i), 2})
	return plugin.Node{Name: fmt.Sprintf("node%d", i), MTU: 1500, Addresses: []netip.Addr{own}, Prefixes: []netip.Prefix{netip.PrefixFrom(own, 24).Masked()},
		Endpoints: []plugin.Endpoint{{Interface: "weft0", Network: plan.DefaultNetwork, Addresses: []netip.Addr{pod}, MAC: plan.MACOf(pod)}}}
}

// An agent that has a lease, younger than those of others or reserved as those of
// others are, and a Node of its own, and writes whatever it likes into these, takes
// nothing from any other node: not its subnet, nor its address, nor its tunnel.
func TestLeaseCannotHarmOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backend := rapid.SampledFrom([]string{`"vxlan"`, `"vxlan","DirectRouting":true`, `"host-gw"`}).Draw(t, "backend")
		config := decode(nothing{}, ConfigKind, ConfigName, []byte(`{"Network":"10.5.0.0/16","Backend":{"Type":`+backend+`}}`), false)
		// node1 and node2 run Weft, node3 runs flanneld.
		macs := []string{"0a:58:ac:1e:00:01", "0a:58:ac:1e:00:02", "02:00:00:00:00:03"}
		reserved := rapid.Bool().Draw(t, "reserved")
		objects := map[*registry.Kind][]registry.Object{ConfigKind: {config}}
		add := func(k *registry.Kind, name, value string, created int64) {
			objects[k] = append(objects[k], decodeCreated(nothing{}, k, name, []byte(value), true, created))
		}
		kind := backend[1:6] == "vxlan"
		name := "host-gw"
		if kind {
			name = "vxlan"
		}
		for i := 1; i <= 3; i++ {
			stamp := fmt.Sprintf(`,"Weft":{"Node":"node%d","Config":{}}`, i)
			if i == 3 {
				stamp = ""
			}
			subnet, address := fmt.Sprintf("10.5.%d.0-24", i), fmt.Sprintf("172.30.0.%d", i)
			add(LeaseKind, subnet, fmt.Sprintf(`{"PublicIP":%q,"BackendType":%q,"BackendData":{"VNI":1,"VtepMAC":%q}%s}`, address, name, macs[i-1], stamp), int64(10+i))
			objects[api.Node] = append(objects[api.Node], coreNode(fmt.Sprintf("node%d", i), address))
			if reserved {
				add(ReservationKind, subnet, fmt.Sprintf(`{"node":"node%d","publicIP":%q}`, i, address), int64(i))
			}
		}
		without := registry.NewSnapshot(objects)

		address, said := rapid.SampledFrom(attackAddresses), attackMACs
		created := int64(rapid.IntRange(14, 20).Draw(t, "created"))
		subnets := []string{"10.5.0.0-24", "10.5.9.0-24"}
		if reserved {
			created = int64(rapid.IntRange(1, 20).Draw(t, "reserved created")) // it may be the oldest
		} else {
			// The key, too, is the attacker's to choose.
			subnets = append(subnets, "10.5.2.0-25", "10.5.0.0-17", "10.5.3.128-25", "172.30.0.0-24", "172.30.0.2-31")
		}
		subnet := rapid.SampledFrom(subnets).Draw(t, "subnet")
		if created <= 13 {
			said = withoutFlannelds(attackMACs)
		}
		weft := ""
		if n := rapid.SampledFrom(attackNames).Draw(t, "stamp"); n != "" {
			weft = fmt.Sprintf(`,"Weft":{"Node":%q,"Config":{}}`, n)
		}
		lease := fmt.Sprintf(`{"PublicIP":%q,"BackendType":%q,"BackendData":{"VNI":1,"VtepMAC":%q}%s}`,
			address.Draw(t, "PublicIP"), rapid.SampledFrom([]string{"vxlan", "host-gw", ""}).Draw(t, "type"), rapid.SampledFrom(said).Draw(t, "MAC"), weft)
		add(LeaseKind, subnet, lease, created)
		if reserved {
			add(ReservationKind, subnet, `{"node":"attacker","publicIP":"172.30.0.9"}`, 4)
		}
		attacker := coreNode(append([]string{"attacker"}, rapid.SliceOfN(address, 0, 4).Draw(t, "addresses")...)...)
		at := rapid.IntRange(0, 3).Draw(t, "place")
		objects[api.Node] = slices.Insert(slices.Clone(objects[api.Node]), at, registry.Object(attacker))
		slices.SortFunc(objects[LeaseKind], func(a, b registry.Object) int { return registry.KeyOf(a).Compare(registry.KeyOf(b)) })
		with := registry.NewSnapshot(objects)
		for i := 1; i <= 3; i++ {
			in := plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(i), Objects: without}
			before, _ := Plugin{}.Compile(in)
			in.Objects = with
			after, _ := Plugin{}.Compile(in)
			if err := after.Validate(); err != nil {
				t.Fatal(err)
			}
			harmless(t, in.Node.Name, "FlannelLease "+subnet, before, after)
		}
	})
}

// The same on Kubernetes: an agent writes the annotations of its own Node, which
// may be the oldest of all, and a kubelet that of a younger one its addresses, too.
func TestAnnotationsCannotHarmOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		backend := rapid.SampledFrom([]string{`"vxlan"`, `"vxlan","DirectRouting":true`, `"host-gw"`, ""}).Draw(t, "backend")
		name := "vxlan"
		if backend == `"host-gw"` {
			name = "host-gw"
		}
		objects := map[*registry.Kind][]registry.Object{}
		if backend != "" {
			objects[ConfigMap] = []registry.Object{configMap(map[string]string{NetConf: `{"Network":"10.5.0.0/16","Backend":{"Type":` + backend + `}}`})}
		}
		node := func(name, cidr string, age int64, addresses ...string) *corev1.Node {
			n := coreNode(append([]string{name}, addresses...)...)
			n.CreationTimestamp = metav1.NewTime(time.Unix(age, 0))
			n.Spec.PodCIDRs = []string{cidr}
			return n
		}
		tell := func(n *corev1.Node, backend, ip, mac string) {
			n.Annotations = map[string]string{managedAnnotation: managed, backendTypeAnnotation: backend, publicIPAnnotation: ip,
				backendDataAnnotation: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac)}
		}
		for i := 1; i <= 3; i++ {
			address := fmt.Sprintf("172.30.0.%d", i)
			n := node(fmt.Sprintf("node%d", i), fmt.Sprintf("10.5.%d.0/24", i), int64(10+i), address)
			tell(n, name, address, []string{"0a:58:ac:1e:00:01", "0a:58:ac:1e:00:02", "02:00:00:00:00:03"}[i-1])
			objects[api.Node] = append(objects[api.Node], n)
		}
		without := registry.NewSnapshot(objects)
		address := rapid.SampledFrom(attackAddresses)
		addresses, age, macs := []string{"172.30.0.9"}, int64(rapid.IntRange(1, 20).Draw(t, "age")), attackMACs
		if rapid.Bool().Draw(t, "kubelet") {
			addresses, age = rapid.SliceOfN(address, 0, 4).Draw(t, "addresses"), 20
		}
		if age <= 13 {
			macs = withoutFlannelds(attackMACs)
		}
		attacker := node("attacker", "10.5.9.0/24", age, addresses...)
		tell(attacker, rapid.SampledFrom([]string{"vxlan", "host-gw", ""}).Draw(t, "type"), address.Draw(t, "public-ip"), rapid.SampledFrom(macs).Draw(t, "MAC"))
		at := rapid.IntRange(0, 3).Draw(t, "place")
		objects[api.Node] = slices.Insert(slices.Clone(objects[api.Node]), at, registry.Object(attacker))
		with := registry.NewSnapshot(objects)
		for i := 1; i <= 3; i++ {
			in := plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(i), Objects: without}
			before, _ := Kubernetes{}.Compile(in)
			in.Objects = with
			after, _ := Kubernetes{}.Compile(in)
			if err := after.Validate(); err != nil {
				t.Fatal(err)
			}
			harmless(t, in.Node.Name, "Node attacker", before, after)
		}
	})
}

// nothing is a testing.TB for helpers that cannot fail here.
type nothing struct{ testing.TB }

func (nothing) Helper() {}

// Whose pods are behind a machine follows from what is proven of its address. Nobody
// gets another node's name, or gives his own to another's pods, whatever his lease,
// his Node and their age say; and the leases that a node had before are its own.
func TestPeersAreNamedByProof(t *testing.T) {
	type lease struct {
		subnet, address, address6, node string
		created                         int64
	}
	nodes := []*corev1.Node{coreNode("node1", "172.30.0.1"), coreNode("node2", "172.30.0.2", "172.30.0.22", "fd00:30::2"),
		coreNode("172.30.0.7", "172.30.0.8"), coreNode("attacker", "172.30.0.9", "172.30.0.2")}
	own := lease{"10.5.1.0-24", "172.30.0.1", "", "node1", 1}
	victim := lease{"10.5.2.0-24", "172.30.0.2", "", "node2", 10}
	for what, c := range map[string]struct {
		leases []lease
		want   map[string]string // subnet to peer
	}{
		"what it says of itself": {[]lease{victim, {"10.5.0.0-24", "172.30.0.9", "", "node2", 5}}, map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.9"}},
		"two of one node":        {[]lease{victim, {"10.5.3.0-24", "172.30.0.2", "", "node2", 3}}, map[string]string{"10.5.2.0/24": "node2", "10.5.3.0/24": "node2"}},
		"another's address":      {[]lease{victim, {"10.5.0.0-24", "172.30.0.2", "", "attacker", 20}}, map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.2"}},
		"the same, and older":    {[]lease{victim, {"10.5.0.0-24", "172.30.0.2", "", "attacker", 5}}, map[string]string{"10.5.2.0/24": "172.30.0.2", "10.5.0.0/24": "attacker"}},
		"another's second address": {[]lease{victim, {"10.5.0.0-24", "172.30.0.22", "", "node2", 20}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.22"}},
		"an address of the other family": {[]lease{victim, {"10.5.0.0-24", "172.30.0.9", "fd00:30::2", "node2", 5}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.0.0/24": "172.30.0.9"}},
		"an address that is a Node's name": {[]lease{victim, {"10.5.7.0-24", "172.30.0.7", "", "gone", 4}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.7.0/24": "machine at 172.30.0.7"}},
		"the node's own name": {[]lease{victim, {"10.5.7.0-24", "172.30.0.77", "", "node1", 4}},
			map[string]string{"10.5.2.0/24": "node2", "10.5.7.0/24": "172.30.0.77"}},
	} {
		for backend, data := range map[string]string{"host-gw": "", "vxlan": `,"BackendData":{"VNI":1,"VtepMAC":%q}`} {
			objects := map[*registry.Kind][]registry.Object{
				ConfigKind: {decode(t, ConfigKind, ConfigName, fmt.Appendf(nil, `{"Network":"10.5.0.0/16","Backend":{"Type":%q}}`, backend), false)}}
			for _, n := range nodes {
				objects[api.Node] = append(objects[api.Node], n)
			}
			all := append([]lease{own}, c.leases...)
			slices.SortFunc(all, func(a, b lease) int { return strings.Compare(a.subnet, b.subnet) })
			for _, l := range all {
				end, second := data, "null"
				if end != "" {
					end = fmt.Sprintf(end, plan.MACOf(netip.MustParseAddr(l.address)))
				}
				if l.address6 != "" {
					second = fmt.Sprintf("%q", l.address6)
				}
				objects[LeaseKind] = append(objects[LeaseKind], decodeCreated(t, LeaseKind, l.subnet,
					fmt.Appendf(nil, `{"PublicIP":%q,"PublicIPv6":%s,"BackendType":%q%s,"Weft":{"Node":%q,"Config":{}}}`, l.address, second, backend, end, l.node), true, l.created))
			}
			p, _ := Plugin{}.Compile(plugin.Input{Config: &api.ClusterConfig{}, Node: factsOf(1), Objects: registry.NewSnapshot(objects)})
			if err := p.Validate(); err != nil {
				t.Fatalf("%s, %s: %v", what, backend, err)
			}
			for prefix, want := range c.want {
				r, ok := p.Routes.Get(key(netip.MustParsePrefix(prefix)))
				if ok && r.Way != plan.ToDrop && r.Peer() != want {
					t.Errorf("%s, %s: %s is behind %q, not %q:\n%s", what, backend, prefix, r.Peer(), want, p)
				}
			}
		}
	}
}
