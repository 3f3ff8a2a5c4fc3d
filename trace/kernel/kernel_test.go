package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weftnet/weft/internal/netns"
	"github.com/weftnet/weft/plan"
	"github.com/weftnet/weft/trace"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// sourcePort is that of all probes of the tests.
const sourcePort = 4711

// bench is a network namespace in which packets are sent to itself.
type bench struct {
	*testing.T
	path string
}

// newBench makes one, with a ruleset in the language of nft.
func newBench(t *testing.T, ruleset string) bench {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	made := make(chan *os.File)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
		}
		made <- f
	}()
	f := <-made
	t.Cleanup(func() { f.Close() })
	b := bench{t, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())}
	b.command("ip", "link", "set", "lo", "up")
	b.command("nft", ruleset)
	return b
}

func (b bench) command(name string, args ...string) string {
	b.Helper()
	var out []byte
	if err := netns.Do(b.path, func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	}); err != nil {
		b.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// watch begins to look for datagrams from sourcePort to a port; from says that
// it is from another port than that, which is not known.
func (b bench) watch(id string, port, from uint16) *Watching {
	b.Helper()
	var o *Watching
	if err := netns.Do(b.path, func() (err error) {
		o, err = Open(trace.Watch{ID: id, Source: loopback, Destination: loopback, Protocol: plan.UDP, SourcePort: from, Port: port, For: trace.MostTime})
		return err
	}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(o.Close)
	return o
}

// send sends n datagrams.
func (b bench) send(from, to uint16, n int) {
	b.Helper()
	if err := netns.Do(b.path, func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.Bind(s, sockaddr(loopback, from)); err != nil {
			return err
		}
		for range n {
			// What a rule drops is refused, and what nobody takes as well.
			_ = unix.Sendto(s, nil, 0, sockaddr(loopback, to))
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// events returns what is told until it is asked to end.
func (b bench) events(o *Watching) []trace.Event {
	b.Helper()
	var all []trace.Event
	ended := make(chan struct{})
	close(ended)
	if err := o.Run(b.Context(), ended, func(e trace.Event) { all = append(all, e) }); err != nil {
		b.Fatal(err)
	}
	return all
}

func decided(events []trace.Event) []string {
	var all []string
	for _, e := range events {
		if e.Kind == trace.Decided {
			all = append(all, strings.TrimSpace(e.Verdict+" "+e.Hook+" "+e.Rule))
		}
	}
	return all
}

const drops10 = `add table ip f; add chain ip f in { type filter hook input priority 0; }; add rule ip f in udp dport 10 drop`

// TestWhatIsTold holds what is told of two probes at once to be of the one or
// the other, and the last look to miss nothing of what was before it.
func TestWhatIsTold(t *testing.T) {
	b := newBench(t, drops10+` comment "no"`)
	nine, ten := b.watch("00000009", 9, sourcePort), b.watch("00000010", 10, sourcePort)
	b.send(sourcePort, 9, 1)
	b.send(sourcePort, 10, 1)
	for o, want := range map[*Watching][]string{nine: {"accept input"}, ten: {"drop input no"}} {
		events := b.events(o)
		if got := decided(events); !slices.Equal(got, want) {
			t.Errorf("decided is %q, want %q", got, want)
		}
		seen := 0
		for _, e := range events {
			if e.Kind == trace.Seen && e.Device == "lo" {
				seen++
			}
		}
		if seen != 2 {
			t.Errorf("it is seen %d times, want 2: %+v", seen, events)
		}
	}
}

// TestLost has the kernel lose what it would tell, and wants that to be said, and
// at once: who does not know that something is missing takes it for lost.
func TestLost(t *testing.T) {
	b := newBench(t, drops10)
	for name, shrink := range map[string]func(*Watching) error{
		"decisions": func(o *Watching) error { return o.traces.SetReadBuffer(1) },
		"packets": func(o *Watching) error {
			conn, err := o.packets.SyscallConn()
			if err != nil {
				return err
			}
			var failed error
			err = conn.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1)
			})
			return errors.Join(err, failed)
		},
	} {
		o := b.watch("0123abcd", 10, sourcePort)
		if err := shrink(o); err != nil {
			t.Fatal(err)
		}
		b.send(sourcePort, 10, 100)
		if err := o.Run(t.Context(), nil, func(trace.Event) {}); err == nil || !strings.Contains(err.Error(), " lost") {
			t.Errorf("%s: the error is %v", name, err)
		}
		o.Close()
	}
}

// TestOthersSend has others send between the same addresses all the while, more often
// than a source is waited for: it ends with what is told of the probe.
func TestOthersSend(t *testing.T) {
	b := newBench(t, drops10+` comment "no"`)
	stop := make(chan struct{})
	var others sync.WaitGroup
	defer others.Wait()
	defer close(stop)
	others.Go(func() {
		for tick := time.Tick(settle / 20); ; {
			select {
			case <-tick:
				b.send(sourcePort+1, 10, 1)
			case <-stop:
				return
			}
		}
	})
	o := b.watch("0123abcd", 10, sourcePort)
	b.send(sourcePort, 10, 1)
	if got := decided(b.events(o)); !slices.Equal(got, []string{"drop input no"}) {
		t.Errorf("decided is %q", got)
	}
}

// TestTheEndComes counts what is read of a source once the end was asked for, which is
// up to a moment without the probe, whatever others send, and never for ever.
func TestTheEndComes(t *testing.T) {
	const gap = settle / 10
	for name, test := range map[string]struct {
		// own says of what comes, one each gap, whether it is of the probe.
		own func(n int) bool
		// reads is how many times it is read, and failed what the error says.
		reads  int
		failed string
	}{
		"others alone":              {func(int) bool { return false }, 9, ""},
		"the probe among others":    {func(n int) bool { return n == 5 }, 5 + 9, ""},
		"the probe without any end": {func(int) bool { return true }, int(mostSettle/gap) - 1, "more of what looks like the probe"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Bool
			asked.Store(true)
			var until time.Time
			began, reads := time.Now(), 0
			err := each(t.Context(), &asked, func(d time.Time) error { until = d; return nil },
				func() (bool, error) { return false, nil },
				func() (bool, error) {
					next := began.Add(time.Duration(reads+1) * gap)
					if !next.Before(until) {
						time.Sleep(time.Until(until))
						return false, os.ErrDeadlineExceeded
					}
					time.Sleep(time.Until(next))
					reads++
					return test.own(reads), nil
				})
			if reads != test.reads {
				t.Errorf("%s: it was read %d times, want %d", name, reads, test.reads)
			}
			if (err == nil) != (test.failed == "") || err != nil && !strings.Contains(err.Error(), test.failed) {
				t.Errorf("%s: the error is %v", name, err)
			}
		})
	}
}

// TestWhatWaitsIsRead has a source hold more than can be read until it is quiet: it is
// read up to the end, where the probe may be.
func TestWhatWaitsIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Bool
		asked.Store(true)
		const waiting = 5
		reads := 0
		if err := each(t.Context(), &asked, func(time.Time) error { return nil },
			func() (bool, error) { return reads < waiting, nil },
			func() (bool, error) { time.Sleep(settle); reads++; return false, nil },
		); err != nil {
			t.Error(err)
		}
		if reads != waiting {
			t.Errorf("it was read %d times, want %d", reads, waiting)
		}
	})
}

// TestAlike has somebody else send what looks like a probe whose port is not
// known.
func TestAlike(t *testing.T) {
	b := newBench(t, drops10+` comment "no"`)
	o := b.watch("0123abcd", 10, 0)
	b.send(sourcePort, 10, 2)
	if got := decided(b.events(o)); !slices.Equal(got, []string{"drop input no", "drop input no"}) {
		t.Errorf("decided is %q", got)
	}
	o = b.watch("0123abce", 10, 0)
	b.send(sourcePort, 10, 1)
	b.send(sourcePort+1, 10, 1)
	if err := o.Run(t.Context(), nil, func(trace.Event) {}); err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Errorf("the error is %v", err)
	}
}

// TestHangingNft has nft not answer: the rule has no text then, and that is asked
// for once, until the ruleset changes.
func TestHangingNft(t *testing.T) {
	b := newBench(t, drops10)
	bin := t.TempDir()
	asked := filepath.Join(bin, "asked")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	o := b.watch("0123abcd", 10, sourcePort)
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "nft"), []byte("#!/bin/sh\necho >>"+asked+"\nsleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	events := make(chan trace.Event, 100)
	go func() { ended <- o.Run(ctx, nil, func(e trace.Event) { events <- e }) }()
	decidedNext := func() string {
		for {
			select {
			case e := <-events:
				if e.Kind == trace.Decided {
					return e.Rule
				}
			case err := <-ended:
				t.Fatal(err)
			}
		}
	}
	times := func() int {
		said, err := os.ReadFile(asked)
		if err != nil {
			t.Fatal(err)
		}
		return len(said)
	}
	b.send(sourcePort, 10, 3)
	for range 3 {
		if rule := decidedNext(); !strings.HasPrefix(rule, "the rule with handle") {
			t.Errorf("the rule is %q", rule)
		}
	}
	if n := times(); n != 1 {
		t.Errorf("nft was asked %d times", n)
	}
	b.command(nft, `add table ip other`)
	b.send(sourcePort, 10, 1)
	decidedNext()
	if n := times(); n != 2 {
		t.Errorf("nft was asked %d times after the ruleset changed once", n)
	}
	// It ends though nft is being waited for.
	b.command(nft, `delete table ip other`)
	b.send(sourcePort, 10, 1)
	for times() != 3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestGone has a chain go before what it decided is asked about. What is not
// known must not look like something else.
func TestGone(t *testing.T) {
	b := newBench(t, drops10)
	o := b.watch("0123abcd", 10, sourcePort)
	b.send(sourcePort, 10, 1)
	b.command("nft", "delete table ip f")
	if err := o.Run(t.Context(), nil, func(trace.Event) {}); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("the error is %v", err)
	}
}

// TestFirst has chains drop the probe as early as chains of a hook can: that they
// did is told, as the probe is traced before.
func TestFirst(t *testing.T) {
	for _, priority := range []string{"-500", "-2147483648"} {
		b := newBench(t, `add table ip r; add chain ip r raw { type filter hook prerouting priority `+priority+`; }; add rule ip r raw udp dport 10 drop comment "no"`)
		if got := decided(b.events10()); !slices.Equal(got, []string{"drop prerouting no"}) {
			t.Errorf("by a chain of priority %s decided is %q", priority, got)
		}
	}
}

// TestTraced tells what dropped the probe before it is traced from what is behind.
func TestTraced(t *testing.T) {
	for _, test := range []struct {
		ruleset, legacy string
		traced          []string
		untraced        []trace.Event
	}{
		{"add table netdev cut; add chain netdev cut in { type filter hook ingress device lo priority 0; }; add rule netdev cut in udp dport 10 drop", "",
			[]string{"output"}, []trace.Event{{Text: "chain in of table netdev cut (ingress)", Hook: "ingress", Device: "lo"}}},
		{"add table inet cut; add chain inet cut in { type filter hook ingress devices = { lo } priority 0; }; add rule inet cut in udp dport 10 drop", "",
			[]string{"output"}, []trace.Event{{Text: "chain in of table inet cut (ingress)", Hook: "ingress", Device: "lo"}}},
		// Those of other devices, of other hooks, and behind tell nothing.
		{"add table netdev n; add chain netdev n out { type filter hook egress device lo priority 0; }; " +
			"add table ip f; add chain ip f in { type filter hook input priority 0; }; add chain ip f raw { type filter hook prerouting priority -500; }", "",
			[]string{"output", "prerouting"}, nil},
		{drops10, "raw", []string{"output", "prerouting"}, []trace.Event{{Text: "iptables-legacy (table raw)"}}},
	} {
		b := newBench(t, test.ruleset)
		if test.legacy != "" {
			legacy, err := exec.LookPath("iptables-legacy")
			if err != nil {
				t.Logf("not tried: %v", err)
				continue
			}
			b.command(legacy, "-t", test.legacy, "-A", "PREROUTING", "-p", "udp", "-j", "DROP")
		}
		var traced []string
		var untraced []trace.Event
		for _, e := range b.events10() {
			switch e.Kind {
			case trace.Traced:
				traced = append(traced, e.Hook)
			case trace.Untraced:
				e.Kind, e.Time = "", time.Time{}
				untraced = append(untraced, e)
			}
		}
		if !slices.Equal(traced, test.traced) || !slices.Equal(untraced, test.untraced) {
			t.Errorf("under %s it is traced in %q, want %q, and untraced are %+v, want %+v", test.ruleset, traced, test.traced, untraced, test.untraced)
		}
	}
}

// TestLatestFirst has a chain come before the probe's own, as it was made after it.
func TestLatestFirst(t *testing.T) {
	b := newBench(t, drops10)
	o := b.watch("0123abcd", 10, sourcePort)
	b.command("nft", "add table ip r; add chain ip r raw { type filter hook prerouting priority -2147483648; }; add rule ip r raw udp dport 10 drop")
	b.send(sourcePort, 10, 1)
	want := "chain raw of table ip r (prerouting)"
	if events := b.events(o); !slices.ContainsFunc(events, func(e trace.Event) bool {
		return e.Kind == trace.Untraced && e.Hook == "prerouting" && e.Text == want
	}) {
		t.Errorf("%s is not told: %+v", want, events)
	}
}

// TestTranslated follows the probe when somebody else gives it another destination.
func TestTranslated(t *testing.T) {
	b := newBench(t, `add table ip n; add chain ip n out { type nat hook output priority -100; }; add rule ip n out udp dport 10 dnat to 127.0.0.2:99;
		add chain ip n filter { type filter hook output priority 0; }; add chain ip n post { type filter hook postrouting priority 0; }`)
	to := netip.MustParseAddrPort("127.0.0.2:99")
	type event struct {
		hook, device string
		to           netip.AddrPort
	}
	var got []event
	for _, e := range b.events10() {
		if e.Kind == trace.Decided {
			got = append(got, event{e.Hook, e.Device, e.To})
		}
	}
	if want := []event{{hook: "output"}, {"output", "", to}, {"postrouting", "lo", to}}; !slices.Equal(got, want) {
		t.Errorf("decided is %v, want %v", got, want)
	}
}

// events10 returns what is told of a datagram to port 10.
func (b bench) events10() []trace.Event {
	b.Helper()
	o := b.watch("0123abcd", 10, sourcePort)
	defer o.Close()
	b.send(sourcePort, 10, 1)
	return b.events(o)
}
