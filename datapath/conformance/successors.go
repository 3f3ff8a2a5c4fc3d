package conformance

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weftnet/weft/plan"
)

// successorPlan is a node where first, which everybody may reach, has addresses
// that second has next. Only friend may reach that one.
const successorPlan = `node node1 addresses 172.30.0.2,fd01::2 mtu 1500
pool default 10.1.1.0/24 gateway 10.1.1.1
pool default fd00:1::/64 gateway fd00:1::1
endpoint first network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02
endpoint friend network default addresses 10.1.1.3,fd00:1::3 mac 0a:58:0a:01:01:03
endpoint stranger network default addresses 10.1.1.4,fd00:1::4 mac 0a:58:0a:01:01:04
route default 0.0.0.0/0 gateway
route default ::/0 gateway
route default 10.1.1.2/32 endpoint first
route default 10.1.1.3/32 endpoint friend
route default 10.1.1.4/32 endpoint stranger
route default fd00:1::2/128 endpoint first
route default fd00:1::3/128 endpoint friend
route default fd00:1::4/128 endpoint stranger
class default 10.1.1.3/32 c0
class default fd00:1::3/128 c0
verdict closed ingress from c0 udp 8080 allow # friend
egress default any 0.0.0.0/0 masquerade
egress default any ::/0 masquerade
`

// successors checks that nothing of an endpoint's connections gets to the next
// one with its address, from the moment that this is there.
func (s *suite) successors(t *testing.T) {
	parse := func(replace ...string) *plan.Plan {
		p, err := plan.Parse(strings.NewReplacer(replace...).Replace(successorPlan))
		must(t, err)
		return p
	}
	first := parse()
	second := parse("endpoint first", "endpoint second", "02\n", "02 ingress-policy closed\n")
	neither := parse("endpoint first network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02\n", "",
		"route default 10.1.1.2/32 endpoint first\n", "", "route default fd00:1::2/128 endpoint first\n", "")
	plans := map[string]*plan.Plan{"node1": first}
	if lacks := s.lacks(map[string]*plan.Plan{"node1": second}); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	for name, change := range map[string]func(l *topology, n *node){
		"one after the other": func(l *topology, n *node) {
			l.plug(n, neither)
			l.apply(n, neither)
			l.plug(n, second)
			l.apply(n, second)
		},
		"at once": func(l *topology, n *node) {
			l.plug(n, second)
			l.apply(n, second)
		},
		"while the data plane is away": func(l *topology, n *node) {
			n.close()
			l.plug(n, neither)
			l.start(n)
			l.plug(n, second)
			must(t, n.Do(func() error {
				// As whoever makes interfaces does, so that one that has been there can
				// be told from one that is new.
				link, err := netlink.LinkByName("second")
				if err != nil {
					return err
				}
				return netlink.LinkSetDown(link)
			}))
			l.apply(n, second)
			must(t, n.pods["second"].Do(func() error { return waitUp("eth0") }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTopology(t, s.make)
			l.load(plans)
			n := l.nodes["node1"]
			before := n.pods["first"]
			l.listen(before.host, service{plan.UDP, 8080})
			for _, pod := range []string{"friend", "stranger"} {
				l.listen(n.pods[pod].host, service{plan.UDP, 8080})
			}
			var into, outOf, alive []udpTalk
			for i, a := range before.addresses {
				into = append(into, l.talkTo(t, n.pods["stranger"].host, netip.AddrPortFrom(a, 8080)))
				outOf = append(outOf, l.talkOut(t, before.host, a, outside[i].Addr()))
				alive = append(alive, l.talkTo(t, n.pods["stranger"].host, netip.AddrPortFrom(n.pods["friend"].addresses[i], 8080)))
			}
			change(l, n)
			after := n.pods["second"]
			l.listen(after.host, service{plan.UDP, 8080})
			for i, a := range after.addresses {
				for what, talk := range map[string]udpTalk{"what another pod sent to its predecessor": into[i], "an answer from outside to its predecessor": outOf[i]} {
					l.listen(after.host, service{plan.UDP, talk.port})
					word, arrived := l.expect()
					must(t, talk.again(word))
					l.answered(t, n.pods["friend"].host, netip.AddrPortFrom(a, 8080)) // by the same way, and later
					select {
					case <-arrived:
						t.Errorf("%s gets %s", a, what)
					case <-time.After(disappointment):
					}
				}
				word, arrived := l.expect()
				must(t, alive[i].again(word))
				select {
				case <-arrived:
				case <-time.After(patience):
					t.Error("a connection of others does not go on")
				}
			}
		})
	}
}

// udpTalk is a UDP connection that was answered.
type udpTalk struct {
	// port is that of the endpoint.
	port uint16
	// again sends to the endpoint once more.
	again func(word string) error
}

// talkTo has a host talk to an endpoint that answers.
func (l *topology) talkTo(t *testing.T, from *host, to netip.AddrPort) udpTalk {
	t.Helper()
	c := l.answered(t, from, to)
	return udpTalk{to.Port(), func(word string) error {
		// Each may tell of an error of before: that of a connection that has ended both sides are told once, a while after
		// it has, and that may be between two of these.
		var err error
		for range 3 {
			if _, err = c.Write([]byte(word)); err == nil {
				_, err = c.Write([]byte(word))
			}
			if err == nil {
				return nil
			}
		}
		return err
	}}
}

// answered has a host send something that is answered.
func (l *topology) answered(t *testing.T, from *host, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := from.dial("udp", netip.Addr{}, to, patience)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	word, _ := l.expect()
	_, err = c.Write([]byte(word))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err = c.Read(make([]byte, 100)); err != nil {
		t.Fatalf("%s sends to %s, and is not answered: %v", from.name, to, err)
	}
	return c
}

// talkOut has an endpoint talk to an address outside, which answers.
func (l *topology) talkOut(t *testing.T, from *host, source, to netip.Addr) udpTalk {
	t.Helper()
	var server *net.UDPConn
	must(t, l.out.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 0)))
		return err
	}))
	t.Cleanup(func() { server.Close() })
	at := netip.AddrPortFrom(to, server.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	c, err := from.dial("udp", source, at, patience)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write([]byte("w"))
	must(t, err)
	must(t, server.SetReadDeadline(time.Now().Add(patience)))
	_, seen, err := server.ReadFromUDPAddrPort(make([]byte, 100))
	must(t, err)
	again := func(word string) error {
		_, _ = server.WriteToUDPAddrPort([]byte(word), seen)
		_, err := server.WriteToUDPAddrPort([]byte(word), seen)
		return err
	}
	must(t, again("w"))
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err = c.Read(make([]byte, 100))
	must(t, err)
	return udpTalk{c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), again}
}
