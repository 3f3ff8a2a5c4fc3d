package server

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/internal/await"
)

// TestOnce has many clients ask one question, in letters of either case, while the upstream is
// silent: it is asked once, as far as datagrams are not sent again, and all are answered.
func TestOnce(t *testing.T) {
	const clients, each = 20, 10
	var mu sync.Mutex
	asked := map[string]map[string]bool{}
	over := make(chan struct{})
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		name := strings.ToLower(q.Question[0].Name)
		if asked[name] == nil {
			asked[name] = map[string]bool{}
		}
		// What somebody has to guess who would answer first.
		asked[name][fmt.Sprint(w.RemoteAddr().(*net.UDPAddr).Port, q.Id)] = true
		mu.Unlock()
		<-over
		says(w, q, "@ 60 IN A 203.0.113.1")
	})
	o, err := newOutside(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.use(&ways{rest: []netip.AddrPort{up}}); err != nil {
		t.Fatal(err)
	}
	defer stop(*o.router.to.Load())
	s := &Server{c: Config{Domain: "cluster.local"}, labels: withLabels()}
	s.outside.Store(o)
	var all sync.WaitGroup
	var answered atomic.Int64
	send := func(client int, name string, edit func(*dns.Msg)) {
		q := question(name, dns.TypeA)
		edit(q)
		data, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		p := &packet{data: data, from: netip.AddrPortFrom(pod(client), 1000), began: time.Now(), reply: func(data []byte) {
			r := new(dns.Msg)
			if err := r.Unpack(data); err != nil || words(r) != "NOERROR 203.0.113.1" || r.Id != q.Id || r.Question[0].Name != q.Question[0].Name {
				t.Errorf("the reply is %v, %v", r, err)
			}
			answered.Add(1)
		}}
		s.handle(p, func(f func()) { all.Go(f) })
	}
	plain := func(*dns.Msg) {}
	for client := range clients {
		for i := range each {
			send(client, []string{"www.example.", "WWW.example.", "wWw.EXAMPLE."}[i%3], plain)
		}
	}
	// These are other questions, which wait for none of the first.
	send(0, "other.example.", plain)
	send(0, "www.example.", func(q *dns.Msg) { q.CheckingDisabled = true })
	send(0, "www.example.", func(q *dns.Msg) { q.SetEdns0(1232, true) })
	await.NoError(t, long, "all is asked", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(asked["other.example."]) == 0 || len(asked["www.example."]) < 3 {
			return fmt.Errorf("asked is %v", asked)
		}
		return nil
	})
	close(over)
	all.Wait()
	if got := answered.Load(); got != clients*each+3 {
		t.Errorf("there are %d answers", got)
	}
	mu.Lock()
	defer mu.Unlock()
	// After two seconds forward asks again, of which a slow machine may see some.
	if got := len(asked["www.example."]); got > 12 {
		t.Errorf("the upstream was asked %d times", got)
	}
}
