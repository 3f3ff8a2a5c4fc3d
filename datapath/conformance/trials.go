package conformance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// Bytes that VXLAN adds to a packet (RFC 7348), by the underlay's family, and
// those of the headers in front of a datagram.
const (
	vxlan4, vxlan6 = 50, 70
	udp4, udp6     = 28, 48
)

// lengths checks that the longest packet that a path takes passes whole, and
// that the sender of one byte more is told so, where pods' interfaces would
// take more than the path does.
func (s *suite) lengths(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape plantest.Shape
		limit int
	}{
		{"tunnel", plantest.Shape{Endpoints: []int{1, 1}, IPv4: true, IPv6: true, Tunnel: true}, underlayMTU - vxlan4},
		{"tunnel over IPv6", plantest.Shape{Endpoints: []int{1, 1}, IPv6: true, Tunnel: true}, underlayMTU - vxlan6},
		{"next hop", plantest.Shape{Endpoints: []int{1, 1}, IPv4: true, IPv6: true}, underlayMTU},
	} {
		t.Run(c.name, func(t *testing.T) {
			plans := c.shape.Plans()
			if lacks := s.lacks(plans); len(lacks) > 0 {
				t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
			}
			l := newTopology(t, s.make)
			l.podMTU = underlayMTU
			l.load(plans)
			from := l.nodes["node1"].pods["weft0101"]
			to := l.nodes["node2"].pods["weft0201"]
			for i, destination := range to.addresses {
				source := from.addresses[i]
				if err := l.sendLength(from.host, to.host, source, destination, c.limit); err != nil {
					t.Errorf("%s to %s: a packet of %d bytes: %v", source, destination, c.limit, err)
				}
				err := l.sendLength(from.host, to.host, source, destination, c.limit+1)
				if !errors.Is(err, unix.EMSGSIZE) {
					t.Errorf("%s to %s: a packet of %d bytes: %v; expected that the sender is told that it is too long", source, destination, c.limit+1, err)
				}
			}
		})
	}
}

// sendLength sends a datagram in an IP packet of that many bytes and waits for
// its answer, or for the error that it meets.
func (l *topology) sendLength(from, to *host, source, destination netip.Addr, length int) error {
	const port = 8080
	l.listen(to, service{plan.UDP, port})
	header := udp4
	if destination.Is6() {
		header = udp6
	}
	word, arrived := l.expect()
	c, err := from.dial("udp", source, netip.AddrPortFrom(destination, port), patience, dontFragment)
	if err != nil {
		return err
	}
	defer c.Close()
	data := make([]byte, length-header)
	copy(data, word+" ")
	if _, err := c.Write(data); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 100)); err != nil {
		return err
	}
	if got := <-arrived; got.source != source {
		return fmt.Errorf("arrived from %s", got.source)
	}
	return nil
}

// connections checks that open connections outlive what must not touch them:
// other instances of the data plane, repairs, and changes of other entries.
func (s *suite) connections(t *testing.T) {
	plans := plantest.Shape{Endpoints: []int{2, 1}, IPv4: true, Tunnel: true, Gateway: true, Masquerade: true, Drop: true}.Plans()
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	l := newTopology(t, s.make)
	l.load(plans)
	const port = 8080
	for _, h := range l.hosts() {
		l.listen(h, service{plan.TCP, port})
	}
	node1 := l.nodes["node1"]
	first := node1.pods["weft0101"].host
	open := map[string]net.Conn{}
	for name, end := range map[string]struct {
		from *host
		to   string
	}{
		"pod to pod on the node":   {first, "10.1.1.3"},
		"pod to pod across nodes":  {first, "10.1.2.2"},
		"node to pod across nodes": {node1.host, "10.1.2.2"},
		"pod to the outside":       {first, "198.51.100.7"},
		"outside to pod":           {l.out, "10.1.2.2"},
	} {
		c, err := end.from.dial("tcp", netip.Addr{}, netip.AddrPortFrom(netip.MustParseAddr(end.to), port), patience)
		if err != nil {
			t.Fatalf("connect %s: %v", name, err)
		}
		defer c.Close()
		open[name] = c
	}
	alive := func(after string) {
		t.Helper()
		for name, c := range open {
			word, _ := l.expect()
			if err := converse(c, word); err != nil {
				t.Errorf("the connection from %s after %s: %v", name, after, err)
			}
		}
	}
	alive("it was opened")
	l.restart(plans)
	alive("a restart")

	p := plans["node1"]
	more := *p
	k := plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.77.0/24")}
	router := netip.MustParseAddr("172.30.0.254")
	more.Peers = p.Peers.Set(plan.PeerKey{Name: router.String()}, plan.Peer{Addresses: []netip.Addr{router}})
	more.Routes = p.Routes.Set(k, plan.Route{Way: plan.ToNextHop, Peers: []string{router.String()}})
	more.Egress = p.Egress.Set(plan.EgressKey{Network: plan.DefaultNetwork, Destination: netip.MustParsePrefix("203.0.113.0/24")}, plan.Egress{Action: plan.Direct})
	l.apply(node1, &more)
	alive("a route and an egress rule came")
	l.apply(node1, p)
	alive("they went")

	gone := *p
	gone.Endpoints = p.Endpoints.Delete(plan.EndpointKey{Interface: "weft0102"})
	gone.Routes = p.Routes.Delete(plan.RouteKey{Network: plan.DefaultNetwork, Prefix: netip.MustParsePrefix("10.1.1.3/32")})
	open["pod to pod on the node"].Close()
	delete(open, "pod to pod on the node")
	l.apply(node1, &gone)
	alive("another pod went")
	l.restart(map[string]*plan.Plan{"node1": &gone, "node2": plans["node2"]})
	alive("another restart")
}

// disturbances checks that what others did to a node is put right, by a repair
// or by a new instance, and that a data plane which is a Watcher tells of that, and of
// nothing that it does itself.
func (s *suite) disturbances(t *testing.T) {
	shape := plantest.Shape{Endpoints: []int{2, 1}, IPv4: true, IPv6: s.able.IPv6, Tunnel: true, NodesThroughTunnel: true,
		Gateway: true, Masquerade: true}
	if s.able.Verdicts {
		udp := plan.Otherwise("most", plan.Incoming)
		udp.Protocol = plan.UDP
		shape.Policed = map[string]plantest.Policing{"weft0101": {Ingress: "most", Egress: "most"}}
		shape.Verdicts = map[plan.VerdictKey]plan.Verdict{plan.Otherwise("most", plan.Incoming): {Allow: true}, plan.Otherwise("most", plan.Outgoing): {Allow: true}, udp: {}}
	}
	plans := shape.Plans()
	if lacks := s.lacks(plans); len(lacks) > 0 {
		t.Skipf("left out: the data plane has no %s", strings.Join(lacks, ", "))
	}
	if s.able.Services {
		plans = plantest.Served(plans).Filter(func(p map[string]*plan.Plan) bool {
			for _, s := range p["node1"].Services.All() {
				if s.Here {
					return true
				}
			}
			return !s.able.AnswersHere
		}).Example(defaultSeed)
	}
	if s.able.Bandwidth {
		p := *plans["node1"]
		for k, e := range plans["node1"].Endpoints.All() {
			e.IngressRate, e.EgressRate = 1_000_000_000, 1_000_000_000
			p.Endpoints = p.Endpoints.Set(k, e)
		}
		plans["node1"] = &p
	}
	l := newTopology(t, s.make)
	l.load(plans)
	var flows []plan.Flow
	for i := range flowsPerCluster {
		flows = append(flows, plantest.Flows(plans).Example(i))
	}
	n := l.nodes["node1"]
	if _, ok := n.dataPlane.(datapath.Watcher); !ok {
		t.Log("left out: what is told of disturbances, as the data plane is no Watcher")
	}
	l.unwatched(t, n, shape)
	l.apply(n, plans["node1"])
	for _, d := range disturbances {
		for _, restart := range []bool{false, true} {
			w := watch(t, n)
			count := 0
			must(t, n.Do(func() (err error) {
				count, err = d.do(n)
				return err
			}))
			if count > 0 {
				w.mustTell(d.what)
			}
			var done []string
			if restart {
				w.end()
				l.start(n)
				w = watch(t, n)
				l.apply(n, plans["node1"])
				w.mustNotTell(d.what + ", and a new instance puts it right")
			} else {
				done = l.repair(n)
				w.mustNotTell(d.what + ", and a repair puts it right")
			}
			switch {
			case count == 0:
				t.Logf("%s: there was nothing of that kind", d.what)
			case !restart && len(done) == 0:
				t.Errorf("%s: %d were gone and the repair did nothing", d.what, count)
			}
			if again := l.repair(n); len(again) > 0 {
				t.Errorf("%s: a second repair still found %q", d.what, again)
			}
			w.end()
			l.try(t, plans, flows[:10])
		}
	}
	l.try(t, plans, flows)

	must(t, n.dataPlane.Remove(t.Context()))
	for _, d := range disturbances {
		count := 0
		must(t, n.Do(func() (err error) {
			count, err = d.do(n)
			return err
		}))
		if count > 0 {
			t.Errorf("after Remove there were %d left of: %s", count, d.what)
		}
	}
}

// refusals checks that what cannot be done is refused by name, with nothing
// changed, and that an endpoint without its interface is all that is left out.
func (s *suite) refusals(t *testing.T) {
	plans := plantest.Shape{Endpoints: []int{2, 1}, IPv4: true}.Plans()
	l := newTopology(t, s.make)
	l.load(plans)
	n, p := l.nodes["node1"], plans["node1"]
	flows := []plan.Flow{{Source: netip.MustParseAddr("10.1.1.2"), Destination: netip.MustParseAddr("10.1.2.2"), Protocol: plan.TCP, Port: 8080}}

	for _, c := range []struct {
		line string
		able bool
	}{
		{"verdict web ingress from 5 tcp 80 allow", s.able.Verdicts},
		{"service default 10.3.0.1 tcp 80 to web\nbackend default web 10.1.2.2:8080", s.able.Services},
		{"service default 10.3.0.1 udp 53 from inside here", s.able.AnswersHere},
		{"egress default any 203.0.113.0/24 via node2", slices.Contains(s.able.EgressActions, plan.ViaNode)},
		{"endpoint other network blue addresses 10.1.1.2 mac 0a:58:0a:01:01:02", s.able.OverlappingNetworks},
		{"endpoint other network default addresses 10.1.1.9 mac 0a:58:0a:01:01:09 ingress-rate 1000000", s.able.Bandwidth},
		{"peer router ends vxlan@172.30.0.254@0a:58:ac:1e:00:fe carries-tags", s.able.Tags},
		{"route default 10.1.9.0/24 nexthop node2,router\npeer router addresses 172.30.0.254", s.able.Multipath},
	} {
		if c.able {
			t.Logf("left out, as the data plane can do it: %s", c.line)
			continue
		}
		q, err := plan.Parse(p.String() + c.line + "\n")
		must(t, err)
		err = n.dataPlane.Apply(t.Context(), q)
		if name := strings.Join(strings.Fields(c.line)[:2], " "); !errors.Is(err, datapath.ErrNotSupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v; expected one that names the entry and wraps %v", c.line, err, datapath.ErrNotSupported)
		}
		if lines := l.repair(n); len(lines) > 0 {
			t.Errorf("%s was refused but had changed something, as there is this to repair: %q", c.line, lines)
		}
		l.apply(n, p)
	}
	l.try(t, plans, flows)

	text := p.String() + "endpoint absent network default addresses 10.1.1.9 mac 0a:58:0a:01:01:09\n" +
		"route default 10.1.1.9/32 endpoint absent\nroute default 10.1.88.0/24 drop\n"
	q, err := plan.Parse(text)
	must(t, err)
	if err := n.dataPlane.Apply(t.Context(), q); !errors.Is(err, datapath.ErrMissing) || !strings.Contains(err.Error(), "absent") {
		t.Errorf("an endpoint's interface is missing, and the error is %v; expected one that names it and wraps %v", err, datapath.ErrMissing)
	}
	plans["node1"] = q
	flows = append(flows, plan.Flow{Source: netip.MustParseAddr("10.1.1.3"), Destination: netip.MustParseAddr("10.1.88.1"), Protocol: plan.UDP, Port: 8080})
	l.try(t, plans, flows)
	l.plug(n, q)
	l.apply(n, q)
	l.try(t, plans, append(flows, plan.Flow{Source: netip.MustParseAddr("10.1.2.2"), Destination: netip.MustParseAddr("10.1.1.9"), Protocol: plan.TCP, Port: 8080}))
}
