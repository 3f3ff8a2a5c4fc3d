package answer_test

import (
	"fmt"
	"net/netip"
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
			said, _ := answer.Read(packet)
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

// FuzzRead takes any packet: it is a query, gets a reply, or neither.
func FuzzRead(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	f.Add(append(make([]byte, 12), 0xc0, 0x0c, 0, 1, 0, 1))
	f.Fuzz(func(t *testing.T, packet []byte) {
		query, reply := answer.Read(packet)
		if query != nil && reply != nil || query != nil && query.Response {
			t.Fatalf("%x is both\n%s\nand\n%s", packet, query, reply)
		}
		if query == nil {
			fits(t, reply, packet, false)
		}
	})
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
