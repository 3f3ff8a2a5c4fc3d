package traffic

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weftnet/weft/internal/await"
)

// serve runs a server on a free port and returns the port and what stops it.
func serve(t *testing.T) (port uint16, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port = uint16(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Server{Name: "me", Port: port}.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await.NoError(t, time.Minute, "a server listens", func() error {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return c.Close()
	})
	return port, stop
}

func TestAskSaysWhoAnsweredAndWhatItSaw(t *testing.T) {
	port, stop := serve(t)
	defer stop()
	to := []string{fmt.Sprintf("tcp://127.0.0.1:%d", port), fmt.Sprintf("udp://127.0.0.1:%d", port),
		fmt.Sprintf("tcp://[::1]:%d", port), fmt.Sprintf("udp://[::1]:%d", port)}
	for i, r := range Ask(time.Minute, to...) {
		want := Reply{To: to[i], Seen: netip.MustParseAddr("127.0.0.1"), By: "me"}
		if i >= 2 {
			want.Seen = netip.IPv6Loopback()
		}
		if r != want {
			t.Errorf("got %+v, not %+v", r, want)
		}
	}
	wrong := Ask(time.Minute, "sctp://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:1")
	for _, r := range wrong {
		if !strings.Contains(r.Error, r.To) {
			t.Errorf("%s: the error is %q", r.To, r.Error)
		}
	}
}

// until runs a load until a report satisfies a condition, and returns the
// report of its end.
func until(t *testing.T, l Load, enough func(Report) bool) (last Report) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := l.Run(ctx, func(r Report) {
		if last = r; enough(r) {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !last.Last || last.Waiting() != 0 {
		t.Errorf("the last report is %+v", last)
	}
	return last
}

func TestLoadOnServersThatAnswerLosesNothing(t *testing.T) {
	port, stop := serve(t)
	defer stop()
	l := Load{Rate: 500, Timeout: time.Minute, Targets: []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)}}
	r := until(t, l, func(r Report) bool { return r.Answered > 500 })
	if len(r.Flows) != 6 || r.Lost+r.Resets+r.Reconnects != 0 || len(r.Errors) > 0 {
		t.Errorf("the report is %+v", r)
	}
	for name, c := range r.Flows {
		if c.Answered == 0 {
			t.Errorf("nothing went over %s", name)
		}
		if s := r.Slowest[name]; s <= 0 || s > milliseconds(time.Minute) {
			t.Errorf("the slowest answer over %s took %v ms", name, s)
		}
	}
}

// However long a load sends, it has sent what is due, and no more than its rate says.
func TestDueIsWhatALoadSendsAtLeast(t *testing.T) {
	targets := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7000"), netip.MustParseAddrPort("10.0.0.2:7000"), netip.MustParseAddrPort("10.0.0.3:7000")}
	for _, l := range []Load{{Rate: 1, Targets: targets[:1]}, {Rate: 300, Targets: targets, Held: 9}, {Rate: 25, Targets: targets}} {
		for _, sending := range []time.Duration{time.Millisecond, 2900 * time.Millisecond, time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), sending)
				defer cancel()
				tally := newTally()
				var flows sync.WaitGroup
				for _, f := range l.flows(tally) {
					flows.Go(func() {
						for f.wait(ctx) {
							tally.add(f.name, Counts{Sent: 1})
						}
					})
				}
				flows.Wait()
				all := 0.0
				for name, c := range tally.flows {
					way, _, _ := strings.Cut(name, " ")
					n, _ := l.split(way)
					sent, due := float64(c.Sent), l.Due(way, sending)
					if all += due; sent < due || sent > due+2*float64(n) {
						t.Errorf("%+v for %s: %g requests by %s, and %g are due", l, sending, sent, name, due)
					}
				}
				if most := float64(l.Rate) * sending.Seconds(); all > most || sending == time.Minute && l.Rate > 1 && all < 0.9*most {
					t.Errorf("%+v for %s: %g requests are due", l, sending, all)
				}
			})
		}
	}
}

func TestReportsSayForHowLongALoadSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tally := newTally()
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			time.Sleep(time.Second)
			if got := tally.report().Sending; got != want {
				t.Errorf("it says %s instead of %s", got, want)
			}
			if want == 2*time.Second {
				tally.end()
			}
		}
	})
}

func TestLoadHoldsAsManyConnectionsAsAskedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	var held atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for n := 1; ; n++ {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if n == 2 { // a connection for a single request has one
						held.Add(1)
					}
					fmt.Fprintln(c, strings.TrimSpace(line), "127.0.0.1:1 me")
				}
			}()
		}
	}()
	until(t, Load{Rate: 500, Held: 5, Timeout: time.Second, Targets: []netip.AddrPort{to}}, func(r Report) bool { return held.Load() >= 5 })
	if n := held.Load(); n != 5 {
		t.Errorf("%d connections stayed open, not 5", n)
	}
}

// What stops a server shows in every way to it.
func TestLoadCountsABrokenConnection(t *testing.T) {
	port, stop := serve(t)
	l := Load{Rate: 500, Timeout: 2 * time.Second, Targets: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}}
	stopped := false
	r := until(t, l, func(r Report) bool {
		if !stopped && r.Answered > 100 {
			stopped = true
			stop()
		}
		all := stopped
		for _, c := range r.Flows {
			all = all && c.Lost > 0
		}
		return all
	})
	for name, c := range r.Flows {
		kind, _, _ := strings.Cut(name, " ")
		if kind != "udp" && c.Resets == 0 || kind == "tcp" && c.Reconnects == 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if len(r.Errors) == 0 {
		t.Error("no error says what happened")
	}
}

// A server that says nothing resets nothing, but what is sent to it is lost.
func TestLoadCountsSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := l.Addr().(*net.TCPAddr).AddrPort()
	silent, err := net.ListenPacket("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r := until(t, Load{Rate: 100, Timeout: 500 * time.Millisecond, Targets: []netip.AddrPort{to}}, func(r Report) bool {
		all := len(r.Flows) == 3
		for _, c := range r.Flows {
			all = all && c.Lost > 0
		}
		return all
	})
	if r.Resets != 0 {
		t.Errorf("%d resets by a server that did nothing: %q", r.Resets, r.Errors)
	}
}

// When a flow has ended, it has counted what became of all that it sent. Many end
// at a time, as what is amiss there shows only now and then.
func TestAFlowEndsWhenAllIsCounted(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	to := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	var flows sync.WaitGroup
	for range 64 {
		flows.Go(func() {
			for range 40 {
				counted := newTally()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
				defer cancel()
				flow{name: "udp", to: to, timeout: time.Millisecond, tally: counted, next: time.Now(), every: 100 * time.Microsecond}.datagrams(ctx)
				if r := counted.report(); r.Waiting() != 0 {
					t.Errorf("at the end of a flow its counts are %+v", r.Counts)
				}
			}
		})
	}
	flows.Wait()
}

func TestBulkIsMovedBothWays(t *testing.T) {
	port, stop := serve(t)
	defer stop()
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	for _, give := range []bool{false, true} {
		b := Bulk{To: to, Give: give, Bytes: 1 << 20, Most: 3 << 20, Timeout: time.Minute}
		if m, err := b.Move(); err != nil || m.Rate <= 0 || m.Before != 2<<20 {
			t.Errorf("give %t: %+v, %v", give, m, err)
		}
		b.Until = math.Inf(1)
		if m, err := b.Move(); err != nil || m.Before != 0 {
			t.Errorf("give %t, at any speed: %+v, %v", give, m, err)
		}
	}
}

// What is not a request ends the connection, and the server goes on.
func TestServerRefusesWhatIsNoRequest(t *testing.T) {
	for _, line := range []string{"", "x", "-1", "give", "give x", "give -1", "take 99999999999999999", strings.Repeat("1", 1000)} {
		ours, theirs := net.Pipe()
		ended := make(chan error)
		go func() { ended <- Server{Name: "me"}.serveTCP(addressed{theirs}) }()
		go fmt.Fprintln(ours, line)
		if err := <-ended; err == nil {
			t.Errorf("%q is taken", line)
		}
		ours.Close()
	}
}

// addressed is a pipe with an address.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv6loopback, Port: 1} }

func TestAnswersAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var address [16]byte
		copy(address[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))
		a := Answer{Number: rapid.Uint64().Draw(t, "number"), By: rapid.StringMatching(`[a-z0-9-]{1,63}`).Draw(t, "name"),
			Seen: netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), rapid.Uint16().Draw(t, "port"))}
		if got, err := parseAnswer(a.String()); err != nil || got != a {
			t.Errorf("%q is read as %v, %v", a, got, err)
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add("1 127.0.0.1:80 me")
	f.Add("1 [::1]:80 me\n")
	f.Fuzz(func(t *testing.T, line string) {
		a, err := parseAnswer(line)
		if err != nil {
			return
		}
		if again, err := parseAnswer(a.String()); err != nil || again != a {
			t.Errorf("%q is read as %v, and that as %v, %v", line, a, again, err)
		}
	})
}

func TestServerAnswersOverOneConnection(t *testing.T) {
	ours, theirs := net.Pipe()
	go Server{Name: "me"}.serveTCP(addressed{theirs})
	defer ours.Close()
	in := bufio.NewReader(ours)
	for n := range uint64(3) {
		if a, err := question(ours, in, n); err != nil || a.By != "me" {
			t.Errorf("request %d: %v, %v", n, a, err)
		}
	}
}
