package server

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

// refusals are ways to say nothing of a name, and what a client is told where nobody says more.
var refusals = map[string]struct {
	say  func(w dns.ResponseWriter, q *dns.Msg)
	told string
}{
	"SERVFAIL": {with(dns.RcodeServerFailure), "SERVFAIL"},
	"REFUSED":  {with(dns.RcodeRefused), "REFUSED"},
	"NOTIMP":   {with(dns.RcodeNotImplemented), "NOTIMP"},
	"FORMERR":  {with(dns.RcodeFormatError), "FORMERR"},
	"referral": {refers, "SERVFAIL"},
}

// with answers with a code.
func with(rcode int) func(dns.ResponseWriter, *dns.Msg) {
	return func(w dns.ResponseWriter, q *dns.Msg) { w.WriteMsg(new(dns.Msg).SetRcode(q, rcode)) }
}

// denies answers that there is no such name, and hasNone that it has nothing of what is asked, each for a minute.
func denies(w dns.ResponseWriter, q *dns.Msg)  { none(w, q, dns.RcodeNameError) }
func hasNone(w dns.ResponseWriter, q *dns.Msg) { none(w, q, dns.RcodeSuccess) }

func none(w dns.ResponseWriter, q *dns.Msg, rcode int) {
	r := new(dns.Msg).SetRcode(q, rcode)
	r.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}, Ns: "ns.example.", Mbox: "root.example.", Minttl: 60}}
	w.WriteMsg(r)
}

// TestNextServer has the first of two servers say nothing of whatever it is asked: the second one is
// asked, by UDP and by TCP. Where both do the answer says so, also to who asks again at once.
func TestNextServer(t *testing.T) {
	t.Parallel()
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			works := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				switch q.Question[0].Name {
				case "www.example.":
					says(w, q, "@ 60 IN A 203.0.113.1")
				case "large.example.":
					var all []string
					for i := range 200 {
						all = append(all, fmt.Sprintf("@ 60 IN A 198.51.100.%d", i))
					}
					says(w, q, all...)
				default:
					refusal.say(w, q)
				}
			})
			n := run(t, settings(upstream(t, refusal.say), works))
			for _, do := range []bool{false, true} {
				q := question("www.example", dns.TypeA)
				if do {
					q.SetEdns0(payload, true)
				}
				n.want("udp", q, "NOERROR 203.0.113.1")
			}
			if r, err := ask(n.at, "tcp", "", question("large.example", dns.TypeA), 2*outsideTime); err != nil || len(r.Answer) != 200 {
				t.Errorf("what is large is %v, %v", r, err)
			}
			n.want("udp", question("other.example", dns.TypeA), refusal.told)
			n.want("udp", question("other.example", dns.TypeA), refusal.told)
		})
	}
}

// TestOlderServer has the first of two servers not know EDNS0: it is asked without, before the second
// one.
func TestOlderServer(t *testing.T) {
	first := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.IsEdns0() != nil {
			with(dns.RcodeNotImplemented)(w, q)
			return
		}
		says(w, q, "@ 60 IN A 203.0.113.1")
	})
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.asks(t, 0, first, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.2") }))
	if got := words(s.lookUp(t, "www.example")); got != "NOERROR 203.0.113.1" {
		t.Errorf("the answer is %s", got)
	}
}

// TestLost has the first datagram to a server be lost: it is asked again where nobody else helps, whatever
// others say.
func TestLost(t *testing.T) {
	t.Parallel()
	type other struct {
		say  func(w dns.ResponseWriter, q *dns.Msg)
		want string
	}
	const first, second = "NOERROR 203.0.113.1", "NOERROR 203.0.113.2"
	others := map[string]other{
		"no other server":        {nil, first},
		"another one that helps": {func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.2") }, second},
	}
	for name, refusal := range refusals {
		others["another one that says "+name] = other{refusal.say, first}
	}
	for name, other := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			up := []netip.AddrPort{upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if strings.HasPrefix(q.Question[0].Name, "www") && asked.Add(1) > 1 {
					says(w, q, "@ 60 IN A 203.0.113.1")
				}
			})}
			if other.say != nil {
				up = append(up, upstream(t, other.say))
			}
			s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
			s.asks(t, 0, up...)
			if got := words(s.lookUp(t, "www.example")); got != other.want {
				t.Errorf("the answer is %s, and should be %s", got, other.want)
			}
			if pods, _, _ := s.outside.Load().router.said(); len(up) > 1 && pods[server{at: up[1]}].passed {
				t.Error("the second server is told of as if the first one were behind it")
			}
		})
	}
}

// cuts has answers say that more of them was cut off.
type cuts struct{ dns.ResponseWriter }

func (c cuts) WriteMsg(m *dns.Msg) error {
	m.Truncated = true
	return c.ResponseWriter.WriteMsg(m)
}

// TestHelps: an answer helps that says something of the name; probes know these from others.
func TestHelps(t *testing.T) {
	for name, c := range map[string]struct {
		say  func(w dns.ResponseWriter, q *dns.Msg)
		want bool
	}{
		"NXDOMAIN":               {with(dns.RcodeNameError), true},
		"YXDOMAIN":               {with(dns.RcodeYXDomain), true},
		"no such name":           {denies, true},
		"no data":                {hasNone, true},
		"nothing":                {func(w dns.ResponseWriter, q *dns.Msg) { says(w, q) }, true},
		"an address":             {func(w dns.ResponseWriter, q *dns.Msg) { says(w, q, "@ 60 IN A 203.0.113.1") }, true},
		"a referral that is cut": {func(w dns.ResponseWriter, q *dns.Msg) { refers(cuts{w}, q) }, true},
		"a refusal, SERVFAIL":    {refusals["SERVFAIL"].say, false},
		"a refusal, REFUSED":     {refusals["REFUSED"].say, false},
		"a refusal, NOTIMP":      {refusals["NOTIMP"].say, false},
		"a refusal, FORMERR":     {refusals["FORMERR"].say, false},
		"a refusal, a referral":  {refusals["referral"].say, false},
	} {
		var p probes
		if came, heard, helped := p.loops(t.Context(), server{at: upstream(t, c.say)}); came || !heard || helped != c.want {
			t.Errorf("%s: it came back %v, was heard %v, and helped %v", name, came, heard, helped)
		}
	}
}
