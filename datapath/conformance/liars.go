package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/plan"
)

// liars checks that of tunnel packets made by hand those pass that the interpreter's
// rules let through, and no others.
func (s *suite) liars(t *testing.T) {
	for _, first := range []uint32{0, 4095} {
		t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) { s.liarsTo(t, first) })
	}
}

func (s *suite) liarsTo(t *testing.T, first uint32) {
	b := s.newTagBench(t, first, first+100, true)
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	p := b.plans["node1"]
	mine := p.Local.Tunnels[0]
	verdict := func(vtep, source netip.Addr, vni uint32) bool {
		network, tag, ok := p.Decode(mine.Name, vni)
		if !ok || !p.TakesFromPeer(mine.Name, network, vtep, source) {
			return false
		}
		for _, peer := range p.Peers.All() {
			if end, ok := peer.End(mine.Name); ok && end.VTEP == vtep && !peer.CarriesTags {
				tag = 0
			}
		}
		class, known := p.ClassAt(network, source)
		if !known {
			class = plan.ClassOf(tag)
		}
		_, v, _ := p.Verdict("server", plan.Incoming, class, plan.UDP, sourcePort)
		return v.Allow
	}
	random := rand.New(rand.NewPCG(uint64(first), 1))
	made := func(from *node, source netip.Addr, vni uint32, word string) []byte {
		return b.byHand(from, netip.AddrPortFrom(source, uint16(20000+random.IntN(20000))), vni, word)
	}
	node2, node3 := b.nodes["node2"], b.nodes["node3"]
	type sent struct {
		what    string
		allowed bool
		arrived <-chan arrival
	}
	var all []sent
	// What is short, or says that it has no identifier, gets nowhere.
	word, arrived := b.expect()
	whole := made(node2, node2.pods["five"].addresses[0], first+5, word)
	for _, length := range []int{1, 7, 8, 12, 21, 22, 30, 40, 49} {
		b.sendTunnel(t, node2, whole[:length])
	}
	unset := slices.Clone(whole)
	unset[0] = 0
	b.sendTunnel(t, node2, unset)
	reserved := slices.Clone(whole)
	reserved[7] = 1
	b.sendTunnel(t, node2, reserved)
	all = append(all, sent{"what is short, or has no identifier", false, arrived})

	sources := []netip.Addr{p.Local.Pools[0].Gateway, b.server.addresses[0], netip.MustParseAddr("198.51.100.7")}
	for _, of := range b.plans {
		for _, e := range of.Endpoints.All() {
			sources = append(sources, e.Addresses[0])
		}
	}
	slices.SortFunc(sources, netip.Addr.Compare)
	passed := 0
	for i := range 120 {
		from := []*node{node2, node3}[i%2]
		vni := first + []uint32{0, 5, 5, 6, 7, 100, 101, plan.MaxVNI - first, uint32(random.IntN(plan.MaxVNI))}[random.IntN(9)]
		vni &= plan.MaxVNI
		source := sources[random.IntN(len(sources))]
		vtep := b.plans[from.name].Local.Tunnels[0].VTEP
		word, arrived := b.expect()
		allowed := verdict(vtep, source, vni)
		if allowed {
			passed++
		}
		b.sendTunnel(t, from, made(from, source, vni, word))
		all = append(all, sent{fmt.Sprintf("what %s sends from %s with identifier %d", from.name, source, vni), allowed, arrived})
	}
	if passed == 0 {
		t.Error("nothing of all that was sent is allowed")
	}
	// Behind all that, in the same way.
	word, arrived = b.expect()
	b.sendTunnel(t, node2, made(node2, node2.pods["five"].addresses[0], first+5, word))
	all = append(all, sent{"what comes after all that", true, arrived})
	slices.SortStableFunc(all, func(a, b sent) int { // what arrives first
		return map[bool]int{true: 0, false: 1}[a.allowed] - map[bool]int{true: 0, false: 1}[b.allowed]
	})
	for _, k := range all {
		wait := time.Duration(0)
		if k.allowed {
			wait = patience
		}
		select {
		case <-k.arrived:
			if !k.allowed {
				t.Errorf("%s arrives", k.what)
			}
		case <-time.After(wait):
			if k.allowed {
				t.Errorf("%s does not arrive", k.what)
			}
		}
	}
}

// byHand returns a tunnel packet of a node's to the server, from an address and port,
// with an identifier.
func (b *tagBench) byHand(from *node, source netip.AddrPort, vni uint32, word string) []byte {
	return vxlan(vni, frame(b.plans[from.name].Local.Tunnels[0].MAC, b.plans["node1"].Local.Tunnels[0].MAC,
		udp(source, netip.AddrPortFrom(b.server.addresses[0], sourcePort), word)))
}

// sendTunnel sends a tunnel packet made by hand from a node to the server's.
func (b *tagBench) sendTunnel(t *testing.T, from *node, payload []byte) {
	t.Helper()
	own, to := b.plans[from.name].Local.Tunnels[0].VTEP, b.plans["node1"].Local.Tunnels[0]
	c, err := from.dial("udp", own, netip.AddrPortFrom(to.VTEP, to.Port), patience)
	must(t, err)
	defer c.Close()
	_, err = c.Write(payload)
	must(t, err)
}

// untracked checks that what is of no connection, as somebody keeps it from connection
// tracking, is not taken for what has no tag where tags are believed.
func (s *suite) untracked(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
		b.edit(t, "node1", "verdict server ingress from 5 any allow\n", "verdict server ingress from 0 any allow\n")
		b.listen(b.server.host, service{plan.UDP, sourcePort})
		must(t, b.node.Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			in := conn.AddTable(&nftables.Table{Name: "somebody", Family: nftables.TableFamilyINet})
			c := conn.AddChain(&nftables.Chain{Table: in, Name: "raw", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
			conn.AddRule(&nftables.Rule{Table: in, Chain: c, Exprs: []expr.Any{&expr.Notrack{}}})
			return conn.Flush()
		}))
		for family := range 2 {
			arrives := map[string]<-chan arrival{}
			for _, from := range []struct{ node, pod string }{{"node2", "six"}, {"node3", "liar"}} {
				c, err := b.nodes[from.node].pods[from.pod].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[family], sourcePort), patience)
				must(t, err)
				word, arrived := b.expect()
				arrives[from.pod] = arrived
				_, err = c.Write([]byte(word))
				must(t, errors.Join(err, c.Close()))
			}
			select {
			case <-arrives["liar"]:
			case <-time.After(patience):
				t.Errorf("what has no tag that is believed does not arrive (over IPv4: %t)", ipv4)
			}
			select {
			case <-arrives["six"]:
				t.Errorf("what wears tag 6 arrives, as if it had none (over IPv4: %t)", ipv4)
			case <-time.After(disappointment):
			}
		}
	}
}

// formerPeer checks that nothing leaves through a tunnel with tags to who is no peer any
// more, whatever still leads there.
func (s *suite) formerPeer(t *testing.T) {
	for _, ipv4 := range []bool{true, false} {
		b := s.newTagBench(t, 0, plan.MaxVNI, ipv4)
		n, seen, port := b.nodes["node2"], b.listenTo(t, "node2"), b.plans["node2"].Local.Tunnels[0].Port
		leaves := func(node string) bool {
			word, _ := b.expect()
			last, _ := b.expect()
			for _, send := range [][2]string{{node, word}, {"node3", last}} {
				c, err := n.dial("udp", b.plans["node2"].Local.Tunnels[0].VTEP, netip.AddrPortFrom(b.plans[send[0]].Local.Tunnels[0].VTEP, port), patience)
				must(t, err)
				_, err = c.Write(vxlan(0, []byte(send[1])))
				if err != nil && !errors.Is(err, unix.EPERM) {
					t.Fatal(err)
				}
				must(t, c.Close())
			}
			if _, ok := seen.of(last, port); !ok {
				t.Fatal("what is sent to a peer does not leave")
			}
			return seen.has(word)
		}
		if !leaves("node1") {
			t.Error("what is sent to node1, which is a peer, does not leave")
		}
		var lines []string
		for line := range strings.Lines(b.plans["node2"].String()) {
			if !strings.Contains(line, "tunnel node1") && !strings.HasPrefix(line, "peer node1 ") {
				lines = append(lines, line)
			}
		}
		p, err := plan.Parse(strings.Join(lines, ""))
		must(t, err)
		b.apply(n, p)
		if leaves("node1") {
			t.Error("what is sent to node1, which was a peer, leaves")
		}
	}
}

// firstTag checks that a connection has the tag of its first packet, whatever comes
// behind it: all of these are new to connection tracking, as none is answered.
func (s *suite) firstTag(t *testing.T) {
	b := s.newTagBench(t, 0, plan.MaxVNI, true)
	var silent net.PacketConn
	must(t, b.server.Do(func() (err error) {
		silent, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", sourcePort))
		return err
	}))
	defer silent.Close()
	node2 := b.nodes["node2"]
	source := netip.AddrPortFrom(node2.pods["five"].addresses[0], 7777)
	arrives := func(vni uint32) bool {
		t.Helper()
		b.sendTunnel(t, node2, b.byHand(node2, source, vni, "first"))
		b.sendTunnel(t, node2, b.byHand(node2, netip.AddrPortFrom(source.Addr(), 8888), 5, "last"))
		must(t, silent.SetReadDeadline(time.Now().Add(patience)))
		came := false
		for data := make([]byte, 100); ; came = true {
			n, _, err := silent.ReadFrom(data)
			must(t, err)
			if string(data[:n]) == "last" {
				return came
			}
		}
	}
	if arrives(6) {
		t.Error("what wears tag 6 arrives")
	}
	for _, vni := range []uint32{5, 6, 0, 5} {
		if !arrives(vni) {
			t.Errorf("a packet with identifier %d of a connection that began with tag 5 does not arrive", vni)
		}
	}
}
