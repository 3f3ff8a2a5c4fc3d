package answer_test

import (
	"testing"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

// TestOrder has others say one thing, which is kept, and many ask: each address is first for some of
// them, and what leads there is before all of them.
func TestOrder(t *testing.T) {
	z := new(answer.Zone)
	z.Set(&records.Settings{Domain: "cluster.local"})
	q := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
	said := new(dns.Msg).SetReply(q)
	for _, text := range []string{"www.example. 60 IN CNAME lb.example.", "lb.example. 60 IN A 203.0.113.1", "LB.example. 60 IN A 203.0.113.2", "lb.example. 60 IN A 203.0.113.3", "www.example. 60 IN TXT last"} {
		r, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		said.Answer = append(said.Answer, r)
	}
	before := said.String()
	first := map[string]int{}
	for range 1000 {
		_, o := z.Answer(q, answer.Asker{})
		r := o.Take(said)
		if len(r.Answer) != 5 || r.Answer[0].Header().Rrtype != dns.TypeCNAME || r.Answer[4].Header().Rrtype != dns.TypeTXT {
			t.Fatalf("the reply is %s", r)
		}
		seen := map[string]bool{}
		for _, rr := range r.Answer[1:4] {
			seen[rr.(*dns.A).A.String()] = true
		}
		if len(seen) != 3 {
			t.Fatalf("the reply is %s", r)
		}
		first[r.Answer[1].(*dns.A).A.String()]++
	}
	if len(first) != 3 {
		t.Errorf("first are %v", first)
	}
	if said.String() != before {
		t.Errorf("what is kept is %s, and was %s", said, before)
	}
}
