package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plugin/flannel"
	"github.com/weftnet/weft/registry"
)

// noLeases leaves out clusters whose nodes do not write leases themselves.
func noLeases(s *stage) string {
	if s.cluster.lab.Plugin != "flannel" {
		return "nodes write no leases"
	}
	return ""
}

// agentAttacks are those of one who has an agent's place in the registry: its
// node is node3, which has no other agent meanwhile.
var agentAttacks = []attack{
	{
		name: "lease_with_anothers_vtep_mac", by: oneAgent, ip: both,
		left: func(s *stage) string { return firstOf(noLeases(s), noTunnel(s)) },
		must: "cut another node off, or get what is for it, by a lease that says that its VTEP's MAC address is his",
		try: func(t *trial) {
			t.mislead(func(l map[string]any) { setTunnelMAC(l, t.nodes["node2"].plan.Local.Tunnels[0].MAC.String()) }, t.pods["near"], t.pods["far"])
		},
	},
	{
		name: "lease_with_the_readers_vtep_mac", by: oneAgent, ip: both,
		left: func(s *stage) string { return firstOf(noLeases(s), noTunnel(s)) },
		must: "cut a node off by a lease with its own VTEP's MAC address",
		try: func(t *trial) {
			t.mislead(func(l map[string]any) { setTunnelMAC(l, t.nodes["node1"].plan.Local.Tunnels[0].MAC.String()) }, t.pods["near"], t.pods["far"])
		},
	},
	{
		name: "lease_with_anothers_address", by: oneAgent, ip: both, left: noLeases, race: true,
		must: "cut another node off, or get what is for it, by a lease that says that its address is his",
		try: func(t *trial) {
			t.mislead(func(l map[string]any) {
				l["PublicIP"], l["PublicIPv6"] = t.nodes["node2"].v4.String(), t.nodes["node2"].v6.String()
			}, t.pods["near"], t.pods["far"])
		},
	},
	{
		name: "lease_of_a_part_of_anothers_subnet", by: oneAgent, ip: both, left: noLeases,
		must: "get what is for a pod of another node by a lease of a part of its subnet",
		try: func(t *trial) {
			far := t.pods["far"]
			name := flannel.Subnet{V4: prefixOf(far.v4, 28), V6: prefixOf(far.v6, 80)}.String()
			r := t.registry()
			defer t.without("node3")()
			t.pretend(name, slices.Clone(t.lease(r, "node3").Spec))
			t.waitRead(r)
			t.stillReaches(t.pods["near"], far)
		},
	},
	{
		name: "lease_of_the_whole_network", by: oneAgent, ip: both, left: noLeases,
		must: "get what is for nobody, or for others, by a lease of the cluster's whole network",
		try: func(t *trial) {
			near := t.pods["near"]
			r := t.registry()
			defer t.without("node3")()
			t.pretend(flannel.Subnet{V4: prefixOf(near.v4, 16), V6: prefixOf(near.v6, 48)}.String(), slices.Clone(t.lease(r, "node3").Spec))
			t.waitRead(r)
			t.stillReaches(near, t.pods["far"])
			t.stillReaches(t.pods["far"], near)
			w := t.watch(t.nodes["node3"].arriving)
			w.forbid("what is for nobody", func(word string) {
				t.must(t.owner(near), order{Do: "udp", To: netip.AddrPortFrom(t.freeSubnet(), port), Data: []byte(word)})
			})
			w.control("what is for a pod of his", func(word string) {
				t.must(t.owner(near), order{Do: "udp", To: t.at(t.pods["third"], port), Data: []byte(word)})
			})
		},
	},
	{
		name: "node_pods_of_another_node", by: oneAgent, ip: both, left: noPolicies,
		must: "give rights to the pods of another node by saying that they are its own",
		try: func(t *trial) {
			mallory, shut, friend := t.pods["mallory"], t.pods["shut"], t.pods["friend"]
			r := t.registry()
			defer t.without("node3")()
			tag := int32(0)
			own, err := r.Get(t.Context(), api.NodePodsKind, registry.Key{Name: "node1"})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range own.(*api.NodePods).Pods {
				if slices.Contains(p.Addresses, friend.v4.String()) {
					tag = p.Tag
				}
			}
			if tag == 0 {
				t.Fatal("node1 tells nothing of friend")
			}
			before, err := r.Get(t.Context(), api.NodePodsKind, registry.Key{Name: "node3"})
			if err != nil {
				t.Fatal(err)
			}
			change := func(pods []api.TaggedPods) {
				_, err := registry.Modify(context.Background(), r, api.NodePodsKind, registry.Key{Name: "node3"}, func(n *api.NodePods) error { n.Pods = pods; return nil })
				if err != nil {
					t.Error(err)
				}
			}
			// One of them is an address of its own, by which one sees that it
			// was read.
			third := t.pods["third"]
			var claimed []string
			for _, m := range []*machine{mallory, third} {
				claimed = append(claimed, m.v4.String(), m.v6.String())
			}
			slices.SortFunc(claimed, func(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) })
			defer change(before.(*api.NodePods).Pods)
			change([]api.TaggedPods{{Tag: tag, Addresses: claimed}})
			w := t.watch(shut.arriving)
			t.arrives(shut.arriving, "what third sends, now that its own node says that it is a friend", func(word string) {
				t.must(t.owner(third), order{Do: "udp", To: t.at(shut, port), Data: []byte(word)})
			})
			w.forbid("what mallory sends", func(word string) { t.must(t.hand(mallory), order{Do: "udp", To: t.at(shut, port), Data: []byte(word)}) })
			w.control("what friend sends", func(word string) {
				t.must(t.owner(friend), order{Do: "udp", To: t.at(shut, port), Data: []byte(word)})
			})
		},
	},
}

// firstOf returns the first reason that there is.
func firstOf(reasons ...string) string {
	for _, r := range reasons {
		if r != "" {
			return r
		}
	}
	return ""
}

// prefixOf returns the prefix of an address, the zero one of none.
func prefixOf(a netip.Addr, bits int) netip.Prefix {
	if !a.IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, bits).Masked()
}

func (t *trial) registry() registry.Registry {
	t.Helper()
	r, err := t.lab.Registry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// without ends a node's agent, which the attacker is from now on, and returns
// what starts it again.
func (t *trial) without(node string) (again func()) {
	t.Helper()
	if err := t.lab.Kill(node); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := t.lab.Start(context.Background(), node); err != nil {
			t.Error(err)
		}
	}
}

// lease returns the lease of a node.
func (t *trial) lease(r registry.Registry, node string) *flannel.Lease {
	t.Helper()
	leases, _, err := r.List(t.Context(), flannel.LeaseKind)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range leases {
		l := o.(*flannel.Lease)
		if a, err := flannel.ParseAttributes(l.Spec); err == nil && a.PublicIP == t.nodes[node].v4 && (a.Weft == nil || a.Weft.Node == node) {
			return l
		}
	}
	t.Fatalf("%s has no lease", node)
	return nil
}

// mislead changes the lease of node3, and says that the attack succeeded if one
// pod does not reach another any more.
func (t *trial) mislead(change func(lease map[string]any), from, to *machine) {
	t.Helper()
	r := t.registry()
	defer t.without("node3")()
	l := t.lease(r, "node3")
	var fields map[string]any
	if err := json.Unmarshal(l.Spec, &fields); err != nil {
		t.Fatal(err)
	}
	change(fields)
	spec, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	before := slices.Clone(l.Spec)
	write := func(spec json.RawMessage) error {
		_, err := registry.Modify(context.Background(), r, flannel.LeaseKind, registry.Key{Name: l.Name}, func(l *flannel.Lease) error { l.Spec = spec; return nil })
		return err
	}
	if err := write(spec); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := write(before); err != nil {
			t.Error(err)
		}
	}()
	// Whichever of two that say the same is believed, the first, the last or
	// the elder.
	for _, subnet := range []byte{1, 254} {
		t.pretend(t.elsewhere(subnet).String(), spec)
	}
	t.waitRead(r)
	t.stillReaches(from, to)
	t.stillReaches(to, from)
}

// elsewhere is a subnet that no node has, of the size that nodes have.
func (t *trial) elsewhere(number byte) flannel.Subnet {
	b := t.pods["near"].v4.As4()
	b[2], b[3] = number, 0
	s := flannel.Subnet{V4: netip.PrefixFrom(netip.AddrFrom4(b), 24)}
	if v6 := t.pods["near"].v6; v6.IsValid() {
		b := v6.As16()
		b[6], b[7] = 0xfd, number
		s.V6 = netip.PrefixFrom(netip.AddrFrom16(b), 64).Masked()
	}
	return s
}

func setTunnelMAC(lease map[string]any, mac string) {
	for _, field := range []string{"BackendData", "BackendV6Data"} {
		if tunnel, ok := lease[field].(map[string]any); ok {
			tunnel["VtepMAC"] = mac
		}
	}
}

// pretend makes a lease until the trial ends.
func (t *trial) pretend(name string, spec json.RawMessage) {
	t.Helper()
	r := t.registry()
	if _, err := r.Create(t.Context(), flannel.LeaseKind, &flannel.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := r.Delete(context.Background(), flannel.LeaseKind, registry.Key{Name: name}, "")
		if err != nil && !errors.Is(err, registry.ErrNotFound) {
			t.Error(err)
		}
	})
}

// waitRead returns when the agents have read all leases that there are: a lease
// of one more node is in their plans.
func (t *trial) waitRead(r registry.Registry) {
	t.Helper()
	const other = "172.30.77.77"
	s := t.elsewhere(253)
	var fields map[string]any
	if err := json.Unmarshal(t.lease(r, "node2").Spec, &fields); err != nil {
		t.Fatal(err)
	}
	fields["PublicIP"], fields["PublicIPv6"] = other, "fd30::7777"
	delete(fields, "Weft")
	setTunnelMAC(fields, "0a:58:ac:1e:4d:4d")
	spec, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), flannel.LeaseKind, &flannel.Lease{ObjectMeta: metav1.ObjectMeta{Name: s.String()}, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Delete(context.Background(), flannel.LeaseKind, registry.Key{Name: s.String()}, ""); err != nil {
			t.Error(err)
		}
	}()
	for _, node := range []string{"node1", "node2"} {
		t.planHas(t.T, node, s.V4.String())
		eventually(t, func() error {
			routes := t.run(t.owner(t.nodes[node]), "ip", "route")
			if !strings.Contains(routes, s.V4.Addr().String()) {
				return fmt.Errorf("%s has no route to %s: %s", node, s.V4, routes)
			}
			return nil
		})
	}
}

// cutOff is how long what should arrive is waited for before it counts as cut
// off.
const cutOff = 10 * time.Second

// stillReaches says that the attack succeeded if what one pod sends to another
// does not arrive there, or does at node3.
func (t *trial) stillReaches(from, to *machine) {
	t.Helper()
	var sent []string
	arrived := false
	for began := time.Now(); !arrived && time.Since(began) < cutOff; time.Sleep(20 * time.Millisecond) {
		word := newWord()
		sent = append(sent, word)
		t.must(t.owner(from), order{Do: "udp", To: t.at(to, port), Data: []byte(word)})
		arrived = slices.ContainsFunc(sent, func(word string) bool { return to.arriving.saw(word) != nil })
	}
	if !arrived {
		t.breach("what %s sends to %s does not arrive any more", from.name, to.name)
	}
	for _, word := range sent {
		if t.nodes["node3"].arriving.saw(word) != nil {
			t.breach("what %s sends to %s comes to node3", from.name, to.name)
			break
		}
	}
	// Both are seen where nothing is wrong.
	other := t.pods["mallory"]
	t.arrives(other.arriving, "what near sends to mallory", func(word string) {
		t.must(t.owner(t.pods["near"]), order{Do: "udp", To: t.at(other, port), Data: []byte(word)})
	})
}
