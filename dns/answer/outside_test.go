package answer_test

import (
	"fmt"
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

// TestServersAreHelp has others say an answer, and which servers the name's zone has, with their
// addresses. Where not all of it fits, the reply is cut only if somebody needs what is missing.
func TestServersAreHelp(t *testing.T) {
	z := new(answer.Zone)
	z.Set(&records.Settings{Domain: "cluster.local"})
	add := func(to *[]dns.RR, text string, args ...any) {
		t.Helper()
		r, err := dns.NewRR(fmt.Sprintf(text, args...))
		if err != nil {
			t.Fatal(err)
		}
		*to = append(*to, r)
	}
	for name, c := range map[string]struct {
		addresses      int
		size           uint16
		do, denied     bool
		servers, helps int
		cut            bool
	}{
		"all fits":                      {addresses: 2, servers: 8, helps: 8},
		"the servers' addresses do not": {addresses: 14, servers: 8},
		"the servers do not":            {addresses: 26},
		"the answer does not":           {addresses: 40, cut: true},
		"all fits by EDNS0":             {addresses: 26, size: 1232, servers: 8, helps: 8},
		"signatures are wanted":         {addresses: 26, size: 512, do: true, cut: true},
		"there is no such name":         {denied: true, addresses: 26, cut: true},
	} {
		q := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
		if c.size > 0 {
			q.SetEdns0(c.size, c.do)
		}
		said := new(dns.Msg).SetReply(q)
		for i := range c.addresses {
			add(&said.Answer, "www.example. 60 IN A 203.0.113.%d", i)
		}
		for i := range 8 {
			add(&said.Ns, "example. 60 IN NS ns%d.example.", i)
			add(&said.Extra, "ns%d.example. 60 IN A 198.51.100.%d", i, i)
		}
		if c.denied {
			said.Rcode = dns.RcodeNameError
		}
		before := said.String()
		_, o := z.Answer(q, answer.Asker{})
		r := o.Take(said)
		helps := len(r.Extra)
		if r.IsEdns0() != nil {
			helps--
		}
		if r.Truncated != c.cut || !c.cut && (len(r.Answer) != c.addresses || len(r.Ns) != c.servers || helps != c.helps) {
			t.Errorf("%s: %d addresses, %d servers and %d addresses of these are in the reply; it is cut: %t", name, len(r.Answer), len(r.Ns), helps, r.Truncated)
		}
		if said.String() != before {
			t.Errorf("%s: what is kept is %s, and was %s", name, said, before)
		}
	}
}
