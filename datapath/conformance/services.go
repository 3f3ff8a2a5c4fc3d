package conformance

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/plan/plantest"
)

// services is clusters with Services.
func (s *suite) services(t *testing.T) {
	if !s.able.Services {
		t.Skip("left out: the data plane has no services")
	}
	t.Run("backends", s.backends)
	t.Run("unfitting", s.unfitting)
	t.Run("over", s.over)
	t.Run("early", s.early)
	t.Run("unanswered", s.unanswered)
	t.Run("undisturbed", s.undisturbed)
	t.Run("counts", s.counts)
	s.clustersOf(t, rapid.Custom(func(t *rapid.T) map[string]*plan.Plan {
		plans := plantest.Cluster().Filter(func(p map[string]*plan.Plan) bool { return len(p) > 0 }).Draw(t, "cluster")
		return plantest.Served(plans).Draw(t, "services")
	}))
}

// entrance is the node by which what comes from outside gets to an address: the one that
// has it, or, where it is a frontend that no node has as its own, the first.
func entrance(plans map[string]*plan.Plan, a netip.Addr) (node string, hop netip.Addr) {
	front := false
	for i := range 4 {
		name := plantest.NodeName(i + 1)
		p := plans[name]
		if p == nil {
			continue
		}
		if slices.Contains(p.Local.Addresses, a) {
			return name, a
		}
		for k := range p.Services.All() {
			front = front || k.Address == a
		}
		at := slices.IndexFunc(p.Local.Addresses, func(own netip.Addr) bool { return own.Is4() == a.Is4() })
		if node == "" && at >= 0 {
			node, hop = name, p.Local.Addresses[at]
		}
	}
	if !front {
		return "", netip.Addr{}
	}
	return node, hop
}

// frontends are the addresses of those of all plans, each once.
func frontends(plans map[string]*plan.Plan) (all []netip.Addr) {
	for _, p := range plans {
		for k := range p.Services.All() {
			if !slices.Contains(all, k.Address) {
				all = append(all, k.Address)
			}
		}
	}
	return all
}

// servicePlan is a node with two servers, a client and a Service that some change.
const servicePlan = `node node1 addresses 172.30.0.2,fd01::2 mtu 1500
pool default 10.1.1.0/24 gateway 10.1.1.1
pool default fd00:1::/64 gateway fd00:1::1
endpoint client network default addresses 10.1.1.2,fd00:1::2 mac 0a:58:0a:01:01:02
endpoint one network default addresses 10.1.1.3,fd00:1::3 mac 0a:58:0a:01:01:03
endpoint two network default addresses 10.1.1.4,fd00:1::4 mac 0a:58:0a:01:01:04
route default 0.0.0.0/0 gateway
route default ::/0 gateway
route default 10.1.1.2/32 endpoint client
route default 10.1.1.3/32 endpoint one
route default 10.1.1.4/32 endpoint two
route default fd00:1::2/128 endpoint client
route default fd00:1::3/128 endpoint one
route default fd00:1::4/128 endpoint two
egress default any 0.0.0.0/0 masquerade
egress default any ::/0 masquerade
`

// serving returns servicePlan with a Service of each protocol and family, with backends of
// some weights. more is what the frontends say beside their set.
func serving(t *testing.T, more string, weights map[string]int) *plan.Plan {
	t.Helper()
	text := servicePlan
	for _, protocol := range []string{"tcp", "udp"} {
		for _, front := range []string{"10.3.0.1", "fd00:3::1"} {
			text += "service default " + front + " " + protocol + " 80 to web " + more + "\n"
		}
	}
	for name, weight := range weights {
		host := map[string]string{"one": "3", "two": "4"}[name]
		for _, a := range []string{"10.1.1." + host, "[fd00:1::" + host + "]"} {
			text += fmt.Sprintf("backend default web %s:8080 weight %d affinity\n", a, weight)
		}
	}
	p, err := plan.Parse(text)
	must(t, err)
	return p
}

// forgetting is a plan with backends that no client is remembered to have.
func forgetting(p *plan.Plan) *plan.Plan {
	q := *p
	for k, b := range p.Backends.All() {
		b.Affinity = false
		q.Backends = q.Backends.Set(k, b)
	}
	return &q
}

// backends checks what becomes of connections when backends leave: those to one that is
// drained go on. From one that is gone datagrams go to another at once, and streams end a while later,
// also where it was the last; where it is back by then they go on.
func (s *suite) backends(t *testing.T) {
	l := newTopology(t, s.make)
	plans := map[string]*plan.Plan{"node1": serving(t, "", map[string]int{"one": 1})}
	l.load(plans)
	n := l.nodes["node1"]
	for _, pod := range []string{"one", "two"} {
		for _, protocol := range []plan.Protocol{plan.TCP, plan.UDP} {
			l.listen(n.pods[pod].host, service{protocol, 8080})
		}
	}
	change := func(weights map[string]int) {
		t.Helper()
		plans["node1"] = serving(t, "", weights)
		l.apply(n, plans["node1"])
	}
	type client struct {
		name      string
		from      *host
		to        netip.AddrPort
		stream    net.Conn
		datagrams udpTalk
	}
	connect := func(c *client) net.Conn {
		t.Helper()
		stream, err := c.from.dial("tcp", netip.Addr{}, c.to, patience)
		must(t, err)
		t.Cleanup(func() { stream.Close() })
		return stream
	}
	var clients []*client
	for _, from := range []*host{n.pods["client"].host, n.host} {
		for _, to := range []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")} {
			c := &client{name: from.name + " to " + to.String(), from: from, to: to, datagrams: l.talkTo(t, from, to)}
			c.stream = connect(c)
			clients = append(clients, c)
		}
	}
	at := func(what string, c *client) string {
		t.Helper()
		word, arrived := l.expect()
		must(t, c.datagrams.again(word))
		select {
		case got := <-arrived:
			return got.receiver
		case <-time.After(patience):
			t.Fatalf("%s: what %s is sent does not arrive", what, c.name)
			return ""
		}
	}
	streamsGoOn := func(what string) {
		t.Helper()
		for _, c := range clients {
			word, _ := l.expect()
			if err := converse(c.stream, word); err != nil {
				t.Errorf("%s: the connection of %s does not go on: %v", what, c.name, err)
			}
		}
	}
	allGoesOn := func(what string) {
		t.Helper()
		streamsGoOn(what)
		for _, c := range clients {
			if got := at(what, c); got != "one" {
				t.Errorf("%s: datagrams of %s go to %s", what, c.name, got)
			}
		}
	}
	datagramsGoTo := func(what, pod string) {
		t.Helper()
		for _, c := range clients {
			deadline := time.Now().Add(patience)
			got := at(what, c)
			for ; got != pod && time.Now().Before(deadline); time.Sleep(pause) {
				got = at(what, c)
			}
			if got != pod {
				t.Errorf("%s: datagrams of %s go to %s", what, c.name, got)
			}
		}
	}
	end := func(what string, stream net.Conn, with ...error) {
		t.Helper()
		must(t, stream.SetReadDeadline(time.Now().Add(2*patience)))
		_, err := stream.Read(make([]byte, 1))
		if !slices.ContainsFunc(with, func(e error) bool { return errors.Is(err, e) }) {
			t.Errorf("%s: who is connected gets %v", what, err)
		}
	}
	allGoesOn("at first")
	change(map[string]int{"one": 1, "two": 1})
	allGoesOn("another comes")
	change(map[string]int{"one": 0, "two": 1})
	allGoesOn("it is drained")
	change(map[string]int{"two": 1})
	datagramsGoTo("its backend is away", "two")
	streamsGoOn("its backend is away for a moment")
	change(map[string]int{"one": 1, "two": 1})
	streamsGoOn("its backend is back")
	change(map[string]int{"two": 1})
	for _, c := range clients {
		end(c.name+": its backend is gone", c.stream, unix.ECONNRESET, io.EOF)
		c.stream = connect(c)
	}
	change(nil)
	for _, c := range clients {
		end(c.name+": the last backend is gone", c.stream, unix.ECONNRESET)
		if _, err := c.from.dial("tcp", netip.Addr{}, c.to, patience); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: nobody is there, and who connects gets: %v", c.name, err)
		}
	}
	change(map[string]int{"one": 1})
	datagramsGoTo("one is there again", "one")
}

// affinity checks that a client has the same backend again, also behind a restart, and
// another once that is gone, or once no client is remembered to have one of its backends.
func (s *suite) affinity(t *testing.T) {
	if !s.able.Services {
		t.Skip("left out: the data plane has no services")
	}
	l := newTopology(t, s.make)
	plans := map[string]*plan.Plan{"node1": serving(t, "affinity 1h0m0s", map[string]int{"one": 1, "two": 1})}
	l.load(plans)
	n := l.nodes["node1"]
	for _, pod := range []string{"one", "two"} {
		l.listen(n.pods[pod].host, service{plan.TCP, 8080})
	}
	client := n.pods["client"].host
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")} {
		ask := func() string {
			t.Helper()
			c, err := client.dial("tcp", netip.Addr{}, to, patience)
			must(t, err)
			defer c.Close()
			word, arrived := l.expect()
			must(t, converse(c, word))
			return (<-arrived).receiver
		}
		same := func(what, first string) {
			t.Helper()
			for range 12 {
				if got := ask(); got != first {
					t.Fatalf("%s: the client of %s gets %s, and had %s", what, to, got, first)
				}
			}
		}
		first := ask()
		same("it comes again", first)
		l.restart(plans)
		same("behind a restart", first)
		second := map[string]string{"one": "two", "two": "one"}[first]
		plans["node1"] = serving(t, "affinity 1h0m0s", map[string]int{first: 0, second: 1})
		l.apply(n, plans["node1"])
		same("its backend is drained", second)
		plans["node1"] = serving(t, "affinity 1h0m0s", map[string]int{"one": 1, "two": 1})
		l.apply(n, plans["node1"])
		same("it is back", second)
		plans["node1"] = forgetting(plans["node1"])
		l.apply(n, plans["node1"])
		got := make(map[string]bool)
		for range 64 {
			got[ask()] = true
		}
		if len(got) != 2 {
			t.Errorf("no backend of %s has affinity, and 64 connections of one client all go to %s", to, slices.Collect(maps.Keys(got)))
		}
		plans["node1"] = serving(t, "affinity 1h0m0s", map[string]int{"one": 1, "two": 1})
		l.apply(n, plans["node1"])
		same("they have it again", ask())
	}
}

// crowd checks that clients of a Service that remembers them get a backend, whether or not
// there is room to remember them.
func (s *suite) crowd(t *testing.T) {
	if !s.able.Services {
		t.Skip("left out: the data plane has no services")
	}
	l := newTopology(t, s.make)
	plans := map[string]*plan.Plan{"node1": serving(t, "affinity 1h0m0s", map[string]int{"one": 1})}
	l.load(plans)
	n := l.nodes["node1"]
	l.listen(n.pods["one"].host, service{plan.TCP, 8080})
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")} {
		for _, from := range []*host{n.pods["client"].host, n.pods["two"].host, n.host} {
			c, err := from.dial("tcp", netip.Addr{}, to, patience)
			if err != nil {
				t.Errorf("%s connects to %s: %v", from.name, to, err)
				continue
			}
			must(t, c.Close())
		}
	}
}

// memory checks that each client that comes to a Service that remembers clients has the same backend when it comes
// again, from its first connection on, and that of a Service that remembers nobody all backends get connections: whether
// or not there is room to count what they are given, or for one backend of each Service alone.
func (s *suite) memory(t *testing.T) {
	if !s.able.Services {
		t.Skip("left out: the data plane has no services")
	}
	const each = SomeServices / 2
	text := servicePlan
	var remember, all []netip.AddrPort
	for port := uint16(80); port < 80+2*each; port++ { // each time, one of two backends may be the same by chance
		affinity := ""
		if port < 80+each {
			affinity = "affinity 1h0m0s"
		}
		for _, front := range []string{"10.3.0.1", "fd00:3::1"} {
			text += fmt.Sprintf("service default %s tcp %d to web-%d %s\n", front, port, port, affinity)
			to := netip.AddrPortFrom(netip.MustParseAddr(front), port)
			if all = append(all, to); affinity != "" {
				remember = append(remember, to)
			}
		}
		for _, a := range []string{"10.1.1.3", "10.1.1.4", "[fd00:1::3]", "[fd00:1::4]"} {
			text += fmt.Sprintf("backend default web-%d %s:8080 affinity\n", port, a)
		}
	}
	p, err := plan.Parse(text)
	must(t, err)
	l := newTopology(t, s.make)
	l.load(map[string]*plan.Plan{"node1": p})
	n := l.nodes["node1"]
	for _, pod := range []string{"one", "two"} {
		l.listen(n.pods[pod].host, service{plan.TCP, 8080})
	}
	ask := func(from *host, to netip.AddrPort) string {
		t.Helper()
		c, err := from.dial("tcp", netip.Addr{}, to, patience)
		must(t, err)
		defer c.Close()
		word, arrived := l.expect()
		must(t, converse(c, word))
		return (<-arrived).receiver
	}
	had := map[netip.AddrPort]string{}
	for _, to := range all {
		had[to] = ask(n.pods["client"].host, to)
	}
	for _, to := range remember {
		if again := ask(n.pods["client"].host, to); again != had[to] {
			t.Errorf("the client of %s gets %s, and then %s", to, had[to], again)
		}
		if first, second := ask(n.host, to), ask(n.host, to); first != second {
			t.Errorf("another client of %s gets %s, and then %s", to, first, second)
		}
	}
	for _, to := range all {
		if slices.Contains(remember, to) {
			continue
		}
		different := false
		for range 64 {
			different = different || ask(n.pods["client"].host, to) != had[to]
		}
		if !different {
			t.Errorf("of two backends of %s %s gets all connections", to, had[to])
		}
	}
}

// SomeServices is how many Services the part "memory" has, of two backends each. The first connection to each comes before all others.
const SomeServices = 24

// unfitting checks that a connection to a Service goes on when its backend sends what fits
// none, of which nobody knows that it is the Service's: also a backend that is drained.
func (s *suite) unfitting(t *testing.T) {
	l := newTopology(t, s.make)
	plans := map[string]*plan.Plan{"node1": serving(t, "", map[string]int{"one": 1})}
	l.load(plans)
	n := l.nodes["node1"]
	client, server := n.pods["client"], n.pods["one"]
	l.listen(server.host, service{plan.TCP, 8080})
	gateway := plan.MACOf(plans["node1"].Local.Pools[0].Gateway)
	var open []net.Conn
	goOn := func(what string) {
		t.Helper()
		for i, c := range open {
			for range 3 {
				own := netip.MustParseAddrPort(c.LocalAddr().String())
				// The server takes a reset that answers it, as what it acknowledges is right.
				stray := numbered(netip.AddrPortFrom(server.addresses[i], 8080), own, 7, sentUntil(t, c), 0x10, "stray")
				must(t, server.inject("eth0", gateway, stray))
				word, _ := l.expect()
				if err := converse(c, word); err != nil {
					t.Fatalf("%s: what fits no connection was sent from %s, and that to %s does not go on: %v", what, server.addresses[i], c.RemoteAddr(), err)
				}
			}
		}
	}
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")} {
		c, err := client.dial("tcp", netip.Addr{}, to, patience)
		must(t, err)
		defer c.Close()
		open = append(open, c)
	}
	goOn("at first")
	l.apply(n, serving(t, "", map[string]int{"one": 0, "two": 1}))
	goOn("it is drained")
}

// early checks that a connection which somebody began before its Service was there, and that nobody has answered, gets
// a backend once there is one.
func (s *suite) early(t *testing.T) {
	l := newTopology(t, s.make)
	before, err := plan.Parse(servicePlan)
	must(t, err)
	l.load(map[string]*plan.Plan{"node1": before})
	n := l.nodes["node1"]
	l.listen(n.pods["one"].host, service{plan.TCP, 8080})
	fronts := []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")}
	must(t, l.out.Do(func() error { // or it would answer
		var errs []error
		for _, to := range fronts {
			errs = append(errs, netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(to.Addr(), to.Addr().BitLen())), Type: unix.RTN_BLACKHOLE, Table: outsideTable}))
		}
		return errors.Join(errs...)
	}))
	begun := map[string]int{}
	for _, from := range []*host{n.pods["client"].host, n.host} {
		for _, to := range fronts {
			socket, err := from.begin(to)
			must(t, err)
			t.Cleanup(func() { unix.Close(socket) })
			begun[from.name+" to "+to.String()] = socket
		}
	}
	l.apply(n, serving(t, "", map[string]int{"one": 1}))
	for what, socket := range begun {
		if err := established(socket); err != nil {
			t.Errorf("the connection of %s, begun before its Service was there: %v", what, err)
		}
	}
}

// unanswered checks that nobody is told of the end of a connection that ends so that it can be begun again: a client
// may have another by then, which would end.
func (s *suite) unanswered(t *testing.T) {
	l := newTopology(t, s.make)
	with := func(more string) *plan.Plan {
		t.Helper()
		text := servicePlan + "source default nobody 198.51.100.0/24\nsource default nobody 2001:db8::/64\n" + more
		for _, at := range []string{"10.1.1.3", "[fd00:1::3]"} {
			text += "backend default web " + at + ":8080\n"
		}
		p, err := plan.Parse(text)
		must(t, err)
		return p
	}
	fronts := []string{"10.3.0.1", "fd00:3::1"}
	open, closed := "", ""
	for _, front := range fronts {
		open += "service default " + front + " tcp 80 to web\n"
		closed += "service default " + front + " tcp 80 to web sources nobody\nservice default " + front + " tcp 81 to web\n"
	}
	l.load(map[string]*plan.Plan{"node1": with(open)})
	n := l.nodes["node1"]
	client := n.pods["client"]
	l.listen(n.pods["one"].host, service{plan.TCP, 8080})
	type pair struct{ client, dialled netip.AddrPort }
	var unanswered []pair
	var streams []net.Conn
	seen := l.tap(t, client.host, "eth0")
	for i, front := range fronts {
		to := netip.MustParseAddr(front)
		must(t, l.out.Do(func() error { // or it would answer
			return netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(to, to.BitLen())), Type: unix.RTN_BLACKHOLE, Table: outsideTable})
		}))
		stream, err := client.dial("tcp", netip.Addr{}, netip.AddrPortFrom(to, 80), patience)
		must(t, err)
		t.Cleanup(func() { stream.Close() })
		streams = append(streams, stream)
		begun := pair{netip.AddrPortFrom(client.addresses[i], 4000), netip.AddrPortFrom(to, 81)}
		unanswered = append(unanswered, begun)
		must(t, client.inject("eth0", plan.MACOf(n.plan.Local.Pools[0].Gateway), numbered(begun.client, begun.dialled, 1, 0, 0x02, "")))
	}
	l.apply(n, with(closed))
	for _, stream := range streams {
		must(t, stream.SetReadDeadline(time.Now().Add(2*patience)))
		if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("its client may not connect to the Service any more, and a stream from %s says %v", stream.LocalAddr(), err)
		}
	}
	time.Sleep(100 * time.Millisecond) // all of them would be told at a time
	for _, of := range unanswered {
		if seen.heard(of.dialled, of.client) {
			t.Errorf("who began a connection to %s from %s, which nobody has answered, was told of its end", of.dialled, of.client)
		}
	}
}

// begin has a host begin a TCP connection, and returns its socket once the first packet is sent.
func (h *host) begin(to netip.AddrPort) (socket int, err error) {
	err = h.Do(func() (err error) {
		family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())})
		if to.Addr().Is4() {
			family, address = unix.AF_INET, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
		}
		if socket, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Connect(socket, address); !errors.Is(err, unix.EINPROGRESS) {
			return errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(socket))
		}
		return nil
	})
	return socket, err
}

// established waits until what a socket began is a connection.
func established(socket int) error {
	for deadline := time.Now().Add(patience); ; {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: unix.POLLOUT}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			failed, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && failed != 0 {
				err = unix.Errno(failed)
			}
			return err
		case left == 0:
			return errors.New("nobody answers")
		}
	}
}

// sentUntil returns the number of the byte that a TCP socket sends next, and received that of the one that it
// gets next.
func sentUntil(t *testing.T, c net.Conn) uint32 { return nextOf(t, c, 2) } // TCP_SEND_QUEUE

func received(t *testing.T, c net.Conn) uint32 { return nextOf(t, c, 1) } // TCP_RECV_QUEUE

func nextOf(t *testing.T, c net.Conn, queue int) uint32 {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must(t, err)
	number := 0
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
		err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue))
		var failure error
		number, failure = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		err = errors.Join(err, failure, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, -1)) // off, without a window probe
	}))
	must(t, err)
	return uint32(number)
}

// over checks that nobody is told of the end of a connection that is over when its backend leaves: by the same
// address and port its client may have another by then, which would end.
func (s *suite) over(t *testing.T) {
	l := newTopology(t, s.make)
	before := serving(t, "", map[string]int{"one": 1})
	l.load(map[string]*plan.Plan{"node1": before})
	n := l.nodes["node1"]
	client, server := n.pods["client"], n.pods["one"]
	l.listen(server.host, service{plan.TCP, 8080})
	gateway := plan.MACOf(before.Local.Pools[0].Gateway)
	type former struct{ client, dialled netip.AddrPort }
	var formers []former
	var streams []net.Conn
	for i, to := range []netip.AddrPort{netip.MustParseAddrPort("10.3.0.1:80"), netip.MustParseAddrPort("[fd00:3::1]:80")} {
		connect := func() (net.Conn, netip.AddrPort) {
			t.Helper()
			c, err := client.dial("tcp", netip.Addr{}, to, patience)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			return c, netip.MustParseAddrPort(c.LocalAddr().String())
		}
		stream, own := connect()
		streams, formers = append(streams, stream), append(formers, former{own, to})
		for range 3 {
			c, own := connect()
			reset := numbered(netip.AddrPortFrom(server.addresses[i], 8080), own, received(t, c), 0, 0x04, "")
			must(t, server.inject("eth0", gateway, reset))
			must(t, c.SetReadDeadline(time.Now().Add(patience)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Fatalf("a connection to %s is to be reset, and says %v", to, err)
			}
			formers = append(formers, former{own, to})
		}
	}
	seen := l.tap(t, client.host, "eth0")
	l.apply(n, serving(t, "", map[string]int{"two": 1}))
	for _, stream := range streams {
		must(t, stream.SetReadDeadline(time.Now().Add(2*patience)))
		if _, err := stream.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the backend has left, and a stream from %s says %v", stream.LocalAddr(), err)
		}
	}
	time.Sleep(100 * time.Millisecond) // all of them would be told at a time
	for i, f := range formers {
		if lives := i%4 == 0; seen.heard(f.dialled, f.client) != lives {
			t.Errorf("who had a connection to %s from %s, which went on until its backend left: %t, was told of its end: %t", f.dialled, f.client, lives, !lives)
		}
	}
}

// undisturbed checks that no packet through a Service is lost while it comes to have more
// backends, and fewer, whose number its table has a chain for, also where all of the node's state is
// read and written.
func (s *suite) undisturbed(t *testing.T) {
	l := newTopology(t, s.make)
	with := func(pool bool, backends ...string) *plan.Plan {
		t.Helper()
		text := servicePlan + fmt.Sprintf("service default 10.3.0.1 udp %d to web\n", loadPort)
		for _, a := range backends {
			text += fmt.Sprintf("backend default web %s:%d\n", a, loadPort)
		}
		if pool {
			text += "pool default 10.7.1.0/24 gateway 10.7.1.1\n"
		}
		p, err := plan.Parse(text)
		must(t, err)
		return p
	}
	one, two, outside := "10.1.1.3", "10.1.1.4", outside[0].Addr().String()
	l.load(map[string]*plan.Plan{"node1": with(false, one, two)})
	n := l.nodes["node1"]
	stream := newLoad(t)
	for _, h := range []*host{n.pods["one"].host, n.pods["two"].host, l.out} {
		stream.sink(h, 1)
	}
	for i, from := range []*host{n.pods["client"].host, n.pods["client"].host, n.host} {
		stream.flowing(stream.stream(fmt.Sprint(from.name, " ", i), from, netip.AddrPortFrom(hereFronts[0].Addr(), loadPort)))
	}
	for i := range 3 * flips {
		pool := i%4 == 3
		l.apply(n, with(pool, one, two, outside))
		l.apply(n, with(pool, one, two))
	}
	stream.end()
	for _, s := range stream.streams {
		if got, _, _ := stream.arrived(s); got != s.sent.Load() {
			t.Errorf("%d of %d datagrams of %s arrived, the first that did not is %d", got, s.sent.Load(), s.name, stream.missed(s))
		}
	}
}
