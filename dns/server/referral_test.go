package server

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/internal/await"
)

// TestReferral has an upstream that recurses for who wants it alone, as BIND does: one client does
// not want it, and the others find the names all the same. What the upstream cannot find out is a
// failure, and none for longer than that lasts.
func TestReferral(t *testing.T) {
	var lame, silent atomic.Bool
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		switch name := q.Question[0].Name; {
		case !q.RecursionDesired, lame.Load():
			refers(w, q)
		case silent.Load():
			says(w, q) // neither an answer nor for how long there is none
		default:
			says(w, q, fmt.Sprintf("@ 3600 IN TXT %s", name))
		}
	})
	n := run(t, settings(up))
	for i := range 5 {
		q := question(fmt.Sprintf("www%d.example", i), dns.TypeTXT)
		plain := q.Copy()
		plain.RecursionDesired = false
		want := fmt.Sprintf("NOERROR %q", q.Question[0].Name)
		r, err := ask(n.at, "udp", "127.0.0.2", plain, long)
		n.must(err)
		if got := words(r); got != want || r.RecursionDesired {
			t.Errorf("who wants no recursion gets %s", r)
		}
		n.want("udp", q, want)
		n.want("tcp", q, want)
	}
	lame.Store(true)
	n.want("udp", question("late.example", dns.TypeTXT), "SERVFAIL")
	lame.Store(false)
	await.NoError(n, long, "it is found out again", func() error {
		if got := n.answers("udp", question("late.example", dns.TypeTXT)); got != `NOERROR "late.example."` {
			return errors.New(got)
		}
		return nil
	})
	silent.Store(true)
	n.want("udp", question("empty.example", dns.TypeTXT), "NOERROR")
	silent.Store(false)
	n.want("udp", question("empty.example", dns.TypeTXT), `NOERROR "empty.example."`)
}

// refers answers a query with whom else to ask.
func refers(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	r.Ns = []dns.RR{&dns.NS{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 3600}, Ns: "ns.example."}}
	w.WriteMsg(r)
}
