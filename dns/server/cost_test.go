package server

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestRememberedAnswerCosts counts what an answer takes that is remembered, from the query to what is
// sent: some twice of what CoreDNS's own plug-in cache takes, of which it is made.
func TestRememberedAnswerCosts(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 3600 IN A 203.0.113.1") })
	o, err := newOutside(3600)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.use(&ways{rest: []netip.AddrPort{up}}); err != nil {
		t.Fatal(err)
	}
	defer stop(*o.router.to.Load())
	q := question("www.outside.example", dns.TypeA)
	q.SetEdns0(payload, false)
	data, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.outside.Store(o)
	set := settings()
	s.settings.Store(set)
	s.setZone(set)
	p := &packet{data: data, from: netip.AddrPortFrom(pod(1), 1000), began: time.Now(), reply: func(data []byte) {
		if r := new(dns.Msg); r.Unpack(data) != nil || words(r) != "NOERROR 203.0.113.1" {
			t.Errorf("it says %s", words(r))
		}
	}}
	answer := func() { s.handle(p, func(f func()) { f() }) }
	answer()
	p.reply = func([]byte) {}
	cache := testing.AllocsPerRun(1000, func() {
		m := new(dns.Msg)
		if err := m.Unpack(data); err != nil {
			t.Fatal(err)
		}
		w := newRecorder(p.from, false)
		o.cache.ServeDNS(s.labels, w, m)
		if _, err := w.said.Pack(); err != nil {
			t.Fatal(err)
		}
	})
	// What more there is are the question as others are asked it, the reply as the client is to get it,
	// and who asks.
	if all := testing.AllocsPerRun(1000, answer); all > 2*cache+5 {
		t.Errorf("an answer takes %.0f allocations, where the cache and the packet take %.0f", all, cache)
	} else {
		t.Logf("an answer takes %.0f allocations, where the cache and the packet take %.0f", all, cache)
	}
}
