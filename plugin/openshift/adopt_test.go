package openshift

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
)

// A node that has a subnet by another plug-in gets the same, where it is one to be given,
// and no node gets one that another machine has.
func TestSubnetsOfOtherPlugins(t *testing.T) {
	w := newWorld(t)
	if _, err := w.registry.Create(t.Context(), api.ClusterNetwork, &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: api.DefaultName},
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/20", HostSubnetLength: 8}},
	}); err != nil {
		t.Fatal(err)
	}
	elsewhere := plugin.Holdings{
		netip.MustParsePrefix("10.1.3.0/24"): "node1",
		netip.MustParsePrefix("10.1.0.0/24"): "172.30.0.99",
		netip.MustParsePrefix("10.1.2.0/25"): "node2", // of another length
		netip.MustParsePrefix("10.9.0.0/24"): "node3", // of another range
	}
	for i, name := range []string{"node1", "node2", "node3"} {
		w.node(name, fmt.Sprintf("172.30.0.%d", i+1))
	}
	c := w.cluster(w.registry)
	c.elsewhere = func(context.Context) (plugin.Elsewhere, error) { return plugin.Elsewhere{Holdings: elsewhere}, nil }
	for range 20 {
		if d, err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(d.writes) == 0 {
			break
		}
	}
	for name, want := range map[string]string{"node1": "10.1.3.0/24", "node2": "10.1.1.0/24", "node3": "10.1.4.0/24"} {
		o, err := w.registry.Get(t.Context(), api.HostSubnet, registry.Key{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := o.(*networkv1.HostSubnet).Subnet; got != want {
			t.Errorf("%s has %s, and not %s", name, got, want)
		}
	}
}

// What was to be a node's before another machine got it by another plug-in it gets no more.
func TestPendingSubnetThatAnotherPluginGave(t *testing.T) {
	w := newWorld(t)
	w.network("10.1.0.0/16 8")
	w.node("node1", "172.30.0.1")
	w.create(api.ClusterConfigKind, &api.ClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName},
		Status: api.ClusterConfigStatus{Subnets: &api.SubnetLedger{Pending: []api.SubnetGrant{{Subnet: "10.1.3.0/24", Node: "node1"}}}}})
	w.gives("node2", netip.MustParsePrefix("10.1.3.128/25"))
	w.settle()
	if got := w.hosts()["node1"].Subnet; got != "10.1.0.0/24" {
		t.Errorf("node1 has %q", got)
	}
	if l := readLedger(objects[*api.ClusterConfig](w, api.ClusterConfigKind)[api.DefaultName].Status.Subnets); len(l.pending) > 0 || len(l.quarantined) != 1 {
		t.Errorf("the ledger is %+v", l)
	}
}

// TestNobodyHasTheSubnetOfAnother has nodes come and go while somebody who knows nothing of
// HostSubnets gives Nodes podCIDRs of the same range, and controllers that die before any
// write. What was pending when that began is among it.
func TestNobodyHasTheSubnetOfAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newStoredWorld(t)
		w.network("10.1.0.0/20 8")
		joined := 0
		join := func() {
			joined++
			w.node(fmt.Sprintf("node%d", joined%6), fmt.Sprintf("172.30.0.%d", joined%6+1))
		}
		// A node that comes back before anybody saw that it was gone keeps its HostSubnet.
		absent := func() bool {
			name := fmt.Sprintf("node%d", (joined+1)%6)
			return w.nodes()[name] == nil && w.hosts()[name] == nil
		}
		work := func() {
			calls := rapid.IntRange(4, 12).Draw(t, "calls")
			g := &gate{Registry: w.registry, now: w.clock, allow: func() bool { calls--; return calls >= 0 }}
			c := w.cluster(g)
			if _, err := c.round(t.Context()); err != nil && !errors.Is(err, errKilled) && !errors.Is(err, errRaced) {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(0, 12).Draw(t, "steps before") {
			if rapid.Bool().Draw(t, "a node joins") && absent() {
				join()
			} else {
				work()
			}
		}
		w.elsewhere.Foreign = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/20")}
		for name, h := range w.hosts() {
			if h.Subnet != "" {
				w.gives(name, netip.MustParsePrefix(h.Subnet))
			}
		}
		gives := func(name string) {
			for _, holder := range w.elsewhere.Holdings {
				if holder == name {
					return
				}
			}
			i := rapid.IntRange(0, 15).Draw(t, "podCIDR")
			for ; ; i++ {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i % 16), 0}), 24)
				if w.elsewhere.Holdings[p] == "" {
					w.gives(name, p)
					return
				}
			}
		}
		check := func() {
			for name, h := range w.hosts() {
				n := w.nodes()[name]
				if n == nil || h.Subnet == "" || h.Annotations[NodeUID] != string(n.UID) {
					continue // about to go
				}
				for p, holder := range w.elsewhere.Holdings {
					if holder != name && p.Overlaps(netip.MustParsePrefix(h.Subnet)) {
						t.Fatalf("%s has %s, and %s is the podCIDR of %s", name, h.Subnet, p, holder)
					}
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			names := slices.Sorted(maps.Keys(w.nodes()))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				if absent() {
					join()
				}
			case 1:
				if len(names) > 0 {
					name := rapid.SampledFrom(names).Draw(t, "who leaves")
					w.remove(api.Node, name)
					maps.DeleteFunc(w.elsewhere.Holdings, func(_ netip.Prefix, holder string) bool { return holder == name })
				}
			case 2:
				if len(names) > 0 {
					gives(rapid.SampledFrom(names).Draw(t, "who gets one"))
				}
			case 3:
				w.now = w.now.Add(30 * time.Second)
			default:
				work()
			}
			check()
		}
		for name := range w.nodes() {
			gives(name)
		}
		// What rests is waited for.
		end := func() {
			for range 10 {
				w.settle()
				w.now = w.now.Add(w.quarantine)
			}
			check()
		}
		end()
		waits := false
		for name := range w.nodes() {
			got := w.hosts()[name].Subnet
			waits = waits || got == ""
			if got != "" && w.elsewhere.Holdings[netip.MustParsePrefix(got)] != name {
				t.Fatalf("in the end %s has %q, and podCIDRs are %v", name, got, w.elsewhere.Holdings)
			}
		}
		// Where one waits, its podCIDR was to be the subnet of a second that waits for that
		// of the first when others began to give them. Another range is the way out.
		if waits {
			modify(w, api.ClusterNetwork, api.DefaultName, func(cn *networkv1.ClusterNetwork) {
				cn.ClusterNetworks = append(cn.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: "10.2.0.0/20", HostSubnetLength: 8})
			})
			end()
		}
		for name := range w.nodes() {
			if w.hosts()[name].Subnet == "" {
				t.Fatalf("in the end %s has nothing, and podCIDRs are %v", name, w.elsewhere.Holdings)
			}
		}
	})
}
