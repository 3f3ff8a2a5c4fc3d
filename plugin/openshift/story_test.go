package openshift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/internal/golden"
	"github.com/weftnet/weft/plugin"
	"github.com/weftnet/weft/registry"
	"github.com/weftnet/weft/registry/memory"
)

// TestCluster holds what the controller does against what people wrote down.
// Each file of a story in testdata/cluster is named like what a user does, and
// holds what the objects say differently once the controller has nothing left
// to do.
func TestCluster(t *testing.T) {
	golden.Archives(t, "testdata/cluster/*.txtar", func(t *testing.T, story []txtar.File) []txtar.File {
		w := newWorld(t)
		var before []string
		for i, f := range story {
			for command := range strings.SplitSeq(f.Name, "; ") {
				w.do(strings.Fields(command))
			}
			w.settle()
			after := strings.Split(strings.TrimSpace(w.state()), "\n")
			var b strings.Builder
			for _, line := range before {
				if !slices.Contains(after, line) {
					fmt.Fprintln(&b, "-", line)
				}
			}
			for _, line := range after {
				if !slices.Contains(before, line) {
					fmt.Fprintln(&b, "+", line)
				}
			}
			story[i].Data = []byte(b.String())
			before = after
		}
		return story
	})
}

// do does what a line of a story says.
func (w *world) do(words []string) {
	w.t.Helper()
	w.now = w.now.Add(time.Second) // so that what comes later is younger
	switch verb, args := words[0], words[1:]; {
	case verb == "network": // CIDR/hostbits...
		var entries []networkv1.ClusterNetworkEntry
		for _, arg := range args {
			var e networkv1.ClusterNetworkEntry
			cidr, bits, _ := strings.Cut(arg, "+")
			e.CIDR = cidr
			if _, err := fmt.Sscan(bits, &e.HostSubnetLength); err != nil {
				w.t.Fatal(err)
			}
			entries = append(entries, e)
		}
		key := networkKey
		_, err := w.registry.Get(context.Background(), api.ClusterNetwork, key)
		if errors.Is(err, registry.ErrNotFound) {
			w.create(api.ClusterNetwork, &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, ClusterNetworks: entries})
			return
		}
		w.force(func(cn *networkv1.ClusterNetwork) {
			cn.ClusterNetworks, cn.Network, cn.HostSubnetLength = entries, "", 0
		})
	case verb == "legacy-network": // CIDR hostbits
		w.create(api.ClusterNetwork, &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: api.DefaultName}, Network: args[0], HostSubnetLength: 9})
	case verb == "service-network":
		w.force(func(cn *networkv1.ClusterNetwork) { cn.ServiceNetwork = args[0] })
	case verb == "node":
		w.node(args[0], args[1:]...)
	case verb == "address":
		modify(w, api.Node, args[0], func(n *corev1.Node) {
			n.Status.Addresses = nil
			for _, a := range args[1:] {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
			}
		})
	case verb == "ghost":
		w.ghost(args[0], args[1])
	case verb == "hostsubnet": // one that somebody made
		w.create(api.HostSubnet, &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: args[0]}, Host: args[0], HostIP: args[1], Subnet: args[2],
			EgressIPs: []networkv1.HostSubnetEgressIP{"192.168.7.100"}})
	case verb == "delete" && args[0] == "node":
		w.remove(api.Node, args[1])
		maps.DeleteFunc(w.elsewhere.Holdings, func(_ netip.Prefix, node string) bool { return node == args[1] })
	case verb == "delete" && args[0] == "hostsubnet":
		w.remove(api.HostSubnet, args[1])
	case verb == "other": // NODE has PREFIX by another plug-in
		w.gives(args[0], netip.MustParsePrefix(args[1]))
	case verb == "podcidr": // so NODE has, by one that gives them to any
		p := netip.MustParsePrefix(args[1])
		w.gives(args[0], p)
		w.elsewhere.Foreign = append(w.elsewhere.Foreign, p)
	case verb == "others" && args[0] == "leave":
		w.elsewhere = plugin.Elsewhere{}
	case verb == "after":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			w.t.Fatal(err)
		}
		w.now = w.now.Add(d)
	case verb == "begin":
	default:
		w.t.Fatalf("a story has nothing called %q", words)
	}
}

// force changes the ClusterNetwork even where the registry would refuse that,
// as programs of others can.
func (w *world) force(change func(*networkv1.ClusterNetwork)) {
	w.t.Helper()
	o, err := w.registry.Get(context.Background(), api.ClusterNetwork, networkKey)
	if err != nil {
		w.t.Fatal(err)
	}
	cn := o.(*networkv1.ClusterNetwork)
	change(cn)
	value, err := api.ClusterNetwork.Encode(cn)
	if err != nil {
		w.t.Fatal(err)
	}
	w.registry.(*memory.Registry).PutValue(api.ClusterNetwork, networkKey, value)
}

// TestRunCluster runs the loop itself.
func TestRunCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := memory.New()
		w.registry = store
		w.network("10.1.0.0/24 8")
		metrics := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- Subnet{Quarantine: time.Minute}.RunCluster(ctx, plugin.ClusterEnv{
				Registry: w.registry, Log: slog.New(slog.DiscardHandler), Metrics: metrics})
		}()
		wants := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for name, h := range w.hosts() {
				got = append(got, name+" "+h.Subnet)
			}
			slices.Sort(got)
			if got := strings.Join(got, ", "); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
		wants("")
		w.node("a", "192.168.7.1")
		wants("a 10.1.0.0/24")
		w.node("b", "192.168.7.2")
		wants("a 10.1.0.0/24, b ")
		w.remove(api.Node, "a")
		wants("b ")
		// While the registry is away nothing is lost.
		store.Stop()
		time.Sleep(30 * time.Second)
		store.Start()
		w.node("c", "192.168.7.3")
		time.Sleep(10 * time.Second)
		wants("b , c ")
		// Nothing but the end of the quarantine makes it go on.
		time.Sleep(30 * time.Second)
		wants("b 10.1.0.0/24, c ")
		families, err := metrics.Gather()
		if err != nil || len(families) != 5 {
			t.Errorf("metrics %v, %v", families, err)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestManyNodes lets many nodes come at once: it takes a few rounds, not a
// few for each.
func TestManyNodes(t *testing.T) {
	w := newWorld(t)
	w.network("10.128.0.0/14 9", "fd01::/48 64")
	const nodes = 500 // of 512
	for i := range nodes {
		w.node(fmt.Sprintf("node%03d", i), netip.AddrFrom4([4]byte{192, 168, byte(i / 250), byte(i%250 + 1)}).String())
	}
	c := w.cluster(w.registry)
	for range 4 {
		if _, err := c.round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := c.round(t.Context()); err != nil || len(d.writes) > 0 {
		t.Errorf("after four rounds there are still %d writes, %v", len(d.writes), err)
	}
	seen := map[string]bool{}
	for name, h := range w.hosts() {
		if h.Subnet == "" || h.Annotations[api.AdditionalSubnets] == "" || seen[h.Subnet] || seen[h.Annotations[api.AdditionalSubnets]] {
			t.Errorf("%s has %s and %s", name, h.Subnet, h.Annotations[api.AdditionalSubnets])
		}
		seen[h.Subnet], seen[h.Annotations[api.AdditionalSubnets]] = true, true
	}
	if len(seen) != 2*nodes {
		t.Errorf("%d subnets", len(seen))
	}
}
