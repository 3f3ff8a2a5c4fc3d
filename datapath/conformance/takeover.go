package conformance

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// takeOverPlans are policyPlans with streams: of port 7000 of the server both clients
// may use, of port 7001 none. Pods get to the outside under the node's address.
const takeOverPlans = `verdict server ingress from c0 udp 7000 allow # near
verdict server ingress from c1 udp 7000 allow # far
egress default any 0.0.0.0/0 masquerade
egress default any 10.1.0.0/16 direct
endpoint other network default addresses 10.1.1.4 mac 0a:58:0a:01:01:04 egress-policy shut anti-spoof
route default 10.1.1.4/32 endpoint other
class default 10.1.1.4/32 c2
`

// takeOverTags replace lines of those where the data planes can do tags: a second client
// on the other node that the server knows by its tag alone.
var takeOverTags = []string{
	"network default in vxlan vni 1\n", "network default in vxlan vni 1-100\n",
	"vtep 172.30.0.2 mac 0a:58:ac:1e:00:02\n", "vtep 172.30.0.2 mac 0a:58:ac:1e:00:02 carries-tags\n",
	"vtep 172.30.0.3 mac 0a:58:ac:1e:00:03\n", "vtep 172.30.0.3 mac 0a:58:ac:1e:00:03 carries-tags\n",
	"peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03\n", "peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03 carries-tags\n",
	"verdict server ingress from c0 udp 7000 allow", "verdict server ingress from 5 udp 8080 allow # tagged\nverdict server ingress from c0 udp 7000 allow",
	"endpoint far ", "endpoint tagged network default addresses 10.1.2.3 mac 0a:58:0a:01:02:03 tag 5\nroute default 10.1.2.3/32 endpoint tagged\n" +
		"endpoint untagged network default addresses 10.1.2.4 mac 0a:58:0a:01:02:04\nroute default 10.1.2.4/32 endpoint untagged\nendpoint far ",
}

// takeOverServices are a Service with the server behind it, where the data planes can do
// Services.
const takeOverServices = `service default 10.3.0.1 tcp 8080 to web
service default 10.3.0.1 udp 7000 to streams affinity 1h0m0s
backend default web 10.1.1.2:8080
backend default streams 10.1.1.2:7000 affinity
`

// takeOverAnswers are frontends that the node itself answers, where the data planes can have it
// do so.
const takeOverAnswers = `service default 10.3.0.2 udp 8080 from inside here
service default 10.3.0.2 udp 7000 from inside here
`

const takeOverAnswerFlows = `10.1.1.3 to 10.3.0.2 udp 8080 => from 10.1.1.3 at node1
172.30.0.2 to 10.3.0.2 udp 8080 => from 172.30.0.2 at node1
10.1.1.4 to 10.3.0.2 udp 8080 => denied
10.1.1.3 to 10.3.0.2 udp 22 => denied
`

const takeOverServiceFlows = `10.1.1.3 to 10.3.0.1 tcp 8080 => from 10.1.1.3
172.30.0.2 to 10.3.0.1 tcp 8080 => from 10.1.1.1
10.1.1.4 to 10.3.0.1 tcp 8080 => denied
`

const takeOverTagFlows = `10.1.2.3 to 10.1.1.2 udp 8080 => from 10.1.2.3
10.1.2.3 to 10.1.1.2 udp 22 => denied
10.1.2.4 to 10.1.1.2 udp 8080 => denied
`

// TakeOver checks what datapath.DataPlane says of two data planes that take over from
// one another on nodes whose pods talk all the while: that no connection is reset, no
// packet passes that the plan forbids, how much of what it allows is lost, that nothing
// is left of the one that was there, and that one can be prepared and removed again.
// It needs root.
func TakeOver(t *testing.T, one, other func(Namespace) (datapath.DataPlane, error)) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	probe, err := one(newNamespace(t))
	must(t, err)
	s := &suite{make: one, able: probe.Capabilities()}
	must(t, probe.Close())
	b := s.newTakeOverBench(t)

	t.Run("prepared and not wanted", func(t *testing.T) {
		l := b.talk(t)
		for _, n := range b.nodes {
			next, err := other(n.Namespace)
			must(t, err)
			must(t, next.Prepare(t.Context(), b.plans[n.name], n.dataPlane))
			b.begin(t)
			must(t, next.Remove(t.Context()))
			b.present(t, next, false)
			must(t, next.Close())
			if lines := b.repair(n); len(lines) > 0 {
				t.Errorf("%s: another data plane was prepared and removed, and this is to repair: %q", n.name, lines)
			}
		}
		l.check(t, "another data plane was prepared and removed", true)
	})
	makers := []func(Namespace) (datapath.DataPlane, error){other, one}
	for i, way := range []string{"there", "back"} {
		t.Run(way, func(t *testing.T) {
			l := b.talk(t)
			for _, n := range b.nodes {
				b.takeOver(t, n, makers[i])
			}
			l.check(t, "the take-over", false)
			for _, n := range b.nodes {
				if lines := b.repair(n); len(lines) > 0 {
					t.Errorf("%s: after the take-over there is something to repair: %q", n.name, lines)
				}
			}
			b.begin(t)
		})
	}
	t.Run("killed", func(t *testing.T) {
		// Whoever was killed within a take-over has left both, wholly or in part. Any
		// of the two takes over then.
		l := b.talk(t)
		n := b.node
		half := b.replace(t, n, other)
		must(t, half.Prepare(t.Context(), b.plans[n.name], b.again(t, n, one)))
		must(t, half.Apply(t.Context(), b.plans[n.name]))
		half.Close()
		n.dataPlane = nil
		back := b.replace(t, n, one)
		b.finish(t, n, back, b.again(t, n, other))
		l.check(t, "a take-over that was not finished", false)
	})
	t.Run("removed", func(t *testing.T) {
		for _, n := range b.nodes {
			must(t, n.dataPlane.Remove(t.Context()))
			b.present(t, n.dataPlane, false)
		}
	})
}

const takeOverFlows = `10.1.1.3 to 10.1.1.2 udp 22 => denied
10.1.1.3 to 10.1.1.2 tcp 8080 => from 10.1.1.3
10.1.2.2 to 10.1.1.2 udp 8080 => from 10.1.2.2
10.1.1.3 to 10.1.1.2 udp 8080 => denied
10.1.1.3 to 198.51.100.7 udp 8080 => from 172.30.0.2
10.1.1.4 to 10.1.2.2 udp 8080 => denied
`

// takeOverBench is nodes on which data planes change.
type takeOverBench struct {
	*policyBench
	other *host
	flows []plan.Flow
}

func (s *suite) newTakeOverBench(t *testing.T) *takeOverBench {
	t.Helper()
	text, flows := strings.Replace(policyPlans, "\nnode node2", takeOverPlans+"\nnode node2", 1), takeOverFlows
	if s.able.Tags {
		text, flows = strings.NewReplacer(takeOverTags...).Replace(text), flows+takeOverTagFlows
	} else {
		t.Log("left out: who is known by a tag, as the data plane has no tags in the tunnel")
	}
	if s.able.Services {
		text, flows = strings.Replace(text, "\nnode node2", takeOverServices+"\nnode node2", 1), flows+takeOverServiceFlows
	}
	if s.able.AnswersHere {
		text, flows = strings.Replace(text, "\nnode node2", takeOverAnswers+"\nnode node2", 1), flows+takeOverAnswerFlows
	}
	if s.able.Bandwidth {
		text = strings.Replace(text, "mac 0a:58:0a:01:01:02", "mac 0a:58:0a:01:01:02 ingress-rate 1000000000 egress-rate 1000000000", 1)
	}
	plans, err := plan.ParseAll(text)
	must(t, err)
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &takeOverBench{policyBench: &policyBench{topology: newTopology(t, s.make), plans: plans, address: netip.MustParseAddr("10.1.1.2")}}
	b.flows = parseFlows(t, plans, flows)
	b.load(plans)
	b.node = b.nodes["node1"]
	b.server, b.near, b.far = b.node.pods["server"].host, b.node.pods["near"].host, b.nodes["node2"].pods["far"].host
	b.other = b.node.pods["other"].host
	return b
}

// begin tries that what may begin now does, and nothing else.
func (b *takeOverBench) begin(t *testing.T) {
	t.Helper()
	if untried := b.try(t, b.plans, b.flows); len(untried) > 0 {
		t.Fatalf("these end at nodes without a plan: %v", untried)
	}
}

// talking is what goes to and fro during a take-over.
type talking struct {
	*load
	// node and tunnel are streams that the plan allows, on the node and between nodes.
	node, tunnel []*stream
	forbidden    []*stream
	chats        []*chat
}

// talk begins to send what is allowed and what is not.
func (b *takeOverBench) talk(t *testing.T) *talking {
	t.Helper()
	l := &talking{load: newLoad(t)}
	far := netip.MustParseAddr("10.1.2.2")
	l.sink(b.server, 2)
	l.sink(b.far, 1)
	l.node = append(l.node, l.stream("near to server", b.near, netip.AddrPortFrom(b.address, loadPort)))
	l.tunnel = append(l.tunnel,
		l.stream("far to server", b.far, netip.AddrPortFrom(b.address, loadPort)),
		l.stream("near to far", b.near, netip.AddrPortFrom(far, loadPort)))
	if b.plans["node1"].Services.Len() > 0 {
		l.node = append(l.node, l.stream("near to the service", b.near, netip.AddrPortFrom(netip.MustParseAddr("10.3.0.1"), loadPort)))
	}
	if _, answers := b.plans["node1"].Services.Get(plan.ServiceKey{Network: plan.DefaultNetwork, Address: netip.MustParseAddr("10.3.0.2"), Protocol: plan.UDP, Port: loadPort, From: plan.Inside}); answers {
		l.sink(b.node.host, 1)
		l.node = append(l.node, l.stream("near to the node that answers", b.near, netip.AddrPortFrom(netip.MustParseAddr("10.3.0.2"), loadPort)))
		l.forbidden = append(l.forbidden, l.stream("other to the node that answers", b.other, netip.AddrPortFrom(netip.MustParseAddr("10.3.0.2"), loadPort)))
	}
	for _, from := range []*host{b.near, b.far} {
		l.forbidden = append(l.forbidden, l.stream(from.name+" to the server's other port", from, netip.AddrPortFrom(b.address, loadPort+1)))
	}
	l.forbidden = append(l.forbidden,
		l.stream("other to server", b.other, netip.AddrPortFrom(b.address, loadPort)),
		l.stream("other to far", b.other, netip.AddrPortFrom(far, loadPort)))
	l.chats = []*chat{
		l.chat(b.observer, "the connection on the node", b.near, b.server, b.address),
		l.chat(b.observer, "the connection between nodes", b.far, b.server, b.address),
		l.chat(b.observer, "the connection to the outside", b.near, b.out, netip.MustParseAddr("198.51.100.7")),
	}
	for _, s := range append(l.node, l.tunnel...) {
		l.flowing(s)
	}
	for _, k := range l.chats {
		k.alive(t, "it was opened")
	}
	return l
}

// check ends what goes to and fro, and checks what became of it. Where nothing may be
// noticed, nothing may be lost.
func (l *talking) check(t *testing.T, after string, unnoticed bool) {
	t.Helper()
	for _, k := range l.chats {
		k.alive(t, after)
	}
	l.end()
	probes := uint64(0)
	for _, s := range l.forbidden {
		probes += s.sent.Load()
		if got, receiver, _ := l.arrived(s); got > 0 {
			t.Errorf("%s: %d of %d datagrams of %s, which are forbidden, arrived at %s", after, got, s.sent.Load(), s.name, receiver)
		}
	}
	if probes == 0 {
		t.Errorf("%s: nothing was sent that is forbidden", after)
	}
	for _, s := range append(l.node, l.tunnel...) {
		got, _, gap := l.arrived(s)
		lost := int64(s.sent.Load()) - int64(got)
		t.Logf("%s: of %s, %d of %d datagrams were lost, the first of them %d; the longest gap is %v", after, s.name, lost, s.sent.Load(), l.missed(s), gap)
	}
	for _, s := range l.node {
		if got, _, _ := l.arrived(s); got != s.sent.Load() {
			t.Errorf("%s: %d of %d datagrams of %s arrived; none may be lost on the node", after, got, s.sent.Load(), s.name)
		}
	}
	for _, s := range l.tunnel {
		got, _, gap := l.arrived(s)
		if unnoticed && got != s.sent.Load() || gap > datapath.SwitchTime+slack {
			t.Errorf("%s: %d of %d datagrams of %s arrived, and for %v none did", after, got, s.sent.Load(), s.name, gap)
		}
	}
	t.Logf("%s: %d forbidden datagrams were sent, and none arrived", after, probes)
}

// slack is for a machine so busy that a sender has to wait for its turn.
const slack = disappointment

// replace closes a node's data plane and returns another that is to take over.
func (b *takeOverBench) replace(t *testing.T, n *node, makeNext func(Namespace) (datapath.DataPlane, error)) datapath.DataPlane {
	t.Helper()
	n.close()
	next, err := makeNext(n.Namespace)
	must(t, err)
	n.dataPlane = next
	return next
}

// again returns a new instance of a data plane, which has a node's state of before.
func (b *takeOverBench) again(t *testing.T, n *node, of func(Namespace) (datapath.DataPlane, error)) datapath.DataPlane {
	t.Helper()
	p, err := of(n.Namespace)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	b.present(t, p, true)
	return p
}

// takeOver has another data plane take over from a node's, in the steps of
// datapath.DataPlane.
func (b *takeOverBench) takeOver(t *testing.T, n *node, makeNext func(Namespace) (datapath.DataPlane, error)) {
	t.Helper()
	old := n.dataPlane
	next, err := makeNext(n.Namespace)
	must(t, err)
	n.dataPlane = next
	b.present(t, old, true)
	b.present(t, next, false)
	b.finish(t, n, next, old)
}

// finish does all steps of a take-over, whatever was done of them before.
func (b *takeOverBench) finish(t *testing.T, n *node, next, old datapath.DataPlane) {
	t.Helper()
	must(t, next.Prepare(t.Context(), b.plans[n.name], old))
	b.begin(t)
	must(t, next.Apply(t.Context(), b.plans[n.name]))
	must(t, old.Remove(t.Context()))
	b.present(t, old, false)
	b.present(t, next, true)
	old.Close()
}

func (b *takeOverBench) present(t *testing.T, p datapath.DataPlane, want bool) {
	t.Helper()
	is, err := p.Present(t.Context())
	must(t, err)
	if is != want {
		t.Errorf("something of data plane %s is on the node: %v; expected %v", p.Name(), is, want)
	}
}
