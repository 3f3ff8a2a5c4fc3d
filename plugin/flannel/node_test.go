package flannel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

const goodConfig = `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`

// testNode is a node whose RunNode can be stopped and started.
type testNode struct {
	t      *testing.T
	runner interface {
		plugin.Plugin
		plugin.NodeRunner
	}
	registry *memory.Registry
	dir      string
	changed  chan struct{}
	stop     func()

	mu      sync.Mutex
	node    plugin.Node
	config  *api.ClusterConfig
	behind  registry.Snapshot // what the node sees instead of the registry, if not nil
	input   func() (plugin.Input, bool)
	applied func() *plugin.Applied // nil where nobody gives addresses
	problem string
}

func newNode(t *testing.T, r *memory.Registry, name, address string) *testNode {
	return &testNode{t: t, runner: Plugin{}, registry: r, dir: t.TempDir(), changed: make(chan struct{}, 1),
		node: plugin.Node{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}, MTU: 1500}}
}

// start runs the node, and returns when it has nothing more to do for now.
func (n *testNode) start() {
	n.begin()
	synctest.Wait()
}

// begin runs the node.
func (n *testNode) begin() {
	ctx, cancel := context.WithCancel(n.t.Context())
	log := slog.New(slog.DiscardHandler)
	cache := registry.NewCache(n.registry, n.runner.Kinds(), log)
	objects, unsubscribe := cache.Subscribe()
	var wg sync.WaitGroup
	wg.Go(func() { cache.Run(ctx) })
	wg.Go(func() {
		for {
			select {
			case <-objects:
				n.tell()
			case <-ctx.Done():
				return
			}
		}
	})
	n.input = func() (plugin.Input, bool) {
		complete := cache.Synced()
		n.mu.Lock()
		defer n.mu.Unlock()
		in := plugin.Input{Config: api.Effective(n.config), Objects: cache.Snapshot(), Node: n.node}
		if n.behind != nil {
			in.Objects = n.behind
		}
		return in, complete
	}
	wg.Go(func() {
		_ = n.runner.RunNode(ctx, plugin.NodeEnv{
			Registry: n.registry, Log: log, Changed: n.changed, SubnetFile: n.subnetFile(), Input: n.input, Applied: n.applied,
			Problem: func(s string) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.problem = s
			},
		})
	})
	n.stop = func() { cancel(); wg.Wait(); unsubscribe() }
}

// tell says that something has changed.
func (n *testNode) tell() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// freeze has the node see the registry as it is now until behind is nil again.
func (n *testNode) freeze() {
	n.t.Helper()
	seen := registry.Snapshot{}
	for _, k := range n.runner.Kinds() {
		objects, _, err := n.registry.List(n.t.Context(), k)
		if err != nil {
			n.t.Fatal(err)
		}
		seen[k] = objects
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.behind = seen
}

func (n *testNode) subnetFile() string { return filepath.Join(n.dir, "flannel", "subnet.env") }

// change alters the node as a running agent would see it.
func (n *testNode) change(f func(*plugin.Node)) {
	n.mu.Lock()
	f(&n.node)
	n.mu.Unlock()
	n.tell()
	synctest.Wait()
}

// says wants RunNode and Compile to tell a problem, in one place; "" wants none of
// RunNode.
func (n *testNode) says(want string) {
	n.t.Helper()
	in, complete := n.input()
	n.mu.Lock()
	told := []string{n.problem}
	n.mu.Unlock()
	if want == "" {
		if told[0] != "" {
			n.t.Errorf("node %s reports %q, want nothing", n.node.Name, told[0])
		}
		return
	}
	if complete {
		_, problems := n.runner.Compile(in)
		for _, p := range problems {
			told = append(told, p.String())
		}
	}
	if said := slices.DeleteFunc(slices.Clone(told), func(t string) bool { return !strings.Contains(t, want) }); len(said) != 1 {
		n.t.Errorf("node %s reports %q, want %q once", n.node.Name, told, want)
	}
}

func setConfig(r *memory.Registry, value string) {
	r.PutValue(ConfigKind, registry.Key{Name: ConfigName}, []byte(value))
	synctest.Wait()
}

func putPod(n *plugin.Node, address string) {
	a := netip.MustParseAddr(address)
	n.Endpoints = append(n.Endpoints, plugin.Endpoint{Interface: "weft" + address, Network: plan.DefaultNetwork, Addresses: []netip.Addr{a}, MAC: plan.MACOf(a)})
}

// all returns the leases by name.
func all(t *testing.T, r registry.Registry) map[string]*lease {
	t.Helper()
	objects, _, err := r.List(t.Context(), LeaseKind)
	if err != nil {
		t.Fatal(err)
	}
	leases, problems := Plugin{}.withDefaults().readLeases(registry.NewSnapshot(map[*registry.Kind][]registry.Object{LeaseKind: objects}))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	out := map[string]*lease{}
	for _, l := range leases {
		out[l.Name] = l
	}
	return out
}

// only returns the one lease there is.
func only(t *testing.T, r registry.Registry) *lease {
	t.Helper()
	leases := all(t, r)
	if len(leases) != 1 {
		t.Fatalf("there are %d leases: %v", len(leases), leases)
	}
	for _, l := range leases {
		return l
	}
	return nil
}

// inBubble runs a test with a clock that jumps ahead when all is idle.
func inBubble(t *testing.T, f func(t *testing.T, r *memory.Registry)) {
	synctest.Test(t, func(t *testing.T) {
		r := memory.New()
		defer r.Close()
		f(t, r)
	})
}

func TestConfigurationComesLater(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		n.says("key /coreos.com/network/config is missing")
		setConfig(r, `{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}`)
		n.says(`Backend.Type: "udp" is not supported`)
		if leases := all(t, r); len(leases) > 0 {
			t.Errorf("without a configuration there are leases %v", leases)
		}

		setConfig(r, goodConfig)
		n.says("")
		l := only(t, r)
		if l.PublicIP != netip.MustParseAddr("172.30.0.1") || !l.Expires || *l.Tunnel != (TunnelEnd{1, plan.MACOf(l.PublicIP)}) {
			t.Errorf("the lease says %s", l.Spec)
		}
		got, err := os.ReadFile(n.subnetFile())
		want := fmt.Sprintf("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=%s/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", l.subnet.V4.Addr().Next())
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, want %q; %v", n.subnetFile(), got, want, err)
		}

		// What goes wrong later changes nothing, and the lease lives on.
		setConfig(r, "elephant")
		n.says("a JSON string instead of an object")
		time.Sleep(3 * DefaultTTL)
		if again := only(t, r); again.Name != l.Name || string(again.Spec) != string(l.Spec) {
			t.Errorf("with a bad configuration the lease became %s %s", again.Name, again.Spec)
		}
		// Also for an agent that starts then.
		n.stop()
		n.start()
		n.says("a JSON string instead of an object")
		time.Sleep(3 * DefaultTTL)
		if again := only(t, r); again.Name != l.Name || string(again.Spec) != string(l.Spec) {
			t.Errorf("with a bad configuration at the start the lease became %s %s", again.Name, again.Spec)
		}
	})
}

func TestLeaseIsRenewedUntilTheNodeStops(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		first := only(t, r)
		time.Sleep(DefaultTTL - DefaultRenewMargin - time.Minute)
		synctest.Wait()
		if only(t, r).ResourceVersion != first.ResourceVersion {
			t.Error("the lease was renewed early")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if l := only(t, r); l.ResourceVersion == first.ResourceVersion || l.Name != first.Name {
			t.Errorf("an hour before its end the lease is %s at %s", l.Name, l.ResourceVersion)
		}
		// The registry may be away for less than the margin.
		time.Sleep(DefaultTTL - DefaultRenewMargin - time.Minute)
		r.Stop()
		time.Sleep(DefaultRenewMargin - time.Minute)
		r.Start()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if l := only(t, r); l.Name != first.Name {
			t.Errorf("after an outage the lease is %s", l.Name)
		}
		n.stop()
		time.Sleep(DefaultTTL + time.Second)
		synctest.Wait()
		if leases := all(t, r); len(leases) > 0 {
			t.Errorf("a day after the node's end there is %v", leases)
		}
		// It left its subnet in the subnet file, and gets the same again.
		n.start()
		defer func() { n.stop() }()
		if l := only(t, r); l.Name != first.Name {
			t.Errorf("the node had %s and came back with %s", first.Name, l.Name)
		}
	})
}

// A lease that has half of the network, 2^55 subnets, costs a node that looks for a free
// one no more than any other lease. It takes one behind it, and stops when it is told to.
func TestFreeSubnetBehindAWideLease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/8","Backend":{"Type":"vxlan"}}`)
		const wide = "10.5.0.0-17&fd00::-9"
		r.PutValue(LeaseKind, registry.Key{Name: wide}, []byte(`{"PublicIP":"172.30.0.9","PublicIPv6":"fc00::9","BackendType":"vxlan"}`))
		n := newNode(t, r, "node1", "172.30.0.1")
		n.node.Addresses = append(n.node.Addresses, netip.MustParseAddr("fc00::1"))
		n.start()
		n.says("")
		leases := all(t, r)
		delete(leases, wide)
		for name, l := range leases {
			if !netip.MustParsePrefix("10.5.128.0/17").Overlaps(l.subnet.V4) || !netip.MustParsePrefix("fd80::/9").Overlaps(l.subnet.V6) {
				t.Errorf("beside %s the node takes %s", wide, name)
			}
		}
		if len(leases) != 1 {
			t.Errorf("beside %s there are %d leases, want the node's", wide, len(leases))
		}
		n.stop()
	})
}

// An administrator has a node move to another subnet for some time. It comes back to its
// first lease, which it has not renewed meanwhile, and does not lose it.
func TestLeaseOfBeforeIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.runner = Plugin{Pick: func(int) int { return 0 }}
		n.start()
		defer func() { n.stop() }()
		first := only(t, r)
		time.Sleep(DefaultTTL - 4*time.Hour)
		other := registry.Key{Name: "10.5.77.0-24"}
		r.PutValue(ReservationKind, other, []byte(`{"node":"node1","publicIP":"172.30.0.1"}`))
		r.PutValue(LeaseKind, other, []byte(`{"PublicIP":"172.30.0.1"}`))
		synctest.Wait()
		if l := all(t, r)[other.Name]; l.Tunnel == nil {
			t.Fatalf("the node does not use %s: %s", other.Name, l.Spec)
		}
		time.Sleep(time.Hour)
		for _, k := range []*registry.Kind{ReservationKind, LeaseKind} {
			if err := r.Delete(t.Context(), k, other, ""); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for range 3 {
			if l := only(t, r); l.Name != first.Name || l.born != first.born {
				t.Fatalf("the node had the lease %s of %d, and has %s of %d", first.Name, first.born, l.Name, l.born)
			}
			time.Sleep(DefaultTTL)
			synctest.Wait()
		}
	})
}

// A reservation becomes the node's lease and stays a reservation.
func TestReservationIsKept(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		r.PutValue(LeaseKind, registry.Key{Name: "10.5.77.0-24"}, []byte(`{"PublicIP":"172.30.0.1","Rack":"7"}`))
		n := newNode(t, r, "node1", "172.30.0.1")
		for range 2 {
			n.start()
			l := only(t, r)
			if l.Name != "10.5.77.0-24" || l.Expires || l.Tunnel == nil || !strings.Contains(string(l.Spec), `"Rack":"7"`) {
				t.Errorf("the reservation became %s (expires: %v) %s", l.Name, l.Expires, l.Spec)
			}
			time.Sleep(3 * DefaultTTL)
			n.stop()
			time.Sleep(3 * DefaultTTL)
		}
		only(t, r)
	})
}

func TestDeletedLeaseIsTakenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		before := only(t, r)
		if err := r.Delete(t.Context(), LeaseKind, registry.KeyOf(before), ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if l := only(t, r); l.Name != before.Name {
			t.Errorf("the node had %s and took %s", before.Name, l.Name)
		}
	})
}

// The subnet went to another node while this one was down: it takes another
// and leaves the thief's alone.
func TestLostLeaseIsNotTakenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		lost := only(t, r)
		n.stop()
		thief := `{"PublicIP":"172.30.0.2","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}}`
		r.PutValue(LeaseKind, registry.KeyOf(lost), []byte(thief))
		n.change(func(p *plugin.Node) { putPod(p, lost.subnet.V4.Addr().Next().Next().String()) })
		n.start()
		defer func() { n.stop() }()
		leases := all(t, r)
		if len(leases) != 2 || string(leases[lost.Name].Spec) != thief {
			t.Errorf("there are the leases %v", leases)
		}
		n.says("")
	})
}

func TestAddressOfTheNodeChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		before := only(t, r)
		check := func(address string) {
			t.Helper()
			l := only(t, r)
			a := netip.MustParseAddr(address)
			if l.Name != before.Name || l.PublicIP != a || l.Tunnel.MAC != plan.MACOf(a) {
				t.Errorf("with address %s lease %s became %s %s", address, before.Name, l.Name, l.Spec)
			}
		}
		n.change(func(p *plugin.Node) { p.Addresses[0] = netip.MustParseAddr("172.30.0.77") })
		check("172.30.0.77")
		n.stop()
		n.change(func(p *plugin.Node) { p.Addresses[0] = netip.MustParseAddr("172.30.0.78") })
		n.start()
		check("172.30.0.78")
		n.change(func(p *plugin.Node) { p.Addresses = nil })
		n.says("node node1 has no address of the family of network 10.5.0.0/16")
		check("172.30.0.78")
		n.stop()
	})
}

// A node that ran flanneld keeps its subnet, known by its address, and
// publishes where Weft can be reached.
func TestTakeoverFromFlanneld(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		o := &Lease{Spec: []byte(`{"PublicIP":"172.30.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"3e:23:4f:b6:47:8a"}}`)}
		o.Name = "10.5.42.0-24"
		if _, err := r.Create(t.Context(), LeaseKind, o, registry.WithTTL(time.Hour)); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		time.Sleep(2 * time.Hour) // flanneld's own time to live is over
		if l := only(t, r); l.Name != o.Name || l.Tunnel.MAC != plan.MACOf(l.PublicIP) {
			t.Errorf("the lease of flanneld became %s %s", l.Name, l.Spec)
		}
	})
}

// A node whose lease an older agent wrote, which had one tunnel for both families, has
// the end that the lease says until it says another.
func TestLeaseOfOneTunnelForBothFamilies(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, `{"EnableIPv6":true,"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`)
		o := &Lease{Spec: []byte(`{"PublicIP":"172.30.0.1","PublicIPv6":"fd00:30::1","BackendType":"vxlan",` +
			`"BackendData":{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:01"},"BackendV6Data":{"VNI":1,"VtepMAC":"0a:58:ac:1e:00:01"},"Weft":{"Node":"node1","Config":{}}}`)}
		o.Name = "10.5.42.0-24&fd00:5:0:42::-64"
		if _, err := r.Create(t.Context(), LeaseKind, o, registry.WithTTL(time.Hour)); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, r, "node1", "172.30.0.1")
		n.node.Addresses = append(n.node.Addresses, netip.MustParseAddr("fd00:30::1"))
		check := func(mac6 plan.MAC) {
			t.Helper()
			config, _, err := r.List(t.Context(), ConfigKind)
			if err != nil {
				t.Fatal(err)
			}
			leases, _, err := r.List(t.Context(), LeaseKind)
			if err != nil {
				t.Fatal(err)
			}
			p, problems := Plugin{}.Compile(plugin.Input{Config: &api.ClusterConfig{}, Node: n.node,
				Objects: registry.NewSnapshot(map[*registry.Kind][]registry.Object{ConfigKind: config, LeaseKind: leases})})
			v4, _ := p.Local.Tunnel(Name)
			v6, _ := p.Local.Tunnel(nameV6)
			if l := only(t, r); len(problems) > 0 || l.Name != o.Name || l.Tunnel.MAC != v4.MAC || l.TunnelV6.MAC != mac6 || v6.MAC != mac6 {
				t.Errorf("lease %s says %s, and the plan is\n%s%v", l.Name, l.Spec, p, problems)
			}
		}
		check(plan.MACOf(netip.MustParseAddr("172.30.0.1")))
		n.start()
		defer func() { n.stop() }()
		check(plan.MACOf(netip.MustParseAddr("fd00:30::1")))
	})
}

// A lease that the configuration does not allow any more stays while a pod
// lives on it, and goes with the last.
func TestConfigurationMovesElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		before := only(t, r)
		n.change(func(p *plugin.Node) { putPod(p, before.subnet.V4.Addr().Next().Next().String()) })
		setConfig(r, `{"Network":"10.6.0.0/16","Backend":{"Type":"host-gw"}}`)
		time.Sleep(3 * DefaultTTL)
		synctest.Wait()
		if l := only(t, r); l.Name != before.Name || l.BackendType != BackendHostGW {
			t.Errorf("with a pod on it %s became %s %s", before.Name, l.Name, l.Spec)
		}
		n.change(func(p *plugin.Node) { p.Endpoints = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if l := only(t, r); !netip.MustParsePrefix("10.6.0.0/16").Contains(l.subnet.V4.Addr()) {
			t.Errorf("without pods the node still has %s", l.Name)
		}
	})
}

// A node that sees the registry as it was does nothing a second time, and takes
// nothing that another has meanwhile.
func TestTheNodeIsBehindTheRegistry(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		var nodes []*testNode
		for i := range 2 {
			n := newNode(t, r, fmt.Sprintf("node%d", i+1), fmt.Sprintf("172.30.0.%d", i+1))
			n.runner = Plugin{Pick: func(int) int { return 0 }}
			n.freeze()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			n.start()
			defer func() { n.stop() }()
			n.says("")
		}
		before := all(t, r)
		if len(before) != 2 {
			t.Fatalf("two nodes have the leases %v", before)
		}
		for range 3 {
			for _, n := range nodes {
				n.change(func(*plugin.Node) {})
				n.says("")
			}
		}
		for name, l := range all(t, r) {
			if before[name] == nil || l.ResourceVersion != before[name].ResourceVersion {
				t.Errorf("lease %s was written again", name)
			}
		}
		// Also when it has forgotten what it had, and would choose another now.
		nodes[0].stop()
		if err := os.Remove(nodes[0].subnetFile()); err != nil {
			t.Fatal(err)
		}
		nodes[0].runner = Plugin{Pick: func(int) int { return 7 }}
		nodes[0].start()
		nodes[0].says("")
		for name := range all(t, r) {
			if before[name] == nil {
				t.Errorf("the node took %s as well", name)
			}
		}
		// What is to be done is done all the same.
		nodes[0].change(func(p *plugin.Node) { p.Addresses = []netip.Addr{netip.MustParseAddr("172.30.0.77")} })
		for name, l := range all(t, r) {
			if moved := l.PublicIP == netip.MustParseAddr("172.30.0.77"); moved != (l.Weft.Node == "node1") || before[name] == nil {
				t.Errorf("lease %s says %s", name, l.Spec)
			}
		}
	})
}

// Two agents were killed when they had just made leases that overlap: when they start
// again, at once, the older stays and the other moves. Where a pod lives on the younger,
// it stays as long, and the node says so.
func TestAgentsAreKilledWithLeasesThatOverlap(t *testing.T) {
	for _, pod := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *memory.Registry) {
			setConfig(r, `{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}`)
			var nodes []*testNode
			for i, name := range []string{"10.5.2.0-24&fd00:5:0:1::-64", "10.5.1.0-24&fd00:5:0:1::-64"} {
				n := newNode(t, r, fmt.Sprintf("node%d", i+1), fmt.Sprintf("172.30.0.%d", i+1))
				n.node.Addresses = append(n.node.Addresses, netip.MustParseAddr(fmt.Sprintf("fd00:30::%d", i+1)))
				nodes = append(nodes, n)
				o := &Lease{Spec: fmt.Appendf(nil, `{"PublicIP":%q,"PublicIPv6":%q,"BackendType":"vxlan","Weft":{"Node":%q,"Config":{}}}`, n.node.Addresses[0], n.node.Addresses[1], n.node.Name)}
				o.Name = name
				if _, err := r.Create(t.Context(), LeaseKind, o, registry.WithTTL(DefaultTTL)); err != nil {
					t.Fatal(err)
				}
			}
			older, younger := "10.5.2.0-24&fd00:5:0:1::-64", "10.5.1.0-24&fd00:5:0:1::-64"
			if pod {
				putPod(&nodes[1].node, "10.5.1.2")
			}
			for _, n := range nodes {
				n.begin()
				defer func() { n.stop() }()
			}
			synctest.Wait()
			if pod {
				if leases := all(t, r); len(leases) != 2 || leases[older] == nil || leases[younger] == nil {
					t.Errorf("with a pod on %s there are the leases %v", younger, leases)
				}
				nodes[1].says("FlannelLease " + younger + ": its subnet overlaps with " + older + " of FlannelLease " + older + ", which is older or reserved; the node keeps it while pods live on it: drain the node to move it")
				nodes[1].change(func(n *plugin.Node) { n.Endpoints = nil })
			}
			leases := all(t, r)
			if len(leases) != 2 || leases[older] == nil || leases[younger] != nil {
				t.Errorf("there are the leases %v, and not %s and another than %s", leases, older, younger)
			}
			for name, l := range leases {
				if name != older && l.subnet.Overlaps(leases[older].subnet) {
					t.Errorf("%s overlaps with %s", name, older)
				}
			}
			for _, n := range nodes {
				n.says("")
			}
		})
	}
}

// The node starts while the registry is away.
func TestTheRegistryComesLater(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		r.Stop()
		n := newNode(t, r, "node1", "172.30.0.1")
		n.start()
		defer func() { n.stop() }()
		time.Sleep(time.Hour)
		n.says("the registry has not been read yet")
		r.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		n.says("")
		only(t, r)
	})
}

// As many nodes as subnets start at once: each gets one of its own.
func TestNodesRaceForTheLastSubnets(t *testing.T) {
	for _, config := range []string{
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.30.0","Backend":{"Type":"host-gw"}}`,
		`{"Network":"10.5.0.0/16","SubnetMax":"10.5.30.0","EnableIPv6":true,"IPv6Network":"fd00:5::/48","IPv6SubnetMax":"fd00:5:0:1e::","Backend":{"Type":"vxlan"}}`,
	} {
		inBubble(t, func(t *testing.T, r *memory.Registry) {
			setConfig(r, config)
			var nodes []*testNode
			for i := range 31 {
				n := newNode(t, r, fmt.Sprintf("node%d", i), fmt.Sprintf("172.30.0.%d", i+1))
				n.node.Addresses = append(n.node.Addresses, netip.MustParseAddr(fmt.Sprintf("fd00:30::%d", i+1)))
				nodes = append(nodes, n)
			}
			for _, n := range nodes[:30] {
				n.begin()
			}
			synctest.Wait()
			time.Sleep(time.Minute) // for those who lost ten races in a row
			synctest.Wait()
			leases := all(t, r)
			if len(leases) != 30 {
				t.Errorf("30 nodes have %d leases", len(leases))
			}
			for _, a := range leases {
				for _, b := range leases {
					if a != b && (a.subnet.Overlaps(b.subnet) || a.PublicIP == b.PublicIP) {
						t.Errorf("%s (%s) and %s (%s)", a.Name, a.PublicIP, b.Name, b.PublicIP)
					}
				}
			}
			for _, n := range nodes[:30] {
				n.says("")
			}
			// There is none for one more, until another goes.
			late := nodes[30]
			late.start()
			late.says("no subnet is free between 10.5.1.0 and 10.5.30.0")
			nodes[0].stop()
			time.Sleep(DefaultTTL + time.Minute)
			synctest.Wait()
			late.says("")
			for _, n := range nodes[1:] {
				n.stop()
			}
		})
	}
}

// A subnet that the configuration no longer allows is given back once no pod can get an
// address of it any more: not while the node gives some, nor when a pod got one last.
func TestSubnetIsGivenBackOnceNobodyGetsAddressesOfIt(t *testing.T) {
	inBubble(t, func(t *testing.T, r *memory.Registry) {
		setConfig(r, goodConfig)
		n := newNode(t, r, "node1", "172.30.0.1")
		var does *plan.Plan // what the data plane does
		n.applied = func() *plugin.Applied {
			n.mu.Lock()
			defer n.mu.Unlock()
			if does == nil {
				return nil
			}
			return &plugin.Applied{Plan: does}
		}
		apply := func() plan.Pool {
			t.Helper()
			in, _ := n.input()
			p, _ := n.runner.Compile(in)
			n.change(func(*plugin.Node) { does = p })
			if len(p.Local.Pools) != 1 {
				t.Fatalf("its pools are %v", p.Local.Pools)
			}
			return p.Local.Pools[0]
		}
		n.start()
		defer func() { n.stop() }()
		first := only(t, r)
		if pool := apply(); pool.Closed {
			t.Errorf("of %v it gives no addresses", pool)
		}
		last := plan.Address{Network: plan.DefaultNetwork, IP: first.subnet.V4.Addr().Next().Next()}
		setConfig(r, `{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}`)
		if l := only(t, r); l.Name != first.Name {
			t.Fatalf("it gave back %s, of which it gives addresses", first.Name)
		}
		n.change(func(p *plugin.Node) { p.Held = []plan.Address{last} }) // its interface is still to be made
		if pool := apply(); pool.Closed {
			t.Errorf("of %v it gives no addresses, and keeps it", pool)
		}
		n.change(func(p *plugin.Node) { p.Held = nil })
		pool := apply()
		if l := only(t, r); !pool.Closed || l.Name == first.Name {
			t.Errorf("of %v it gives addresses, and has %s", pool, l.Name)
		}
		if pool := apply(); pool.Closed {
			t.Errorf("of %v it gives no addresses", pool)
		}

		// The last pod gets its address as the node stops giving some.
		second := only(t, r)
		last.IP = second.subnet.V4.Addr().Next().Next()
		setConfig(r, goodConfig)
		in, _ := n.input()
		closed, _ := n.runner.Compile(in)
		n.change(func(p *plugin.Node) { does, p.Held = closed, []plan.Address{last} })
		if l := only(t, r); !closed.Local.Pools[0].Closed || l.Name != second.Name {
			t.Errorf("it gave back %s, of which a pod has an address", second.Name)
		}
	})
}
