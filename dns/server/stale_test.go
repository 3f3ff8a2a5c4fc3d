package server

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/internal/await"
)

// TestStaleIsOver has the upstream answer something else, once the time of what it said before is
// over, and each time something that is not remembered: it is given all the same, and not what was
// remembered before.
func TestStaleIsOver(t *testing.T) {
	t.Parallel()
	var other atomic.Bool
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		name := q.Question[0].Name
		if !other.Load() {
			says(w, q, "@ 5 IN A 203.0.113.1")
			return
		}
		switch name {
		case "alias.example.":
			r := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
			r.Answer = []dns.RR{&dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 60}, Target: "gone.example."}}
			w.WriteMsg(r)
		case "empty.example.":
			says(w, q)
		default: // by UDP it is cut, and by TCP it is too large to be remembered
			var all []string
			for i := range 200 {
				all = append(all, fmt.Sprintf("@ 60 IN A 198.51.100.%d", i))
			}
			says(w, q, all...)
		}
	})
	set := settings(up)
	set.StaleFor = 3600
	n := run(t, set)
	for _, name := range []string{"alias.example", "empty.example", "udp.example", "tcp.example"} {
		n.want("udp", question(name, dns.TypeA), "NOERROR 203.0.113.1")
	}
	other.Store(true)
	for _, c := range []struct{ network, name, want string }{
		{"udp", "alias.example", "NXDOMAIN gone.example."},
		{"udp", "empty.example", "NOERROR"},
		{"udp", "udp.example", " truncated"},
		{"tcp", "tcp.example", " 198.51.100.99"},
	} {
		await.NoError(t, long, "what is said now of "+c.name+" is given", func() error {
			if got := n.answers(c.network, question(c.name, dns.TypeA)); !strings.HasSuffix(got, c.want) {
				return errors.New(got)
			}
			return nil
		})
	}
}

// TestFailureIsOver has the upstream fail, and then answer: the next question gets that, once it is
// asked again.
func TestFailureIsOver(t *testing.T) {
	for name, staleFor := range map[string]uint32{"stale": 3600, "never": 0} {
		t.Run(name, func(t *testing.T) {
			var works atomic.Bool
			up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
				if !works.Load() {
					w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
					return
				}
				says(w, q, "@ 60 IN A 203.0.113.1")
			})
			s := asking(t, up, staleFor)
			s.outside.Load().router.find("example.").failures.lasts = 0
			for _, want := range []string{"SERVFAIL", "NOERROR 203.0.113.1"} {
				if got := words(s.lookUp(t, "www.example")); got != want {
					t.Errorf("the answer is %s, and should be %s", got, want)
				}
				works.Store(true)
			}
		})
	}
}

// TestHowLong has the upstream say that an answer, and a denial, hold for a day: they are kept for
// less.
func TestHowLong(t *testing.T) {
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Question[0].Name == "www.example." {
			says(w, q, "@ 86400 IN A 203.0.113.1")
			return
		}
		r := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		r.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 86400}, Ns: "ns.example.", Mbox: "root.example.", Minttl: 86400}}
		w.WriteMsg(r)
	})
	s := asking(t, up, 0)
	for name, most := range map[string]uint32{"www.example": maxAnswer, "none.example": maxDenial} {
		r := s.lookUp(t, name)
		if all := append(r.Answer, r.Ns...); len(all) != 1 || all[0].Header().Ttl != most {
			t.Errorf("%s holds for more than %d seconds: %s", name, most, r)
		}
	}
}
