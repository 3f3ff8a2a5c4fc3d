package answer_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/dns/answer"
	"github.com/weftnet/weft/dns/records"
)

// A Service with as many endpoints as there may be is answered with as many as fit, of which a
// datagram says that they are not all, and none is always in front.
func TestManyEndpoints(t *testing.T) {
	z := new(answer.Zone)
	z.Set(&records.Settings{Domain: "cluster.local"})
	z.Put(headless(20000))
	for _, question := range []struct {
		name   string
		qtype  uint16
		stream bool
		least  int
	}{
		{"db.shop.svc.cluster.local.", dns.TypeA, false, 20},
		{"db.shop.svc.cluster.local.", dns.TypeA, true, 4000},
		{"_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV, false, 5},
		{"_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV, true, 1000},
	} {
		q := new(dns.Msg)
		q.SetQuestion(question.name, question.qtype)
		first := make(map[string]bool)
		for range 50 {
			reply, _ := z.Answer(q, answer.Asker{Stream: question.stream})
			packet, err := reply.Pack()
			if most := map[bool]int{false: dns.MinMsgSize, true: 65535}[question.stream]; err != nil || len(packet) > most {
				t.Fatalf("%v: the reply has %d bytes, %v", question, len(packet), err)
			}
			if reply.Truncated == question.stream || len(reply.Answer) < question.least {
				t.Fatalf("%v: %d records are in it, and more: %t", question, len(reply.Answer), reply.Truncated)
			}
			first[reply.Answer[0].String()] = true
		}
		// That one of 20000 is in front as often as not is as good as impossible.
		if len(first) < 25 {
			t.Errorf("%v: of 50 answers %d begin differently", question, len(first))
		}
	}
}

// Where records are left out that only help, nobody has to ask again for those that count.
func TestHelpIsNoReasonToAskAgain(t *testing.T) {
	z := new(answer.Zone)
	z.Set(&records.Settings{Domain: "cluster.local"})
	z.Put(headless(7))
	q := new(dns.Msg)
	q.SetQuestion("_sql._tcp.db.shop.svc.cluster.local.", dns.TypeSRV)
	reply, _ := z.Answer(q, answer.Asker{})
	if reply.Truncated || len(reply.Answer) != 7 || len(reply.Extra) != 0 {
		t.Errorf("not all of seven are there, or too much:\n%s", reply)
	}
}

// What a datagram costs does not go by how many endpoints there are.
func TestAnswersCostWhatFits(t *testing.T) {
	cost := func(endpoints int) float64 {
		z := new(answer.Zone)
		z.Set(&records.Settings{Domain: "cluster.local"})
		z.Put(headless(endpoints))
		q := new(dns.Msg)
		q.SetQuestion("db.shop.svc.cluster.local.", dns.TypeA)
		return allocated(func() {
			for range 100 {
				z.Answer(q, answer.Asker{})
			}
		})
	}
	if few, many := cost(100), cost(20000); many > 1.2*few {
		t.Errorf("it takes %.0f bytes with 100 endpoints, and %.0f with 20000", few, many)
	}
}

// An endpoint that comes is indexed, and not all others again.
func TestPutCostsWhatChanged(t *testing.T) {
	one, two := headless(20000), headless(20001)
	z := new(answer.Zone)
	empty := new(answer.Zone)
	all := allocated(func() { empty.Put(one) })
	z.Put(one)
	if more := allocated(func() { z.Put(two) }); more > all/2 {
		t.Errorf("one endpoint more takes %.0f bytes, where all took %.0f", more, all)
	}
}

// A Zone changes while it answers. The race detector looks on where it is on.
func TestAnswersWhileItChanges(t *testing.T) {
	z := hostile()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for _, name := range []string{"db.shop.svc.cluster.local.", "web.shop.svc.cluster.local.", "1.0.0.10.in-addr.arpa."} {
				for range 200 {
					q := new(dns.Msg)
					q.SetQuestion(name, dns.TypeA)
					if reply, outside := z.Answer(q, answer.Asker{}); reply == nil && outside == nil {
						t.Error("there is no reply")
					}
				}
			}
		})
	}
	for i := range 200 {
		z.Put(headless(i % 7))
		z.Set(&records.Settings{Domain: "cluster.local"})
		z.Delete(headless(0).Key)
	}
	group.Wait()
}

// allocated returns how many bytes are.
func allocated(by func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	by()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

func BenchmarkAnswer(b *testing.B) {
	z := hostile()
	for name, qtype := range map[string]uint16{"web.shop.svc.cluster.local.": dns.TypeA, "db.shop.svc.cluster.local.": dns.TypeA, "_http._tcp.db.shop.svc.cluster.local.": dns.TypeSRV, "none.shop.svc.cluster.local.": dns.TypeA} {
		q := new(dns.Msg)
		q.SetQuestion(name, qtype)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				reply, _ := z.Answer(q, answer.Asker{})
				if _, err := reply.Pack(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
