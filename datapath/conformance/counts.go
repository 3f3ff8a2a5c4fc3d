package conformance

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/datapath"
	"github.com/weftnet/weft/plan"
)

// counts checks that frontends and backends count what they are given, refuse and drop, whether or
// not clients are remembered, that other changes and a restart leave that alone, and that who
// has the address next begins at nothing.
func (s *suite) counts(t *testing.T) {
	for what, more := range map[string]string{"by chance": "", "remembered": "affinity 1h0m0s"} {
		t.Run(what, func(t *testing.T) { s.countsOf(t, more) })
	}
}

func (s *suite) countsOf(t *testing.T, more string) {
	l := newTopology(t, s.make)
	made := func(text string, weights map[string]int) map[string]*plan.Plan {
		p, err := plan.Parse(serving(t, more, weights).String() + text)
		must(t, err)
		return map[string]*plan.Plan{"node1": p}
	}
	// Nobody is behind the first, who sends to the second is not told, and the third is for nobody here.
	closed := "source default office 198.51.100.0/24\nsource default office 2001:db8::/64\n"
	for _, front := range []string{"10.3.0.", "fd00:3::"} {
		for _, line := range []string{"2 tcp 80", "2 any", "3 udp 80 else drop", "3 any else drop", "4 udp 80 to web sources office"} {
			closed += "service default " + front + line + "\n"
		}
	}
	plans := made(closed, map[string]int{"one": 1, "two": 1})
	l.load(plans)
	n := l.nodes["node1"]
	counter, counts := n.dataPlane.(datapath.ServiceCounter)
	if !counts {
		t.Skip("left out: the data plane does not count what Services do")
	}
	for _, pod := range []string{"one", "two"} {
		l.listen(n.pods[pod].host, service{plan.TCP, 8080})
	}
	want := datapath.ServiceCounts{Frontends: map[plan.ServiceKey]datapath.FrontendCount{}, Backends: map[plan.BackendKey]uint64{}}
	check := func(what string) {
		t.Helper()
		counter = n.dataPlane.(datapath.ServiceCounter)
		// What was sent last may be on its way yet.
		for end := time.Now().Add(30 * time.Second); ; {
			got, err := counter.Counts()
			must(t, err)
			if maps.Equal(got.Frontends, want.Frontends) && maps.Equal(got.Backends, want.Backends) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: it counts\n%v\n%v\nexpected\n%v\n%v", what, got.Frontends, got.Backends, want.Frontends, want.Backends)
			}
			runtime.Gosched()
		}
	}
	whole := func(k plan.ServiceKey) plan.ServiceKey {
		return plan.ServiceKey{Network: k.Network, Address: k.Address}
	}
	key := func(to string) plan.ServiceKey {
		at := netip.MustParseAddrPort(to)
		return plan.ServiceKey{Network: plan.DefaultNetwork, Address: at.Addr(), Protocol: plan.TCP, Port: at.Port()}
	}
	add := func(k plan.ServiceKey, one datapath.FrontendCount) {
		f := want.Frontends[k]
		want.Frontends[k] = datapath.FrontendCount{Given: f.Given + one.Given, Refused: f.Refused + one.Refused, Dropped: f.Dropped + one.Dropped, ForOthers: f.ForOthers + one.ForOthers}
	}
	connect := func(from *host, to string) {
		t.Helper()
		c, err := from.dial("tcp", netip.Addr{}, netip.MustParseAddrPort(to), patience)
		must(t, err)
		defer c.Close()
		word, arrived := l.expect()
		must(t, converse(c, word))
		by := n.pods[(<-arrived).receiver]
		for _, a := range by.addresses {
			if k := key(to); a.Is4() == k.Address.Is4() {
				add(k, datapath.FrontendCount{Given: 1})
				want.Backends[plan.BackendKey{Network: plan.DefaultNetwork, Set: "web", Address: a, Port: 8080}]++
			}
		}
	}
	refused := func(from *host, to string) {
		t.Helper()
		if c, err := from.dial("tcp", netip.Addr{}, netip.MustParseAddrPort(to), patience); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("%s connects to %s, and gets %v, %v", from.name, to, c, err)
		}
	}
	sends := func(from *host, to string) {
		t.Helper()
		c, err := from.dial("udp", netip.Addr{}, netip.MustParseAddrPort(to), patience)
		must(t, err)
		defer c.Close()
		_, _ = c.Write([]byte("nothing")) // which the node itself is told that it may not
	}
	datagram := func(k plan.ServiceKey) plan.ServiceKey { k.Protocol = plan.UDP; return k }
	check("at first")
	use := func(what string) {
		t.Helper()
		for _, from := range []*host{n.pods["client"].host, n.host} {
			for range 3 {
				connect(from, "10.3.0.1:80")
				connect(from, "[fd00:3::1]:80")
			}
			for _, to := range []string{"10.3.0.2:80", "[fd00:3::2]:80"} {
				refused(from, to)
				add(key(to), datapath.FrontendCount{Refused: 1})
			}
			for _, to := range []string{"10.3.0.2:81", "[fd00:3::2]:81"} {
				refused(from, to)
				add(whole(key(to)), datapath.FrontendCount{Refused: 1})
			}
			for _, front := range []string{"10.3.0.", "fd00:3::"} {
				at := func(host, port string) string { return net.JoinHostPort(front+host, port) }
				sends(from, at("3", "80"))
				add(datagram(key(at("3", "80"))), datapath.FrontendCount{Dropped: 1})
				sends(from, at("3", "81"))
				add(whole(key(at("3", "81"))), datapath.FrontendCount{Dropped: 1})
				sends(from, at("4", "80"))
				add(datagram(key(at("4", "80"))), datapath.FrontendCount{ForOthers: 1})
			}
		}
		check(what)
	}
	use("of what is sent")
	l.restart(plans)
	use("behind a restart")
	l.apply(n, made(closed+"service default 10.3.0.9 tcp 80 to web\n", map[string]int{"one": 1, "two": 3})["node1"])
	use("where others change")
	l.apply(n, made("", map[string]int{"one": 1})["node1"])
	l.apply(n, plans["node1"])
	for k := range want.Frontends {
		if k.Address != key("10.3.0.1:80").Address && k.Address != key("[fd00:3::1]:80").Address {
			delete(want.Frontends, k)
		}
	}
	for k := range want.Backends {
		if k.Address == n.pods["two"].addresses[0] || k.Address == n.pods["two"].addresses[1] {
			delete(want.Backends, k)
		}
	}
	check("of what went, and came again")
}
