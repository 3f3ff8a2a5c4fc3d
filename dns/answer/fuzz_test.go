package answer_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

// FuzzAnswer takes any packet, from a pod whose searches are answered: what is replied fits,
// can be read, and is about what was asked; nothing else is asked of others.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"web.shop.svc.cluster.local.", "_http._tcp.db.shop.svc.cluster.local.", "1.0.96.10.in-addr.arpa.", "github.com.shop.svc.cluster.local.", "away.shop.svc.cluster.local.", ".", `a\.b\\.cluster.local.`} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			q := new(dns.Msg)
			q.SetQuestion(name, qtype)
			q.SetEdns0(4096, true)
			packet, err := q.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(packet, false)
			f.Add(packet[:len(packet)-5], true)
		}
	}
	f.Add([]byte{}, true)
	z := hostile()
	f.Fuzz(func(t *testing.T, packet []byte, stream bool) {
		from := answer.Asker{Address: netip.MustParseAddr("10.1.1.2"), Stream: stream}
		query, reply := answer.Read(packet)
		if query == nil {
			fits(t, reply, packet, stream)
			return
		}
		reply, outside := z.Answer(query, from)
		if outside == nil {
			fits(t, reply, packet, stream)
			return
		}
		// Others say anything: here, what was sent.
		for range 8 {
			q := outside.Question()
			if len(q.Question) != 1 || q.Question[0].Qtype != query.Question[0].Qtype {
				t.Fatalf("others are asked something else:\n%s", q)
			}
			if _, err := q.Pack(); err != nil {
				t.Fatalf("%v: %s", err, q)
			}
			said := new(dns.Msg)
			said.Unpack(packet) // as far as it can be read
			said.Rcode = len(packet) % 17
			if reply = outside.Take(said); reply != nil {
				break
			}
		}
		fits(t, reply, packet, stream)
	})
}

// fits reports what is wrong with a reply to a packet; nil is none.
func fits(t *testing.T, reply *dns.Msg, packet []byte, stream bool) {
	if reply == nil {
		if len(packet) >= 12 && packet[2]&0x80 == 0 {
			t.Fatalf("%x gets no reply", packet)
		}
		return
	}
	out, err := reply.Pack()
	if err != nil {
		t.Fatalf("%v:\n%s", err, reply)
	}
	if most := map[bool]int{false: 1232, true: 65535}[stream]; len(out) > most {
		t.Fatalf("%d bytes are too many", len(out))
	}
	var read dns.Msg
	if err := read.Unpack(out); err != nil {
		t.Fatalf("%v:\n%s", err, reply)
	}
	if !read.Response || read.Id != uint16(packet[0])<<8|uint16(packet[1]) {
		t.Fatalf("it is no reply to %x:\n%s", packet, reply)
	}
}

// FuzzRead takes any packet: it is a query, gets a reply, or neither. What is read of a query is
// what who reads all of it finds there.
func FuzzRead(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	f.Add(append(make([]byte, 12), 0xc0, 0x0c, 0, 1, 0, 1))
	for _, m := range queries() {
		packet, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		query, reply := answer.Read(packet)
		if query != nil && reply != nil || query != nil && query.Response {
			t.Fatalf("%x is both\n%s\nand\n%s", packet, query, reply)
		}
		if query == nil {
			fits(t, reply, packet, false)
			return
		}
		whole := new(dns.Msg)
		err := whole.Unpack(packet)
		whole.Rcode &= 0xf // EDNS0 has the rest
		if query.MsgHdr != whole.MsgHdr {
			t.Fatalf("the header of %x is %+v, and not %+v, %v", packet, whole.MsgHdr, query.MsgHdr, err)
		} else if err != nil {
			return // a record that is passed over is none
		}
		if query.Opcode != dns.OpcodeQuery && len(query.Question) == 0 {
			return
		}
		a, b := query.IsEdns0(), whole.IsEdns0()
		if !slices.Equal(query.Question, whole.Question) || (a == nil) != (b == nil) && query.Opcode == dns.OpcodeQuery {
			t.Fatalf("%x is\n%s\nand not\n%s", packet, whole, query)
		}
		if a != nil && (a.UDPSize() != b.UDPSize() || a.Do() != b.Do() || a.Version() != b.Version()) {
			t.Fatalf("EDNS0 of %x is\n%s\nand not\n%s", packet, b, a)
		}
	})
}

// queries are such as resolvers and others send.
func queries() map[string]*dns.Msg {
	all := map[string]*dns.Msg{}
	query := func(what string, change func(*dns.Msg)) {
		q := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
		change(q)
		all[what] = q
	}
	edns := func(q *dns.Msg) *dns.OPT { return q.SetEdns0(4096, true).IsEdns0() }
	soa := &dns.SOA{Hdr: dns.RR_Header{Name: "shop.svc.cluster.local.", Rrtype: dns.TypeSOA, Class: dns.ClassINET}, Ns: ".", Mbox: "."}
	query("plain", func(*dns.Msg) {})
	query("flags", func(q *dns.Msg) {
		q.RecursionDesired, q.AuthenticatedData, q.CheckingDisabled, q.Zero = false, true, true, true
	})
	query("EDNS0 with options", func(q *dns.Msg) {
		o := edns(q)
		o.Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}, &dns.EDNS0_PADDING{Padding: make([]byte, 300)}}
	})
	query("signed", func(q *dns.Msg) {
		edns(q)
		q.SetTsig("key.example.", dns.HmacSHA256, 300, 0)
	})
	query("a transfer", func(q *dns.Msg) {
		q.Question[0].Qtype = dns.TypeIXFR
		q.Ns = []dns.RR{soa}
		edns(q)
	})
	query("an update", func(q *dns.Msg) {
		q.Opcode, q.Question[0].Qtype = dns.OpcodeUpdate, dns.TypeSOA
		q.Answer, q.Ns = []dns.RR{soa}, []dns.RR{soa}
	})
	query("with an answer", func(q *dns.Msg) { q.Answer = []dns.RR{soa} })
	query("two questions", func(q *dns.Msg) { q.Question = slices.Repeat(q.Question, 2) })
	query("no question", func(q *dns.Msg) { q.Question = nil })
	query("EDNS0 twice", func(q *dns.Msg) {
		edns(q)
		q.Extra = slices.Repeat(q.Extra, 2)
	})
	query("EDNS0 of a name", func(q *dns.Msg) { edns(q).Hdr.Name = "example." })
	query("too long", func(q *dns.Msg) {
		edns(q).Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, answer.MaxQuery)}}
	})
	return all
}

// TestRead reads queries; what is none is refused.
func TestRead(t *testing.T) {
	refused := map[string]bool{"with an answer": true, "two questions": true, "no question": true, "EDNS0 twice": true, "EDNS0 of a name": true, "too long": true}
	for what, m := range queries() {
		packet, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		query, reply := answer.Read(packet)
		if (reply != nil) != refused[what] || reply != nil && reply.Rcode != dns.RcodeFormatError {
			t.Errorf("%s: it is read as\n%s\nand gets\n%s", what, query, reply)
			continue
		}
		if query == nil {
			continue
		}
		if query.MsgHdr != m.MsgHdr || !slices.Equal(query.Question, m.Question) || (query.IsEdns0() == nil) != (m.IsEdns0() == nil) {
			t.Errorf("%s: it is read as\n%s\nand not as\n%s", what, query, m)
		}
		if o := query.IsEdns0(); o != nil && (o.UDPSize() != 4096 || !o.Do()) {
			t.Errorf("%s: EDNS0 is read as %s", what, o)
		}
		for n := range len(packet) {
			if query, reply := answer.Read(packet[:n]); n >= 12 && query != nil && query.Opcode == dns.OpcodeQuery || n < 12 && reply != nil {
				t.Errorf("%s: of %d bytes %d are taken for\n%s", what, len(packet), n, query)
			}
		}
	}
}

// TestReadCostsLittle reads records that point to a long name again and again: what they say is
// never written out, in whatever section they are.
func TestReadCostsLittle(t *testing.T) {
	name := strings.Repeat(strings.Repeat("x", 60)+".", 4)
	packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	few := testing.AllocsPerRun(100, func() { answer.Read(packet) })
	for section := 1; section <= 3; section++ {
		for _, most := range []int{answer.MaxQuery, 65535} {
			p, n := slices.Clone(packet), uint16(0)
			for len(p)+12+2*64 <= most {
				// HIP (RFC 8005) with no key, and 64 servers, each of that name.
				p = append(p, 0xc0, 12, 0, byte(dns.TypeHIP), 0, 1, 0, 0, 0, 0, 0, 4+2*64, 0, 0, 0, 0)
				p = append(p, bytes.Repeat([]byte{0xc0, 12}, 64)...)
				n++
			}
			p[4+2*section], p[5+2*section] = byte(n>>8), byte(n)
			if got := testing.AllocsPerRun(100, func() { answer.Read(p) }); got > few+2 {
				t.Errorf("%d bytes in section %d take %.0f allocations, and without %.0f", len(p), section, got, few)
			}
		}
	}
}

// hostile is a Zone with much of everything.
func hostile() *answer.Zone {
	c := cluster{
		Settings:   records.Settings{Domain: "cluster.local", Searches: []string{"corp.example"}, Pods: records.AnyPods, Prefixes: true},
		Namespaces: []string{"shop"},
		Services: []*records.Service{
			{Key: records.Key{Namespace: "shop", Name: "web"}, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []records.Port{{Name: "http", Protocol: records.TCP, Port: 80}}},
			{Key: records.Key{Namespace: "shop", Name: "away"}, External: "away.example.com"},
			{Key: records.Key{Namespace: "shop", Name: "loop"}, External: "loop.shop.svc.cluster.local"},
			headless(200),
		},
		Clients: []records.Client{{Address: netip.MustParseAddr("10.1.1.2"), Namespace: "shop"}},
	}
	return c.zone()
}

// headless is a Service with endpoints, half of them with hostnames, and of two ports each.
func headless(endpoints int) *records.Service {
	s := &records.Service{Key: records.Key{Namespace: "shop", Name: "db"}}
	ports := []records.Port{{Name: "http", Protocol: records.TCP, Port: 80}, {Name: "sql", Protocol: records.TCP, Port: 5432}}
	for i := range endpoints {
		e := records.Endpoint{Address: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Ports: ports}
		if i%2 == 0 {
			e.Hostname = fmt.Sprint("db-", i)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}
