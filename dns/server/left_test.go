package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/dns/keeper"
	"github.com/weftnet/weft/dns/unanswered"
)

// TestTakeOver has a server find queries that another has left: those that it had not begun more than
// once go into the queue, in their order, whatever else of their client is there. What is too old, and
// what nobody sent to an address that is served, is freed.
func TestTakeOver(t *testing.T) {
	fd, err := unix.MemfdCreate("unanswered", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	defer f.Close()
	if err := f.Truncate(unanswered.Size); err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	at, other := udp.LocalAddr().(*net.UDPAddr).AddrPort(), netip.MustParseAddrPort("192.0.2.1:53")
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	before, _, err := unanswered.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	// left has the server before read a query, and begin to answer it so often.
	left := func(to netip.AddrPort, text string, begun int) {
		t.Helper()
		r, err := before.Reader(udp, to, maxRead)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(); err != nil {
			t.Fatal(err)
		}
		q := r.Hold()
		for range begun {
			q.Begin()
		}
		r.Close()
	}
	number := 0
	for begun := range 4 {
		for range maxWaitingEach {
			left(at, fmt.Sprint(number, begun), begun)
			number++
		}
	}
	left(at, "old", 0)
	left(other, "other", 0)

	s := &Server{c: Config{Keeper: &keeper.Line{Memory: f}}, log: slog.New(slog.DiscardHandler), queries: newFair[*packet](maxWaitingEach, maxWaiting)}
	s.metrics = &metrics{lefts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "left"}, []string{"became"})}
	if err := s.useMemory(); err != nil {
		t.Fatal(err)
	}
	of := s.left[at]
	of[len(of)-1].Read = time.Now().Add(-leftTime - time.Second)
	s.takeOver(&pair{at: at, udp: udp})
	s.forgetLeft()
	told := func(became string, want int) {
		t.Helper()
		var m dto.Metric
		if err := s.metrics.lefts.WithLabelValues(became).Write(&m); err != nil || m.GetCounter().GetValue() != float64(want) {
			t.Errorf("%v are %s, and it should be %d", m.GetCounter().GetValue(), became, want)
		}
	}
	told(takenOver, 2*maxWaitingEach)
	told(late, 2)
	told(givenUp, 2*maxWaitingEach)
	s.queries.close()
	var got, want []string
	for i := range 2 * maxWaitingEach {
		want = append(want, fmt.Sprint(i, i/maxWaitingEach))
	}
	for p, ok := s.queries.pop(); ok; p, ok = s.queries.pop() {
		if p.from != client.LocalAddr().(*net.UDPAddr).AddrPort() {
			t.Fatalf("the client is %s", p.from)
		}
		got = append(got, string(p.data))
		p.finish()
	}
	if !slices.Equal(got, want) {
		t.Errorf("the queue has %v", got)
	}
	if _, all, err := unanswered.Open(f); err != nil || len(all) > 0 {
		t.Errorf("%d are left, %v", len(all), err)
	}
}
