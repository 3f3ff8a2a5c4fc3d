package server

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weftnet/weft/dns/journal"
	"github.com/weftnet/weft/dns/records"
	"github.com/weftnet/weft/internal/await"
)

// asks has a server ask upstreams, and give what is stale for so many seconds.
func (s *Server) asks(t testing.TB, stale uint32, up ...netip.AddrPort) {
	t.Helper()
	o, err := newOutside(stale)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.use(&ways{rest: up}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(*o.router.to.Load()) })
	s.outside.Store(o)
}

// asking is a server without sockets, that asks an upstream, and gives what is stale for so many seconds.
func asking(t testing.TB, up netip.AddrPort, stale uint32) *Server {
	t.Helper()
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.asks(t, stale, up)
	return s
}

// onePlace has one query wait for others to say something of a name, and of its domain, at most.
func (s *Server) onePlace(name string) *share {
	to := s.outside.Load().router.find(dns.Fqdn(name))
	to.waiting = newShare(1, 1)
	return to.waiting
}

// lookUp returns what the first pod is answered that asks a server for the address of a name.
func (s *Server) lookUp(t testing.TB, name string) *dns.Msg {
	t.Helper()
	data, err := question(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	r := new(dns.Msg)
	p := &packet{data: data, from: netip.AddrPortFrom(pod(1), 1000), began: time.Now(), reply: func(data []byte) {
		if err := r.Unpack(data); err != nil {
			t.Error(err)
		}
	}}
	s.handle(p, func(f func()) { f() })
	return r
}

// TestTooMuchIsAsked has a client wait for as many answers as it may: it gets those that are
// remembered all the same. That nobody was asked for the others is not remembered, and they alone are counted
// as dropped.
func TestTooMuchIsAsked(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") })
	s := asking(t, up, 0)
	s.connections, s.records = newShare(1, 1), journal.Follow("none", nil)
	registry := prometheus.NewRegistry()
	var err error
	if s.metrics, err = newMetrics(s, registry); err != nil {
		t.Fatal(err)
	}
	place := s.onePlace("example")
	want := func(name, want string) {
		t.Helper()
		if got := words(s.lookUp(t, name)); got != want {
			t.Errorf("%s is answered %s, want %s", name, got, want)
		}
	}
	want("www.example", "NOERROR 203.0.113.1")
	place.take(pod(1))
	want("www.example", "NOERROR 203.0.113.1")
	if n := metricsOf(t, registry)["weft_dns_dropped_total"]; n != 0 {
		t.Errorf("%v queries are dropped, and all are answered", n)
	}
	want("other.example", "SERVFAIL")
	if n := metricsOf(t, registry)["weft_dns_dropped_total"]; n != 1 {
		t.Errorf("%v queries are dropped, and one was", n)
	}
	place.give(pod(1))
	want("other.example", "NOERROR 203.0.113.1")
}

// TestTooMuchIsAskedOfTheStale has a client get what is stale, as it may not ask more of others: that
// keeps nobody else from what is so now.
func TestTooMuchIsAskedOfTheStale(t *testing.T) {
	t.Parallel()
	var last atomic.Int32
	last.Store(1)
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		says(w, q, fmt.Sprintf("@ 5 IN A 203.0.113.%d", last.Load()))
	})
	s := asking(t, up, 3600)
	place := s.onePlace("example")
	s.lookUp(t, "www.example")
	last.Store(2)
	place.take(pod(1))
	least := uint32(5)
	await.NoError(t, long, "what is remembered is stale", func() error {
		r := s.lookUp(t, "www.example")
		if got := words(r); got != "NOERROR 203.0.113.1" {
			t.Fatal(got)
		}
		if now := r.Answer[0].Header().Ttl; now <= least {
			least = now
			return errors.New("not yet")
		}
		return nil
	})
	place.give(pod(1))
	if got := words(s.lookUp(t, "www.example")); got != "NOERROR 203.0.113.2" {
		t.Errorf("after what was stale was given, others get %s", got)
	}
}

// TestOthersAreNamed has settings name other servers: what those before have said is forgotten. It is not
// where a server is not asked for a while, or where the node names others.
func TestOthersAreNamed(t *testing.T) {
	from := func(last int) netip.AddrPort {
		return upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
			says(w, q, fmt.Sprintf("@ 3600 IN A 203.0.113.%d", last))
		})
	}
	first, second, third := from(1), from(2), from(3)
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.asks(t, 0)
	t.Cleanup(func() { stop(*s.outside.Load().router.to.Load()) })
	loops := map[netip.AddrPort]bool{}
	var node []netip.AddrPort
	want := func(what string, set *records.Settings, last int) {
		t.Helper()
		w, _ := choose(set, "", node, nil, func(s server) bool { return loops[s.at] })
		if err := s.take(&w); err != nil {
			t.Fatal(err)
		}
		if got, want := words(s.lookUp(t, "www.corp.example")), fmt.Sprintf("NOERROR 203.0.113.%d", last); got != want {
			t.Errorf("%s: the answer is %s, and should be %s", what, got, want)
		}
	}
	set := settings(first, second)
	want("at first", set, 1)
	loops[first] = true
	want("where the first is not asked for a while", set, 1)
	clear(loops)
	set = settings(first, second)
	set.Stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{third}}}
	want("where the domain has servers of its own", set, 3)
	set = settings(first, second)
	set.Stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{second}}}
	want("where it has others", set, 2)
	want("where it has none any more", settings(first, second), 1)
	want("where others are asked for all names", settings(third), 3)
	node = []netip.AddrPort{second}
	want("where the node's servers are asked", settings(), 2)
	node = []netip.AddrPort{first}
	want("where the node has others", settings(), 2)
}

// TestReadingTakesLong has many records be read for longer than missing ones are waited for.
func TestReadingTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looking atomic.Bool
		looking.Store(true)
		is := missing(t.Context(), looking.Load)
		over := func() bool {
			select {
			case <-is:
				return true
			default:
				return false
			}
		}
		time.Sleep(10 * patience)
		if over() {
			t.Error("records are missed that are being read")
		}
		looking.Store(false)
		time.Sleep(patience)
		if !over() {
			t.Error("records are not missed")
		}
		is = missing(t.Context(), looking.Load)
		time.Sleep(2 * patience)
		if !over() {
			t.Error("records are not missed that were never looked for")
		}
	})
}
