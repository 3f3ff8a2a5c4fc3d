package conformance

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// tags checks that tags travel in the tunnel's network identifiers, as the
// interpreter says, whoever sends them and whoever believes them.
func (s *suite) tags(t *testing.T) {
	if !s.able.Tags {
		t.Log("left out: tags, as the data plane sends none through tunnels; it hears what others send")
		t.Run("who lies", s.liars)
		return
	}
	if !s.able.OverlappingNetworks {
		t.Log("left out: several networks in a tunnel, as the data plane has one")
	}
	t.Run("clusters", s.taggedClusters)
	t.Run("on the wire", s.wire)
	for _, ipv4 := range []bool{true, false} {
		t.Run("a foreign end"+map[bool]string{true: "", false: " over IPv6"}[ipv4], func(t *testing.T) { s.foreignEnd(t, ipv4) })
	}
	t.Run("who lies", s.liars)
	t.Run("the first packet", s.firstTag)
	t.Run("of no connection", s.untracked)
	t.Run("who was a peer", s.formerPeer)
	t.Run("others' marks", s.marks)
	t.Run("others' networks", s.othersNetworks)
	t.Run("turned on and off", s.beliefs)
	t.Run("of what began before", s.before)
	t.Run("changed", s.retagged)
}

// taggedClusters loads random clusters with tags in tunnels, and others with other
// beliefs on the same nodes while they run.
func (s *suite) taggedClusters(t *testing.T) {
	count, seed := number(t, "WEFT_CONFORMANCE_CLUSTERS", defaultClusters), number(t, "WEFT_CONFORMANCE_SEED", defaultSeed)
	for i := range count {
		t.Run(strconv.Itoa(seed+i), func(t *testing.T) {
			draw := (seed + i) * 1000
			shape := plantest.Tagged().Example(draw)
			l := newTopology(t, s.make)
			for round := range 2 {
				if round > 0 {
					shape = shape.Recarried().Example(draw)
				}
				plans := shape.Plans()
				if lacks := s.lacks(plans); len(lacks) > 0 {
					t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
				}
				var flows []plan.Flow
				for i := range flowsPerCluster {
					flows = append(flows, plantest.Flows(plans).Example(draw+i))
				}
				l.load(plans)
				l.try(t, plans, flows)
				l.restart(plans)
				if t.Failed() {
					t.Fatalf("round %d, plans:\n%s", round, plan.FormatAll(plans))
				}
			}
		})
	}
}

// tagPlans are three nodes. The server of the first takes what wears tag 5. It
// believes the tags of the second node, and not of the third; all send them.
const tagPlans = `node node1 addresses 172.30.0.2,fd01::2 mtu 1400
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
pool default fd00:1::/64 gateway fd00:1::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP1 mac 0a:58:ac:1e:00:02 carries-tags
network default in vxlan vni FIRST-LAST
endpoint server network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02 tag 7 ingress-policy server
endpoint untagged network default addresses 10.1.1.3,fd00:1::3 mac 0a:58:0a:01:01:03
route default 10.1.1.2/32 endpoint server
route default 10.1.1.3/32 endpoint untagged
route default fd00:1::2/128 endpoint server
route default fd00:1::3/128 endpoint untagged
route default 10.1.2.0/24 tunnel node2
route default 10.1.3.0/24 tunnel node3
route default fd00:2::/64 tunnel node2
route default fd00:3::/64 tunnel node3
peer node2 ends vxlan@VTEP2@0a:58:ac:1e:00:03 carries-tags
peer node3 ends vxlan@VTEP3@0a:58:ac:1e:00:04
verdict server ingress from 5 any allow

node node2 addresses 172.30.0.3,fd01::3 mtu 1400
pool default 10.1.2.0/24 gateway 10.1.2.1 tunnel vxlan
pool default fd00:2::/64 gateway fd00:2::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP2 mac 0a:58:ac:1e:00:03 carries-tags
network default in vxlan vni FIRST-LAST
endpoint five network default addresses 10.1.2.2,fd00:2::2 mac 0a:58:0a:01:02:02 tag 5
endpoint six network default addresses 10.1.2.3,fd00:2::3 mac 0a:58:0a:01:02:03 tag 6
endpoint hidden network default addresses 10.1.2.4,fd00:2::4 mac 0a:58:0a:01:02:04 tag 5
endpoint beyond network default addresses 10.1.2.5,fd00:2::5 mac 0a:58:0a:01:02:05 tag 1000
route default 10.1.2.2/32 endpoint five
route default 10.1.2.3/32 endpoint six
route default 10.1.2.4/32 endpoint hidden
route default 10.1.2.5/32 endpoint beyond
route default fd00:2::2/128 endpoint five
route default fd00:2::3/128 endpoint six
route default fd00:2::4/128 endpoint hidden
route default fd00:2::5/128 endpoint beyond
route default 10.1.1.0/24 tunnel node1
route default 10.1.3.0/24 tunnel node3
route default fd00:1::/64 tunnel node1
route default fd00:3::/64 tunnel node3
peer node1 ends vxlan@VTEP1@0a:58:ac:1e:00:02 carries-tags
peer node3 ends vxlan@VTEP3@0a:58:ac:1e:00:04 carries-tags
egress default endpoint hidden 10.1.1.0/24 masquerade
egress default endpoint hidden fd00:1::/64 masquerade

node node3 addresses 172.30.0.4,fd01::4 mtu 1400
pool default 10.1.3.0/24 gateway 10.1.3.1 tunnel vxlan
pool default fd00:3::/64 gateway fd00:3::1 tunnel vxlan
tunnel vxlan port 4789 vtep VTEP3 mac 0a:58:ac:1e:00:04 carries-tags
network default in vxlan vni FIRST-LAST
endpoint liar network default addresses 10.1.3.2,fd00:3::2 mac 0a:58:0a:01:03:02 tag 5
route default 10.1.3.2/32 endpoint liar
route default fd00:3::2/128 endpoint liar
route default 10.1.1.0/24 tunnel node1
route default 10.1.2.0/24 tunnel node2
route default fd00:1::/64 tunnel node1
route default fd00:2::/64 tunnel node2
peer node1 ends vxlan@VTEP1@0a:58:ac:1e:00:02 carries-tags
peer node2 ends vxlan@VTEP2@0a:58:ac:1e:00:03 carries-tags
`

// tagBench is tagPlans, loaded.
type tagBench struct {
	*topology
	plans  map[string]*plan.Plan
	node   *node
	server *pod
}

// newTagBench gives the network the identifiers from first to last, and a tunnel over
// IPv4 or IPv6. Where the data plane can do no tags, the server takes what comes from anybody.
func (s *suite) newTagBench(t *testing.T, first, last uint32, ipv4 bool) *tagBench {
	t.Helper()
	words := []string{"FIRST", fmt.Sprint(first), "LAST", fmt.Sprint(last)}
	for i := 1; i <= 3; i++ {
		vtep := underlayAddresses(i)[0]
		if !ipv4 {
			vtep = underlayAddresses(i)[1]
		}
		words = append(words, "VTEP"+strconv.Itoa(i), vtep.String())
	}
	if !s.able.Tags {
		words = append(words, "verdict server ingress from 5 any allow", "verdict server ingress from any any allow")
	}
	plans, err := plan.ParseAll(strings.NewReplacer(words...).Replace(tagPlans))
	must(t, err)
	if !s.able.Tags {
		for name, p := range plans {
			plans[name], _ = datapath.Possible(p, s.able)
		}
	}
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &tagBench{topology: newTopology(t, s.make), plans: plans}
	b.load(plans)
	b.node = b.nodes["node1"]
	b.server = b.node.pods["server"]
	return b
}

// edit applies a node's plan with some words replaced.
func (b *tagBench) edit(t *testing.T, node, old, with string) {
	t.Helper()
	text := b.plans[node].String()
	changed := strings.Replace(text, old, with, 1)
	if changed == text {
		t.Fatalf("the plan of %s has no %q:\n%s", node, old, text)
	}
	p, err := plan.Parse(changed)
	must(t, err)
	b.apply(b.nodes[node], p)
	b.plans[node] = p
	if lines := b.repair(b.nodes[node]); len(lines) > 0 {
		t.Errorf("after a change there is something to repair: %q", lines)
	}
}

func (b *tagBench) listener(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	must(t, b.server.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(t.Context(), "tcp4", address)
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return l
}

// connect opens a TCP connection from a pod of the second node to a listener of the
// server.
func (b *tagBench) connect(t *testing.T, l net.Listener, from string) talk {
	t.Helper()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	client, err := b.nodes["node2"].pods[from].dial("tcp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], port), patience)
	if err != nil {
		t.Fatalf("connect from %s: %v", from, err)
	}
	t.Cleanup(func() { client.Close() })
	must(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	server, err := l.Accept()
	if err != nil {
		t.Fatalf("the connection from %s is not accepted: %v", from, err)
	}
	t.Cleanup(func() { server.Close() })
	return talk{client, server}
}

// pester sends to the server from a pod of the second node, each time from another
// port, what no plan allows, until the function is called that it returns, which checks
// that nothing of it arrived.
func (b *tagBench) pester(t *testing.T, from string) (stop func()) {
	t.Helper()
	b.listen(b.server.host, service{plan.UDP, sourcePort})
	word, arrived := b.expect()
	ctx, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-ctx:
				return
			default:
			}
			c, err := b.nodes["node2"].pods[from].dial("udp", netip.Addr{}, netip.AddrPortFrom(b.server.addresses[0], sourcePort), patience)
			if err != nil {
				continue
			}
			_, _ = c.Write([]byte(word))
			c.Close()
		}
	}()
	return func() {
		t.Helper()
		close(ctx)
		<-stopped
		select {
		case got := <-arrived:
			t.Errorf("what no plan allows arrives from %s", got.source)
		default:
		}
	}
}
