package attack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weftnet/weft/api"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/registry"
)

// balancerAttacks are those on addresses of Services of type LoadBalancer, for which a node
// answers on the nodes' network. node1 alone may answer for those that are attacked.
var balancerAttacks = []attack{
	{
		name: "arp_for_a_balanced_address", by: podWithRaw, ip: onlyIPv4,
		must: "say in ARP, where others than his node hear it, that an address of a load balancer is his, nor get what is for it",
		try: func(t *trial) {
			b, mallory, node := t.balanced(), t.pods["mallory"], t.nodes["node1"]
			w := t.watch(t.stranger.arriving)
			for _, to := range []plan.MAC{broadcast, mallory.gateway, node.mac, t.stranger.mac} {
				for _, claim := range [][]byte{
					arp(2, mallory.mac, to, mallory.mac, b.address, to, b.address),
					arp(1, mallory.mac, to, mallory.mac, b.address, plan.MAC{}, b.address),
					arp(2, mallory.mac, to, mallory.mac, b.address, t.stranger.mac, t.stranger.v4),
				} {
					w.forbid("ARP to "+to.String(), func(word string) { t.frames(t.hand(mallory), append(claim, word...)) })
				}
			}
			w.control("ARP of his node", func(word string) {
				t.frames(t.owner(node), append(arp(1, node.mac, broadcast, node.mac, node.v4, plan.MAC{}, node.v4), word...))
			})
			b.reachesFar()
		},
	},
	{
		name: "neighbour_for_a_balanced_address", by: podWithRaw, ip: onlyIPv6,
		must: "say in neighbour discovery, where others than his node hear it, that an address of a load balancer is his, nor get what is for it",
		try: func(t *trial) {
			b, mallory, node := t.balanced(), t.pods["mallory"], t.nodes["node1"]
			everybody := netip.MustParseAddr("ff02::1")
			w := t.watch(t.stranger.arriving)
			// What a router has forwarded nobody believes (RFC 4861, section 7.1.2).
			w.counts = func(in []byte) bool { return in[14+7] == 255 }
			for _, from := range []netip.Addr{b.address, mallory.v6, linkLocal(mallory.mac)} {
				for _, to := range []netip.Addr{everybody, t.stranger.v6, node.v6} {
					for _, mac := range []plan.MAC{mallory.gateway, allNodes} {
						w.forbid("as "+from.String()+" to "+to.String(), func(word string) {
							t.frames(t.hand(mallory), frame(mallory.mac, mac, marked(from, to, b.address, mallory.mac, word)))
						})
					}
				}
			}
			w.control("what his node says of its own address", func(word string) {
				t.frames(t.owner(node), frame(node.mac, allNodes, marked(linkLocal(node.mac), everybody, node.v6, node.mac, word)))
			})
			b.reachesFar()
		},
	},
	{
		name: "heartbeats_of_a_pod", by: podWithRaw, ip: both,
		must: "be a node that has an address of a load balancer, by frames of the EtherType that nodes talk by",
		try: func(t *trial) {
			b, mallory := t.balanced(), t.pods["mallory"]
			h := t.hand(mallory)
			w := t.watch(t.stranger.arriving)
			w.forbid("a frame of the nodes' EtherType", func(word string) {
				for _, to := range []plan.MAC{heartbeats, broadcast, mallory.gateway, t.stranger.mac} {
					t.frames(h, ethernet(mallory.mac, to, etherHeartbeat, []byte(word)))
				}
			})
			w.control("the same by his node", func(word string) {
				t.frames(t.owner(t.nodes["node1"]), ethernet(t.nodes["node1"].mac, heartbeats, etherHeartbeat, []byte(word)))
			})
			// Where they come from the nodes' network, they do count.
			forged := b.heartbeats("node2")
			if !b.leftWhile(func() { t.frames(t.owner(t.stranger), forged...) }) {
				t.Fatal("control: heartbeats on the nodes' network do not have node1 leave the address")
			}
			t.controls++
			if !b.keptWhile(func() { t.frames(h, forged...) }) {
				t.breach("node1 does not answer for %s while he says that node2 does", b.address)
			}
		},
	},
	{
		name: "heartbeats_on_the_underlay", by: onUnderlay, ip: both,
		must: "have a node leave an address of a load balancer, by frames that say that another node has it",
		try: func(t *trial) {
			b := t.balanced()
			t.controls++ // the node answers for it
			forged := b.heartbeats("node2")
			if b.leftWhile(func() { t.frames(t.hand(t.stranger), forged...) }) {
				t.breach("node1 left %s", b.address)
			}
		},
	},
	{
		name: "a_balanced_address_on_the_underlay", by: onUnderlay, ip: both,
		must: "take an address of a load balancer by having it",
		try: func(t *trial) {
			b := t.balanced()
			t.controls++ // the node answers for it
			if b.leftWhile(b.has()) {
				t.breach("node1 left %s", b.address)
			}
		},
	},
	{
		name: "an_untold_host_with_a_balanced_address", by: onUnderlay, ip: both,
		must: "have an address of a load balancer without that weft status says so",
		try: func(t *trial) {
			b := t.balanced()
			told := func() error {
				said, _ := t.weft(t, "", "status") // it ends with 1 where there are problems
				if want := fmt.Sprintf("%s (%s)", b.address, t.stranger.mac); !strings.Contains(said, want) {
					return fmt.Errorf("weft status does not say %q: %s", want, said)
				}
				return nil
			}
			if told() == nil {
				t.Fatal("control: weft status tells of who does not have it")
			}
			t.controls++
			if err := t.within(b.has(), told); err != nil {
				t.breach("%v", err)
			}
		},
	},
	{
		name: "an_address_of_anothers_pool", by: tenant, ip: both,
		must: "have a Service of his namespace get an address of an AddressPool that is for other namespaces",
		try: func(t *trial) {
			t.pool()
			a := t.free()
			ask := fmt.Sprintf("type: LoadBalancer, loadBalancerIP: %q", a)
			his := t.service("tenant", ask, t.pods["mallory"])
			refused := false
			eventually(t, func() error {
				svc := his()
				if len(ingress(svc)) > 0 {
					return nil
				}
				c := meta.FindStatusCondition(svc.Status.Conditions, "weft.network/Pooled")
				if c == nil || !strings.Contains(c.Message, "not for namespace tenant") {
					return fmt.Errorf("nobody says why he does not get %s: %v", a, svc.Status.Conditions)
				}
				refused = true
				return nil
			})
			if !refused {
				t.controls++ // it was given
				t.breach("he has %v", ingress(his()))
				return
			}
			owners := t.service("default", ask, t.pods["far"])
			eventually(t, func() error {
				if have := ingress(owners()); !slices.Contains(have, a) {
					return fmt.Errorf("control: a Service of a namespace that the pool is for does not get %s, but %v", a, have)
				}
				return nil
			})
			t.controls++
			if addresses := ingress(his()); len(addresses) > 0 {
				t.breach("he has %v", addresses)
			}
		},
	},
	{
		name: "anothers_balanced_address_in_externalIPs", by: tenant, ip: both,
		must: "get what is for an address of a load balancer by a Service that has it among its externalIPs, be it the older one",
		try: func(t *trial) {
			a, free := t.free(), t.pick("203.0.113.7", "2001:db8:7::7")
			t.service("tenant", fmt.Sprintf("externalIPs: [%q, %q]", a, free), t.pods["mallory"])
			t.claimed(a, free)
		},
	},
	{
		name: "anothers_balanced_address_in_a_status", by: tenant, ip: both,
		must: "get what is for an address of a load balancer by a Service that says in its status that it was given it, be it the older one",
		try: func(t *trial) {
			a, free := t.free(), t.pick("203.0.113.8", "2001:db8:7::8")
			svc := t.service("tenant", "type: LoadBalancer, loadBalancerClass: attack.test/none", t.pods["mallory"])()
			_, err := registry.Modify(t.Context(), t.registry(), api.Service, registry.KeyOf(svc), func(svc *corev1.Service) error {
				svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.String()}, {IP: free.String()}}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			t.claimed(a, free)
		},
	},
}

// etherHeartbeat is the EtherType of what nodes say to each other about addresses, and heartbeats
// the group that hears it.
const etherHeartbeat = 0x88b5

var heartbeats = plan.MAC{0x03, 'w', 'e', 'f', 't', 0x01}

// allNodes is the group of ff02::1 (RFC 2464, section 7).
var allNodes = plan.MAC{0x33, 0x33, 0, 0, 0, 1}

// marked is an advertisement that carries a word, in an option that nobody knows (RFC 4727).
func marked(from, to, target netip.Addr, mac plan.MAC, word string) []byte {
	option := append([]byte{253, 3}, word...)
	body := append(append(target.AsSlice(), 2, 1), mac[:]...)
	return discovery.icmp(from, to, 136, 0, 1<<29, append(body, append(option, make([]byte, 24-len(option))...)...))
}

// balanced is an address that a Service of namespace default was given, for which node1 answers.
// What is sent there comes to far.
type balanced struct {
	*trial
	address netip.Addr
	// rounds are in how many something had node1 leave the address.
	rounds int
}

// pool has an AddressPool for namespace default, and node1 alone announce its addresses.
func (t *trial) pool() {
	t.Helper()
	t.apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: tenant}
---
apiVersion: weft.network/v1
kind: AddressPool
metadata: {name: attacked}
spec:
  addresses: [172.30.7.1-172.30.7.254, "fd30::7:0/112"]
  namespaces: {names: [default]}
  nodes: {matchLabels: {attacked: "true"}}
`)
	_, err := registry.Modify(t.Context(), t.registry(), api.Node, registry.Key{Name: "node1"}, func(n *corev1.Node) error {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels["attacked"] = "true"
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// taken counts the addresses of the pool that were asked for. None is asked for twice, as nodes
// leave alone for a while what somebody else had.
var taken atomic.Uint32

// free is an address of the pool that no Service has had.
func (t *trial) free() netip.Addr {
	n := byte(taken.Add(1))
	b := t.pick("172.30.7.0", "fd30::7:0").AsSlice()
	b[len(b)-1] = n
	a, _ := netip.AddrFromSlice(b)
	return a
}

// service has a Service for UDP with a part of a spec, and one endpoint, until the trial ends, and
// returns what reads it.
func (t *trial) service(namespace, spec string, endpoint *machine) (read func() *corev1.Service) {
	t.Helper()
	name, family := fmt.Sprintf("balanced-%d", words.Add(1)), "IPv4"
	if t.v6 {
		family = "IPv6"
	}
	t.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s}
spec: {%[3]s, ipFamilies: [%[4]s], ports: [{port: %[5]d, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[4]s
ports: [{name: "", port: %[5]d, protocol: UDP}]
endpoints: [{addresses: [%[6]q], nodeName: %[7]s}]
`, name, namespace, spec, family, port, t.addr(endpoint), endpoint.node))
	r, key := t.registry(), registry.Key{Namespace: namespace, Name: name}
	t.Cleanup(func() {
		if err := errors.Join(r.Delete(context.Background(), api.Service, key, ""), r.Delete(context.Background(), api.EndpointSlice, key, "")); err != nil {
			t.Error(err)
		}
	})
	return func() *corev1.Service {
		t.Helper()
		svc, err := r.Get(t.Context(), api.Service, key)
		if err != nil {
			t.Fatal(err)
		}
		return svc.(*corev1.Service)
	}
}

// ingress are the addresses that a Service was given.
func ingress(svc *corev1.Service) (addresses []netip.Addr) {
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			addresses = append(addresses, a)
		}
	}
	return addresses
}

// balanced gives a Service an address, for the trial, which is reached from the nodes' network.
func (t *trial) balanced() *balanced {
	t.Helper()
	t.pool()
	return t.balancedAt(t.free())
}

// balancedAt is balanced for a certain address of the pool.
func (t *trial) balancedAt(a netip.Addr) *balanced {
	t.Helper()
	b := &balanced{trial: t, address: a}
	t.service("default", fmt.Sprintf("type: LoadBalancer, loadBalancerIP: %q", b.address), t.pods["far"])
	eventually(t, b.announced())
	b.reachesFar()
	return b
}

// announced returns what looks whether node1 says that it answers for the address.
func (b *balanced) announced() func() error {
	r := b.registry()
	return func() error {
		node, err := r.Get(b.Context(), api.Node, registry.Key{Name: "node1"})
		if err != nil {
			return err
		}
		if addresses, _ := api.Announces(node.(*corev1.Node)); !slices.Contains(addresses, b.address) {
			return fmt.Errorf("node1 answers for %v, and not for %s", addresses, b.address)
		}
		return nil
	}
}

// reachesFar says that the attack succeeded if what pods and others send to the address comes to
// mallory. That it comes to far is the control.
func (b *balanced) reachesFar() {
	b.Helper()
	mallory := b.pods["mallory"].arriving
	for _, from := range []*machine{b.stranger, b.pods["near"], b.nodes["node3"]} {
		var sent []string
		b.arrives(b.pods["far"].arriving, "what "+from.name+" sends to the load balancer", func(word string) {
			sent = append(sent, word)
			b.must(b.owner(from), order{Do: "udp", To: netip.AddrPortFrom(b.address, port), Data: []byte(word)})
		})
		if slices.ContainsFunc(sent, func(word string) bool { return mallory.saw(word) != nil }) {
			b.breach("what %s sends to the load balancer comes to him", from.name)
		}
	}
}

// claimed says that the attack succeeded if mallory gets what is sent to an address of the pool that
// his Service claims, before another one was given it or after. What is sent to another address
// that his Service claims, and nobody else, he does get.
func (t *trial) claimed(a, free netip.Addr) {
	t.Helper()
	t.pool()
	try := func() {
		t.Helper()
		for _, from := range []*machine{t.pods["near"], t.nodes["node1"], t.nodes["node3"]} {
			send := func(to netip.Addr) func(string) {
				return func(word string) {
					t.must(t.owner(from), order{Do: "udp", To: netip.AddrPortFrom(to, port), Data: []byte(word)})
				}
			}
			what := "what " + from.name + " sends to "
			w := t.watch(t.pods["mallory"].arriving)
			t.arrives(w.at, what+"the address that nobody else has", send(free))
			w.forbid(what+"the address of the pool", send(a))
			w.control(what+"the address that nobody else has", send(free))
		}
	}
	try()
	t.balancedAt(a)
	try()
}

// heartbeats are frames that say that a node answers for the address as well as any could.
func (b *balanced) heartbeats(node string) (frames [][]byte) {
	claim := append([]byte("weft\x01"), byte(len(node)))
	claim = wire.AppendUint16(append(claim, node...), 1)
	var family byte
	if b.v6 {
		family = 1 << 7
	}
	claim = append(append(claim, family, 0), b.address.AsSlice()...)
	for _, from := range []plan.MAC{b.nodes[node].mac, b.pods["mallory"].mac, b.stranger.mac} {
		for _, to := range []plan.MAC{heartbeats, broadcast, b.nodes["node1"].mac, b.pods["mallory"].gateway} {
			frames = append(frames, ethernet(from, to, etherHeartbeat, append(claim, make([]byte, 60)...)))
		}
	}
	return frames
}

// has gives the address to the stranger, and returns what tells everybody that he has it.
func (b *balanced) has() (tell func()) {
	b.Helper()
	h, m := b.owner(b.stranger), b.stranger
	b.run(h, "ip", "address", "add", b.address.String(), "dev", "eth0", "nodad")
	b.Cleanup(func() { b.run(h, "ip", "address", "del", b.address.String(), "dev", "eth0") })
	return func() {
		if b.v6 {
			b.frames(h, frame(m.mac, allNodes, advertisement(b.address, netip.MustParseAddr("ff02::1"), b.address, m.mac)))
			return
		}
		b.frames(h, arp(1, m.mac, broadcast, m.mac, b.address, plan.MAC{}, b.address), arp(2, m.mac, broadcast, m.mac, b.address, broadcast, b.address))
	}
}

// leftWhile reports whether node1 answers for the address no more while something goes on.
func (b *balanced) leftWhile(attack func()) bool {
	b.Helper()
	answers := b.announced()
	return b.within(attack, func() error {
		if b.rounds++; answers() == nil {
			return errors.New("it still does")
		}
		return nil
	}) == nil
}

// keptWhile reports whether node1 answers for the address while something goes on for longer than
// what had it leave the address.
func (b *balanced) keptWhile(attack func()) bool {
	b.Helper()
	answers, rounds := b.announced(), 2*b.rounds+20
	eventually(b, answers)
	return b.within(attack, func() error {
		if rounds--; rounds > 0 {
			return errors.New("it goes on")
		}
		return answers()
	}) == nil
}

// within does something again and again until something is so, and returns why it is not in the end.
func (t *trial) within(again func(), is func() error) (err error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if again(); t.Failed() {
			t.FailNow()
		}
		if err = is(); err == nil || time.Since(began) > patience {
			return err
		}
	}
}
