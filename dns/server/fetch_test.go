package server

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// TestWrittenOut has the upstream say something by TCP that has few bytes there, and many when its
// names are written out. That is given to nobody; what has as many bytes and few names is.
func TestWrittenOut(t *testing.T) {
	t.Parallel()
	wide := strings.Repeat(strings.Repeat("x", 60)+".", 4)
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Compress = true
		name := q.Question[0].Name
		for i := range 3000 {
			h := dns.RR_Header{Name: name, Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 60}
			if strings.HasPrefix(name, "x") {
				m.Answer = append(m.Answer, &dns.NS{Hdr: h, Ns: name})
			} else {
				h.Rrtype = dns.TypeA
				m.Answer = append(m.Answer, &dns.A{Hdr: h, A: net.IPv4(203, 0, byte(i>>8), byte(i))})
			}
		}
		if w.RemoteAddr().Network() != "tcp" {
			m.Truncate(512)
		}
		if err := w.WriteMsg(m); err != nil {
			t.Error(err)
		}
	})
	n := run(t, settings(up))
	if got := n.answers("tcp", question(wide, dns.TypeNS)); got != "SERVFAIL" {
		t.Errorf("an answer with 3000 long names is given on, and has %d letters as text", len(got))
	}
	r, err := ask(n.at, "tcp", "", question("www.example", dns.TypeA), 2*outsideTime)
	if err != nil || len(r.Answer) != 3000 {
		t.Errorf("an answer with 3000 addresses is %v, %v", r, err)
	}
}

// TestFetchAnswers reads what may be said to a question.
func TestFetchAnswers(t *testing.T) {
	q := question("www.example", dns.TypeA)
	for what, c := range map[string]struct {
		edit func(*dns.Msg)
		want bool
	}{
		"the answer":           {func(*dns.Msg) {}, true},
		"in other letters":     {func(m *dns.Msg) { m.Question[0].Name = "WWW.Example." }, true},
		"another's":            {func(m *dns.Msg) { m.Id++ }, false},
		"a question":           {func(m *dns.Msg) { m.Response = false }, false},
		"about something else": {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA }, false},
		"about another name":   {func(m *dns.Msg) { m.Question[0].Name = "other.example." }, false},
		"about nothing":        {func(m *dns.Msg) { m.Question = nil }, false},
	} {
		m := new(dns.Msg).SetReply(q)
		m.Question = append([]dns.Question(nil), m.Question...)
		c.edit(m)
		data, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unpack(data, q); (err == nil) != c.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := unpack([]byte("no message"), q); err == nil {
		t.Error("what is no message is read")
	}
}

// TestFetchFromAnother has one of two servers not take connections: what is large is fetched from
// the other one.
func TestFetchFromAnother(t *testing.T) {
	t.Parallel()
	large := func(w dns.ResponseWriter, q *dns.Msg) {
		var text []string
		for i := range 200 {
			text = append(text, fmt.Sprintf("@ 60 IN TXT %d-%s", i, strings.Repeat("x", 80)))
		}
		says(w, q, text...)
	}
	deaf, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: deaf, Handler: dns.HandlerFunc(large)}
	go s.ActivateAndServe()
	t.Cleanup(func() { s.Shutdown() })
	n := run(t, settings(deaf.LocalAddr().(*net.UDPAddr).AddrPort(), upstream(t, large)))
	r, err := ask(n.at, "tcp", "", question("www.example", dns.TypeTXT), 2*outsideTime)
	if err != nil || len(r.Answer) != 200 {
		t.Errorf("the answer is %v, %v", r, err)
	}
}

// TestFetchFailsAtOnce has servers say that there is more by TCP, and hang up there, or refuse: who asks again is
// told so at once, and they are not asked. That keeps nobody from what a datagram holds.
func TestFetchFailsAtOnce(t *testing.T) {
	for name, say := range map[string]func(w dns.ResponseWriter, q *dns.Msg){
		"nothing":  func(w dns.ResponseWriter, q *dns.Msg) { w.Close() },
		"SERVFAIL": with(dns.RcodeServerFailure),
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if w.RemoteAddr().Network() == "tcp" {
					asked.Add(1)
					say(w, q)
					return
				}
				r := new(dns.Msg).SetReply(q)
				r.Truncated = true
				w.WriteMsg(r)
			}), 0)
			o := s.outside.Load()
			o.router.find("example.").failures.lasts = long
			from := netip.AddrPortFrom(pod(1), 1000)
			for range 2 {
				if r := o.ask(s.labels, question("www.example", dns.TypeTXT), from, true); r != nil && r.Rcode != dns.RcodeServerFailure {
					t.Errorf("by TCP the answer is %s", words(r))
				}
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("by TCP the server was asked %d times", n)
			}
			if r := o.ask(s.labels, question("www.example", dns.TypeTXT), from, false); r == nil || !r.Truncated {
				t.Errorf("by UDP the answer is %v", r)
			}
		})
	}
}
