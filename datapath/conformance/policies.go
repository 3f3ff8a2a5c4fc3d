package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// policyPlans are two nodes. On the first, server takes port 8080 of two
// clients: near, on the same node, and far, on the other. Verdicts are by
// client, so that one can be forbidden without the other.
const policyPlans = `node node1 addresses 172.30.0.2 mtu 1450
pool default 10.1.1.0/24 gateway 10.1.1.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.2 mac 0a:58:ac:1e:00:02
network default in vxlan vni 1
endpoint near network default addresses 10.1.1.3 mac 0a:58:0a:01:01:03
endpoint server network default addresses 10.1.1.2 mac 0a:58:0a:01:01:02 ingress-policy server
route default 0.0.0.0/0 gateway
route default 10.1.1.2/32 endpoint server
route default 10.1.1.3/32 endpoint near
peer node2 ends vxlan@172.30.0.3@0a:58:ac:1e:00:03
route default 10.1.2.0/24 tunnel node2
class default 10.1.1.3/32 c0
class default 10.1.2.2/32 c1
verdict server ingress from c0 tcp 8080 allow # near
verdict server ingress from c1 tcp 8080 allow # far
verdict server ingress from c1 udp 8080 allow # far
verdict server ingress from c1 tcp 22 deny # no shell

node node2 addresses 172.30.0.3 mtu 1450
pool default 10.1.2.0/24 gateway 10.1.2.1 tunnel vxlan
tunnel vxlan port 8472 vtep 172.30.0.3 mac 0a:58:ac:1e:00:03
network default in vxlan vni 1
endpoint far network default addresses 10.1.2.2 mac 0a:58:0a:01:02:02
route default 0.0.0.0/0 gateway
route default 10.1.2.2/32 endpoint far
peer node1 ends vxlan@172.30.0.2@0a:58:ac:1e:00:02
route default 10.1.1.0/24 tunnel node1
`

// policyBench is policyPlans, loaded.
type policyBench struct {
	*topology
	plans             map[string]*plan.Plan
	node              *node
	server, near, far *host
	address           netip.Addr // the server's
}

func (s *suite) newPolicyBench(t *testing.T) *policyBench {
	t.Helper()
	plans, err := plan.ParseAll(policyPlans)
	must(t, err)
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	b := &policyBench{topology: newTopology(t, s.make), plans: plans, address: netip.MustParseAddr("10.1.1.2")}
	b.load(plans)
	b.node = b.nodes["node1"]
	b.server, b.near, b.far = b.node.pods["server"].host, b.node.pods["near"].host, b.nodes["node2"].pods["far"].host
	return b
}

// change applies the first node's plan with some lines replaced.
func (b *policyBench) change(t *testing.T, replace ...string) {
	t.Helper()
	p, err := plan.Parse(strings.NewReplacer(replace...).Replace(b.plans["node1"].String()))
	must(t, err)
	b.apply(b.node, p)
	b.plans["node1"] = p
	if lines := b.repair(b.node); len(lines) > 0 {
		b.t.Errorf("after a change there is something to repair: %q", lines)
	}
}

func (s *suite) policies(t *testing.T) {
	t.Run("forbidden connections end", s.forbidden)
	t.Run("before the first packet", s.firstPacket)
	t.Run("denials are told", s.denials)
	t.Run("SCTP", s.sctp)
}

// talk is a connection with both its ends in hand.
type talk struct{ client, server net.Conn }

// connect opens a TCP connection to a listener of the server.
func (b *policyBench) connect(t *testing.T, l net.Listener, from *host) talk {
	t.Helper()
	return b.connectTo(t, l, from, b.address)
}

// connectTo opens a TCP connection to a listener, which has an address.
func (b *policyBench) connectTo(t *testing.T, l net.Listener, from *host, address netip.Addr) talk {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	client, err := from.dial("tcp", netip.Addr{}, netip.AddrPortFrom(address, 8080), patience)
	if err != nil {
		t.Fatalf("connect from %s: %v", from.name, err)
	}
	t.Cleanup(func() { client.Close() })
	select {
	case server := <-accepted:
		t.Cleanup(func() { server.Close() })
		return talk{client, server}
	case <-time.After(patience):
		t.Fatalf("the connection from %s was not accepted", from.name)
		return talk{}
	}
}

// passes reports whether a byte that one side writes gets to the other in time.
func passes(from, to net.Conn, within time.Duration) (bool, error) {
	if _, err := from.Write([]byte{'w'}); err != nil {
		return false, err
	}
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		return false, err
	}
	_, err := io.ReadFull(to, make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

func (k talk) alive(t *testing.T, who string) {
	t.Helper()
	for _, way := range []struct{ from, to net.Conn }{{k.client, k.server}, {k.server, k.client}} {
		if ok, err := passes(way.from, way.to, patience); !ok {
			t.Errorf("the connection of %s, which is allowed, does not pass: %v", who, err)
		}
	}
}

// afterlife bounds how long a connection goes on that a plan forbids: the second
// that datapath.DataPlane promises, and as much again for a busy machine.
const afterlife = 2 * time.Second

// ends waits until nothing passes any more that the client writes, and checks
// that what the server writes does not bring the connection back, and that both
// are told of the end.
func (k talk) ends(t *testing.T, who string) {
	t.Helper()
	for deadline := time.Now().Add(afterlife); ; {
		if ok, _ := passes(k.client, k.server, disappointment); !ok {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the connection of %s is forbidden and goes on", who)
			return
		}
	}
	if ok, _ := passes(k.server, k.client, disappointment); ok {
		t.Errorf("the connection of %s was ended, and the server brought it back", who)
	}
	for side, c := range map[string]net.Conn{"client": k.client, "server": k.server} {
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection of %s was ended, and the %s still waits", who, side)
		}
	}
}

// stays checks that a connection which has ended is not brought back by a side that
// does not know of it: the server may begin connections to the client, and what it
// sends looks like the first packet of one.
func (b *policyBench) stays(t *testing.T, k talk) {
	t.Helper()
	if _, tells := b.node.dataPlane.(datapath.Observer); !tells {
		t.Log("left out: the data plane does not count what it drops")
		return
	}
	client := k.client.LocalAddr().(*net.TCPAddr).AddrPort()
	before := b.dropped(t)[b.node][datapath.Ended]
	gateway := plan.MACOf(b.plans["node1"].Local.Pools[0].Gateway)
	must(t, b.server.inject("eth0", gateway, acknowledgement(netip.AddrPortFrom(b.address, 8080), client, "still there?")))
	for deadline := time.Now().Add(patience); b.dropped(t)[b.node][datapath.Ended] == before; {
		if time.Now().After(deadline) {
			t.Errorf("what the server sends of a connection to %s that has ended is not refused", client)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// forbidden checks that a change ends the connections that it forbids, and no
// others.
func (s *suite) forbidden(t *testing.T) {
	b := s.newPolicyBench(t)
	l := b.accepting(t, b.server)
	near, far := b.connect(t, l, b.near), b.connect(t, l, b.far)
	near.alive(t, "near")
	far.alive(t, "far")
	b.listen(b.server, service{plan.UDP, 8080})
	datagrams, err := b.far.dial("udp", netip.Addr{}, netip.AddrPortFrom(b.address, 8080), patience)
	must(t, err)
	defer datagrams.Close()
	answered := func(within time.Duration) bool {
		word, _ := b.expect()
		if _, err := datagrams.Write([]byte(word)); err != nil {
			// It was told that the connection has ended, and may try once more.
			_, err = datagrams.Write([]byte(word))
			must(t, err)
		}
		must(t, datagrams.SetReadDeadline(time.Now().Add(within)))
		_, err = datagrams.Read(make([]byte, 100))
		return err == nil
	}
	if !answered(patience) {
		t.Error("a datagram that is allowed is not answered")
	}

	b.change(t, "from c1 tcp 8080 allow", "from c1 tcp 8080 deny", "verdict server ingress from c1 udp 8080 allow # far\n", "")
	far.ends(t, "far, whose verdict changed,")
	b.stays(t, far)
	near.alive(t, "near")
	if answered(disappointment) {
		t.Error("a datagram is answered though its verdict has gone")
	}
	// The server may begin to send to far. An answer that it was about to give is no
	// beginning, to which far's datagrams would be the answers.
	gateway := plan.MACOf(b.plans["node1"].Local.Pools[0].Gateway)
	late := udp(netip.AddrPortFrom(b.address, 8080), datagrams.LocalAddr().(*net.UDPAddr).AddrPort(), "late")
	must(t, b.server.inject("eth0", gateway, late))
	if answered(disappointment) {
		t.Error("a datagram is answered though its verdict has gone, once an answer came late")
	}
	b.restart(b.plans)
	near.alive(t, "near")

	b.change(t, "class default 10.1.1.3/32 c0", "class default 10.1.1.3/32 c2")
	near.ends(t, "near, whose tag changed,")
	b.change(t, "class default 10.1.1.3/32 c2", "class default 10.1.1.3/32 c0", "tcp 8080 deny", "tcp 8080 allow")
	near, far = b.connect(t, l, b.near), b.connect(t, l, b.far)
	near.alive(t, "near")
	far.alive(t, "far")

	b.change(t, "mac 0a:58:0a:01:01:03", "mac 0a:58:0a:01:01:03 egress-policy nowhere")
	near.ends(t, "near, which has a policy now,")
	far.alive(t, "far")
	b.change(t, " egress-policy nowhere", "", " ingress-policy server", "")
	b.connect(t, l, b.near).alive(t, "near, when there is no policy,")
	far.alive(t, "far, when there is no policy,")

	// Nothing that near sends there passes any more; far's own connections go on.
	address, elsewhere := netip.MustParseAddr("10.1.2.2"), b.accepting(t, b.far)
	out := b.connectTo(t, elsewhere, b.near, address)
	out.alive(t, "near, to far,")
	b.change(t, "route default 0.0.0.0/0 gateway", "egress default any 10.1.2.0/24 drop\nroute default 0.0.0.0/0 gateway")
	out.ends(t, "near, which may not leave the node any more,")
	far.alive(t, "far, to which no connection may begin,")
	b.change(t, "egress default any 10.1.2.0/24 drop\n", "")
	b.connectTo(t, elsewhere, b.near, address).alive(t, "near, which may leave the node again,")
}

// accepting returns a listener of a host, until the test ends.
func (b *policyBench) accepting(t *testing.T, h *host) (l net.Listener) {
	t.Helper()
	must(t, h.Do(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(t.Context(), "tcp4", ":8080")
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return l
}

// firstPacket checks that an endpoint that comes is under its policies at once:
// somebody sends to it all the while.
func (s *suite) firstPacket(t *testing.T) {
	b := s.newPolicyBench(t)
	without := *b.plans["node1"]
	without.Endpoints = without.Endpoints.Delete(plan.EndpointKey{Interface: "server"})
	without.Routes = without.Routes.Delete(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.PrefixFrom(b.address, 32)})
	b.listen(b.server, service{plan.UDP, 8080})
	for _, verdicts := range []plan.Table[plan.VerdictKey, plan.Verdict]{without.Verdicts, {}} {
		without.Verdicts = verdicts
		b.apply(b.node, &without)

		word, arrived := b.expect()
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			c, err := b.near.dial("udp", netip.Addr{}, netip.AddrPortFrom(b.address, 8080), patience)
			if err == nil {
				defer c.Close()
				for sending := true; sending; {
					_, _ = c.Write([]byte(word)) // before there is a route, it is an error now and then
					select {
					case <-stop:
						sending = false
					default:
					}
				}
			}
			stopped <- err
		}()
		b.apply(b.node, b.plans["node1"])
		close(stop)
		must(t, <-stopped)
		// What is allowed takes the same way at its end.
		marker, came := b.expect()
		c, err := b.far.dial("udp", netip.Addr{}, netip.AddrPortFrom(b.address, 8080), patience)
		must(t, err)
		_, err = c.Write([]byte(marker))
		must(t, err)
		select {
		case <-came:
		case <-time.After(patience):
			t.Error("what is allowed does not arrive")
		}
		c.Close()
		select {
		case <-arrived:
			t.Error("a packet arrived that the endpoint's policy denies")
		default:
		}
	}
}

// denials checks what a datapath.Observer tells.
func (s *suite) denials(t *testing.T) {
	b := s.newPolicyBench(t)
	observer, ok := b.node.dataPlane.(datapath.Observer)
	if !ok {
		t.Skip("left out: the data plane does not tell of denials")
	}
	far := netip.MustParseAddr("10.1.2.2")
	shell := plan.VerdictKey{Policy: "server", Direction: plan.Incoming, Peer: plan.FirstOwnClass + 1, Protocol: plan.TCP, Ports: plan.PortRange{First: 22, Last: 22}}
	for _, c := range []struct {
		what     string
		key      plan.VerdictKey
		protocol plan.Protocol
		port     uint16
	}{
		{"a verdict", shell, plan.TCP, 22},
		{"no verdict at all", plan.Otherwise("server", plan.Incoming), plan.UDP, 9},
		{"no verdict for ICMP", plan.Otherwise("server", plan.Incoming), plan.ICMP, 0},
	} {
		before, err := observer.Denied()
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		drops, ended := make(chan datapath.Drop, 100), make(chan error, 1)
		go func() {
			ended <- observer.Follow(ctx, func(d datapath.Drop) {
				select {
				case drops <- d:
				default:
				}
			})
		}()
		got, err := b.deniedPacket(c.protocol, c.port, drops, ended)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("Follow ended with %v", err)
		}
		if c.protocol.HasPorts() && got.SourcePort == 0 || got.Time.IsZero() || time.Since(got.Time) > time.Hour {
			t.Errorf("%s: the source port is %d, the time %s", c.what, got.SourcePort, got.Time)
		}
		got.SourcePort, got.Time = 0, time.Time{}
		want := datapath.Drop{Direction: plan.Incoming, Interface: "server", Network: plan.DefaultNetwork,
			Source: far, Destination: b.address, Protocol: c.protocol, Port: c.port}
		if got != want {
			t.Errorf("%s: told of %+v; expected %+v", c.what, got, want)
		}
		after, err := observer.Denied()
		must(t, err)
		for k, n := range after {
			if k != c.key && n != before[k] {
				t.Errorf("%s: %+v counts %d, after %d", c.what, k, n, before[k])
			}
		}
		if after[c.key] <= before[c.key] {
			t.Errorf("%s: %+v counts %d, after %d", c.what, c.key, after[c.key], before[c.key])
		}
	}
	if err := observer.Follow(canceled(), func(datapath.Drop) {}); err != nil {
		t.Errorf("Follow, when it is to end at once: %v", err)
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// deniedPacket sends what is denied until somebody tells of it.
func (b *policyBench) deniedPacket(p plan.Protocol, port uint16, drops <-chan datapath.Drop, ended chan error) (datapath.Drop, error) {
	a := &attempt{flow: plan.Flow{Destination: b.address, Protocol: p, Port: port}, from: b.far}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		a.deny()
		if a.failed != "" {
			return datapath.Drop{}, errors.New(a.failed)
		}
		select {
		case d := <-drops:
			return d, nil
		case err := <-ended:
			ended <- err
			return datapath.Drop{}, fmt.Errorf("following ended: %w", err)
		case <-time.After(disappointment):
		}
	}
	return datapath.Drop{}, errors.New("nobody told of a packet that was denied")
}
