package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"

	"github.com/weftnet/weft/internal/await"
)

// TestSlots has clients wait for slots: who wants many waits for its own alone.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2, 5)
		var entered [4]atomic.Int64
		over := make(chan struct{})
		var all sync.WaitGroup
		want := func(client, n int) {
			for range n {
				all.Go(func() {
					leave, err := s.enter(t.Context(), pod(client), nil)
					if err != nil {
						t.Error(err)
						return
					}
					entered[client].Add(1)
					<-over
					entered[client].Add(-1)
					leave()
				})
			}
			synctest.Wait()
		}
		has := func(of ...int64) {
			t.Helper()
			for client, n := range of {
				if got := entered[client].Load(); got != n {
					t.Errorf("client %d has %d slots, want %d", client, got, n)
				}
			}
		}
		want(0, 100)
		has(2)
		want(1, 1)
		has(2, 1)
		want(2, 50)
		has(2, 1, 2)
		want(3, 1)
		has(2, 1, 2, 0) // all have no more
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for client := range 4 {
			if _, err := s.enter(ctx, pod(client), nil); err == nil {
				t.Errorf("client %d has one too many", client)
			}
		}
		beside := make(chan struct{}, 1)
		if leave, err := s.enter(t.Context(), pod(4), beside); err != nil || len(beside) != 1 {
			t.Errorf("who may have one beside has %d, %v", len(beside), err)
		} else if leave(); len(beside) != 0 {
			t.Errorf("of these %d are not given back", len(beside))
		}
		over <- struct{}{}
		synctest.Wait()
		// Who stands in line gets what somebody gave back, before that one gets it again.
		if entered[3].Load() != 1 {
			t.Error("the last client has none")
		}
		close(over)
		all.Wait()
		if len(s.clients) > 0 || len(s.all) > 0 {
			t.Errorf("there are clients still: %v", s.clients)
		}
	})
}

// TestLarge has the upstream say more than fits into a datagram. Who asks by UDP is told so, and
// nothing is fetched for it. By TCP one client has the upstream say nothing to many queries, and
// another gets its answer meanwhile.
func TestLarge(t *testing.T) {
	t.Parallel()
	var fetched, held atomic.Int64
	over := make(chan struct{})
	defer close(over)
	up := upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		var text []string
		for i := range 500 {
			text = append(text, fmt.Sprintf("@ 60 IN TXT %d-%s", i, strings.Repeat("x", 80)))
		}
		if w.RemoteAddr().Network() == "tcp" {
			fetched.Add(1)
			if strings.HasPrefix(q.Question[0].Name, "held") {
				held.Add(1)
				<-over
			}
		}
		says(w, q, text...)
	})
	n := run(t, settings(up))
	for i := range 20 {
		q := question(fmt.Sprintf("www%d.example", i), dns.TypeTXT)
		q.SetEdns0(4096, false)
		r, err := ask(n.at, "udp", "", q, long)
		n.must(err)
		if !r.Truncated {
			t.Errorf("all of %s is in a datagram", q.Question[0].Name)
		}
	}
	if got := fetched.Load(); got > 0 {
		t.Errorf("%d answers are fetched for who asks by UDP", got)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { ask(n.at, "tcp", "127.0.0.2", question(fmt.Sprintf("held%d.example", i), dns.TypeTXT), long) })
	}
	await.NoError(n, long, "the upstream is asked", func() error {
		if held.Load() < maxStreamsEach {
			return fmt.Errorf("%d queries are held", held.Load())
		}
		return nil
	})
	r, err := ask(n.at, "tcp", "127.0.0.3", question("www.example", dns.TypeTXT), long)
	if err != nil || len(r.Answer) != 500 {
		t.Errorf("another client gets %v, %v", r, err)
	}
	// What one client had to wait for too long is no failure for others.
	all.Wait()
	for i := range 20 {
		r, err := ask(n.at, "udp", "", question(fmt.Sprintf("held%d.example", i), dns.TypeTXT), long)
		n.must(err)
		if !r.Truncated {
			t.Errorf("after that %s is answered %s", r.Question[0].Name, words(r))
		}
	}
}
