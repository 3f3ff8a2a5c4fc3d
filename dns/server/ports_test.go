package server

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestPorts asks one question after the other: they leave from ports that change, and with numbers that do.
func TestPorts(t *testing.T) {
	t.Parallel()
	const enough = 8
	var mu sync.Mutex
	ports, numbers := map[int]bool{}, map[uint16]bool{}
	s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		ports[w.RemoteAddr().(*net.UDPAddr).Port], numbers[q.Id] = true, true
		mu.Unlock()
		says(w, q, "@ 60 IN A 203.0.113.1")
	}), 0)
	seen := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return len(ports), len(numbers)
	}
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		if p, n := seen(); p >= enough && n >= enough {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%d questions left from %d ports, with %d numbers", i, p, n)
		}
		if got := words(s.lookUp(t, fmt.Sprintf("n%d.example", i))); got != "NOERROR 203.0.113.1" {
			t.Fatalf("the answer is %s", got)
		}
	}
}

// TestPortsAtOnce has questions under way at once: each has left from a port of its own.
func TestPortsAtOnce(t *testing.T) {
	t.Parallel()
	const together = 16
	ports, answer := make(chan int, 10*together), make(chan struct{})
	s := asking(t, upstream(t, func(w dns.ResponseWriter, q *dns.Msg) {
		ports <- w.RemoteAddr().(*net.UDPAddr).Port
		<-answer
		says(w, q, "@ 60 IN A 203.0.113.1")
	}), 0)
	done := make(chan struct{}, together)
	for i := range together {
		go func() {
			s.lookUp(t, fmt.Sprintf("n%d.example", i))
			done <- struct{}{}
		}()
	}
	from := map[int]bool{}
	for range together {
		from[<-ports] = true
	}
	close(answer)
	for range together {
		<-done
	}
	if len(from) != together {
		t.Errorf("%d questions that are under way at once left from %d ports", together, len(from))
	}
}
