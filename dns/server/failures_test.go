package server

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/records"
)

// TestFailures: what failed is known for a while, the last ones of many at least.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFailures()
		known := func(question string, want bool) {
			t.Helper()
			if one, is := f.find(question); is != want || is && one.rcode != dns.RcodeRefused {
				t.Errorf("%s is known: %v, %+v", question, is, one)
			}
		}
		refused := failure{rcode: dns.RcodeRefused}
		f.add("first", refused)
		time.Sleep(failureTime / 2)
		f.add("second", refused)
		known("first", true)
		known("other", false)
		time.Sleep(failureTime / 2)
		known("first", false)
		known("second", true)
		f.add("first", refused)
		known("first", true)
		if len(f.all) != 2 || f.order.waiting() != 2 {
			t.Errorf("there are %d, and %d in order", len(f.all), f.order.waiting())
		}
		for n := range 3 * maxFailures {
			f.add(fmt.Sprint(n), refused)
		}
		if len(f.all) != maxFailures || f.order.waiting() != maxFailures {
			t.Errorf("of many there are %d, and %d in order", len(f.all), f.order.waiting())
		}
		known("first", false)
		known(fmt.Sprint(2*maxFailures-1), false)
		known(fmt.Sprint(2*maxFailures), true)
		known(fmt.Sprint(3*maxFailures-1), true)
	})
}

// TestFailsAtOnce has the upstream fail: who asks again fails in the same way, and others are not asked.
// Another question is another one.
func TestFailsAtOnce(t *testing.T) {
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused} {
		t.Run(dns.RcodeToString[rcode], func(t *testing.T) {
			var asked atomic.Int32
			s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if q.Question[0].Name == "www.example." {
					asked.Add(1)
				}
				w.WriteMsg(new(dns.Msg).SetRcode(q, rcode))
			}), 0)
			s.outside.Load().router.find("example.").failures.lasts = long
			for _, name := range []string{"www.example", "WWW.example", "other.example", "www.example"} {
				if got := words(s.lookUp(t, name)); got != dns.RcodeToString[rcode] {
					t.Errorf("%s is answered %s", name, got)
				}
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("the upstream was asked %d times", n)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		s := asking(t, c.LocalAddr().(*net.UDPAddr).AddrPort(), 0)
		failed := s.outside.Load().router.find("example.").failures
		failed.lasts = long
		for range 2 {
			if got := words(s.lookUp(t, "www.example")); got != "SERVFAIL" {
				t.Errorf("where nobody answers the answer is %s", got)
			}
		}
		if len(failed.all) != 1 {
			t.Errorf("%d questions are known", len(failed.all))
		}
		at := server{at: c.LocalAddr().(*net.UDPAddr).AddrPort()}
		if pods, _, _ := s.outside.Load().router.said(); pods[at] != (got{silent: true}) {
			t.Errorf("of servers pods got %+v", pods)
		}
		for _, one := range failed.all {
			if one.err == nil {
				t.Errorf("of that nothing is known: %+v", one)
			}
		}
	})
}

// TestTooMuchIsNoFailure: that nobody was asked, as too much is asked already, is none.
func TestTooMuchIsNoFailure(t *testing.T) {
	s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") }), 0)
	place := s.onePlace("example")
	place.take(pod(1))
	s.lookUp(t, "www.example")
	if all := s.outside.Load().router.find("example.").failures.all; len(all) > 0 {
		t.Errorf("a failure is %v", all)
	}
}

// TestDomainsHaveRoom has all places of a domain be taken: that keeps nobody from names of others. A
// search that comes to the domain waits there, and no more where it began; one that comes from there to another
// domain waits there.
func TestDomainsHaveRoom(t *testing.T) {
	o, err := newOutside(0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.outside.Store(o)
	corp, rest := newShare(1, 1), newShare(1, 1)
	corp.in, rest.in = o.rooms.all, o.rooms.all
	o.rooms.of["corp.example"], o.rooms.of[""] = corp, rest
	// asked says for each question that others are asked how many wait for names of the domain, and
	// how many for all others.
	var mu sync.Mutex
	var asked []string
	ask := func(q *dns.Msg) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprintf("%s %d+%d", q.Question[0].Name, corp.count(), rest.count()))
	}
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		ask(q)
		w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
	})
	stub := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		ask(q)
		if q.Question[0].Name == "e.example.corp.example." {
			denies(w, q)
			return
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
	})
	// However the ways change, who waits waits still.
	for _, w := range []ways{{}, {stale: 60}, {named: []records.Stub{{Domain: "corp.example"}}}} {
		w.rest = []netip.AddrPort{up}
		w.stubs = []records.Stub{{Domain: "corp.example", Servers: []netip.AddrPort{stub}}}
		if err := s.take(&w); err != nil {
			t.Fatal(err)
		}
	}
	o = s.outside.Load()
	t.Cleanup(func() { stop(*o.router.to.Load()) })
	set := settings()
	set.Searches = []string{"node.example"}
	s.settings.Store(set)
	s.setZone(set)
	s.zone.PutNamespace("default")
	s.zone.PutClient(records.Client{Address: pod(1), Namespace: "default"})
	want := func(name, want string, others ...string) {
		t.Helper()
		if got := words(s.lookUp(t, name)); got != want {
			t.Errorf("%s is answered %s, and should be %s", name, got, want)
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(asked, others) {
			t.Errorf("for %s others are asked %q, and should be %q", name, asked, others)
		}
		asked = nil
	}
	want("a.corp.example.default.svc.cluster.local", "NOERROR 203.0.113.1 a.corp.example.", "a.corp.example.node.example. 0+1", "a.corp.example. 1+0")
	corp.take(pod(1))
	want("b.corp.example", "SERVFAIL")
	want("c.corp.example.default.svc.cluster.local", "SERVFAIL", "c.corp.example.node.example. 1+1")
	// It is remembered that there is no e.example.corp.example: a search goes on from there.
	corp.give(pod(1))
	want("e.example.corp.example", "NXDOMAIN", "e.example.corp.example. 1+0")
	corp.take(pod(1))
	set.Searches = []string{"corp.example"}
	s.setZone(set)
	want("e.example.default.svc.cluster.local", "NXDOMAIN", "e.example. 1+1")
	want("www.example", "NXDOMAIN", "www.example. 1+1")
	if o.rooms.all.count() != 1 {
		t.Errorf("there wait %d", o.rooms.all.count())
	}
	if _, _, troubled := o.router.said(); !troubled["corp.example"] || troubled[""] {
		t.Errorf("troubled are %v", troubled)
	}
	corp.give(pod(1))
	want("d.corp.example", "NOERROR 203.0.113.1", "d.corp.example. 1+0")
	if o.rooms.all.count() != 0 {
		t.Errorf("there wait %d, and nobody asks", o.rooms.all.count())
	}
}
