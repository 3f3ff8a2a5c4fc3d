package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/internal/sysctl"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// sourceBench is three nodes with a tunnel, or with next hops, on which nobody
// may send from what is not its own, and somebody tries.
type sourceBench struct {
	*topology
	plans               map[string]*plan.Plan
	node1, node2, node3 *node
	// victim and mate are pods of node1, peer and other pods of node2, third
	// one of node3.
	victim, mate, peer, other, third *pod
}

func (s *suite) newSourceBench(t *testing.T, tunnel, ipv4 bool) *sourceBench {
	t.Helper()
	return s.newSourceBenchOf(t, plantest.Shape{IPv4: ipv4, Tunnel: tunnel, Drop: true, Gateway: true, Masquerade: ipv4})
}

// newSourceBenchOf makes one of a shape, but for what all have in common.
func (s *suite) newSourceBenchOf(t *testing.T, shape plantest.Shape) *sourceBench {
	t.Helper()
	shape.Endpoints, shape.IPv6, shape.NodesThroughTunnel = []int{2, 2, 1}, s.able.IPv6, true
	plans := shape.Plans()
	for name, p := range plans {
		q := *p
		for k, e := range p.Endpoints.All() {
			e.AntiSpoof = true
			q.Endpoints = q.Endpoints.Set(k, e)
		}
		plans[name] = &q
	}
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &sourceBench{topology: newTopology(t, s.make), plans: plans}
	b.load(plans)
	b.node1, b.node2, b.node3 = b.nodes["node1"], b.nodes["node2"], b.nodes["node3"]
	b.victim, b.mate = b.node1.pods["weft0101"], b.node1.pods["weft0102"]
	b.peer, b.other, b.third = b.node2.pods["weft0201"], b.node2.pods["weft0202"], b.node3.pods["weft0301"]
	for _, h := range b.hosts() {
		b.listen(h, service{plan.UDP, sourcePort})
		b.listenICMP(h)
	}
	return b
}

const sourcePort = 8080

// trial is something that somebody sends. It must not arrive, for a reason, or
// must, where there is none.
type trial struct {
	what   string
	reason datapath.Reason
	at     *node
	send   func(word string) error
}

// run sends all that must not arrive, and then what must. All take the same
// ways, so that when this has arrived, the others would have, too.
func (b *sourceBench) run(t *testing.T, trials []trial) {
	t.Helper()
	before := b.dropped(t)
	refused := map[string]<-chan arrival{}
	expected := map[*node]map[datapath.Reason]int{}
	for _, k := range trials {
		if k.reason == "" {
			continue
		}
		word, arrived := b.expect()
		if err := k.send(word); err != nil {
			t.Errorf("%s: %v", k.what, err)
		}
		refused[k.what] = arrived
		if expected[k.at] == nil {
			expected[k.at] = map[datapath.Reason]int{}
		}
		expected[k.at][k.reason]++
	}
	for _, k := range trials {
		if k.reason != "" {
			continue
		}
		word, arrived := b.expect()
		if err := k.send(word); err != nil {
			t.Errorf("%s: %v", k.what, err)
		}
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Errorf("%s: it does not arrive", k.what)
		}
	}
	for what, arrived := range refused {
		select {
		case got := <-arrived:
			t.Errorf("%s: it arrived at %s", what, got.receiver)
		default:
		}
	}
	after := b.dropped(t)
	for n, reasons := range expected {
		if after[n] == nil {
			continue
		}
		for reason, count := range reasons {
			if got := after[n][reason] - before[n][reason]; got < uint64(count) {
				t.Errorf("%s counts %d packets dropped for reason %s; expected %d", n.name, got, reason, count)
			}
		}
	}
}

// dropped returns what data planes count, of those that do.
func (b *topology) dropped(t *testing.T) map[*node]map[datapath.Reason]uint64 {
	t.Helper()
	all := map[*node]map[datapath.Reason]uint64{}
	for _, n := range b.nodes {
		o, ok := n.dataPlane.(datapath.Observer)
		if !ok {
			continue
		}
		counts, err := o.Dropped()
		must(t, err)
		all[n] = map[datapath.Reason]uint64{}
		for k, packets := range counts {
			all[n][k.Reason] += packets
		}
	}
	return all
}

func (s *suite) sources(t *testing.T) {
	t.Run("from outside", s.fromOutside)
	t.Run("from next hops", s.fromNextHops)
	for _, ipv4 := range []bool{true, false} {
		over := map[bool]string{true: "", false: " over IPv6"}[ipv4]
		t.Run("through the tunnel"+over, func(t *testing.T) { s.throughTunnel(t, ipv4, 0) })
		t.Run("through the tunnel from larger subnets"+over, func(t *testing.T) { s.throughTunnel(t, ipv4, 2) })
		t.Run("into the tunnel"+over, func(t *testing.T) { s.intoTunnel(t, ipv4) })
		t.Run("path MTU of the tunnel"+over, func(t *testing.T) { s.pathsToPeers(t, ipv4) })
	}
	t.Run("to where no route leads", s.unrouted)
	t.Run("translated tunnel", s.translatedTunnel)
	t.Run("nested tunnel", s.nestedTunnel)
	t.Run("masqueraded tunnel", s.masqueradedTunnel)
	t.Run("one way", s.oneWay)
	t.Run("discovery", s.discovery)
	t.Run("loopback", s.loopback)
	t.Run("ICMP errors", s.icmpErrors)
}

// unlisted are addresses in the underlay that no plan has.
var unlisted = []netip.Prefix{netip.MustParsePrefix("172.30.0.77/24"), netip.MustParsePrefix("fd01::77/64")}

// elsewhere are addresses in a network that no node is in.
var elsewhere = []netip.Prefix{netip.MustParsePrefix("172.31.0.77/24"), netip.MustParsePrefix("fd02::77/64")}

// link returns the address of a host's interface.
func (h *host) link(t *testing.T, name string) plan.MAC {
	t.Helper()
	var mac plan.MAC
	must(t, h.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			mac = plan.MAC(l.Attrs().HardwareAddr)
		}
		return err
	}))
	return mac
}

// fromWire sends a packet from the underlay to a node.
func (b *sourceBench) fromWire(t *testing.T, to *node, packet []byte) error {
	return b.out.inject("br0", to.link(t, "eth0"), packet)
}

// fromPod sends a packet from a pod to its node.
func (b *sourceBench) fromPod(n *node, p *pod, packet []byte) error {
	return p.inject("eth0", plan.MACOf(n.plan.Local.Pools[0].Gateway), packet)
}

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, sourcePort) }

// of returns the one of some addresses that is of a's family.
func of(a netip.Addr, addresses ...netip.Addr) netip.Addr {
	for _, x := range addresses {
		if x.Is4() == a.Is4() {
			return x
		}
	}
	panic(fmt.Sprintf("none of %v is of the family of %s", addresses, a))
}

// fromOutside checks that what claims to be of the cluster does not come from
// the underlay.
func (s *suite) fromOutside(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	var trials []trial
	for i, to := range b.victim.addresses {
		wire := func(what string, reason datapath.Reason, from, to netip.Addr) {
			trials = append(trials, trial{fmt.Sprintf("%s, %s to %s", what, from, to), reason, b.node1, func(word string) error {
				return b.fromWire(t, b.node1, udp(at(from), at(to), word))
			}})
		}
		nobody := netip.MustParseAddr([]string{"10.1.99.9", "fd00:99::9"}[i])
		for _, to := range []netip.Addr{to, of(to, b.node1.plan.Local.Addresses...)} {
			wire("a pod of another node", datapath.ForgedSource, b.peer.addresses[i], to)
			wire("a pod of the node", datapath.ForgedSource, b.mate.addresses[i], to)
			wire("the receiver itself", datapath.ForgedSource, b.victim.addresses[i], to)
			wire("nobody in the cluster", datapath.ForgedSource, nobody, to)
			wire("the other node's gateway", datapath.ForgedSource, of(to, b.node2.plan.Local.Pools[0].Gateway, b.node2.plan.Local.Pools[len(b.node2.plan.Local.Pools)-1].Gateway), to)
			if to.Is6() {
				wire("a pod's IPv4 address in IPv6's clothes", datapath.ForgedSource, netip.AddrFrom16(b.peer.addresses[0].As16()), to)
			}
			wire("the outside", "", of(to, plantest.Outside...), to)
			wire("the router", "", routers[i].Addr(), to)
		}
	}
	b.run(t, trials)
}

// fromNextHops does so where nodes have no tunnel: a source comes from a link
// on which its next hop is. Of two links in one network that may be either.
func (s *suite) fromNextHops(t *testing.T) {
	b := s.newSourceBench(t, false, true)
	further := map[string]plan.MAC{}
	for _, name := range []string{"eth1", "eth2"} {
		must(t, b.node1.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.out.file.Fd())})
		}))
		must(t, b.node1.Do(func() error { return setUp(name) }))
		must(t, b.out.Do(func() error { return setUp(name) }))
		must(t, b.node1.Do(func() error { return waitUp(name) }))
		further[name] = b.node1.link(t, name)
	}
	for i, p := range unlisted {
		must(t, b.node1.Do(func() error { return addAddress("eth2", p) }))
		must(t, b.node1.Do(func() error { return addAddress("eth1", elsewhere[i]) }))
	}
	_, err := b.node1.dataPlane.Repair(t.Context())
	must(t, err)
	var trials []trial
	for i, to := range b.victim.addresses {
		add := func(what string, reason datapath.Reason, from netip.Addr, send func(packet []byte) error) {
			trials = append(trials, trial{fmt.Sprintf("%s, %s to %s", what, from, to), reason, b.node1, func(word string) error {
				return send(udp(at(from), at(to), word))
			}})
		}
		wire := func(packet []byte) error { return b.fromWire(t, b.node1, packet) }
		add("a pod of the node", datapath.ForgedSource, b.mate.addresses[i], wire)
		from := func(link string) func(packet []byte) error {
			return func(packet []byte) error { return b.out.inject(link, further[link], packet) }
		}
		add("a pod of another node, from a link in another network", datapath.ForgedSource, b.peer.addresses[i], from("eth1"))
		add("a pod of another node, from another link in the same network", "", b.peer.addresses[i], from("eth2"))
		add("a pod of the node, from another link in the same network", datapath.ForgedSource, b.mate.addresses[i], from("eth2"))
		add("a pod of another node", "", b.peer.addresses[i], func(packet []byte) error { return b.fromPod(b.node2, b.peer, packet) })
		add("the outside", "", of(to, plantest.Outside...), wire)
	}
	b.run(t, trials)
}

// unrouted checks that a node without a route to everywhere sends nothing out that
// comes from other nodes' pods, or out of the tunnel, and that it is a router for
// others, and for nodes.
func (s *suite) unrouted(t *testing.T) {
	for _, tunnel := range []bool{false, true} {
		t.Run(map[bool]string{false: "from next hops", true: "out of the tunnel"}[tunnel], func(t *testing.T) {
			b := s.newSourceBenchOf(t, plantest.Shape{IPv4: true, Tunnel: tunnel})
			var trials []trial
			for i := range b.peer.addresses {
				to := outside[i]
				add := func(what string, reason datapath.Reason, from netip.Addr, send func(packet []byte) error) {
					trials = append(trials, trial{fmt.Sprintf("%s, %s to %s", what, from, to.Addr()), reason, b.node1, func(word string) error {
						return send(udp(at(from), at(to.Addr()), word))
					}})
				}
				wire := func(packet []byte) error { return b.fromWire(t, b.node1, packet) }
				add("another machine", "", unlisted[i].Addr(), wire)
				add("another node", "", of(to.Addr(), b.node2.plan.Local.Addresses...), wire)
				if !tunnel {
					add("another node's pod", datapath.Unrouted, b.peer.addresses[i], wire)
					continue
				}
				mine, theirs := b.node1.plan.Local.Tunnels[0], b.node2.plan.Local.Tunnels[0]
				through := func(packet []byte) error {
					return b.fromPeer(b.node2, mine.VTEP, frame(theirs.MAC, mine.MAC, packet))
				}
				add("another node's pod", datapath.Unrouted, b.peer.addresses[i], through)
				add("another node", datapath.Unrouted, of(to.Addr(), b.node2.plan.Local.Addresses...), through)
			}
			b.run(t, trials)
			if !tunnel {
				b.answersThrough(t)
			}
		})
	}
}

// answersThrough checks that node1 forwards what a pod of node2 answers to the
// outside, which asks through node1.
func (b *sourceBench) answersThrough(t *testing.T) {
	p := *b.node2.plan
	for i := range b.peer.addresses {
		asks := outside[i]
		p.Routes = p.Routes.Set(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: asks}, plan.Route{Way: plan.ToNextHop, Peers: []string{b.node1.name}})
		must(t, b.out.Do(func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: ipNet(netip.PrefixFrom(b.peer.addresses[i], asks.Bits())),
				Gw: of(asks.Addr(), b.node1.plan.Local.Addresses...).AsSlice()})
		}))
	}
	b.apply(b.node2, &p)
	for i := range b.peer.addresses {
		asks := outside[i]
		word, _ := b.expect()
		c, err := b.out.dial("udp", asks.Addr(), at(b.peer.addresses[i]), patience)
		must(t, err)
		err = converse(c, word)
		c.Close()
		if err != nil {
			t.Errorf("%s asks %s through %s: %v", asks.Addr(), b.peer.addresses[i], b.node1.name, err)
		}
	}
}

// oneWay checks that datagrams which nobody answers are of one connection, however
// many there are: who sends them begins one; and that resets begin none.
func (s *suite) oneWay(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	var most int
	must(t, b.node1.Do(func() error {
		text, err := sysctl.Get("netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		most, err = strconv.Atoi(text)
		return err
	}))
	const nobodys = 9 // there no pod listens
	before := b.dropped(t)
	// A reset begins nothing: who is made to answer what he did not ask for, with as
	// many as others like, may still begin as much.
	for i, from := range b.mate.addresses {
		packet := reset(at(from), netip.AddrPortFrom(b.victim.addresses[i], nobodys))
		must(t, b.mate.injectTimes(most/4, "eth0", plan.MACOf(b.node1.plan.Local.Pools[0].Gateway), packet))
	}
	for i, from := range b.mate.addresses {
		c, err := b.mate.dial("udp", from, netip.AddrPortFrom(b.victim.addresses[i], nobodys), patience)
		must(t, err)
		defer c.Close()
		for range most / 2 {
			// It is told again and again that nobody is there.
			if _, err := c.Write([]byte("so many")); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
	}
	if n := b.dropped(t)[b.node1][datapath.TooMany] - before[b.node1][datapath.TooMany]; n > 0 {
		t.Errorf("of datagrams of one connection to each address, and of resets, %d are dropped as too many", n)
	}
}

// discovery checks that who looks for its gateway from a link-local address, as
// a machine behind a pod's interface may, is counted, as nothing answers it; and
// that who does so from a pod's own address is answered.
func (s *suite) discovery(t *testing.T) {
	b := s.newSourceBench(t, true, true)
	from, to := b.mate.addresses[1], b.victim.addresses[1]
	gateway := of(from, b.node1.plan.Local.Pools[0].Gateway, b.node1.plan.Local.Pools[len(b.node1.plan.Local.Pools)-1].Gateway)
	b.run(t, []trial{
		{"a solicitation from a link-local address", datapath.Discovery, b.node1, func(word string) error {
			return b.fromPod(b.node1, b.mate, solicitation(netip.MustParseAddr("fe80::7"), gateway, word))
		}},
		{"who listens, from a link-local address", datapath.Discovery, b.node1, func(word string) error {
			return b.fromPod(b.node1, b.mate, listening(netip.MustParseAddr("fe80::7"), word))
		}},
		{"a datagram from the pod's own", "", b.node1, func(word string) error {
			return b.fromPod(b.node1, b.mate, udp(at(from), at(to), word))
		}},
	})
	must(t, b.mate.Do(func() error {
		known, err := netlink.NeighList(0, netlink.FAMILY_V6)
		for _, n := range known {
			if n.State&netlink.NUD_PERMANENT != 0 {
				err = errors.Join(err, netlink.NeighDel(&n))
			}
		}
		return err
	}))
	word, arrived := b.expect()
	c, err := b.mate.dial("udp", from, at(to), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(word))
	must(t, err)
	select {
	case got := <-arrived:
		if got.receiver != b.victim.name {
			t.Errorf("what a pod sends that has to ask where its gateway is arrives at %s", got.receiver)
		}
	case <-time.After(patience):
		t.Error("what a pod sends that has to ask where its gateway is does not arrive")
	}
}

// fromPeer sends a frame through the tunnel to an address of node1.
func (b *sourceBench) fromPeer(from *node, to netip.Addr, frame []byte) error {
	t := from.plan.Local.Tunnels[0]
	c, err := from.dial("udp", of(to, from.plan.Local.Addresses...), netip.AddrPortFrom(to, t.Port), patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(vxlan(vniOf(from.plan), frame))
	return err
}

// throughTunnel checks that a peer sends from what is behind it, and from
// nothing else. The receiver's own subnets are given prefixes that are longer
// by some bits than its peers' are.
func (s *suite) throughTunnel(t *testing.T, ipv4 bool, longer int) {
	b := s.newSourceBench(t, true, ipv4)
	own := *b.node1.plan
	own.Local.Pools = slices.Clone(own.Local.Pools)
	for i, p := range own.Local.Pools {
		own.Local.Pools[i].Prefix = netip.PrefixFrom(p.Prefix.Addr(), p.Prefix.Bits()+longer)
	}
	b.apply(b.node1, &own)
	mine, theirs := b.node1.plan.Local.Tunnels[0], b.node2.plan.Local.Tunnels[0]
	for _, p := range unlisted {
		must(t, b.node1.Do(func() error { return addAddress("eth0", p) }))
	}
	spare := of(mine.VTEP, unlisted[0].Addr(), unlisted[1].Addr())
	var trials []trial
	for i, to := range b.victim.addresses {
		add := func(what string, reason datapath.Reason, from netip.Addr, vtep netip.Addr, change func([]byte) []byte) {
			trials = append(trials, trial{fmt.Sprintf("%s, %s to %s", what, from, to), reason, b.node1, func(word string) error {
				return b.fromPeer(b.node2, vtep, change(frame(theirs.MAC, mine.MAC, udp(at(from), at(to), word))))
			}})
		}
		as := func(b []byte) []byte { return b }
		options := func(b []byte) []byte { return append(b[:14:14], withOptions(b[14:])...) }
		add("a pod of the peer", "", b.peer.addresses[i], mine.VTEP, as)
		add("a pod of the peer, with options", "", b.peer.addresses[i], mine.VTEP, options)
		add("the peer's own address", "", of(to, b.node2.plan.Local.Addresses...), mine.VTEP, as)
		add("a pod of the node", datapath.NotThePeers, b.mate.addresses[i], mine.VTEP, as)
		add("the receiver itself", datapath.NotThePeers, b.victim.addresses[i], mine.VTEP, as)
		add("the node itself", datapath.NotThePeers, of(to, b.node1.plan.Local.Addresses...), mine.VTEP, as)
		add("a third node's pod", datapath.NotThePeers, b.third.addresses[i], mine.VTEP, as)
		add("a third node's pod, with options", datapath.NotThePeers, b.third.addresses[i], mine.VTEP, options)
		add("a third node", datapath.NotThePeers, of(to, b.node3.plan.Local.Addresses...), mine.VTEP, as)
		add("the outside", datapath.NotThePeers, of(to, plantest.Outside...), mine.VTEP, as)
		add("a pod of the peer, in a VLAN", datapath.NotThePeers, b.peer.addresses[i], mine.VTEP, tagged)
		add("a pod of the peer, to another address of the node", datapath.UnknownPeer, b.peer.addresses[i], spare, as)
		long := func(b []byte) []byte {
			source, destination := addressesOf(b[14:])
			return frame(plan.MAC(b[6:12]), plan.MAC(b[:6]), udp(at(source), at(destination), string(b[bytes.LastIndex(b, []byte(wordPrefix)):])+" "+strings.Repeat("x", 3000)))
		}
		add("a third node's pod, in fragments", datapath.NotThePeers, b.third.addresses[i], mine.VTEP, long)
		if to.Is4() { // over IPv6 routers make no fragments of what was in it
			add("a pod of the peer, in fragments", "", b.peer.addresses[i], mine.VTEP, long)
		}
		if i == 1 {
			add("a pod of the peer, over IPv6", datapath.UnknownPeer, b.peer.addresses[i], of(to, b.node1.plan.Local.Addresses...), as)
		}
	}
	b.run(t, trials)
}
