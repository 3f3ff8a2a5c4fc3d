package server

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestTooMuchIsAsked has a client wait for as many answers as it may: it gets those that are
// remembered all the same. That nobody was asked for the others is not remembered.
func TestTooMuchIsAsked(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") })
	o, err := newOutside(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.use(&ways{rest: []netip.AddrPort{up}}); err != nil {
		t.Fatal(err)
	}
	defer stop(*o.router.to.Load())
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels(), outsiders: newShare(1, 1)}
	s.outside.Store(o)
	want := func(name, want string) {
		t.Helper()
		data, err := question(name, dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		got := "nothing"
		p := &packet{data: data, from: netip.AddrPortFrom(pod(1), 1000), began: time.Now(), reply: func(data []byte) {
			r := new(dns.Msg)
			if err := r.Unpack(data); err != nil {
				t.Error(err)
			}
			got = words(r)
		}}
		s.handle(p, func(f func()) { f() })
		if got != want {
			t.Errorf("%s is answered %s, want %s", name, got, want)
		}
	}
	want("www.example", "NOERROR 203.0.113.1")
	s.outsiders.take(pod(1))
	want("www.example", "NOERROR 203.0.113.1")
	want("other.example", "SERVFAIL")
	s.outsiders.give(pod(1))
	want("other.example", "NOERROR 203.0.113.1")
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
