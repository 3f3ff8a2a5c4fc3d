package conformance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/plan"
)

// Changes of a plan while packets are sent without pause.

// changingNode is the node whose plan changes, without what drawn adds; the other's
// stays.
const changingNode = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
route default 0.0.0.0/0 gateway
route default 10.1.1.3/32 endpoint near
route default 10.1.1.4/32 endpoint third
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
egress default any 0.0.0.0/0 masquerade
egress default any 10.1.0.0/16 direct
endpoint third network default addresses 10.1.1.4 mac 0a:58:0a:01:01:04 anti-spoof
`

// changingFront is what a plan of changingNode has besides, where there are Services: an address of
// one, of which drawn may say more.
// Who few are is the same in all plans, as kernels show what has become of a set of intervals a
// while later than the rest of a transaction.
const changingFront = `service default 10.3.0.1 any
source default few 10.1.1.3/32
`

// swapped are two plans by whose policies near may not reach the server: by each it is
// of the class that only the other allows.
var swapped = [2]string{
	`endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 anti-spoof
endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 ingress-policy p anti-spoof
route default 10.1.1.2/32 endpoint server
class default 10.1.1.3/32 c0
class default 10.1.2.2/32 c1
verdict p ingress from c1 udp 7000 allow
verdict p ingress from c1 udp 7001 allow
`,
	`endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 anti-spoof
endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 ingress-policy p anti-spoof
route default 10.1.1.2/32 endpoint server
class default 10.1.1.3/32 c1
class default 10.1.2.2/32 c0
verdict p ingress from c0 udp 7000 allow
verdict p ingress from c0 udp 7001 allow
`}

// reachable are swapped, but near may reach the server by both.
var reachable = [2]string{exchanged.Replace(swapped[0]), exchanged.Replace(swapped[1])}

// exchanged gives the classes that a plan speaks of to each other.
var exchanged = strings.NewReplacer("10.1.1.3/32 c0", "10.1.1.3/32 c1", "10.1.1.3/32 c1", "10.1.1.3/32 c0", "10.1.2.2/32 c0", "10.1.2.2/32 c1", "10.1.2.2/32 c1", "10.1.2.2/32 c0")

// excepted are two plans by which near may talk to all but one prefix, each with
// another prefix besides.
var excepted = [2]string{exceptedPlan + "class default 198.51.96.0/20 c4\n", exceptedPlan + "class default 198.51.100.64/26 c4\nclass default 203.0.113.0/24 c5\n"}

const exceptedPlan = `endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 egress-policy e anti-spoof
endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 egress-policy e anti-spoof
route default 10.1.1.2/32 endpoint server
class default 198.51.100.0/24 c3
verdict e egress to any any allow
verdict e egress to c3 any deny
`

// deniedPlan lets near talk to all but the server, at some ports.
const deniedPlan = `endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03 egress-policy e anti-spoof
endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 anti-spoof
route default 10.1.1.2/32 endpoint server
class default 10.1.1.2/32 c3
verdict e egress to any any allow
verdict e egress to c3 udp 7000-`

// mixed has the classes of one of swapped and the verdicts of the other, as a change
// that is not one step would.
var mixed = reachable[0]

// drawn returns what a plan of changingNode may have besides.
func drawn(random *rand.Rand) string {
	var b strings.Builder
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03%s%s anti-spoof", one("", " tag 5", " tag 6"), one("", " egress-policy e"))
	line("endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 ingress-policy %s%s anti-spoof", one("p", "q"), one("", " egress-policy e"))
	line("route default 10.1.1.2/32 %s", one("endpoint server", "endpoint server", "drop"))
	for _, a := range []string{"10.1.1.3", "10.1.1.4", "10.1.2.2"} {
		if c := one("", "c0", "c1", "c2"); c != "" {
			line("class default %s/32 %s", a, c)
		}
	}
	line("class default 10.1.1.2/32 %s", one("c3", "c4"))
	line("class default 198.51.100.0/24 %s", one("c3", "c5"))
	if tag := one("", "5", "6"); tag != "" {
		line("tag default 10.1.2.2/32 %s", tag)
	}
	for _, policy := range []string{"p ingress from", "q ingress from", "e egress to"} {
		for _, peer := range []string{"c0", "c1", "c2", "c3", "c4", "c5", "5", "6", "any"} {
			for _, port := range []int{loadPort, loadPort + 1} {
				if v := one("", "allow", "deny"); v != "" {
					line("verdict %s %s udp %d %s", policy, peer, port, v)
				}
			}
		}
	}
	if e := one("", "", "drop", "masquerade"); e != "" {
		line("egress default any 198.51.100.7/32 %s", e)
	}
	if one("", "drop") != "" {
		line("route default 198.51.100.7/32 drop")
	}
	if one("", "", "pool") != "" {
		line("pool default 10.7.1.0/24 gateway 10.7.1.1")
	}
	return b.String()
}

// drawnFront returns what a plan of changingNode may have besides where there are Services: a
// frontend that the node itself answers, or has one answer, or nobody does.
func drawnFront(random *rand.Rand) string {
	var b strings.Builder
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if c := one("", "c3", "c4", "c5"); c != "" {
		line("class default 10.3.0.1/32 %s", c)
	}
	if tag := one("", "5", "6"); tag != "" {
		line("tag default 10.3.0.1/32 %s", tag)
	}
	for _, port := range []int{loadPort, loadPort + 1} {
		front, sources := fmt.Sprintf("service default 10.3.0.1 udp %d", port), one("", "", " sources few")
		switch one("here", "here", "backend", "backend", "nobody") {
		case "here":
			line("%s from inside here%s", front, sources)
			line("%s from outside to web", front)
		case "backend":
			line("%s to web%s", front, sources)
		}
	}
	line("backend default web 10.1.1.4:%d", loadPort)
	return b.String()
}

// torn is how often a node changes plans while a packet is always being judged, which
// is looked up in several tables one after the other.
const torn = 200

// flips is how often a node goes from one plan to the other and back.
const flips = 8

// changes checks that while a plan changes no packet arrives that neither of the two
// lets pass, and that open connections that both let pass go on as if nothing happened.
func (s *suite) changes(t *testing.T) {
	plans, err := plan.ParseAll(policyPlans)
	must(t, err)
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &changingBench{topology: newTopology(t, s.make), second: plans["node2"], front: s.able.Services && s.able.AnswersHere}
	p, q := b.parse(t, swapped[0]), b.parse(t, swapped[1])
	b.load(map[string]*plan.Plan{"node1": p, "node2": b.second})
	t.Run("swapped", func(t *testing.T) { b.flip(t, 3*flips, p, q) })
	t.Run("excepted", func(t *testing.T) { b.flip(t, 3*flips, b.parse(t, excepted[0]), b.parse(t, excepted[1])) })
	t.Run("torn", func(t *testing.T) {
		t.Run("class", func(t *testing.T) { b.tear(t, p, q) })
		t.Run("prefix", func(t *testing.T) {
			prefix := strings.NewReplacer("class default 10.1.1.3/32", "class default 10.1.1.2/31")
			b.tear(t, b.parse(t, prefix.Replace(swapped[0])), b.parse(t, prefix.Replace(swapped[1])))
		})
		t.Run("denial", func(t *testing.T) {
			b.tear(t, b.parse(t, deniedPlan+"7001 deny\n"), b.parse(t, deniedPlan+"7002 deny\n"))
		})
	})
	t.Run("torn, and allowed", func(t *testing.T) { b.tearAllowed(t, b.parse(t, reachable[0]), b.parse(t, reachable[1])) })
	t.Run("what would be noticed", func(t *testing.T) {
		l := b.begin(t)
		b.apply(b.nodes["node1"], b.parse(t, mixed))
		l.flowing(l.streams[0])
		l.end()
	})
	first := number(t, "WEFT_CONFORMANCE_SEED", defaultSeed)
	for i := range number(t, "WEFT_CONFORMANCE_CLUSTERS", defaultClusters) {
		t.Run(strconv.Itoa(first+i), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(first+i), 0))
			draw := func() *plan.Plan {
				text := drawn(random)
				if b.front {
					text += drawnFront(random)
				}
				return b.parse(t, text)
			}
			b.flip(t, flips, draw(), draw())
		})
	}
}

// changingBench is two nodes, of which the first's plan changes.
type changingBench struct {
	*topology
	second *plan.Plan
	// front says that there is an address of a Service, too.
	front bool
}

func (b *changingBench) parse(t *testing.T, more string) *plan.Plan {
	t.Helper()
	text := changingNode
	if b.front {
		text += changingFront
	}
	p, err := plan.Parse(text + more)
	must(t, err)
	must(t, p.Validate())
	return p
}

// flows are those that begin sends, in that order; first each to one port, then each
// to another.
func (b *changingBench) flows() (flows []plan.Flow) {
	near, server, third, far := netip.MustParseAddr("10.1.1.3"), netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("10.1.1.4"), netip.MustParseAddr("10.1.2.2")
	for _, port := range []uint16{loadPort, loadPort + 1} {
		ends := [][2]netip.Addr{{near, server}, {far, server}, {third, server}, {server, near}, {near, far}, {near, outside[0].Addr()}}
		if b.front {
			ends = append(ends, [2]netip.Addr{near, hereFronts[0].Addr()}, [2]netip.Addr{third, hereFronts[0].Addr()})
		}
		for _, f := range ends {
			flows = append(flows, plan.Flow{Source: f[0], Destination: f[1], Protocol: plan.UDP, Port: port})
		}
	}
	return flows
}

// begin sends all flows, and one under an address that is somebody else's, to whom all
// is allowed that is allowed at all.
func (b *changingBench) begin(t *testing.T) *load {
	t.Helper()
	l := newLoad(t)
	hosts := map[netip.Addr]*host{outside[0].Addr(): b.out}
	for _, n := range b.nodes {
		for _, p := range n.pods {
			hosts[p.addresses[0]] = p.host
		}
	}
	for _, h := range hosts {
		l.sink(h, 2)
	}
	if b.front {
		l.sinkAt(b.nodes["node1"].host, hereFronts[0].Addr(), 2)
	}
	for _, f := range b.flows() {
		l.stream(f.String(), hosts[f.Source], netip.AddrPortFrom(f.Destination, f.Port))
	}
	l.streamFrom("near under the address of third", b.nodes["node1"].pods["near"].host, netip.MustParseAddr("10.1.1.4"), netip.AddrPortFrom(netip.MustParseAddr("10.1.1.2"), loadPort))
	return l
}

// tear changes between two plans of which neither lets near talk to the server, while
// near sends as fast as it can: so some packet is on its way at each moment of a change.
func (b *changingBench) tear(t *testing.T, p, q *plan.Plan) {
	n := b.nodes["node1"]
	b.apply(n, p)
	l := newLoad(t)
	l.sink(n.pods["server"].host, 2)
	for _, f := range b.flows() {
		if f.Source == n.pods["near"].addresses[0] && f.Destination == n.pods["server"].addresses[0] {
			l.flood(f.String(), n.pods["near"].host, netip.AddrPortFrom(f.Destination, f.Port))
		}
	}
	for i := range torn {
		b.apply(n, []*plan.Plan{q, p}[i%2])
	}
	l.end()
	for _, s := range l.streams {
		got, _, _ := l.arrived(s)
		if got > 0 {
			t.Errorf("%d of %d datagrams of %s arrived; neither plan allows them\nplans:\n%s\n%s", got, s.sent.Load(), s.name, p, q)
		}
		t.Logf("%d changes: %d datagrams of %s were sent", torn, s.sent.Load(), s.name)
	}
}

// tearAllowed is tear between two plans that both let near talk to the server, who never
// answers.
func (b *changingBench) tearAllowed(t *testing.T, p, q *plan.Plan) {
	n := b.nodes["node1"]
	b.apply(n, p)
	l := newLoad(t)
	l.silent = true
	l.sink(n.pods["server"].host, 1)
	s := l.torrent("near to the server", n.pods["near"].host, netip.AddrPortFrom(n.pods["server"].addresses[0], loadPort))
	l.flowing(s)
	for i := range torn {
		b.apply(n, []*plan.Plan{q, p}[i%2])
	}
	l.end()
	if got, _, _ := l.arrived(s); got != s.sent.Load() {
		t.Errorf("%d of %d datagrams of %s arrived, the first that did not is %d; both plans allow them\nplans:\n%s\n%s", got, s.sent.Load(), s.name, l.missed(s), p, q)
	}
	t.Logf("%d changes: %d datagrams of %s were sent", torn, s.sent.Load(), s.name)
}

// flip takes the node from one plan to another and back under load.
func (b *changingBench) flip(t *testing.T, times int, p, q *plan.Plan) {
	n := b.nodes["node1"]
	b.apply(n, p)
	var allowed [2][]bool
	for i, q := range []*plan.Plan{p, q} {
		for _, f := range b.flows() {
			allowed[i] = append(allowed[i], plan.Explain(map[string]*plan.Plan{"node1": q, "node2": b.second}, f).Allowed)
		}
	}
	l := b.begin(t)
	for i := range b.flows() {
		if allowed[0][i] {
			l.flowing(l.streams[i])
		}
	}
	for range times {
		for _, next := range []*plan.Plan{q, p} {
			b.apply(n, next)
			time.Sleep(5 * pause)
		}
	}
	l.end()
	probes, steady := uint64(0), uint64(0)
	for i, s := range l.streams {
		got, receiver, _ := l.arrived(s)
		sent := s.sent.Load()
		switch {
		case i >= len(allowed[0]) || !allowed[0][i] && !allowed[1][i]:
			if probes += sent; got > 0 {
				t.Errorf("%d of %d datagrams of %s arrived at %s; neither plan allows them", got, sent, s.name, receiver)
			}
		case allowed[0][i] && allowed[1][i]:
			if steady += sent; got != sent {
				t.Errorf("%d of %d datagrams of %s arrived, the first that did not is %d; both plans allow them", got, sent, s.name, l.missed(s))
			}
		}
	}
	t.Logf("%d changes: of what neither plan allows %d datagrams were sent, of what both allow %d", 2*times, probes, steady)
	if t.Failed() {
		t.Logf("plans:\n%s\n%s", p, q)
	}
}
