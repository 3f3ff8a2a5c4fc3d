package attack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// What one pod may take of what all of a node's pods share.
const (
	// mostNeighbours are entries of the node's neighbour table, of which a
	// kernel has 1,024 by default.
	mostNeighbours = 128
	// mostOfFlows is which part of the node's connections are a pod's at most:
	// a quarter.
	mostOfFlows = 4
	// mostTags are Tags that one pod makes by changing its labels, at once; then
	// one a second.
	mostTags = 110
	// tagSoon is when labels that have got no Tag are taken to get none.
	tagSoon = 500 * time.Millisecond
)

// floodAttacks are those by which one takes what is there for all.
var floodAttacks = []attack{
	{
		name: "neighbours", by: podWithRaw, ip: both,
		must: "fill its node's neighbour table, so that the node finds nobody else",
		try: func(t *trial) {
			mallory, node := t.pods["mallory"], t.nodes["node1"]
			// Less than a kernel's table, which all of the machine's nodes share.
			const many = 3 * mostNeighbours
			var frames [][]byte
			word := newWord()
			for i := range many {
				if t.v6 {
					from := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 13: 1, 14: byte(i >> 8), 15: byte(i)})
					frames = append(frames, frame(mallory.mac, mallory.gateway, solicitation(from, netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::1"), mallory.mac)))
					continue
				}
				b := mallory.v4.As4()
				b[2], b[3] = byte(100+i>>8), byte(i)
				frames = append(frames, arp(1, mallory.mac, broadcast, mallory.mac, netip.AddrFrom4(b), plan.MAC{}, t.gatewayAddress()))
			}
			// The word is behind the last of them, where frames are filled up.
			frames = append(frames, append(arp(1, mallory.mac, broadcast, mallory.mac, mallory.v4, plan.MAC{}, mallory.v4), word...))
			t.frames(t.hand(mallory), frames...)
			eventually(t, func() error {
				if node.arriving.saw(word) == nil {
					return fmt.Errorf("the last of the frames has not come to the node")
				}
				return nil
			})
			count := func(device string) int {
				family := map[bool]string{false: "-4", true: "-6"}[t.v6]
				out := t.run(t.owner(node), "ip", family, "neigh", "show", "nud", "all", "dev", device)
				return strings.Count(out, "\n")
			}
			// Of a machine on its own network the node does learn.
			eventually(t, func() error {
				t.must(t.owner(t.stranger), order{Do: "udp", To: t.at(node, port), Data: []byte(newWord())})
				if count("eth0") == 0 {
					return fmt.Errorf("control: the node learns of no neighbours at all")
				}
				return nil
			})
			t.controls++
			if n := count(t.device(mallory)); n > mostNeighbours {
				t.breach("of %d neighbours that are not there, the node has %d", many, n)
			}
			t.run(t.owner(node), "ip", "neigh", "flush", "dev", t.device(mallory), "nud", "stale")
		},
	},
	{
		name: "connections", by: podWithNothing, ip: onlyIPv4,
		must: "fill its node's table of connections, so that nobody else begins one",
		try: func(t *trial) {
			node := t.owner(t.nodes["node1"])
			number := func(name string) int {
				n, err := strconv.Atoi(strings.TrimSpace(t.run(node, "sysctl", "-n", "net.netfilter."+name)))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			// It may begin so many; of those beyond, some more get through before
			// the node has counted them.
			most := number("nf_conntrack_max")
			bound := most / mostOfFlows
			guest, other := t.guest("node1"), t.guest("node1")
			defer t.forget(node, guest)
			if !t.gets(guest, t.stranger) {
				t.Fatal("control: a pod that has no connections may begin none")
			}
			sent, began := 0, time.Now()
			for i := 0; t.gets(guest, t.stranger) && number("nf_conntrack_count") <= 3*bound && time.Since(began) < patience; i++ {
				to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 1}), 1)
				sent += t.must(t.hand(guest), order{Do: "flows", To: to, Count: min(bound/4, 60_000), Data: []byte("x"), Wait: patience}).Done
			}
			if t.gets(guest, t.stranger) {
				t.breach("one that began %d connections, of which the node tracks %d, may begin more", sent, number("nf_conntrack_count"))
			}
			t.arrives(t.stranger.arriving, "what another pod sends", func(word string) {
				t.must(t.hand(other), order{Do: "udp", To: netip.AddrPortFrom(t.stranger.v4, port), Data: []byte(word)})
			})
			if n := number("nf_conntrack_count"); n > 3*bound {
				t.breach("of %d connections that one pod began, the node tracks %d, and %d in all at most", sent, n, most)
			}
		},
	},
	{
		name: "connections_on_another_node", by: podWithNothing, ip: both,
		must: "fill another node's table of connections, by some that its own node takes for ended",
		try: func(t *trial) {
			near, node := t.owner(t.nodes["node1"]), t.owner(t.nodes["node2"])
			number := func(name string) int {
				n, err := strconv.Atoi(strings.TrimSpace(t.run(node, "sysctl", "-n", "net.netfilter."+name)))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			bound := number("nf_conntrack_max") / mostOfFlows
			guest, other, friend := t.guest("node1"), t.guest("node1"), t.guest("node2")
			defer t.forget(node, guest)
			if !t.gets(guest, friend) {
				t.Fatal("control: a pod that has no connections may begin none")
			}
			// Resets with a short life end connections on its own node alone.
			const deserted = 100
			t.must(t.owner(friend), order{Do: "listen", To: t.at(friend, port), Count: deserted})
			t.must(t.hand(guest), order{Do: "desert", To: t.at(friend, port), Count: deserted, Wait: patience})
			established := func(on *hand) int {
				out := t.sh(on, fmt.Sprintf("conntrack -L -p tcp -s %s 2>&1", t.addr(guest)))
				return strings.Count(out, " ESTABLISHED ")
			}
			if n, left := established(node), established(near); n < deserted || left > 0 {
				t.Fatalf("control: of %d connections that were deserted, node2 has %d for open and node1 %d", deserted, n, left)
			}
			// So it goes on until the table is full. Datagrams get there sooner, where
			// node1 is made to forget them.
			refused := false
			for i := 0; !refused && number("nf_conntrack_count") <= 2*bound; i++ {
				t.must(t.hand(guest), order{Do: "flows", To: netip.AddrPortFrom(t.addr(friend), 1), Count: min(bound/4, 60_000), Data: []byte("x"), Wait: patience})
				t.forget(near, guest)
				refused = !t.gets(guest, friend)
			}
			for began := time.Now(); !refused && time.Since(began) < soon; {
				refused = !t.gets(guest, friend)
			}
			if !refused {
				t.breach("one that has %d of the %d connections that node2 can track may begin more", number("nf_conntrack_count"), mostOfFlows*bound)
			}
			if metrics, err := t.ask("node1", "/metrics"); err != nil || !strings.Contains(metrics, "\nweft_limited_pods 0\n") {
				t.Fatalf("control: its own node limits it, or does not say: %v", err)
			}
			t.arrives(friend.arriving, "what another pod sends", func(word string) {
				t.must(t.hand(other), order{Do: "udp", To: t.at(friend, port), Data: []byte(word)})
			})
			eventually(t, func() error {
				out, err := t.weft(t.T, "", "status") // which fails where there is a problem
				if strings.Contains(out, t.addr(guest).String()+" on node1 has begun more than a quarter") {
					return nil
				}
				return fmt.Errorf("weft status does not say who it is: %v:\n%s", err, out)
			})
			// Nor has it been made to look as if others were to blame.
			if !t.gets(friend, other) {
				t.breach("who got the connections may begin none")
			}
		},
	},
	{
		name: "label_sets", by: tenant, ip: noFamily, left: noPolicies,
		must: "make Tags without end by changing one pod's labels",
		try: func(t *trial) {
			r, guest := t.registry(), t.guest("node1")
			tagged := func(value string) bool {
				all, _, err := r.List(t.Context(), api.TagKind)
				if err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(all, func(o registry.Object) bool { return o.(*api.Tag).Spec.Labels["x"] == value })
			}
			made, refused, start := 0, 0, time.Now()
			bound := func() int { return mostTags + int(time.Since(start).Seconds()) }
			for i := 0; made <= bound() && refused < 5; i++ {
				value := strconv.Itoa(i)
				_, err := registry.Modify(t.Context(), r, api.Pod, registry.Key{Namespace: "default", Name: guest.name}, func(p *corev1.Pod) error {
					p.Labels = map[string]string{"x": value}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for !tagged(value) && time.Since(began) < tagSoon {
					time.Sleep(5 * time.Millisecond)
				}
				if tagged(value) {
					made++
				} else {
					refused++
				}
			}
			if made == 0 {
				t.Fatal("control: no change of labels made a Tag")
			}
			t.controls++
			if made > bound() {
				t.breach("changes of one pod's labels made %d Tags", made)
			}
		},
	},
	{
		name: "hostile_names", by: tenant, ip: noFamily, left: noPolicies,
		must: "keep others' policies from being enforced by names, labels and ports of every allowed length and form",
		try: func(t *trial) {
			long := strings.Repeat("a", 63)
			t.guestIn("tenant", map[string]string{long + "." + long + "." + long + "/" + long: long, "a": "", "b": "A_b-c.D"})
			var yaml strings.Builder
			names := []string{strings.Repeat("a", 253), "a", strings.Repeat("a.", 126) + "a", "0"}
			for _, name := range names {
				fmt.Fprintf(&yaml, `---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: "%s", namespace: tenant}
spec:
  podSelector: {}
  ingress:
  - from: [{podSelector: {matchExpressions: [{key: "%s", operator: NotIn, values: ["%s", ""]}]}}, {namespaceSelector: {}}]
    ports: [{port: a-b-c-d-e-f-g-h}, {port: 1, endPort: 65535, protocol: SCTP}]
  egress: [{to: [{ipBlock: {cidr: "0.0.0.0/0", except: ["0.0.0.0/1", "128.0.0.0/2"]}}, {ipBlock: {cidr: "::/0"}}]}]
`, name, long, long)
			}
			t.apply(t.T, yaml.String())
			t.Cleanup(func() {
				for _, name := range names {
					if out, err := t.weft(t.T, "", "delete", "networkpolicy", name, "-n", "tenant"); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				}
			})
			t.planHas(t.T, "node1", "NetworkPolicy tenant/0")
			t.revoked()
		},
	},
	{
		name: "policy_of_43_kilobytes", by: tenant, ip: noFamily, left: noPolicies,
		must: "keep another tenant's policy from being enforced, or pods from starting, by a policy that is dear",
		try: func(t *trial) {
			t.guestIn("tenant", map[string]string{"app": "bomb"})
			var yaml strings.Builder
			yaml.WriteString("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: bomb, namespace: tenant}\nspec:\n  podSelector: {matchLabels: {app: bomb}}\n  ingress:\n")
			for i := range 400 {
				fmt.Fprintf(&yaml, "  - from: [{ipBlock: {cidr: 0.0.0.0/0, except: [%d.%d.%d.0/24]}}]\n    ports: [{port: %d}]\n", 20+i%100, i%251, i%13, 1000+i)
			}
			t.apply(t.T, yaml.String())
			t.Cleanup(func() {
				if out, err := t.weft(t.T, "", "delete", "networkpolicy", "bomb", "-n", "tenant"); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				// Whatever the agent is still at, it begins anew.
				if len(t.breaches) > 0 {
					t.without("node1")()
				}
			})
			t.revoked()
			started := make(chan error, 1)
			m := t.sandbox("node1")
			go func() { started <- t.attach(m, 0, 0) }()
			select {
			case err := <-started:
				if err != nil {
					t.breach("a pod does not start: %v", err)
				}
			case <-time.After(soon):
				t.breach("a pod does not start within %s", soon)
				if err := <-started; err != nil {
					t.Logf("nor later: %v", err)
				}
			}
		},
	},
}

// forget has a node track none of the connections that a pod began. That one ended by itself meanwhile is an error to conntrack.
func (t *trial) forget(on *hand, began *machine) {
	t.Helper()
	t.sh(on, fmt.Sprintf("conntrack -D -s %s >/dev/null 2>&1 || true", t.addr(began)))
}

// gets reports whether a datagram of a pod's gets to a machine, with which it has
// no connection. That none does is said after a second and more: some are lost
// while a pod has just begun too many at a time, and some come late.
func (t *trial) gets(from, to *machine) bool {
	t.Helper()
	var sent []string
	for range 10 {
		word := newWord()
		sent = append(sent, word)
		// A port of its own is that of no connection, whatever the sender's own port.
		t.must(t.hand(from), order{Do: "udp", To: t.at(to, newPort()), Data: []byte(word)})
		for range 20 {
			if slices.ContainsFunc(sent, func(word string) bool { return to.arriving.saw(word) != nil }) {
				return true
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return false
}

var ports atomic.Uint32

// newPort returns one that it has not returned in the last 10,000 times, and that
// nobody listens at.
func newPort() uint16 { return uint16(20_000 + ports.Add(1)%10_000) }

// soon is when another tenant's change must hold, on a machine that has much
// else to do. What it takes where there is nothing to wait for is measured in
// bench.
const soon = 20 * time.Second

// revoked has another tenant shut a pod that all could reach, and says that the
// attack succeeded if that does not hold soon.
func (t *trial) revoked() {
	t.Helper()
	near := t.pods["near"]
	sender := t.owner(t.pods["mallory"])
	t.arrives(near.arriving, "what mallory sends to near", func(word string) {
		t.must(sender, order{Do: "udp", To: netip.AddrPortFrom(near.v4, port), Data: []byte(word)})
	})
	_, err := registry.Modify(context.Background(), t.registry(), api.Pod, registry.Key{Namespace: "default", Name: near.name}, func(p *corev1.Pod) error {
		p.Labels = map[string]string{"app": "shut"} // which a policy selects
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, err := registry.Modify(context.Background(), t.registry(), api.Pod, registry.Key{Namespace: "default", Name: near.name}, func(p *corev1.Pod) error {
			p.Labels = nil
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if len(t.breaches) > 0 {
			return
		}
		t.arrives(near.arriving, "what mallory sends to near, which is open again", func(word string) {
			t.must(sender, order{Do: "udp", To: netip.AddrPortFrom(near.v4, port), Data: []byte(word)})
		})
	}()
	shut := false
	for began := time.Now(); !shut && time.Since(began) < soon; {
		word := newWord()
		t.must(sender, order{Do: "udp", To: netip.AddrPortFrom(near.v4, port), Data: []byte(word)})
		time.Sleep(50 * time.Millisecond)
		shut = near.arriving.saw(word) == nil
	}
	if !shut {
		t.breach("another tenant's change does not hold after %s", soon)
	}
}

// device is the name of a pod's interface on its node.
func (t *trial) device(m *machine) string {
	t.Helper()
	for k, e := range t.planOf(t.T, m.node).Endpoints.All() {
		for _, a := range e.Addresses {
			if a == m.v4 {
				return k.Interface
			}
		}
	}
	t.Fatalf("the plan of %s has no endpoint with %s", m.node, m.v4)
	return ""
}
